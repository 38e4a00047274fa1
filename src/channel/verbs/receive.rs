//! What a peer wrote or said: taken or refused, and told so.

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{Disposition, Refusal};
use shouter_reducer::header::{Header, MessageKind};

use super::digest::{self, not_ready};
use super::fabric::{Fabric, Fault};
use super::lane::{self, Verdict, Why};
use super::message::{self, Opened, WORD_BITS, Window, Word};
use super::{Control, VerbsChannel};
use crate::channel::{Inbox, stray};

impl<F: Fabric, C: Control> VerbsChannel<F, C> {
    /// A fragment has come.
    pub(super) fn written(&mut self, now: Instant, at: usize, slot: u32, len: u32, inbox: &mut dyn Inbox) {
        let index = self.lanes.split(at).0;
        let Some(lane) = self.lanes.get_mut(at).filter(|lane| lane.link.receives()) else { return };
        let bytes = self.fabric.incoming(at, slot).get(..len as usize);
        if !lane.receiver.expects(slot) {
            return self.broken(now, at, Fault::Protocol);
        }
        let (number, known) = (lane.receiver.next(), lane.receiver.known());
        let (mut open, mut failed) = (None, None);
        let landing = |header: &[u8]| inbox.landing(&Header::parse(header).ok()?);
        let verdict = match bytes.and_then(|bytes| message::open(bytes, self.settings.crc, landing)) {
            // What was handed on is not wanted again.
            _ if known == Some(Verdict::Settled(None)) => Verdict::Settled(None),
            None => {
                self.counts.damaged += 1;
                Verdict::Settled(Some(Why::Damaged))
            }
            Some(Opened { trailer, check: Some(check), .. }) => {
                open = Header::parse(trailer.header).ok().map(|header| (header, check));
                Verdict::Open
            }
            Some(Opened { payload, trailer, check: None }) => {
                let released = &mut self.released;
                let heard = lane.sender.acknowledged(trailer.ack, 32, |token| released.push(token));
                if heard.is_err() || !lane.receiver.is_next(trailer.number) {
                    return self.broken(now, at, Fault::Protocol);
                }
                if trailer.ask {
                    self.lanes.ask(at);
                }
                // What comes may go where something was sent from.
                for token in self.released.drain(..) {
                    inbox.released(token);
                }
                match Header::parse(trailer.header) {
                    Ok(header) if self.peers.rank(index) == Some(header.src) => {
                        let disposition = match payload {
                            None => {
                                failed = self.device.as_mut().and_then(|device| device.see_writes().err());
                                inbox.placed(&header)
                            }
                            Some(payload) => {
                                let credit = (header.kind == MessageKind::Credit).then_some(payload);
                                let window = credit.and_then(Window::decode);
                                let payload = if window.is_some() { &[] } else { payload };
                                let delivered = digest::deliver(&mut self.device, &header, payload, inbox);
                                let disposition = delivered.unwrap_or_else(|error| {
                                    failed = Some(error);
                                    Disposition::Refused(Refusal::Aborted)
                                });
                                if let (Some(window), Disposition::Consumed, Some(peer)) =
                                    (window, disposition, self.peers.get_mut(index))
                                {
                                    peer.windows.open(&header, window);
                                }
                                disposition
                            }
                        };
                        Verdict::Settled(not_ready(disposition))
                    }
                    other => {
                        stray(&mut self.counts.strays, self.peers.rank(index), other.err());
                        Verdict::Settled(None)
                    }
                }
            }
        };
        self.lanes.came(at, verdict);
        if known == Some(Verdict::Open) {
            self.forget_arrival(at, number);
        }
        if let Some((header, check)) = open {
            self.arrived(at, number, &header, check);
        }
        if let Some(error) = failed {
            self.device_failed(&error);
        }
    }

    /// A word has come.
    pub(super) fn said(&mut self, now: Instant, at: usize, word: u32) {
        let Some(lane) = self.lanes.get_mut(at).filter(|lane| lane.link.receives()) else { return };
        let released = &mut self.released;
        let heard = match Word::decode(word) {
            Some(Word::Ack(count)) => {
                lane.sender.acknowledged(count, WORD_BITS, |token| released.push(token)).map(|()| None)
            }
            Some(Word::Damaged(number)) => lane.sender.refused(number, Why::Damaged).map(Some),
            Some(Word::NotReady(number)) => lane.sender.refused(number, Why::NotReady).map(Some),
            None => Err(lane::Nonsense),
        };
        match heard {
            Ok(None) => {}
            Ok(Some(fragment)) => self.keep(now, at, fragment),
            Err(_) => self.broken(now, at, Fault::Protocol),
        }
    }
}
