//! Random calls and random packets: no call panics (a panic would return EIO) or takes longer than the script's own
//! time, with blocking sockets and bad pointers included, and the clock does not go back.
#![allow(unsafe_code, reason = "calls what C calls")]

use core::ffi::{c_int, c_void};
use core::mem::{MaybeUninit, size_of};
use core::time::Duration;
use std::io;
use std::time::Instant;

use shouter_packetdrill::{PacketdrillInterface, packetdrill_interface_init};

const LOCAL: [u8; 4] = [192, 168, 0, 1];
const REMOTE: [u8; 4] = [192, 0, 2, 1];
const PORT: u16 = 8080;

/// The delay of a call that other load on the machine may cause.
const MOMENT: Duration = Duration::from_secs(5);

/// Xorshift: sufficient for this test.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// One's complement sum (RFC 1071).
fn sum(so_far: u32, bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let mut all = words.fold(so_far, |all, word| all + word);
    while all >> 16 > 0 {
        all = (all & 0xffff) + (all >> 16);
    }
    all
}

/// A valid IPv4 packet with a TCP segment.
fn segment(
    ports: (u16, u16),
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    options: &[u8],
    data: &[u8],
) -> Vec<u8> {
    let header_len = 20 + options.len().div_ceil(4) * 4;
    let mut tcp = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
    tcp.extend(seq.to_be_bytes());
    tcp.extend(ack.to_be_bytes());
    tcp.extend([((header_len / 4) << 4) as u8, flags]);
    tcp.extend(window.to_be_bytes());
    tcp.extend([0; 4]);
    tcp.extend(options);
    tcp.resize(header_len, 0);
    tcp.extend(data);
    let len = (tcp.len() as u16).to_be_bytes();
    let checksum = !sum(sum(sum(sum(6, &REMOTE), &LOCAL), &len), &tcp) as u16;
    tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
    let total = (20 + tcp.len() as u16).to_be_bytes();
    let mut ip = vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 6, 0, 0];
    ip.extend(REMOTE);
    ip.extend(LOCAL);
    let checksum = !sum(0, &ip) as u16;
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    [ip, tcp].concat()
}

fn address(ip: [u8; 4], port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip) },
        sin_zero: [0; 8],
    }
}

struct Run {
    ifc: PacketdrillInterface,
    random: Random,
    seed: u64,
    /// The last packet from the stack: ports, and the numbers of an answer.
    last: ((u16, u16), u32, u32),
    packets: u64,
    clock: i64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut ifc = MaybeUninit::uninit();
        // SAFETY: no flags, and room for the structure, which the call fills.
        let ifc = unsafe {
            packetdrill_interface_init(core::ptr::null(), ifc.as_mut_ptr());
            ifc.assume_init()
        };
        let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Self { ifc, random, seed, last: ((40_000, PORT), 1, 0), packets: 0, clock: 0 }
    }

    /// Checks that no call fails with EIO.
    fn check(&self, what: &str, result: i64) -> i64 {
        let errno = io::Error::last_os_error().raw_os_error();
        assert!(result >= 0 || errno != Some(libc::EIO), "seed {}: {what} panicked", self.seed);
        result
    }

    fn fd(&mut self) -> c_int {
        self.random.below(14) as c_int + 2
    }

    fn nonblocking(&self, fd: i64) {
        // SAFETY: the interface's own userdata, as in all calls below.
        unsafe { (self.ifc.fcntl)(self.ifc.userdata, fd as c_int, libc::F_SETFL, libc::O_NONBLOCK.into()) };
    }

    /// The script's time.
    fn now(&self) -> i64 {
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        // SAFETY: the structure is this function's.
        let read = unsafe { (self.ifc.gettimeofday)(self.ifc.userdata, &mut time, core::ptr::null_mut()) };
        self.check("gettimeofday", read.into());
        time.tv_sec * 1_000_000 + time.tv_usec
    }

    /// Runs a step, which may take as long as the script's clock moved, and a margin for the machine.
    fn timed(&mut self, step: impl FnOnce(&mut Self)) {
        let (before, began) = (self.now(), Instant::now());
        step(self);
        let took = began.elapsed();
        let own = Duration::from_micros(u64::try_from(self.now() - before).unwrap_or(0));
        assert!(took <= own + MOMENT, "seed {}: a call took {took:?}, the script {own:?}", self.seed);
    }

    /// One random call.
    fn call(&mut self) {
        let user = self.ifc.userdata;
        let (fd, other) = (self.fd(), self.fd());
        let mut bytes = vec![7u8; self.random.below(5000) as usize];
        let len = bytes.len();
        let at = match self.random.below(8) {
            0 => self.random.one_of(&[core::ptr::null_mut(), core::ptr::dangling_mut::<u64>().cast()]),
            _ => bytes.as_mut_ptr().cast::<c_void>(),
        };
        let to =
            address(self.random.one_of(&[LOCAL, REMOTE, [0; 4]]), self.random.one_of(&[PORT, 40_000, 0]));
        let (to, to_len) = (&raw const to, size_of::<libc::sockaddr_in>() as u32);
        let flags = self.random.one_of(&[
            0,
            libc::MSG_PEEK,
            libc::MSG_TRUNC,
            libc::MSG_WAITALL,
            0x4000_0000,
            libc::MSG_OOB,
            libc::MSG_MORE,
            libc::MSG_EOR,
            libc::MSG_PEEK | libc::MSG_WAITALL,
        ]);
        let ifc = &self.ifc;
        let kind = self.random.below(21);
        // SAFETY: every pointer is to memory of this function that is as long as is said, or to where there is none.
        let result: i64 = unsafe {
            match kind {
                0 => {
                    let kind = self.random.one_of(&[libc::SOCK_STREAM, libc::SOCK_DGRAM]);
                    let mode = self.random.one_of(&[0, libc::SOCK_NONBLOCK, libc::SOCK_NONBLOCK]);
                    let fd = (ifc.socket)(user, libc::AF_INET, kind | mode, 0).into();
                    if fd > 16 {
                        (ifc.close)(user, fd as c_int);
                    }
                    fd
                }
                1 => (ifc.bind)(user, fd, to.cast(), to_len).into(),
                2 => (ifc.listen)(user, fd, self.random.below(4) as c_int - 1).into(),
                3 => {
                    let fd = (ifc.accept)(user, fd, core::ptr::null_mut(), core::ptr::null_mut()).into();
                    self.nonblocking(fd);
                    fd
                }
                4 => (ifc.connect)(user, fd, to.cast(), to_len).into(),
                5 | 6 => (ifc.recv)(user, fd, at, len, flags) as i64,
                7 | 8 => (ifc.send)(user, fd, at, len, flags) as i64,
                9 => (ifc.sendto)(user, fd, at, len, 0, to.cast(), to_len) as i64,
                10 => (ifc.close)(user, fd).into(),
                11 => (ifc.shutdown)(user, fd, self.random.below(4) as c_int).into(),
                12 | 13 => {
                    let level =
                        self.random.one_of(&[libc::SOL_SOCKET, libc::IPPROTO_TCP, libc::IPPROTO_IPV6]);
                    let (name, mut len) = (self.random.below(40) as c_int, self.random.below(300) as u32);
                    let mut value = [0u8; 300];
                    value[0] = self.random.next() as u8;
                    value[1] = self.random.one_of(&[0, 0, 1, 255]);
                    value[4] = self.random.one_of(&[0, 1]);
                    if kind == 12 {
                        (ifc.setsockopt)(user, fd, level, name, value.as_ptr().cast(), len).into()
                    } else {
                        (ifc.getsockopt)(user, fd, level, name, value.as_mut_ptr().cast(), &mut len).into()
                    }
                }
                14 => {
                    let mut polled = [libc::pollfd { fd, events: -1, revents: 0 }; 2];
                    polled[1].fd = other;
                    (ifc.poll)(user, polled.as_mut_ptr(), 2, self.random.below(4) as c_int - 1).into()
                }
                15 => (ifc.epoll_create)(user, 1).into(),
                16 => {
                    let events = self.random.one_of(&[1, 4, 0x8000_0001, 0x4000_0005, 0xffff_ffff]);
                    let mut event = libc::epoll_event { events, u64: 1 };
                    let operation = self.random.below(4) as c_int;
                    let controlled: i64 = (ifc.epoll_ctl)(user, fd, operation, other, &mut event).into();
                    self.check("epoll_ctl", controlled);
                    (ifc.epoll_wait)(user, fd, &mut event, 1, self.random.below(3) as c_int).into()
                }
                17 => {
                    let mut ends = [0; 2];
                    let made: i64 = (ifc.pipe)(user, ends.as_mut_ptr()).into();
                    ends.iter().for_each(|end| self.nonblocking((*end).into()));
                    made
                }
                18 => {
                    let (none, limit) = (core::ptr::null_mut(), self.random.below(9000) as usize);
                    (ifc.splice)(user, fd, none, other, none, limit, libc::SPLICE_F_NONBLOCK) as i64
                }
                19 => {
                    let mut pieces = [libc::iovec { iov_base: at, iov_len: len }; 2];
                    pieces[0].iov_len = len / 2;
                    pieces[1].iov_base = at.wrapping_byte_add(len / 2);
                    pieces[1].iov_len = len - len / 2;
                    let mut control = [0u64; 4];
                    let mut message: libc::msghdr = MaybeUninit::zeroed().assume_init();
                    message.msg_iov = pieces.as_mut_ptr();
                    message.msg_iovlen = 2;
                    message.msg_control = control.as_mut_ptr().cast();
                    message.msg_controllen = self.random.below(33) as usize;
                    (ifc.recvmsg)(user, fd, &mut message, flags) as i64
                }
                _ => {
                    let mut value = 1;
                    let request =
                        self.random.one_of(&[libc::FIONREAD, libc::TIOCOUTQ, libc::FIONBIO, 0x894b, 1]);
                    (ifc.ioctl)(user, fd, request, &mut value).into()
                }
            }
        };
        self.check(&format!("call {kind}"), result);
    }

    /// Injects an approximate answer to the last segment, or a malformed packet.
    fn packet(&mut self) {
        let (ports, seq, ack) = self.last;
        let ports =
            if self.random.below(8) == 0 { (40_000 + self.random.below(4) as u16, PORT) } else { ports };
        let near = |random: &mut Random, number: u32| match random.below(6) {
            0 => number.wrapping_add(random.below(3000) as u32).wrapping_sub(1500),
            1 if random.below(4) == 0 => random.next() as u32,
            _ => number,
        };
        let (seq, ack) = (near(&mut self.random, seq), near(&mut self.random, ack));
        let flags =
            self.random.one_of(&[0x02, 0x12, 0x10, 0x10, 0x10, 0x18, 0x18, 0x11, 0x04, 0x14, 0x01, 0xff, 0]);
        let window = self.random.one_of(&[0, 1, 500, 65_000]);
        let options: &[u8] = self.random.one_of(&[
            &[],
            &[2, 4, 5, 0xb4, 1, 3, 3, 7, 4, 2],
            &[5, 10, 0, 0, 0, 1, 0, 0, 0, 9],
            &[8, 255],
        ]);
        let data = vec![9; self.random.one_of(&[0, 0, 1, 100, 1400])];
        let mut packet = segment(ports, seq, ack, flags, window, options, &data);
        if self.random.below(10) == 0 {
            let at = self.random.below(packet.len() as u64) as usize;
            packet[at] = self.random.next() as u8;
            packet.truncate(packet.len() - self.random.below(30) as usize);
        }
        // SAFETY: the packet is as long as is said.
        let sent = unsafe { (self.ifc.netdev_send)(self.ifc.userdata, packet.as_ptr().cast(), packet.len()) };
        self.check("netdev_send", sent.into());
    }

    /// Takes the next packet, if there is one.
    fn take(&mut self) {
        let (mut packet, mut time) = ([0u8; 2048], 0);
        let mut len = packet.len();
        // SAFETY: the buffer is as long as is said.
        let taken = unsafe {
            (self.ifc.netdev_receive)(self.ifc.userdata, packet.as_mut_ptr().cast(), &mut len, &mut time)
        };
        self.check("netdev_receive", taken.into());
        if len >= 40 && packet[0] == 0x45 && packet[9] == 6 {
            self.packets += 1;
            let word =
                |at: usize| u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]]);
            let half = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
            let header = usize::from(packet[32] >> 4) * 4;
            let long =
                (len - 20 - header) as u32 + u32::from(packet[33] & 1) + u32::from(packet[33] >> 1 & 1);
            let answer = if packet[33] & 0x10 == 0 { 77 } else { word(28) };
            self.last = ((half(22), half(20)), answer, word(24).wrapping_add(long));
        }
    }

    fn clock(&mut self) {
        // SAFETY: the interface's own userdata.
        unsafe { (self.ifc.usleep)(self.ifc.userdata, self.random.below(100_000) as u32) };
        let now = self.now();
        assert!(now > self.clock, "seed {}: the clock went from {} to {now}", self.seed, self.clock);
        self.clock = now;
    }
}

#[test]
fn random_calls_and_packets() {
    let mut packets = 0;
    for seed in 1..=60 {
        let mut run = Run::new(seed);
        for _ in 0..600 {
            match run.random.below(10) {
                0..=4 => run.timed(Run::call),
                5..=7 => run.timed(Run::packet),
                8 => run.timed(Run::take),
                _ => run.clock(),
            }
        }
        packets += run.packets;
        // SAFETY: no call follows.
        unsafe { (run.ifc.free)(run.ifc.userdata) };
    }
    assert!(packets > 500, "only {packets} segments came back: the test reaches nothing");
}
