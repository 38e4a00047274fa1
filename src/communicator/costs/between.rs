//! Between rank 0 and the leader of another host: what messages over the real channel cost. They are ordinary messages of the group,
//! which begin before anybody else's can.

use std::time::Duration;

use shouter_reducer::cost::NetworkCosts;
use shouter_reducer::dtype::DType;
use shouter_reducer::grid::Rank;
use shouter_reducer::memory::MemoryKind;
use shouter_reducer::p2p::{ReceiveRequest, SendRequest};

use super::samples::{NETWORK_RATES, Samples, plausible, rate, steady};
use crate::communicator::drive::{Drive, Post};
use crate::communicator::element::{from_slice, with_bytes};
use crate::engine::executor_time;
use crate::runtime::{Clock, Instant};

/// For answers, and for several messages at once; for bytes in one direction, and in both.
const MESSAGES_TIME: Duration = Duration::from_millis(4);
const BYTES_TIME: Duration = Duration::from_millis(8);

/// Samples that are taken at most, and that are needed.
const ECHOES: usize = 64;
const ECHOES_NEEDED: usize = 4;
const BURSTS: usize = 16;
/// The first ones are slow: congestion windows grow, and memory is touched for the first time.
const TRANSFERS: usize = 48;
const NEEDED: usize = 2;

/// Messages at once.
const BURST: u32 = 16;

/// Bytes of a large message: from the first on, four times as many while one takes less than [`LONG`]; all are asked for by their receiver.
const FIRST: usize = 32 << 10;
const LARGEST: usize = 512 << 10;
const LONG: Duration = Duration::from_millis(1);

/// The tag of all messages.
const TAG: u32 = 0x636f_7374;

/// Of a large message's time this part at least is that of its bytes.
const BYTES: u64 = 4;

/// What rank 0 asks for: its code and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// An answer.
    Echo,
    /// An answer to the last of so many of these.
    Burst(u32),
    /// To receive so many bytes, and an answer.
    Take(u32),
    /// To receive and send so many bytes, and an answer.
    Swap(u32),
    /// Nothing more.
    End,
}

impl Task {
    fn bytes(self) -> [u8; 8] {
        let (code, number) = match self {
            Self::Echo => (1u32, 0),
            Self::Burst(number) => (2, number),
            Self::Take(bytes) => (3, bytes),
            Self::Swap(bytes) => (4, bytes),
            Self::End => (0, 0),
        };
        (u64::from(number) << 32 | u64::from(code)).to_le_bytes()
    }

    /// What makes no sense ends it.
    fn of(bytes: [u8; 8]) -> Self {
        let word = u64::from_le_bytes(bytes);
        let number = (word >> 32) as u32;
        match word as u32 {
            1 => Self::Echo,
            2 if (1..=BURST).contains(&number) => Self::Burst(number),
            3 if number as usize <= LARGEST => Self::Take(number),
            4 if number as usize <= LARGEST => Self::Swap(number),
            _ => Self::End,
        }
    }
}

/// The messages to and from the other rank.
struct Messages<'a> {
    drive: &'a Drive,
    peer: Rank,
    deadline: Instant,
    out: Vec<u8>,
    into: Vec<u8>,
}

/// A message of a [`Messages::run`].
#[derive(Clone, Copy)]
enum Part<'a> {
    /// Sends these bytes.
    Small(&'a [u8; 8]),
    /// Sends, or receives, so many bytes.
    Send(usize),
    Receive(usize),
    /// Receives one of several that are small, of this number.
    Several(usize),
}

impl<'a> Messages<'a> {
    fn new(drive: &'a Drive, peer: Rank, deadline: Instant) -> Self {
        Self { drive, peer, deadline, out: vec![1; LARGEST], into: vec![1; LARGEST] }
    }

    /// Runs messages at once. Those that receive have places of their own.
    fn run(&mut self, parts: &[Part<'_>]) -> Result<(), String> {
        let deadline = executor_time(self.deadline);
        let receive = |into: &mut [u8]| {
            let into = with_bytes(into, |into| into).region(MemoryKind::Host);
            let (from, tag) = (Some(self.peer), Some(TAG));
            Post::Receive(ReceiveRequest { from, tag, dtype: DType::U8, into, deadline })
        };
        let posts = parts.iter().map(|part| {
            let data = match *part {
                Part::Small(bytes) => from_slice(bytes),
                Part::Send(len) => from_slice(&self.out[..len]),
                Part::Receive(len) => return receive(&mut self.into[..len]),
                Part::Several(number) => return receive(&mut self.into[number * 8..][..8]),
            };
            let (data, dtype) = (data.region(MemoryKind::Host), DType::U8);
            let (to, tag, held, synchronous) = (self.peer, TAG, false, false);
            Post::Send(SendRequest { to, tag, dtype, data, held, synchronous, deadline })
        });
        let ended = self.drive.exchange(posts.collect()).map_err(|error| {
            // Nobody knows which of them are under way.
            std::mem::forget((std::mem::take(&mut self.out), std::mem::take(&mut self.into)));
            error.to_string()
        })?;
        match ended.iter().all(Result::is_ok) {
            true => Ok(()),
            false => Err(format!("messages with {} failed", self.peer)),
        }
    }

    /// Asks for something, with these messages, and waits for the answer; returns how long it took.
    fn ask(&mut self, task: Task, more: &[Part<'_>]) -> Result<Duration, String> {
        let begin = Clock.now();
        let task = task.bytes();
        let mut parts = vec![Part::Small(&task)];
        parts.extend_from_slice(more);
        self.run(&parts)?;
        self.run(&[Part::Receive(ANSWER.len())])?;
        Ok(Clock.now().saturating_since(begin))
    }

    fn next_task(&mut self) -> Result<Task, String> {
        self.run(&[Part::Receive(8)])?;
        Ok(Task::of(self.into.first_chunk().copied().unwrap_or_default()))
    }
}

const ANSWER: [u8; 8] = [0; 8];

/// The times that were found, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// A message there, and one back.
    echo: Option<u64>,
    /// The same with all messages of a burst before the answer.
    burst: Option<u64>,
    /// Bytes of a large message.
    bytes: u64,
    /// Until such a message was there and answered.
    take: Option<u64>,
    /// The same with one in each direction.
    swap: Option<u64>,
}

/// Measures on rank 0, while the peer [serves](serve), until that time or a little longer.
///
/// # Errors
/// What was not found.
pub(super) fn measure(drive: &Drive, peer: Rank, until: Instant, deadline: Instant) -> Result<Found, String> {
    let mut messages = Messages::new(drive, peer, deadline);
    let found = ask_all(&mut messages, until);
    // After an error there may be nobody to be told.
    let ended = messages.run(&[Part::Small(&Task::End.bytes())]);
    found.and_then(|found| ended.map(|()| found))
}

fn ask_all(messages: &mut Messages<'_>, until: Instant) -> Result<Found, String> {
    let ends = |time: Duration| until.min(Clock.now() + time);
    // The peer may still be on its way.
    messages.ask(Task::Echo, &[])?;
    let (mut echoes, end) = (Samples::default(), ends(MESSAGES_TIME));
    while echoes.len() < ECHOES && Clock.now() < end {
        echoes.push(messages.ask(Task::Echo, &[])?);
    }
    let (mut bursts, end) = (Samples::default(), ends(MESSAGES_TIME));
    let task = Task::Burst(BURST).bytes();
    let rest = [Part::Small(&task); BURST as usize - 1];
    while bursts.len() < BURSTS && Clock.now() < end {
        bursts.push(messages.ask(Task::Burst(BURST), &rest)?);
    }
    let (mut takes, end, mut len) = (Samples::default(), ends(BYTES_TIME), FIRST);
    while takes.len() < TRANSFERS && Clock.now() < end {
        let time = messages.ask(Task::Take(len as u32), &[Part::Send(len)])?;
        if time < LONG && len < LARGEST {
            (takes, len) = (Samples::default(), len * 4);
        } else {
            takes.push(time);
        }
    }
    let (mut swaps, end) = (Samples::default(), ends(BYTES_TIME));
    while swaps.len() < TRANSFERS && Clock.now() < end {
        swaps.push(messages.ask(Task::Swap(len as u32), &[Part::Receive(len), Part::Send(len)])?);
    }
    steady([
        ("an answer's time", &echoes),
        ("the time of several messages", &bursts),
        ("the time of a large message", &takes),
        ("the time of two large messages", &swaps),
    ])?;
    Ok(Found {
        echo: echoes.low(ECHOES_NEEDED),
        burst: bursts.low(NEEDED),
        bytes: len as u64,
        take: takes.low(NEEDED),
        swap: swaps.low(NEEDED),
    })
}

/// The other leader's side, until rank 0 has asked for the end.
///
/// # Errors
/// Messages failed.
pub(super) fn serve(drive: &Drive, deadline: Instant) -> Result<(), String> {
    let mut messages = Messages::new(drive, Rank(0), deadline);
    loop {
        match messages.next_task()? {
            Task::End => return Ok(()),
            Task::Echo => {}
            Task::Burst(number) => {
                let rest: Vec<_> = (1..number as usize).map(Part::Several).collect();
                messages.run(&rest)?;
            }
            Task::Take(len) => messages.run(&[Part::Receive(len as usize)])?,
            Task::Swap(len) => messages.run(&[Part::Receive(len as usize), Part::Send(len as usize)])?,
        }
        messages.run(&[Part::Small(&ANSWER)])?;
    }
}

impl Found {
    /// The figures of the model, in place of `built_in` ones.
    ///
    /// # Errors
    /// Which time was not found, or cannot be.
    pub(super) fn costs(&self, built_in: &NetworkCosts) -> Result<NetworkCosts, String> {
        let echo: u64 = plausible(("an answer's time", "ns"), self.echo, 200..=100_000_000)?.into();
        let way = echo / 2;
        let burst: u64 =
            plausible(("the time of several messages", "ns"), self.burst, echo..=1_000_000_000)?.into();
        let message = ((burst - echo) / u64::from(BURST - 1)).min(way / 2);
        // A receiver asks for large messages, so these take the way four times.
        let transfer = |time: Option<u64>| time.map(|time| time.saturating_sub(2 * echo).max(time / BYTES));
        let one = rate("the rate of a large message", transfer(self.take), self.bytes, NETWORK_RATES)?;
        let both =
            rate("the rate of two large messages", transfer(self.swap), 2 * self.bytes, NETWORK_RATES)?;
        // What is limited by the wire is not limited by the other direction.
        let (core_mb_s, wire_mb_s) = match u64::from(both) * 5 > u64::from(one) * 8 {
            true => (both.max(built_in.core_mb_s), one),
            false => (both.max(one), built_in.wire_mb_s.max(one)),
        };
        Ok(NetworkCosts {
            latency_ns: (way - 2 * message) as u32,
            message_ns: message as u32,
            core_mb_s,
            wire_mb_s,
        })
    }
}

#[cfg(test)]
mod tests;
