//! One end of the link: a port under a stack; a RUD session, a UDP socket and a TCP connection to the other end; and
//! cold memory.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use shouter::channel::port::{self, PortDevice};
use shouter::config::Config;
use shouter::group::rendezvous::{self, ControlLink, Hello, RendezvousConfig};
use shouter::key::Key;
use shouter::runtime::{Clock, Instant};
use shouter_netstack::device::{Device, Frame, RxFrame, TxBatch};
use shouter_netstack::region::{Extent, Region};
use shouter_netstack::rud::{self, SealSecret, SessionId, SessionParams};
use shouter_netstack::stack::{PortId, Stack};
use shouter_netstack::tcp::{self, ConnectionId};
use shouter_netstack::udp::{SocketConfig, UdpHandle};

use super::Protocol;
use crate::bench::pin;
use crate::failure::CommandError;

/// The most bytes of headers between an IP packet's first byte and a message's.
pub(super) const HEADROOM: u16 = 128;
/// Bytes of cold memory: more than private caches hold.
const COLD: usize = 64 << 20;
/// Local experimental EtherType 1 (IEEE 802).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const UDP_PORT: u16 = 7_000;
const RUD_PORT: u16 = 61_790;
const TCP_PORT: u16 = 7_001;
const PATIENCE: Duration = Duration::from_secs(60);

/// One end.
pub(super) struct Wire {
    pub(super) rank: u32,
    pub(super) mtu: u16,
    pub(super) stack: Stack<PortDevice>,
    pub(super) port: PortId,
    /// Sessions to the other end: one that is not sealed, and one that is.
    sessions: [SessionId; 2],
    pub(super) socket: UdpHandle,
    pub(super) peer: SocketAddrV4,
    /// Opened on first use.
    connection: Option<ConnectionId>,
    control: ControlLink,
    cold: Region,
    walked: usize,
    raw_header: [u8; 14],
    pub(super) batch: TxBatch,
}

impl Wire {
    /// Opens the port that the launcher gave this process, and connects to the other end.
    pub(super) fn open() -> Result<Self, CommandError> {
        let config = Config::from_env().map_err(|why| CommandError::Usage(why.to_string()))?;
        pin(&config);
        let failed = |why: &dyn std::fmt::Display| CommandError::Failed(why.to_string());
        let meeting = RendezvousConfig::of(&config).map_err(|why| failed(&why))?;
        let hello = Hello::of(&config).map_err(|why| failed(&why))?;
        let (roster, control) = rendezvous::join(&meeting, hello).map_err(|why| failed(&why))?;
        let first = config.ports.first().ok_or_else(|| failed(&"the launcher gave no port"))?;
        let peer = *first.peers.first().ok_or_else(|| failed(&"the launcher gave no peer"))?;
        let local = first.address.ip;
        let mtu = port::mtu_of(&config, first);
        let rud_config = rud::Config { dead_after: Duration::from_secs(600), ..rud::Config::default() };
        let opened = port::open(&config, rud_config).map_err(|why| failed(&why))?;
        let mut stack = opened.stacks.into_iter().next().ok_or_else(|| failed(&"no port was opened"))?;
        let port = stack.addresses().next().ok_or_else(|| failed(&"no port was opened"))?.0;
        let secret = &roster.session_secret;
        let params = |seal: Option<SealSecret>| SessionParams {
            local_tag: tag(secret, config.rank, seal.is_some()),
            remote_tag: tag(secret, 1 - config.rank.min(1), seal.is_some()),
            remote_ip: IpAddr::V4(peer),
            local_ip: IpAddr::V4(local),
            remote_port: RUD_PORT,
            local_ports: [50_000].into(),
            max_datagram: rud::datagram_room(mtu.into(), &IpAddr::V4(peer)),
            seal,
        };
        let sealed = SealSecret::new(secret.tag("shouter bench session secret", &[]));
        let mut open = |seal| stack.rud_mut().open(Clock.now(), params(seal)).map_err(|why| failed(&why));
        let sessions = [open(None)?, open(Some(sealed))?];
        let sockets =
            SocketConfig { queue_datagrams: 1024, queue_bytes: 16 << 20, ..SocketConfig::default() };
        let socket =
            stack.udp_mut().bind(SocketAddrV4::new(local, UDP_PORT), sockets).map_err(|why| failed(&why))?;
        let mac = stack.device(port).map_or([0; 6], Device::mac);
        let mut raw_header = [0xff; 14];
        raw_header[6..12].copy_from_slice(&mac);
        raw_header[12..].copy_from_slice(&ETHERTYPE);
        let bytes: Vec<u8> =
            (0..COLD).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        let mut wire = Self {
            rank: config.rank,
            mtu,
            stack,
            port,
            sessions,
            socket,
            peer: SocketAddrV4::new(peer, UDP_PORT),
            connection: None,
            control,
            cold: Region::from_static(bytes.leak()),
            walked: 0,
            raw_header,
            batch: TxBatch::with_capacity(64),
        };
        wire.greet(peer)?;
        wire.settle();
        Ok(wire)
    }

    /// Sends probes until the other end answers. Both then know each other's MAC address, which they could not learn
    /// from bare frames that bypass the stack.
    fn greet(&mut self, peer: Ipv4Addr) -> Result<(), CommandError> {
        const AGAIN: Duration = Duration::from_millis(20);
        let mut next = Clock.now();
        self.poll_until(|wire, now| {
            if now >= next {
                next = now + AGAIN;
                let sent = wire.stack.ping(now, peer, 1, 1, b"there?");
                sent.map_err(|why| CommandError::Failed(why.to_string()))?;
            }
            Ok(wire.stack.next_echo_reply().map(drop))
        })
    }

    /// The next piece of cold memory.
    #[inline]
    pub(super) fn payload(&mut self, len: usize) -> Option<Extent> {
        if self.walked + len > COLD {
            self.walked = 0;
        }
        let extent = self.cold.extent(self.walked, len as u32);
        self.walked += len.next_multiple_of(64);
        extent
    }

    /// A bare frame with the next `len` bytes of cold memory.
    #[inline]
    pub(super) fn raw_frame(&mut self, len: usize) -> Option<Frame> {
        let payload = self.payload(len);
        Frame::new(&[&self.raw_header], payload)
    }

    /// Waits for the other end.
    pub(super) fn barrier(&mut self, what: &str) -> Result<(), CommandError> {
        self.control.barrier(what, PATIENCE).map_err(|why| CommandError::Failed(why.to_string()))
    }

    /// Exchanges a few numbers: returns rank 0's, then rank 1's.
    pub(super) fn exchange(&mut self, numbers: &[u64]) -> Result<[Vec<u64>; 2], CommandError> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        let all = self.control.all_gather("figures", &bytes, PATIENCE);
        let all = all.map_err(|why| CommandError::Failed(why.to_string()))?;
        let of = |rank: usize| {
            let bytes = all.get(rank).map(Vec::as_slice).unwrap_or_default();
            bytes
                .chunks_exact(8)
                .filter_map(|c| c.first_chunk::<8>())
                .map(|c| u64::from_le_bytes(*c))
                .collect()
        };
        Ok([of(0), of(1)])
    }

    /// The TCP connection between the two ends; both call this at the same time. A first byte tells the client that the
    /// server has the connection: until then either may have to retransmit.
    pub(super) fn connection(&mut self) -> Result<ConnectionId, CommandError> {
        if let Some(connection) = self.connection {
            return Ok(connection);
        }
        let failed = |why: &dyn std::fmt::Display| CommandError::Failed(why.to_string());
        let options = tcp::Options::group();
        let peer = SocketAddr::from((*self.peer.ip(), TCP_PORT));
        let connection = if self.rank == 0 {
            let local = SocketAddr::from(([0, 0, 0, 0], TCP_PORT));
            let listener =
                self.stack.tcp_mut().listen(local, 16, Some(options)).map_err(|why| failed(&why))?;
            self.barrier("TCP listens")?;
            let id =
                self.poll_until(|wire, _| Ok(wire.stack.tcp_mut().accept(listener).map(|(id, _)| id)))?;
            self.stack.tcp_mut().write(Clock.now(), id, b"!").map_err(|why| failed(&why))?;
            self.poll_until(|wire, _| {
                let unacknowledged = wire.stack.tcp().info(id).map_or(0, |info| info.unacknowledged);
                Ok((unacknowledged == 0).then_some(id))
            })?
        } else {
            self.barrier("TCP listens")?;
            let id = self.stack.tcp_connect(Clock.now(), None, peer, Some(options));
            let id = id.map_err(|why| failed(&why))?;
            self.poll_until(|wire, now| match wire.stack.tcp_mut().read(now, id, &mut [0]) {
                Ok(_) => Ok(Some(id)),
                Err(tcp::Error::WouldBlock) => Ok(None),
                Err(why) => Err(failed(&why)),
            })?
        };
        self.connection = Some(connection);
        // The byte's acknowledgement may have been delayed.
        self.settle();
        Ok(connection)
    }

    /// Polls until `look` returns a value.
    pub(super) fn poll_until<T>(
        &mut self,
        mut look: impl FnMut(&mut Self, Instant) -> Result<Option<T>, CommandError>,
    ) -> Result<T, CommandError> {
        let end = Clock.now() + PATIENCE;
        loop {
            let now = Clock.now();
            self.stack.poll_with(now, &mut Count::default());
            if let Some(found) = look(self, now)? {
                return Ok(found);
            }
            if now > end {
                return Err(CommandError::Failed(format!(
                    "the other end did not answer within {PATIENCE:?}"
                )));
            }
        }
    }

    /// Reads everything that the TCP connection has received; returns the number of bytes.
    #[inline]
    pub(super) fn drain(&mut self, now: Instant) -> Result<u64, CommandError> {
        let Some(connection) = self.ready_connection() else { return Ok(0) };
        let mut bytes = 0;
        loop {
            match self.stack.tcp_mut().read_chunk(now, connection) {
                Ok(Some(chunk)) => bytes += chunk.len() as u64,
                Ok(None) => return Err(CommandError::Failed("the other end closed the connection".into())),
                Err(tcp::Error::WouldBlock) => return Ok(bytes),
                Err(why) => return Err(CommandError::Failed(why.to_string())),
            }
        }
    }

    /// Reads everything through a buffer, as an application does that waits for a message of known length; bytes beyond
    /// the buffer count too.
    #[inline]
    pub(super) fn read(&mut self, now: Instant, buffer: &mut [u8]) -> Result<u64, CommandError> {
        let Some(connection) = self.ready_connection() else { return Ok(0) };
        let mut bytes = 0;
        loop {
            match self.stack.tcp_mut().read(now, connection, buffer) {
                Ok(0) => return Err(CommandError::Failed("the other end closed the connection".into())),
                Ok(count) => {
                    bytes += count as u64;
                    if count < buffer.len() {
                        return Ok(bytes);
                    }
                }
                Err(tcp::Error::WouldBlock) => return Ok(bytes),
                Err(why) => return Err(CommandError::Failed(why.to_string())),
            }
        }
    }

    /// The TCP connection, if it has an event.
    #[inline]
    fn ready_connection(&mut self) -> Option<ConnectionId> {
        let mut is_ready = false;
        while let Some(event) = self.stack.tcp_mut().next_event() {
            is_ready |= matches!(event, tcp::TcpEvent::Readable(_) | tcp::TcpEvent::Failed(..));
        }
        self.connection.filter(|_| is_ready)
    }

    /// The RUD session that a protocol uses.
    pub(super) fn session(&self, protocol: Protocol) -> SessionId {
        self.sessions[usize::from(protocol == Protocol::Sealed)]
    }

    /// Datagrams and segments retransmitted so far.
    pub(super) fn resent(&self) -> u64 {
        let rud: u64 = self.sessions.iter().map(|id| self.stack.rud().counters(*id).resent).sum();
        let tcp = self.connection.and_then(|connection| self.stack.tcp().info(connection));
        rud + tcp.map_or(0, |info| info.retransmitted)
    }

    /// Polls until everything in flight has arrived and the link has been quiet for a while.
    pub(super) fn settle(&mut self) {
        const QUIET: Duration = Duration::from_millis(30);
        let mut quiet_since = Clock.now();
        let end = quiet_since + Duration::from_secs(2);
        let mut buffer = [0u8; 16];
        loop {
            let now = Clock.now();
            let progress = self.stack.poll_with(now, &mut Count::default());
            while self.stack.udp_mut().recv(self.socket, &mut buffer).is_some() {}
            // A connection that fails here also fails the next pass, which reports it.
            let drained = self.drain(now).unwrap_or(0);
            let unsent = self.connection.and_then(|id| self.stack.tcp().info(id));
            let tcp_idle = unsent.is_none_or(|info| info.unacknowledged == 0) && drained == 0;
            let rud_idle = self.sessions.iter().all(|id| self.stack.rud().is_idle(*id));
            if !progress.is_idle() || !rud_idle || !tcp_idle {
                quiet_since = now;
            }
            if now - quiet_since > QUIET || now > end {
                return;
            }
        }
    }

    /// Polls the device for bare frames, past the stack.
    #[inline]
    pub(super) fn raw_receive(&mut self, now: Instant, sink: &mut impl FnMut(&[u8])) -> usize {
        match self.stack.device_mut(self.port) {
            Some(device) => device.receive(now, 64, &mut |frame: RxFrame<'_>| {
                let frame = frame.head();
                if frame.get(12..14) == Some(&ETHERTYPE) {
                    sink(&frame[14..]);
                }
            }),
            None => 0,
        }
    }

    /// Hands the batch of bare frames to the device.
    #[inline]
    pub(super) fn raw_transmit(&mut self, now: Instant) -> usize {
        self.stack.device_mut(self.port).map_or(0, |device| device.transmit(now, &mut self.batch))
    }
}

/// The tag of datagrams to rank `to`, from the group's secret.
fn tag(secret: &Key, to: u32, is_sealed: bool) -> u64 {
    let of = [&to.to_le_bytes()[..], &[is_sealed.into()]];
    u64::from_le_bytes(secret.tag_prefix("shouter bench session tag", &of))
}

/// Counts the messages that RUD delivers.
#[derive(Default)]
pub(super) struct Count {
    pub(super) bytes: u64,
    pub(super) frames: u64,
}

impl rud::Sink for Count {
    #[inline]
    fn deliver(&mut self, _: SessionId, _: &[u8], payload: &[u8]) -> rud::Disposition {
        self.bytes += payload.len() as u64;
        self.frames += 1;
        rud::Disposition::Consumed
    }
    fn released(&mut self, _: SessionId, _: rud::MessageToken) {}
    fn failed(&mut self, _: SessionId, why: rud::Failure) {
        eprintln!("the link failed: {why}");
    }
}
