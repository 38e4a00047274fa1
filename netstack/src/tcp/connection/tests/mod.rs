//! A connection's inner state, with segments made by hand. Its behaviour towards a peer is tested in tests/conformance.

mod data;
mod expected;
mod idle;

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use super::{Connection, Context, Disposition, Open};
use crate::region::Extent;
use crate::sim::tcp::{self as sim, Outlet};
use crate::sim::{Link, tests::delayed};
use crate::tcp::memory::Memory;
use crate::tcp::receiver::Pool;
use crate::tcp::{ConnectionId, Error, Options, Path, Payload, ReleaseToken, Segment, StateName, TcpEvent};
use crate::time::Instant;
use crate::wire::tcp::{self, Flags, Header, SeqNumber, Timestamps};

const ISS: SeqNumber = SeqNumber(1000);
const IRS: SeqNumber = SeqNumber(0xffff_ff00);
const PATH: Path = Path { mtu: 1500, max_payload: 65535, max_extents: 16, max_segments: u32::MAX };
const ID: ConnectionId = ConnectionId { index: 1, generation: 2 };

/// A connection with all that it borrows.
#[derive(Debug)]
struct Rig {
    connection: Connection,
    memory: Memory,
    pool: Pool,
    challenges: u32,
    events: VecDeque<TcpEvent>,
    released: Vec<ReleaseToken>,
    extents: Vec<Extent>,
    now: Instant,
    /// The peer's clock in timestamps; `None`: the peer has none.
    peer_clock: Option<u32>,
}

fn open() -> Open {
    Open {
        local: ([192, 0, 2, 1], 49152).into(),
        remote: ([192, 0, 2, 2], 80).into(),
        iss: ISS,
        timestamp_offset: 5000,
        mtu: 1500,
    }
}

fn start() -> Instant {
    Instant::from_nanos(1_000_000_000)
}

/// The options of a peer's SYN.
fn offers() -> tcp::Options {
    tcp::Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 70_000, echo: 0 }),
        ..tcp::Options::default()
    }
}

fn syn() -> Header {
    Header {
        source_port: 80,
        destination_port: 49152,
        seq: IRS,
        flags: Flags::SYN,
        window: 65535,
        options: offers(),
        ..Header::default()
    }
}

impl Rig {
    fn around(connection: Connection) -> Self {
        Self {
            connection,
            memory: Memory::new(64 << 20),
            pool: Pool::new(64 << 20),
            challenges: 1000,
            events: VecDeque::new(),
            released: Vec::new(),
            extents: Vec::new(),
            now: start(),
            peer_clock: None,
        }
    }

    /// Established by this side with all options, if the peer has timestamps; nothing waits to be sent.
    fn established(stamps: bool) -> Self {
        let mut rig = Self::around(Connection::connect(start(), &open(), Arc::new(Options::internet())));
        assert_eq!(rig.sent_one().parsed().flags, Flags::SYN);
        rig.pass(Duration::from_millis(10));
        let timestamps = offers().timestamps.filter(|_| stamps);
        let options = tcp::Options { timestamps, ..offers() };
        let syn_ack = Header { ack: ISS + 1, flags: Flags::SYN.with(Flags::ACK), options, ..syn() };
        rig.peer_clock = timestamps.map(|stamps| stamps.value);
        assert!(matches!(rig.give(syn_ack, &[]), Disposition::Keep));
        assert_eq!(rig.sent_one().parsed().flags, Flags::ACK);
        assert_eq!(rig.connection.state(), StateName::Established);
        assert_eq!(rig.events.pop_front(), Some(TcpEvent::Connected(ID)));
        rig
    }

    fn with<T>(&mut self, call: impl FnOnce(&mut Connection, Instant, &mut Context<'_>) -> T) -> T {
        let mut cx = Context {
            id: ID,
            events: &mut self.events,
            memory: &mut self.memory,
            pool: &mut self.pool,
            challenges: self.challenges,
            released: &mut self.released,
            extents: &mut self.extents,
        };
        call(&mut self.connection, self.now, &mut cx)
    }

    fn give(&mut self, header: Header, payload: &[u8]) -> Disposition {
        let segment = Segment { header, payload: Payload::new(payload), congestion_experienced: false };
        let disposition = self.with(|connection, now, cx| connection.on_segment(now, &segment, cx));
        assert!(self.released.is_empty());
        disposition
    }

    /// A header of the peer: `seq` counts from its first byte, `ack` from ours.
    fn header(&self, seq: u32, ack: u32, flags: Flags) -> Header {
        Header {
            source_port: 80,
            destination_port: 49152,
            seq: IRS + 1 + seq,
            ack: ISS + 1 + ack,
            flags,
            window: 65535,
            options: tcp::Options {
                timestamps: self.peer_clock.map(|value| Timestamps { value, echo: 0 }),
                ..tcp::Options::default()
            },
            ..Header::default()
        }
    }

    /// The peer sends data, which acknowledges `ack` bytes of ours.
    fn data(&mut self, seq: u32, ack: u32, payload: &[u8]) -> Disposition {
        self.give(self.header(seq, ack, Flags::ACK), payload)
    }

    fn fin(&mut self, seq: u32, ack: u32) -> Disposition {
        self.give(self.header(seq, ack, Flags::ACK.with(Flags::FIN)), &[])
    }

    /// All that is sent now.
    fn sent(&mut self) -> Vec<sim::Segment> {
        let now = self.now;
        let mut link = Link::new(delayed(0), 0);
        for _ in 0..100 {
            if self.connection.wants_transmit(now) {
                let mut outlet = Outlet { now, link: &mut link, path: PATH };
                let _ = self.with(|connection, now, cx| connection.transmit(now, 64, &mut outlet, cx));
            }
        }
        assert!(!self.connection.wants_transmit(now));
        core::iter::from_fn(|| link.receive(now)).collect()
    }

    /// The one segment that is sent now.
    fn sent_one(&mut self) -> sim::Segment {
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    /// Time passes without timers.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        if let Some(clock) = &mut self.peer_clock {
            *clock = clock.wrapping_add(time.as_millis() as u32);
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        self.with(|connection, _, cx| connection.write(bytes, cx))
    }

    fn read(&mut self) -> Result<Vec<u8>, Error> {
        let mut buffer = vec![0; self.connection.info().readable.max(1)];
        let count = self.with(|connection, now, cx| connection.read(now, &mut buffer, cx))?;
        buffer.truncate(count);
        Ok(buffer)
    }

    fn events(&mut self) -> Vec<TcpEvent> {
        self.events.drain(..).collect()
    }
}
