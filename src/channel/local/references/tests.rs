#![allow(unsafe_code)]

use std::sync::Arc;

use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::executor::{Disposition, Refusal};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{Collective, HEADER_BYTES, Header, Identity, MatchKey, MessageKind, Shape};
use shouter_reducer::memory::{MemoryKind, Span, TensorRegion};
use shouter_reducer::transport::SendToken;

use super::super::ring::MAX_PAYLOAD;
use super::super::{Local, Writer};
use crate::channel::Inbox;
use crate::channel::loss::Loss;
use crate::channel::shm::{NodeSegment, SharedMemory};

/// What a rank has received: numbers and bytes of messages; and the tokens that were released.
#[derive(Default)]
struct Post {
    /// Messages with numbers below this one.
    refuses_below: u64,
    came: Vec<(u64, Vec<u8>)>,
    released: Vec<SendToken>,
}

impl Inbox for Post {
    fn fragment(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        if header.key.seq < self.refuses_below {
            return Disposition::Refused(Refusal::NotReady);
        }
        self.came.push((header.key.seq, payload.to_vec()));
        Disposition::Consumed
    }

    fn released(&mut self, token: SendToken) {
        self.released.push(token);
    }
}

/// A rank of a host of two, with its memory that the host shares.
struct Member {
    local: Local,
    memory: SharedMemory,
    segment: Arc<NodeSegment>,
    post: Post,
}

const ARENA: usize = 256 << 10;

impl Member {
    fn pair() -> [Self; 2] {
        let shape = crate::channel::shm::SegmentShape {
            ranks: 2,
            lanes: 1,
            lane_bytes: 4096,
            arena_bytes: ARENA,
            parts: 0,
        };
        let first = NodeSegment::create(shape).unwrap();
        let second = NodeSegment::attach(first.fd().try_clone_to_owned().unwrap(), shape, 1).unwrap();
        let grid = Grid::new(2, 1).unwrap();
        let ranks = [Arc::new(first), Arc::new(second)].into_iter().zip(0..);
        let mut all = ranks.map(|(segment, rank)| Self {
            local: Local::new(Arc::clone(&segment), grid, Rank(rank), || None),
            memory: SharedMemory::new(&segment, 4 * MAX_PAYLOAD).unwrap(),
            segment,
            post: Post::default(),
        });
        [all.next().unwrap(), all.next().unwrap()]
    }

    /// Writes `value` to a piece of the shared memory.
    fn fill(&mut self, at: usize, len: usize, value: u8) {
        // SAFETY: inside the memory, which only this test accesses.
        unsafe { self.memory.as_ptr().as_ptr().add(at).write_bytes(value, len) };
    }

    fn span(&self, at: usize, len: usize) -> Span {
        // SAFETY: inside the memory, which outlives the region.
        let region = unsafe {
            TensorRegion::from_raw_parts(MemoryKind::Shared, self.memory.as_ptr(), 4 * MAX_PAYLOAD, 0)
        };
        region.span(at, len).unwrap()
    }

    fn send(&mut self, number: u64, payload: Span, token: SendToken) {
        let header = Header {
            kind: MessageKind::Message,
            src: Rank(0),
            key: MatchKey { seq: number, ..MatchKey::default() },
            identity: Identity::AdHoc { root: Rank(0) },
            shape: Shape { collective: Collective::Barrier, dtype: DType::U8, op: ReduceOp::Sum, count: 1 },
            round: 0,
            offset: 0,
            granule: MAX_PAYLOAD as u32,
            len: payload.len() as u32,
        };
        self.local.send(Rank(1), &header, payload, token).unwrap();
    }

    fn receive(&mut self) -> bool {
        self.local.receive(&mut self.post)
    }

    /// The tokens that were released since the last call.
    fn released(&mut self) -> Vec<SendToken> {
        self.local.transmit(&mut self.post, |_, _, _, _| unreachable!("there is one host"));
        std::mem::take(&mut self.post.released)
    }
}

#[test]
fn a_large_shared_payload_is_released_when_it_was_read() {
    let [mut from, mut to] = Member::pair();
    from.fill(0, MAX_PAYLOAD, 1);
    let (whole, small) = (from.span(0, MAX_PAYLOAD), from.span(0, 100));
    from.send(0, whole, SendToken(7));
    from.send(1, small, SendToken(8));
    from.send(2, whole, SendToken(9));
    assert_eq!(from.released(), [SendToken(8)]);
    assert!(!from.local.is_drained());
    // Not taken yet: it is still needed.
    to.post.refuses_below = 3;
    to.receive();
    assert_eq!(from.released(), []);
    to.post.refuses_below = 0;
    to.receive();
    let expected = [MAX_PAYLOAD, 100, MAX_PAYLOAD].map(|len| vec![1; len]);
    assert_eq!(to.post.came, (0..).zip(expected).collect::<Vec<_>>());
    assert_eq!(from.released(), [SendToken(7), SendToken(9)]);
    assert!(from.local.is_drained());
}

/// Else a sender that waits for its release would wait for what its reader does only afterwards.
#[test]
fn a_payload_that_was_read_is_released_though_earlier_messages_wait() {
    let [mut from, mut to] = Member::pair();
    from.fill(0, MAX_PAYLOAD, 1);
    let whole = from.span(0, MAX_PAYLOAD);
    to.post.refuses_below = 2;
    for number in 0..4 {
        from.send(number, whole, SendToken(number));
    }
    to.receive();
    assert_eq!(from.released(), [SendToken(2), SendToken(3)]);
    assert_eq!(from.released(), []);
    // One that waited is marked as well, behind one that still does.
    to.post.refuses_below = 1;
    to.receive();
    assert_eq!(from.released(), [SendToken(1)]);
    to.post.refuses_below = 0;
    to.receive();
    assert_eq!(from.released(), [SendToken(0)]);
    assert!(from.local.is_drained());
    // Marks of these are not taken for marks of the entries that come to lie there.
    for number in 4..4000 {
        from.send(number, whole, SendToken(number));
        assert_eq!(from.released(), []);
        to.receive();
        assert_eq!(from.released(), [SendToken(number)]);
    }
}

/// It may be overwritten as soon as it is posted, so it is copied.
#[test]
fn a_payload_without_a_token_is_copied() {
    let [mut from, mut to] = Member::pair();
    from.fill(0, MAX_PAYLOAD, 1);
    let whole = from.span(0, MAX_PAYLOAD);
    from.send(0, whole, SendToken::CONTROL);
    from.fill(0, MAX_PAYLOAD, 2);
    to.receive();
    assert_eq!(to.post.came, [(0, vec![1; MAX_PAYLOAD])]);
}

/// A reader that was stopped, and does not know of the end, reads what was sent.
#[test]
fn what_is_written_after_the_fence_reaches_no_reader() {
    let [mut from, mut to] = Member::pair();
    from.fill(0, MAX_PAYLOAD, 1);
    let whole = from.span(0, MAX_PAYLOAD);
    from.send(0, whole, SendToken(7));
    from.local.fence();
    assert_eq!(from.released(), []);
    assert!(from.local.is_drained());
    from.fill(0, MAX_PAYLOAD, 2);
    to.receive();
    assert_eq!(to.post.came, [(0, vec![1; MAX_PAYLOAD])]);
}

/// The same where the sender's group is dropped.
#[test]
fn what_is_written_after_the_drop_reaches_no_reader() {
    let [mut from, mut to] = Member::pair();
    from.fill(0, MAX_PAYLOAD, 1);
    let whole = from.span(0, MAX_PAYLOAD);
    from.send(0, whole, SendToken(7));
    let Member { local, memory, .. } = from;
    drop(local);
    // SAFETY: inside the memory, which only this test accesses.
    unsafe { memory.as_ptr().as_ptr().write_bytes(2, MAX_PAYLOAD) };
    to.receive();
    assert_eq!(to.post.came, [(0, vec![1; MAX_PAYLOAD])]);
}

#[test]
fn who_has_left_needs_no_payload() {
    let [mut from, to] = Member::pair();
    let whole = from.span(0, MAX_PAYLOAD);
    from.send(0, whole, SendToken(7));
    assert_eq!(from.released(), []);
    to.segment.leave();
    assert_eq!(from.released(), [SendToken(7)]);
}

/// Another process's memory may hold anything.
#[test]
fn a_reference_out_of_the_arena_loses_its_writer() {
    for (offset, len) in [(ARENA, MAX_PAYLOAD), (usize::MAX, 8), (ARENA - 8, 16), (0, MAX_PAYLOAD + 1)] {
        let [from, mut to] = Member::pair();
        let mut writer = Writer::new(from.segment.ring_between(0, 1));
        let pushed = writer.push_in_arena(&from.segment, &[0; HEADER_BYTES], offset, len);
        assert_eq!(pushed.is_ok(), len <= MAX_PAYLOAD);
        if pushed.is_ok() {
            // Its bell is not rung: look at all rings.
            to.local.due = u64::MAX;
            to.receive();
            let lost = to.local.take_lost().unwrap();
            assert_eq!((lost.rank, lost.why), (Rank(0), Loss::Scrambled), "{offset} {len}");
            assert!(to.post.came.is_empty());
        }
    }
}
