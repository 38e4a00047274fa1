//! When a rank that leaves may go.

use std::sync::atomic::AtomicBool;

use shouter_reducer::header::Header;
use shouter_reducer::transport::{PayloadRange, SendError, SendToken, Transport};

use super::*;
use crate::channel::Inbox;
use crate::channel::loss::PeerLoss;
use crate::channel::up::Channel;

/// A channel to rank 0, which has acknowledged everything or not.
struct Owing(Arc<AtomicBool>);

impl Transport for Owing {
    fn max_fragment(&self, _: Rank) -> usize {
        64
    }
    fn send(&mut self, _: Rank, _: &Header, _: PayloadRange, _: SendToken) -> Result<(), SendError> {
        Ok(())
    }
    fn request_ack(&mut self, _: Rank) {}
}

impl Channel for Owing {
    fn receive(&mut self, _: Instant, _: &mut dyn Inbox) -> bool {
        false
    }
    fn transmit(&mut self, _: Instant, _: &mut dyn Inbox) -> bool {
        false
    }
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
    fn take_lost(&mut self) -> Option<PeerLoss> {
        None
    }
    fn acknowledged_by(&self, _: Rank) -> u64 {
        0
    }
    fn broadcast(&mut self, _: &Header) {}
    fn fence(&mut self) {}
    fn is_drained_to(&self, awaited: &dyn Fn(Rank) -> bool) -> bool {
        self.0.load(Ordering::SeqCst) || !awaited(Rank(0))
    }
    fn resent(&self) -> u64 {
        0
    }
    fn crc_dropped(&self) -> u64 {
        0
    }
}

const STEP: Duration = Duration::from_millis(2);

/// For how long rank 1 stays when it leaves; at every step it looks first at what `event` does.
fn stay(mut event: impl FnMut(Duration, &AtomicBool, &mut Engine)) -> Duration {
    let [_other, mut engine] = idle();
    let acknowledged = Arc::new(AtomicBool::new(false));
    engine.up = Owing(acknowledged.clone()).into();
    // It has just done something.
    let begin = Clock.now();
    engine.times = PollTimes::new(DEAD_AFTER, begin);
    let mut waited = Duration::ZERO;
    while !engine.depart(begin + waited) {
        assert!(waited < 2 * DEAD_AFTER, "it never leaves");
        waited += STEP;
        event(waited, &acknowledged, &mut engine);
        engine.poll(begin + waited);
    }
    assert_eq!(engine.aborted(), None);
    waited
}

#[test]
fn who_leaves_waits_until_its_peers_have_acknowledged_everything() {
    let late = Duration::from_secs(3);
    let stayed = stay(|waited, acknowledged, _| acknowledged.store(waited >= late, Ordering::SeqCst));
    assert!((late..late + 20 * STEP).contains(&stayed), "{stayed:?}");
}

#[test]
fn who_leaves_goes_as_soon_as_nobody_asks_again() {
    let stayed = stay(|_, acknowledged, _| acknowledged.store(true, Ordering::SeqCst));
    assert!(stayed < Duration::from_millis(20), "{stayed:?}");
}

#[test]
fn who_leaves_does_not_wait_for_those_who_have_left() {
    let late = Duration::from_secs(1);
    let stayed = stay(|waited, _, engine| {
        if waited == late {
            engine.left(Departure { rank: 0, started: 0 });
        }
    });
    assert_eq!(stayed, late);
}

#[test]
fn who_leaves_waits_for_a_dead_peer_no_longer_than_the_heartbeat_time_out() {
    assert_eq!(stay(|_, _, _| {}), DEAD_AFTER);
}

#[test]
fn who_leaves_answers_peers_that_go_on_for_a_short_time() {
    let stayed = stay(|waited, acknowledged, engine| {
        acknowledged.store(true, Ordering::SeqCst);
        engine.times.found(engine.polled_at() + STEP);
        assert!(waited < Duration::from_secs(1), "it answers for too long");
    });
    assert!(stayed >= Duration::from_millis(100), "{stayed:?}");
}

#[test]
fn who_leaves_answers_peers_that_have_left_and_still_ask() {
    let asks = Duration::from_millis(30);
    let stayed = stay(|waited, _, engine| {
        engine.left(Departure { rank: 0, started: 0 });
        if waited <= asks {
            engine.times.found(engine.polled_at() + STEP);
        }
    });
    assert!(stayed > asks && stayed < asks + Duration::from_millis(30), "{stayed:?}");
}
