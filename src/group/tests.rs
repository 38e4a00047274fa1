//! A job whose ranks are threads, for the tests of the group.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::error::{JoinError, Refusal};
use super::rendezvous::{ControlLink, Hello, RendezvousConfig, Roster, join};
use crate::key::Key;

/// Longer than anything here takes.
pub(super) const SOON: Duration = Duration::from_secs(30);

/// The result of a join.
pub(super) type Joined = Result<(Roster, ControlLink), JoinError>;

/// A job of `size` ranks on one host, on an open port of loopback.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) size: u32,
    pub(super) config: RendezvousConfig,
}

impl Job {
    pub(super) fn new(size: u32) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = RendezvousConfig {
            host: "127.0.0.1".into(),
            port,
            listener: Some(Arc::new(listener)),
            key: Key::from_secret([7; 32]),
            job: "test".into(),
            deadline: SOON,
        };
        Self { size, config }
    }

    pub(super) fn within(mut self, deadline: Duration) -> Self {
        self.config.deadline = deadline;
        self
    }

    pub(super) fn hello(&self, rank: u32) -> Hello {
        let mut hello = Hello::new(rank, self.size, rank, self.size).unwrap();
        hello.blob = format!("blob of {rank}").into_bytes();
        hello.plan = vec![("channel_num".into(), 10), ("lanes".into(), 3)];
        hello
    }

    pub(super) fn join(&self, rank: u32) -> JoinHandle<Joined> {
        self.join_as(self.hello(rank), |_| {})
    }

    pub(super) fn join_as(
        &self,
        hello: Hello,
        change: impl FnOnce(&mut RendezvousConfig),
    ) -> JoinHandle<Joined> {
        let mut config = self.config.clone();
        change(&mut config);
        thread::spawn(move || join(&config, hello))
    }

    /// All ranks join; their links, by rank.
    pub(super) fn links(&self) -> Vec<ControlLink> {
        let ranks: Vec<_> = (0..self.size).map(|rank| self.join(rank)).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap().unwrap().1).collect()
    }

    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.config.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }
}

pub(super) fn roster(joined: JoinHandle<Joined>) -> Roster {
    joined.join().unwrap().expect("joins").0
}

pub(super) fn refusal(joined: JoinHandle<Joined>) -> Refusal {
    match joined.join().unwrap() {
        Err(JoinError::Refused(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}
