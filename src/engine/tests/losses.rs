//! The reason that a channel gives for a lost peer, in the cause with which the group ends.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use shouter_netstack::rud::{Clue, Failure};
use shouter_netstack::tcp;
use shouter_reducer::executor::AbortCause;
use shouter_reducer::header::Header;
use shouter_reducer::transport::{PayloadRange, SendError, SendToken, Transport};

use super::*;
use crate::channel::Inbox;
use crate::channel::loss::{Loss, PeerLoss};
use crate::channel::up::Channel;
use crate::channel::verbs::Fault;
use crate::error::Reason;

/// A channel that loses peers, over a port whose link is down if it has an address; what rank 2 has acknowledged, and how many messages went
/// to all.
#[derive(Default)]
struct Losing {
    lost: Vec<PeerLoss>,
    down: Option<IpAddr>,
    acknowledged: Arc<AtomicUsize>,
    broadcasts: Arc<AtomicUsize>,
}

impl Transport for Losing {
    fn max_fragment(&self, _: Rank) -> usize {
        64
    }
    fn send(&mut self, _: Rank, _: &Header, _: PayloadRange, _: SendToken) -> Result<(), SendError> {
        Err(SendError::PeerFailed)
    }
    fn request_ack(&mut self, _: Rank) {}
}

impl Channel for Losing {
    fn receive(&mut self, _: Instant, _: &mut dyn Inbox) -> bool {
        false
    }
    fn transmit(&mut self, _: Instant, _: &mut dyn Inbox) -> bool {
        false
    }
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
    fn take_lost(&mut self) -> Option<PeerLoss> {
        self.lost.pop()
    }
    fn addresses_down(&self) -> Vec<IpAddr> {
        self.down.into_iter().collect()
    }
    fn acknowledged_by(&self, rank: Rank) -> u64 {
        if rank == Rank(2) { self.acknowledged.load(Ordering::SeqCst) as u64 } else { 0 }
    }
    fn broadcast(&mut self, _: &Header) {
        self.broadcasts.fetch_add(1, Ordering::SeqCst);
    }
    fn fence(&mut self) {}
    fn is_drained_to(&self, _: &dyn Fn(Rank) -> bool) -> bool {
        true
    }
    fn resent(&self) -> u64 {
        0
    }
    fn crc_dropped(&self) -> u64 {
        0
    }
}

/// Why rank 1 ends the group after losses, each of rank 0, the last one first.
fn cause(losses: &[Loss]) -> AbortCause {
    let [_other, mut engine] = idle();
    engine.up = Losing {
        lost: losses.iter().map(|why| PeerLoss { rank: Rank(0), why: *why }).collect(),
        ..Losing::default()
    }
    .into();
    let now = Clock.now();
    // The first poll learns of it, and the second one acts.
    engine.poll(now);
    assert_eq!(engine.aborted(), None);
    engine.poll(now);
    engine.aborted().unwrap().clone()
}

const SILENT: Loss = Loss::Rud(Failure::PeerSilent {
    silent: Duration::from_secs(10),
    timeouts: 180,
    clue: Clue::UnknownSession,
});
const NO_PROGRESS: Loss =
    Loss::Rud(Failure::NoProgress { stalled: Duration::from_secs(10), timeouts: 190, bytes: 8900 });

#[test]
fn a_lost_peers_reason_is_that_of_its_channel() {
    let remote = SocketAddr::from(([10, 0, 0, 1], 61_790));
    let cases = [
        (SILENT, 0, Reason::Lost),
        (NO_PROGRESS, 0, Reason::Unreachable),
        (Loss::Unconnected { remote, waited: Duration::from_secs(3) }, 0, Reason::Lost),
        (Loss::Garbled { remote }, 0, Reason::Protocol),
        (Loss::CrcDiffers { rank: Rank(0), ours: "on" }, 0, Reason::Protocol),
        (Loss::Corrupted { remote }, 0, Reason::Lost),
        (Loss::Verbs(Fault::RetryExceeded), 0, Reason::Lost),
        (Loss::Verbs(Fault::PortDown), 1, Reason::Disconnected),
        (Loss::Verbs(Fault::Accelerator), 1, Reason::Accelerator),
    ];
    for (loss, culprit, reason) in cases {
        let cause = cause(&[loss]);
        assert_eq!((cause.culprit, Reason::from(&cause.reason)), (Rank(culprit), reason), "{loss}");
        // To the reason that all ranks know, this one adds what it has seen.
        let text = cause.to_string();
        assert!(text.starts_with(&format!("rank {culprit}: {reason} (")) && text.contains(&loss.to_string()));
    }
    let text = cause(&[SILENT]).to_string();
    assert!(text.contains("nothing for 10s") && text.contains("180 times") && text.contains("started again"));
}

#[test]
fn the_first_loss_is_the_one_that_is_told() {
    let cause = cause(&[SILENT, NO_PROGRESS]);
    assert_eq!(Reason::from(&cause.reason), Reason::Unreachable);
    assert_eq!(cause.seen.as_deref(), Some(&*NO_PROGRESS.to_string()));
}

#[test]
fn what_was_seen_of_one_rank_is_not_told_of_another() {
    let [other, mut engine] = idle();
    engine.up = Losing { lost: vec![PeerLoss { rank: Rank(0), why: SILENT }], ..Losing::default() }.into();
    let now = Clock.now();
    engine.poll(now);
    // Meanwhile another rank of the node has ended the group for a cause of its own.
    other.node.as_ref().unwrap().set_abort(1, AbortReason::Late.code() as u8);
    engine.poll(now);
    let cause = engine.aborted().unwrap();
    assert_eq!((cause.culprit, &cause.reason, &cause.seen), (Rank(1), &AbortReason::Late, &None));
}

/// The others find the silence of a host whose cable is out at the same time as it finds theirs, and may say so first.
#[test]
fn who_is_given_up_while_its_link_is_down_tells_that() {
    let [_other, mut engine] = idle();
    let losses = vec![PeerLoss { rank: Rank(0), why: SILENT }];
    engine.up =
        Losing { lost: losses, down: Some(Ipv4Addr::new(10, 0, 0, 2).into()), ..Losing::default() }.into();
    let now = Clock.now();
    engine.poll(now);
    engine.lost(now, Rank(1));
    let cause = engine.aborted().unwrap();
    assert_eq!((cause.culprit, &cause.reason), (Rank(1), &AbortReason::Stopped));
    let seen = cause.seen.as_deref().unwrap();
    assert!(seen.starts_with("The link of port 10.0.0.2 of this host is down: "), "{seen}");
}

#[test]
fn who_was_stopped_tells_nothing_of_the_others() {
    let [_other, mut engine] = idle();
    engine.up = Losing { lost: vec![PeerLoss { rank: Rank(0), why: SILENT }], ..Losing::default() }.into();
    let resumed = Clock.now() + 2 * DEAD_AFTER;
    engine.poll(resumed);
    engine.poll(resumed);
    let cause = engine.aborted().unwrap();
    assert_eq!((cause.culprit, &cause.reason, &cause.seen), (Rank(1), &AbortReason::Stopped, &None));
}

#[test]
fn a_lost_accelerator_is_this_ranks_own_though_the_peer_has_left() {
    let [_other, mut engine] = idle();
    engine.up = Losing {
        lost: vec![PeerLoss { rank: Rank(0), why: Loss::Verbs(Fault::Accelerator) }],
        ..Losing::default()
    }
    .into();
    let now = Clock.now();
    engine.left(Departure { rank: 0, started: 0 });
    engine.poll(now);
    engine.poll(now);
    let cause = engine.aborted().unwrap();
    assert_eq!((cause.culprit, Reason::from(&cause.reason)), (Rank(1), Reason::Accelerator));
}

/// Rank 0 of three hosts, or of two, which has lost these; what rank 2 has acknowledged, and the messages to all.
fn asking(hosts: u32, lost: Vec<PeerLoss>) -> (Engine, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let grid = Grid::new(hosts, 1).unwrap();
    let config = ExecutorConfig::new(Rank(0), grid, Kernels::detect());
    // SAFETY: it goes into an engine, which drops it last.
    let executor = unsafe { Executor::new(config) }.unwrap();
    let up = Losing { lost, acknowledged: Arc::new(AtomicUsize::new(7)), ..Losing::default() };
    let seen = (Arc::clone(&up.acknowledged), Arc::clone(&up.broadcasts));
    let parts = EngineParts { executor, rank: Rank(0), up: up.into(), node: None, dead_after: DEAD_AFTER };
    (Engine::new(parts, Clock.now()), seen.0, seen.1)
}

fn losses(of: &[u32], why: Loss) -> Vec<PeerLoss> {
    of.iter().map(|rank| PeerLoss { rank: Rank(*rank), why }).collect()
}

fn doubtful() -> [Loss; 8] {
    let remote = SocketAddr::from(([10, 0, 0, 1], 61_790));
    let after = Duration::from_secs(10);
    [
        SILENT,
        NO_PROGRESS,
        Loss::Tcp(tcp::Failure::TimedOut { remote, after }),
        Loss::Tcp(tcp::Failure::Unreachable { remote }),
        Loss::Tcp(tcp::Failure::Reset { remote }),
        Loss::Unconnected { remote, waited: after },
        Loss::Unopened { remote, waited: after, errno: libc::ENETUNREACH },
        Loss::Silent { remote, after },
    ]
}

#[test]
fn a_silent_rank_is_blamed_once_another_has_answered() {
    for why in doubtful() {
        let (mut engine, acknowledged, broadcasts) = asking(3, losses(&[1], why));
        let now = Clock.now();
        engine.poll(now);
        // An answer may take as long as that.
        let later = now + DEAD_AFTER / 5;
        engine.poll(later);
        assert_eq!((engine.aborted(), broadcasts.load(Ordering::SeqCst)), (None, 1), "{why}");
        acknowledged.fetch_add(1, Ordering::SeqCst);
        engine.poll(later);
        engine.poll(later);
        let cause = engine.aborted().unwrap();
        let (culprit, reason, seen) = (cause.culprit, &cause.reason, cause.seen.as_deref());
        assert_eq!((culprit, reason, seen), (Rank(1), &why.reason(), Some(&*why.to_string())));
    }
}

/// One peer is found silent, or all are; what they have acknowledged before counts for nothing.
#[test]
fn a_rank_that_nobody_answers_blames_itself() {
    for (why, of) in doubtful().into_iter().flat_map(|why| [(why, &[1][..]), (why, &[1, 2][..])]) {
        let (mut engine, ..) = asking(3, losses(of, why));
        let now = Clock.now();
        engine.poll(now);
        let until = now + DEAD_AFTER / 4;
        assert!(engine.next_deadline().is_some_and(|at| at <= until), "{why}");
        engine.poll(until);
        engine.poll(until);
        let cause = engine.aborted().unwrap();
        assert_eq!((cause.culprit, &cause.reason), (Rank(0), &AbortReason::Disconnected), "{why}");
        let seen = cause.seen.as_deref().unwrap();
        assert!(
            seen.contains("no other host has acknowledged anything") && seen.contains(&why.to_string()),
            "{seen}"
        );
    }
}

#[test]
fn nobody_is_asked_in_a_job_of_two_hosts_nor_where_the_peer_has_sent_what_is_wrong() {
    let remote = SocketAddr::from(([10, 0, 0, 1], 61_790));
    for (hosts, why) in
        [(2, SILENT), (2, NO_PROGRESS), (3, Loss::Corrupted { remote }), (3, Loss::Garbled { remote })]
    {
        let (mut engine, _, broadcasts) = asking(hosts, losses(&[1], why));
        let now = Clock.now();
        engine.poll(now);
        assert_eq!(broadcasts.load(Ordering::SeqCst), 0, "{why}");
        engine.poll(now);
        assert_eq!(engine.aborted().map(|cause| cause.culprit), Some(Rank(1)), "{hosts} hosts: {why}");
    }
}

/// Peers leave for the end, and their connections go.
#[test]
fn nobody_is_asked_once_the_group_has_ended() {
    let messages = |lost| {
        let (mut engine, _, broadcasts) = asking(3, lost);
        let now = Clock.now();
        engine.lost(now, Rank(2));
        engine.poll(now);
        engine.poll(now);
        assert_eq!(engine.aborted().map(|cause| cause.culprit), Some(Rank(2)));
        broadcasts.load(Ordering::SeqCst)
    };
    for why in doubtful() {
        assert_eq!(messages(losses(&[1], why)), messages(vec![]), "{why}");
    }
}

/// The rank that it has lost has told the others first.
#[test]
fn what_others_say_while_they_are_asked_holds() {
    let (mut engine, ..) = asking(3, losses(&[1], SILENT));
    let now = Clock.now();
    engine.poll(now);
    engine.lost(now, Rank(1));
    let cause = engine.aborted().unwrap();
    assert_eq!((cause.culprit, &cause.reason), (Rank(1), &AbortReason::Failed));
    assert_eq!(cause.seen.as_deref(), Some(&*SILENT.to_string()));
    engine.poll(now + DEAD_AFTER / 4);
    assert_eq!(engine.aborted().map(|cause| cause.culprit), Some(Rank(1)));
}

/// Rank 1 has left, and its connection goes. Operations that wait for other ranks go on.
#[test]
fn the_loss_of_a_rank_that_has_left_ends_only_what_waits_for_it() {
    use shouter_reducer::p2p::SendRequest;
    use shouter_reducer::windows::{AccessRequest, WindowAction};
    // Ranks, of which so many are on each host; which one is waited for, and whether that ends the group.
    for (ranks, per_node, target, ends) in [
        (3, 1, 2, false),
        (3, 1, 1, true),
        (6, 2, 4, false),
        (6, 2, 2, true),
        (6, 2, 3, true),
        (6, 2, 1, false),
    ] {
        let lost = Rank(per_node);
        for is_message in [false, true] {
            let memory = Owned::new(64).unwrap();
            let grid = Grid::new(ranks, per_node).unwrap();
            let config = ExecutorConfig::new(Rank(0), grid, Kernels::detect());
            // SAFETY: it goes into an engine, which drops it last.
            let executor = unsafe { Executor::new(config) }.unwrap();
            let up = Losing { lost: vec![PeerLoss { rank: lost, why: SILENT }], ..Losing::default() }.into();
            let now = Clock.now();
            let rank = Rank(0);
            let mut engine =
                Engine::new(EngineParts { executor, rank, up, node: None, dead_after: DEAD_AFTER }, now);
            // SAFETY: nothing else accesses it, and it is dropped after the engine.
            let data = unsafe { memory.region() };
            let (dtype, deadline) = (DType::U8, executor_time(now + LIMIT));
            if is_message {
                let to = Rank(target);
                engine
                    .start_send(
                        None,
                        SendRequest { to, tag: 1, dtype, data, held: false, synchronous: true, deadline },
                    )
                    .unwrap();
            } else {
                let window = engine.windows_in(None).unwrap().open(data, dtype).unwrap();
                engine.windows_in(None).unwrap().set_lengths(window, vec![64; ranks as usize].into());
                let (target, action, into) = (Rank(target), WindowAction::Put, TensorRegion::empty());
                let request = AccessRequest {
                    window,
                    action,
                    target,
                    offset: 0,
                    dtype,
                    data,
                    into,
                    deadline,
                    waited: true,
                };
                engine.start_access(None, request).unwrap();
            }
            engine.left(Departure { rank: lost.0, started: 0 });
            engine.poll(now);
            engine.poll(now);
            let culprit = engine.aborted().map(|cause| cause.culprit);
            assert_eq!(culprit, ends.then_some(lost), "{target} of {ranks}, message {is_message}");
            drop(engine);
        }
    }
}
