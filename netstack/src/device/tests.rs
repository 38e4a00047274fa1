use super::{Device, Frame, HEADER_CAPACITY, Loopback, TxBatch};
use crate::time::Instant;

fn frame(byte: u8) -> Frame {
    Frame::new(&[&[byte; 60]], None).unwrap()
}

#[test]
fn a_batch_keeps_its_order_however_it_is_filled_and_emptied() {
    let mut batch = TxBatch::with_capacity(4);
    let (mut pushed, mut taken) = (0u8, 0u8);
    for round in 0..50 {
        while batch.push(frame(pushed)) {
            pushed += 1;
        }
        assert_eq!((batch.room(), batch.frames().len()), (0, 4));
        let take = round % 4 + usize::from(round % 2 == 0);
        for front in &batch.frames()[..take] {
            assert_eq!(front.header()[0], taken);
            taken += 1;
        }
        batch.consume(take);
    }
    batch.consume(100);
    assert!(batch.is_empty());
}

#[test]
fn headers_that_do_not_fit_are_refused() {
    assert!(Frame::new(&[&[0; HEADER_CAPACITY]], None).is_some());
    assert!(Frame::new(&[&[0; HEADER_CAPACITY], &[0]], None).is_none());
}

#[test]
fn a_full_loopback_is_back_pressure_and_an_oversized_frame_is_loss() {
    let (mut a, mut b) = Loopback::pair(100, 2);
    let mut batch = TxBatch::with_capacity(8);
    batch.push(Frame::new(&[&[7; 119]], None).unwrap());
    for byte in 0..3 {
        batch.push(frame(byte));
    }
    assert_eq!(a.transmit(Instant::ZERO, &mut batch), 3);
    assert_eq!((a.counters().dropped, a.counters().tx_frames), (1, 2));
    assert_eq!(batch.frames().len(), 1, "the frame that does not fit stays");
    let mut seen = Vec::new();
    assert_eq!(b.receive(Instant::ZERO, 1, &mut |frame| seen.push(frame.head()[0])), 1);
    assert_eq!(a.transmit(Instant::ZERO, &mut batch), 1);
    assert_eq!(b.receive(Instant::ZERO, 8, &mut |frame| seen.push(frame.head()[0])), 2);
    assert_eq!(seen, [0, 1, 2]);
    assert!(a.link_up());
    drop(b);
    assert!(!a.link_up());
}
