//! One shard's stack, shared between the poller that polls it and the sockets of the shard's tasks.

use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::rc::Rc;
use std::task::Waker;

use shouter_netstack::device::Device;
use shouter_netstack::stack::Stack;
use shouter_netstack::tcp::{ConnectionId, Endpoint, ListenerId, TcpEvent};
use shouter_netstack::udp::{Sockets, UdpHandle};

use crate::runtime::{Activity, Announce, Clock, Instant, Poller, Wakes};

/// The part of a stack that sockets use, whatever its device.
pub(super) trait SocketStack {
    fn tcp(&mut self) -> &mut Endpoint;
    fn udp(&mut self) -> &mut Sockets;
    fn connect(
        &mut self,
        now: Instant,
        local: Option<std::net::SocketAddr>,
        remote: std::net::SocketAddr,
        options: Option<shouter_netstack::tcp::Options>,
    ) -> std::io::Result<ConnectionId>;
    fn send_datagram(
        &mut self,
        now: Instant,
        socket: UdpHandle,
        to: std::net::SocketAddr,
        bytes: &[u8],
    ) -> Result<(), shouter_netstack::stack::SendError>;
}

impl<D: Device> SocketStack for Stack<D> {
    fn tcp(&mut self) -> &mut Endpoint {
        self.tcp_mut()
    }

    fn udp(&mut self) -> &mut Sockets {
        self.udp_mut()
    }

    fn connect(
        &mut self,
        now: Instant,
        local: Option<std::net::SocketAddr>,
        remote: std::net::SocketAddr,
        options: Option<shouter_netstack::tcp::Options>,
    ) -> std::io::Result<ConnectionId> {
        self.tcp_connect(now, local, remote, options).map_err(super::tcp::connect_error)
    }

    fn send_datagram(
        &mut self,
        now: Instant,
        socket: UdpHandle,
        to: std::net::SocketAddr,
        bytes: &[u8],
    ) -> Result<(), shouter_netstack::stack::SendError> {
        self.udp_send_to(now, socket, to, &[], shouter_netstack::udp::Payload::Bytes(bytes))
    }
}

/// The tasks that wait for a connection.
#[derive(Default)]
pub(super) struct Waiters {
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
}

/// The stack, and the tasks that wait for its events.
pub(super) struct Shared<H: ?Sized> {
    pub(super) connections: HashMap<ConnectionId, Waiters>,
    pub(super) listeners: HashMap<ListenerId, Waker>,
    pub(super) datagrams: HashMap<UdpHandle, Waker>,
    pub(super) stack: H,
}

impl<H: SocketStack + ?Sized> Shared<H> {
    /// Turns the stack's events into wakers, which the caller calls outside of the borrow.
    fn dispatch(&mut self, woken: &mut Vec<Waker>) {
        while let Some(event) = self.stack.tcp().next_event() {
            match event {
                TcpEvent::Acceptable(listener) => woken.extend(self.listeners.remove(&listener)),
                TcpEvent::Readable(id) => {
                    woken.extend(self.connections.get_mut(&id).and_then(|waiters| waiters.reader.take()));
                }
                TcpEvent::Connected(id) | TcpEvent::Writable(id) => {
                    woken.extend(self.connections.get_mut(&id).and_then(|waiters| waiters.writer.take()));
                }
                TcpEvent::Failed(id, _) | TcpEvent::Closed(id) => {
                    if let Some(Waiters { reader, writer }) = self.connections.get_mut(&id) {
                        woken.extend(reader.take().into_iter().chain(writer.take()));
                    }
                }
                _ => {}
            }
        }
        if !self.datagrams.is_empty() {
            let stack = &mut self.stack;
            woken.extend(
                self.datagrams.extract_if(|socket, _| stack.udp().waiting(*socket) != 0).map(|(_, w)| w),
            );
        }
    }
}

/// The stack and its waiters while a call works on them.
pub(super) type Guard<'a> = RefMut<'a, Shared<dyn SocketStack>>;

/// A shard's stack as its tasks hold it. Cloning it is cheap; it stays on its thread.
#[derive(Clone)]
pub struct Net(Rc<RefCell<Shared<dyn SocketStack>>>);

impl std::fmt::Debug for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Net")
    }
}

impl Net {
    /// The stack and its waiters. Never held across an await or a waker's call.
    pub(super) fn shared(&self) -> Guard<'_> {
        self.0.borrow_mut()
    }

    /// The counters of the stack's TCP.
    pub fn tcp_counters(&self) -> shouter_netstack::tcp::Counters {
        *self.shared().stack.tcp().counters()
    }
}

/// The stack as a shard polls it.
pub struct NetPoller<D: Device> {
    shared: Rc<RefCell<Shared<Stack<D>>>>,
    woken: Vec<Waker>,
}

impl<D: Device> std::fmt::Debug for NetPoller<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NetPoller")
    }
}

/// Cuts a stack in two: a handle for the shard's tasks, and a poller for the shard.
pub(super) fn net<D: Device + 'static>(stack: Stack<D>) -> (Net, NetPoller<D>) {
    let shared = Rc::new(RefCell::new(Shared {
        connections: HashMap::new(),
        listeners: HashMap::new(),
        datagrams: HashMap::new(),
        stack,
    }));
    (Net(shared.clone()), NetPoller { shared, woken: Vec::new() })
}

impl<D: Device> Poller for NetPoller<D> {
    fn poll(&mut self, now: Instant) -> Activity {
        let progress = {
            let mut shared = self.shared.borrow_mut();
            let progress = shared.stack.poll(now);
            shared.dispatch(&mut self.woken);
            progress
        };
        let busy = !progress.is_idle() || !self.woken.is_empty();
        self.woken.drain(..).for_each(Waker::wake);
        Activity::from_busy(busy)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let shared = self.shared.borrow();
        // Data that a task wrote in the last part of a poll leaves with the next one.
        if has_unsent(&shared.stack) { Some(Instant::ZERO) } else { shared.stack.next_deadline() }
    }

    fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        self.shared.borrow_mut().stack.arm(announce)
    }

    fn disarm(&mut self) {
        self.shared.borrow_mut().stack.disarm();
    }

    fn has_unsent(&self) -> bool {
        has_unsent(&self.shared.borrow().stack)
    }
}

fn has_unsent<D: Device>(stack: &Stack<D>) -> bool {
    stack.tcp().wants_transmit() || stack.is_backlogged()
}

/// The time of the shard's poll; of a call from outside of one, the clock's.
pub(super) fn now() -> Instant {
    Clock.now()
}
