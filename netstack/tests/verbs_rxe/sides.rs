//! Two ends of a connection within one process.

use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shouter_netstack::verbs::{
    Access, Buffer, Completion, CompletionQueue, Connection, Context, Destination, Opcode, Operation,
    PortInfo, QpConfig, QpState, QueuePair, WorkRequest, route,
};

/// The addresses of the two devices.
pub(crate) const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];
/// Bytes of memory at each end.
pub(crate) const BUFFER: usize = 1 << 18;
/// Requests of a send queue.
pub(crate) const QUEUE: u32 = 64;
/// Rounds of a loop that waits: ten seconds and more.
pub(crate) const ROUNDS: usize = 100_000;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A pause between two looks at a device, whose emulation is a kernel thread that needs this core.
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_micros(100));
}

/// Holds the devices for a test; `None`, and says so, where there are none.
pub(crate) fn devices_are_there() -> Option<MutexGuard<'static, ()>> {
    let there = |name: &str| std::path::Path::new("/sys/class/infiniband").join(name).exists();
    if !there("rxe1") || !there("rxe2") {
        println!("skipped: no RDMA device (soft-RoCE rxe1 and rxe2)");
        return None;
    }
    Some(ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Few and short retries: 3 of 17 ms each.
pub(crate) fn shaken(connection: &mut Connection) {
    (connection.retry_cnt, connection.timeout) = (3, 12);
}

pub(crate) fn to(address: Ipv4Addr, gid_index: u8) -> Destination {
    Destination::Roce { gid_index, gid: address.to_ipv6_mapped().octets() }
}

/// One end.
pub(crate) struct Side {
    pub(crate) context: Context,
    pub(crate) queue: CompletionQueue,
    pub(crate) pair: QueuePair,
    pub(crate) buffer: Buffer,
    port: PortInfo,
    psn: u32,
    connection: Option<Connection>,
}

impl Side {
    pub(crate) fn open(name: &str, psn: u32) -> Self {
        let context = Context::open(name).unwrap();
        let queue = context.create_completion_queue(1024).unwrap();
        let config = QpConfig { max_send: QUEUE, max_recv: 256, max_inline_wanted: 64 };
        let pair = context.create_rc(&queue, config).unwrap();
        let buffer = context.register_owned(BUFFER, Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
        let port = context.info().unwrap().ports.remove(0);
        Self { context, queue, pair, buffer, port, psn, connection: None }
    }

    /// Connects to `other`, which does the same.
    fn meet(&mut self, other: &Self, tune: &impl Fn(&mut Connection)) {
        self.pair.init(1, Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
        let theirs: Vec<[u8; 16]> = other.port.gids.iter().map(|gid| gid.raw).collect();
        let (ours, theirs) = route(&self.port.gids, &theirs).unwrap().expect("a route");
        let mut connection = Connection::new(1, Destination::roce(&ours, theirs), other.pair.number());
        (connection.local_psn, connection.remote_psn) = (self.psn, other.psn);
        connection.path_mtu = self.port.active_mtu.min(other.port.active_mtu);
        tune(&mut connection);
        self.pair.connect(&connection).unwrap();
        self.connection = Some(connection);
    }

    /// Both ends start over on the same queue pairs, with other PSNs. Completions that the failure flushed are polled
    /// away.
    pub(crate) fn meet_again(&mut self, other: &mut Self) {
        for (side, psn) in [(&mut *self, 0x10_0000), (&mut *other, 0x20_0000)] {
            if side.pair.state().unwrap() != QpState::Reset {
                side.pair.to_error().unwrap();
            }
            side.pair.reset().unwrap();
            while side.queue.poll(&mut [Completion::default(); 16]).unwrap() > 0 {}
            side.psn = (side.psn + psn) & 0xff_ffff;
        }
        let (ours, theirs) = (self.psn, other.psn);
        for (side, local, remote) in [(&mut *self, ours, theirs), (&mut *other, theirs, ours)] {
            let mut connection = side.connection.expect("they have met");
            (connection.local_psn, connection.remote_psn) = (local, remote);
            side.pair.init(1, Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
            side.pair.connect(&connection).unwrap();
        }
    }

    fn remote(&self, offset: usize) -> (u64, u32) {
        (self.buffer.region().address() + offset as u64, self.buffer.region().rkey())
    }

    /// A write to this end's memory.
    pub(crate) fn write(&self, offset: usize) -> Operation {
        let (remote, rkey) = self.remote(offset);
        Operation::Write { remote, rkey }
    }

    /// The same with a value.
    pub(crate) fn write_imm(&self, offset: usize, imm: u32) -> Operation {
        let (remote, rkey) = self.remote(offset);
        Operation::WriteImm { remote, rkey, imm }
    }

    /// Waits for that many completions.
    pub(crate) fn done(&self, count: usize) -> Vec<Completion> {
        let mut done = vec![Completion::default(); count];
        let mut have = 0;
        for _ in 0..ROUNDS {
            have += self.queue.poll(&mut done[have..]).unwrap();
            if have == count {
                return done;
            }
            pause();
        }
        panic!("{have} of {count} completions: {:?}", &done[..have]);
    }

    /// A message from here to `other` arrives.
    pub(crate) fn exchange(&self, other: &Self, round: u32) {
        other.pair.post_recv(&[u64::from(round)]).unwrap();
        let sge = self.buffer.sge(4096, 4096).unwrap();
        let request = WorkRequest::new(99, other.write_imm(8192, round), sge);
        self.pair.post_send(&[request]).unwrap();
        let sent = self.done(1)[0];
        assert!(sent.is_ok(), "{}", sent.status);
        let received = other.done(1)[0];
        assert_eq!((received.opcode, received.imm), (Some(Opcode::RecvImm), Some(round)), "{received:?}");
        assert_eq!(other.buffer.bytes(8192, 4096), self.buffer.bytes(4096, 4096));
    }
}

/// rxe1 and rxe2, connected.
pub(crate) fn connected(tune: impl Fn(&mut Connection)) -> (Side, Side) {
    let (mut a, mut b) = (Side::open("rxe1", 0x12_3456), Side::open("rxe2", 0xff_fff0));
    a.meet(&b, &tune);
    b.meet(&a, &tune);
    (a, b)
}
