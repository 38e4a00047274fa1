//! Acknowledgements: what they settle is released, or queued again if it was refused.

use super::slots::Transmission;
use super::{Retry, Sender};
use crate::device::FramesOut;
use crate::rud::api::MessageToken;
use crate::rud::recovery::{NEVER, Recovery};
use crate::wire::rud::Psn;

/// The acknowledgements in one received datagram.
#[derive(Clone, Copy, Debug)]
pub(in crate::rud) struct Acked {
    /// Datagrams acknowledged as consumed.
    pub(in crate::rud) count: u32,
    /// Datagrams refused, or some messages of them.
    pub(in crate::rud) refused: u32,
    /// The messages that were.
    pub(in crate::rud) refused_messages: u32,
    /// Datagrams that had been held for lost and were not.
    pub(in crate::rud) spurious: u32,
    /// When the most recently sent one was sent, of those sent only once; `NEVER` if there is none.
    pub(in crate::rud) clean_sent_at: u64,
    /// Whether the two below hold.
    pub(in crate::rud) newest: bool,
    /// When the most recently sent one was sent.
    pub(in crate::rud) newest_sent_at: u64,
    /// Its serial number.
    pub(in crate::rud) newest_serial: u32,
    /// Payload bytes of the longest of those sent only once; bundles, which every path carries, do not count.
    pub(in crate::rud) longest: u16,
}

impl Acked {
    /// Nothing yet.
    pub(in crate::rud) const NOTHING: Self = Self {
        count: 0,
        refused: 0,
        refused_messages: 0,
        spurious: 0,
        clean_sent_at: NEVER,
        newest: false,
        newest_sent_at: 0,
        newest_serial: 0,
        longest: 0,
    };

    /// Takes the timing from the acknowledgement of a datagram. True if it is certain that the last transmission arrived.
    #[inline]
    pub(super) fn take_in(&mut self, context: &AckContext<'_>, sent: &Transmission) -> bool {
        //= rud/spec.md section 6.3, RUD-45
        // An acknowledgement sooner after a resend than a round trip takes may be that of an earlier transmission;
        // sooner than half the smallest round trip, it must be.
        if sent.lost || sent.tries > 1 {
            let elapsed = context.now.saturating_sub(sent.sent_at);
            if sent.lost || elapsed < context.recovery.round_trip() {
                self.spurious += u32::from(sent.lost || elapsed < context.recovery.min_rtt() / 2);
                return sent.tries == 1;
            }
        }
        if sent.tries == 1 {
            self.longest = self.longest.max(if sent.bundle.is_some() { 0 } else { sent.bytes });
            if self.clean_sent_at == NEVER || sent.sent_at > self.clean_sent_at {
                self.clean_sent_at = sent.sent_at;
            }
        }
        if !self.newest || (sent.serial.wrapping_sub(self.newest_serial) as i32) > 0 {
            self.newest = true;
            self.newest_sent_at = sent.sent_at;
            self.newest_serial = sent.serial;
        }
        true
    }
}

/// Receives what acknowledgements settle.
pub(in crate::rud) trait OnSettled {
    /// The last transmission from `slot` has arrived.
    fn delivered(&mut self, slot: usize);

    /// The message was consumed, and no frame refers to its memory.
    fn released(&mut self, token: MessageToken);
}

/// By what `Sender` judges an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(in crate::rud) struct AckContext<'a> {
    /// Now.
    pub(in crate::rud) now: u64,
    /// The round-trip times so far.
    pub(in crate::rud) recovery: &'a Recovery,
    /// Emitted frames that may still be read. If there are any, [`Sender::release_held`] follows.
    pub(in crate::rud) frames_out: FramesOut,
}

/// Whether a frame may still refer to a datagram that was acknowledged.
#[inline]
pub(super) fn may_be_read(frames: FramesOut, sent: &Transmission) -> bool {
    // A waiting frame is not the one that was acknowledged: the datagram was sent again.
    frames == FramesOut::Held || frames == FramesOut::Waiting && sent.tries > 1
}

impl Sender {
    /// Every PSN before `cumulative` has been consumed.
    #[inline]
    pub(in crate::rud) fn on_cumulative(
        &mut self,
        context: &AckContext<'_>,
        cumulative: Psn,
        acked: &mut Acked,
        on: &mut impl OnSettled,
    ) {
        //= rud/spec.md section 6.2, RUD-38
        // An acknowledgement of datagrams that were never sent is ignored.
        if !self.sequence.covers(cumulative) {
            return;
        }
        while let Some(at) = self.sequence.settle_before(cumulative) {
            self.consumed(context, at, acked, on);
        }
        self.sequence.advance();
    }

    /// The word that starts at `start`: which of its PSNs have been consumed, which refused.
    #[inline]
    pub(in crate::rud) fn on_word(
        &mut self,
        context: &AckContext<'_>,
        start: Psn,
        received: u64,
        refused: u64,
        acked: &mut Acked,
        on: &mut impl OnSettled,
    ) {
        // Nearly every datagram repeats what is known.
        let unsettled = self.sequence.unsettled(start, received | refused);
        if unsettled != 0 {
            self.settle_word(context, start, unsettled, received, acked, on);
        }
    }

    /// The `unsettled` PSNs of the word that starts at `start` are settled: those that have been `received`, and the others as
    /// refused.
    fn settle_word(
        &mut self,
        context: &AckContext<'_>,
        start: Psn,
        mut unsettled: u64,
        received: u64,
        acked: &mut Acked,
        on: &mut impl OnSettled,
    ) {
        while unsettled != 0 {
            let bit = unsettled & unsettled.wrapping_neg();
            let psn = start.plus(unsettled.trailing_zeros());
            unsettled ^= bit;
            let Some(at) = self.sequence.settle(psn) else { continue };
            if received & bit != 0 {
                self.consumed(context, at, acked, on);
            } else {
                self.refused(context, at, acked, on);
            }
        }
        self.sequence.advance();
    }

    /// The PSN of the message in slot `at` was settled: it was consumed.
    #[inline(always)]
    fn consumed(&mut self, context: &AckContext<'_>, at: usize, acked: &mut Acked, on: &mut impl OnSettled) {
        let sent = self.slots.take_off(at);
        if acked.take_in(context, &sent) {
            on.delivered(at);
        }
        acked.count += 1;
        self.slots.free_up(at);
        if let Some(number) = sent.bundle {
            return self.bundle_consumed(context, number, &sent, on);
        }
        //= rud/spec.md section 6.2, RUD-40
        if !may_be_read(context.frames_out, &sent) {
            on.released(sent.token);
        } else {
            self.hold(sent.token);
        }
    }

    #[cold]
    fn hold(&mut self, token: MessageToken) {
        self.held.push(token);
    }

    /// The PSN of the message in slot `at` was settled: it was refused.
    fn refused(&mut self, context: &AckContext<'_>, at: usize, acked: &mut Acked, on: &mut impl OnSettled) {
        //= rud/spec.md section 6.6, RUD-50
        // The PSN is settled; the message waits, and then takes a new one.
        let sent = self.slots.take_off(at);
        if acked.take_in(context, &sent) {
            on.delivered(at);
        }
        let messages = sent.bundle.map_or(1, |number| self.bundles.tokens(number).len() as u32);
        self.wait(context.now, at, messages, acked);
    }

    /// What is in slot `at`, so many messages, was refused, and is queued again later.
    pub(super) fn wait(&mut self, now: u64, at: usize, messages: u32, acked: &mut Acked) {
        acked.refused += 1;
        acked.refused_messages += messages;
        self.slots.refuse(at);
        let before = self.messages[at].on_refused();
        //= rud/spec.md section 6.6, RUD-51
        let backoff = self.refusal_backoff.saturating_mul(1 << before.min(32));
        let due = now.saturating_add(backoff);
        let place = self.retries.partition_point(|other| other.due <= due);
        self.retries.insert(place, Retry { slot: at as u16, due });
    }
}
