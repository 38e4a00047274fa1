use super::*;
use core::time::Duration;

fn recovery() -> Recovery {
    Recovery::new(0, &Config::default())
}

fn acked(sent_at: u64, serial: u32) -> Acked {
    Acked {
        count: 1,
        clean_sent_at: sent_at,
        newest: true,
        newest_sent_at: sent_at,
        newest_serial: serial,
        ..Acked::NOTHING
    }
}

#[test]
fn the_first_sample_sets_srtt_and_rttvar_and_later_ones_smooth() {
    let mut recovery = recovery();
    recovery.on_acked(8_000, &acked(0, 1));
    assert_eq!((recovery.srtt, recovery.rttvar), (8_000, 4_000));
    recovery.on_acked(16_000 + 1_000, &acked(1_000, 2));
    assert_eq!((recovery.srtt, recovery.rttvar), (9_000, 5_000));
    assert_eq!(recovery.min_rtt(), 8_000);
}

//= rud/spec.md section 6.3, RUD-42, RUD-43
#[test]
fn a_datagram_counts_as_lost_only_after_one_sent_later_has_arrived() {
    let mut recovery = recovery();
    assert_eq!(recovery.lost_at(0, 1), NEVER);
    recovery.on_acked(100_000, &acked(0, 5));
    // Sent in the same instant, but before: the serial number decides. A quarter of 100 us is the window.
    assert_eq!(recovery.lost_at(0, 4), 125_000);
    assert_eq!(recovery.lost_at(0, 6), NEVER);
    // A spurious loss widens the window by another quarter.
    recovery.on_acked(200_000, &Acked { spurious: 1, ..acked(100_000, 7) });
    assert_eq!(recovery.lost_at(0, 4), 150_000);
    // The window narrows again after a while without any.
    recovery.on_acked(300_000, &Acked { count: REORDER_PERSISTS, ..acked(200_000, 8) });
    assert_eq!(recovery.lost_at(0, 4), 125_000);
    // Its least holds, also where a round trip is shorter.
    let mut fast = self::recovery();
    fast.on_acked(4_000, &acked(0, 5));
    assert_eq!(fast.lost_at(0, 4), 4_000 + fast.times.min_reordering);
}

//= rud/spec.md section 6.4, RUD-46
//= rud/spec.md section 6.5, RUD-47
#[test]
fn a_probe_comes_first_then_time_outs_that_back_off_until_progress() {
    let mut recovery = recovery();
    let times = recovery.times;
    recovery.on_sent(0, true);
    assert_eq!(recovery.tail_deadline(), 2 * times.initial_rtt + times.ack_delay);
    assert_eq!(recovery.on_tail_timer(recovery.tail_deadline() - 1), None);
    assert!(!recovery.probe_due());
    assert_eq!(recovery.on_tail_timer(1_100_000), Some(TailTimer::Probe));
    assert!(recovery.probe_due());
    recovery.on_probe_sent(1, 2);
    assert!(!recovery.probe_due(), "once");
    let first = recovery.tail_deadline() - 1_100_000;
    assert_eq!(first, times.min_rto.max(3 * times.initial_rtt + times.ack_delay));
    let mut now = recovery.tail_deadline();
    assert_eq!(recovery.on_tail_timer(now), Some(TailTimer::TimeOut));
    assert_eq!(recovery.tail_deadline() - now, 2 * first);
    for _ in 0..100 {
        now = recovery.tail_deadline();
        assert_eq!(recovery.on_tail_timer(now), Some(TailTimer::TimeOut));
    }
    assert_eq!(recovery.tail_deadline() - now, times.max_rto);
    recovery.on_acked(now + 1, &acked(0, 1));
    assert_eq!(recovery.on_tail_timer(recovery.tail_deadline()), Some(TailTimer::Probe));
    // Without a least: before a round-trip time is known, and after.
    let mut quick = Recovery::new(0, &Config { min_rto: Duration::ZERO, ..Config::default() });
    assert_eq!(quick.on_tail_timer(2_000_000), Some(TailTimer::Probe));
    assert_eq!(quick.tail_deadline() - 2_000_000, 3 * times.initial_rtt + times.ack_delay);
    quick.on_acked(2_100_000, &acked(2_000_000, 1));
    assert_eq!(quick.on_tail_timer(4_000_000), Some(TailTimer::Probe));
    assert_eq!(quick.tail_deadline() - 4_000_000, 100_000 + 4 * 50_000 + times.ack_delay);
}

//= rud/spec.md section 6.4, RUD-106
#[test]
fn what_was_sent_before_a_probe_that_is_answered_counts_as_lost_and_four_answers_alone_put_off_the_time_out()
{
    let mut recovery = recovery();
    recovery.on_acked(100_000, &acked(0, 1));
    let mut now = 200_000;
    for round in 1..=4 {
        let sent_at = now;
        recovery.on_sent(sent_at, true);
        now = recovery.tail_deadline();
        assert_eq!(recovery.on_tail_timer(now), Some(TailTimer::Probe), "{round}");
        let serial = 10 * round;
        recovery.on_probe_sent(u64::from(round), serial);
        assert!(!recovery.on_probe_answered(now + 1_000, u64::from(round) + 1, now), "another's");
        assert_eq!(recovery.lost_at(sent_at, serial - 1), NEVER);
        now += 100_000;
        assert!(recovery.on_probe_answered(now, u64::from(round), now - 100_000));
        // The round trip of the probe, and a quarter of the least one.
        assert_eq!(recovery.lost_at(sent_at, serial - 1), sent_at + 125_000);
        assert_eq!(recovery.lost_at(now, serial + 1), NEVER);
    }
    assert_eq!(recovery.on_tail_timer(recovery.tail_deadline()), Some(TailTimer::TimeOut));
}

//= rud/spec.md section 6.5, RUD-48
#[test]
fn only_a_measurement_ends_the_back_off() {
    let mut recovery = recovery();
    let times = recovery.times;
    recovery.on_acked(10_000, &acked(0, 1));
    let patience = recovery.tail_deadline() - 10_000;
    // Each datagram is answered only after it was probed, and then timed out: none was sent only once.
    let ambiguous = |serial| Acked { clean_sent_at: NEVER, ..acked(0, serial) };
    let mut now = 10_000;
    let mut probe_waits = vec![];
    let mut timeout_waits = vec![];
    for round in 0..6 {
        recovery.on_sent(now, true);
        let probe_at = recovery.tail_deadline();
        assert_eq!(recovery.on_tail_timer(probe_at), Some(TailTimer::Probe));
        let timeout_at = recovery.tail_deadline();
        assert_eq!(recovery.on_tail_timer(timeout_at), Some(TailTimer::TimeOut));
        probe_waits.push(probe_at - now);
        timeout_waits.push(timeout_at - probe_at);
        now = timeout_at + 1;
        recovery.on_acked(now, &ambiguous(2 + round));
    }
    assert_eq!(probe_waits, [1, 2, 4, 8, 8, 8].map(|times| times * patience));
    let longest = times.max_rto;
    let doubled: Vec<u64> = (0..6).map(|round| (times.min_rto << round).min(longest)).collect();
    assert_eq!(timeout_waits, doubled);
    // One that was sent once is measured, and the timers are the path's again.
    recovery.on_acked(now + 10_000, &acked(now, 20));
    assert_eq!(recovery.tail_deadline(), now + 10_000 + patience);
    assert_eq!(recovery.backoff(), 0);
}
