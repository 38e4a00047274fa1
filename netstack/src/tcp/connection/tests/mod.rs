//! A connection against segments made by hand, and two connections against each other.

mod data;
mod ends;
mod expected;
mod handshake;
mod pair;
mod unexpected;

use core::net::IpAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use super::{Connection, Context, Disposition, Open, TransmitOutcome};
use crate::region::Extent;
use crate::sim::tcp::segments;
use crate::tcp::memory::Memory;
use crate::tcp::receiver::Pool;
use crate::tcp::{
    ConnectionId, Destination, Emit, Emitted, Error, Options, Path, Payload, ReleaseToken, Segment,
    StateName, TcpEvent,
};
use crate::time::Instant;
use crate::wire::tcp::{self, Flags, Header, SeqNumber, Timestamps};

const ISS: SeqNumber = SeqNumber(1000);
const IRS: SeqNumber = SeqNumber(0xffff_ff00);
const ID: ConnectionId = ConnectionId { index: 1, generation: 2 };

/// A segment that was sent.
#[derive(Clone, Debug)]
struct Sent {
    header: Header,
    payload: Vec<u8>,
    ect: bool,
}

/// Collects what is emitted, in segments.
#[derive(Debug)]
struct Wire {
    sent: VecDeque<Sent>,
    path: Path,
    answer: Emitted,
}

impl Emit for Wire {
    fn path(&mut self, _: IpAddr, _: IpAddr) -> Option<Path> {
        (self.answer != Emitted::NoRoute).then_some(self.path)
    }

    fn source(&mut self, _: IpAddr) -> Option<IpAddr> {
        None
    }

    fn emit(&mut self, to: &Destination, header: &[u8], payload: &[Extent], segment_size: u16) -> Emitted {
        if self.answer != Emitted::Sent {
            return self.answer;
        }
        for segment in segments(to, header, payload, segment_size, &self.path) {
            let (header, len) = Header::parse(&segment.header).expect("a header of ours");
            assert_eq!(len, header.emit().as_bytes().len());
            self.sent.push_back(Sent { header, payload: segment.payload, ect: segment.ect });
        }
        Emitted::Sent
    }
}

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
    wire: Wire,
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

/// What a peer's SYN offers.
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

fn segment<'a>(header: Header, payload: &'a [u8]) -> Segment<'a> {
    Segment { header, payload: Payload::new(payload), congestion_experienced: false }
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
            wire: Wire {
                sent: VecDeque::new(),
                path: Path { mtu: 1500, max_payload: 65535, max_extents: 16, max_segments: u32::MAX },
                answer: Emitted::Sent,
            },
            now: start(),
            peer_clock: None,
        }
    }

    fn connect(options: Options) -> Self {
        Self::around(Connection::connect(start(), &open(), Arc::new(options)))
    }

    fn accept(options: Options, syn: Header) -> Self {
        let mut rig =
            Self::around(Connection::accept(start(), &open(), Arc::new(options), &segment(syn, &[])));
        rig.peer_clock = syn.options.timestamps.map(|stamps| stamps.value);
        rig
    }

    /// Established by this side, with all options, and with nothing waiting to be sent.
    fn established(options: Options) -> Self {
        Self::established_with(options, offers(), Flags::SYN.with(Flags::ACK))
    }

    fn established_with(options: Options, peer: tcp::Options, flags: Flags) -> Self {
        let mut rig = Self::connect(options);
        let sent = rig.sent_one();
        assert_eq!(sent.header.flags.without(Flags::ECE.with(Flags::CWR)), Flags::SYN);
        rig.pass(Duration::from_millis(10));
        let syn_ack = Header { ack: ISS + 1, flags, options: peer, ..syn() };
        rig.peer_clock = peer.timestamps.map(|stamps| stamps.value);
        assert!(matches!(rig.give(syn_ack, &[]), Disposition::Keep));
        assert_eq!(rig.sent_one().header.flags.without(Flags::ECE), Flags::ACK);
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
        self.give_segment(&segment(header, payload))
    }

    fn give_segment(&mut self, segment: &Segment<'_>) -> Disposition {
        let disposition = self.with(|connection, now, cx| connection.on_segment(now, segment, cx));
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
    fn sent(&mut self) -> Vec<Sent> {
        for _ in 0..100 {
            if self.connection.wants_transmit(self.now) {
                let turn = self.transmit();
                if turn == TransmitOutcome::Blocked {
                    break;
                }
            }
        }
        assert!(self.wire.answer != Emitted::Sent || !self.connection.wants_transmit(self.now));
        self.wire.sent.drain(..).collect()
    }

    fn transmit(&mut self) -> TransmitOutcome {
        let mut wire = core::mem::replace(
            &mut self.wire,
            Wire {
                sent: VecDeque::new(),
                path: Path { mtu: 0, max_payload: 0, max_extents: 0, max_segments: u32::MAX },
                answer: Emitted::NoRoom,
            },
        );
        let turn = self.with(|connection, now, cx| connection.transmit(now, 64, &mut wire, cx));
        self.wire = wire;
        turn
    }

    /// The one segment that is sent now.
    fn sent_one(&mut self) -> Sent {
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.into_iter().next().expect("just counted")
    }

    fn sent_nothing(&mut self) {
        let sent = self.sent();
        assert!(sent.is_empty(), "{sent:?}");
    }

    /// Time passes without timers.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        if let Some(clock) = &mut self.peer_clock {
            *clock = clock.wrapping_add(time.as_millis() as u32);
        }
    }

    /// Time passes up to the next timer, which goes off.
    fn wait(&mut self) -> (Duration, Disposition) {
        let deadline = self.connection.next_deadline().expect("a timer is running");
        let time = deadline.saturating_since(self.now);
        self.pass(time);
        let disposition = self.with(|connection, now, cx| connection.on_timer(now, cx));
        (time, disposition)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        self.with(|connection, _, cx| connection.write(bytes, cx))
    }

    fn read(&mut self) -> Result<Vec<u8>, Error> {
        let mut buffer = vec![0; 1 << 20];
        let count = self.with(|connection, now, cx| connection.read(now, &mut buffer, cx))?;
        buffer.truncate(count);
        Ok(buffer)
    }

    fn shutdown(&mut self) {
        self.connection.shutdown().expect("it has not failed");
    }

    fn close(&mut self) -> Disposition {
        self.with(|connection, now, cx| connection.close(now, cx))
    }

    fn abort(&mut self) -> Disposition {
        self.with(|connection, now, cx| connection.abort(now, cx))
    }

    fn state(&self) -> StateName {
        self.connection.state()
    }

    fn events(&mut self) -> Vec<TcpEvent> {
        self.events.drain(..).collect()
    }
}
