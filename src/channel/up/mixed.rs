//! Several channels as one: where not all hosts of a job reach each other in the same way.

use shouter_netstack::device::{Device, DeviceCounters};
use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Header;
use shouter_reducer::memory::Region;
use shouter_reducer::transport::{Landing, PayloadRange, SendError, Token, Transport};

use super::{PeerLoss, UpChannel};
use crate::channel::Inbox;
use crate::channel::by_rank::ByRank;
use crate::channel::verbs::{RegisterError, Registered, Registering};

/// Channels, each to some of the leaders.
pub struct Mixed<D: Device> {
    channels: Vec<UpChannel<D>>,
    /// Indices into `channels`.
    by_rank: ByRank,
}

impl<D: Device> Mixed<D> {
    pub(super) fn new(channels: Vec<(UpChannel<D>, Vec<Rank>)>) -> Self {
        let all = channels.iter().zip(0..);
        let by_rank =
            all.flat_map(|((_, ranks), index)| ranks.iter().map(move |rank| (*rank, index))).collect();
        Self { channels: channels.into_iter().map(|(channel, _)| channel).collect(), by_rank }
    }

    fn of(&self, rank: Rank) -> Option<&UpChannel<D>> {
        self.channels.get(self.by_rank.get(rank)?)
    }

    fn of_mut(&mut self, rank: Rank) -> Option<&mut UpChannel<D>> {
        self.channels.get_mut(self.by_rank.get(rank)?)
    }

    pub(super) fn receive(&mut self, now: Instant, inbox: &mut impl Inbox) -> bool {
        self.channels.iter_mut().fold(false, |any, channel| channel.receive(now, inbox) | any)
    }

    pub(super) fn transmit(&mut self, now: Instant, inbox: &mut impl Inbox) -> bool {
        self.channels.iter_mut().fold(false, |any, channel| channel.transmit(now, inbox) | any)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.channels.iter().filter_map(UpChannel::next_deadline).min()
    }

    pub(super) fn take_lost(&mut self) -> Option<PeerLoss> {
        self.channels.iter_mut().find_map(UpChannel::take_lost)
    }

    pub(super) fn broadcast(&mut self, header: &Header) {
        self.channels.iter_mut().for_each(|channel| channel.broadcast(header));
    }

    pub(super) fn fence(&mut self) {
        self.channels.iter_mut().for_each(UpChannel::fence);
    }

    pub(super) fn depart(&mut self) {
        self.channels.iter_mut().for_each(UpChannel::depart);
    }

    pub(super) fn takes_memory(&self) -> bool {
        self.channels.iter().any(UpChannel::takes_memory)
    }

    /// The one that makes use of memory that it knows: of all that RDMA reaches there is one channel.
    fn takes_it(&mut self) -> Option<&mut UpChannel<D>> {
        self.channels.iter_mut().find(|channel| channel.takes_memory())
    }

    /// # Safety
    /// As for [`UpChannel::registering`].
    #[allow(unsafe_code)]
    pub(super) unsafe fn registering(&mut self, memory: Region) -> Option<Registering> {
        // SAFETY: passed on to the caller.
        unsafe { self.takes_it()?.registering(memory) }
    }

    pub(super) fn adopt(&mut self, memory: Region, registered: Result<Registered, RegisterError>) -> bool {
        self.takes_it().is_some_and(|channel| channel.adopt(memory, registered))
    }

    pub(super) fn unregister(&mut self, address: usize) -> Option<Registered> {
        self.takes_it()?.unregister(address)
    }

    pub(super) fn is_drained(&self) -> bool {
        self.channels.iter().all(UpChannel::is_drained)
    }

    pub(super) fn resent(&self) -> u64 {
        self.channels.iter().map(UpChannel::resent).sum()
    }

    pub(super) fn lost(&self) -> u64 {
        self.channels.iter().map(UpChannel::lost).sum()
    }

    pub(super) fn last_resent(&self) -> Option<(Rank, Token)> {
        self.channels.iter().find_map(UpChannel::last_resent)
    }

    pub(super) fn crc_dropped(&self) -> u64 {
        self.channels.iter().map(UpChannel::crc_dropped).sum()
    }

    pub(super) fn device_counters(&self) -> DeviceCounters {
        crate::channel::sum(self.channels.iter().map(UpChannel::device_counters))
    }
}

impl<D: Device> Transport for Mixed<D> {
    fn max_fragment(&self, to: Rank) -> usize {
        self.of(to).map_or(64, |channel| channel.max_fragment(to))
    }

    #[inline]
    fn send(
        &mut self,
        to: Rank,
        header: &Header,
        payload: PayloadRange,
        token: Token,
    ) -> Result<(), SendError> {
        self.of_mut(to).ok_or(SendError::PeerFailed)?.send(to, header, payload, token)
    }

    /// Without the landing: another of the channels may send what lies there again, until that is acknowledged.
    fn credit(&mut self, to: Rank, header: &Header, _: Option<Landing>) -> Result<(), SendError> {
        self.of_mut(to).ok_or(SendError::PeerFailed)?.credit(to, header, None)
    }

    fn hurry(&mut self, to: Rank) {
        if let Some(channel) = self.of_mut(to) {
            channel.hurry(to);
        }
    }
}
