//! The path's MTU: by ICMP (RFC 1191, RFC 8201), trusted with the care of RFC 5927, and by probing with data (RFC
//! 4821), down when nothing gets through and up again afterwards.
//!
//! A third party that sees or guesses a sequence number can forge any claim. So a claim that packets like those that
//! were acknowledged are too big counts only if nothing is delivered from then on until a tail-loss probe is due, or if
//! the quoted data is not acknowledged within a time-out; and any claim that was accepted is tested again with data
//! after seconds.

use core::time::Duration;

use super::timers::NEVER;
use super::{Path, Sender};
use crate::time::Instant;
use crate::wire::tcp::SeqNumber;

/// Payload that every path carries: no smaller size is accepted.
pub(super) const LEAST: u16 = 256;

/// Sizes of IP packets to try when full segments do not get through: IPv6's guarantee, that of IPv4 hosts, the least.
const STEPS: [u16; 3] = [1280, 576, LEAST + 60];

/// Time-outs in a row that mean a black hole, and how many more each further step down takes: on a path that loses
/// much, a few follow each other by chance.
const BLACK_HOLE: u8 = 3;
const FURTHER: u8 = 2;

/// How often a size is tried, so that chance does not rule it out.
const TRIES: u8 = 3;

/// The search ends when it is this exact, in bytes.
const EXACT: u16 = 8;

//= RFC 4821 section 7.7 by way of RFC 8201 section 4: ten minutes until a larger size is tried again.
const RAISE: Duration = Duration::from_secs(600);

/// How soon a size is tried again that a message said was too big; twice as long after each time that it was lost.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// An ICMP message that claims that packets are too big which got through before.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// The payload per segment that would get through.
    size: u16,
    /// The sequence number that it quoted.
    quoted: SeqNumber,
    /// The bytes delivered when it came.
    delivered: u64,
}

/// The search on a path that carries less than the handshake agreed on, or is claimed to. A connection on any other
/// path has none.
#[derive(Debug, Default)]
pub(super) struct PathMtu {
    /// Payload per segment: known to get through, and not known not to.
    low: u16,
    high: u16,
    /// The first probe tries the greatest size at once: perhaps it was an outage.
    bold: bool,
    /// Set if a message reported the size: the time until the next try after a failure. No size in between is searched
    /// for.
    reported: Option<Duration>,
    /// Probes of the present size that were lost.
    tries: u8,
    /// A probe is out.
    out: bool,
    /// The next one may leave.
    due: bool,
    next_at: Instant,
    /// A claim that is not accepted yet.
    claim: Option<Claim>,
}

impl PathMtu {
    /// No loss was seen; only an ICMP message claims one.
    pub(super) fn is_rumour(&self) -> bool {
        self.next_at == NEVER
    }

    fn candidate(&self) -> Option<u16> {
        if self.high.saturating_sub(self.low) < EXACT {
            return None;
        }
        Some(if self.bold { self.high } else { self.low + (self.high - self.low).div_ceil(2) })
    }
}

/// Payload bytes per segment.
#[derive(Debug)]
pub(super) struct SegmentSize {
    mss: u16,
    /// At most, by the handshake.
    limit: u16,
    /// Bytes of the headers and options in front.
    overhead: u16,
    /// The most that was acknowledged in one segment.
    largest_acked: u16,
    search: Option<Box<PathMtu>>,
}

impl SegmentSize {
    pub(super) fn new() -> Self {
        Self { mss: 536, limit: 536, overhead: 40, largest_acked: 0, search: None }
    }

    /// The handshake agreed on the size.
    pub(super) fn begin(&mut self, mss: u16, overhead: u16) {
        self.mss = mss.max(1);
        self.limit = self.mss;
        self.overhead = overhead;
    }

    /// At present.
    #[inline]
    pub(super) fn mss(&self) -> u16 {
        self.mss
    }

    /// A segment of so much payload was acknowledged.
    #[inline]
    pub(super) fn acknowledged(&mut self, payload: u16) {
        self.largest_acked = self.largest_acked.max(payload);
    }

    /// Whether the path carries the handshake's segment size, and no ICMP message denies it.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        self.search.is_none()
    }

    /// Whether the size is not known to be wrong.
    pub(super) fn is_unproven(&self) -> bool {
        self.search.as_ref().is_none_or(|search| search.is_rumour())
    }

    /// Payload per segment on a path of that MTU.
    fn payload(&self, mtu: u16) -> u16 {
        mtu.saturating_sub(self.overhead).max(LEAST).min(self.limit)
    }
}

impl Sender {
    fn set_mss(&mut self, mss: u16) {
        self.size.mss = mss.max(1);
        self.control.tell(|controller| controller.set_mss(self.size.mss.into()));
    }

    /// The route's MTU may have changed; and the search may go on.
    pub(super) fn obey_path(&mut self, now: Instant, path: &Path) {
        let most = self.size.payload(path.mtu);
        match &mut self.size.search {
            None if most != self.size.mss => self.set_mss(most),
            None => {}
            Some(search)
                if search.is_rumour()
                    && search.claim.is_none_or(|claim| claim.quoted.is_before(self.space.una())) =>
            {
                self.size.search = None;
                self.obey_path(now, path);
            }
            Some(search) => {
                if search.next_at <= now && !search.due {
                    if !self.options.mtu_probing {
                        self.size.search = None;
                        return self.obey_path(now, path);
                    }
                    search.due = true;
                    search.bold |= search.reported.is_some();
                    // The search was over: the path may carry more by now.
                    if search.candidate().is_none() {
                        search.high = most.max(search.low);
                    }
                }
                search.high = search.high.min(most);
                if self.size.mss > most {
                    search.low = search.low.min(most);
                    self.set_mss(most);
                }
            }
        }
    }

    /// The size of the search's next probe, if one is due, there is enough data behind it and the window is large
    /// enough that its loss is noticed soon.
    pub(super) fn path_mtu_candidate(&self, admitted: u32) -> Option<u16> {
        let search = self.size.search.as_ref()?;
        if !search.due || search.out || !self.options.mtu_probing || !self.recovery.is_open() {
            return None;
        }
        let size = search.candidate()?;
        //= RFC 4821 section 7.4: enough data behind it to notice its loss
        let enough = admitted >= u32::from(size) + u32::from(self.size.mss) && self.board.lost() == 0;
        // It is one packet: in one piece, so that every device can send it.
        let whole =
            || self.queue.span(self.position(self.space.nxt()), u32::from(size), 1) >= u32::from(size);
        (enough && whole()).then_some(size)
    }

    pub(super) fn path_mtu_sent(&mut self) {
        if let Some(search) = &mut self.size.search {
            search.out = true;
        }
    }

    /// A probe got through.
    pub(super) fn path_mtu_proved(&mut self, now: Instant, size: u16) {
        let Some(search) = &mut self.size.search else { return };
        search.out = false;
        search.bold = false;
        search.tries = 0;
        search.low = search.low.max(size);
        search.high = search.high.max(size);
        if search.candidate().is_none() {
            search.due = false;
            search.next_at = now + RAISE;
        }
        if size >= self.size.limit {
            self.size.search = None;
        }
        if size > self.size.mss {
            self.set_mss(size);
        }
    }

    /// A probe was lost.
    pub(super) fn path_mtu_lost(&mut self, now: Instant) {
        let Some(search) = &mut self.size.search else { return };
        if !search.out {
            return;
        }
        let tried = search.candidate().unwrap_or(search.high);
        search.out = false;
        search.tries += 1;
        if search.tries < TRIES {
            return;
        }
        search.tries = 0;
        search.bold = false;
        search.high = tried.saturating_sub(1).max(search.low);
        let mut pause = RAISE;
        if let Some(reported) = &mut search.reported {
            search.high = search.low;
            *reported = (*reported * 2).min(RAISE);
            pause = *reported;
        }
        if search.candidate().is_none() {
            search.due = false;
            search.next_at = now + pause;
        }
    }

    /// A time-out, after `timeouts` others without progress: checks whether the size is the cause.
    pub(super) fn black_hole(&mut self, now: Instant, timeouts: u8) {
        self.path_mtu_lost(now);
        self.weigh_claim(now);
        //= RFC 4821 section 7.7: several time-outs in a row of full segments make the sender go down
        let full = self.board.front().is_some_and(|front| front.len() >= u32::from(self.size.mss));
        let often = timeouts.checked_sub(BLACK_HOLE).is_some_and(|more| more.is_multiple_of(FURTHER));
        if !self.options.mtu_probing || !full || !often {
            return;
        }
        let Some(less) = STEPS.iter().map(|mtu| self.size.payload(*mtu)).find(|size| *size < self.size.mss)
        else {
            return;
        };
        let high = self.size.search.as_ref().map_or(self.size.mss, |search| search.high);
        self.size.search =
            Some(Box::new(PathMtu { low: less, high, bold: true, next_at: now, ..PathMtu::default() }));
        self.set_mss(less);
    }

    /// ICMP says that packets of more than `mtu` bytes do not get through; `quoted` is the sequence number in the
    /// packet that it quotes. Returns whether the claim was accepted.
    pub(crate) fn on_packet_too_big(&mut self, now: Instant, mtu: u16, quoted: SeqNumber) -> bool {
        //= RFC 5927 section 4.1 and 7.2: only about a number that is out, and only if it is news.
        let plausible = !quoted.is_before(self.space.una()) && quoted.is_before(self.space.nxt());
        let size = self.size.payload(mtu);
        if !plausible || self.control.has_no_controller() || size >= self.size.mss {
            return false;
        }
        //= RFC 5927 section 7.2: a claim below the largest size that was acknowledged has to wait.
        if size < self.size.largest_acked {
            self.doubt(Claim { size, quoted, delivered: self.rate.delivered() });
            return false;
        }
        self.believe_too_big(now, size);
        true
    }

    /// A tail-loss probe is due: if nothing was delivered since a claim came, it may well be true.
    pub(super) fn weigh_early(&mut self, now: Instant) {
        let claim = self.size.search.as_ref().and_then(|search| search.claim);
        if claim.is_some_and(|claim| claim.delivered == self.rate.delivered()) {
            self.weigh_claim(now);
        }
    }

    /// Keeps a claim until it can be weighed, one at a time.
    fn doubt(&mut self, claim: Claim) {
        let mss = self.size.mss;
        let rumour = PathMtu { low: mss, high: mss, next_at: NEVER, ..PathMtu::default() };
        let search = self.size.search.get_or_insert_with(|| Box::new(rumour));
        if search.claim.is_none_or(|claim| claim.quoted.is_before(self.space.una())) {
            search.claim = Some(claim);
        }
    }

    //= RFC 5927 section 7.2: such a claim is honoured when the segment that it is about was not acknowledged in time.
    fn weigh_claim(&mut self, now: Instant) {
        let Some(search) = &mut self.size.search else { return };
        let claim = search.claim.take();
        if search.is_rumour() {
            self.size.search = None;
        }
        if let Some(claim) = claim
            && !claim.quoted.is_before(self.space.una())
            && claim.size < self.size.mss
        {
            self.believe_too_big(now, claim.size);
        }
    }

    fn believe_too_big(&mut self, now: Instant, size: u16) {
        let again = if self.options.mtu_probing { TRY_AGAIN } else { RAISE };
        let reported = self.size.search.as_ref().and_then(|search| search.reported).unwrap_or(again);
        self.size.search = Some(Box::new(PathMtu {
            low: size,
            high: size,
            bold: true,
            reported: Some(reported),
            next_at: now + reported,
            ..PathMtu::default()
        }));
        self.size.largest_acked = self.size.largest_acked.min(size);
        self.set_mss(size);
        // Segments that were too big are lost, but not by congestion.
        let lost =
            self.board.lose(|record| Some(record.segment_size > size && record.len() > u32::from(size)));
        self.rate.on_lost(lost);
    }
}
