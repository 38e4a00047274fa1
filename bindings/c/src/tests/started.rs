//! shouter_start with collectives that have a count for each rank, and with messages.

use std::ptr;

use super::{Shared, info, last, operation, two};
use crate::error::*;
use crate::handle::shouter_finalize;
use crate::p2p::{Message, SHOUTER_ANY_RANK, SHOUTER_ANY_TAG};
use crate::types::*;
use crate::work::started::*;
use crate::work::*;

unsafe fn started(rank: Shared, operation: &Operation) -> *mut Work {
    let mut work = ptr::null_mut();
    // SAFETY: the caller's promise.
    assert_eq!(unsafe { shouter_start(rank.get(), operation, &mut work) }, SHOUTER_OK, "{}", last());
    work
}

/// Waits for the operation, and frees the handle.
unsafe fn ended(work: *mut Work) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        let status = shouter_wait(work, 50_000);
        shouter_work_free(work);
        status
    }
}

/// Host memory that is declared as a GPU's is refused, with a driver or without.
unsafe fn no_memory_of_a_gpu(rank: Shared, operation: &Operation) {
    let operation = Operation { memory: SHOUTER_MEMORY_CUDA, ..*operation };
    let mut work = ptr::null_mut();
    // SAFETY: the caller's promise.
    let status = unsafe { shouter_start(rank.get(), &operation, &mut work) };
    assert!([SHOUTER_ERROR_ARGUMENT, SHOUTER_ERROR_ACCELERATOR].contains(&status), "{}", last());
}

fn both(name: &str, body: impl Fn(Shared, usize) + Copy + Send) {
    let (ranks, folder) = two(name);
    std::thread::scope(|scope| {
        scope.spawn(move || body(ranks[0], 0));
        scope.spawn(move || body(ranks[1], 1));
    });
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn blocks_that_differ_are_started_from_c() {
    both("started-counts", |rank, me| {
        let input = [10 * me as u32, 10 * me as u32 + 1, 10 * me as u32 + 2, 10 * me as u32 + 3];
        let (each, own) = ([1usize, 3], [1, 3][me]);
        let is_root = me == 1;
        let (on_root, nothing) = (if is_root { each.as_ptr() } else { ptr::null() }, ptr::null());
        let mut outputs = [[99u32; 4]; 5];
        let (given, taken) = ([[2usize, 1], [2, 2]][me], [[2usize, 2], [1, 2]][me]);
        let kinds = [
            (SHOUTER_OPERATION_ALLGATHERV, 0, nothing, each.as_ptr()),
            (SHOUTER_OPERATION_GATHERV, own, nothing, on_root),
            (SHOUTER_OPERATION_SCATTERV, own, on_root, nothing),
            (SHOUTER_OPERATION_REDUCE_SCATTERV, 0, each.as_ptr(), nothing),
            (SHOUTER_OPERATION_ALLTOALLV, 0, given.as_ptr(), taken.as_ptr()),
        ];
        let call = |(kind, count, input_counts, output_counts), output: *mut u32| Operation {
            kind,
            count,
            input_counts,
            output_counts,
            root: 1,
            dtype: SHOUTER_U32,
            input: input.as_ptr().cast(),
            output: output.cast(),
            ..operation(0)
        };
        let check = |outputs: [[u32; 4]; 5]| {
            let only_root = |values| if is_root { values } else { [99; 4] };
            assert_eq!(outputs[0], [0, 10, 11, 12]);
            assert_eq!(outputs[1], only_root([0, 10, 11, 12]));
            assert_eq!(outputs[2], [[10, 99, 99, 99], [11, 12, 13, 99]][me]);
            assert_eq!(outputs[3], [[10, 99, 99, 99], [12, 14, 16, 99]][me]);
            assert_eq!(outputs[4], [[0, 1, 10, 11], [2, 12, 13, 99]][me]);
        };
        // SAFETY: a live group; memory as the counts say, which is left alone until the waits.
        unsafe {
            let works: Vec<_> = kinds
                .into_iter()
                .zip(&mut outputs)
                .map(|(kind, output)| started(rank, &call(kind, output.as_mut_ptr())))
                .collect();
            for work in works.into_iter().rev() {
                assert_eq!(ended(work), SHOUTER_OK, "{}", last());
            }
            check(outputs);
            outputs = [[99; 4]; 5];
            for (kind, output) in kinds.into_iter().zip(&mut outputs) {
                let status = shouter_run(rank.get(), &call(kind, output.as_mut_ptr()));
                assert_eq!(status, SHOUTER_OK, "{}", last());
            }
            check(outputs);
            // The output of both kinds of counts, with a gap behind each element.
            for (kind, all) in
                [(kinds[0], [0, 10, 11, 12]), (kinds[4], [[0, 1, 10, 11], [2, 12, 13, 99]][me])]
            {
                let every_other = Layout { count: if all[3] == 99 { 3 } else { 4 }, block: 1, stride: 2 };
                let mut apart = [99; 8];
                let operation = Operation { output_layout: &every_other, ..call(kind, apart.as_mut_ptr()) };
                assert_eq!(ended(started(rank, &operation)), SHOUTER_OK, "{}", last());
                assert_eq!(apart, [all[0], 99, all[1], 99, all[2], 99, all[3], 99]);
            }
            // Invalid descriptors are refused at once.
            let refused = |operation: &Operation, why: &str| {
                let mut work = ptr::null_mut();
                let status = shouter_start(rank.get(), operation, &mut work);
                assert!(status == SHOUTER_ERROR_ARGUMENT && last().contains(why), "{}", last());
            };
            let one = call(kinds[4], outputs[0].as_mut_ptr());
            refused(&Operation { output_counts: ptr::null(), ..one }, "counts is NULL");
            refused(&Operation { factor: &2.0, ..one }, "factor");
            let short = Layout { count: 1, block: 1, stride: 2 };
            refused(&Operation { input_layout: &short, ..one }, "elements");
            no_memory_of_a_gpu(rank, &one);
            // Rank 1 expects other elements than rank 0 sends: both get an error, and the group goes on.
            let (given, taken) = ([[1usize, 2], [1, 1]][me], [[1usize, 1], [3, 1]][me]);
            let mut five = [0u32; 5];
            let odd = Operation {
                input_counts: given.as_ptr(),
                output_counts: taken.as_ptr(),
                output: five.as_mut_ptr().cast(),
                ..one
            };
            assert_eq!(ended(started(rank, &odd)), SHOUTER_ERROR_MISMATCH, "{}", last());
            let why = info(size_of::<ErrorInfo>()).1;
            assert_eq!((why.operation, why.rank), (SHOUTER_OPERATION_ALLTOALLV, 1 - me as i32));
            assert!(last().contains("rank 0 sends 2 elements to rank 1 and rank 1 expects 3"), "{}", last());
            assert_eq!(shouter_finalize(rank.get()), SHOUTER_OK, "{}", last());
        }
    });
}

#[test]
fn messages_are_started_from_c() {
    both("started-messages", |rank, me| {
        let other = 1 - me as u32;
        let own = vec![me as u32 + 5; 50_000];
        let mut theirs = vec![0u32; 50_001];
        let message = |kind, tag| Operation { kind, tag, dtype: SHOUTER_U32, ..operation(0) };
        let send = Operation {
            input: own.as_ptr().cast(),
            count: own.len(),
            to: other,
            ..message(SHOUTER_OPERATION_SEND, 3)
        };
        let receive =
            Operation { from: SHOUTER_ANY_RANK, ..message(SHOUTER_OPERATION_RECV, SHOUTER_ANY_TAG) };
        let receive = Operation { output: theirs.as_mut_ptr().cast(), count: theirs.len(), ..receive };
        let (mut found, mut number) = (Message::default(), -1);
        // SAFETY: a live group; memory as the descriptors say, which is left alone until the waits.
        unsafe {
            // Both send first.
            let (sending, receiving) = (started(rank, &send), started(rank, &receive));
            assert_eq!(shouter_wait(receiving, 50_000), SHOUTER_OK, "{}", last());
            assert_eq!(shouter_work_message(receiving, &mut found), SHOUTER_OK, "{}", last());
            assert_eq!(found, Message { rank: other, tag: 3, count: 50_000, dtype: SHOUTER_U32 });
            assert!(theirs[..50_000].iter().all(|x| *x == other + 5) && theirs[50_000] == 0);
            assert_eq!([ended(receiving), ended(sending)], [SHOUTER_OK; 2], "{}", last());
            let exchange = Operation {
                kind: SHOUTER_OPERATION_SENDRECV,
                from: other.into(),
                output: theirs.as_mut_ptr().cast(),
                room: 7,
                count: 7,
                tag: 4,
                ..send
            };
            let exchanged = started(rank, &exchange);
            assert_eq!(shouter_wait(exchanged, 50_000), SHOUTER_OK, "{}", last());
            assert_eq!(shouter_work_message(exchanged, &mut found), SHOUTER_OK, "{}", last());
            assert_eq!((found.rank, found.tag, found.count), (other, 4, 7));
            assert_eq!(ended(exchanged), SHOUTER_OK);
            // Cancelled: no rank sends it.
            let never = started(rank, &Operation { tag: 9, ..receive });
            assert_eq!(shouter_wait(never, 1), SHOUTER_ERROR_TIMEOUT, "{}", last());
            assert_eq!(shouter_work_message(never, &mut found), SHOUTER_ERROR_ARGUMENT);
            assert_eq!((shouter_cancel(never, &mut number), number), (SHOUTER_OK, 1), "{}", last());
            assert_eq!(ended(never), SHOUTER_ERROR_ARGUMENT);
            let refused = |operation: &Operation, why: &str| {
                let mut work = ptr::null_mut();
                let status = shouter_start(rank.get(), operation, &mut work);
                assert!(status == SHOUTER_ERROR_ARGUMENT && last().contains(why), "{}", last());
            };
            refused(&Operation { to: 2, ..send }, "rank 2");
            refused(&Operation { tag: -1, ..send }, "-1 is no tag");
            refused(&Operation { from: -2, ..receive }, "-2 is no rank");
            refused(&Operation { input: ptr::null(), ..send }, "NULL");
            no_memory_of_a_gpu(rank, &send);
            refused(&Operation { factor: &2.0, ..send }, "factor");
            assert_eq!(shouter_run(rank.get(), &send), SHOUTER_ERROR_ARGUMENT);
            assert!(last().contains("shouter_exchange"), "{}", last());
            assert_eq!(shouter_cancel(ptr::null(), &mut number), SHOUTER_ERROR_ARGUMENT);
            assert_eq!(shouter_work_message(ptr::null(), &mut found), SHOUTER_ERROR_ARGUMENT);
            assert_eq!(shouter_finalize(rank.get()), SHOUTER_OK, "{}", last());
        }
    });
}
