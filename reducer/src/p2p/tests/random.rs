//! Random jobs against the obvious model of matching.

use super::harness::{Buffer, Faults, Group};
use super::*;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::collections::HashSet;

const BAD: Faults = Faults { duplicate: 15, full: 20, refuse: 10, in_order: false };

/// How a message or a receive has begun.
#[derive(Clone, Copy)]
struct Start {
    /// Its place among all starts.
    at: usize,
    how: How,
}

#[derive(Clone, Copy)]
enum How {
    /// It ends by polls.
    Started(TransferId),
    /// It has ended in its call.
    AtOnce(Status),
}

/// One message, in the order in which its rank starts it.
struct Message {
    from: u32,
    to: u32,
    request: SendRequest,
    bytes: Vec<u8>,
    _buffer: Buffer,
    start: Option<Start>,
}

/// One receive, in the order in which its rank starts it.
struct Receiving {
    on: u32,
    request: ReceiveRequest,
    buffer: Buffer,
    start: Option<Start>,
    /// The message that it took, by what came.
    took: Option<usize>,
}

enum Job {
    Send(usize),
    Receive(usize),
}

fn dtype(rng: &mut SmallRng, wrong: u32) -> DType {
    if rng.random_range(0..100) < wrong { DType::F32 } else { DType::U64 }
}

/// Each message begins with its number, which tells it from others where it arrives; shorter ones have no content to tell them by.
fn message(rng: &mut SmallRng, number: usize, (from, to): (u32, u32), wrong: u32) -> Message {
    let count = [1, 1, 2, 8, 16, 17, 100, 500, 700][rng.random_range(0..9)];
    let mut bytes: Vec<u8> = (0..count * 8).map(|_| rng.random()).collect();
    bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
    let buffer = Buffer::new(&bytes);
    let tag = rng.random_range(0..3);
    let (dtype, synchronous) = (dtype(rng, wrong), rng.random_range(0..4) == 0);
    let request = SendRequest { dtype, synchronous, ..send(to, tag, &buffer) };
    Message { from, to, request, bytes, _buffer: buffer, start: None }
}

fn receiving(rng: &mut SmallRng, message: &Message, wrong: u32) -> Receiving {
    let len = if rng.random_range(0..100) < wrong { 64 } else { 700 * 8 };
    let buffer = Buffer::new(&vec![0; len]);
    let from = (rng.random_range(0..4) > 0).then_some(message.from);
    let tag = (rng.random_range(0..4) > 0).then_some(message.request.tag);
    let request = ReceiveRequest { dtype: dtype(rng, wrong), ..receive(from, tag, &buffer) };
    Receiving { on: message.to, request, buffer, start: None, took: None }
}

struct Play {
    group: Group,
    messages: Vec<Message>,
    receives: Vec<Receiving>,
    /// Errors that sends which had ended have brought.
    late: Vec<TransferError>,
    starts: usize,
    /// Of these, ended in one call: sends and receives.
    at_once: [u64; 2],
    what: String,
}

impl Play {
    fn start(&mut self, job: &Job) {
        self.starts += 1;
        let (at, tries) = (self.starts, self.group.rng.random());
        let start = |how| Some(Start { at, how });
        match *job {
            Job::Send(at) => {
                let Message { from, request, .. } = self.messages[at];
                if tries && let Some(status) = self.group.send_at_once(from, &request) {
                    self.messages[at].start = start(How::AtOnce(status));
                    self.at_once[0] += 1;
                    return;
                }
                let started = loop {
                    match self.group.try_send(from, request) {
                        Ok(id) => break id,
                        Err(PostError::Earlier(error)) => self.late.push(*error),
                        Err(error) => panic!("{}: {error}", self.what),
                    }
                };
                self.messages[at].start = start(How::Started(started));
            }
            Job::Receive(at) => {
                let Receiving { on, request, .. } = self.receives[at];
                let at_once = if tries { self.group.receive_at_once(on, &request) } else { None };
                self.at_once[1] += u64::from(at_once.is_some());
                let how = at_once.map(How::AtOnce);
                let by_polls = || How::Started(self.group.ranks[on as usize].start_receive(request).unwrap());
                self.receives[at].start = start(how.unwrap_or_else(by_polls));
            }
        }
    }

    /// Starts the jobs of each rank in their order at random times.
    fn run(&mut self, mut jobs: Vec<Vec<Job>>) {
        let ranks = jobs.len();
        jobs.iter_mut().for_each(|jobs| jobs.reverse());
        while jobs.iter().any(|jobs| !jobs.is_empty()) {
            let rank = self.group.rng.random_range(0..ranks);
            match self.group.rng.random_range(0..8) {
                0 | 1 => {
                    if let Some(job) = jobs[rank].pop() {
                        self.start(&job);
                    }
                }
                2..5 => {
                    self.group.poll(rank);
                }
                _ => {
                    self.group.network();
                }
            }
        }
        self.group.settle();
    }

    /// Which message each receive took, by what it got.
    fn note_taken(&mut self) {
        let what = &self.what;
        for receiving in self.receives.iter_mut().filter(|receiving| receiving.took.is_none()) {
            let status = match receiving.start.unwrap().how {
                How::Started(id) => self.group.result(receiving.on, id).cloned(),
                How::AtOnce(status) => Some(Ok(status)),
            };
            let Some(Ok(status)) = status else { continue };
            let bytes = receiving.buffer.bytes();
            let number = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let message = &self.messages[number];
            let SendRequest { tag, dtype, .. } = message.request;
            let count = (message.bytes.len() / dtype.size()) as u64;
            assert_eq!(status, Status { peer: Rank(message.from), tag, dtype, count }, "{what}");
            assert_eq!(message.to, receiving.on, "{what}");
            assert!(bytes[..message.bytes.len()] == message.bytes, "{what}: message {number} came wrong");
            receiving.took = Some(number);
        }
        let mut seen = HashSet::new();
        assert!(
            self.receives.iter().filter_map(|receiving| receiving.took).all(|number| seen.insert(number)),
            "{what}: a message came twice"
        );
    }

    /// Of two messages of one sender that a receive asks for, and that came to it and to a later one, it took the older.
    fn assert_order(&self) {
        let accepts = |receiving: &Receiving, message: &Message| {
            receiving.request.from.is_none_or(|from| from == Rank(message.from))
                && receiving.request.tag.is_none_or(|tag| tag == message.request.tag)
        };
        let at = |receiving: &Receiving| receiving.start.unwrap().at;
        let sent = |message: &Message| message.start.unwrap().at;
        let taken = self.receives.iter().filter_map(|receiving| Some((receiving, receiving.took?)));
        let taken: Vec<_> = taken.collect();
        for (older, one) in &taken {
            for (_, other) in taken.iter().filter(|(later, _)| later.on == older.on && at(later) > at(older))
            {
                let (first, second) = (&self.messages[*one], &self.messages[*other]);
                let overtaken =
                    first.from == second.from && sent(second) < sent(first) && accepts(older, second);
                assert!(!overtaken, "{}: message {one} has overtaken {other}", self.what);
            }
        }
    }
}

fn play(seed: u64, wrong: u32) -> (Play, Vec<Vec<Job>>) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let ranks = rng.random_range(1..=4u32);
    let faults = if rng.random() { BAD } else { Faults { in_order: rng.random(), ..Faults::default() } };
    let room = [4 << 10, 16 << 10, 1 << 20][rng.random_range(0..3)];
    let copies = [0, 1 << 10, 1 << 20][rng.random_range(0..3)];
    let mut group = Group::new(seed, ranks, faults, |config| {
        (config.room_bytes, config.copy_bytes, config.eager_bytes) = (room, copies, 1 << 10);
    });
    group.net.fragment = [64 * rng.random_range(1..=5); 2];
    let (mut messages, mut receives): (Vec<Message>, Vec<Receiving>) = Default::default();
    let mut jobs: Vec<Vec<Job>> = (0..ranks).map(|_| vec![]).collect();
    for number in 0..rng.random_range(1..=40) {
        let pair = (rng.random_range(0..ranks), rng.random_range(0..ranks));
        let message = message(&mut rng, number, pair, wrong);
        receives.push(receiving(&mut rng, &message, wrong));
        jobs[pair.0 as usize].push(Job::Send(number));
        jobs[pair.1 as usize].push(Job::Receive(number));
        messages.push(message);
    }
    jobs.iter_mut().for_each(|jobs| jobs.shuffle(&mut rng));
    let what = format!("seed {seed}");
    (Play { group, messages, receives, late: vec![], starts: 0, at_once: [0; 2], what }, jobs)
}

/// Any jobs. Specific receives may find their messages taken by others; receives from any rank take the rest in the end.
fn run_seed(seed: u64) -> (MessageCounters, [u64; 2]) {
    let (mut play, jobs) = play(seed, 0);
    play.run(jobs);
    play.note_taken();
    play.assert_order();
    // Receives that are left over ask for what others have taken.
    let mut left = vec![];
    for receiving in &play.receives {
        let How::Started(id) = receiving.start.unwrap().how else { continue };
        if play.group.result(receiving.on, id).is_none() {
            assert!(play.group.ranks[receiving.on as usize].cancel(id), "{}", play.what);
            left.push(receiving.on);
        }
    }
    for on in left {
        let buffer = Buffer::new(&[0; 700 * 8]);
        let request = ReceiveRequest { dtype: DType::U64, ..receive(None, None, &buffer) };
        play.receives.push(Receiving { on, request, buffer, start: None, took: None });
        play.start(&Job::Receive(play.receives.len() - 1));
    }
    play.group.settle();
    play.note_taken();
    let taken = play.receives.iter().filter(|receiving| receiving.took.is_some()).count();
    assert_eq!(taken, play.messages.len(), "{}: every message is taken", play.what);
    for message in &play.messages {
        if let How::Started(id) = message.start.unwrap().how {
            assert!(matches!(play.group.result(message.from, id), Some(Ok(_))), "{}", play.what);
        }
    }
    play.group.assert_given_back(&play.what);
    let all = play.group.ranks.iter().map(Messenger::counters);
    let sum = all.fold(MessageCounters::default(), |sum, one| MessageCounters {
        eager: sum.eager + one.eager,
        announced: sum.announced + one.announced,
        early: sum.early + one.early,
        duplicates: sum.duplicates + one.duplicates,
        ..sum
    });
    (sum, play.at_once)
}

/// Replay one with `SHOUTER_SEED=n cargo test -p shouter-reducer p2p`.
#[test]
fn thousands_of_seeds_give_every_message_to_one_receive_in_order() {
    if let Some(seed) = std::env::var("SHOUTER_SEED").ok().and_then(|seed| seed.parse().ok()) {
        run_seed(seed);
        return;
    }
    let mut sums = vec![0; 6];
    for seed in 0..3000 {
        let (MessageCounters { eager, announced, early, duplicates, .. }, [sent, received]) = run_seed(seed);
        for (sum, one) in sums.iter_mut().zip([eager, announced, early, duplicates, sent, received]) {
            *sum += one;
        }
    }
    // A receive in one call needs a message that comes when none waits: `at_once` has more of them.
    let received = sums.pop().unwrap();
    assert!(received > 30 && sums.iter().all(|sum| *sum > 3000), "{sums:?}, {received}");
}

/// Receives that are too short or of another type, and deadlines: every transfer ends, nothing comes twice, nothing is kept.
fn run_wrong_seed(seed: u64) -> [usize; 3] {
    let (mut play, jobs) = play(seed, 10);
    for request in play.messages.iter_mut().map(|message| &mut message.request) {
        let deadline = play.group.rng.random_range(1..20_000);
        request.deadline = Duration::from_micros(deadline);
    }
    for request in play.receives.iter_mut().map(|receiving| &mut receiving.request) {
        let deadline = play.group.rng.random_range(1..20_000);
        request.deadline = Duration::from_micros(deadline);
    }
    play.run(jobs);
    play.group.now += Duration::from_millis(20);
    play.group.settle();
    play.note_taken();
    play.assert_order();
    for messenger in &mut play.group.ranks {
        play.late.extend(std::iter::from_fn(|| messenger.take_late()));
    }
    play.group.assert_given_back(&play.what);
    let mismatches = |direction| {
        let ended = play.group.ended.iter().flat_map(|ended| ended.values());
        let errors = ended.filter_map(|result| result.as_ref().err()).chain(&play.late);
        let mismatch = |error: &&TransferError| matches!(error, TransferError::Mismatch { subject, .. } if subject.direction == direction);
        errors.filter(mismatch).count()
    };
    let (sends, receives) = (mismatches(Direction::Send), mismatches(Direction::Receive));
    // Of several sends to one rank that fail once they have ended, the first is told.
    assert!(sends <= receives && (receives == 0 || sends > 0 || !play.late.is_empty()), "{}", play.what);
    let taken = play.receives.iter().filter(|receiving| receiving.took.is_some()).count();
    [sends, receives, taken]
}

#[test]
fn thousands_of_seeds_with_wrong_receives_and_deadlines_keep_nothing() {
    if let Some(seed) = std::env::var("SHOUTER_SEED").ok().and_then(|seed| seed.parse().ok()) {
        run_wrong_seed(seed);
        return;
    }
    let sums = (0..3000)
        .map(run_wrong_seed)
        .fold([0; 3], |sum, one| [sum[0] + one[0], sum[1] + one[1], sum[2] + one[2]]);
    assert!(sums.iter().all(|sum| *sum > 1000), "{sums:?}");
}
