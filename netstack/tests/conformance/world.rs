//! An endpoint under a clock that only the script moves, and a recorder in the place of the network.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;

use shouter_netstack::region::Extent;
use shouter_netstack::tcp::{Config, Destination, Emit, Emitted, Endpoint, Path, TcpEvent};
use shouter_netstack::time::Instant;
use shouter_netstack::wire::tcp::{Flags, Header};

use super::peer::Sent;

/// A poll that takes more rounds than this hangs.
const ROUNDS: usize = 10_000;

/// The path to the peer, as the script sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathState {
    Open,
    NoRoom,
    NoRoute,
}

/// Records emitted segments; splits them as a device does.
pub(crate) struct Recorder {
    now: u64,
    pub(crate) path_state: PathState,
    pub(crate) mtu: u16,
    pub(crate) max_payload: u32,
    pub(crate) source: Option<IpAddr>,
    pub(crate) sent: VecDeque<Sent>,
    pub(crate) error: Option<String>,
    emitted: usize,
}

impl Emit for Recorder {
    fn path(&mut self, _: IpAddr, _: IpAddr) -> Option<Path> {
        (self.path_state != PathState::NoRoute).then_some(Path {
            mtu: self.mtu,
            max_payload: self.max_payload,
            max_extents: 16,
            max_segments: u32::MAX,
        })
    }

    fn source(&mut self, _: IpAddr) -> Option<IpAddr> {
        self.source
    }

    fn emit(&mut self, to: &Destination, header: &[u8], payload: &[Extent], segment_size: u16) -> Emitted {
        match self.path_state {
            PathState::Open => {}
            PathState::NoRoom => return Emitted::NoRoom,
            PathState::NoRoute => return Emitted::NoRoute,
        }
        self.emitted += 1;
        if let Err(why) = self.record(to, header, payload, segment_size) {
            self.error.get_or_insert(why);
        }
        Emitted::Sent
    }
}

impl Recorder {
    fn record(
        &mut self,
        to: &Destination,
        bytes: &[u8],
        payload: &[Extent],
        segment_size: u16,
    ) -> Result<(), String> {
        let (header, len) =
            Header::parse(bytes).map_err(|why| format!("our header does not parse: {why:?}"))?;
        if len != bytes.len() {
            return Err(format!("the header says {len} bytes and has {}", bytes.len()));
        }
        if bytes[16..18] != [0, 0] {
            return Err("the checksum is not zero, and would be added to what is filled in below".to_owned());
        }
        if header.source_port != to.local.port() || header.destination_port != to.remote.port() {
            return Err(format!("the ports {header:?} are not those of {to:?}"));
        }
        if payload.len() > 16 {
            return Err(format!("{} extents, the path takes 16", payload.len()));
        }
        let payload: Vec<u8> = payload.iter().flat_map(|extent| extent.as_bytes().to_vec()).collect();
        if payload.len() > self.max_payload as usize {
            return Err(format!("{} bytes at once, the path takes {}", payload.len(), self.max_payload));
        }
        if payload.len() > usize::from(segment_size) && segment_size == 0 {
            return Err("a payload without a segment size".to_owned());
        }
        let pieces: Vec<&[u8]> = if payload.is_empty() {
            vec![&[]]
        } else {
            payload.chunks(usize::from(segment_size).max(1)).collect()
        };
        let last = pieces.len() - 1;
        let mut header = header;
        let flags = header.flags;
        for (index, piece) in pieces.into_iter().enumerate() {
            header.flags = flags;
            if index != last {
                header.flags = header.flags.without(Flags::FIN).without(Flags::PSH);
            }
            if index != 0 {
                header.flags = header.flags.without(Flags::CWR);
            }
            self.sent.push_back(Sent {
                at: self.now,
                local: to.local,
                remote: to.remote,
                ect: to.ect,
                header,
                raw_options: bytes[20..].to_vec(),
                payload: piece.to_vec(),
            });
            header.seq += piece.len() as u32;
        }
        Ok(())
    }
}

/// The endpoint and all that is around it.
pub(crate) struct World {
    pub(crate) endpoint: Endpoint,
    pub(crate) now: u64,
    pub(crate) network: Recorder,
    pub(crate) events: VecDeque<TcpEvent>,
}

impl World {
    pub(crate) fn new(config: Config, start: u64) -> Self {
        Self {
            endpoint: Endpoint::new(config),
            now: start,
            network: Recorder {
                now: start,
                path_state: PathState::Open,
                mtu: 1500,
                max_payload: 65_536,
                source: None,
                sent: VecDeque::new(),
                error: None,
                emitted: 0,
            },
            events: VecDeque::new(),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    /// Lets the endpoint send all that is due.
    pub(crate) fn pump(&mut self) -> Result<(), String> {
        self.network.now = self.now;
        for _ in 0..ROUNDS {
            let emitted = self.network.emitted;
            if self.endpoint.wants_transmit() {
                self.endpoint.transmit(self.now(), &mut self.network);
            }
            while let Some(event) = self.endpoint.next_event() {
                self.events.push_back(event);
            }
            self.endpoint.on_frames_released();
            if let Some(why) = self.network.error.take() {
                return Err(why);
            }
            if !self.endpoint.wants_transmit() || self.network.path_state != PathState::Open {
                return Ok(());
            }
            if self.network.emitted == emitted {
                // It may have had something else to do (a connection that was ready for nothing); but not for ever.
                continue;
            }
        }
        Err("the endpoint wants to transmit without end".to_owned())
    }

    /// Moves time to the next deadline if it is not after `limit`; false if there is none, and time is then `limit`.
    fn step(&mut self, limit: u64) -> Result<bool, String> {
        match self.endpoint.next_deadline().map(Instant::as_nanos) {
            Some(deadline) if deadline <= limit => {
                self.now = self.now.max(deadline);
                self.endpoint.on_timeout(self.now());
                self.pump()?;
                Ok(true)
            }
            _ => {
                self.now = limit;
                Ok(false)
            }
        }
    }

    /// Lets time pass.
    pub(crate) fn advance(&mut self, by: Duration) -> Result<(), String> {
        let limit = self.now + by.as_nanos() as u64;
        for _ in 0..ROUNDS {
            if !self.step(limit)? {
                return Ok(());
            }
        }
        Err(format!("deadlines without end at {} ns", self.now))
    }

    /// Lets time pass until something is sent, `by` at most; whether something was sent.
    pub(crate) fn advance_to_output(&mut self, by: Duration) -> Result<bool, String> {
        let limit = self.now + by.as_nanos() as u64;
        for _ in 0..ROUNDS {
            if !self.network.sent.is_empty() {
                return Ok(true);
            }
            if !self.step(limit)? {
                return Ok(!self.network.sent.is_empty());
            }
        }
        Err(format!("deadlines without end at {} ns", self.now))
    }
}

/// An address as scripts use them: ours or the peer's, of either family.
pub(crate) fn address(ipv6: bool, ours: bool, port: u16) -> SocketAddr {
    let last = if ours { 1 } else { 2 };
    let ip: IpAddr = if ipv6 {
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last])
    } else {
        IpAddr::from([10, 0, 0, last as u8])
    };
    SocketAddr::new(ip, port)
}
