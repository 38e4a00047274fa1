//! A TCP connection that sends beside RUD, through the same port.

use core::net::SocketAddr;

use shouter_netstack::cc::Algorithm;
use shouter_netstack::sim::tcp::{Outlet, Segment};
use shouter_netstack::sim::{Link, LinkConfig};
use shouter_netstack::tcp::{Config, ConnectionId, Endpoint, Options, Path, TcpEvent};
use shouter_netstack::time::Instant;

/// The sender, the receiver, and the ways that are theirs alone. Segments that have left `line` enter the port.
#[derive(Debug)]
pub(crate) struct Flow {
    client: Endpoint,
    server: Endpoint,
    id: ConnectionId,
    accepted: Option<ConnectionId>,
    pub(crate) line: Link<Segment>,
    back: Link<Segment>,
    /// Payload bytes that the receiver has read.
    pub(crate) read: u64,
    mtu: u16,
}

fn path(mtu: u16) -> Path {
    Path { mtu, max_payload: u32::from(mtu) - 40, max_extents: 4, max_segments: 1 }
}

impl Flow {
    /// Of `algorithm`, from a line like those of the senders over RUD; acknowledgements take `back`.
    pub(crate) fn new(
        now: Instant,
        algorithm: Algorithm,
        mtu: usize,
        line: LinkConfig,
        back: LinkConfig,
    ) -> Self {
        let options = Options { congestion: algorithm, ..Options::internet() };
        let endpoint = |key| Endpoint::new(Config { options: options.clone(), ..Config::new([key; 32]) });
        let [client, server] = [SocketAddr::from(([10, 9, 0, 1], 0)), SocketAddr::from(([10, 9, 0, 2], 80))];
        let (mut from, mut to) = (endpoint(1), endpoint(2));
        to.listen(server, 1, None).expect("a listener");
        let id = from.connect(now, client, server, None).expect("a connection");
        Self {
            client: from,
            server: to,
            id,
            accepted: None,
            line: Link::new(line, 901),
            back: Link::new(back, 902),
            read: 0,
            mtu: mtu as u16,
        }
    }

    /// A segment has come through the port.
    pub(crate) fn on_arrival(&mut self, now: Instant, segment: &Segment) {
        segment.deliver(now, &mut self.server);
    }

    /// A poll of both ends.
    pub(crate) fn poll(&mut self, now: Instant) {
        while let Some(segment) = self.back.receive(now) {
            segment.deliver(now, &mut self.client);
        }
        for endpoint in [&mut self.client, &mut self.server] {
            if endpoint.next_deadline().is_some_and(|at| at <= now) {
                endpoint.on_timeout(now);
            }
        }
        while let Some(event) = self.server.next_event() {
            if let TcpEvent::Acceptable(listener) = event {
                self.accepted = self.accepted.or(self.server.accept(listener).map(|(id, _)| id));
            }
        }
        if let Some(id) = self.accepted {
            while let Ok(Some(chunk)) = self.server.read_chunk(now, id) {
                self.read += chunk.len() as u64;
            }
        }
        while self.client.next_event().is_some() {}
        while self.client.write(now, self.id, &[0; 64 << 10]).is_ok_and(|written| written != 0) {}
        let path = path(self.mtu);
        self.client.transmit(now, &mut Outlet { now, link: &mut self.line, path });
        self.server.transmit(now, &mut Outlet { now, link: &mut self.back, path });
        self.client.on_frames_released();
        self.server.on_frames_released();
    }

    /// When something happens next.
    pub(crate) fn next(&self) -> Option<Instant> {
        let deadlines = [self.client.next_deadline(), self.server.next_deadline()];
        let arrivals = [self.line.next_arrival(), self.back.next_arrival()];
        deadlines.into_iter().chain(arrivals).flatten().min()
    }
}
