//! Our own TAP device: streams of TCP in super-segments, and an interface that is down, taken or badly named.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use shouter_netstack::device::{Device, Tap, TapError, Wakes};
use shouter_netstack::region::SharedBytes;
use shouter_netstack::stack::{PortConfig, PortId, Stack, StackConfig};
use shouter_netstack::tcp::{ConnectionId, Error};
use shouter_netstack::time::Instant;

use super::run;

const OURS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 2), 80);
const BYTES: usize = 8 << 20;
const MTU: usize = 1500;
/// How long the kernel's socket waits, and the test for it.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes that differ from a shift of themselves.
fn pattern() -> Vec<u8> {
    (0..BYTES as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

struct Server {
    stack: Stack<Tap>,
    port: PortId,
    started: std::time::Instant,
}

impl Server {
    fn new() -> Self {
        let tap = Tap::open("shouter0").unwrap();
        run("ip", "addr add 10.77.0.1/24 dev shouter0");
        run("ip", "link set dev shouter0 up");
        let mut stack = Stack::new(StackConfig::new(1));
        let port = stack.add_port(tap, PortConfig::new(*OURS.ip(), 24, MTU as u16)).unwrap();
        Self { stack, port, started: std::time::Instant::now() }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// Polls until `look` finds something; between polls it waits for frames.
    fn until<R>(&mut self, what: &str, mut look: impl FnMut(&mut Stack<Tap>, Instant) -> Option<R>) -> R {
        while self.started.elapsed() < PATIENCE {
            let now = self.now();
            let progress = self.stack.poll(now);
            if let Some(found) = look(&mut self.stack, now) {
                return found;
            }
            if progress.is_idle() {
                self.stack.device(self.port).unwrap().wait(Duration::from_millis(1)).unwrap();
            }
        }
        panic!("{what}: nothing within {PATIENCE:?}; {:?}", self.stack.counters());
    }

    fn accept(&mut self) -> ConnectionId {
        let listener = self.stack.tcp_mut().listen(OURS.into(), 1, None).unwrap();
        self.until("a connection", |stack, _| stack.tcp_mut().accept(listener)).0
    }
}

#[test]
fn streams_pass_in_super_segments() {
    super::in_namespace("tap::streams_pass_in_super_segments", super::has_tun(), || {
        let mut server = Server::new();
        let bytes = pattern();
        let sent = bytes.clone();
        let client = thread::spawn(move || {
            let mut client = TcpStream::connect_timeout(&OURS.into(), PATIENCE).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.write_all(&sent).unwrap();
            let mut answer = vec![0; BYTES];
            client.read_exact(&mut answer).unwrap();
            answer
        });
        let connection = server.accept();
        let mut got = vec![0; BYTES];
        let mut len = 0;
        server.until("the kernel's bytes", |stack, now| {
            loop {
                match stack.tcp_mut().read(now, connection, &mut got[len..]) {
                    Ok(more) => len += more,
                    Err(Error::WouldBlock) => return None,
                    Err(why) => panic!("{why}"),
                }
                if len == BYTES {
                    return Some(());
                }
            }
        });
        assert!(got == bytes, "other bytes than the kernel sent");
        let received = server.stack.device_counters(server.port);
        let answer = SharedBytes::new(bytes.clone()).unwrap();
        let now = server.now();
        server.stack.tcp_mut().write_shared(now, connection, &answer).unwrap();
        server.until("the end of the client", |_, _| client.is_finished().then_some(()));
        assert!(client.join().unwrap() == bytes, "other bytes than we sent");
        let all = server.stack.device_counters(server.port);
        let segments = (BYTES / MTU) as u64;
        assert!(received.rx_frames < segments / 4, "{} frames of {segments} segments", received.rx_frames);
        let sent = all.tx_frames - received.tx_frames;
        assert!(sent < segments / 4, "{sent} frames of {segments} segments");
        let counters = server.stack.counters();
        assert_eq!((counters.rx_tcp_checksum, all.dropped), (0, 0), "{counters:?}");
    });
}

#[test]
fn an_interface_that_is_down_drops_frames_and_says_so() {
    super::in_namespace("tap::an_interface_that_is_down_drops_frames_and_says_so", super::has_tun(), || {
        let mut server = Server::new();
        let port = server.port;
        let ask = |server: &mut Server, number| {
            let now = server.now();
            server.stack.ping(now, Ipv4Addr::new(10, 77, 0, 1), 1, number, b"").unwrap();
        };
        ask(&mut server, 1);
        server.until("an answer", |stack, _| stack.next_echo_reply());
        assert!(server.stack.device_mut(port).unwrap().link_up());
        run("ip", "link set dev shouter0 down");
        assert!(!server.stack.device_mut(port).unwrap().link_up());
        assert_eq!(server.stack.device_counters(port).dropped, 0);
        server.until("a frame that is dropped", |stack, now| {
            // Refused once the stack has noticed.
            let _ = stack.ping(now, Ipv4Addr::new(10, 77, 0, 1), 1, 2, b"");
            (stack.device_counters(port).dropped > 0).then_some(())
        });
        run("ip", "link set dev shouter0 up");
        ask(&mut server, 3);
        server.until("the last answer", |stack, _| {
            stack.next_echo_reply().filter(|answer| answer.sequence == 3)
        });
    });
}

#[test]
fn each_frame_ends_a_wait_of_a_stack() {
    super::in_namespace("tap::each_frame_ends_a_wait_of_a_stack", super::has_tun(), || {
        let mut server = Server::new();
        let peer = UdpSocket::bind("10.77.0.1:0").unwrap();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let event = || epoll::EventData::new_u64(0);
        let mut waits = 0;
        while waits < 100 {
            let wakes = server.stack.arm(&mut |descriptor| match epoll::add(
                &epoll,
                descriptor,
                event(),
                epoll::EventFlags::IN | epoll::EventFlags::ET,
            ) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(why) => panic!("{why}"),
            });
            assert_eq!(wakes, Wakes::Always);
            let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: event() }];
            let mut wait = |limit: Duration| {
                let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
                epoll::wait(&epoll, &mut events[..], Some(&limit)).unwrap() > 0
            };
            // What the kernel sends by itself, such as neighbour discovery, is none of the frames that are counted.
            let now = server.now();
            if server.stack.poll(now).is_idle() && !wait(Duration::ZERO) {
                peer.send_to(b"wake", OURS).unwrap();
                assert!(wait(PATIENCE), "wait {waits}");
                waits += 1;
            }
            server.stack.disarm();
        }
    });
}

#[test]
fn an_interface_that_is_deleted_is_an_error_of_the_wait() {
    super::in_namespace(
        "tap::an_interface_that_is_deleted_is_an_error_of_the_wait",
        super::has_tun(),
        || {
            let tap = Tap::open("shouter0").unwrap();
            tap.wait(Duration::ZERO).unwrap();
            tap.wait(Duration::from_millis(1)).unwrap();
            run("ip", "link delete shouter0");
            let error = tap.wait(PATIENCE).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::NotConnected);
            assert!(error.to_string().contains("shouter0 was deleted"), "{error}");
        },
    );
}

/// Another user of the interface may have set how frames are described: longer headers, or big endian ones.
#[test]
fn settings_of_an_interfaces_last_user_do_no_harm() {
    super::in_namespace("tap::settings_of_an_interfaces_last_user_do_no_harm", super::has_tun(), || {
        run("ip", "tuntap add dev shouter0 mode tap");
        describe_otherwise("shouter0");
        let mut server = Server::new();
        let now = server.now();
        server.stack.ping(now, Ipv4Addr::new(10, 77, 0, 1), 1, 1, b"").unwrap();
        server.until("an answer", |stack, _| stack.next_echo_reply());
        assert_eq!(server.stack.counters().rx_unknown_ethertype, 0);
    });
}

/// Opens the interface and asks for headers of 12 bytes.
fn describe_otherwise(name: &str) {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::options().read(true).write(true).open("/dev/net/tun").unwrap();
    let mut request = [0_u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    // IFF_TAP, IFF_NO_PI, IFF_VNET_HDR.
    request[16..18].copy_from_slice(&0x5002_u16.to_ne_bytes());
    let length = 12_i32;
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq` of 40 bytes, and TUNSETVNETHDRSZ reads an `int`.
    let done = unsafe {
        [
            libc::ioctl(file.as_raw_fd(), 0x4004_54ca, request.as_mut_ptr()),
            libc::ioctl(file.as_raw_fd(), 0x4004_54d8, &length),
        ]
    };
    assert_eq!(done, [0, 0], "{}", std::io::Error::last_os_error());
}

#[test]
fn an_interface_that_is_taken_or_badly_named_is_refused() {
    super::in_namespace(
        "tap::an_interface_that_is_taken_or_badly_named_is_refused",
        super::has_tun(),
        || {
            for name in ["", "a/b", "%d", "sixteen-letters.", "with space", ".."] {
                assert!(matches!(Tap::open(name), Err(TapError::Name { .. })), "{name}");
            }
            run("ip", "tuntap add dev shouter1 mode tap");
            run("ip", "link set dev shouter1 mtu 9000");
            let first = Tap::open("shouter1").unwrap();
            assert_eq!(first.capabilities().mtu, 9000);
            let second = Tap::open("shouter1").unwrap_err();
            assert!(matches!(&second, TapError::Attach { name, .. } if name == "shouter1"), "{second}");
            drop(first);
            // What the administrator made stays.
            let again = Tap::open("shouter1").unwrap();
            assert_eq!(again.capabilities().mtu, 9000);
            run("ip", "tuntap add dev tunnel0 mode tun");
            let wrong = Tap::open("tunnel0").unwrap_err();
            assert!(wrong.to_string().contains("tunnel0"), "{wrong}");
        },
    );
}
