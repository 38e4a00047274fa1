//! The benches of a link through one of the channels between leaders: fragments as in an all-reduce, to a peer that
//! only counts them.

use std::ptr::NonNull;
use std::time::Duration;

use shouter::channel::Inbox;
use shouter::channel::up::UpChannels;
use shouter::config::Config;
use shouter::group::rendezvous::ControlLink;
use shouter::runtime::{Clock, Instant};
use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::executor::Disposition;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Collective, Header, Identity, MatchKey, MessageKind, Shape};
use shouter_reducer::memory::{MemoryKind, TensorRegion};
use shouter_reducer::transport::{SendError, SendToken, Transport};

use super::super::pin;
use super::super::report::{ReportLine, median, percentiles_us, round4};
use super::WorkerArgs;
use crate::failure::CommandError;

/// Bytes of cold memory: more than private caches hold.
const COLD: usize = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// The largest number of round trips in a pass.
const MOST: usize = 100_000;
/// The round of a pass's last message.
const LAST: u32 = 1;
/// The time limit for the last acknowledgements after the last message.
const AFTERWARDS: Duration = Duration::from_millis(50);

/// One end.
pub(super) struct ChannelEnd {
    rank: Rank,
    peer: Rank,
    up: UpChannels,
    control: ControlLink,
    cold: TensorRegion,
    walked: usize,
    count: Count,
}

/// Received messages.
#[derive(Default)]
struct Count {
    bytes: u64,
    messages: u64,
    ended: bool,
}

impl Inbox for Count {
    #[inline]
    fn fragment(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        self.bytes += payload.len() as u64;
        self.messages += 1;
        self.ended |= header.round == LAST;
        Disposition::Consumed
    }

    fn released(&mut self, _: SendToken) {}
}

impl ChannelEnd {
    /// Meets the other end and connects to it as the configuration says.
    #[allow(unsafe_code)]
    pub(super) fn open() -> Result<Self, CommandError> {
        let config = Config::from_env().map_err(|why| CommandError::Usage(why.to_string()))?;
        pin(&config);
        let rank = Rank(config.rank);
        let (mut up, control) = shouter::leaders(&config)?;
        let bytes: Vec<u8> =
            (0..COLD).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        let bytes = NonNull::from(bytes.leak());
        // SAFETY: the memory stays for ever, and nobody writes to it.
        let cold = unsafe { TensorRegion::from_raw_parts(MemoryKind::Host, bytes.cast(), COLD, 0) };
        if let Some(registry) = up.registry() {
            // SAFETY: the memory stays for ever.
            unsafe { registry.register(cold) };
        }
        Ok(Self {
            rank,
            peer: Rank(1 - rank.0.min(1)),
            up,
            control,
            cold,
            walked: 0,
            count: Count::default(),
        })
    }

    fn barrier(&mut self, what: &str) -> Result<(), CommandError> {
        self.control.barrier(what, PATIENCE).map_err(|why| CommandError::Failed(why.to_string()))
    }

    /// Sends rank 0's number to both ends.
    fn agree(&mut self, number: u64) -> Result<u64, CommandError> {
        let all = self.control.all_gather("figure", &number.to_le_bytes(), PATIENCE);
        let all = all.map_err(|why| CommandError::Failed(why.to_string()))?;
        Ok(all.first().and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }

    /// Polls the channel once; returns the time of the poll.
    #[inline]
    fn poll(&mut self) -> Result<Instant, CommandError> {
        let now = Clock.now();
        self.up.receive(now, &mut self.count);
        if let Some(loss) = self.up.take_lost() {
            return Err(CommandError::Failed(format!("{} is lost: {}", loss.rank, loss.why)));
        }
        self.up.transmit(now, &mut self.count);
        Ok(now)
    }

    /// Posts a message of the next `len` bytes of cold memory; false if there is no room.
    #[inline]
    fn post(&mut self, len: usize, round: u32) -> Result<bool, CommandError> {
        if self.walked + len > COLD {
            self.walked = 0;
        }
        let failed = || CommandError::Failed("the message does not fit the bench's memory".into());
        let payload = self.cold.span(self.walked, len).ok_or_else(failed)?;
        let header = Header {
            kind: MessageKind::Data,
            src: self.rank,
            key: MatchKey::default(),
            identity: Identity::AdHoc { root: Rank(0) },
            shape: Shape { collective: Collective::Barrier, dtype: DType::U8, op: ReduceOp::Sum, count: 0 },
            round,
            offset: 0,
            granule: (len.next_multiple_of(64) as u32).max(64),
            len: len as u32,
        };
        match self.up.send(self.peer, &header, payload, SendToken::CONTROL) {
            Ok(()) => {
                self.walked += len.next_multiple_of(64);
                Ok(true)
            }
            Err(SendError::Full) => Ok(false),
            Err(why) => Err(CommandError::Failed(why.to_string())),
        }
    }

    /// Posts a message as soon as there is room.
    fn post_surely(&mut self, len: usize, round: u32) -> Result<(), CommandError> {
        let until = Clock.now() + PATIENCE;
        while !self.post(len, round)? {
            if self.poll()? > until {
                return Err(CommandError::Failed("the peer takes nothing any more".into()));
            }
        }
        Ok(())
    }

    /// Polls until `done`.
    fn until(&mut self, mut done: impl FnMut(&Self) -> bool) -> Result<(), CommandError> {
        let until = Clock.now() + PATIENCE;
        while !done(self) {
            if self.poll()? > until {
                return Err(CommandError::Failed("the peer does not answer".into()));
            }
        }
        Ok(())
    }

    /// Waits until everything in flight has arrived; both ends call it.
    fn settle(&mut self) -> Result<(), CommandError> {
        // The last message may take another connection than those before it, and arrive first.
        self.until(|end| end.up.is_drained())?;
        self.post_surely(64, LAST)?;
        self.until(|end| end.count.ended && end.up.is_drained())?;
        // The peer may wait for our acknowledgement.
        let until = Clock.now() + AFTERWARDS;
        self.until(|_| Clock.now() > until)?;
        self.count = Count::default();
        self.barrier("settled")
    }

    fn print(&self, line: &ReportLine) -> Result<(), CommandError> {
        if self.rank.0 == 0 {
            line.print()?;
        }
        Ok(())
    }
}

/// Rank 1 sends full fragments at full rate.
pub(super) fn stream(args: &WorkerArgs, protocol: &str) -> Result<(), CommandError> {
    let mut end = ChannelEnd::open()?;
    let size = end.up.max_fragment(end.peer).min(64 << 10);
    let mut figures = vec![];
    for number in 0..=args.passes {
        end.barrier("pass")?;
        let seconds = if number == 0 { args.seconds.min(0.2) } else { args.seconds };
        let begin = Clock.now();
        let until = begin + Duration::from_secs_f64(seconds);
        while end.poll()? < until {
            if end.rank.0 == 1 || args.duplex {
                while end.post(size, 0)? {}
            }
        }
        let bytes = end.count.bytes;
        end.settle()?;
        if number > 0 {
            figures.push(bytes as f64 * 8.0 / seconds / 1e9);
        }
    }
    let resent = end.up.resent();
    end.print(&ReportLine {
        protocol: Some(protocol.into()),
        duplex: args.duplex.then_some(true),
        bytes: Some(size as u64),
        goodput_gbits: Some(round4(median(&mut figures))),
        resent: Some(resent),
        passes: Some(args.passes),
        ..ReportLine::of("stream", "shouter")
    })
}

/// Measures messages there and back.
pub(super) fn pingpong(args: &WorkerArgs, sizes: &[u64], protocol: &str) -> Result<(), CommandError> {
    let mut end = ChannelEnd::open()?;
    for &bytes in sizes {
        let (mut p50s, mut p99s, mut iterations) = (vec![], vec![], 0);
        for number in 0..=args.passes {
            end.barrier("pass")?;
            let few = trips(&mut end, bytes as usize, 20)?;
            let each = few.iter().sum::<u64>() as f64 / few.len() as f64;
            let seconds = if number == 0 { args.seconds.min(0.1) } else { args.seconds };
            let wanted = ((seconds * 1e9 / each.max(1.0)) as u64).clamp(10, MOST as u64);
            let wanted = end.agree(wanted)?;
            let mut nanos = trips(&mut end, bytes as usize, wanted as usize)?;
            end.settle()?;
            if number > 0 {
                let (p50, p99) = percentiles_us(&mut nanos);
                p50s.push(p50);
                p99s.push(p99);
                iterations += wanted;
            }
        }
        end.print(&ReportLine {
            protocol: Some(protocol.into()),
            bytes: Some(bytes),
            iterations: Some(iterations),
            p50_us: Some(round4(median(&mut p50s))),
            p99_us: Some(round4(median(&mut p99s))),
            passes: Some(args.passes),
            ..ReportLine::of("pingpong", "shouter")
        })?;
    }
    Ok(())
}

/// `count` round trips in nanoseconds; rank 0's times count.
fn trips(end: &mut ChannelEnd, bytes: usize, count: usize) -> Result<Vec<u64>, CommandError> {
    let mut nanos = Vec::with_capacity(count);
    for _ in 0..count {
        let begin = Clock.now();
        let due = end.count.messages + 1;
        if end.rank.0 == 0 {
            end.post_surely(bytes, 0)?;
            end.until(|end| end.count.messages >= due)?;
        } else {
            end.until(|end| end.count.messages >= due)?;
            end.post_surely(bytes, 0)?;
            end.poll()?;
        }
        nanos.push((Clock.now() - begin).as_nanos() as u64);
    }
    Ok(nanos)
}
