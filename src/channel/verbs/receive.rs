//! Received fragments and immediate values. A fragment is taken or refused, and this is reported to the peer.

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{Disposition, Refusal};
use shouter_reducer::header::{Header, MessageKind};

use super::digest::{self, not_ready};
use super::fabric::{Fabric, Fault};
use super::fragments::{self, FragmentState, RefusalReason};
use super::message::{self, CreditWindow, NUMBER_BITS, Notification, Opened};
use super::{Control, VerbsChannel};
use crate::channel::{Inbox, stray};

impl<F: Fabric, C: Control> VerbsChannel<F, C> {
    /// A fragment was received.
    pub(super) fn written(&mut self, now: Instant, at: usize, slot: u32, len: u32, inbox: &mut dyn Inbox) {
        let index = self.connections.split(at).0;
        let Some(connection) = self.connections.get_mut(at).filter(|connection| connection.link.receives())
        else {
            return;
        };
        let bytes = self.fabric.incoming(at, slot).get(..len as usize);
        if !connection.receiver.expects(slot) {
            return self.broken(now, at, Fault::Protocol);
        }
        let (number, known) = (connection.receiver.next(), connection.receiver.known());
        let (mut open, mut failed) = (None, None);
        let landing = |header: &[u8]| inbox.landing(&Header::parse(header).ok()?);
        let state = match bytes.and_then(|bytes| message::open(bytes, self.settings.crc, landing)) {
            // A fragment that was handed on already is not handed on again.
            _ if known == Some(FragmentState::Settled(None)) => FragmentState::Settled(None),
            None => {
                self.counts.damaged += 1;
                FragmentState::Settled(Some(RefusalReason::Damaged))
            }
            Some(Opened { trailer, check: Some(check), .. }) => {
                open = Header::parse(trailer.header).ok().map(|header| (header, check));
                FragmentState::Open
            }
            Some(Opened { payload, trailer, check: None }) => {
                let released = &mut self.released;
                let heard = connection.sender.acknowledged(trailer.ack, 32, |token| released.push(token));
                if heard.is_err() || !connection.receiver.is_next(trailer.number) {
                    return self.broken(now, at, Fault::Protocol);
                }
                if trailer.ask {
                    self.connections.ask(at);
                }
                // The received payload may go to memory that was sent from.
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
                                let window = credit.and_then(CreditWindow::decode);
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
                        FragmentState::Settled(not_ready(disposition))
                    }
                    other => {
                        stray(&mut self.counts.strays, self.peers.rank(index), other.err());
                        FragmentState::Settled(None)
                    }
                }
            }
        };
        self.connections.came(at, state);
        if known == Some(FragmentState::Open) {
            self.forget_arrival(at, number);
        }
        if let Some((header, check)) = open {
            self.arrived(at, number, &header, check);
        }
        if let Some(error) = failed {
            self.device_failed(&error);
        }
    }

    /// A SEND with an immediate value was received.
    pub(super) fn on_immediate(&mut self, now: Instant, at: usize, value: u32) {
        let Some(connection) = self.connections.get_mut(at).filter(|connection| connection.link.receives())
        else {
            return;
        };
        let released = &mut self.released;
        let heard = match Notification::decode(value) {
            Some(Notification::Ack(count)) => connection
                .sender
                .acknowledged(count, NUMBER_BITS, |token| released.push(token))
                .map(|()| None),
            Some(Notification::Refused(why, number)) => connection.sender.refused(number, why).map(Some),
            None => Err(fragments::InvalidAck),
        };
        match heard {
            Ok(None) => {}
            Ok(Some(fragment)) => self.keep(now, at, fragment),
            Err(_) => self.broken(now, at, Fault::Protocol),
        }
    }
}
