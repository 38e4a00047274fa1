use super::*;

const MSS: u32 = 1000;

/// A recovery of `flight` segments of which the first `lost` are lost; the others are acknowledged one by one.
/// Returns how many left until then.
fn run(flight: u32, lost: u32, threshold: u32) -> u32 {
    let mut prr = Prr::new(flight * MSS);
    let mut in_flight = (flight - lost) * MSS;
    let mut sent = 0;
    for _ in lost..flight {
        in_flight -= MSS;
        prr.on_ack(MSS, in_flight, u64::from(threshold * MSS), MSS, false);
        while u64::from(in_flight + MSS) <= prr.window() {
            prr.on_sent(MSS);
            in_flight += MSS;
            sent += 1;
        }
    }
    sent
}

#[test]
fn one_loss_spreads_the_reduction_over_a_round_trip() {
    // Sent bytes are to delivered ones as the threshold to the flight.
    assert_eq!(run(20, 1, 10), 10);
    assert_eq!(run(100, 1, 70), 70);
}

#[test]
fn heavy_losses_send_one_for_each_delivered() {
    // Fewer in flight than the threshold, and no sign that it is safe.
    assert_eq!(run(20, 15, 10), 5);
}

#[test]
fn progress_without_losses_lets_one_more_go() {
    let mut prr = Prr::new(20 * MSS);
    prr.on_ack(MSS, 2 * MSS, 10_000, MSS, false);
    assert_eq!(prr.window(), 3000);
    prr.on_sent(MSS);
    prr.on_ack(MSS, 2 * MSS, 10_000, MSS, true);
    assert_eq!(prr.window(), 4000);
}

#[test]
fn the_first_retransmission_leaves_at_once() {
    let mut prr = Prr::new(20 * MSS);
    prr.on_ack(0, 19 * MSS, 10_000, MSS, false);
    assert_eq!(prr.window(), 20_000);
}

#[test]
fn no_threshold_overflows() {
    let mut prr = Prr::new(0);
    for threshold in [0, u64::MAX] {
        prr.on_ack(u32::MAX, u32::MAX, threshold, u32::MAX, true);
        prr.on_sent(u32::MAX);
        prr.on_ack(u32::MAX, 0, threshold, u32::MAX, true);
    }
    assert!(prr.window() <= u64::from(u32::MAX));
}
