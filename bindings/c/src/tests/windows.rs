use super::*;
use crate::windows::*;

/// Windows through their C functions.
#[test]
fn windows_are_made_and_used_from_c() {
    let (ranks, folder) = two("windows");
    let play = |rank: Shared, me: u32| {
        let shouter = rank.get();
        let ok = |status| assert_eq!(status, SHOUTER_OK, "{}", last());
        let (peer, mut memory, mut window) = (1 - me, [0u64; 4], 9);
        // SAFETY: a live group; memory that stays until the window is freed; buffers that stay until a flush.
        unsafe {
            let part = memory.as_mut_ptr().cast();
            ok(shouter_window_create(shouter, part, 4, SHOUTER_U64, &mut window));
            let (data, mut into) = ([5u64, 6], [0u64; 2]);
            let (from, to) = (data.as_ptr().cast(), into.as_mut_ptr().cast());
            ok(shouter_window_put(shouter, window, from, 2, SHOUTER_U64, peer, 1));
            ok(shouter_window_accumulate(shouter, window, from, 2, SHOUTER_U64, SHOUTER_SUM, peer, 1));
            ok(shouter_window_get(shouter, window, to, 2, SHOUTER_U64, peer, 1));
            ok(shouter_window_flush(shouter, window, peer.into()));
            assert_eq!(into, [10, 12]);
            for (op, before) in [(SHOUTER_MAX, 10u64), (SHOUTER_REPLACE, 10), (SHOUTER_KEEP, 5)] {
                ok(shouter_window_fetch_and_op(shouter, window, from, to, 1, SHOUTER_U64, op, peer, 1));
                assert_eq!(into[0], before);
            }
            for (expected, before) in [(4u64, 5u64), (5, 5), (5, 77)] {
                let (desired, mut found) = (77u64, 0u64);
                let (expected, desired) = ((&raw const expected).cast(), (&raw const desired).cast());
                let found_at = (&raw mut found).cast();
                ok(shouter_window_compare_and_swap(
                    shouter,
                    window,
                    expected,
                    desired,
                    found_at,
                    SHOUTER_U64,
                    peer,
                    1,
                ));
                assert_eq!(found, before);
            }
            ok(shouter_window_fence(shouter, window));
            ok(shouter_window_accumulate(shouter, window, from, 2, SHOUTER_U64, SHOUTER_REPLACE, me, 2));
            ok(shouter_window_flush(shouter, window, SHOUTER_ANY_RANK));
            ok(shouter_window_fence(shouter, window));
            let null = ptr::null_mut();
            let refused = [
                shouter_window_create(shouter, part, 4, SHOUTER_U64, ptr::null_mut()),
                shouter_window_create(shouter, part, 4, 99, &mut window),
                shouter_window_create(shouter, part.cast::<u8>().add(1).cast(), 1, SHOUTER_U64, &mut window),
                shouter_window_create(shouter, null, 4, SHOUTER_U64, &mut window),
                shouter_window_put(shouter, window, from, 2, SHOUTER_U64, 2, 0),
                shouter_window_put(shouter, window, from, 2, SHOUTER_U64, peer, 3),
                shouter_window_put(shouter, window, from, usize::MAX, SHOUTER_U64, peer, 0),
                shouter_window_put(shouter, window, from, 2, SHOUTER_I64, peer, 0),
                shouter_window_put(shouter, window, null, 2, SHOUTER_U64, peer, 0),
                shouter_window_put(shouter, window + 1, from, 2, SHOUTER_U64, peer, 0),
                shouter_window_get(shouter, window, null, 1, SHOUTER_U64, peer, 0),
                shouter_window_accumulate(shouter, window, from, 1, SHOUTER_U64, SHOUTER_KEEP, peer, 0),
                shouter_window_accumulate(shouter, window, from, 1, SHOUTER_U64, SHOUTER_AVG, peer, 0),
                shouter_window_accumulate(shouter, window, from, 1, SHOUTER_U64, 99, peer, 0),
                shouter_window_fetch_and_op(
                    shouter,
                    window,
                    from,
                    null,
                    1,
                    SHOUTER_U64,
                    SHOUTER_SUM,
                    peer,
                    0,
                ),
                shouter_window_compare_and_swap(shouter, window, from, from, null, SHOUTER_U64, peer, 0),
                shouter_window_flush(shouter, window, 2),
                shouter_window_flush(shouter, window, -2),
                shouter_window_fence(shouter, window + 1),
                shouter_window_free(shouter, window + 1),
                shouter_window_create(ptr::null(), part, 4, SHOUTER_U64, &mut window),
                shouter_window_put(ptr::null(), window, from, 1, SHOUTER_U64, 0, 0),
                shouter_window_get(ptr::null(), window, to, 1, SHOUTER_U64, 0, 0),
                shouter_window_accumulate(ptr::null(), window, from, 1, SHOUTER_U64, SHOUTER_SUM, 0, 0),
                shouter_window_fetch_and_op(ptr::null(), window, from, to, 1, SHOUTER_U64, SHOUTER_SUM, 0, 0),
                shouter_window_compare_and_swap(ptr::null(), window, from, from, to, SHOUTER_U64, 0, 0),
                shouter_window_flush(ptr::null(), window, 0),
                shouter_window_fence(ptr::null(), window),
                shouter_window_free(ptr::null(), window),
            ];
            for (i, status) in refused.into_iter().enumerate() {
                assert_eq!(status, SHOUTER_ERROR_ARGUMENT, "call {i}");
            }
            ok(shouter_window_free(shouter, window));
            assert_eq!(
                shouter_window_put(shouter, window, from, 1, SHOUTER_U64, 0, 0),
                SHOUTER_ERROR_ARGUMENT
            );
            assert!(last().contains("window 0 does not exist, or has been freed"), "{}", last());
            assert_eq!(shouter_window_free(shouter, window), SHOUTER_ERROR_ARGUMENT);
            ok(shouter_finalize(shouter));
        }
        assert_eq!(memory, [0, 77, 5, 6]);
    };
    std::thread::scope(|scope| {
        scope.spawn(move || play(ranks[0], 0));
        scope.spawn(move || play(ranks[1], 1));
    });
    std::fs::remove_dir_all(folder).unwrap();
}
