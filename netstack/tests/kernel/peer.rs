//! Ping, UDP, fragments and errors of both IP versions, over a TAP interface.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::FromRawFd;
use std::time::Duration;

use shouter_netstack::device::{Device, Tap};
use shouter_netstack::ip::IcmpErrorKind;
use shouter_netstack::stack::{Ipv6Config, PortConfig, Stack, StackConfig};
use shouter_netstack::time::Instant;
use shouter_netstack::udp::{Payload, SocketConfig, UdpHandle};
use shouter_netstack::wire::icmpv4::{Echo, EchoKind, Message};

use super::run;

const KERNEL: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1))];
const OURS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)), IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2))];

/// Polls of the stack that something may take. Between two of them the kernel runs.
const POLLS: u32 = 20_000;

struct Host<D> {
    stack: Stack<D>,
    now: Instant,
}

impl<D: Device> Host<D> {
    /// Polls the stack until `look` finds something.
    fn until<R>(&mut self, what: &str, mut look: impl FnMut(&mut Stack<D>) -> Option<R>) -> R {
        for number in 0..POLLS {
            self.now += Duration::from_micros(200);
            self.stack.poll(self.now);
            if let Some(found) = look(&mut self.stack) {
                return found;
            }
            if number > 100 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        panic!("{what}: nothing after {POLLS} polls; {:?}", self.stack.counters());
    }

    fn bind(&mut self, address: IpAddr, port: u16) -> UdpHandle {
        self.stack.udp_mut().bind((address, port), SocketConfig::default()).unwrap()
    }
}

/// The result of a call; `None` if it would block.
fn ready<T>(result: std::io::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => panic!("{error}"),
    }
}

/// A raw socket of the kernel for ICMP or ICMPv6.
fn icmp_socket(version: IpAddr) -> UdpSocket {
    let (family, protocol) = match version {
        IpAddr::V4(_) => (libc::AF_INET, libc::IPPROTO_ICMP),
        IpAddr::V6(_) => (libc::AF_INET6, libc::IPPROTO_ICMPV6),
    };
    // SAFETY: a system call that takes three numbers.
    let fd =
        unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, protocol) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is open and nobody else's.
    unsafe { UdpSocket::from_raw_fd(fd) }
}

#[test]
fn the_kernel_and_we_understand_each_other() {
    super::in_namespace("peer::the_kernel_and_we_understand_each_other", super::has_tun(), || {
        let device = super::device("tap:shouter0");
        // DPDK gives both ends the same address.
        run("ip", "link set dev shouter0 address 02:00:00:00:77:01");
        converse(device);
    });
}

#[test]
fn the_kernel_and_we_understand_each_other_without_dpdk() {
    super::in_namespace(
        "peer::the_kernel_and_we_understand_each_other_without_dpdk",
        super::has_tun(),
        || {
            converse(Tap::open("shouter0").unwrap());
        },
    );
}

fn converse(device: impl Device) {
    run("ip", "addr add 10.77.0.1/24 dev shouter0");
    run("ip", "addr add fd77::1/64 dev shouter0 nodad");
    run("ip", "link set dev shouter0 up");
    run("ip", "link set dev lo up");

    let mut stack = Stack::new(StackConfig::new(1));
    let [IpAddr::V4(four), IpAddr::V6(six)] = OURS else { panic!("one address of each version") };
    let ipv6 = Some(Ipv6Config::new(six, 64));
    stack.add_port(device, PortConfig { ipv6, ..PortConfig::new(four, 24, 1500) }).unwrap();
    let mut host = Host { stack, now: Instant::ZERO };

    for (kernel, ours) in KERNEL.into_iter().zip(OURS) {
        the_kernel_answers_our_ping(&mut host, kernel);
        we_answer_the_kernels_ping(&mut host, ours, 1000);
        // Cut by the kernel, and our answer by us.
        we_answer_the_kernels_ping(&mut host, ours, 9000);
        datagrams_pass_both_ways(&mut host, kernel, ours);
        errors_pass_both_ways(&mut host, kernel, ours);
    }
    let counters = host.stack.counters();
    assert!(counters.rx_arp > 0 && counters.rx_neighbour > 0 && counters.rx_reassembled == 4, "{counters:?}");
    assert_eq!(counters.rx_icmp_checksum + counters.rx_udp_checksum + counters.rx_ipv4_checksum, 0);
}

fn the_kernel_answers_our_ping(host: &mut Host<impl Device>, kernel: IpAddr) {
    for len in [0, 56, 1400] {
        host.stack.ping(host.now, kernel, 7, len, &vec![0x5a; usize::from(len)]).unwrap();
        let reply = host.until("the kernel's reply", |stack| stack.next_echo_reply());
        assert_eq!((reply.from, reply.sequence, reply.len), (kernel, len, usize::from(len)));
    }
}

fn we_answer_the_kernels_ping(host: &mut Host<impl Device>, ours: IpAddr, len: usize) {
    let socket = icmp_socket(ours);
    let data = &vec![0xa5; len];
    let echo = Echo { kind: EchoKind::Request, identifier: 0x1234, sequence: len as u16, data };
    let mut request = [&Message::Echo(echo).emit()[..], echo.data].concat();
    if ours.is_ipv6() {
        // The kernel fills in the checksum.
        request[0] = 128;
    }
    socket.send_to(&request, (ours, 0)).unwrap();
    let mut buffer = [0; 10_000];
    host.until("our reply to the kernel", |_| {
        let (len, from) = ready(socket.recv_from(&mut buffer))?;
        // Raw sockets of IPv4 see the IP header, and both see other messages too.
        let (message, reply) = if ours.is_ipv4() { (&buffer[20..len], 0) } else { (&buffer[..len], 129) };
        let ours = from.ip() == ours && message[0] == reply && message[4..6] == [0x12, 0x34];
        ours.then(|| assert_eq!(message[8..], request[8..]))
    });
}

fn datagrams_pass_both_ways(host: &mut Host<impl Device>, kernel: IpAddr, ours: IpAddr) {
    let theirs = UdpSocket::bind((kernel, 0)).unwrap();
    theirs.set_nonblocking(true).unwrap();
    let peer = theirs.local_addr().unwrap();
    let socket = host.bind(ours, 5000);
    let bytes: Vec<u8> = (0..4000u32).map(|i| (i * 31 + i / 256) as u8).collect();
    // The last one does not fit a frame: the kernel cuts it.
    for len in [0, 1, 1001, 4000] {
        theirs.send_to(&bytes[..len], (ours, 5000)).unwrap();
        let mut buffer = [0; 5000];
        let got = host.until("the kernel's datagram", |stack| stack.udp_mut().recv(socket, &mut buffer));
        assert_eq!((got.len, got.from, got.local), (len, peer, ours));
        assert_eq!(buffer[..len], bytes[..len]);
        let back = len.min(1400);
        host.stack.udp_send_to(host.now, socket, peer, b"", Payload::Bytes(&bytes[..back])).unwrap();
        let (got, from) = host.until("our datagram", |_| ready(theirs.recv_from(&mut buffer)));
        assert_eq!((got, from), (back, SocketAddr::new(ours, 5000)));
        assert_eq!(buffer[..back], bytes[..back]);
    }
    host.stack.udp_mut().close(socket);
}

fn errors_pass_both_ways(host: &mut Host<impl Device>, kernel: IpAddr, ours: IpAddr) {
    let theirs = UdpSocket::bind((kernel, 0)).unwrap();
    theirs.set_nonblocking(true).unwrap();
    theirs.connect((ours, 5999)).unwrap();
    theirs.send(b"nobody is there").unwrap();
    let mut buffer = [0; 100];
    host.until("our port unreachable", |_| match theirs.recv(&mut buffer) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Some(()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        other => panic!("{other:?}"),
    });
    let closed = theirs.local_addr().unwrap().port();
    drop(theirs);
    let socket = host.bind(ours, 5001);
    host.stack.udp_send_to(host.now, socket, (kernel, closed), b"", Payload::Bytes(b"nobody")).unwrap();
    let error = host.until("the kernel's port unreachable", |stack| stack.udp_mut().take_error(socket));
    let code = if kernel.is_ipv4() { 3 } else { 4 };
    assert_eq!((error.kind, error.remote), (IcmpErrorKind::Unreachable { code }, (kernel, closed).into()));
    host.stack.udp_mut().close(socket);
}
