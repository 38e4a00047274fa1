//! Payloads in a device's memory: sent from there and written there without the host reading them.
//!
//! The host does not read the bytes, but their CRC goes end to end. A [`Digest`] finds it on the device, in the
//! background. A payload to be sent waits for its CRC in the outbox; a fragment that a peer has written to its place is
//! open until the CRC of the bytes there is known, and only then handed to the executor, or refused as damaged.
//! Fragments behind it on the same connection go on meanwhile, but neither is acknowledged before.

use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::Disposition;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Header;
use shouter_reducer::memory::{MemoryKind, Span};
use shouter_reducer::transport::{AcceleratorError, PayloadRange, SendError, SendToken};

use super::fabric::{Fabric, Fault};
use super::fragments::{FragmentState, RefusalReason};
use super::message::{Check, Head, Read, TRAILER};
use super::{Control, VerbsChannel};
use crate::channel::Inbox;
use crate::channel::loss::Loss;

/// Payloads that wait for their CRC, or for room on a connection, at most.
const OUTBOX: usize = 256;

/// The interval of the questions to a device, where nothing else is to do.
pub(crate) const ASK_EVERY: Duration = Duration::from_micros(20);

/// A device that answers nothing for so long has failed: a CRC takes microseconds, behind whatever else the device
/// does.
const PATIENCE: Duration = Duration::from_secs(60);

/// Names a CRC that was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CrcTicket(pub u64);

/// Finds CRC32Cs of a device's memory, and reads and writes it where a slot is in between. Errors are for good: the device has
/// failed, and the group ends.
pub trait Digest {
    /// Requests the CRC32C of a range, which stays as it is until the CRC is known, or [forgotten](Self::forget);
    /// `None` if there is no room for the request now. The computation may begin as late as with the next
    /// [`poll`](Self::poll).
    ///
    /// # Errors
    /// The device has failed.
    fn start(&mut self, span: Span) -> Result<Option<CrcTicket>, AcceleratorError>;

    /// The answer, once, when it is there. Never waits.
    ///
    /// # Errors
    /// The device has failed.
    fn poll(&mut self, ticket: CrcTicket) -> Result<Option<u32>, AcceleratorError>;

    /// The answer is not needed any more. The range may be read yet: see the accelerator's `is_idle`.
    fn forget(&mut self, ticket: CrcTicket);

    /// Makes the writes of NICs so far visible to all later work of the device, this one's own included.
    ///
    /// # Errors
    /// The device has failed.
    fn settle_writes(&mut self) -> Result<(), AcceleratorError>;

    /// Copies device memory to the host, and waits for it, with a deadline.
    ///
    /// # Errors
    /// The device has failed, or the deadline has passed.
    fn read(&mut self, from: Span, into: &mut [u8]) -> Result<(), AcceleratorError>;

    /// Copies to device memory, and waits for it, with a deadline.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn write(&mut self, into: Span, from: &[u8]) -> Result<(), AcceleratorError>;
}

/// A payload that is to be sent.
#[derive(Debug)]
struct Waiting {
    /// The peer's index.
    index: usize,
    header: Header,
    span: PayloadRange,
    token: SendToken,
    crc: Answer,
}

/// A fragment that was written to its place.
#[derive(Debug)]
struct Arrived {
    connection: usize,
    number: u64,
    header: Header,
    check: Check,
    crc: Answer,
}

/// The state of a CRC's request.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// Not requested yet, for want of room.
    Unasked,
    Asked(CrcTicket),
    Known(u32),
}

impl Answer {
    /// Requests the CRC, if that was not done; false for want of room.
    fn ask(&mut self, digest: &mut dyn Digest, span: Span) -> Result<bool, AcceleratorError> {
        if let Self::Unasked = self {
            let Some(ticket) = digest.start(span)? else { return Ok(false) };
            *self = Self::Asked(ticket);
        }
        Ok(true)
    }

    /// The CRC, when it is known.
    fn look(&mut self, digest: &mut dyn Digest) -> Result<Option<u32>, AcceleratorError> {
        if let Self::Asked(ticket) = *self
            && let Some(crc) = digest.poll(ticket)?
        {
            *self = Self::Known(crc);
        }
        Ok(if let Self::Known(crc) = *self { Some(crc) } else { None })
    }

    fn forget(self, digest: &mut dyn Digest) {
        if let Self::Asked(ticket) = self {
            digest.forget(ticket);
        }
    }
}

/// The channel's state for a device.
pub(super) struct OnDevice {
    digest: Box<dyn Digest + Send>,
    outbox: Vec<Waiting>,
    arrivals: Vec<Arrived>,
    /// NICs have written since the device last made writes visible.
    fresh: bool,
    /// When a CRC was last known, or none was to be requested.
    moved: Instant,
    /// When the device is polled again.
    ask_at: Option<Instant>,
}

impl<F: Fabric, C: Control> VerbsChannel<F, C> {
    /// Queues a payload of a device until its CRC is known.
    pub(super) fn send_from_device(
        &mut self,
        index: usize,
        header: &Header,
        span: PayloadRange,
        token: SendToken,
    ) -> Result<(), SendError> {
        let crc = if self.settings.crc { Answer::Unasked } else { Answer::Known(0) };
        let device = self.device.as_mut().ok_or(SendError::PeerFailed)?;
        if device.outbox.len() >= OUTBOX {
            return Err(SendError::Full);
        }
        device.outbox.push(Waiting { index, header: *header, span, token, crc });
        Ok(())
    }

    /// Sends payloads whose CRCs are known, and settles fragments that have come. True if anything happened.
    pub(super) fn poll_device(&mut self, now: Instant, inbox: &mut dyn Inbox) -> bool {
        let Some(mut device) = self.device.take() else { return false };
        let looked = self.settle_arrivals(now, &mut device, inbox).and_then(|settled| {
            // A device answers in the order of the requests, so the rest can wait.
            let sent = self.send_known(&mut device)?;
            Ok(settled || sent)
        });
        let waits = !device.outbox.is_empty() || !device.arrivals.is_empty();
        let worked = match looked {
            Ok(worked) => worked,
            Err(error) => {
                self.device_failed(&error);
                true
            }
        };
        if worked || !waits {
            device.moved = now;
        } else if now >= device.moved + PATIENCE && device.asks() {
            self.device_failed(&AcceleratorError(
                "a CRC was not found within a minute; the GPU hangs".into(),
            ));
        }
        device.ask_at = waits.then(|| now + ASK_EVERY);
        self.device = Some(device);
        worked
    }

    fn settle_arrivals(
        &mut self,
        now: Instant,
        device: &mut OnDevice,
        inbox: &mut dyn Inbox,
    ) -> Result<bool, AcceleratorError> {
        if device.arrivals.is_empty() {
            return Ok(false);
        }
        if std::mem::take(&mut device.fresh) {
            device.digest.settle_writes()?;
        }
        // All at first, so that neighbours are found together.
        for arrived in &mut device.arrivals {
            if !arrived.crc.ask(&mut *device.digest, arrived.check.span)? {
                break;
            }
        }
        let mut settled = 0;
        while let Some(arrived) = device.arrivals.get_mut(settled) {
            let Some(crc) = arrived.crc.look(&mut *device.digest)? else { break };
            settled += 1;
            let Arrived { connection: at, number, header, check, .. } = *arrived;
            let refused = if !check.passes(crc) {
                self.counts.damaged += 1;
                Some(RefusalReason::Damaged)
            } else if !self.on_trailer(at, number, &check, inbox) || self.sender_of(at) != Some(header.src) {
                self.broken(now, at, Fault::Protocol);
                continue;
            } else {
                not_ready(inbox.placed(&header))
            };
            self.connections.settle(at, number, FragmentState::Settled(refused));
        }
        device.arrivals.drain(..settled);
        Ok(settled > 0)
    }

    /// Handles the trailer of a sound fragment; false if it is invalid.
    fn on_trailer(&mut self, at: usize, number: u64, check: &Check, inbox: &mut dyn Inbox) -> bool {
        let (released, Some(connection)) = (&mut self.released, self.connections.get_mut(at)) else {
            return false;
        };
        let acknowledged = connection.sender.acknowledged(check.ack, 32, |token| released.push(token));
        // The peer is answered when the fragment is settled.
        if check.ask {
            connection.receiver.ask();
        }
        for token in self.released.drain(..) {
            inbox.released(token);
        }
        acknowledged.is_ok() && check.number == number as u32
    }

    fn sender_of(&self, connection: usize) -> Option<Rank> {
        self.peers.rank(self.connections.split(connection).0)
    }

    fn send_known(&mut self, device: &mut OnDevice) -> Result<bool, AcceleratorError> {
        let OnDevice { digest, outbox, .. } = device;
        let (mut at, mut sent) = (0, false);
        for waiting in outbox.iter_mut() {
            if !waiting.crc.ask(&mut **digest, waiting.span)? {
                break;
            }
        }
        while let Some(waiting) = outbox.get_mut(at) {
            let Some(crc) = waiting.crc.look(&mut **digest)? else { break };
            let Some(connection) = self.connections.pick(waiting.index, 1, &self.fabric) else {
                // A connection of another peer may have room.
                at += 1;
                continue;
            };
            let Waiting { index, header, span, token, .. } = outbox.remove(at);
            let into = self.destination(index, &header);
            sent = true;
            if self.send_zero_copy(connection, &header, (span, into), token, Some(Read::Crc(crc))) {
                continue;
            }
            // The payload is not registered any more.
            let mut copy = vec![0; span.len()];
            digest.read(span, &mut copy)?;
            self.post(connection, Head::New(&header), &copy);
            self.released.push(token);
        }
        Ok(sent)
    }

    /// A fragment that lies in a device's memory has come; it is open until its CRC is known.
    pub(super) fn arrived(&mut self, connection: usize, number: u64, header: &Header, check: Check) {
        if let Some(device) = &mut self.device {
            device.fresh = true;
            let header = *header;
            device.arrivals.push(Arrived { connection, number, header, check, crc: Answer::Unasked });
        }
    }

    /// The fragment is received again through a slot.
    pub(super) fn forget_arrival(&mut self, connection: usize, number: u64) {
        let Some(OnDevice { digest, arrivals, .. }) = &mut self.device else { return };
        if let Some(at) =
            arrivals.iter().position(|other| (other.connection, other.number) == (connection, number))
        {
            arrivals.remove(at).crc.forget(&mut **digest);
        }
    }

    /// Drops the waiting payloads to and from a peer, or all peers.
    pub(super) fn forget_device(&mut self, peer: Option<usize>) {
        let connections = &self.connections;
        let Some(OnDevice { digest, outbox, arrivals, .. }) = &mut self.device else { return };
        let of = |index: usize| peer.is_none_or(|peer| peer == index);
        outbox.retain(|waiting| {
            let gone = of(waiting.index);
            if gone {
                waiting.crc.forget(&mut **digest);
            }
            !gone
        });
        arrivals.retain(|arrived| {
            let gone = of(connections.split(arrived.connection).0);
            if gone {
                arrived.crc.forget(&mut **digest);
            }
            !gone
        });
    }

    /// Copies a device's payload to a slot from which it is sent again.
    pub(super) fn read_device(&mut self, span: Span, at: usize, slot: u32) {
        let Some(device) = &mut self.device else { return };
        let Some(bytes) = self.fabric.outgoing(at, slot).get_mut(..span.len() + TRAILER) else { return };
        let read = device.digest.read(span, bytes.split_at_mut(span.len()).0);
        if let Err(error) = read {
            self.device_failed(&error);
        }
    }

    /// Whether payloads of a device wait for anything.
    pub(super) fn device_is_drained(&self) -> bool {
        self.device.as_ref().is_none_or(|device| device.outbox.is_empty() && device.arrivals.is_empty())
    }

    /// The group cannot go on, and this rank is to blame.
    #[cold]
    pub(super) fn device_failed(&mut self, error: &AcceleratorError) {
        tracing::error!(%error, "an accelerator failed under payloads that lie in its memory");
        self.peers.blame(0, Loss::Verbs(Fault::Accelerator));
    }
}

impl OnDevice {
    pub(super) fn new(digest: Box<dyn Digest + Send>) -> Self {
        Self { digest, outbox: vec![], arrivals: vec![], fresh: false, moved: Instant::ZERO, ask_at: None }
    }

    /// When the device is polled again.
    pub(super) fn next_question(&self) -> Option<Instant> {
        self.ask_at
    }

    /// Makes the writes of NICs, which need no check, visible to the device.
    pub(super) fn see_writes(&mut self) -> Result<(), AcceleratorError> {
        self.digest.settle_writes()
    }

    /// Whether it is the device that is waited for, rather than room on a connection.
    fn asks(&self) -> bool {
        let open = |answer: &Answer| !matches!(answer, Answer::Known(_));
        self.outbox.iter().any(|waiting| open(&waiting.crc)) || !self.arrivals.is_empty()
    }
}

/// Hands on a payload received in a slot. One that belongs into a device's memory is copied there; others go to the
/// executor.
pub(super) fn deliver(
    device: &mut Option<OnDevice>,
    header: &Header,
    payload: &[u8],
    inbox: &mut dyn Inbox,
) -> Result<Disposition, AcceleratorError> {
    let landing = device.as_ref().and_then(|_| inbox.landing(header));
    let landing =
        landing.filter(|span| span.region().kind() == MemoryKind::Device && span.len() == payload.len());
    if let (Some(span), Some(device)) = (landing, device)
        && !span.is_empty()
    {
        device.digest.write(span, payload)?;
        return Ok(inbox.placed(header));
    }
    Ok(inbox.fragment(header, payload))
}

/// Whether a fragment is to be sent again.
pub(super) fn not_ready(disposition: Disposition) -> Option<RefusalReason> {
    disposition.is_retryable().then_some(RefusalReason::NotReady)
}
