//! Two endpoints back to back, with links between them that lose the segments that a test chooses.

use core::net::SocketAddr;
use core::time::Duration;

use super::super::Endpoint;
use crate::sim::tcp::{Outlet, Segment};
use crate::sim::{Link, tests::delayed};
use crate::tcp::{Config, ConnectionId, Error, ListenerId, Options, Path, Payload, SegmentMeta, TcpEvent};
use crate::time::Instant;
use crate::wire::tcp::{Flags, Header, SeqNumber};

const PATH: Path = Path { mtu: 1500, max_payload: 1448, max_extents: 4, max_segments: u32::MAX };

fn poll(
    now: Instant,
    endpoint: &mut Endpoint,
    incoming: &mut Link<Segment>,
    outgoing: &mut Outlet<'_>,
    events: &mut Vec<TcpEvent>,
) {
    while let Some(segment) = incoming.receive(now) {
        segment.deliver(now, endpoint);
    }
    if endpoint.next_deadline().is_some_and(|deadline| deadline <= now) {
        endpoint.on_timeout(now);
    }
    endpoint.transmit(now, outgoing);
    endpoint.on_frames_released();
    events.extend(core::iter::from_fn(|| endpoint.next_event()));
}

/// Two endpoints: `a` at 10.0.0.1 and 2001:db8::1, `b` at 10.0.0.2 and 2001:db8::2.
pub(super) struct Pair {
    pub(super) a: Endpoint,
    pub(super) b: Endpoint,
    /// From `a` to `b`.
    pub(super) there: Link<Segment>,
    pub(super) back: Link<Segment>,
    /// Of that way.
    pub(super) path: Path,
    pub(super) now: Instant,
    pub(super) events_a: Vec<TcpEvent>,
    pub(super) events_b: Vec<TcpEvent>,
}

pub(super) fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

impl Pair {
    pub(super) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(super) fn with(change: impl Fn(&mut Config)) -> Self {
        let endpoint = |key| {
            let mut config = Config::new([key; 32]);
            change(&mut config);
            Endpoint::new(config)
        };
        Self {
            a: endpoint(1),
            b: endpoint(2),
            there: Link::new(delayed(50_000), 1),
            back: Link::new(delayed(50_000), 2),
            path: PATH,
            now: Instant::ZERO + Duration::from_secs(1000),
            events_a: Vec::new(),
            events_b: Vec::new(),
        }
    }

    /// One poll at the present time.
    pub(super) fn poll(&mut self) {
        let Self { a, b, there, back, path, now, events_a, events_b } = self;
        poll(*now, a, back, &mut Outlet { now: *now, link: there, path: *path }, events_a);
        poll(*now, b, there, &mut Outlet { now: *now, link: back, path: PATH }, events_b);
    }

    /// Moves time until `done`, or for `limit`; false if it never was, or nothing is left to happen.
    pub(super) fn run(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            self.poll();
            if done(self) {
                return true;
            }
            if self.a.wants_transmit() || self.b.wants_transmit() {
                self.now += Duration::from_nanos(1000);
                continue;
            }
            let arrivals = [self.there.next_arrival(), self.back.next_arrival()];
            let next = [self.a.next_deadline(), self.b.next_deadline()].into_iter().chain(arrivals);
            let Some(next) = next.flatten().min() else { return false };
            let next = next.max(self.now + Duration::from_nanos(1000));
            if next > end {
                self.now = end;
                return false;
            }
            self.now = next;
        }
    }

    /// Lets time pass.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.run(time, |_| false);
        self.now = end;
        self.poll();
    }

    /// A listener at `b` and a connection to it from `a`.
    pub(super) fn open(&mut self, options: Option<Options>) -> (ConnectionId, ConnectionId, ListenerId) {
        let listener = self.b.listen(address("0.0.0.0:80"), 16, options.clone()).unwrap();
        let (a, b) = self.connect(listener, options);
        (a, b, listener)
    }

    pub(super) fn connect(
        &mut self,
        listener: ListenerId,
        options: Option<Options>,
    ) -> (ConnectionId, ConnectionId) {
        let to =
            SocketAddr::new(address("10.0.0.2:0").ip(), self.b.listener_address(listener).unwrap().port());
        let a = self.a.connect(self.now, address("10.0.0.1:0"), to, options).unwrap();
        let mut accepted = None;
        assert!(self.run(Duration::from_secs(10), |pair| {
            accepted = pair.b.accept(listener);
            accepted.is_some()
        }));
        let (b, from) = accepted.unwrap();
        assert_eq!(from, self.a.info(a).unwrap().local);
        assert!(self.events_a.contains(&TcpEvent::Connected(a)));
        (a, b)
    }

    /// Sends `bytes` from `a` to `b`, and returns what arrived.
    pub(super) fn transfer(
        &mut self,
        from: ConnectionId,
        to: ConnectionId,
        bytes: &[u8],
        limit: Duration,
    ) -> Vec<u8> {
        let (mut written, mut got) = (0, Vec::new());
        let mut buffer = vec![0; 100_000];
        self.run(limit, |pair| {
            while written < bytes.len() {
                match pair.a.write(pair.now, from, &bytes[written..]) {
                    Ok(count) => written += count,
                    Err(Error::WouldBlock) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            loop {
                match pair.b.read(pair.now, to, &mut buffer) {
                    Ok(0) => panic!("an end too early"),
                    Ok(count) => got.extend_from_slice(&buffer[..count]),
                    Err(Error::WouldBlock) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            got.len() >= bytes.len()
        });
        got
    }

    /// Gives `b` a forged segment.
    pub(super) fn forge(&mut self, from: SocketAddr, to: SocketAddr, header: Header) {
        let header = Header { source_port: from.port(), destination_port: to.port(), ..header };
        let meta = SegmentMeta { source: from.ip(), destination: to.ip(), congestion_experienced: false };
        self.b.on_segment(self.now, &meta, header.emit().as_bytes(), Payload::default());
    }

    /// The headers that `b` sends in answer.
    pub(super) fn answers(&mut self) -> Vec<Header> {
        let mut link = Link::new(delayed(0), 0);
        self.b.transmit(self.now, &mut Outlet { now: self.now, link: &mut link, path: PATH });
        core::iter::from_fn(|| link.receive(self.now)).map(|segment| segment.parsed()).collect()
    }
}

pub(super) fn syn(seq: u32) -> Header {
    Header { seq: SeqNumber(seq), flags: Flags::SYN, window: 65535, ..Header::default() }
}
