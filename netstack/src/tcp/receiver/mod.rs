//! The receiving half of a connection: the next number expected, the window, reassembly, and the content and timing of
//! acknowledgements.

mod ack;
mod assembly;
mod echo;
mod expected;
mod paws;
mod pool;
mod run;
#[cfg(test)]
mod tests;
mod window;

use core::time::Duration;

use self::ack::AckPolicy;
use self::assembly::Assembly;
use self::echo::Echo;
use self::paws::Paws;
pub use self::pool::Chunk;
pub(crate) use self::pool::Pool;
use self::run::{Cut, Run};
use self::window::ReceiveWindow;
use super::{Options, Payload};
use crate::time::Instant;
use crate::wire::tcp::{SackBlocks, SeqNumber, SeqRange};

/// The effect of a segment's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Bytes that can be read now and could not before.
    pub(crate) readable: u32,
    /// The FIN has been reached: there will be no more.
    pub(crate) fin: bool,
}

/// The content of an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledgement {
    /// The next number expected.
    pub(crate) ack: SeqNumber,
    /// The window field, scaled.
    pub(crate) window: u16,
    /// The timestamp to echo, if timestamps are used.
    pub(crate) echo: Option<u32>,
    /// ECE.
    pub(crate) ece: bool,
}

/// The receiving half.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// RCV.NXT.
    next: SeqNumber,
    /// The last number that was acknowledged.
    last_ack: SeqNumber,
    /// The peer's FIN, as soon as it is known.
    fin: Option<SeqNumber>,
    /// Whether it was reached.
    finished: bool,
    sack: bool,
    /// The largest payload per segment that was announced to the peer.
    mss: u16,
    queue: Run,
    assembly: Option<Box<Assembly>>,
    duplicate: Option<SeqRange>,
    window: ReceiveWindow,
    paws: Option<Paws>,
    policy: AckPolicy,
    echo: Echo,
    received: u64,
}

impl Receiver {
    /// Nothing received yet.
    pub(crate) fn new(now: Instant, options: &Options) -> Self {
        Self {
            next: SeqNumber(0),
            last_ack: SeqNumber(0),
            fin: None,
            finished: false,
            sack: false,
            mss: 536,
            queue: Run::default(),
            assembly: None,
            duplicate: None,
            window: ReceiveWindow::new(now, options.receive_buffer),
            paws: None,
            policy: AckPolicy::new(now, options.max_ack_delay),
            echo: Echo::Off,
            received: 0,
        }
    }

    /// The window shift to announce in a SYN.
    pub(crate) fn wanted_shift(options: &Options) -> u8 {
        ReceiveWindow::wanted_shift(options.receive_buffer)
    }

    /// The window field of a SYN (RFC 7323 section 2.2: not scaled).
    pub(crate) fn syn_window(&self) -> u16 {
        self.window.initial_field()
    }

    /// The peer's SYN arrived: `irs` is its number, `mss` the most payload of its segments, `timestamp` its value.
    pub(crate) fn open(&mut self, now: Instant, irs: SeqNumber, mss: u16, timestamp: Option<u32>) {
        self.next = irs + 1;
        self.last_ack = irs;
        self.mss = mss.max(1);
        self.window.open(self.next);
        self.paws = timestamp.map(|value| Paws::new(now, value));
    }

    /// The handshake settled this side's window shift (0 without scaling), SACK, and ECN, with exact echoes or without.
    pub(crate) fn establish(&mut self, shift: u8, sack: bool, ecn: bool, exact: bool) {
        self.window.set_shift(shift);
        self.sack = sack;
        self.echo = Echo::new(ecn, exact);
    }

    /// Options changed.
    pub(crate) fn set_options(&mut self, options: &Options) {
        self.policy.set_max_delay(options.max_ack_delay);
        self.window.set_ceiling(options.receive_buffer);
    }

    /// RCV.NXT.
    #[inline]
    pub(crate) fn next(&self) -> SeqNumber {
        self.next
    }

    /// RCV.WND, in bytes: the window announced last.
    #[inline]
    pub(crate) fn window(&self) -> u32 {
        self.window.edge().distance(self.next)
    }

    /// Bytes that can be read.
    pub(crate) fn readable(&self) -> usize {
        self.queue.len() as usize
    }

    /// Whether the peer's FIN was reached.
    #[inline]
    pub(crate) fn finished(&self) -> bool {
        self.finished
    }

    /// The largest payload per segment that was announced to the peer.
    pub(crate) fn mss(&self) -> u16 {
        self.mss
    }

    /// The largest payload that came in one segment in order, no more than that; zero if none came.
    pub(crate) fn largest(&self) -> u16 {
        self.policy.largest()
    }

    /// Bytes received in order.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// The buffer at present, in bytes.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> u32 {
        self.window.capacity()
    }

    /// TS.Recent.
    pub(crate) fn ts_recent(&self) -> Option<u32> {
        self.paws.map(|paws| paws.recent)
    }

    /// Whether timestamps are used, and this one is of long ago.
    #[inline]
    pub(crate) fn is_old(&self, now: Instant, value: u32) -> bool {
        self.paws.is_some_and(|paws| paws.is_old(now, value))
    }

    /// An acceptable segment with this timestamp begins at `seq`.
    #[inline]
    pub(crate) fn on_timestamp(&mut self, now: Instant, value: u32, seq: SeqNumber) {
        let last_ack = self.last_ack;
        if let Some(paws) = &mut self.paws {
            paws.update(now, value, seq, last_ack);
        }
    }

    //= RFC 9293 section 3.10.7.4, table 6: the four cases of an acceptable segment.
    /// Whether a segment of `len` numbers (SYN and FIN count) from `seq` has anything in the window.
    #[inline]
    pub(crate) fn is_acceptable(&self, seq: SeqNumber, len: u32) -> bool {
        let (next, edge) = (self.next, self.window.edge());
        let inside = |number: SeqNumber| !number.is_before(next) && number.is_before(edge);
        match (len, next == edge) {
            (0, true) => seq == next,
            (0, false) => inside(seq),
            (_, true) => false,
            // The segment overlaps the window: also one that is larger than the window and begins before it.
            (len, false) => seq.is_before(edge) && (seq + len).is_after(next),
        }
    }

    //= RFC 5961 section 3.2: only the very next number of a reset is believed.
    /// Whether `seq` is in the window, for a reset.
    #[inline]
    pub(crate) fn is_in_window(&self, seq: SeqNumber) -> bool {
        seq == self.next || (!seq.is_before(self.next) && seq.is_before(self.window.edge()))
    }

    /// Bytes from `start` up to `end` came again: the peer lost acknowledgements or retransmits too early, and is answered at
    /// once, with a D-SACK block (RFC 2883).
    pub(crate) fn on_repeated(&mut self, start: SeqNumber, end: SeqNumber) {
        if self.sack && start.is_before(end) && !end.is_after(self.next) {
            self.duplicate = Some(SeqRange { start, end });
        }
        self.policy.now();
    }

    /// The mark of a segment with payload, and its CWR.
    #[inline]
    pub(crate) fn on_mark(&mut self, marked: bool, cwr: bool) {
        if self.echo.on_mark(marked, cwr, self.next, self.last_ack) {
            self.policy.now();
        }
    }

    /// Takes the payload of an acceptable segment that begins at `seq`, and its FIN.
    #[inline]
    pub(crate) fn on_data(
        &mut self,
        now: Instant,
        seq: SeqNumber,
        payload: Payload<'_>,
        fin: bool,
        pool: &mut Pool,
    ) -> Taken {
        // A segment is shorter than 2^31 bytes: so are IP packets, even if they were merged.
        let len = payload.len().min(i32::MAX as usize) as u32;
        let end = seq + len;
        if self.finished {
            self.policy.now();
            return Taken::default();
        }
        //= RFC 9293 section 3.10.7.4: what lies outside of the window is cut off.
        let edge = self.window.edge();
        let stop = end.min(edge).min(self.fin.unwrap_or(end));
        // The FIN takes no room, and is taken if all before it is.
        if fin && self.fin.is_none() && stop == end && !self.lies_behind(end) {
            self.fin = Some(end);
        }
        let before = self.next;
        if !seq.is_after(before) {
            self.in_order(now, seq, stop, payload, pool);
            if seq.is_before(before) && len > 0 {
                self.on_repeated(seq, end.min(before));
            }
        } else {
            //= RFC 9293 section 3.10.7.4, SHLD-31: a segment that begins beyond RCV.NXT is kept.
            self.out_of_order(seq, stop, payload, pool);
        }
        let readable = self.next.distance(before);
        self.received = self.received.saturating_add(u64::from(readable));
        let mut taken = Taken { readable, fin: false };
        if self.fin == Some(self.next) {
            self.next += 1;
            self.finished = true;
            self.policy.now();
            self.forget_assembly(pool);
            taken.fin = true;
        }
        taken
    }

    /// Whether something was received beyond `number`: a FIN there contradicts the peer's earlier data.
    fn lies_behind(&self, number: SeqNumber) -> bool {
        number.is_before(self.next)
            || self.assembly.as_ref().and_then(|a| a.end()).is_some_and(|end| end.is_after(number))
    }

    #[inline]
    fn in_order(
        &mut self,
        now: Instant,
        seq: SeqNumber,
        stop: SeqNumber,
        payload: Payload<'_>,
        pool: &mut Pool,
    ) {
        let first = self.next;
        if self.assembly.is_none() {
            let new = stop.distance(first);
            if new > 0 {
                self.append(seq, stop, payload, pool);
                let took = self.next.distance(first);
                self.policy.on_data(now, took, payload.len(), self.mss);
            }
            return;
        }
        while self.next.is_before(stop) {
            let hole = self.assembly.as_ref().and_then(|a| a.start()).unwrap_or(stop).min(stop);
            let at = self.next;
            self.append(seq, hole, payload, pool);
            self.join_assembly(pool);
            if self.next == at {
                break;
            }
        }
        if self.next != first {
            // A hole was filled, in part or in whole.
            self.policy.on_data(now, self.next.distance(first), payload.len(), self.mss);
            self.policy.now();
        }
    }

    /// Appends the bytes from the next one expected up to `stop` of the segment that begins at `seq`.
    #[inline]
    fn append(&mut self, seq: SeqNumber, stop: SeqNumber, payload: Payload<'_>, pool: &mut Pool) {
        let from = self.next.distance(seq) as usize;
        let len = stop.distance(self.next);
        if len == 0 {
            return;
        }
        let cut = Cut::new(payload, from, from + len as usize);
        // The next data in order is always taken while nothing waits, so that no connection stalls for the others.
        let mut took = self.queue.append(&cut, pool, self.queue.len() == 0);
        if took < len && self.assembly.is_some() {
            // Data that may be sent again makes room for the next data in order (RFC 2018 section 8 allows it).
            self.forget_assembly(pool);
            let rest = Cut::new(payload, from + took as usize, from + len as usize);
            took += self.queue.append(&rest, pool, false);
        }
        self.next += took;
    }

    /// Moves the data that is now in order out of the assembly.
    fn join_assembly(&mut self, pool: &mut Pool) {
        let Some(assembly) = &mut self.assembly else { return };
        while let Some(run) = assembly.take(self.next) {
            self.next += run.len();
            self.queue.join(run, pool);
        }
        if assembly.is_empty() {
            self.assembly = None;
        }
    }

    fn out_of_order(&mut self, seq: SeqNumber, stop: SeqNumber, payload: Payload<'_>, pool: &mut Pool) {
        self.policy.out_of_order();
        if !seq.is_before(stop) {
            return;
        }
        let assembly = self.assembly.get_or_insert_default();
        if self.sack
            && let Some(overlap) = assembly.overlap(SeqRange { start: seq, end: stop })
        {
            self.duplicate = Some(overlap);
        }
        assembly.insert(seq, stop, payload, 0, pool);
        if assembly.is_empty() {
            self.assembly = None;
        }
    }

    fn forget_assembly(&mut self, pool: &mut Pool) {
        if let Some(mut assembly) = self.assembly.take() {
            assembly.clear(pool);
        }
    }

    /// An acknowledgement should leave at the end of this burst.
    pub(crate) fn acknowledge_now(&mut self) {
        self.policy.now();
    }

    /// Whether an acknowledgement is due.
    #[inline]
    pub(crate) fn is_ack_due(&self) -> bool {
        self.policy.is_due()
    }

    /// When a delayed acknowledgement becomes due.
    #[inline]
    pub(crate) fn ack_deadline(&self) -> Option<Instant> {
        self.policy.deadline()
    }

    /// Makes a delayed acknowledgement due if its time has come.
    pub(crate) fn on_timer(&mut self, now: Instant) {
        self.policy.on_timer(now);
    }

    /// Whether an acknowledgement would carry SACK blocks.
    #[inline]
    pub(crate) fn has_blocks(&self) -> bool {
        self.sack && (self.assembly.is_some() || self.duplicate.is_some())
    }

    //= RFC 2883 section 4: a duplicate comes first, once, and if it lies within a block that block comes second, though it
    //= be the same.
    /// The SACK blocks of a pure acknowledgement, `most` at most.
    pub(crate) fn blocks(&self, most: usize) -> SackBlocks {
        let mut blocks = SackBlocks::NONE;
        if !self.sack {
            return blocks;
        }
        if let Some(duplicate) = self.duplicate {
            blocks.push(duplicate);
        }
        if let Some(assembly) = &self.assembly {
            if let Some(around) = self.duplicate.and_then(|duplicate| assembly.around(duplicate.start)) {
                blocks.push(around);
            }
            assembly.blocks(&mut blocks);
        }
        blocks.truncate(most);
        blocks
    }

    /// The content of an acknowledgement now; moves the window.
    #[inline]
    pub(crate) fn acknowledgement(&mut self, pool: &Pool) -> Acknowledgement {
        let ece = self.echo.ece();
        Acknowledgement { ack: self.next, window: self.window_field(pool), echo: self.ts_recent(), ece }
    }

    fn window_field(&mut self, pool: &Pool) -> u16 {
        // The FIN's own number needs no window.
        self.window.announce(self.next, self.queue.len(), self.mss, pool.is_tight() && self.queue.len() > 0)
    }

    /// An acknowledgement that has to go before the others, because the ECN mark changed behind it.
    pub(crate) fn earlier(&mut self, pool: &Pool) -> Option<Acknowledgement> {
        let (ack, ece) = self.echo.earlier()?;
        let whole = self.acknowledgement(pool);
        // The right edge is the same for all; a window that was meant for the last would draw it back.
        Some(Acknowledgement { ack, ece, window: self.window.field_from(ack), ..whole })
    }

    /// The earlier acknowledgement left.
    pub(crate) fn on_earlier_sent(&mut self) {
        if let Some(ack) = self.echo.on_earlier_sent() {
            self.last_ack = ack;
        }
    }

    /// Acknowledgements pending beyond one, each to its segment out of order; zero with SACK, which reports all at once.
    pub(crate) fn take_duplicates(&mut self) -> u8 {
        let pending = self.policy.take_duplicates();
        if self.sack { 0 } else { pending }
    }

    /// An acknowledgement left: alone, with SACK blocks, or with data.
    #[inline]
    pub(crate) fn on_ack_sent(&mut self, with_data: bool) {
        self.policy.on_sent(with_data);
        self.last_ack = self.next;
        if !with_data {
            self.duplicate = None;
        }
    }

    /// Copies received bytes out; returns how many.
    pub(crate) fn read(
        &mut self,
        now: Instant,
        buffer: &mut [u8],
        round_trip: Option<Duration>,
        pool: &mut Pool,
    ) -> usize {
        let count = self.queue.read(buffer, pool);
        self.on_read(now, count, round_trip);
        count
    }

    /// Copies received bytes out and keeps them; returns how many.
    pub(crate) fn peek(&self, buffer: &mut [u8]) -> usize {
        self.queue.peek(buffer)
    }

    /// Hands received bytes out.
    pub(crate) fn read_chunk(
        &mut self,
        now: Instant,
        round_trip: Option<Duration>,
        pool: &mut Pool,
    ) -> Option<Chunk> {
        let chunk = self.queue.read_chunk(pool)?;
        self.on_read(now, chunk.len(), round_trip);
        Some(chunk)
    }

    fn on_read(&mut self, now: Instant, count: usize, round_trip: Option<Duration>) {
        if count == 0 || self.finished {
            return;
        }
        self.window.on_read(now, count as u32, self.mss, round_trip);
        if self.window.wants_update(self.next, self.queue.len(), self.mss) {
            self.policy.now();
        }
    }

    /// Drops all data, at the end of the connection's life.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        self.queue.clear(pool);
        self.forget_assembly(pool);
    }

    /// Drops the data that is out of order: it can no longer be completed.
    pub(crate) fn abandon(&mut self, pool: &mut Pool) {
        self.forget_assembly(pool);
    }
}
