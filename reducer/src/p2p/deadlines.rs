//! The deadlines of sends and receives.

use super::Messenger;
use super::api::TransferError;
use super::peer::{Body, Receive};
use super::sends::{Handle, Outgoing, SendState};
use super::wire::{Envelope, GIVEN_UP};
use crate::grid::Rank;
use crate::header::MessageKind;
use core::time::Duration;
use std::collections::VecDeque;

impl Messenger {
    /// Fails sends and receives that are late, and finds the next deadline; whether any was late.
    pub(super) fn check_deadlines(&mut self, now: Duration) -> bool {
        let mut late = vec![];
        let mut take = |queue: &mut VecDeque<Receive>| {
            late.extend(queue.iter().filter(|receive| receive.deadline <= now).copied());
            queue.retain(|receive| receive.deadline > now);
        };
        take(&mut self.any);
        let mut matched: Vec<(Rank, Envelope, Receive)> = vec![];
        for (rank, peer) in self.peers.iter_mut() {
            take(&mut peer.inbound.posted);
            let live = peer.inbound.messages().filter_map(|incoming| match incoming.body {
                Body::Into(receive) => Some((rank, incoming.envelope, receive)),
                _ => None,
            });
            matched.extend(live.filter(|(_, _, receive)| receive.deadline <= now));
        }
        let mut any = !late.is_empty() || !matched.is_empty();
        for receive in late {
            self.give_up_receive(&receive);
        }
        for (rank, envelope, receive) in matched {
            self.peers.at(rank).inbound.remove(envelope.seq);
            self.refuse(rank, &envelope, GIVEN_UP);
            self.give_up_receive(&receive);
        }
        let sends = self.sends.iter().filter(|(_, send)| self.may_be_late(send) && send.deadline <= now);
        let sends: Vec<Handle> = sends.map(|(handle, _)| handle).collect();
        any |= !sends.is_empty();
        for handle in sends {
            self.give_up_send(handle);
        }
        any |= self.give_up_kept(now);
        self.common.set_earliest(self.earliest());
        any
    }

    fn give_up_receive(&mut self, receive: &Receive) {
        let subject = self.common.receiving(receive);
        self.common.end(receive.id, Err(TransferError::Deadline { subject }));
    }

    fn give_up_send(&mut self, handle: Handle) {
        let Some(send) = self.sends.get(handle) else { return };
        let (to, envelope, state) = (send.to, send.envelope, send.state);
        match state {
            // The next poll takes it off the queue.
            SendState::Queued => self.peers.activate(to),
            _ if to == self.common.config.rank => {
                self.on_withdrawn(to, envelope);
            }
            _ => self.withdraw(to, &envelope),
        }
        self.fail_late((to, handle), &envelope, |subject| TransferError::Deadline { subject });
    }

    /// Whether a send's own deadline counts: not once it has ended, but always for a send to this rank itself, which is nowhere else.
    fn may_be_late(&self, send: &Outgoing) -> bool {
        send.failure.is_none() && (send.id.is_some() || send.to == self.common.config.rank)
    }

    /// Tells a peer that a message is given up.
    fn withdraw(&mut self, to: Rank, envelope: &Envelope) {
        if let Some(record) = self.peers.at(to).out.record(envelope.seq) {
            record.withdrawn = true;
        }
        self.common.control(to, envelope.header(&self.common.config, MessageKind::Withdrawn));
    }

    /// Gives up messages that no receive has taken, and whose sends ended when they were copied.
    fn give_up_kept(&mut self, now: Duration) -> bool {
        let mut kept: Vec<(Rank, Envelope, Handle)> = vec![];
        for (rank, peer) in self.peers.iter() {
            let late = peer.out.records().filter(|record| record.deadline <= now && !record.withdrawn);
            kept.extend(late.map(|record| (rank, record.envelope, record.send)));
        }
        // Sends that have not ended, and that only wait for their release, are told by themselves.
        kept.retain(|(_, _, handle)| self.sends.get(*handle).is_none_or(|send| send.id.is_none()));
        for &(to, ref envelope, handle) in &kept {
            self.withdraw(to, envelope);
            self.fail_late((to, handle), envelope, |subject| TransferError::Deadline { subject });
        }
        !kept.is_empty()
    }

    /// The earliest deadline.
    fn earliest(&self) -> Duration {
        let of = |queue: &VecDeque<Receive>| queue.iter().map(|receive| receive.deadline).min();
        let peers = self.peers.iter().flat_map(|(_, peer)| {
            let live = peer.inbound.messages().filter_map(|incoming| match incoming.body {
                Body::Into(receive) => Some(receive.deadline),
                _ => None,
            });
            let records = peer.out.records().filter(|record| !record.withdrawn);
            of(&peer.inbound.posted).into_iter().chain(live).chain(records.map(|record| record.deadline))
        });
        let sends = self.sends.iter().filter(|(_, send)| self.may_be_late(send));
        let sends = sends.map(|(_, send)| send.deadline);
        of(&self.any).into_iter().chain(peers).chain(sends).min().unwrap_or(Duration::MAX)
    }
}
