//! Ranks that look at their rings alone between two whole polls.

use shouter_reducer::p2p::{ReceiveRequest, SendRequest, Status, TransferId};

use super::*;

pub(super) const LARGE: usize = 1 << 20;

/// A rank that reaches the other one by rings alone, and memory that it sends from and receives into.
pub(super) struct Waiter {
    // Before the memory that it refers to.
    pub(super) engine: Engine,
    pub(super) own: Owned,
    pub(super) into: Owned,
}

impl Waiter {
    pub(super) fn send_request(&mut self, now: Instant, tag: u32, bytes: usize) -> SendRequest {
        // SAFETY: it is dropped behind the engine.
        let data = unsafe { self.own.region() }.sub(0, bytes).unwrap();
        let to = Rank(1 - self.engine.rank.0);
        let deadline = executor_time(now + LIMIT);
        let (dtype, held, synchronous) = (DType::U8, false, false);
        SendRequest { to, tag, dtype, data, held, synchronous, deadline }
    }

    pub(super) fn receive_request(&mut self, now: Instant, tag: u32, bytes: usize) -> ReceiveRequest {
        // SAFETY: it is dropped behind the engine.
        let into = unsafe { self.into.region() }.sub(0, bytes).unwrap();
        let from = Some(Rank(1 - self.engine.rank.0));
        let deadline = executor_time(now + LIMIT);
        ReceiveRequest { from, tag: Some(tag), dtype: DType::U8, into, deadline }
    }

    pub(super) fn send(&mut self, now: Instant, tag: u32, bytes: usize) -> TransferId {
        let request = self.send_request(now, tag, bytes);
        let id = self.engine.start_send(None, request).unwrap();
        self.engine.post(None, now);
        id
    }

    pub(super) fn receive(&mut self, now: Instant, tag: u32, bytes: usize) -> TransferId {
        let request = self.receive_request(now, tag, bytes);
        let id = self.engine.start_receive(None, now, request).unwrap();
        self.engine.post(None, now);
        id
    }

    pub(super) fn status(&mut self, id: TransferId) -> Option<Status> {
        self.engine.take_transfer(None, id).map(Result::unwrap)
    }

    pub(super) fn bytes(memory: &mut Owned) -> &mut [u8] {
        // SAFETY: nobody else refers to it while the test looks.
        unsafe { std::slice::from_raw_parts_mut(memory.as_ptr().as_ptr(), LARGE) }
    }
}

/// Two ranks of one host that have found nothing to do.
pub(super) fn resting(now: Instant) -> [Waiter; 2] {
    let (plan, grid) = (Plan::default(), Grid::new(2, 2).unwrap());
    let mut waiters = engines(&plan, grid).map(|mut engine| {
        let (node, rank) = (engine.node.clone().unwrap(), engine.rank);
        engine.up.reach_all(node, grid, rank);
        Waiter { engine, own: Owned::new(LARGE).unwrap(), into: Owned::new(LARGE).unwrap() }
    });
    for waiter in &mut waiters {
        assert_eq!(waiter.engine.poll(now), Activity::Idle);
        assert_eq!(waiter.engine.glance(now), Some(Activity::Idle));
    }
    waiters
}

/// No time passes: all of it is glances, and the polls behind those that have found something.
#[test]
fn a_large_message_is_asked_for_and_sent_between_whole_polls() {
    let now = Clock.now();
    let [mut first, mut second] = resting(now);
    Waiter::bytes(&mut first.own).iter_mut().zip(0u32..).for_each(|(byte, at)| *byte = (at % 251) as u8);
    let received = second.receive(now, 7, LARGE);
    assert_eq!(second.engine.glance(now), Some(Activity::Idle), "nothing is to be sent");
    let sent = first.send(now, 7, LARGE);
    let mut left = 2;
    for _ in 0..10_000 {
        first.engine.poll_again(now);
        second.engine.poll_again(now);
        left -= first.status(sent).iter().count() + second.status(received).iter().count();
        if left == 0 {
            break;
        }
    }
    assert_eq!(left, 0, "a large message takes some polls");
    assert!(Waiter::bytes(&mut first.own) == Waiter::bytes(&mut second.into));
}

/// More than the rings hold, and more than a rank may keep: both send and receive all the time.
#[test]
fn small_messages_cross_at_once_and_leave_the_rings_room() {
    let now = Clock.now();
    let [mut first, mut second] = resting(now);
    for round in 0..20_000u32 {
        let bytes = [0, 8, 56, 300][round as usize % 4];
        let mut ids = vec![];
        for waiter in [&mut first, &mut second] {
            let mark = round as u8 ^ waiter.engine.rank.0 as u8;
            Waiter::bytes(&mut waiter.own)[..bytes].fill(mark);
            let sent = waiter.send(now, round, bytes);
            assert!(waiter.status(sent).is_some(), "it is copied");
        }
        for waiter in [&mut first, &mut second] {
            ids.push(waiter.receive(now, round, bytes));
        }
        for (waiter, id) in [&mut first, &mut second].into_iter().zip(ids) {
            waiter.engine.poll_again(now);
            let status = waiter.status(id).unwrap_or_else(|| panic!("round {round} has not come"));
            assert_eq!((status.tag, status.count), (round, bytes as u64));
            let mark = round as u8 ^ (1 - waiter.engine.rank.0) as u8;
            assert!(Waiter::bytes(&mut waiter.into)[..bytes].iter().all(|byte| *byte == mark));
        }
    }
}

#[test]
fn a_whole_poll_is_due_after_a_microsecond_and_where_an_operation_is_under_way() {
    let now = Clock.now();
    let [mut first, _second] = resting(now);
    let later = now + Duration::from_micros(1);
    assert_eq!(first.engine.glance(later), None);
    assert_eq!(first.engine.polled_at(), now);
    first.engine.poll_again(later);
    assert_eq!(first.engine.polled_at(), later);
    // A send that comes long after the last poll is one itself.
    let much_later = later + Duration::from_micros(20);
    first.send(later + Duration::from_micros(19), 1, 8);
    assert_eq!(first.engine.polled_at(), later);
    first.send(much_later, 2, 8);
    assert_eq!(first.engine.polled_at(), much_later);
    first.engine.poll(much_later);
    first.engine.poll(much_later);
    assert_eq!(first.engine.glance(much_later), Some(Activity::Idle));
    // SAFETY: it is dropped behind the engine.
    let data = unsafe { first.own.region() };
    let request = all_reduce(&first.engine, data, much_later + LIMIT);
    first.engine.start(much_later, request).unwrap();
    assert_eq!(first.engine.glance(much_later), None);
}

/// A rank that waits, and polls as often as it can, learns of the end that another one has written down.
#[test]
fn who_only_waits_hears_of_the_end() {
    let mut now = Clock.now();
    let [mut first, second] = resting(now);
    let received = first.receive(now, 1, 8);
    second.engine.node.as_ref().unwrap().set_abort(1, AbortReason::Aborted.code() as u8);
    let until = now + LIMIT;
    let ended = loop {
        assert!(now < until, "this rank was not notified");
        first.engine.poll_again(now);
        if let Some(ended) = first.engine.take_transfer(None, received) {
            break ended;
        }
        now += Duration::from_nanos(300);
    };
    assert!(ended.unwrap_err().to_string().contains("rank 1"));
    assert_eq!(first.engine.aborted().unwrap().culprit, Rank(1));
}
