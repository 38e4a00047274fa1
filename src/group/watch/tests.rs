#![allow(unsafe_code)]

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, TryRecvError, channel};
use std::thread;
use std::time::Instant;

use socket2::SockRef;

use super::*;
use crate::group::tests::{Job, SOON};

/// Long enough for events that must not come.
const A_WHILE: Duration = Duration::from_millis(400);

/// A rank, and the events of its connections.
struct Rank {
    control: Control,
    events: Receiver<MemberEvent>,
}

impl Rank {
    fn next(&self) -> Option<MemberEvent> {
        match self.events.recv_timeout(SOON) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("nobody listens"),
        }
    }

    fn receives_nothing(&self) -> bool {
        self.events.recv_timeout(A_WHILE) == Err(RecvTimeoutError::Timeout)
    }
}

/// The end of a group for one reason.
fn end(rank: u32, reason: Reason) -> GroupEnd {
    GroupEnd { rank, reason, text: format!("rank {rank}: {reason}") }
}

/// The ranks of a job; a rank may go to rank 0 by another port.
fn ranks(size: u32, port_of: impl Fn(u32, u16) -> u16) -> Vec<Rank> {
    let job = Job::new(size);
    let join = |rank| job.join_as(job.hello(rank), |config| config.port = port_of(rank, config.port));
    let joining: Vec<_> = (0..size).map(join).collect();
    let listen = |link| {
        let (sender, events) = channel();
        let control = Control::listen(link, move |event| sender.send(event).unwrap_or(())).unwrap();
        Rank { control, events }
    };
    joining.into_iter().map(|rank| listen(rank.join().unwrap().unwrap().1)).collect()
}

fn straight(_: u32, port: u16) -> u16 {
    port
}

#[test]
fn every_rank_hears_whose_process_has_ended() {
    for lost in 0..3 {
        let mut ranks = ranks(3, straight);
        drop(ranks.remove(lost as usize));
        for rank in &ranks {
            assert_eq!(rank.next(), Some(MemberEvent::Lost(lost)));
        }
        // Once.
        assert!(ranks.iter().all(Rank::receives_nothing));
    }
}

#[test]
fn who_leaves_in_good_order_is_not_lost() {
    let mut ranks = ranks(3, straight);
    ranks[2].control.leave(7);
    assert_eq!(ranks[2].next(), Some(MemberEvent::PeersNotified));
    ranks.truncate(2);
    // Rank 1 learns it from rank 0.
    let left = Some(MemberEvent::Left(Departure { rank: 2, started: 7 }));
    assert!(ranks.iter().all(|rank| rank.next() == left));
    assert!(ranks.iter().all(Rank::receives_nothing));
    let error = ranks[0].control.all_gather("table", b"", SOON).unwrap_err().to_string();
    assert!(error.contains("rank 2 left") && error.contains("it has left the group"), "{error}");
}

#[test]
fn what_one_rank_knows_all_ranks_hear_and_its_own_end_is_not_taken_for_a_death() {
    // Rank 1 has seen the end of rank 3, which shares its host; its connection is still open.
    let mut ranks = ranks(4, straight);
    ranks[1].control.notice().ended(end(3, Reason::Lost));
    assert_eq!(ranks[1].next(), Some(MemberEvent::PeersNotified));
    assert!(ranks[1].control.notice().peers_notified());
    drop(ranks.remove(1));
    assert!(ranks.iter().all(|rank| rank.next() == Some(MemberEvent::Lost(3))));
    assert!(ranks.iter().all(Rank::receives_nothing));
}

#[test]
fn other_causes_go_with_the_data_and_are_not_taken_for_a_death_either() {
    for ended in 0..3 {
        let mut ranks = ranks(3, straight);
        ranks[ended].control.notice().ended(end(2, Reason::Diverged));
        assert_eq!(ranks[ended].next(), Some(MemberEvent::PeersNotified));
        drop(ranks.remove(ended));
        assert!(ranks.iter().all(Rank::receives_nothing));
    }
}

#[test]
fn why_a_rank_has_given_up_every_other_one_hears() {
    for gave_up in 0..3 {
        let mut ranks = ranks(3, straight);
        let notice = ranks[gave_up as usize].control.notice();
        notice.gave_up(gave_up, "no data");
        notice.ended(end(gave_up, Reason::Aborted));
        assert_eq!(ranks[gave_up as usize].next(), Some(MemberEvent::PeersNotified));
        drop(ranks.remove(gave_up as usize));
        let text = AbortText { rank: gave_up, text: "no data".into() };
        assert!(ranks.iter().all(|rank| rank.next() == Some(MemberEvent::GaveUp(text.clone()))));
        assert!(ranks.iter().all(Rank::receives_nothing));
    }
}

#[test]
fn rank_0_ends_by_the_text_of_a_rank_of_its_host_before_it_comes_by_the_connection() {
    let ranks = ranks(3, straight);
    let end_here = |rank: &Rank| {
        rank.control.notice().gave_up(1, "no data");
        rank.control.notice().ended(end(1, Reason::Aborted));
    };
    end_here(&ranks[0]);
    let text = MemberEvent::GaveUp(AbortText { rank: 1, text: "no data".into() });
    assert_eq!(ranks[2].next(), Some(text));
    end_here(&ranks[1]);
    assert!(ranks[2].receives_nothing());
}

#[test]
fn a_rank_other_than_0_does_not_speak_for_others() {
    let ranks = ranks(3, straight);
    ranks[2].control.notice().gave_up(1, "no data");
    ranks[2].control.notice().ended(end(1, Reason::Aborted));
    assert_eq!(ranks[2].next(), Some(MemberEvent::PeersNotified));
    assert!(ranks[..2].iter().all(Rank::receives_nothing));
}

/// A middlebox before rank 0: its port, and a sender whose message makes it call `before` and close the connection to
/// rank 0.
fn middlebox(port: u16, before: impl FnOnce(&TcpStream) + Send + 'static) -> (u16, Sender<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap().port();
    let (cutter, cutting) = channel();
    thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut far = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let pause = Some(Duration::from_millis(2));
        near.set_read_timeout(pause).unwrap();
        far.set_read_timeout(pause).unwrap();
        while cutting.try_recv() == Err(TryRecvError::Empty) {
            let _ = io::copy(&mut near, &mut far);
            let _ = io::copy(&mut far, &mut near);
        }
        before(&far);
        // The near side stays open: its process lives.
        drop(far);
        thread::sleep(SOON);
    });
    (at, cutter)
}

/// The ranks of a job of which rank 1's connection has been cut by a middlebox.
fn cut_off(size: u32, before: impl Fn(&TcpStream) + Copy + Send + 'static) -> Vec<Rank> {
    let cutter = std::cell::RefCell::new(None);
    let ranks = ranks(size, |rank, port| {
        if rank != 1 {
            return port;
        }
        let (at, cut) = middlebox(port, before);
        *cutter.borrow_mut() = Some(cut);
        at
    });
    cutter.borrow().as_ref().unwrap().send(()).unwrap();
    ranks
}

#[test]
fn a_connection_that_is_reset_proves_nothing() {
    // As a firewall does: a reset instead of an end.
    let ranks = cut_off(3, |far| SockRef::from(far).set_linger(Some(Duration::ZERO)).unwrap());
    assert!(ranks[0].receives_nothing() && ranks[2].receives_nothing());
    let error = ranks[0].control.all_gather("table", b"", SOON).unwrap_err().to_string();
    assert!(error.contains("rank 1 left") && error.contains("reset"), "{error}");
}

#[test]
fn an_end_in_order_is_believed_through_a_middlebox() {
    assert_eq!(cut_off(2, |_| {})[0].next(), Some(MemberEvent::Lost(1)));
}

type Exchanging<'scope> = thread::ScopedJoinHandle<'scope, Result<Vec<Vec<u8>>, ExchangeError>>;

/// Ranks that are in an exchange to which one does not come.
fn exchange<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    ranks: &'scope [Rank],
) -> Vec<Exchanging<'scope>> {
    let controls = ranks.iter().map(|rank| &rank.control);
    let enter =
        |control: &'scope Control| scope.spawn(|| control.all_gather("table", b"", Duration::from_secs(600)));
    let waiting = controls.map(enter).collect();
    thread::sleep(A_WHILE);
    waiting
}

#[test]
fn exchanges_go_on_beside_and_end_with_the_group() {
    let ranks = ranks(3, straight);
    thread::scope(|scope| {
        for (own, control) in (0u64..).zip(ranks.iter().map(|rank| &rank.control)) {
            scope.spawn(move || {
                // Rank 0 comes last: the others' parts wait there.
                thread::sleep(Duration::from_millis(100 * (2 - own)));
                for round in 0..20 {
                    let all = control.all_gather("table", &[own as u8, round], SOON).unwrap();
                    assert_eq!(all, (0..3).map(|rank| vec![rank, round]).collect::<Vec<_>>());
                }
            });
        }
    });
    // Rank 2 does not come to the next one.
    thread::scope(|scope| {
        let waiting = exchange(scope, &ranks[..2]);
        let begun = Instant::now();
        for rank in &ranks[..2] {
            rank.control.notice().ended(end(2, Reason::Diverged));
        }
        for waiting in waiting {
            let error = waiting.join().unwrap().unwrap_err();
            assert!(
                matches!(&error, ExchangeError::Ended { ending, .. } if *ending == Ending::Group(end(2, Reason::Diverged))),
                "{error}"
            );
        }
        assert!(begun.elapsed() < SOON);
    });
}

/// A rank that waits in an exchange gets the death as its cause, not a failed exchange.
#[test]
fn a_death_ends_an_exchange_as_a_death() {
    for lost in 0..3u32 {
        let mut ranks = ranks(3, straight);
        let dies = ranks.remove(lost as usize);
        thread::scope(|scope| {
            let waiting = exchange(scope, &ranks);
            let begun = Instant::now();
            drop(dies);
            for rank in &ranks {
                assert_eq!(rank.next(), Some(MemberEvent::Lost(lost)));
            }
            assert!(waiting.into_iter().all(|waiting| waiting.join().unwrap().is_err()));
            assert!(begun.elapsed() < super::super::link::FAREWELL, "after {:?}", begun.elapsed());
        });
    }
}

/// A child that was forked without exec (a loader of data, say) and lives longer than the rank.
#[test]
fn a_forked_child_does_not_hide_the_end_of_its_parent() {
    let mut ranks = ranks(2, straight);
    // SAFETY: the child calls only what is allowed after a fork, and ends without running anything of this process's.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: neither has a precondition.
        unsafe {
            libc::sleep(30);
            libc::_exit(0);
        }
    }
    drop(ranks.pop());
    let heard = ranks[0].events.recv_timeout(SOON / 2);
    // SAFETY: the child is this process's own, and has not been waited for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert_eq!(heard, Ok(MemberEvent::Lost(1)));
}
