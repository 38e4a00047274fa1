//! The up grid: the channels from this leader to the leaders of other nodes. One is the usual case; there are several where not all
//! hosts of a job reach each other in the same way.

use std::any::Any;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use shouter_netstack::device::{Announce, DeviceCounters, Wakes};
use shouter_netstack::time::Instant;
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::Header;
use shouter_reducer::memory::TensorRegion;
use shouter_reducer::transport::{LEAST_FRAGMENT, Landing, PayloadRange, SendError, SendToken, Transport};

use super::by_rank::ByRank;
use super::local::Local;
use super::loss::PeerLoss;
use super::shm::NodeSegment;
use super::verbs::{Digest, Export, Reach, RegisterError, Registered, Registering};
use super::{Inbox, Links};

/// A leader elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress {
    /// Its rank.
    pub rank: Rank,
    /// Its address on the data network.
    pub ip: Ipv4Addr,
    /// The TCP port at which it accepts connections, where the channel makes some.
    pub port: u16,
    /// Our address on the way to it.
    pub local_ip: Ipv4Addr,
}

/// A channel to some leaders of other nodes. It is polled and never blocks.
pub trait Channel: Transport + Any {
    /// Receives and hands fragments to the inbox; the inbox's replies go out with the same poll's
    /// [`transmit`](Self::transmit). True if anything came.
    fn receive(&mut self, now: Instant, inbox: &mut dyn Inbox) -> bool;

    /// Sends posted messages and those that the protocol requires. True if anything was sent.
    fn transmit(&mut self, now: Instant, inbox: &mut dyn Inbox) -> bool;

    /// When the next poll is needed although nothing may arrive.
    fn next_deadline(&self) -> Option<Instant>;

    /// A thread is about to wait: what arrives from now on is announced at descriptors, if all that brings it does that; see
    /// [`Poller::arm`](crate::runtime::Poller::arm).
    fn arm(&mut self, _announce: &mut Announce<'_>) -> Wakes {
        Wakes::Never
    }

    /// The wait is over.
    fn disarm(&mut self) {}

    /// A peer that was lost since the last call.
    fn take_lost(&mut self) -> Option<PeerLoss>;

    /// Posts a control message to every peer that is still there, as soon as there is room.
    fn broadcast(&mut self, header: &Header);

    /// Gives up everything that waits for an acknowledgement or for a device: afterwards nothing refers to any memory.
    /// Control messages still get through.
    fn fence(&mut self);

    /// Whether there is, or was, a connection with this leader, or one is being made. A channel without first uses says so of all.
    fn is_used(&self, _: Rank) -> bool {
        true
    }

    /// How much of what was sent to this leader it has acknowledged, in a unit of the channel's own: more of it shows that packets go there and
    /// back. 0 for a leader that is lost, or none of the channel's.
    fn acknowledged_by(&self, rank: Rank) -> u64;

    /// How many leaders it was used with, where the channel counts them.
    fn used(&self) -> usize {
        0
    }

    /// All leaders have tested the paths to each other: state that was made for that alone goes.
    fn joined(&mut self) {}

    /// Announces a graceful close to the peers that the channel was used with, where they would take the end of its connections for a failure.
    fn depart(&mut self) {}

    /// Whether everything that was sent has been acknowledged, by the peers that are not lost.
    fn is_drained(&self) -> bool {
        self.is_drained_to(&|_| true)
    }

    /// The same for those peers only that are `awaited`.
    fn is_drained_to(&self, awaited: &dyn Fn(Rank) -> bool) -> bool;

    /// Whether a connection for control messages with a peer that is `awaited`, and not lost, is still being made.
    fn is_connecting_to(&self, _awaited: &dyn Fn(Rank) -> bool) -> bool {
        false
    }

    /// The registry of memory that the channel's device accesses directly; `None` if the channel copies all payloads.
    fn registry(&mut self) -> Option<&mut dyn Registry> {
        None
    }

    /// Datagrams, segments or fragments sent again.
    fn resent(&self) -> u64;

    /// Datagrams declared lost, where the channel counts them.
    fn lost(&self) -> u64 {
        0
    }

    /// Paths that are left out because they lose what the others deliver, where the channel has several.
    fn paths_out(&self) -> u64 {
        0
    }

    /// Connections made again after one has failed, where the channel does so.
    fn reconnected(&self) -> u64 {
        0
    }

    /// The last resent message and its receiver, where the channel records them.
    fn last_resent(&self) -> Option<(Rank, SendToken)> {
        None
    }

    /// Datagrams, segments or fragments dropped because their CRC or checksum was wrong.
    fn crc_dropped(&self) -> u64;

    /// Datagrams dropped because they had come before, or may have, which sealed sessions know of their numbers; none over other channels.
    fn replayed(&self) -> u64 {
        0
    }

    /// The sum of the counters of all ports; zero for a channel without ports.
    fn device_counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }

    /// The links of its ports; none for a channel without ports.
    fn links(&self) -> Links {
        Links::default()
    }

    /// The addresses of those ports whose link is down.
    fn addresses_down(&self) -> Vec<IpAddr> {
        vec![]
    }
}

/// Memory that a channel's device, an RDMA device or a NIC, reads where it lies.
pub trait Registry {
    /// Whether peers write to the memory, too, and it may be another device's: RDMA.
    fn is_remote(&self) -> bool;

    /// A closure that registers memory, so that the device reads it without a copy, once it is
    /// [adopted](Self::adopt); `None` if it is copied as before. It makes a system call that touches every page, and so
    /// runs off the critical path.
    ///
    /// # Safety
    /// The memory stays mapped until the result of this is dropped: by [`unregister`](Self::unregister)'s caller, or with the channel.
    #[allow(unsafe_code)]
    unsafe fn registering(&mut self, memory: TensorRegion) -> Option<Registering>;

    /// Takes the result of [`registering`](Self::registering); true if the memory is registered from now on.
    fn adopt(&mut self, memory: TensorRegion, registered: Result<Registered, RegisterError>) -> bool;

    /// Registers memory at once; false if it is copied as before.
    ///
    /// # Safety
    /// As for [`registering`](Self::registering).
    #[allow(unsafe_code)]
    unsafe fn register(&mut self, memory: TensorRegion) -> bool {
        // SAFETY: passed on to the caller.
        let registering = unsafe { self.registering(memory) };
        registering.is_some_and(|registering| self.adopt(memory, registering()))
    }

    /// Registers memory of a device with the NIC, which reads and writes it by its dma-buf or by its address.
    ///
    /// # Errors
    /// [`RegisterError`]; nothing has changed then, and nothing of that memory may be named to the channel.
    ///
    /// # Safety
    /// The memory stays allocated until [`unregister`](Self::unregister), or no operation names it any more.
    #[allow(unsafe_code)]
    unsafe fn register_device(
        &mut self,
        _memory: TensorRegion,
        _export: Option<Export>,
    ) -> Result<Reach, RegisterError> {
        Err(RegisterError::Refused)
    }

    /// Forgets memory that begins at `address`, if it is registered. The registration ends with the drop of the
    /// returned value, which may take long. Nothing may be under way from there.
    fn unregister(&mut self, address: usize) -> Option<Registered>;

    /// From now on payloads may lie in a device's memory. Once.
    fn attach_digest(&mut self, _digest: Box<dyn Digest + Send>) {}
}

/// The transports to all other ranks: the channels to the leaders of other nodes (none on a rank that is no leader, or whose
/// node is the only one), and, where nodes have several ranks, the rings between those of this node.
#[derive(Default)]
pub struct UpChannels {
    channels: Vec<Box<dyn Channel + Send>>,
    /// Indices into `channels`, where there are several.
    by_rank: ByRank,
    /// Messages that no channel takes as they are. It goes after the channels, which send from its rings.
    local: Option<Box<Local>>,
    /// What this host's ports are called, by their addresses.
    ports: Vec<(IpAddr, Box<str>)>,
}

impl<C: Channel + Send> From<C> for UpChannels {
    fn from(channel: C) -> Self {
        Self { channels: vec![Box::new(channel)], ..Self::default() }
    }
}

impl UpChannels {
    /// The channels to all of these ranks, each by the one that is given with it.
    pub fn new(channels: Vec<(Box<dyn Channel + Send>, Vec<Rank>)>) -> Self {
        let all = channels.iter().zip(0..);
        let by_rank =
            all.flat_map(|((_, ranks), index)| ranks.iter().map(move |rank| (*rank, index))).collect();
        let channels = channels.into_iter().map(|(channel, _)| channel).collect();
        Self { channels, by_rank, ..Self::default() }
    }

    /// The same with names for this host's ports, by their addresses.
    #[must_use]
    pub(crate) fn with_ports(self, ports: Vec<(IpAddr, Box<str>)>) -> Self {
        Self { ports, ..self }
    }

    /// From now on messages reach every rank of the group: those of this rank's node by the memory that it shares, and those of other
    /// nodes by its leader. Once, before anything is sent.
    pub(crate) fn reach_all(&mut self, node: Arc<NodeSegment>, grid: Grid, rank: Rank) {
        let leaders = (0..grid.nodes()).map(|node| grid.leader_of(node)).filter(|leader| *leader != rank);
        let fragment = || leaders.map(|leader| self.max_fragment(leader)).min();
        let local = Local::new(node, grid, rank, fragment);
        self.local = Some(Box::new(local));
    }

    /// Whether this rank has no channel to other nodes of its own.
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// The channel to a peer. A single channel checks by itself that the rank is a peer.
    #[inline]
    fn to(&mut self, rank: Rank) -> Option<&mut (dyn Channel + Send)> {
        channel_to(&mut self.channels, &self.by_rank, rank)
    }

    /// The carrier of messages to a rank that no channel reaches as they are.
    #[inline]
    fn indirect(&mut self, to: Rank) -> Option<&mut Local> {
        self.local.as_deref_mut().filter(|local| !local.is_direct(to))
    }

    /// Copies a small message to a rank of this host, where there is room for it; false if it was not sent.
    #[inline]
    pub(crate) fn send_at_once(&mut self, to: Rank, header: &Header, payload: PayloadRange) -> bool {
        self.local.as_mut().is_some_and(|local| local.send_at_once(to, header, payload))
    }

    /// Offers the next message of a rank of this host, for which it looks so many times; whether it was taken.
    #[inline]
    pub(crate) fn take_next(
        &mut self,
        from: Rank,
        looks: u32,
        take: impl FnMut(&Header, &[u8]) -> bool,
    ) -> bool {
        self.local.as_mut().is_some_and(|local| local.take_next(from, looks, take))
    }

    /// Receives messages from all ranks; see [`Channel::receive`].
    #[inline]
    pub fn receive(&mut self, now: Instant, inbox: &mut dyn Inbox) -> bool {
        let Some(local) = &mut self.local else { return receive(&mut self.channels, now, inbox) };
        let any = local.receive(inbox);
        if self.channels.is_empty() {
            return any;
        }
        receive(&mut self.channels, now, &mut local.through(inbox)) | any
    }

    /// Sends the messages posted to all ranks; see [`Channel::transmit`].
    #[inline]
    pub fn transmit(&mut self, now: Instant, inbox: &mut dyn Inbox) -> bool {
        let Self { channels, by_rank, local: Some(local), .. } = self else {
            return transmit(&mut self.channels, now, inbox);
        };
        let any = local.transmit(inbox, |leader, header, payload, token| {
            let channel = channel_to(channels, by_rank, leader).ok_or(SendError::PeerFailed)?;
            channel.send(leader, header, payload, token)
        });
        if channels.is_empty() {
            return any;
        }
        transmit(channels, now, &mut local.through(inbox)) | any
    }

    /// When the next poll is needed although nothing may arrive.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.channels.iter().filter_map(|channel| channel.next_deadline()).min()
    }

    /// A thread is about to wait; see [`Channel::arm`].
    pub fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        let armed = self.channels.iter_mut().map(|channel| channel.arm(announce)).reduce(Wakes::and);
        let wakes = armed.unwrap_or_default();
        // The rings of the host's ranks are polled.
        if self.local.is_some() { wakes.with_polling() } else { wakes }
    }

    /// The wait is over.
    pub fn disarm(&mut self) {
        self.channels.iter_mut().for_each(|channel| channel.disarm());
    }

    /// A peer that was lost since the last call.
    #[inline]
    pub fn take_lost(&mut self) -> Option<PeerLoss> {
        let lost = self.channels.iter_mut().find_map(|channel| channel.take_lost());
        lost.or_else(|| self.local.as_mut().and_then(|local| local.take_lost()))
    }

    /// Posts a control message to every leader that is still there, as soon as there is room.
    pub fn broadcast(&mut self, header: &Header) {
        self.channels.iter_mut().for_each(|channel| channel.broadcast(header));
    }

    /// Gives up everything that is under way; see [`Channel::fence`].
    pub fn fence(&mut self) {
        self.channels.iter_mut().for_each(|channel| channel.fence());
        self.local.iter_mut().for_each(|local| local.fence());
    }

    /// All leaders have tested the paths to each other; see [`Channel::joined`].
    pub fn joined(&mut self) {
        self.channels.iter_mut().for_each(|channel| channel.joined());
    }

    /// Whether the channel to this leader was used; see [`Channel::is_used`].
    pub fn is_used(&self, rank: Rank) -> bool {
        self.channel_of(rank).is_some_and(|channel| channel.is_used(rank))
    }

    /// How much this leader has acknowledged; see [`Channel::acknowledged_by`].
    pub(crate) fn acknowledged_by(&self, rank: Rank) -> u64 {
        self.channel_of(rank).map_or(0, |channel| channel.acknowledged_by(rank))
    }

    /// The channel to a peer. A single channel checks by itself that the rank is a peer.
    #[inline]
    fn channel_of(&self, rank: Rank) -> Option<&(dyn Channel + Send)> {
        match &*self.channels {
            [only] => Some(&**only),
            all => Some(&**all.get(self.by_rank.get(rank)?)?),
        }
    }

    /// Announces a graceful close to the peers.
    pub fn depart(&mut self) {
        self.channels.iter_mut().for_each(|channel| channel.depart());
    }

    /// Whether everything that was sent has been acknowledged, by the peers that are not lost.
    pub fn is_drained(&self) -> bool {
        self.is_drained_to(&|_| true)
    }

    /// The same for those peers only that are `awaited`; see [`Channel::is_drained_to`].
    pub fn is_drained_to(&self, awaited: &dyn Fn(Rank) -> bool) -> bool {
        self.channels.iter().all(|channel| channel.is_drained_to(awaited))
            && self.local.as_ref().is_none_or(|local| local.is_drained_to(awaited))
    }

    /// Whether a channel is still being made to a leader that is `awaited`; see [`Channel::is_connecting_to`].
    pub fn is_connecting_to(&self, awaited: &dyn Fn(Rank) -> bool) -> bool {
        self.channels.iter().any(|channel| channel.is_connecting_to(awaited))
    }

    /// The registry of memory that a channel's device accesses directly, if one does: one channel reaches all peers
    /// that RDMA reaches, and one all that NICs do. Where there are both, RDMA's.
    pub fn registry(&mut self) -> Option<&mut dyn Registry> {
        self.channels.iter_mut().find_map(|channel| channel.registry())
    }

    /// The same for memory of devices, which no other channel can send.
    pub fn device_registry(&mut self) -> Option<&mut dyn Registry> {
        match &mut *self.channels {
            [only] => only.registry().filter(|registry| registry.is_remote()),
            _ => None,
        }
    }

    /// How many leaders the channels were used with.
    pub fn used(&self) -> usize {
        self.channels.iter().map(|channel| channel.used()).sum()
    }

    /// Datagrams, segments or fragments sent again.
    pub fn resent(&self) -> u64 {
        self.channels.iter().map(|channel| channel.resent()).sum()
    }

    /// Datagrams declared lost, where the channel counts them.
    pub fn lost(&self) -> u64 {
        self.channels.iter().map(|channel| channel.lost()).sum()
    }

    /// Paths that are left out because they lose what the others deliver, over all peers.
    pub fn paths_out(&self) -> u64 {
        self.channels.iter().map(|channel| channel.paths_out()).sum()
    }

    /// Connections made again after one has failed, where the channel does so.
    pub fn reconnected(&self) -> u64 {
        self.channels.iter().map(|channel| channel.reconnected()).sum()
    }

    /// The last resent message and its receiver, where the channel records them.
    pub fn last_resent(&self) -> Option<(Rank, SendToken)> {
        self.channels.iter().find_map(|channel| channel.last_resent())
    }

    /// Datagrams, segments or fragments dropped because their CRC or checksum was wrong.
    pub fn crc_dropped(&self) -> u64 {
        self.channels.iter().map(|channel| channel.crc_dropped()).sum()
    }

    /// Datagrams of sealed sessions dropped because they had come before.
    pub fn replayed(&self) -> u64 {
        self.channels.iter().map(|channel| channel.replayed()).sum()
    }

    /// The sum of the counters of all ports.
    pub fn device_counters(&self) -> DeviceCounters {
        super::sum(self.channels.iter().map(|channel| channel.device_counters()))
    }

    /// The links of all ports.
    pub fn links(&self) -> Links {
        self.channels.iter().map(|channel| channel.links()).fold(Links::default(), |sum, one| Links {
            down: sum.down + one.down,
            losses: sum.losses + one.losses,
        })
    }

    /// The ports whose link is down, by name and address; `None` if all are up.
    #[cold]
    pub fn ports_down(&self) -> Option<String> {
        let name = |address: &IpAddr| {
            self.ports.iter().find(|(of_port, _)| of_port == address).map(|(_, name)| name)
        };
        let text = |address: IpAddr| match name(&address) {
            Some(name) => format!("{name} ({address})"),
            None => address.to_string(),
        };
        let down = self.channels.iter().flat_map(|channel| channel.addresses_down()).map(text);
        let down = down.collect::<Vec<_>>().join(", ");
        (!down.is_empty()).then_some(down)
    }

    /// The memory that its host shares.
    #[cfg(test)]
    pub(super) fn local_segment(&self) -> Arc<NodeSegment> {
        self.local.as_ref().expect("there are ranks beside").segment()
    }

    /// The channel, if it is the only one and of this type.
    #[cfg(test)]
    pub(crate) fn only<C: Channel>(&self) -> Option<&C> {
        let [only] = &*self.channels else { return None };
        let only: &dyn Any = &**only;
        only.downcast_ref()
    }
}

/// The channel to a peer among these.
#[inline]
fn channel_to<'a>(
    channels: &'a mut [Box<dyn Channel + Send>],
    by_rank: &ByRank,
    rank: Rank,
) -> Option<&'a mut (dyn Channel + Send)> {
    match channels {
        [only] => Some(&mut **only),
        all => Some(&mut **all.get_mut(by_rank.get(rank)?)?),
    }
}

#[inline]
fn receive(channels: &mut [Box<dyn Channel + Send>], now: Instant, inbox: &mut dyn Inbox) -> bool {
    channels.iter_mut().fold(false, |any, channel| channel.receive(now, inbox) | any)
}

#[inline]
fn transmit(channels: &mut [Box<dyn Channel + Send>], now: Instant, inbox: &mut dyn Inbox) -> bool {
    channels.iter_mut().fold(false, |any, channel| channel.transmit(now, inbox) | any)
}

impl Transport for UpChannels {
    #[inline]
    fn max_fragment(&self, to: Rank) -> usize {
        if let Some(local) = self.local.as_ref().filter(|local| !local.is_direct(to)) {
            return local.max_fragment(to);
        }
        self.channel_of(to).map_or(LEAST_FRAGMENT, |channel| channel.max_fragment(to))
    }

    #[inline]
    fn send(
        &mut self,
        to: Rank,
        header: &Header,
        payload: PayloadRange,
        token: SendToken,
    ) -> Result<(), SendError> {
        if let Some(local) = self.indirect(to) {
            return local.send(to, header, payload, token);
        }
        self.to(to).ok_or(SendError::PeerFailed)?.send(to, header, payload, token)
    }

    /// With several channels the landing is left out: another of them may resend bytes from there, until they are
    /// acknowledged.
    #[inline]
    fn credit(&mut self, to: Rank, header: &Header, landing: Option<Landing>) -> Result<(), SendError> {
        if let Some(local) = self.indirect(to) {
            return local.send(to, header, PayloadRange::empty(), SendToken::CONTROL);
        }
        let landing = landing.filter(|_| self.channels.len() == 1);
        self.to(to).ok_or(SendError::PeerFailed)?.credit(to, header, landing)
    }

    #[inline]
    fn request_ack(&mut self, to: Rank) {
        if self.indirect(to).is_none()
            && let Some(channel) = self.to(to)
        {
            channel.request_ack(to);
        }
    }
}
