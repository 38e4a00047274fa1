//! How a lane comes up, and comes up again: both ends offer a queue pair by the control connection, connect it, and say
//! that it is ready.
//!
//! ```text
//!   Offer(epoch, address, taken) -->        <-- Offer(epoch, address, taken)
//!   connect                                     connect
//!   Ready(epoch) -->                        <-- Ready(epoch)
//! ```
//!
//! A lane's epoch counts its queue pairs. Whoever sees one fail closes it (nothing of it is on its way afterwards), and
//! offers the next; the other end closes its own when it hears that. An offer says which fragments were taken, so the rest is
//! posted again, none twice, none left out.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use shouter_netstack::time::Instant;

use super::fabric::{Address, Fabric, Fault, Sizes};
use super::lane::{MAX_WINDOW, Outstanding, Retry, Taken, Why};
use super::{Control, VerbsChannel};
use crate::channel::up::{Loss, PeerLoss};

/// Between two queue pairs of a lane, at first and at most.
const PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// A fragment that the peer had no room for is sent again after so long.
const NOT_READY: Duration = Duration::from_micros(100);

/// Where a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It has no queue pair; one is offered then, or when the control connection is there.
    Down(Option<Instant>),
    /// A queue pair is offered; the peer's offer is awaited.
    Offered,
    /// Connected; the peer is not known to be.
    Connected,
    /// In use.
    Up,
    /// Never to be used again.
    Over,
}

/// What goes by the control connection.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    Offer(Offer),
    Ready { lane: u32, epoch: u32 },
}

/// One end of a lane.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Offer {
    lane: u32,
    epoch: u32,
    lanes: u32,
    crc: bool,
    sizes: Sizes,
    address: Address,
    taken: u64,
    refused: u64,
}

impl<F: Fabric, C: Control> VerbsChannel<F, C> {
    /// A word of the peer by the control connection.
    pub(super) fn on_side(&mut self, now: Instant, index: usize, bytes: &[u8]) {
        let lane_of = |lane: u32| (lane < self.lanes as u32).then_some(index * self.lanes + lane as usize);
        let heard = match serde_json::from_slice(bytes) {
            Ok(Message::Offer(offer)) => match lane_of(offer.lane) {
                Some(at) => self.on_offer(now, at, &offer),
                None => Err(Fault::Settings),
            },
            Ok(Message::Ready { lane, epoch }) => match lane_of(lane) {
                Some(at) => {
                    self.on_ready(at, epoch);
                    Ok(())
                }
                None => Err(Fault::Settings),
            },
            Err(_) => Err(Fault::Protocol),
        };
        if let Err(why) = heard {
            self.lose(index, why);
        }
    }

    fn on_offer(&mut self, now: Instant, at: usize, offer: &Offer) -> Result<(), Fault> {
        let sizes = self.fabric.sizes();
        if (offer.lanes as usize, offer.crc, offer.sizes) != (self.lanes, self.crc, sizes) {
            return Err(Fault::Settings);
        }
        let Some(lane) = self.all.get_mut(at) else { return Err(Fault::Protocol) };
        if lane.state == State::Over || offer.epoch < lane.epoch {
            return Ok(());
        }
        if offer.epoch > lane.epoch {
            tracing::debug!(lane = at, epoch = offer.epoch, "the peer has closed a queue pair");
            lane.epoch = offer.epoch;
            lane.down_since.get_or_insert(now);
            self.fabric.close(at);
            self.offer(at)?;
        } else if matches!(lane.state, State::Down(_)) {
            self.offer(at)?;
        }
        let Some(lane) = self.all.get_mut(at) else { return Err(Fault::Protocol) };
        if lane.state != State::Offered {
            return Ok(());
        }
        let taken = Taken { count: offer.taken, refused: offer.refused };
        let mut returned = [None; MAX_WINDOW as usize];
        let mut places = returned.iter_mut();
        let released = &mut self.released;
        lane.sender
            .resume(
                taken,
                |token| released.push(token),
                |fragment| {
                    if let Some(place) = places.next() {
                        *place = Some(fragment);
                    }
                },
            )
            .map_err(|_| Fault::Protocol)?;
        for fragment in returned.into_iter().flatten() {
            self.keep(now, at, fragment);
        }
        if let Err(why) = self.fabric.connect(at, &offer.address) {
            tracing::debug!(lane = at, %why, "a queue pair was not connected; another will be tried");
            self.broken(now, at, why);
            return Ok(());
        }
        let Some(lane) = self.all.get_mut(at) else { return Err(Fault::Protocol) };
        lane.state = State::Connected;
        let ready = Message::Ready { lane: (at % self.lanes) as u32, epoch: lane.epoch };
        self.tell(at, &ready);
        Ok(())
    }

    fn on_ready(&mut self, at: usize, epoch: u32) {
        let Some(lane) = self.all.get_mut(at) else { return };
        if lane.epoch != epoch || lane.state != State::Connected {
            return;
        }
        lane.state = State::Up;
        lane.taken_before = lane.sender.acked();
        if epoch > 0 {
            tracing::info!(lane = at, epoch, "a queue pair was set up again");
        }
        // A queue pair fails rarely: this may allocate.
        let again: Vec<_> = lane.sender.outstanding().collect();
        for Outstanding { slot, len, lent } in again {
            self.take_in(at, slot, lent);
            self.fabric.write(at, slot, len);
            self.resent += 1;
        }
    }

    /// Makes a queue pair and tells the peer.
    fn offer(&mut self, at: usize) -> Result<(), Fault> {
        let address = self.fabric.open(at)?;
        let Some(lane) = self.all.get_mut(at) else { return Err(Fault::Protocol) };
        lane.state = State::Offered;
        let taken = lane.receiver.taken();
        lane.receiver.resume();
        let offer = Offer {
            lane: (at % self.lanes) as u32,
            epoch: lane.epoch,
            lanes: self.lanes as u32,
            crc: self.crc,
            sizes: self.fabric.sizes(),
            address,
            taken: taken.count,
            refused: taken.refused,
        };
        self.tell(at, &Message::Offer(offer));
        Ok(())
    }

    fn tell(&mut self, at: usize, message: &Message) {
        let Some(peer) = self.peers.get(at / self.lanes) else { return };
        // Numbers and addresses: this cannot fail.
        let Ok(bytes) = serde_json::to_vec(message) else { return };
        // In order with what waits.
        self.untold.push_back((peer.rank, bytes));
    }

    /// A queue pair has failed: closes it, and offers another in a while.
    pub(super) fn broken(&mut self, now: Instant, at: usize, why: Fault) {
        let Some(lane) = self.all.get_mut(at).filter(|lane| lane.state != State::Over) else { return };
        let rank = self.peers.get(at / self.lanes).map(|peer| peer.rank);
        if lane.down_since.is_none() {
            tracing::warn!(?rank, lane = at % self.lanes, %why, "a queue pair has failed; it is set up again");
        }
        lane.down_since.get_or_insert(now);
        lane.last_fault = why;
        lane.pause = (lane.pause * 2).clamp(PAUSE, MAX_PAUSE);
        let due = now + lane.pause;
        lane.state = State::Down(Some(due));
        lane.epoch += 1;
        self.fabric.close(at);
        if why == Fault::RemoteAccess
            && let Some(peer) = self.peers.get_mut(at / self.lanes)
        {
            // Perhaps a key that is none any more: the slots will do.
            peer.windows.clear();
        }
        self.wake(due);
    }

    /// Keeps a fragment that came back until it goes out again.
    pub(super) fn keep(&mut self, now: Instant, at: usize, fragment: super::lane::Returned) {
        self.take_in(at, fragment.slot, fragment.lent);
        let bytes = self.fabric.outgoing(at, fragment.slot).get(..fragment.len as usize);
        let bytes = bytes.unwrap_or_default().into();
        let (due, refusals) = match fragment.why {
            Why::Damaged => (now, fragment.refusals),
            // Ever more seldom: a peer that goes on refusing is not sent to for ever.
            Why::NotReady => {
                let wait = NOT_READY.saturating_mul(1 << fragment.refusals.min(30));
                (now + wait, fragment.refusals.saturating_add(1))
            }
        };
        if let Some(peer) = self.peers.get_mut(at / self.lanes) {
            let place = peer.retries.partition_point(|other| other.at <= due);
            peer.retries.insert(place, Retry { at: due, bytes, refusals });
        }
        self.wake(due);
    }

    /// Sees to it that `tend` is called at `at`.
    pub(super) fn wake(&mut self, at: Instant) {
        self.tend_at = Some(self.tend_at.map_or(at, |other| other.min(at)));
    }

    /// Offers what is to be offered, gives up on what is down for too long, and sends what came back.
    pub(super) fn tend(&mut self, now: Instant) {
        self.tend_at = None;
        for index in 0..self.peers.len() {
            let Some(peer) = self.peers.get_mut(index).filter(|peer| !peer.lost) else { continue };
            if !peer.greeted {
                if self.control.is_connected(peer.rank) {
                    peer.greeted = true;
                } else if now >= self.ready_until {
                    self.lose(index, Fault::RetryExceeded);
                    continue;
                } else {
                    self.wake(now + PAUSE);
                    continue;
                }
            }
            for at in index * self.lanes..(index + 1) * self.lanes {
                if let Err(why) = self.tend_lane(now, at) {
                    self.lose(index, why);
                    break;
                }
            }
            self.retry(now, index);
        }
    }

    fn tend_lane(&mut self, now: Instant, at: usize) -> Result<(), Fault> {
        let Some(lane) = self.all.get_mut(at) else { return Ok(()) };
        if lane.state == State::Up {
            // It counts as up for good when the peer has taken something, or nothing is to be taken.
            let moved = lane.sender.in_flight() == 0 || lane.sender.acked() > lane.taken_before;
            if lane.down_since.is_some() && moved {
                lane.down_since = None;
                lane.pause = Duration::ZERO;
            }
        }
        if let Some(since) = lane.down_since {
            let until = since + self.patience;
            if now >= until {
                return Err(lane.last_fault);
            }
            self.wake(until.min(now + MAX_PAUSE));
        }
        let Some(lane) = self.all.get(at) else { return Ok(()) };
        if let State::Down(due) = lane.state {
            match due {
                Some(due) if due > now => self.wake(due),
                _ => self.offer(at)?,
            }
        }
        Ok(())
    }

    /// A peer cannot be reached any more.
    pub(super) fn lose(&mut self, index: usize, why: Fault) {
        let Some(peer) = self.peers.get_mut(index).filter(|peer| !peer.lost) else { return };
        peer.lost = true;
        peer.retries.clear();
        self.lost.push(PeerLoss { rank: peer.rank, why: Loss::Verbs(why) });
        self.end_lanes(index);
    }

    /// Ends all queue pairs to a peer.
    pub(super) fn end_lanes(&mut self, index: usize) {
        if let Some(rank) = self.peers.get(index).map(|peer| peer.rank) {
            self.untold.retain(|(to, _)| *to != rank);
        }
        self.forget_device(Some(index));
        for at in index * self.lanes..(index + 1) * self.lanes {
            self.fabric.close(at);
            if let Some(lane) = self.all.get_mut(at) {
                lane.state = State::Over;
                lane.sender.abandon();
            }
        }
    }
}
