//! Two endpoints and the path between them; [`App`] is an application on one of them.

use core::net::SocketAddr;
use core::time::Duration;

use shouter_netstack::sim::tcp::{Outlet, Segment};
use shouter_netstack::sim::{Link, LinkConfig};
use shouter_netstack::tcp::{
    Config, ConnectionId, Endpoint, Error, Failure, Info, ListenerId, Options, TcpEvent,
};
use shouter_netstack::time::Instant;

use super::network::ethernet;
use super::stream::{is_stream, stream};

/// An application's use of its connection.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) id: ConnectionId,
    pub(crate) connected: bool,
    /// Bytes still to be written; then, if `shut`, no more.
    pub(crate) to_write: u64,
    pub(crate) shut: bool,
    pub(crate) written: u64,
    pub(crate) read: u64,
    /// The peer has shut down its side.
    pub(crate) read_to_end: bool,
    pub(crate) closed: bool,
    pub(crate) failure: Option<Failure>,
    did_shut: bool,
}

impl App {
    pub(crate) fn new(id: ConnectionId) -> Self {
        Self {
            id,
            connected: false,
            to_write: 0,
            shut: false,
            written: 0,
            read: 0,
            read_to_end: false,
            closed: false,
            failure: None,
            did_shut: false,
        }
    }
}

pub(crate) struct Host {
    pub(crate) endpoint: Endpoint,
    pub(crate) listener: Option<ListenerId>,
    pub(crate) apps: Vec<App>,
    /// The number of bytes that accepted connections write.
    pub(crate) answer: u64,
    pub(crate) reads: bool,
}

impl Host {
    fn new(key: u8, options: &Options) -> Self {
        let config = Config { options: options.clone(), ..Config::new([key; 32]) };
        Self { endpoint: Endpoint::new(config), listener: None, apps: Vec::new(), answer: 0, reads: true }
    }

    /// Lets the applications do what they can.
    fn act(&mut self, now: Instant) {
        while let Some(event) = self.endpoint.next_event() {
            match event {
                TcpEvent::Acceptable(listener) => {
                    while let Some((id, _)) = self.endpoint.accept(listener) {
                        let app = App { connected: true, to_write: self.answer, ..App::new(id) };
                        self.apps.push(app);
                    }
                }
                TcpEvent::Connected(id) => self.app(id, |app| app.connected = true),
                TcpEvent::Failed(id, why) => self.app(id, |app| app.failure = Some(why)),
                TcpEvent::Closed(id) => self.app(id, |app| app.closed = true),
                _ => {}
            }
        }
        for app in self.apps.iter_mut().filter(|app| app.connected && app.failure.is_none()) {
            while app.to_write > 0 {
                let bytes = stream(app.written, app.to_write.min(1 << 20) as usize);
                match self.endpoint.write(now, app.id, bytes) {
                    Ok(written) => {
                        app.written += written as u64;
                        app.to_write -= written as u64;
                    }
                    Err(Error::WouldBlock) => break,
                    Err(why) => panic!("write: {why}"),
                }
            }
            if app.shut && !app.did_shut && app.to_write == 0 {
                self.endpoint.shutdown(now, app.id).unwrap();
                app.did_shut = true;
            }
            while self.reads && !app.read_to_end {
                match self.endpoint.read_chunk(now, app.id) {
                    Ok(Some(chunk)) => {
                        assert_eq!(is_stream(app.read, &chunk), Ok(()), "other bytes");
                        app.read += chunk.len() as u64;
                    }
                    Ok(None) => app.read_to_end = true,
                    Err(Error::WouldBlock | Error::Failed(_)) => break,
                    Err(why) => panic!("read: {why}"),
                }
            }
        }
    }

    fn app(&mut self, id: ConnectionId, act: impl FnOnce(&mut App)) {
        if let Some(app) = self.apps.iter_mut().find(|app| app.id == id) {
            act(app);
        }
    }

    pub(crate) fn info(&self, index: usize) -> Info {
        self.endpoint.info(self.apps[index].id).expect("an open connection")
    }
}

/// Host 0 and host 1; `links[i]` leads away from host `i`.
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) hosts: [Host; 2],
    pub(crate) links: [Link<Segment>; 2],
    /// Bytes that one call may hand over, to be cut into segments.
    pub(crate) super_segment: u32,
}

pub(crate) fn address(host: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host as u8 + 1], if host == 1 { 80 } else { 0 }))
}

impl World {
    /// Host 1 listens.
    pub(crate) fn new(seed: u64, options: &Options, links: [LinkConfig; 2]) -> Self {
        let mut hosts = [Host::new(1, options), Host::new(2, options)];
        hosts[1].listener = Some(hosts[1].endpoint.listen(address(1), 64, None).unwrap());
        let mut number = seed.wrapping_mul(2);
        let links = links.map(|link| {
            number += 1;
            Link::new(link, number)
        });
        Self { now: Instant::ZERO, hosts, links, super_segment: 64 * 1024 }
    }

    /// Host 0 connects, and will write so many bytes. Returns the connection's number.
    pub(crate) fn connect(&mut self, to_write: u64, options: Option<Options>) -> usize {
        let id = self.hosts[0].endpoint.connect(self.now, address(0), address(1), options).unwrap();
        self.hosts[0].apps.push(App { to_write, ..App::new(id) });
        self.hosts[0].apps.len() - 1
    }

    /// Everything that can happen now happens.
    fn step(&mut self) {
        let now = self.now;
        for host in 0..2 {
            while let Some(segment) = self.links[1 - host].receive(now) {
                segment.deliver(now, &mut self.hosts[host].endpoint);
            }
            let Host { endpoint, .. } = &mut self.hosts[host];
            if endpoint.next_deadline().is_some_and(|deadline| deadline <= now) {
                endpoint.on_timeout(now);
            }
            self.hosts[host].act(now);
            let Host { endpoint, .. } = &mut self.hosts[host];
            let path = ethernet(self.super_segment);
            endpoint.transmit(now, &mut Outlet { now, link: &mut self.links[host], path });
            endpoint.on_frames_released();
        }
    }

    /// Runs until `done`, or until `limit`; returns whether it was done.
    pub(crate) fn run_until(&mut self, limit: Instant, mut done: impl FnMut(&Self) -> bool) -> bool {
        loop {
            self.step();
            if done(self) {
                return true;
            }
            let deadlines = self.hosts.iter().filter_map(|host| host.endpoint.next_deadline());
            let next = self.links.iter().filter_map(Link::next_arrival).chain(deadlines).min();
            let next = next.unwrap_or(limit).max(self.now + Duration::from_nanos(100));
            if next > limit {
                self.now = self.now.max(limit);
                return false;
            }
            self.now = next;
        }
    }

    pub(crate) fn run_to(&mut self, limit: Instant) {
        self.run_until(limit, |_| false);
    }

    /// Bytes that host 1 has read from connection `index`, in the order of acceptance.
    pub(crate) fn received(&self, index: usize) -> u64 {
        self.hosts[1].apps.get(index).map_or(0, |app| app.read)
    }
}

/// `ms` milliseconds after the beginning.
pub(crate) fn ms(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}
