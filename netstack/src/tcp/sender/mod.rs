//! The sending half of a connection: written bytes, outstanding data, losses, and the amount that may leave.
//!
//! The connection takes the next segment from [`Sender::next`], sends it, and confirms it by [`Sender::on_sent`]; it
//! hands in acknowledgements and the time, and gets their effects back. Sequence numbers of the SYN are the
//! connection's business: a sender begins one after it.
//!
//! | file | content |
//! |---|---|
//! | `queue`, `writer` | the bytes, as extents; the writer's hints, and bytes held back for more to follow |
//! | `space`, `window` | the send sequence space: SND.UNA, SND.NXT, the FIN, the peer's window |
//! | `scoreboard` | outstanding data, a record per transmitted range |
//! | `ack`, `predicted` | acknowledgements; the one that was expected |
//! | `recovery` | fast recovery, time-outs, and taking them back when they were spurious |
//! | `rack`, `prr`, `rtt`, `rate` | the computations of the RFCs, without side effects |
//! | `control`, `ecn`, `pacing` | the congestion window and its controller, marks, the pace |
//! | `transmit` | the choice of the next segment |
//! | `limits` | the limits on sending, and their times |
//! | `timers`, `contact` | retransmission and reordering; the times that the user timeout counts from |
//! | `tail_probe`, `persist` | tail-loss probes; window probes |
//! | `path_mtu` | probing for the path MTU with data (RFC 4821) |

use core::time::Duration;
use std::sync::Arc;

use super::memory::Memory;
use super::{Info, Options, Path, ReleaseToken};
use crate::region::{Extent, SharedBytes};
use crate::time::Instant;
use crate::wire::tcp::{SackBlocks, SeqNumber};

mod ack;
mod contact;
mod control;
mod ecn;
mod limits;
mod pacing;
mod path_mtu;
mod persist;
mod phase;
mod predicted;
mod prr;
mod queue;
mod rack;
mod rate;
mod recovery;
mod rtt;
mod scoreboard;
mod space;
mod tail_probe;
mod timers;
mod transmit;
mod window;
mod writer;

#[cfg(test)]
mod tests;

use contact::Contact;
use control::Control;
use ecn::Ecn;
use limits::Tally;
use path_mtu::SegmentSize;
use phase::Phase;
use queue::Queue;
use rack::Rack;
use rate::Rate;
use recovery::Recovery;
use rtt::Rtt;
use scoreboard::Scoreboard;
use space::SendSpace;
use timers::SenderTimers;
use writer::Writer;

/// The options that the handshake agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SenderOptions {
    /// Payload bytes per segment, at most: the peer's MSS and the path's, less the options of every segment.
    pub(crate) mss: u16,
    /// Bytes of IP header, TCP header and the options of every segment.
    pub(crate) overhead: u16,
    pub(crate) sack: bool,
    pub(crate) ecn: bool,
}

/// An acknowledgement. The segment was acceptable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckIn {
    pub(crate) ack: SeqNumber,
    /// The segment's sequence number.
    pub(crate) seq: SeqNumber,
    /// The window in bytes, scaled.
    pub(crate) window: u32,
    pub(crate) sack: SackBlocks,
    /// The round-trip time by the timestamp echo.
    pub(crate) rtt: Option<Duration>,
    /// The timestamp echo.
    pub(crate) echo: Option<u32>,
    /// ECN echo.
    pub(crate) ece: bool,
    /// The segment has payload, SYN or FIN, so it is no duplicate acknowledgement.
    pub(crate) has_data: bool,
}

/// The effect of an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AckOut {
    /// Sequence numbers newly acknowledged, the FIN's included.
    pub(crate) acked: u32,
    /// The FIN was among them.
    pub(crate) fin_acked: bool,
    /// There is room again after a write that was refused in part.
    pub(crate) became_writable: bool,
    /// Something new was acknowledged, or a window probe was answered.
    pub(crate) progress: bool,
}

/// The task when time has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum TimerOut {
    /// Nothing.
    None,
    /// [`Sender::next`] may have something.
    Transmit,
    /// The retransmissions are used up.
    GiveUp,
}

/// Why something is sent that would not be sent otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// It is an ordinary segment.
    None,
    /// To see whether a closed window has opened.
    Window,
    /// The tail might be lost.
    Tail,
    /// Larger than the sizes that are known to get through.
    PathMtu,
}

/// A segment to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) seq: SeqNumber,
    /// Payload bytes; more than `segment_size` makes a super-segment.
    pub(crate) len: u32,
    pub(crate) segment_size: u16,
    pub(crate) fin: bool,
    pub(crate) psh: bool,
    pub(crate) cwr: bool,
    /// Mark the packet ECN-capable.
    pub(crate) ect: bool,
    pub(crate) resend: bool,
    pub(crate) probe: Probe,
}

impl Outgoing {
    /// Sequence numbers that it takes.
    fn span(&self) -> u32 {
        self.len + u32::from(self.fin)
    }

    /// Segments that it makes.
    #[inline]
    pub(crate) fn segments(&self) -> u32 {
        scoreboard::segments_of(self.len, self.segment_size).max(1)
    }
}

/// Counts for [`Info`].
#[derive(Clone, Copy, Debug, Default)]
struct InfoCounts {
    retransmitted: u32,
    timeouts: u32,
    spurious: u32,
    probes: u32,
}

/// The sending half. Each part keeps its own state; the invariants between them: the first byte of the queue is
/// numbered SND.UNA, and the scoreboard's records cover the numbers from SND.UNA to SND.NXT.
#[derive(Debug)]
pub(crate) struct Sender {
    options: Arc<Options>,
    queue: Queue,
    writer: Writer,
    space: SendSpace,
    board: Scoreboard,
    size: SegmentSize,
    control: Control,
    ecn: Ecn,
    contact: Contact,
    rtt: Rtt,
    rack: Rack,
    rate: Rate,
    timers: SenderTimers,
    recovery: Recovery,
    tally: Option<Box<Tally>>,
}

impl Sender {
    /// A sender whose first byte is numbered one after `iss`. Written bytes wait for [`Sender::establish`].
    pub(crate) fn new(iss: SeqNumber, options: Arc<Options>) -> Self {
        let first = iss + 1;
        Self {
            options,
            queue: Queue::default(),
            writer: Writer::default(),
            space: SendSpace::new(first),
            board: Scoreboard::default(),
            size: SegmentSize::new(),
            control: Control::new(iss),
            ecn: Ecn::new(first),
            contact: Contact::default(),
            rtt: Rtt::new(),
            rack: Rack::new(iss),
            rate: Rate::default(),
            timers: SenderTimers::default(),
            recovery: Recovery::new(),
            tally: None,
        }
    }

    /// Changes the options. The congestion control stays the same once something was written.
    pub(crate) fn set_options(&mut self, options: Arc<Options>) {
        self.options = options;
    }

    /// The handshake is over. `window` is the peer's, `seq` the number of the segment that announced it, `rtt` the
    /// handshake's duration if that is unambiguous, `syn_resent` whether the SYN or SYN-ACK had to be sent again.
    pub(crate) fn establish(
        &mut self,
        now: Instant,
        negotiated: &SenderOptions,
        window: u32,
        seq: SeqNumber,
        rtt: Option<Duration>,
        syn_resent: bool,
    ) {
        //= RFC 5681 section 3.1: after a lost SYN the initial window is one segment.
        let initial_window = if syn_resent { 1 } else { self.options.initial_window };
        self.begin(now, negotiated, window, seq, initial_window);
        if syn_resent {
            self.rtt.be_cautious();
        }
        if let Some(rtt) = rtt {
            self.rtt.sample(rtt, self.space.una(), self.space.nxt());
        }
    }

    fn begin(
        &mut self,
        now: Instant,
        negotiated: &SenderOptions,
        window: u32,
        seq: SeqNumber,
        initial_window: u32,
    ) {
        self.control.begin(now, initial_window);
        self.size.begin(negotiated.mss, negotiated.overhead);
        self.rack.begin(negotiated.sack);
        self.ecn.begin(negotiated.ecn);
        self.space.begin(window, seq);
        self.contact.begin(now);
        if self.queue.len() > 0 || self.space.is_finished() {
            self.take_control();
        }
    }

    /// Makes the controller if there is none, now that there is something to send.
    #[inline]
    fn take_control(&mut self) {
        self.control.take(&self.options, self.size.mss());
    }

    /// Copies the beginning of `bytes` into the queue and returns how many were taken. If that is not all,
    /// [`AckOut::became_writable`] will follow.
    pub(crate) fn write(&mut self, memory: &mut Memory, bytes: &[u8]) -> usize {
        if self.space.is_finished() {
            return 0;
        }
        self.take_control();
        let taken = self.queue.write(memory, bytes, self.room());
        self.writer.on_write(taken == bytes.len());
        taken
    }

    /// Queues an extent; false if there is no room: [`AckOut::became_writable`] will follow. One larger than the send
    /// buffer is taken when the queue is empty. An extent of no bytes must not be given.
    pub(crate) fn write_extent(&mut self, extent: Extent, token: ReleaseToken) -> bool {
        self.write_whole(extent.len(), |queue| queue.push(extent, token))
    }

    /// The same for shared bytes, which are kept until no frame refers to them.
    pub(crate) fn write_shared(&mut self, bytes: &SharedBytes) -> bool {
        self.write_whole(bytes.len(), |queue| queue.push_shared(bytes.clone()))
    }

    /// Has `push` queue a piece of `len` bytes, if there is room.
    fn write_whole(&mut self, len: usize, push: impl FnOnce(&mut Queue)) -> bool {
        if self.space.is_finished() || (len > self.room() && self.queue.len() > 0) {
            self.writer.on_refused();
            return false;
        }
        self.take_control();
        push(&mut self.queue);
        self.writer.on_write(true);
        true
    }

    /// The FIN follows the written bytes.
    pub(crate) fn finish(&mut self) {
        self.take_control();
        self.space.finish();
        self.writer.on_write(true);
    }

    /// Drops all written bytes: to be called at the end of every connection.
    pub(crate) fn abort(&mut self, memory: &mut Memory, released: &mut Vec<ReleaseToken>) {
        self.queue.clear(memory, released);
        self.board.clear();
        self.timers = SenderTimers::default();
        self.space.abort();
        self.control.end();
        self.writer.unblock();
    }

    /// Gives back memory that an idle connection does not need.
    pub(crate) fn trim(&mut self) {
        self.queue.trim();
        self.board.trim();
        if self.board.is_empty() {
            self.recovery.forget_undo();
        }
    }

    /// The oldest unacknowledged number (SND.UNA).
    #[inline]
    pub(crate) fn una(&self) -> SeqNumber {
        self.space.una()
    }

    /// The next number to send (SND.NXT).
    #[inline]
    pub(crate) fn nxt(&self) -> SeqNumber {
        self.space.nxt()
    }

    /// Acknowledgements are acceptable up to here: SND.NXT, or one more while a window probe is out.
    #[inline]
    pub(crate) fn max_sent(&self) -> SeqNumber {
        self.space.max_sent()
    }

    /// The number that a segment without data carries: SND.NXT, but not beyond the peer's window, where it would not
    /// be acceptable if the peer has shrunk it.
    pub(crate) fn control_seq(&self) -> SeqNumber {
        self.space.nxt().min(self.space.right_edge())
    }

    /// The greatest window that the peer ever offered (MAX.SND.WND of RFC 5961).
    #[inline]
    pub(crate) fn max_window(&self) -> u32 {
        self.space.window().greatest()
    }

    /// Bytes that can be written.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        let room = self.options.send_buffer.max(1).saturating_sub(self.queued());
        match self.options.unsent_limit {
            None => room,
            Some(limit) => {
                room.min(limit.saturating_sub(usize::try_from(self.unsent()).unwrap_or(usize::MAX)))
            }
        }
    }

    /// Bytes that were written and are not acknowledged.
    #[inline]
    pub(crate) fn queued(&self) -> usize {
        usize::try_from(self.queue.len()).unwrap_or(usize::MAX)
    }

    /// Whether nothing is queued, unacknowledged or to be finished.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.len() == 0 && self.board.is_empty() && !self.space.owes_fin()
    }

    /// Payload bytes per segment.
    #[inline]
    pub(crate) fn mss(&self) -> u16 {
        self.size.mss()
    }

    /// Sequence numbers believed to be in flight.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.board.in_flight().saturating_sub(self.recovery.duplicates())
    }

    /// Since when an acknowledgement of something that was sent is missing (for the user timeout); `None` if none is.
    pub(crate) fn stalled_since(&self) -> Option<Instant> {
        if self.board.is_empty() {
            // Answers to window probes can be missing too.
            return self.timers.persist.since();
        }
        Some(self.contact.waiting_since())
    }

    /// The round-trip time, by any measurement: the receive buffer is tuned by it.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.rtt.round_trip()
    }

    /// The congestion window in bytes.
    fn congestion_window(&self) -> u64 {
        match (self.recovery.phase(), self.control.get()) {
            (Phase::Recovery { prr, .. }, Some(controller)) if !controller.controls_recovery() => {
                prr.window()
            }
            _ => self.control.window(self.size.mss()),
        }
    }

    /// Stream position of a sequence number from SND.UNA on.
    #[inline]
    fn position(&self, seq: SeqNumber) -> u64 {
        self.queue.head() + u64::from(seq.distance(self.space.una()))
    }

    /// Bytes that were written and not yet sent.
    #[inline]
    fn unsent(&self) -> u64 {
        if self.space.fin_sent() {
            return 0;
        }
        self.queue.tail().saturating_sub(self.position(self.space.nxt()))
    }

    /// Fills in the sending half's fields.
    pub(crate) fn fill(&self, info: &mut Info) {
        info.unacknowledged = self.queued();
        info.in_flight = self.in_flight() as usize;
        info.unsent = self.queued().saturating_sub(self.space.nxt().distance(self.space.una()) as usize);
        info.writable = if self.space.is_finished() { 0 } else { self.room() };
        info.srtt = self.rtt.srtt();
        info.rttvar = self.rtt.rttvar();
        info.min_rtt = self.rtt.min();
        info.rto = self.rtt.rto(&self.options);
        info.congestion_window = self.congestion_window();
        info.slow_start_threshold = self.control.threshold().unwrap_or(u64::MAX);
        info.mss = self.size.mss();
        info.peer_window = self.space.window().size();
        let counts = self.counts();
        info.retransmitted = u64::from(counts.retransmitted);
        info.timeouts = u64::from(counts.timeouts);
        info.spurious = u64::from(counts.spurious);
        info.probes = u64::from(counts.probes);
        info.reordering_window = self.rack.window(self.rtt.srtt(), self.rtt.min(), false);
        info.bytes_acked = self.queue.head();
    }
}
