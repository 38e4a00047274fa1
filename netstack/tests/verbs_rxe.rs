//! Verbs between two soft-RoCE devices of one host, `rxe1` (10.9.0.1) and `rxe2` (10.9.0.2): in the virtual machine of
//! `scripts/vm-lab`, or wherever the two are set up. Elsewhere these tests say that they are skipped. There:
//!
//! ```text
//! cargo test -p shouter-netstack --no-default-features --features verbs --test verbs_rxe --no-run
//! scripts/vm-lab run --bin target/debug/deps/verbs_rxe-HASH -- 'two_rxe; verbs_rxe-HASH'
//! ```
//!
//! Two tests need more: `permission` a `chmod 600 /dev/infiniband/uverbs*` before it, and `lost_link`, which takes the link down
//! for good, `SHOUTER_TEST_RXE_LINK=va`.
#![cfg(feature = "verbs")]
#![allow(unsafe_code, missing_docs)]

#[path = "verbs_rxe/sides.rs"]
mod sides;

use std::os::unix::process::CommandExt;
use std::process::Command;

use shouter_netstack::verbs::{
    Access, AsyncEvent, Completion, Connection, Context, GidKind, LinkLayer, Opcode, Operation, PortState,
    QpConfig, QpState, Sges, Status, VerbsError, WorkRequest, devices, route,
};
use sides::{ADDRESSES, BUFFER, QUEUE, Side, connected, devices_are_there, shaken};

/// Set for the processes that give up their rights.
const CHILD: &str = "SHOUTER_TEST_VERBS_CHILD";
/// The interface of rxe1, where a test may lose all packets and take the link down: set in the virtual machine.
const LINK: &str = "SHOUTER_TEST_RXE_LINK";

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn ok(completions: &[Completion]) {
    for completion in completions {
        assert!(completion.is_ok(), "{completion:?}: {}", completion.status);
    }
}

#[test]
fn devices_are_found_and_routed_by_interface() {
    let Some(_guard) = devices_are_there() else { return };
    let found = devices().unwrap();
    let ports: Vec<_> = ["rxe1", "rxe2"]
        .into_iter()
        .map(|name| found.iter().find(|d| d.name == name).unwrap().ports[0].clone())
        .collect();
    for (port, address) in ports.iter().zip(ADDRESSES) {
        assert_eq!((port.number, port.link_layer, port.lid), (1, LinkLayer::Ethernet, 0));
        assert_eq!(port.state, PortState::Active);
        assert!((256..=4096).contains(&port.active_mtu), "{port:?}");
        let gid = port.gids.iter().find(|gid| gid.ipv4() == Some(address)).unwrap();
        assert_eq!(gid.kind, GidKind::RoceV2);
        assert!(gid.netdev.is_some());
    }
    let info = &found[0];
    assert!(
        info.max_qp_wr >= 64 && info.max_sge >= 3 && info.max_cqe >= 64 && info.max_rd_atomic >= 1,
        "{info:?}"
    );

    let raw = |side: usize| ports[side].gids.iter().map(|gid| gid.raw).collect::<Vec<_>>();
    let (ours, theirs) = route(&ports[0].gids, &raw(1)).unwrap().expect("a route to rxe2");
    assert_eq!(ours.ipv4(), Some(ADDRESSES[0]));
    assert_eq!(theirs, ADDRESSES[1].to_ipv6_mapped().octets());
    // TEST-NET-1 of RFC 5737, to which nobody has a route through this interface.
    let nowhere = std::net::Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().octets();
    assert_eq!(route(&ports[0].gids, &[nowhere]).unwrap(), None);

    match Context::open("rxe9") {
        Err(VerbsError::UnknownDevice { known, .. }) => assert!(known.contains("rxe1"), "{known}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn writes_with_immediate_arrive_whole() {
    let Some(_guard) = devices_are_there() else { return };
    let (mut a, b) = connected(|_| {});
    let bytes = pattern(65536, 1);
    a.buffer.write(0, &bytes).unwrap();
    b.pair.post_recv(&[70, 71]).unwrap();
    // As one range, then gathered from three.
    let whole = a.buffer.sge(0, 65536).unwrap();
    let third = |at| a.buffer.sge(at, 16384).unwrap();
    let requests = [
        WorkRequest::new(1, b.write_imm(0, 0x0102_0304), whole),
        WorkRequest::new(2, b.write_imm(65536, u32::MAX), [third(32768), third(0), third(16384)]),
    ];
    a.pair.post_send(&requests).unwrap();
    let received = b.done(2);
    ok(&received);
    assert_eq!(received.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [70, 71]);
    assert_eq!(received.iter().map(|c| c.imm).collect::<Vec<_>>(), [Some(0x0102_0304), Some(u32::MAX)]);
    assert_eq!(received.iter().map(|c| c.byte_len).collect::<Vec<_>>(), [65536, 49152]);
    assert!(received.iter().all(|c| c.opcode == Some(Opcode::RecvImm) && c.qp == b.pair.number()));
    assert_eq!(b.buffer.bytes(0, 65536).unwrap(), bytes);
    assert_eq!(b.buffer.bytes(65536, 16384).unwrap(), &bytes[32768..49152]);
    assert_eq!(b.buffer.bytes(65536 + 16384, 32768).unwrap(), &bytes[..32768]);
    let sent = a.done(2);
    ok(&sent);
    assert!(sent.iter().all(|c| c.opcode == Some(Opcode::Write) && c.imm.is_none()));
    assert_eq!(a.pair.state().unwrap(), QpState::ReadyToSend);
}

#[test]
fn an_empty_message_carries_a_value() {
    let Some(_guard) = devices_are_there() else { return };
    let (a, b) = connected(|_| {});
    b.pair.post_recv(&[5]).unwrap();
    a.pair.post_send(&[WorkRequest::new(1, Operation::SendImm { imm: 77 }, Sges::NONE)]).unwrap();
    let received = b.done(1);
    ok(&received);
    assert_eq!((received[0].opcode, received[0].imm), (Some(Opcode::Recv), Some(77)));
}

#[test]
fn inline_data_is_free_at_once() {
    let Some(_guard) = devices_are_there() else { return };
    let (mut a, b) = connected(|_| {});
    assert!(a.pair.max_inline() >= 64, "{}", a.pair.max_inline());
    let bytes = pattern(64, 9);
    a.buffer.write(0, &bytes).unwrap();
    let sge = a.buffer.sge(0, 64).unwrap();
    a.pair.post_send(&[WorkRequest::new(1, b.write(0), sge).inline()]).unwrap();
    a.buffer.write(0, &[0; 64]).unwrap();
    ok(&a.done(1));
    assert_eq!(b.buffer.bytes(0, 64).unwrap(), bytes);

    let large = a.buffer.sge(0, a.pair.max_inline() as usize + 1).unwrap();
    let refused = a.pair.post_send(&[WorkRequest::new(2, b.write(0), large).inline()]).unwrap_err();
    assert_eq!((refused.posted, refused.errno.0), (0, libc::EMSGSIZE));
}

#[test]
fn batches_complete_by_their_last() {
    let Some(_guard) = devices_are_there() else { return };
    let (mut a, b) = connected(|_| {});
    let bytes = pattern(40 * 256, 3);
    a.buffer.write(0, &bytes).unwrap();
    let requests: Vec<WorkRequest<'_>> = (0..40)
        .map(|i| {
            let request = WorkRequest::new(i as u64, b.write(i * 256), a.buffer.sge(i * 256, 256).unwrap());
            if i == 39 { request } else { request.unsignalled() }
        })
        .collect();
    a.pair.post_send(&requests).unwrap();
    let done = a.done(1);
    ok(&done);
    assert_eq!(done[0].wr_id, 39);
    assert_eq!(b.buffer.bytes(0, bytes.len()).unwrap(), bytes);
    assert_eq!(a.queue.poll(&mut [Completion::default(); 4]).unwrap(), 0);
}

#[test]
fn a_full_queue_says_how_many_it_took() {
    let Some(_guard) = devices_are_there() else { return };
    // The peer takes no write without a receive, so the queue fills up, and nothing completes meanwhile.
    let (a, b) = connected(|c| (c.rnr_retry, c.min_rnr_timer) = (7, 14));
    let sge = a.buffer.sge(0, 8).unwrap();
    let count = 4 * QUEUE as usize;
    let requests: Vec<_> =
        (0..count).map(|i| WorkRequest::new(i as u64, b.write_imm(0, i as u32), sge)).collect();
    let full = a.pair.post_send(&requests).unwrap_err();
    assert!(full.is_full(), "{full}");
    assert!((QUEUE as usize..count).contains(&full.posted), "{full}");
    let mut sent = 0;
    let mut received = 0;
    while sent < full.posted {
        b.pair.post_recv(&[0; 32]).unwrap();
        let some = a.done(32.min(full.posted - sent));
        ok(&some);
        for (at, completion) in (sent..).zip(&some) {
            assert_eq!(completion.wr_id, at as u64);
        }
        sent += some.len();
        for completion in b.done(some.len()) {
            assert_eq!(completion.imm, Some(received));
            received += 1;
        }
    }
}

#[test]
fn reads_fetch_the_peers_memory() {
    let Some(_guard) = devices_are_there() else { return };
    let (mut a, mut b) = connected(|_| {});
    let bytes = pattern(65536, 5);
    b.buffer.write(0, &bytes).unwrap();
    a.buffer.write(0, &[0; 65536]).unwrap();
    // The second write sends back the bytes that the read fetched, which only the fence makes right.
    let sge = a.buffer.sge(0, 65536).unwrap();
    let (remote, rkey) = (b.buffer.region().address(), b.buffer.region().rkey());
    let requests = [
        WorkRequest::new(1, Operation::Read { remote, rkey }, sge).unsignalled(),
        WorkRequest::new(2, b.write(65536), sge).fenced(),
    ];
    a.pair.post_send(&requests).unwrap();
    ok(&a.done(1));
    assert_eq!(a.buffer.bytes(0, 65536).unwrap(), bytes);
    assert_eq!(b.buffer.bytes(65536, 65536).unwrap(), bytes);

    let read = WorkRequest::new(3, Operation::Read { remote, rkey }, a.buffer.sge(0, 512).unwrap());
    a.pair.post_send(&[read]).unwrap();
    let done = a.done(1);
    ok(&done);
    assert_eq!((done[0].opcode, done[0].byte_len), (Some(Opcode::Read), 512));
}

/// The peer's queue pair goes back to RESET, where the device drops what arrives for it: as if its host were gone.
#[test]
fn a_silent_peer_is_given_up_and_met_again() {
    let Some(_guard) = devices_are_there() else { return };
    let (mut a, mut b) = connected(shaken);
    b.pair.reset().unwrap();
    let sge = a.buffer.sge(0, 64).unwrap();
    // Failures are reported for requests that are not signalled too.
    let requests = [1, 2, 3].map(|id| WorkRequest::new(id, b.write(0), sge).unsignalled());
    a.pair.post_send(&requests).unwrap();
    let done = a.done(3);
    assert_eq!(
        done.iter().map(|c| c.status).collect::<Vec<_>>(),
        [Status::RetryExceeded, Status::Flushed, Status::Flushed]
    );
    assert_eq!(done.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(a.pair.state().unwrap(), QpState::Error);

    // More than once: leftovers of a reset would show.
    for round in 0..3 {
        a.meet_again(&mut b);
        a.exchange(&b, round);
        b.exchange(&a, round);
    }
}

#[test]
fn a_wrong_key_is_a_remote_access_error() {
    let Some(_guard) = devices_are_there() else { return };
    let (mut a, mut b) = connected(shaken);
    let (remote, rkey) = (b.buffer.region().address(), b.buffer.region().rkey());
    let wrong = [
        Operation::Write { remote, rkey: rkey ^ 0x5a5a_5a5a },
        Operation::Write { remote: remote + BUFFER as u64 - 63, rkey },
        Operation::Read { remote: remote - 1, rkey },
    ];
    for operation in wrong {
        a.pair.post_send(&[WorkRequest::new(1, operation, a.buffer.sge(0, 64).unwrap())]).unwrap();
        let done = a.done(1);
        assert_eq!(done[0].status, Status::RemoteAccess, "{operation:?}");
        a.meet_again(&mut b);
        a.exchange(&b, 1);
    }
}

#[test]
fn a_peer_without_receives_is_given_up() {
    let Some(_guard) = devices_are_there() else { return };
    let (mut a, mut b) = connected(|connection| {
        shaken(connection);
        (connection.rnr_retry, connection.min_rnr_timer) = (1, 1);
    });
    let sge = a.buffer.sge(0, 64).unwrap();
    a.pair.post_send(&[WorkRequest::new(1, b.write_imm(0, 1), sge)]).unwrap();
    assert_eq!(a.done(1)[0].status, Status::RnrRetryExceeded);
    a.meet_again(&mut b);
    a.exchange(&b, 2);
}

#[test]
fn an_error_on_purpose_flushes_all() {
    let Some(_guard) = devices_are_there() else { return };
    let (mut a, mut b) = connected(shaken);
    a.pair.post_recv(&[10, 11, 12, 13]).unwrap();
    b.pair.post_recv(&[20]).unwrap();
    a.pair.to_error().unwrap();
    assert_eq!(a.pair.state().unwrap(), QpState::Error);
    let flushed = a.done(4);
    assert!(flushed.iter().all(|c| c.status == Status::Flushed), "{flushed:?}");
    assert_eq!(flushed.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [10, 11, 12, 13]);
    let late = WorkRequest::new(14, b.write(0), a.buffer.sge(0, 64).unwrap()).unsignalled();
    a.pair.post_send(&[late]).unwrap();
    assert_eq!(a.done(1)[0].status, Status::Flushed, "what is posted after the error");
    // The peer learns by its next request.
    let sge = b.buffer.sge(0, 64).unwrap();
    b.pair.post_send(&[WorkRequest::new(1, a.write(0), sge)]).unwrap();
    let done = b.done(2);
    assert_eq!(done.iter().find(|c| c.wr_id == 1).unwrap().status, Status::RetryExceeded);
    assert_eq!(done.iter().find(|c| c.wr_id == 20).unwrap().status, Status::Flushed);
    a.meet_again(&mut b);
    a.exchange(&b, 3);
}

#[test]
fn memory_may_be_registered_twice_and_goes_when_it_is_dropped() {
    let Some(_guard) = devices_are_there() else { return };
    let (mut a, mut b) = connected(shaken);
    let base = std::ptr::NonNull::new(b.buffer.region().address() as *mut u8).unwrap();
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    // SAFETY: the buffer outlives both registrations, and nobody holds references to its bytes while peers write there.
    let second = unsafe { b.context.register(base, 4096, access) }.unwrap();
    // SAFETY: as above.
    let third = unsafe { a.context.register(base, 4096, access) }.unwrap();
    assert_ne!(second.rkey(), b.buffer.region().rkey());
    assert_eq!((second.address(), second.len()), (b.buffer.region().address(), 4096));
    a.buffer.write(0, b"through the second").unwrap();
    let write = Operation::Write { remote: second.address(), rkey: second.rkey() };
    a.pair.post_send(&[WorkRequest::new(1, write, a.buffer.sge(0, 18).unwrap())]).unwrap();
    ok(&a.done(1));
    assert_eq!(b.buffer.bytes(0, 18).unwrap(), b"through the second");

    drop((second, third));
    a.pair.post_send(&[WorkRequest::new(2, write, a.buffer.sge(0, 18).unwrap())]).unwrap();
    assert_eq!(a.done(1)[0].status, Status::RemoteAccess);
    a.meet_again(&mut b);
    a.exchange(&b, 4);

    assert!(a.buffer.sge(BUFFER - 1, 2).is_none() && a.buffer.sge(usize::MAX, 2).is_none());
    assert!(b.buffer.bytes(BUFFER, 1).is_none() && b.buffer.write(BUFFER - 1, &[1, 2]).is_none());
}

#[test]
fn things_may_be_dropped_in_any_order() {
    let Some(_guard) = devices_are_there() else { return };
    let (a, b) = connected(|_| {});
    let Side { context, queue, pair, buffer, .. } = a;
    drop(context);
    drop(queue);
    let sge = buffer.sge(0, 64).unwrap();
    pair.post_send(&[WorkRequest::new(1, b.write(0), sge).unsignalled()]).unwrap();
    drop(buffer);
    assert_eq!(pair.max_inline(), pair.max_inline());
    drop(pair);
    drop(b);
    let (a, b) = connected(|_| {});
    a.exchange(&b, 6);
}

#[test]
fn what_cannot_be_is_refused() {
    let Some(_guard) = devices_are_there() else { return };
    let context = Context::open("rxe1").unwrap();
    assert!(matches!(context.register_owned(0, Access::LOCAL_READ), Err(VerbsError::Empty { .. })));
    assert!(matches!(context.create_completion_queue(u32::MAX), Err(VerbsError::Call { .. })));
    let side = Side::open("rxe1", 0);
    let foreign = Context::open("rxe2").unwrap().create_completion_queue(16).unwrap();
    let config = QpConfig { max_send: 1, max_recv: 1, max_inline_wanted: 0 };
    assert!(matches!(context.create_rc(&foreign, config), Err(VerbsError::Call { .. })));
    let large = QpConfig { max_send: u32::MAX, ..config };
    let queue = context.create_completion_queue(16).unwrap();
    assert!(matches!(context.create_rc(&queue, large), Err(VerbsError::Call { .. })));
    // More than any device sends inline: it gives what it can.
    let eager = QpConfig { max_inline_wanted: 1 << 20, ..config };
    assert!(context.create_rc(&queue, eager).unwrap().max_inline() >= 64);
    let reset = side.pair.post_send(&[WorkRequest::new(1, Operation::SendImm { imm: 1 }, Sges::NONE)]);
    assert!(reset.is_err(), "a queue pair in RESET takes nothing");
    let connection = Connection::new(1, sides::to(ADDRESSES[1], 1), 1);
    assert!(matches!(side.pair.connect(&connection), Err(VerbsError::Call { .. })), "INIT comes first");
    assert!(matches!(side.pair.init(9, Access::LOCAL_READ), Err(VerbsError::Call { .. })), "no such port");
    // A page that is not mapped.
    // SAFETY: nothing reads or writes there: the registration fails.
    let unmapped = unsafe {
        context.register(std::ptr::NonNull::new(4096 as *mut u8).unwrap(), 4096, Access::LOCAL_READ)
    };
    match unmapped {
        Err(VerbsError::Call { errno, .. }) => assert_eq!(errno.0, libc::EFAULT),
        // The answer of soft-RoCE of Linux 6.1.
        Err(VerbsError::OutOfMemory { len: 4096, .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// Runs the test of that name again as a child, as `uid` where one is given.
fn child(name: &str, uid: Option<u32>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// The user `nobody`.
const NOBODY: u32 = 65534;

#[test]
fn a_permission_error_names_the_file() {
    use std::os::unix::fs::PermissionsExt;
    if std::env::var_os(CHILD).is_some() {
        match devices() {
            Err(error @ VerbsError::Permission { .. }) => println!("{error}"),
            other => panic!("{other:?}"),
        }
        return;
    }
    let Some(_guard) = devices_are_there() else { return };
    // SAFETY: no arguments.
    let root = unsafe { libc::geteuid() } == 0;
    let open = std::fs::read_dir("/dev/infiniband").unwrap().flatten().any(|entry| {
        entry.metadata().is_ok_and(|m| m.permissions().mode() & 0o006 != 0)
            && entry.file_name().to_string_lossy().starts_with("uverbs")
    });
    if !root || open {
        println!("skipped: not root, or every user may open the devices");
        return;
    }
    child("a_permission_error_names_the_file", Some(NOBODY));
}

#[test]
fn the_limit_of_locked_memory_is_named() {
    if std::env::var_os(CHILD).is_some() {
        let context = Context::open("rxe1").unwrap();
        let limit = libc::rlimit { rlim_cur: 65536, rlim_max: 65536 };
        // SAFETY: a structure of that type; the process gives up its rights for good.
        unsafe {
            assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit), 0);
            assert_eq!(libc::setresuid(NOBODY, NOBODY, NOBODY), 0);
        }
        let small = context.register_owned(4096, Access::LOCAL_WRITE).unwrap();
        match context.register_owned(1 << 20, Access::LOCAL_WRITE) {
            Err(error @ VerbsError::MemoryLock { len: 1_048_576, limit: 65536, .. }) => println!("{error}"),
            other => panic!("{other:?}"),
        }
        drop(small);
        return;
    }
    let Some(_guard) = devices_are_there() else { return };
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: not root");
        return;
    }
    child("the_limit_of_locked_memory_is_named", None);
}

/// All packets are lost, then the link goes down for good: last, and on its own.
#[test]
fn a_lost_link_is_seen() {
    let Some(_guard) = devices_are_there() else { return };
    let Ok(link) = std::env::var(LINK) else {
        println!("skipped: {LINK} does not name the interface of rxe1, whose link this test takes down");
        return;
    };
    let run = |program: &str, arguments: &[&str]| {
        assert!(Command::new(program).args(arguments).status().unwrap().success(), "{program} {arguments:?}");
    };
    let (mut a, mut b) = connected(shaken);
    while a.context.poll_event().is_some() {}
    run("tc", &["qdisc", "replace", "dev", &link, "root", "netem", "loss", "100%"]);
    let sge = a.buffer.sge(0, 64).unwrap();
    a.pair.post_send(&[WorkRequest::new(1, b.write(0), sge)]).unwrap();
    assert_eq!(a.done(1)[0].status, Status::RetryExceeded);
    run("tc", &["qdisc", "delete", "dev", &link, "root"]);
    a.meet_again(&mut b);
    a.exchange(&b, 5);

    run("ip", &["link", "set", &link, "down"]);
    let mut events = Vec::new();
    for _ in 0..sides::ROUNDS {
        events.extend(std::iter::from_fn(|| a.context.poll_event()));
        if events.contains(&AsyncEvent::PortError(1)) {
            break;
        }
        sides::pause();
    }
    println!("events: {events:?}");
    assert!(events.contains(&AsyncEvent::PortError(1)), "{events:?}");
    assert_eq!(a.context.info().unwrap().ports[0].state, PortState::Down);
}
