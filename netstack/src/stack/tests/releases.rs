//! Memory comes back when it is acknowledged and no frame refers to it, and not before.

use core::net::SocketAddr;
use std::sync::Arc;

use super::*;
use crate::region::SharedBytes;
use crate::tcp;

/// A device's handling of frames at present.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    /// Sends them.
    Pass,
    /// Sends them, and keeps those with extents.
    Keep,
    /// Takes none.
    Shut,
    /// Takes one frame at a time.
    Trickle,
}

/// A device that may refer to extents for as long as the test wishes.
struct Keeping {
    inner: Loopback,
    mode: Rc<Cell<Mode>>,
    keeps: bool,
}

// SAFETY: frames are the inner device's; this one reads none.
#[allow(unsafe_code)]
unsafe impl Device for Keeping {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn mac(&self) -> [u8; 6] {
        self.inner.mac()
    }
    fn link_up(&mut self) -> bool {
        true
    }
    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> usize {
        if self.mode.get() == Mode::Shut {
            return 0;
        }
        if self.mode.get() == Mode::Trickle {
            let mut one = TxBatch::with_capacity(1);
            let taken = batch.frames().first().map_or(0, |frame| usize::from(one.push(*frame)));
            self.inner.transmit(now, &mut one);
            batch.consume(taken);
            return taken;
        }
        self.keeps |= batch.frames().iter().any(|frame| !frame.extents().is_empty());
        self.inner.transmit(now, batch)
    }
    fn receive(&mut self, now: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        self.inner.receive(now, budget, sink)
    }
    fn holds_extents(&self) -> bool {
        self.keeps && self.mode.get() == Mode::Keep
    }
    fn drop_waiting(&mut self) {
        self.keeps = false;
    }
    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

/// Two hosts, of which the first has such a device.
struct Hosts {
    a: Stack<Keeping>,
    b: Stack<Loopback>,
    mode: Rc<Cell<Mode>>,
    at_a: Collect,
    at_b: Collect,
    now: Instant,
}

impl Hosts {
    fn new() -> Self {
        let (inner, other) = Loopback::pair(1500, 64);
        let mode = Rc::new(Cell::new(Mode::Pass));
        let device = Keeping { inner, mode: mode.clone(), keeps: false };
        let known = |own, other, mac: Mac| PortConfig { neighbours: vec![(other, mac.0)], ..config(own) };
        Self {
            a: stack_of(device, known(A, B, MAC_B)),
            b: stack_of(other, known(B, A, MAC_A)),
            mode,
            at_a: Collect::default(),
            at_b: Collect::default(),
            now: at_micros(1000),
        }
    }

    fn rud(&mut self) -> SessionId {
        session(&mut self.b, B, A, (2, 1));
        session(&mut self.a, A, B, (1, 2))
    }

    fn step(&mut self) {
        self.a.poll_with(self.now, &mut self.at_a);
        self.b.poll_with(self.now, &mut self.at_b);
        self.now += Duration::from_micros(1);
    }

    fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.step());
    }

    /// Polls the first host at its deadlines, `count` times, while nothing arrives.
    fn when_due(&mut self, count: usize) {
        for _ in 0..count {
            let due = self.a.next_deadline().expect("a deadline");
            assert!(due <= self.now + Duration::from_micros(20), "the release is not waited for");
            self.now = self.now.max(due);
            self.a.poll_with(self.now, &mut self.at_a);
        }
    }

    fn connection(&mut self) -> tcp::ConnectionId {
        let local = SocketAddr::from((B, 80));
        let listener = self.b.tcp_mut().listen(local, 8, None).unwrap();
        let id = self.a.tcp_connect(self.now, None, local, None).unwrap();
        self.steps(100);
        assert!(self.b.tcp_mut().accept(listener).is_some());
        while self.a.tcp_mut().next_event().is_some() {}
        id
    }

    /// Whether an extent came back among the events of the first host.
    fn came_back(&mut self) -> Option<tcp::TcpEvent> {
        core::iter::from_fn(|| self.a.tcp_mut().next_event())
            .find(|event| matches!(event, tcp::TcpEvent::Released(..) | tcp::TcpEvent::Dropped(..)))
    }
}

#[test]
fn rud_releases_when_the_device_has_let_go() {
    let mut hosts = Hosts::new();
    let to_b = hosts.rud();
    hosts.mode.set(Mode::Keep);
    hosts.a.rud_mut().send(to_b, b"header", region().extent(0, 1000), MessageToken(7)).unwrap();
    hosts.steps(200);
    assert_eq!((hosts.a.rud().counters(to_b).acked, hosts.at_b.got.len()), (1, 1));
    assert!(hosts.at_a.released.is_empty(), "the device keeps the frame");
    hosts.mode.set(Mode::Pass);
    hosts.when_due(1);
    assert_eq!(hosts.at_a.released, [MessageToken(7)]);
}

#[test]
fn rud_releases_when_a_resend_has_left_and_what_was_sent_once_at_once() {
    let mut hosts = Hosts::new();
    let to_b = hosts.rud();
    hosts.steps(100);
    for message in [1, 2] {
        hosts.a.rud_mut().send(to_b, b"header", region().extent(0, 1000), MessageToken(message)).unwrap();
    }
    hosts.a.poll_with(hosts.now, &mut hosts.at_a);
    hosts.mode.set(Mode::Shut);
    // The peer does not run: the message that was sent last is sent again, and waits for the device.
    while hosts.a.rud().counters(to_b).resent == 0 {
        hosts.now += Duration::from_micros(10);
        hosts.a.poll_with(hosts.now, &mut hosts.at_a);
    }
    assert!(hosts.a.holds_extents());
    hosts.steps(100);
    assert_eq!((hosts.a.rud().counters(to_b).acked, hosts.at_b.got.len()), (2, 2));
    assert_eq!(hosts.at_a.released, [MessageToken(1)], "the other one waits in the batch");
    hosts.mode.set(Mode::Pass);
    hosts.when_due(2);
    assert_eq!(hosts.at_a.released, [MessageToken(1), MessageToken(2)]);
}

#[test]
fn after_a_fence_no_frame_refers_to_the_memory() {
    let mut hosts = Hosts::new();
    let to_b = hosts.rud();
    hosts.mode.set(Mode::Keep);
    let send = |hosts: &mut Hosts, token| {
        hosts.a.rud_mut().send(to_b, b"header", region().extent(0, 1000), MessageToken(token)).unwrap();
    };
    send(&mut hosts, 1);
    hosts.steps(200);
    assert!(hosts.at_a.released.is_empty());
    hosts.mode.set(Mode::Shut);
    send(&mut hosts, 2);
    hosts.steps(10);
    assert!(hosts.a.holds_extents());
    hosts.a.rud_mut().fence(to_b);
    hosts.a.drop_waiting();
    assert!(!hosts.a.holds_extents());
    hosts.mode.set(Mode::Pass);
    hosts.steps(50_000);
    assert!(hosts.at_b.got.iter().any(|(header, payload)| header == b"header" && payload.is_empty()));
    assert_eq!(hosts.at_a.released, [MessageToken(1), MessageToken(2)], "tokens come back as ever");
}

#[test]
fn tcp_releases_when_the_device_has_let_go() {
    let mut hosts = Hosts::new();
    let id = hosts.connection();
    hosts.mode.set(Mode::Keep);
    let extent = region().extent(0, 4000).unwrap();
    hosts.a.tcp_mut().write_extent(hosts.now, id, extent, tcp::ReleaseToken(7)).unwrap();
    for _ in 0..2000 {
        hosts.step();
        assert_eq!(hosts.came_back(), None, "the device keeps the frames");
    }
    assert_eq!(hosts.a.tcp().info(id).unwrap().unacknowledged, 0);
    hosts.mode.set(Mode::Pass);
    hosts.when_due(1);
    assert_eq!(hosts.came_back(), Some(tcp::TcpEvent::Released(id, tcp::ReleaseToken(7))));
}

#[test]
fn an_aborted_connections_memory_comes_back_when_its_frames_have_left() {
    let mut hosts = Hosts::new();
    let id = hosts.connection();
    hosts.mode.set(Mode::Shut);
    let extent = region().extent(0, 4000).unwrap();
    hosts.a.tcp_mut().write_extent(hosts.now, id, extent, tcp::ReleaseToken(8)).unwrap();
    hosts.step();
    assert!(hosts.a.holds_extents());
    hosts.a.tcp_mut().abort(hosts.now, id);
    hosts.steps(10);
    assert_eq!(hosts.came_back(), None, "its frames wait for the device");
    hosts.mode.set(Mode::Pass);
    hosts.when_due(2);
    assert_eq!(hosts.came_back(), Some(tcp::TcpEvent::Dropped(id, tcp::ReleaseToken(8))));
}

/// Shared bytes, and whether the stack still has them.
fn shared(bytes: &'static [u8]) -> (SharedBytes, impl Fn() -> bool) {
    let memory: Arc<[u8]> = bytes.into();
    let kept = Arc::downgrade(&memory);
    (SharedBytes::new(memory).unwrap(), move || kept.strong_count() > 0)
}

#[test]
fn shared_bytes_go_when_the_device_has_let_go() {
    let mut hosts = Hosts::new();
    let id = hosts.connection();
    hosts.mode.set(Mode::Keep);
    let (bytes, kept) = shared(&[7; 4000]);
    hosts.a.tcp_mut().write_shared(hosts.now, id, &bytes).unwrap();
    drop(bytes);
    for _ in 0..2000 {
        hosts.step();
        assert!(kept(), "the device keeps the frames");
    }
    assert_eq!(hosts.a.tcp().info(id).unwrap().unacknowledged, 0);
    hosts.mode.set(Mode::Pass);
    hosts.step();
    assert!(!kept());
}

#[test]
fn shared_bytes_of_an_aborted_connection_go_when_its_frames_have_left() {
    let mut hosts = Hosts::new();
    let id = hosts.connection();
    hosts.mode.set(Mode::Shut);
    let (bytes, kept) = shared(&[7; 4000]);
    hosts.a.tcp_mut().write_shared(hosts.now, id, &bytes).unwrap();
    drop(bytes);
    hosts.step();
    assert!(hosts.a.holds_extents());
    hosts.a.tcp_mut().abort(hosts.now, id);
    hosts.steps(10);
    assert!(kept(), "its frames wait for the device");
    hosts.mode.set(Mode::Pass);
    hosts.steps(2);
    assert!(!kept());
}

#[test]
fn shared_bytes_go_although_frames_wait_all_the_time() {
    const PIECE: usize = 1000;
    let mut hosts = Hosts::new();
    let id = hosts.connection();
    hosts.mode.set(Mode::Trickle);
    hosts.a.tcp_mut().modify(hosts.now, id, |options| options.send_buffer = 64 * PIECE).unwrap();
    let mut pieces = vec![];
    let (mut clear, mut most) = (0, 0);
    for _ in 0..20_000 {
        loop {
            let memory: Arc<[u8]> = [7; PIECE].into();
            let bytes = SharedBytes::new(memory.clone()).unwrap();
            if hosts.a.tcp_mut().write_shared(hosts.now, id, &bytes).is_err() {
                break;
            }
            pieces.push(Arc::downgrade(&memory));
        }
        hosts.step();
        while let Some(accepted) = hosts.b.tcp_mut().next_event() {
            if let tcp::TcpEvent::Readable(reader) = accepted {
                while hosts.b.tcp_mut().read(hosts.now, reader, &mut [0; 4096]).is_ok_and(|len| len > 0) {}
            }
        }
        clear += usize::from(!hosts.a.is_backlogged());
        pieces.retain(|piece| piece.strong_count() > 0);
        most = most.max(pieces.len());
    }
    assert!(clear < 200, "frames were to wait: the batch was empty {clear} times");
    assert!(most < 400, "{most} pieces were kept");
}

#[test]
fn shared_bytes_that_find_no_room_are_refused_and_not_kept() {
    let mut hosts = Hosts::new();
    let id = hosts.connection();
    hosts.mode.set(Mode::Shut);
    let room = hosts.a.tcp().info(id).unwrap().writable;
    let (first, first_kept) = shared(vec![1; room].leak());
    let (second, second_kept) = shared(&[2]);
    hosts.a.tcp_mut().write_shared(hosts.now, id, &first).unwrap();
    let refused = hosts.a.tcp_mut().write_shared(hosts.now, id, &second);
    assert_eq!(refused, Err(tcp::Error::WouldBlock));
    drop((first, second));
    assert!(first_kept() && !second_kept());
    // Nothing to send is done at once.
    let (empty, empty_kept) = shared(&[]);
    hosts.a.tcp_mut().write_shared(hosts.now, id, &empty).unwrap();
    drop(empty);
    assert!(!empty_kept());
}
