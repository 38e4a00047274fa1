//! Parts that are taken back while a rank is inside, with ranks that are threads of this process.
#![allow(unsafe_code)]

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;
use crate::communicator::tests::{each, ranks};
use crate::communicator::windows::AccessCall;
use shouter_reducer::windows::WindowAction;

#[test]
fn all_that_close_a_window_wait_until_no_rank_is_inside_and_accesses_to_others_go_on() {
    let group = ranks(2);
    let windows = each(&group, |rank| {
        [0, 1].map(|_| {
            let mut memory = rank.alloc::<u64>(8).unwrap();
            // SAFETY: the memory is never given back.
            let id = unsafe { rank.open_window(memory.as_mut_ptr().cast(), 8, DType::U64) }.unwrap();
            std::mem::forget(memory);
            id
        })
    });
    let [closed, other] = windows[0];
    let theirs = group[1].direct.mapped(closed).expect("a window with shared parts");
    let inside = theirs.parts[0].as_ref().expect("a shared part").piece.enter().unwrap();
    let (done, ended) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..2 {
            let (owner, done) = (&group[0], done.clone());
            scope.spawn(move || done.send(owner.drop_window(closed).is_ok()).unwrap());
        }
        assert!(ended.recv_timeout(Duration::from_millis(300)).is_err(), "rank 1 is inside");
        assert!(group[0].direct.mapped(closed).is_none());
        let data = [7u64];
        let put = AccessCall {
            window: other,
            action: WindowAction::Put,
            target: 1,
            offset: 3,
            count: 1,
            dtype: DType::U64,
            data: data.as_ptr().cast(),
            into: std::ptr::null_mut(),
        };
        // SAFETY: the data stays where it is.
        unsafe { group[0].window_access(&put) }.unwrap();
        drop(inside);
        assert!(ended.recv().unwrap() && ended.recv().unwrap());
    });
    assert!(theirs.parts[0].as_ref().unwrap().piece.enter().is_none());
}
