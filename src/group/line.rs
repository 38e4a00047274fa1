//! One connection of the star after the join: what has come on it, and how it ended.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use super::conn::{End, Trusted};
use super::error::ExchangeError;
use super::message::Message;

/// Messages of exchanges that may wait to be looked at; no rank has reason to send more ahead.
const AHEAD: usize = 8;

/// How a connection is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    Open,
    /// The rank has said that it leaves, whatever comes after it.
    Left,
    /// The other side's kernel has closed it in order, without a word of the rank: its process has ended.
    Gone,
    /// It was reset or timed out. A firewall does that too, so it says nothing of the process.
    Broken(String),
}

/// A connection to another rank.
pub(super) struct Line {
    trusted: Trusted,
    state: State,
    heard: VecDeque<Message>,
    lost: Option<u32>,
    /// The other side has closed and reads nothing any more.
    deaf: bool,
}

impl Line {
    pub(super) fn new(trusted: Trusted) -> Self {
        Self { trusted, state: State::Open, heard: VecDeque::new(), lost: None, deaf: false }
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// The rank whose process has ended, as the other side says.
    pub(super) fn lost(&self) -> Option<u32> {
        self.lost
    }

    /// The next message of an exchange.
    pub(super) fn hear(&mut self) -> Option<Message> {
        self.heard.pop_front()
    }

    /// What the other side could not go on for, while no exchange is under way here.
    pub(super) fn failure(&self) -> Option<&ExchangeError> {
        self.heard
            .iter()
            .find_map(|message| if let Message::Failed(error) = message { Some(error) } else { None })
    }

    /// The descriptor, and whether it waits for room to write; `None` when nothing can come any more.
    pub(super) fn waits(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.is_open().then(|| (self.trusted.conn.fd(), self.has_output()))
    }

    pub(super) fn has_output(&self) -> bool {
        self.is_open() && !self.deaf && self.trusted.conn.has_output()
    }

    /// Puts an encoded message behind what has yet to go.
    pub(super) fn queue(&mut self, message: &[u8]) {
        if self.is_open() {
            self.trusted.queue_encoded(message);
        }
    }

    /// Writes what the connection takes.
    pub(super) fn flush(&mut self) {
        if !self.has_output() {
            return;
        }
        match self.trusted.conn.flush() {
            Ok(()) => {}
            // What it sent before is still to be read, and tells how it ended.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.deaf = true,
            Err(error) => self.state = State::Broken(error.to_string()),
        }
    }

    /// Writes and reads what can be; messages have `limit` bytes at most.
    pub(super) fn pump(&mut self, limit: usize) {
        self.flush();
        if !self.is_open() {
            return;
        }
        let end = self.trusted.read(limit);
        // What came before the end counts.
        loop {
            match self.trusted.next(limit) {
                Ok(None) => break,
                Ok(Some(Message::Leave)) => {
                    self.state = State::Left;
                    return;
                }
                Ok(Some(Message::Lost(rank))) => self.lost = Some(rank),
                Ok(Some(message)) if self.heard.len() < AHEAD => self.heard.push_back(message),
                Ok(Some(_)) | Err(_) => {
                    self.state = State::Broken("it sent something without meaning".into());
                    return;
                }
            }
        }
        match end {
            Ok(End::Open) => {}
            Ok(End::Closed) => self.state = State::Gone,
            Err(error) => self.state = State::Broken(error.to_string()),
        }
    }
}
