//! Streams of our own TCP, over the ports of one stack.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use shouter_netstack::device::{Announce, Device, DeviceCounters, Wakes};
use shouter_netstack::region::Extent;
use shouter_netstack::stack::Stack;
use shouter_netstack::tcp::{self, Chunk, ConnectionId, Error, KeepAlive, ListenerId, ReleaseToken};
use shouter_netstack::time::Instant;

use super::StreamChannel;
use super::share::Load;
use super::streams::{ConnectError, ConnectionInfo, ListenError, StreamEvent, Streams};
use crate::channel::Links;

/// The TCP options of a group whose dead ranks are found after `dead_after`.
pub fn tcp_options(dead_after: Duration) -> tcp::Options {
    let interval = (dead_after / 8).clamp(Duration::from_millis(1), Duration::from_secs(1));
    let idle = dead_after.saturating_sub(interval * 4).max(interval);
    tcp::Options {
        // Else a pause on the way would be longer than the time after which the peer counts as dead.
        max_rto: (dead_after / 8).max(Duration::from_millis(20)),
        keep_alive: Some(KeepAlive { idle, interval, probes: 4 }),
        user_timeout: Some(dead_after),
        ..tcp::Options::group()
    }
}

/// A stack whose TCP endpoint is one channel's alone.
pub struct StackStreams<D: Device> {
    pub(super) stack: Stack<D>,
    /// The port that it listens on.
    port: u16,
    dead_after: Duration,
    listener: Option<ListenerId>,
}

impl<D: Device> StackStreams<D> {
    /// Connections that fail when a peer has not answered for `dead_after`; `port` is the one to listen on.
    pub fn new(stack: Stack<D>, port: u16, dead_after: Duration) -> Self {
        Self { stack, port, dead_after, listener: None }
    }
}

impl<D: Device + 'static> StreamChannel<StackStreams<D>> {
    /// The stack below.
    pub fn stack_mut(&mut self) -> &mut Stack<D> {
        &mut self.live.streams_mut().stack
    }
}

impl<D: Device + 'static> Streams for StackStreams<D> {
    type Id = ConnectionId;
    type Chunk<'a>
        = Chunk
    where
        D: 'a;

    /// The stack runs in the peer's process.
    const PROVES_LIFE: bool = true;

    fn listen(&mut self, connections: usize) -> Result<(), ListenError> {
        let local = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), self.port);
        let options = tcp_options(self.dead_after);
        self.listener = Some(self.stack.tcp_mut().listen(local, connections, Some(options))?);
        Ok(())
    }

    fn stop_listening(&mut self, now: Instant) {
        if let Some(listener) = self.listener.take() {
            self.stack.tcp_mut().close_listener(now, listener);
        }
    }

    fn connect(
        &mut self,
        now: Instant,
        local: IpAddr,
        remote: SocketAddr,
    ) -> Result<ConnectionId, ConnectError> {
        let local = Some(SocketAddr::new(local, 0));
        Ok(self.stack.tcp_connect(now, local, remote, Some(tcp_options(self.dead_after)))?)
    }

    fn accept(&mut self, _: Instant) -> Option<ConnectionId> {
        self.stack.tcp_mut().accept(self.listener?).map(|(id, _)| id)
    }

    #[inline]
    fn write(&mut self, now: Instant, id: ConnectionId, bytes: &[u8]) -> Result<usize, Error> {
        self.stack.tcp_mut().write(now, id, bytes)
    }

    #[inline]
    fn write_extent(
        &mut self,
        now: Instant,
        id: ConnectionId,
        extent: Extent,
        token: ReleaseToken,
    ) -> Result<(), Error> {
        self.stack.tcp_mut().write_extent(now, id, extent, token)
    }

    fn read(&mut self, now: Instant, id: ConnectionId, buffer: &mut [u8]) -> Result<usize, Error> {
        self.stack.tcp_mut().read(now, id, buffer)
    }

    #[inline]
    fn read_chunk(&mut self, now: Instant, id: ConnectionId) -> Result<Option<Chunk>, Error> {
        self.stack.tcp_mut().read_chunk(now, id)
    }

    #[inline]
    fn info(&self, id: ConnectionId) -> Option<ConnectionInfo> {
        self.stack.tcp().info(id).map(|info| ConnectionInfo {
            remote: info.remote,
            writable: info.writable,
            unacknowledged: info.unacknowledged,
            unsent: info.unsent,
            rate: Load::rate(info.congestion_window, info.srtt),
            acknowledged: info.bytes_acked,
            retransmitted: info.retransmitted,
        })
    }

    fn abort(&mut self, now: Instant, id: ConnectionId) {
        self.stack.tcp_mut().abort(now, id);
    }

    #[inline]
    fn next_event(&mut self) -> Option<StreamEvent<ConnectionId>> {
        loop {
            return Some(match self.stack.tcp_mut().next_event()? {
                tcp::TcpEvent::Acceptable(_) => StreamEvent::Acceptable,
                tcp::TcpEvent::Readable(id) => StreamEvent::Readable(id),
                tcp::TcpEvent::Released(id, token) => StreamEvent::Released(id, token),
                tcp::TcpEvent::Dropped(id, token) => StreamEvent::Dropped(id, token),
                tcp::TcpEvent::Failed(id, failure) => StreamEvent::Failed(id, failure),
                tcp::TcpEvent::Closed(id) => StreamEvent::Closed(id),
                // A write that found no room is tried again in every poll, and the connecting side waits for the
                // challenge.
                _ => continue,
            });
        }
    }

    #[inline]
    fn receive(&mut self, now: Instant) -> bool {
        self.stack.receive(now) != 0
    }

    #[inline]
    fn transmit(&mut self, now: Instant) -> bool {
        self.stack.transmit(now) != 0
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.stack.next_deadline()
    }

    fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        self.stack.arm(announce)
    }

    fn disarm(&mut self) {
        self.stack.disarm();
    }

    fn drop_waiting(&mut self) {
        self.stack.drop_waiting();
    }

    fn checksum_dropped(&self) -> u64 {
        self.stack.counters().rx_tcp_checksum
    }

    fn device_counters(&self) -> DeviceCounters {
        crate::channel::device_counters(&self.stack)
    }

    fn links(&self) -> Links {
        crate::channel::links(&self.stack)
    }

    fn addresses_down(&self) -> Vec<IpAddr> {
        crate::channel::addresses_down(&self.stack)
    }
}
