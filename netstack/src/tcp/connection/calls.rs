//! The user's calls: write and read (RFC 9293 sections 3.10.2 and 3.10.3).

use core::time::Duration;

use super::{Connection, ConnectionState, Context, EndReason};
use crate::region::{Extent, SharedBytes};
use crate::tcp::receiver::Chunk;
use crate::tcp::{Error, ReleaseToken};
use crate::time::Instant;

impl Connection {
    fn check_writable(&self) -> Result<(), Error> {
        if let Some(failure) = self.failure() {
            return Err(failure.into());
        }
        if self.user.has_shut() || self.is_over() { Err(Error::Shut) } else { Ok(()) }
    }

    /// Takes bytes to send; returns how many.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is no room: `TcpEvent::Writable` follows. [`Error::Shut`] after a shutdown, and the
    /// connection's failure.
    pub(crate) fn write(&mut self, bytes: &[u8], cx: &mut Context<'_>) -> Result<usize, Error> {
        self.check_writable()?;
        if bytes.is_empty() {
            return Ok(0);
        }
        match self.sender.write(cx.memory, bytes) {
            0 => Err(Error::WouldBlock),
            taken => Ok(taken),
        }
    }

    /// Takes bytes to send, with more to follow at once.
    ///
    /// # Errors
    /// As for [`Connection::write`].
    pub(crate) fn write_more(&mut self, bytes: &[u8], cx: &mut Context<'_>) -> Result<usize, Error> {
        let taken = self.write(bytes, cx)?;
        if taken > 0 && taken == bytes.len() {
            self.sender.expect_more();
        }
        Ok(taken)
    }

    /// Ends a record after the bytes written so far.
    ///
    /// # Errors
    /// As for [`Connection::write`], but for [`Error::WouldBlock`].
    pub(crate) fn end_record(&mut self) -> Result<(), Error> {
        self.check_writable()?;
        self.sender.end_record();
        Ok(())
    }

    /// Stops holding back the bytes written so far.
    pub(crate) fn push(&mut self) {
        self.sender.push();
    }

    /// Takes an extent to send without a copy; `TcpEvent::Released` gives the token back.
    ///
    /// # Errors
    /// As for [`Connection::write`].
    pub(crate) fn write_extent(
        &mut self,
        extent: Extent,
        token: ReleaseToken,
        cx: &mut Context<'_>,
    ) -> Result<(), Error> {
        self.check_writable()?;
        if extent.is_empty() {
            cx.released.push(token);
            cx.notify_released();
            return Ok(());
        }
        if self.sender.write_extent(extent, token) { Ok(()) } else { Err(Error::WouldBlock) }
    }

    /// Takes shared bytes to send without a copy.
    ///
    /// # Errors
    /// As for [`Connection::write`].
    pub(crate) fn write_shared(&mut self, bytes: &SharedBytes) -> Result<(), Error> {
        self.check_writable()?;
        if bytes.is_empty() || self.sender.write_shared(bytes) { Ok(()) } else { Err(Error::WouldBlock) }
    }

    /// Whether the end of the data was reached; else why there is none.
    fn at_end(&mut self) -> Result<(), Error> {
        if let Some(failure) = self.failure() {
            return Err(failure.into());
        }
        if self.receiver.finished()
            || matches!(self.state, ConnectionState::Over(EndReason::Closed | EndReason::TimeWait))
        {
            return Ok(());
        }
        Err(Error::WouldBlock)
    }

    /// The round trip that the receive buffer is tuned by.
    fn known_round_trip(&self) -> Option<Duration> {
        self.sender.round_trip()
    }

    /// Copies received bytes out; returns how many, zero at the end of the data (or for an empty buffer).
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is nothing: `TcpEvent::Readable` follows. The connection's failure.
    pub(crate) fn read(
        &mut self,
        now: Instant,
        buffer: &mut [u8],
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        self.user.on_read();
        let round_trip = self.known_round_trip();
        match self.receiver.read(now, buffer, round_trip, cx.pool) {
            0 if self.receiver.readable() > 0 => Ok(0),
            0 => self.at_end().map(|()| 0),
            count => Ok(count),
        }
    }

    /// Copies received bytes out and keeps them for the next read; returns how many, zero at the end of the data.
    ///
    /// # Errors
    /// As for [`Connection::read`].
    pub(crate) fn peek(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        self.user.on_read();
        match self.receiver.peek(buffer) {
            0 if self.receiver.readable() > 0 => Ok(0),
            0 => self.at_end().map(|()| 0),
            count => Ok(count),
        }
    }

    /// Hands received bytes out without a copy; `None` at the end of the data.
    ///
    /// # Errors
    /// As for [`Connection::read`].
    pub(crate) fn read_chunk(&mut self, now: Instant, cx: &mut Context<'_>) -> Result<Option<Chunk>, Error> {
        self.user.on_read();
        let round_trip = self.known_round_trip();
        match self.receiver.read_chunk(now, round_trip, cx.pool) {
            Some(chunk) => Ok(Some(chunk)),
            None => self.at_end().map(|()| None),
        }
    }
}
