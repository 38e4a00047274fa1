//! Messengers over a simulated network.
#![allow(unsafe_code)]

use super::super::*;
use crate::dtype::DType;
pub(super) use crate::simulation::{Buffer, Faults};
use crate::simulation::{Endpoint, Net, Port};
use crate::transport::SendToken;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;

impl Endpoint for Messenger {
    fn on_packet(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        self.on_message(header, payload)
    }
    fn on_released(&mut self, token: SendToken) {
        Machine::on_released(self, token);
    }
}

/// The ranks of a group and the network between them.
pub(super) struct Group {
    pub(super) ranks: Vec<Messenger>,
    pub(super) net: Net,
    pub(super) rng: SmallRng,
    pub(super) now: Duration,
    pub(super) ended: Vec<HashMap<TransferId, Result<Status, TransferError>>>,
}

impl Group {
    pub(super) fn new(seed: u64, ranks: u32, faults: Faults, change: impl Fn(&mut MessengerConfig)) -> Self {
        let messenger = |rank| {
            let mut config = MessengerConfig::new(Rank(rank), ranks);
            change(&mut config);
            // SAFETY: nothing reads what messengers name once they are gone.
            unsafe { Messenger::new(config) }
        };
        let net = Net::new(seed, faults, |header, _, token| {
            assert!(header.kind.is_p2p() && (token.is_p2p() || token == SendToken::CONTROL));
        });
        Self {
            ranks: (0..ranks).map(messenger).collect(),
            net,
            rng: SmallRng::seed_from_u64(seed),
            now: Duration::ZERO,
            ended: vec![HashMap::new(); ranks as usize],
        }
    }

    /// Sends the elements of a buffer from one rank to another.
    pub(super) fn send(&mut self, from: u32, to: u32, tag: u32, buffer: &Buffer) -> TransferId {
        self.try_send(from, send(to, tag, buffer)).unwrap()
    }

    pub(super) fn try_send(&mut self, from: u32, request: SendRequest) -> Result<TransferId, PostError> {
        self.ranks[from as usize].start_send(request)
    }

    pub(super) fn receive(
        &mut self,
        on: u32,
        from: Option<u32>,
        tag: Option<u32>,
        buffer: &Buffer,
    ) -> TransferId {
        self.ranks[on as usize].start_receive(receive(from, tag, buffer)).unwrap()
    }

    /// Sends in one call, where nothing stands in its way.
    pub(super) fn send_at_once(&mut self, from: u32, request: &SendRequest) -> Option<Status> {
        let Self { ranks, net, .. } = self;
        let (pair, fragment) = ((Rank(from), request.to), net.fragment[request.to.0 as usize % 2]);
        ranks[from as usize]
            .send_at_once(request, fragment, |header, payload| net.send_copy(pair, header, payload))
    }

    /// Receives in one call what the network brings, where nothing stands in its way.
    pub(super) fn receive_at_once(&mut self, on: u32, request: &ReceiveRequest) -> Option<Status> {
        let Self { ranks, net, rng, .. } = self;
        let (from, messenger) = (request.from?, &mut ranks[on as usize]);
        let mut status = None;
        if messenger.may_receive_at_once(from) {
            net.offer(rng, (from, Rank(on)), |header, payload| {
                status = messenger.receive_at_once((from, request), header, payload);
                status.is_some()
            });
        }
        status
    }

    /// Polls one rank; whether it did anything.
    pub(super) fn poll(&mut self, rank: usize) -> bool {
        self.now += Duration::from_micros(self.rng.random_range(0..50));
        let progress = self.ranks[rank].poll(self.now, &mut Port(&mut self.net, Rank(rank as u32)));
        self.take(rank) || progress.worked
    }

    fn take(&mut self, rank: usize) -> bool {
        let mut any = false;
        while let Some(Ended { id, result }) = self.ranks[rank].take_ended() {
            assert!(self.ended[rank].insert(id, result).is_none(), "{id:?} of rank {rank} ended twice");
            any = true;
        }
        any
    }

    /// Delivers or acknowledges one packet; whether there was one.
    pub(super) fn network(&mut self) -> bool {
        self.net.step(&mut self.rng, &mut self.ranks)
    }

    /// Polls and delivers until nothing happens any more.
    pub(super) fn settle(&mut self) {
        let mut idle = 0;
        while idle < 3 {
            let mut any = false;
            for rank in 0..self.ranks.len() {
                any |= self.poll(rank);
            }
            while self.network() {
                any = true;
            }
            if self.net.packets.is_empty() && self.ranks.iter().all(|rank| !rank.has_work()) && !any {
                // Reports that are due later are posted now.
                self.now += Duration::from_millis(1);
                idle += 1;
            } else {
                idle = if any { 0 } else { idle + usize::from(self.net.dead.is_some()) };
            }
        }
    }

    /// How a transfer has ended.
    pub(super) fn result(&self, rank: u32, id: TransferId) -> Option<&Result<Status, TransferError>> {
        self.ended[rank as usize].get(&id)
    }

    /// Nothing is kept any more, and every message was taken well.
    pub(super) fn assert_given_back(&self, what: &str) {
        for messenger in &self.ranks {
            assert_eq!(messenger.running(), 0, "{what}");
            assert_eq!(messenger.sends.iter().count(), 0, "{what}");
            assert!(messenger.any.is_empty(), "{what}");
            for (rank, peer) in messenger.peers.iter() {
                let room = messenger.common.config.room_bytes;
                assert_eq!(peer.out.room(room), room, "{what}: what {rank} may keep");
                assert_eq!(peer.out.records().count() + peer.out.queue.len(), 0, "{what}");
                assert!(
                    peer.inbound.messages().next().is_none() && peer.inbound.waiting.is_empty(),
                    "{what}"
                );
                assert_eq!((peer.inbound.held(), peer.inbound.posted.len()), (0, 0), "{what}");
            }
            assert_eq!(messenger.counters().malformed, 0, "{what}");
        }
        assert!(self.net.refused.is_empty(), "{what}: {:?}", self.net.refused);
    }
}

/// A send that may end early.
pub(super) fn send(to: u32, tag: u32, buffer: &Buffer) -> SendRequest {
    let data = buffer.region;
    let (dtype, deadline) = (DType::U8, Duration::MAX);
    SendRequest { to: Rank(to), tag, dtype, data, held: false, synchronous: false, deadline }
}

pub(super) fn receive(from: Option<u32>, tag: Option<u32>, buffer: &Buffer) -> ReceiveRequest {
    let into = buffer.region;
    ReceiveRequest { from: from.map(Rank), tag, dtype: DType::U8, into, deadline: Duration::MAX }
}
