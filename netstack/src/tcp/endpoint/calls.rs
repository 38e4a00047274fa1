//! A user's calls on a connection: write, read, end it, look at it, change it.

use super::super::api::{ConnectionId, Error, Info, ReleaseToken, Sending, StateName};
use super::super::connection::{Connection, Context};
use super::super::options::Options;
use super::super::receiver::Chunk;
use super::Endpoint;
use crate::region::{Extent, SharedBytes};
use crate::time::Instant;

impl Endpoint {
    /// Runs a call of the user on its connection.
    #[inline]
    fn call_of<R>(
        &mut self,
        id: ConnectionId,
        run: impl FnOnce(&mut Connection, &mut Context<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        if self.user(id).is_none() {
            return Err(Error::Unknown);
        }
        self.call(id.index, run).unwrap_or(Err(Error::Unknown))
    }

    /// A call of the user.
    #[inline]
    fn use_of<R>(
        &mut self,
        now: Instant,
        id: ConnectionId,
        run: impl FnOnce(&mut Connection, &mut Context<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let result = self.call_of(id, run);
        // A call that could do nothing has changed nothing.
        if !matches!(result, Err(Error::WouldBlock)) {
            self.slots.settle(now, id.index, &mut self.timers);
        }
        result
    }

    /// A call of the user that writes.
    #[inline]
    fn write_of<R>(
        &mut self,
        now: Instant,
        id: ConnectionId,
        run: impl FnOnce(&mut Connection, &mut Context<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let result = self.call_of(id, run);
        if result.is_ok() {
            self.slots.settle_written(now, id.index, &mut self.timers);
        }
        result
    }

    /// A call of the user that reads. It can lead only to a window update.
    #[inline]
    fn read_of<R>(
        &mut self,
        now: Instant,
        id: ConnectionId,
        run: impl FnOnce(&mut Connection, &mut Context<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        if self.user(id).is_none() {
            return Err(Error::Unknown);
        }
        let done = self.call(id.index, |connection, cx| (run(connection, cx), connection.is_ack_due()));
        let (result, due) = done.unwrap_or((Err(Error::Unknown), false));
        if due {
            self.slots.settle(now, id.index, &mut self.timers);
        }
        result
    }

    /// Takes as many of the bytes as find room to be sent, and returns how many.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is no room; [`TcpEvent::Writable`](crate::tcp::TcpEvent::Writable) follows. Else [`Error`] says why not.
    pub fn write(&mut self, now: Instant, id: ConnectionId, bytes: &[u8]) -> Result<usize, Error> {
        self.write_by(now, id, |connection, cx| connection.write(bytes, cx))
    }

    /// The same for bytes that more will follow at once: a last segment that is less than full waits for them, until
    /// something is heard from the peer or, with nothing in flight, a retransmission time-out has passed.
    ///
    /// # Errors
    /// As [`Endpoint::write`].
    pub fn write_more(&mut self, now: Instant, id: ConnectionId, bytes: &[u8]) -> Result<usize, Error> {
        self.write_by(now, id, |connection, cx| connection.write_more(bytes, cx))
    }

    fn write_by(
        &mut self,
        now: Instant,
        id: ConnectionId,
        run: impl FnOnce(&mut Connection, &mut Context<'_>) -> Result<usize, Error>,
    ) -> Result<usize, Error> {
        let result = self.write_of(now, id, run);
        // Acknowledgements may not wake it when there is room: it may have nothing in flight.
        if result == Err(Error::WouldBlock)
            && self.shared.on_refused(id)
            && self.info(id).is_some_and(|info| info.writable > 0)
        {
            self.reclaim(now);
        }
        result
    }

    /// Ends a record after the bytes written so far: no segment will have bytes from before and from behind its end.
    ///
    /// # Errors
    /// [`Error`] gives the reason.
    pub fn end_record(&mut self, now: Instant, id: ConnectionId) -> Result<(), Error> {
        self.write_of(now, id, |connection, _| connection.end_record())
    }

    /// Sends the bytes that [`Options::cork`] or [`Endpoint::write_more`] holds back.
    ///
    /// # Errors
    /// [`Error::Unknown`] if the connection was closed.
    pub fn push(&mut self, now: Instant, id: ConnectionId) -> Result<(), Error> {
        self.use_of(now, id, |connection, _| {
            connection.push();
            Ok(())
        })
    }

    /// Queues bytes that stay where they are until [`TcpEvent::Released`](crate::tcp::TcpEvent::Released) gives `token` back.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is no room; [`TcpEvent::Writable`](crate::tcp::TcpEvent::Writable) follows. Else [`Error`] says why not.
    pub fn write_extent(
        &mut self,
        now: Instant,
        id: ConnectionId,
        extent: Extent,
        token: ReleaseToken,
    ) -> Result<(), Error> {
        self.use_of(now, id, |connection, cx| connection.write_extent(extent, token, cx))
    }

    /// Queues shared bytes, which are sent from where they are. The endpoint keeps them until the peer has acknowledged them all and no
    /// frame refers to them.
    ///
    /// ```
    /// # use shouter_netstack::device::Loopback;
    /// # use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
    /// # use shouter_netstack::time::Instant;
    /// use shouter_netstack::region::SharedBytes;
    ///
    /// # let (left, right) = Loopback::pair(1500, 64);
    /// # let mut client = Stack::new(StackConfig::new(1));
    /// # let mut server = Stack::new(StackConfig::new(2));
    /// # client.add_port(left, PortConfig::new([10, 0, 0, 1].into(), 24, 1500))?;
    /// # server.add_port(right, PortConfig::new([10, 0, 0, 2].into(), 24, 1500))?;
    /// # let mut now = Instant::ZERO;
    /// # let listener = server.tcp_mut().listen("10.0.0.2:80".parse()?, 1, None)?;
    /// # let connection = client.tcp_connect(now, None, "10.0.0.2:80".parse()?, None)?;
    /// # while !client.tcp().connected(connection)? {
    /// #     now += core::time::Duration::from_micros(1);
    /// #     client.poll(now);
    /// #     server.poll(now);
    /// # }
    /// let page = SharedBytes::new(vec![b'x'; 10_000]).ok_or("4 GiB and more")?;
    /// client.tcp_mut().write_shared(now, connection, &page)?; // Other connections may send it, too.
    /// # for _ in 0..1000 {
    /// #     now += core::time::Duration::from_micros(1);
    /// #     client.poll(now);
    /// #     server.poll(now);
    /// # }
    /// # let (accepted, _) = server.tcp_mut().accept(listener).ok_or("no connection")?;
    /// # assert_eq!(server.tcp_mut().read(now, accepted, &mut [0; 20_000])?, 10_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Endpoint::write_extent`].
    pub fn write_shared(&mut self, now: Instant, id: ConnectionId, bytes: &SharedBytes) -> Result<(), Error> {
        self.use_of(now, id, |connection, _| connection.write_shared(bytes))
    }

    /// Copies received bytes into `buffer` and returns how many; 0 is the end of the data.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there are none; [`TcpEvent::Readable`](crate::tcp::TcpEvent::Readable) follows. Else [`Error`] says why not.
    pub fn read(&mut self, now: Instant, id: ConnectionId, buffer: &mut [u8]) -> Result<usize, Error> {
        self.read_of(now, id, |connection, cx| connection.read(now, buffer, cx))
    }

    /// Copies received bytes into `buffer` and keeps them to be read, so that the window stays as it is; returns how
    /// many, 0 at the end of the data.
    ///
    /// # Errors
    /// As [`Endpoint::read`].
    pub fn peek(&mut self, id: ConnectionId, buffer: &mut [u8]) -> Result<usize, Error> {
        self.call_of(id, |connection, _| connection.peek(buffer))
    }

    /// Hands out received bytes without copying them; `None` is the end of the data.
    ///
    /// # Errors
    /// As [`Endpoint::read`].
    pub fn read_chunk(&mut self, now: Instant, id: ConnectionId) -> Result<Option<Chunk>, Error> {
        self.read_of(now, id, |connection, cx| connection.read_chunk(now, cx))
    }

    /// Ends writing: a FIN follows the written bytes. Reading goes on.
    ///
    /// # Errors
    /// [`Error`] gives the reason.
    pub fn shutdown(&mut self, now: Instant, id: ConnectionId) -> Result<(), Error> {
        self.use_of(now, id, |connection, _| connection.shutdown())
    }

    /// Lets go of a connection. Written bytes are still sent, then a FIN; if received data is unread, the peer gets a
    /// reset (RFC 9293 section 3.6, by way of RFC 2525 section 2.17). The id is unknown afterwards, and only
    /// [`TcpEvent::Released`](crate::tcp::TcpEvent::Released) may follow. Bytes that the peer does not take within
    /// [`Options::orphan_timeout`], or whose memory other writers need, are lost.
    pub fn close(&mut self, now: Instant, id: ConnectionId) {
        self.let_go(now, id, false);
    }

    /// Lets go of a connection at once, with a reset.
    pub fn abort(&mut self, now: Instant, id: ConnectionId) {
        self.let_go(now, id, true);
    }

    fn let_go(&mut self, now: Instant, id: ConnectionId, abort: bool) {
        if self.user(id).is_none() {
            return;
        }
        let end =
            self.call(
                id.index,
                |connection, cx| {
                    if abort { connection.abort(now, cx) } else { connection.close(now, cx) }
                },
            );
        if let Some(end) = end {
            self.dispose(now, id.index, end);
        }
        if self.slots.named(id).is_some_and(|(_, connection)| connection.is_over()) {
            self.release(id.index);
        }
        self.orphan(now, id.index);
    }

    /// The present state of a connection; `None` if it was closed.
    pub fn info(&self, id: ConnectionId) -> Option<Info> {
        self.user(id).map(Connection::info)
    }

    /// How the sending of a connection goes; `None` if it was closed. It counts outstanding segments, which takes
    /// longer than [`Endpoint::info`].
    pub fn sending(&self, now: Instant, id: ConnectionId) -> Option<Sending> {
        self.user(id).map(|connection| connection.sending(now))
    }

    /// The state of a connection; `None` if it was closed by this side.
    pub fn state(&self, id: ConnectionId) -> Option<StateName> {
        self.user(id).map(Connection::state)
    }

    /// Whether the handshake of a connection is over.
    ///
    /// # Errors
    /// [`Error::Failed`] if it failed, [`Error::Unknown`] if the connection was closed.
    pub fn connected(&self, id: ConnectionId) -> Result<bool, Error> {
        let connection = self.user(id).ok_or(Error::Unknown)?;
        match connection.failure() {
            Some(failure) => Err(failure.into()),
            None => Ok(!matches!(connection.state(), StateName::SynSent | StateName::SynReceived)),
        }
    }

    /// The options of a connection; `None` if it was closed.
    pub fn options(&self, id: ConnectionId) -> Option<&Options> {
        self.user(id).map(|connection| &**connection.options())
    }

    /// Changes options of a connection: Nagle's algorithm, keep-alive, time-outs, buffers, congestion control. Those
    /// agreed in the handshake stay.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it was closed.
    pub fn modify(
        &mut self,
        now: Instant,
        id: ConnectionId,
        change: impl FnOnce(&mut Options),
    ) -> Result<(), Error> {
        let mut options = self.options(id).ok_or(Error::Unknown)?.clone();
        change(&mut options);
        let options = self.options.get(Some(options));
        self.use_of(now, id, |connection, _| {
            connection.set_options(options);
            Ok(())
        })
    }
}
