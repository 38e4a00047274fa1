//! One connection of the star after the join: its received messages and its state.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::conn::{ReadStatus, Traffic, Trusted};
use super::error::ExchangeError;
use super::message::{AbortText, Departure, Message};

/// Received messages of exchanges that may be queued; no rank has reason to send more ahead.
const AHEAD: usize = 8;

/// The state of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConnState {
    Open,
    /// The rank has announced that it leaves; later events of the connection do not matter.
    Left,
    /// The other side's kernel has closed it in order, without a leave message of the rank: its process has ended.
    Gone,
    /// It was reset or timed out. A firewall does that too, so it proves nothing about the process.
    Broken(String),
}

/// A connection to another rank.
pub(super) struct MemberConn {
    /// The rank at the other side.
    rank: u32,
    trusted: Trusted,
    state: ConnState,
    messages: VecDeque<Message>,
    lost: Option<u32>,
    /// Ranks that have left, this one or others, not taken yet.
    left: Vec<Departure>,
    /// Why ranks have given up, this one or others; not taken yet.
    abort_texts: Vec<AbortText>,
    /// The other side has closed and reads nothing any more.
    write_closed: bool,
    /// A write failed because the connection was reset. The system reports that once; a read then ends as if the other
    /// side had closed it.
    reset: Option<String>,
    /// The roster, for a rank that asks for it; sent once, and before its first exchange.
    roster: Option<Arc<[u8]>>,
}

impl MemberConn {
    /// The addresses of this side and of the other one, while there is a connection.
    pub(super) fn ends(&self) -> Option<(IpAddr, IpAddr)> {
        self.trusted.conn.ends()
    }

    /// The connection to `rank`.
    pub(super) fn new(rank: u32, trusted: Trusted) -> Self {
        Self {
            rank,
            trusted,
            state: ConnState::Open,
            messages: VecDeque::new(),
            lost: None,
            left: vec![],
            abort_texts: vec![],
            write_closed: false,
            reset: None,
            roster: None,
        }
    }

    /// The encoded roster, for a rank that was sent to another one for it.
    pub(super) fn keep_roster(&mut self, roster: Arc<[u8]>) {
        self.roster = Some(roster);
    }

    pub(super) fn traffic(&self) -> Traffic {
        self.trusted.conn.traffic()
    }

    pub(super) fn state(&self) -> &ConnState {
        &self.state
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == ConnState::Open
    }

    /// The rank whose process has ended, as the other side reports.
    pub(super) fn lost(&self) -> Option<u32> {
        self.lost
    }

    /// The ranks that have left since the last call.
    pub(super) fn take_left(&mut self) -> Vec<Departure> {
        std::mem::take(&mut self.left)
    }

    /// Why ranks have given up, since the last call.
    pub(super) fn take_abort_texts(&mut self) -> Vec<AbortText> {
        std::mem::take(&mut self.abort_texts)
    }

    /// The next message of an exchange.
    pub(super) fn next_message(&mut self) -> Option<Message> {
        self.messages.pop_front()
    }

    /// The failure that the other side reported, while no exchange is under way here.
    pub(super) fn failure(&self) -> Option<&ExchangeError> {
        self.messages
            .iter()
            .find_map(|message| if let Message::Failed(error) = message { Some(error) } else { None })
    }

    /// The descriptor, and whether it waits for room to write; `None` when nothing can come any more.
    pub(super) fn waits(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.is_open().then(|| (self.trusted.conn.fd(), self.has_output()))
    }

    pub(super) fn has_output(&self) -> bool {
        self.is_open() && !self.write_closed && self.trusted.conn.has_output()
    }

    /// Appends an encoded message to the send buffer.
    pub(super) fn queue(&mut self, message: &[u8]) {
        if self.is_open() {
            self.trusted.queue_encoded(message);
        }
    }

    /// Writes as much as the connection takes.
    pub(super) fn flush(&mut self) {
        if !self.has_output() {
            return;
        }
        match self.trusted.conn.flush() {
            Ok(()) => {}
            // Messages that it sent before are still to be read, and show how it ended.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.write_closed = true,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                self.write_closed = true;
                self.reset = Some(error.to_string());
            }
            Err(error) => self.state = ConnState::Broken(error.to_string()),
        }
    }

    /// Writes and reads as much as possible; messages have `limit` bytes at most.
    pub(super) fn pump(&mut self, limit: usize) {
        self.flush();
        if !self.is_open() {
            return;
        }
        let end = self.trusted.read(limit);
        // Messages that came before the end count.
        loop {
            match self.trusted.next(limit) {
                Ok(None) => break,
                Ok(Some(Message::Leave(started))) => {
                    self.left.extend(started.map(|started| Departure { rank: self.rank, started }));
                    self.state = ConnState::Left;
                    return;
                }
                Ok(Some(Message::Left(departure))) => self.left.push(departure),
                Ok(Some(Message::Lost(rank))) => self.lost = Some(rank),
                Ok(Some(Message::GaveUp(text))) => {
                    // Rank 0 passes on the reasons of others, all others send their own.
                    let rank = if self.rank == 0 { text.rank } else { self.rank };
                    self.abort_texts.push(AbortText { rank, ..text });
                }
                Ok(Some(Message::Resend)) if self.roster.is_some() => {
                    if let Some(roster) = self.roster.take() {
                        self.trusted.queue_encoded(&roster);
                    }
                }
                Ok(Some(message)) if self.messages.len() < AHEAD => {
                    // A rank that takes part in an exchange has the roster.
                    if let Message::Part { .. } = message {
                        self.roster = None;
                    }
                    self.messages.push_back(message);
                }
                Ok(Some(_)) | Err(_) => {
                    self.state = ConnState::Broken("it sent something without meaning".into());
                    return;
                }
            }
        }
        match end {
            Ok(ReadStatus::Open) => {}
            Ok(ReadStatus::Closed) => {
                self.state = self.reset.take().map_or(ConnState::Gone, ConnState::Broken)
            }
            Err(error) => self.state = ConnState::Broken(error.to_string()),
        }
    }
}
