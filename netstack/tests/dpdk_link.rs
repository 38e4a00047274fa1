//! Both ends of embedded links in one process, and a peer process that is killed.
#![cfg(feature = "dpdk")]
#![allow(unsafe_code, missing_docs)]

use core::ptr::NonNull;
use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use shouter_netstack::device::dpdk::{
    DpdkDevice, DpdkPortConfig, Eal, EalConfig, PayloadMode, Port, PortError,
};
use shouter_netstack::device::{Device, Frame, HEAD_MIN, Offload, RxChecksum, Transport, TxBatch, Wakes};
use shouter_netstack::region::{Extent, Region};
use shouter_netstack::time::Instant;
use shouter_netstack::wire::checksum;
use shouter_netstack::wire::ip::{Ecn, IpHeader, Protocol};

/// The devices do not look at the clock: any instant will do.
const NOW: Instant = Instant::ZERO;

/// A test that waits for another thread or process looks this often, and then fails. Each look yields or sleeps.
const LOOKS: u32 = 20_000;

/// Names the part that a child process plays, and where.
const CHILD: &str = "SHOUTER_TEST_DPDK_PEER";

/// Ports share the process: one test at a time, so that counts of ports and buffers mean something.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn eal() -> &'static Eal {
    Eal::init(&EalConfig::default()).expect("DPDK starts without root and without hugepages")
}

fn socket(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("shouter-{name}-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn config(spec: &str, mtu: u16) -> DpdkPortConfig {
    DpdkPortConfig { mtu, ..DpdkPortConfig::new(spec.parse().unwrap()) }
}

fn open(config: &DpdkPortConfig) -> DpdkDevice {
    let port = Port::try_open(eal(), config).unwrap_or_else(|e| panic!("{e}"));
    port.into_devices().remove(0)
}

/// Looks until `done` says so; true if it did.
fn wait_for(mut done: impl FnMut() -> bool) -> bool {
    for look in 0..LOOKS {
        if done() {
            return true;
        }
        if look < 1000 { std::thread::yield_now() } else { std::thread::sleep(Duration::from_millis(1)) }
    }
    false
}

/// Payload memory whose byte at `i` depends on `i` alone.
struct Memory {
    bytes: Vec<u8>,
}

impl Memory {
    fn new(len: usize) -> Self {
        let byte = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0];
        Self { bytes: (0..len).map(byte).collect() }
    }

    fn region(&self) -> Region {
        let base = NonNull::from(self.bytes.as_slice()).cast();
        // SAFETY: each test keeps the memory, unwritten, longer than the devices that read it.
        unsafe { Region::from_raw_parts(base, self.bytes.len()) }
    }
}

/// Ethernet header, then the frame's number.
fn header(number: u32) -> [u8; 18] {
    let mut header = [0x02; 18];
    header[12..14].copy_from_slice(&[0x88, 0xb5]); // IEEE 802 local experimental
    header[14..].copy_from_slice(&number.to_be_bytes());
    header
}

/// Sends frames of all sizes from 64 to 14 + `mtu` from `from` to `to`; each arrives once, in order, intact.
fn pass(from: &mut DpdkDevice, to: &mut DpdkDevice, memory: &Memory, mtu: usize) {
    let region = memory.region();
    let lengths: Vec<usize> =
        (64..=14 + mtu).step_by(61).chain([14 + mtu, 64, 14 + mtu - 1, 100, 575, 576]).collect();
    let offset = |i: usize| (i * 4099) % (memory.bytes.len() - mtu);
    let mut batch = TxBatch::with_capacity(64);
    let (mut sent, mut received) = (0, 0);
    let arrived = wait_for(|| {
        while sent < lengths.len() && batch.room() > 0 {
            let extent = region.extent(offset(sent), (lengths[sent] - 18) as u32).unwrap();
            assert!(batch.push(Frame::new(&[&header(sent as u32)], Some(extent)).unwrap()));
            sent += 1;
        }
        from.transmit(NOW, &mut batch);
        to.receive(NOW, 64, &mut |frame| {
            let bytes = frame.contiguous().unwrap();
            assert_eq!(bytes.len(), lengths[received], "frame {received}");
            assert_eq!(bytes[..18], header(received as u32), "frame {received}");
            let at = offset(received);
            assert!(bytes[18..] == memory.bytes[at..at + bytes.len() - 18], "payload of frame {received}");
            received += 1;
        });
        received == lengths.len()
    });
    assert!(arrived, "{received} of {} frames arrived", lengths.len());
}

/// A pair of ends, both driven here, both ways, with the payload copied and chained.
fn both_ways(server: &str, client: &str, mtu: u16) {
    let _alone = alone();
    let memory = Memory::new(1 << 20);
    let path = socket(server);
    let (server, client) = (format!("{server}:{}", path.display()), format!("{client}:{}", path.display()));
    let early = Port::try_open(eal(), &config(&client, mtu)).unwrap_err();
    assert!(matches!(early, PortError::NotYet { .. }), "{early}");
    for payload in [PayloadMode::Auto, PayloadMode::Copy] {
        let mut a = open(&DpdkPortConfig { payload, ..config(&server, mtu) });
        let mut b = open(&DpdkPortConfig { payload, mac: Some([2, 0, 0, 0, 0, 7]), ..config(&client, mtu) });
        assert_eq!(b.mac(), [2, 0, 0, 0, 0, 7]);
        assert_eq!(b.capabilities().mtu, mtu);
        assert!(wait_for(|| a.link_up() && b.link_up()), "the link comes up");
        for _ in 0..3 {
            pass(&mut a, &mut b, &memory, usize::from(mtu));
            pass(&mut b, &mut a, &memory, usize::from(mtu));
        }
        let (sent, received) = (a.counters(), b.counters());
        assert_eq!((sent.tx_frames, sent.tx_bytes), (received.rx_frames, received.rx_bytes));
        assert_eq!((sent.dropped, received.dropped), (0, 0));
        drop(b);
        drop(a);
        assert!(!path.exists(), "the socket is removed with the port");
    }
}

#[test]
fn vhost_and_virtio_carry_jumbo_frames_both_ways() {
    both_ways("vhost", "virtio", 9000);
}

#[test]
fn vhost_and_virtio_carry_standard_frames_both_ways() {
    both_ways("vhost", "virtio", 1500);
}

#[test]
fn memif_carries_jumbo_frames_both_ways() {
    both_ways("memif-server", "memif-client", 9000);
}

/// A server that has its socket, and has not started its port. The thread that turns clients away ends once the socket
/// is shut down; until then it keeps the socket open.
fn turn_away(path: &std::path::Path) -> (OwnedFd, JoinHandle<()>) {
    // SAFETY: the arguments are numbers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: it is this process's, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all-zero is an address without a path.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(path.as_os_str().as_encoded_bytes()) {
        *to = *from as libc::c_char;
    }
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address lives until the call returns.
    assert_eq!(unsafe { libc::bind(fd, (&raw const address).cast(), len) }, 0);
    // SAFETY: the arguments are numbers.
    assert_eq!(unsafe { libc::listen(fd, 8) }, 0);
    let turning = std::thread::spawn(move || {
        loop {
            // SAFETY: no address is asked for. It fails once the socket is shut down.
            let taken = unsafe { libc::accept(fd, core::ptr::null_mut(), core::ptr::null_mut()) };
            if taken < 0 {
                return;
            }
            // SAFETY: it was just made.
            drop(unsafe { OwnedFd::from_raw_fd(taken) });
        }
    });
    (socket, turning)
}

#[test]
fn a_memif_client_that_is_turned_away_tries_again() {
    let _alone = alone();
    let path = socket("early");
    let queues =
        |role: &str| DpdkPortConfig { queues: 4, ..config(&format!("{role}:{}", path.display()), 1500) };
    let (early, turning) = turn_away(&path);
    let away = Port::try_open(eal(), &queues("memif-client")).unwrap_err();
    assert!(matches!(away, PortError::NotYet { .. }), "{away}");
    // SAFETY: the arguments are numbers.
    assert_eq!(unsafe { libc::shutdown(early.as_raw_fd(), libc::SHUT_RDWR) }, 0);
    turning.join().unwrap();
    drop(early);
    let client = std::thread::spawn({
        let config = queues("memif-client");
        move || Port::open(eal(), &config, Duration::from_secs(30)).unwrap_or_else(|e| panic!("{e}"))
    });
    let server = Port::try_open(eal(), &queues("memif-server")).unwrap_or_else(|e| panic!("{e}"));
    let (mut server, mut client) = (server.into_devices(), client.join().unwrap().into_devices());
    let memory = Memory::new(1 << 20);
    // Each queue leads to the other end's of the same number.
    for (a, b) in server.iter_mut().zip(&mut client) {
        assert!(wait_for(|| a.link_up() && b.link_up()), "the link comes up");
        pass(a, b, &memory, 1500);
        pass(b, a, &memory, 1500);
    }
}

#[test]
fn embedded_links_have_to_be_polled() {
    let _alone = alone();
    for kind in ["vhost", "memif-server"] {
        let mut device = open(&config(&format!("{kind}:{}", socket("polled").display()), 1500));
        assert_eq!(device.arm(&mut |_| panic!("a descriptor")), Wakes::Never);
        device.disarm();
    }
}

#[test]
fn a_full_ring_takes_no_more_and_loses_nothing() {
    let _alone = alone();
    let path = socket("full");
    let mut vhost = open(&config(&format!("vhost:{}", path.display()), 1500));
    let mut virtio = open(&config(&format!("virtio:{}", path.display()), 1500));
    assert!(wait_for(|| vhost.link_up() && virtio.link_up()));
    for direction in 0..2 {
        let (from, to) = if direction == 0 { (&mut virtio, &mut vhost) } else { (&mut vhost, &mut virtio) };
        let mut batch = TxBatch::with_capacity(64);
        let (mut made, mut idle) = (0_u32, 0);
        // Until the device has taken nothing a few times over.
        while idle < 3 {
            while batch.room() > 0 {
                assert!(batch.push(Frame::new(&[&header(made), &[0; 46]], None).unwrap()));
                made += 1;
            }
            if from.transmit(NOW, &mut batch) == 0 {
                idle += 1
            } else {
                idle = 0
            }
            assert!(made < 100_000, "a ring without reader fills up");
        }
        let accepted = made - batch.frames().len() as u32;
        let mut next = 0_u32;
        assert!(wait_for(|| {
            to.receive(NOW, 64, &mut |frame| {
                assert_eq!(frame.head()[14..18], next.to_be_bytes());
                next += 1;
            });
            // Frames that were accepted and did not fit go out later, without new frames.
            from.receive(NOW, 1, &mut |_| ());
            next == accepted
        }));
        assert_eq!(from.counters().tx_frames, u64::from(accepted));
        assert!(wait_for(|| from.transmit(NOW, &mut batch) > 0 && batch.is_empty()), "and it goes on");
        assert!(wait_for(|| {
            to.receive(NOW, 64, &mut |_| next += 1);
            next == made
        }));
    }
}

#[test]
fn frames_that_are_too_long_are_dropped_and_counted() {
    let _alone = alone();
    let memory = Memory::new(1 << 16);
    let mut ring = open(&config("ring", 1500));
    let mut batch = TxBatch::with_capacity(4);
    for len in [100, 9000, 200] {
        let extent = memory.region().extent(0, len).unwrap();
        assert!(batch.push(Frame::new(&[&header(0)], Some(extent)).unwrap()));
    }
    assert_eq!(ring.transmit(NOW, &mut batch), 3);
    let mut lengths = Vec::new();
    ring.receive(NOW, 8, &mut |frame| lengths.push(frame.len()));
    assert_eq!(lengths, [118, 218]);
    assert_eq!(ring.counters().dropped, 1);
}

/// Ethernet, IPv4 and TCP headers of a frame with `len` bytes of payload, the TCP checksum left out.
fn tcp_headers(len: usize) -> Vec<u8> {
    let mut header = vec![2; 12];
    header.extend([0x08, 0x00]);
    let (from, to) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let ip = IpHeader::new(from, to, Protocol::Tcp, 20 + len, Ecn::NotEct).unwrap();
    header.extend_from_slice(ip.as_bytes());
    header.extend([0x10, 0, 0x20, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    header
}

/// A frame of TCP that leaves its checksum to the device, and to be split into segments of `segment_size` unless that is 0.
fn tcp_frame(extents: &[Extent], segment_size: u16) -> Frame {
    let len: usize = extents.iter().map(Extent::len).sum();
    let offload = Offload { transport: Transport::Tcp, l3_offset: 14, l4_offset: 34, segment_size };
    Frame::with_extents(&[&tcp_headers(len)], extents, offload).unwrap()
}

/// Sends one frame and returns it as it arrives: its bytes, the number of further pieces, and the device's results.
fn send_one(from: &mut DpdkDevice, to: &mut DpdkDevice, frame: Frame) -> (Vec<u8>, usize, RxChecksum, u16) {
    let mut batch = TxBatch::with_capacity(1);
    assert!(batch.push(frame));
    let mut arrived = None;
    assert!(
        wait_for(|| {
            from.transmit(NOW, &mut batch);
            from.receive(NOW, 1, &mut |_| ());
            to.receive(NOW, 64, &mut |frame| {
                assert!(arrived.is_none(), "more than one frame arrives");
                let pieces = frame.rest().len();
                assert!(pieces == 0 || frame.head().len() >= HEAD_MIN);
                arrived = Some((frame.to_vec(), pieces, frame.checksum, frame.segment_size));
            });
            arrived.is_some()
        }),
        "nothing arrives"
    );
    arrived.unwrap()
}

/// Both ends of a link, with offloads where requested.
fn offloading(name: &str, at_vhost: bool, at_virtio: bool, mtu: u16) -> (DpdkDevice, DpdkDevice) {
    let path = socket(name);
    let spec = |kind: &str| format!("{kind}:{}", path.display());
    let mut vhost = open(&DpdkPortConfig { offload: at_vhost, ..config(&spec("vhost"), mtu) });
    let mut virtio = open(&DpdkPortConfig { offload: at_virtio, ..config(&spec("virtio"), mtu) });
    assert!(wait_for(|| vhost.link_up() && virtio.link_up()), "the link comes up");
    (vhost, virtio)
}

/// The sum over pseudo header and segment of an arrived frame: valid if the checksum in it is.
fn checksum_ok(frame: &[u8]) -> bool {
    let pseudo =
        checksum::pseudo_header([10, 0, 0, 1], [10, 0, 0, 2], Protocol::Tcp, (frame.len() - 34) as u16);
    pseudo.over(&frame[34..]).is_valid()
}

#[test]
fn super_segments_pass_whole_both_ways() {
    let _alone = alone();
    let memory = Memory::new(1 << 17);
    let region = memory.region();
    for mtu in [1500, 9000] {
        let (mut vhost, mut virtio) = offloading("whole", true, true, mtu);
        for direction in 0..2 {
            let (from, to) =
                if direction == 0 { (&mut virtio, &mut vhost) } else { (&mut vhost, &mut virtio) };
            let offered = from.capabilities().clone();
            assert!(offered.tx_tcp_checksum && offered.tx_udp_checksum, "{offered:?}");
            assert_eq!(offered.tso_max, 65_535, "{offered:?}");
            let receiver = to.capabilities();
            assert!(receiver.rx_checksum && receiver.lro, "{receiver:?}");
            let cuts: [&[u32]; 4] = [&[60_000], &[1, 30_001, 29_997, 1], &[65_495], &[4000, 50_000]];
            for (round, lens) in cuts.into_iter().cycle().take(400).enumerate() {
                let mut at = round * 17;
                let extents: Vec<Extent> = lens
                    .iter()
                    .map(|&len| {
                        at += len as usize + 3;
                        region.extent(at - len as usize, len).unwrap()
                    })
                    .collect();
                let frame = tcp_frame(&extents, 1448);
                let (mut bytes, pieces, checksum, segment_size) = send_one(from, to, frame);
                assert_eq!((checksum, segment_size), (RxChecksum::Verified, 1448), "round {round}");
                assert!(pieces > 0, "put together, not handed over in pieces");
                bytes[50..52].fill(0);
                assert!(bytes == frame.pieces().collect::<Vec<_>>().concat(), "round {round} of {direction}");
            }
            // One segment whose checksum is left out, and frames that leave nothing out.
            let small = tcp_frame(&[region.extent(5, 1000).unwrap()], 0);
            let (bytes, pieces, checksum, segment_size) = send_one(from, to, small);
            assert_eq!((pieces, checksum, segment_size), (0, RxChecksum::Verified, 0));
            assert_eq!(bytes[54..], memory.bytes[5..1005]);
            pass(from, to, &memory, usize::from(mtu));
            assert_eq!((from.counters().dropped, to.counters().dropped), (0, 0));
        }
    }
}

#[test]
fn a_peer_without_offloads_gets_finished_frames() {
    let _alone = alone();
    let memory = Memory::new(1 << 17);
    let region = memory.region();
    for at_vhost in [true, false] {
        let (mut vhost, mut virtio) = offloading("one-sided", at_vhost, !at_vhost, 1500);
        let (from, to) = if at_vhost { (&mut vhost, &mut virtio) } else { (&mut virtio, &mut vhost) };
        assert_eq!(from.capabilities().tso_max, 0, "nothing is split that the other end would not take");
        let offered = from.capabilities().tx_tcp_checksum;
        assert!(offered, "the driver fills it in");
        let (bytes, _, checksum, _) = send_one(from, to, tcp_frame(&[region.extent(0, 1001).unwrap()], 0));
        assert!(checksum_ok(&bytes), "{checksum:?}");
        pass(from, to, &memory, 1500);
        pass(to, from, &memory, 1500);
    }
}

#[test]
fn a_stream_of_super_segments_loses_nothing() {
    let _alone = alone();
    let memory = Memory::new(1 << 17);
    let (mut vhost, mut virtio) = offloading("stream", true, true, 1500);
    for direction in 0..2 {
        let (from, to) = if direction == 0 { (&mut virtio, &mut vhost) } else { (&mut vhost, &mut virtio) };
        let mut batch = TxBatch::with_capacity(64);
        let (mut made, mut seen) = (0_usize, 0_usize);
        const FRAMES: usize = 3000;
        let len = |number: usize| 1 + (number * 7919) % 65_000;
        assert!(
            wait_for(|| {
                while made < FRAMES && batch.room() > 0 {
                    let extent = memory.region().extent(made, len(made) as u32).unwrap();
                    assert!(batch.push(tcp_frame(&[extent], 1448)));
                    made += 1;
                }
                from.transmit(NOW, &mut batch);
                from.receive(NOW, 1, &mut |_| ());
                to.receive(NOW, 64, &mut |frame| {
                    assert_eq!(frame.len(), 54 + len(seen), "frame {seen}");
                    let bytes = frame.to_vec();
                    assert!(bytes[54..] == memory.bytes[seen..seen + len(seen)], "frame {seen}");
                    seen += 1;
                });
                seen == FRAMES
            }),
            "{seen} of {made} frames arrive"
        );
        assert_eq!((from.counters().dropped, to.counters().dropped), (0, 0));
    }
}

#[test]
fn a_stale_socket_is_removed_and_a_live_one_is_not() {
    let _alone = alone();
    let path = socket("stale");
    let spec = format!("vhost:{}", path.display());
    drop(UnixListener::bind(&path).unwrap()); // the file stays
    assert!(path.exists());
    drop(open(&config(&spec, 1500)));

    let listener = UnixListener::bind(&path).unwrap();
    let error = Port::try_open(eal(), &config(&spec, 1500)).unwrap_err();
    assert!(matches!(error, PortError::SocketInUse { .. }), "{error}");
    assert!(path.exists());
    drop(listener);
    std::fs::remove_file(&path).unwrap();

    std::fs::write(&path, b"somebody's notes").unwrap();
    let error = Port::try_open(eal(), &config(&spec, 1500)).unwrap_err();
    assert!(matches!(error, PortError::Socket { .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"somebody's notes");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn what_cannot_be_opened_says_what_to_do() {
    let _alone = alone();
    for (spec, expected) in [
        ("vhost:/no/such/directory/a.sock", "directory that exists"),
        ("virtio:/no/such/directory/a.sock", "start the other side"),
        ("af_packet:no-such-if", "CAP_NET_RAW"),
        ("pci:0000:ff:1f.7", "vfio-pci"),
    ] {
        let message = Port::try_open(eal(), &config(spec, 1500)).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains(spec), "{message}");
    }
    let jumbo = DpdkPortConfig { queues: 65, ..config("null", 1500) };
    let message = Port::try_open(eal(), &jumbo).unwrap_err().to_string();
    assert!(message.contains("queues is 65"), "{message}");
    let large = DpdkPortConfig { ring_size: 32768, ..config("ring", 9000) };
    let message = Port::try_open(eal(), &large).unwrap_err().to_string();
    assert!(message.contains("raise EalConfig::memory_mb (now 256)"), "{message}");
    let error = Eal::init(&EalConfig { memory_mb: 64, ..EalConfig::default() }).unwrap_err().to_string();
    assert!(error.contains("runs already"), "{error}");
}

#[test]
fn starting_dpdk_does_not_pin_the_caller() {
    let allowed = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        status.lines().find(|l| l.starts_with("Cpus_allowed_list:")).unwrap().to_owned()
    };
    let before = allowed();
    eal();
    assert_eq!(allowed(), before);
    assert_eq!(std::thread::spawn(allowed).join().unwrap(), before);
}

/// More threads than the EAL has lcore ids, all of them alive to the end, drive a link in turn.
#[test]
fn a_queue_reuses_few_warm_buffers_whichever_thread_drives_it() {
    const THREADS: usize = 150;
    const FRAMES: usize = 8;
    let _alone = alone();
    let path = socket("warm");
    let vhost = open(&config(&format!("vhost:{}", path.display()), 9000));
    let virtio = open(&config(&format!("virtio:{}", path.display()), 9000));
    let link = Mutex::new((virtio, vhost));
    let up = || link.lock().map(|mut ends| ends.0.link_up() && ends.1.link_up()).unwrap();
    assert!(wait_for(up));
    let places = Mutex::new(HashSet::new());
    let all = Barrier::new(THREADS);
    let drive = || {
        let mut ends = link.lock().unwrap();
        let (virtio, vhost) = &mut *ends;
        let mut batch = TxBatch::with_capacity(FRAMES);
        for number in 0..FRAMES as u32 {
            assert!(batch.push(Frame::new(&[&header(number), &[0; 46]], None).unwrap()));
        }
        let mut received = 0;
        let arrived = wait_for(|| {
            virtio.transmit(NOW, &mut batch);
            vhost.receive(NOW, 64, &mut |frame| {
                places.lock().unwrap().insert(frame.head().as_ptr().addr());
                received += 1;
            });
            received == FRAMES
        });
        drop(ends);
        all.wait();
        assert!(arrived, "{received} of {FRAMES} frames arrived");
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(drive))));
    // A refill of the cache and a burst.
    let places = places.into_inner().unwrap().len();
    assert!(places <= 192, "{} frames lay in {places} places", THREADS * FRAMES);
}

#[test]
fn a_process_has_as_many_queues_as_dpdk_has_ids_and_says_so() {
    let _alone = alone();
    let many = DpdkPortConfig { queues: 64, ring_size: 32, ..config("null", 1500) };
    for _ in 0..3 {
        let _first = Port::try_open(eal(), &many).unwrap();
        let message = Port::try_open(eal(), &many).unwrap_err().to_string();
        assert!(message.contains("127 queues together"), "{message}");
    }
}

#[test]
fn ports_come_and_go() {
    let _alone = alone();
    let path = socket("again");
    let memory = Memory::new(1 << 18);
    for _ in 0..20 {
        let mut vhost = open(&config(&format!("vhost:{}", path.display()), 9000));
        let mut virtio = open(&config(&format!("virtio:{}", path.display()), 9000));
        assert!(wait_for(|| vhost.link_up() && virtio.link_up()));
        pass(&mut virtio, &mut vhost, &memory, 9000);
        // In either order.
        drop(vhost);
        drop(virtio);
    }
}

/// The part of a child process, when this binary was started as one: an end of a link that sends until it is killed.
#[test]
fn peer_process() {
    let Ok(spec) = std::env::var(CHILD) else { return };
    let mut device = open(&config(&spec, 9000));
    println!("\nopen");
    let memory = Memory::new(1 << 16);
    let extent = memory.region().extent(0, 8000).unwrap();
    let mut batch = TxBatch::with_capacity(32);
    // Ends with the parent, at the latest: the parent kills it, or its own death closes our standard input.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    loop {
        while batch.push(Frame::new(&[&header(7)], Some(extent)).unwrap()) {}
        if device.transmit(NOW, &mut batch) + device.receive(NOW, 32, &mut |_| ()) == 0 {
            std::thread::yield_now();
        }
    }
}

/// Starts a peer for `spec` and waits until its end is open.
fn peer(spec: &str) -> std::process::Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "peer_process", "--nocapture", "--test-threads=1"])
        .env(CHILD, spec)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "open"), "the peer opens its end");
    child
}

/// Kills the peer while frames flow both ways, several times over; this end lives on.
fn survives_its_peer(own: &str, others: &str) {
    let _alone = alone();
    let path = socket(&format!("kill-{own}"));
    let (own, others) = (format!("{own}:{}", path.display()), format!("{others}:{}", path.display()));
    let we_serve = own.starts_with("vhost");
    let memory = Memory::new(1 << 16);
    let extent = memory.region().extent(0, 8000).unwrap();
    let mut serving = we_serve.then(|| open(&config(&own, 9000)));
    for round in 0..4 {
        let mut child = peer(&others);
        // A server keeps its port for the next client; a client opens another.
        let mut device = serving.take().unwrap_or_else(|| open(&config(&own, 9000)));
        let mut batch = TxBatch::with_capacity(32);
        let before = device.counters();
        let mut drive = |device: &mut DpdkDevice| {
            while batch.push(Frame::new(&[&header(round)], Some(extent)).unwrap()) {}
            device.transmit(NOW, &mut batch);
            device.receive(NOW, 64, &mut |frame| assert_eq!(frame.len(), 8018));
        };
        assert!(wait_for(|| {
            drive(&mut device);
            let now = device.counters();
            now.rx_frames > before.rx_frames + 500 && now.tx_frames > before.tx_frames + 500
        }));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(
            wait_for(|| {
                drive(&mut device);
                !device.link_up()
            }),
            "the link goes down"
        );
        for _ in 0..1000 {
            drive(&mut device);
        }
        if we_serve {
            serving = Some(device);
        }
    }
}

#[test]
fn vhost_survives_the_death_of_virtio() {
    survives_its_peer("vhost", "virtio");
}

#[test]
fn virtio_survives_the_death_of_vhost() {
    survives_its_peer("virtio", "vhost");
}
