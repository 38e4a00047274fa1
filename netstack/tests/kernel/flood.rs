//! A flood of SYNs from addresses that nobody has, over af_packet, beside a transfer and new connections of the Linux
//! kernel, in a network namespace of the test's own.
//!
//! `SHOUTER_FLOOD=<SYNs a second>` sets the rate, `SHOUTER_SECONDS=<seconds>` how long it lasts.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use shouter_netstack::device::dpdk::DpdkDevice;
use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
use shouter_netstack::tcp::{ConnectionId, Error, TcpEvent};
use shouter_netstack::time::Instant;
use shouter_netstack::wire::checksum::pseudo_header;
use shouter_netstack::wire::ethernet::{self, EtherType, Mac};
use shouter_netstack::wire::ip::Protocol;
use shouter_netstack::wire::ipv4;
use shouter_netstack::wire::tcp::{Flags, Header, SeqNumber};

use super::run;

const OURS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 2), 80);

/// A hundred times the rate that kept all others out when stations in use made room for addresses being resolved.
const RATE: u64 = 30_000;
const SECONDS: u64 = 5;

/// Bytes a second that the transfer is offered.
const LOAD: u64 = 4 << 20;
const CONNECTIONS: usize = 100;

/// Frames made in advance, and sent over and over.
const FRAMES: usize = 1 << 16;
const FRAME_LEN: usize = 60;
const BATCH: u64 = 64;

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn a_flood_from_nobody_leaves_a_transfer_and_new_connections_alone() {
    let has_ethtool = Command::new("ethtool").arg("--version").output().is_ok();
    super::in_namespace(
        "flood::a_flood_from_nobody_leaves_a_transfer_and_new_connections_alone",
        has_ethtool,
        suffer,
    );
}

/// A packet socket of the kernel that sends by the interface `name`.
fn packet_socket(name: &str) -> (OwnedFd, libc::sockaddr_ll) {
    // SAFETY: a system call that takes three numbers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is open and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: all zero is a valid address.
    let mut to: libc::sockaddr_ll = unsafe { core::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    // SAFETY: a string that ends with zero.
    to.sll_ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) } as i32;
    (fd, to)
}

/// SYNs to us from all over the link.
fn frames(station: Mac) -> Vec<[u8; FRAME_LEN]> {
    let mut rng = SmallRng::seed_from_u64(1);
    let mut frame = || {
        let source = Ipv4Addr::new(10, 77, rng.random_range(1..255), rng.random_range(1..255));
        let link = ethernet::Repr {
            destination: station,
            source: Mac([2, 0, 0, 0, 0x77, 1]),
            ethertype: EtherType::Ipv4,
        };
        let header = Header {
            source_port: rng.random_range(1..=u16::MAX),
            destination_port: OURS.port(),
            seq: SeqNumber(rng.random()),
            flags: Flags::SYN,
            window: 1000,
            ..Header::default()
        };
        let mut segment = header.emit().as_bytes().to_vec();
        let sum = pseudo_header(source.octets(), OURS.ip().octets(), Protocol::Tcp, segment.len() as u16);
        let sum = sum.over(&segment).finish();
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        let ip = ipv4::Repr::new(source, *OURS.ip(), Protocol::Tcp, segment.len()).unwrap();
        let mut bytes = [&link.emit()[..], &ip.emit(), &segment].concat();
        bytes.resize(FRAME_LEN, 0);
        bytes.try_into().unwrap()
    };
    (0..FRAMES).map(|_| frame()).collect()
}

/// Sends `rate` frames a second by the kernel's end until stopped; returns how many.
fn flood(frames: &[[u8; FRAME_LEN]], rate: u64, stop: &AtomicBool) -> u64 {
    let (socket, mut to) = packet_socket("flood0");
    let begun = std::time::Instant::now();
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        let due = (begun.elapsed().as_nanos() * u128::from(rate) / 1_000_000_000) as u64;
        let count = (due - sent).min(BATCH);
        if count == 0 {
            std::thread::sleep(Duration::from_micros(50));
            continue;
        }
        let mut pieces: Vec<libc::iovec> = (sent..sent + count)
            .map(|number| {
                let frame = &frames[number as usize % FRAMES];
                libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: FRAME_LEN }
            })
            .collect();
        let mut messages: Vec<libc::mmsghdr> = pieces
            .iter_mut()
            .map(|piece| {
                // SAFETY: all zero is a valid message header.
                let mut message: libc::mmsghdr = unsafe { core::mem::zeroed() };
                message.msg_hdr.msg_name = (&raw mut to).cast();
                message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as u32;
                message.msg_hdr.msg_iov = piece;
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect();
        // SAFETY: the headers, and what they point to, live until the call returns, which only reads frames and address.
        let done = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count as u32, 0) };
        // Frames that the queue does not take are due again.
        sent += done.max(0) as u64;
    }
    sent
}

/// Our end: takes every connection, and reads its data.
fn serve(mut stack: Stack<DpdkDevice>, stop: &AtomicBool, read: &AtomicU64) -> Stack<DpdkDevice> {
    let begun = std::time::Instant::now();
    stack.tcp_mut().listen(OURS.into(), 1024, None).unwrap();
    let mut open: Vec<ConnectionId> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::ZERO + begun.elapsed();
        let progress = stack.poll(now);
        let tcp = stack.tcp_mut();
        while let Some(event) = tcp.next_event() {
            if let TcpEvent::Acceptable(listener) = event {
                open.extend(core::iter::from_fn(|| tcp.accept(listener)).map(|(id, _)| id));
            }
        }
        open.retain(|id| {
            loop {
                match tcp.read_chunk(now, *id) {
                    Ok(Some(chunk)) => drop(read.fetch_add(chunk.len() as u64, Ordering::Relaxed)),
                    Err(Error::WouldBlock) => return true,
                    Ok(None) | Err(_) => {
                        tcp.close(now, *id);
                        return false;
                    }
                }
            }
        });
        if progress.is_idle() {
            std::thread::yield_now();
        }
    }
    stack
}

/// Writes `LOAD` bytes a second until stopped; returns how many were due.
fn transfer(mut stream: TcpStream, stop: &AtomicBool) -> u64 {
    let (begun, mut written) = (std::time::Instant::now(), 0);
    stream.set_nonblocking(true).unwrap();
    let bytes = [7; 16 << 10];
    let due = || (begun.elapsed().as_nanos() * u128::from(LOAD) / 1_000_000_000) as u64;
    while !stop.load(Ordering::Relaxed) {
        let wanted = (due() - written).min(bytes.len() as u64) as usize;
        match stream.write(&bytes[..wanted]) {
            Ok(count) => written += count as u64,
            Err(why) => {
                assert_eq!(why.kind(), std::io::ErrorKind::WouldBlock, "the transfer's connection: {why}")
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    due()
}

fn suffer() {
    let (rate, seconds) =
        (from_environment("SHOUTER_FLOOD", RATE), from_environment("SHOUTER_SECONDS", SECONDS));
    // Only our stack answers at its end. The kernel computes its checksums: a packet socket sees frames before a NIC would.
    run("ip", "link add flood0 address 02:00:00:00:77:01 type veth peer name flood1");
    for end in ["flood0", "flood1"] {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{end}/disable_ipv6"), "1").unwrap();
        run("ethtool", &format!("-K {end} tx off tso off gso off gro off"));
        run("ip", &format!("link set {end} up"));
    }
    run("ip", "addr add 10.77.0.1/16 dev flood0");
    let device = super::device("af_packet:flood1");
    let mut stack = Stack::new(StackConfig::new(1));
    let station = Mac(shouter_netstack::device::Device::mac(&device));
    stack.add_port(device, PortConfig::new(*OURS.ip(), 16, 1500)).unwrap();

    let frames = frames(station);
    let (stop, calm, read) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(stack, &stop, &read));
        let stream = TcpStream::connect_timeout(&SocketAddr::from(OURS), Duration::from_secs(10)).unwrap();
        let writer = scope.spawn(|| transfer(stream, &calm));
        let flooder = scope.spawn(|| flood(&frames, rate, &calm));
        let begun = std::time::Instant::now();
        let until = |part: usize| begun + Duration::from_secs(seconds) * part as u32 / CONNECTIONS as u32;
        let (mut failed, mut slowest) = (0, Duration::ZERO);
        for part in 0..CONNECTIONS {
            std::thread::sleep(until(part).saturating_duration_since(std::time::Instant::now()));
            let at = std::time::Instant::now();
            let made = TcpStream::connect_timeout(&SocketAddr::from(OURS), Duration::from_secs(10));
            failed += usize::from(made.is_err());
            slowest = slowest.max(at.elapsed());
            // It has failed, and need not take all day.
            if failed > 3 {
                break;
            }
        }
        std::thread::sleep(until(CONNECTIONS).saturating_duration_since(std::time::Instant::now()));
        let arrived = read.load(Ordering::Relaxed);
        calm.store(true, Ordering::Relaxed);
        let took = begun.elapsed().as_secs_f64();
        let (due, sent) = (writer.join().unwrap(), flooder.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        let stack = server.join().unwrap();
        let (share, counters) = (arrived as f64 / due as f64, stack.counters());
        println!(
            "{:.0} SYNs a second sent, {:.0} taken; {share:.3} of {LOAD} bytes a second; {failed} of {CONNECTIONS} connections \
             failed, the slowest took {slowest:?}; {} not asked for",
            sent as f64 / took,
            counters.rx_tcp as f64 / took,
            counters.tx_neighbour_limited
        );
        assert!(share >= 0.8, "{share} of the load; {counters:?}");
        assert_eq!(failed, 0, "{counters:?}");
    });
}
