//! Factors and layouts from C.

use super::*;

/// A descriptor of two ranks' collective.
fn descriptor(kind: i32, input: *const f32, output: *mut f32, count: usize) -> crate::work::Operation {
    crate::work::Operation {
        kind,
        dtype: SHOUTER_F32,
        op: SHOUTER_SUM,
        input: input.cast(),
        output: output.cast(),
        count,
        ..operation(0)
    }
}

#[test]
fn sums_have_factors_and_elements_lie_in_blocks() {
    let (ranks, folder) = two("staged");
    let play = |rank: Shared, me: usize| {
        let shouter = rank.get();
        let ok = |status| assert_eq!(status, SHOUTER_OK, "{}", last());
        let refused = |status, with: &str| {
            assert_eq!(status, SHOUTER_ERROR_ARGUMENT, "{}", last());
            assert!(last().contains(with), "{}", last());
        };
        let factor = [0.5f64, 3.0][me];
        let mut data = [1f32, 2.0, 3.0, 4.0];
        let at = data.as_mut_ptr();
        let mut work = ptr::null_mut();
        // SAFETY: a live group; all buffers are as long as the descriptors say, and left alone meanwhile.
        unsafe {
            let sum = crate::work::Operation {
                factor: &factor,
                ..descriptor(SHOUTER_OPERATION_ALLREDUCE, at, at, 4)
            };
            ok(shouter_run(shouter, &sum));
            assert_eq!(data, [3.5, 7.0, 10.5, 14.0]);
            data = [1.0, 2.0, 3.0, 4.0];
            ok(shouter_start(shouter, &sum, &mut work));
            ok(shouter_wait(work, -1));
            ok(shouter_work_free(work));
            assert_eq!(data, [3.5, 7.0, 10.5, 14.0]);

            // The tensor's second operation is like its first.
            let mut id = 0;
            let tensor = tensor(c"t".as_ptr(), 2, SHOUTER_F32, SHOUTER_SUM);
            ok(shouter_register(shouter, &tensor, 1, &mut id));
            let every_other = Layout { count: 2, block: 1, stride: 2 };
            for _ in 0..2 {
                data = [1.0, 2.0, 3.0, 4.0];
                let next = crate::work::Operation {
                    input: at.cast(),
                    output: at.cast(),
                    factor: &factor,
                    input_layout: &every_other,
                    output_layout: &every_other,
                    ..operation(id)
                };
                ok(shouter_start(shouter, &next, &mut work));
                ok(shouter_wait(work, -1));
                ok(shouter_work_free(work));
                assert_eq!(data, [3.5, 2.0, 10.5, 4.0]);
            }

            let (counts, input) = ([1usize, 3], [2f32, 4.0, 6.0, 8.0]);
            let (from, mut own) = (input.as_ptr().cast(), [0f32; 3]);
            let into = own.as_mut_ptr().cast();
            ok(shouter_reduce_scatterv_premul(shouter, from, into, counts.as_ptr(), SHOUTER_F32, factor));
            assert_eq!(own, [[7.0, 0.0, 0.0], [14.0, 21.0, 28.0]][me]);

            // A column on rank 0 becomes a row on rank 1.
            data = [[1.0, 2.0, 3.0, 4.0], [0.0; 4]][me];
            let mut broadcast = descriptor(SHOUTER_OPERATION_BROADCAST, ptr::null(), at, 2);
            if me == 0 {
                broadcast.output_layout = &every_other;
            }
            ok(shouter_run(shouter, &broadcast));
            assert_eq!(data, [[1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 0.0, 0.0]][me]);

            // A row of rank 0 becomes a column of rank 1.
            let mut message = ExchangeEntry {
                kind: [SHOUTER_SEND, SHOUTER_RECV][me],
                data: data.as_mut_ptr().cast(),
                count: 2,
                dtype: SHOUTER_F32,
                rank: 1 - me as i64,
                tag: 4,
                layout: if me == 1 { &every_other } else { ptr::null() },
                status: -1,
                message: Message::default(),
            };
            ok(shouter_exchange(shouter, &mut message, 1));
            assert_eq!(data, [[1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 0.0]][me]);

            let bad = |count, block, stride| Layout { count, block, stride };
            let (zero, overlaps, short) = (bad(2, 0, 1), bad(2, 2, 1), bad(1, 1, 1));
            let run = |operation: crate::work::Operation| shouter_run(shouter, &operation);
            for (layout, with) in [(&zero, "no elements"), (&overlaps, "overlap"), (&short, "has 1 elements")]
            {
                refused(run(crate::work::Operation { output_layout: layout, ..broadcast }), with);
                message.layout = layout;
                refused(shouter_exchange(shouter, &mut message, 1), with);
            }
            refused(
                run(crate::work::Operation { op: SHOUTER_MAX, ..sum }),
                "max of all-reduce has no factor",
            );
            refused(run(crate::work::Operation { dtype: SHOUTER_I32, ..sum }), "no factor for i32");
            let odd = (&raw const factor).byte_add(1);
            refused(run(crate::work::Operation { factor: odd, ..sum }), "aligned");
            let odd = (&raw const short).byte_add(1);
            refused(run(crate::work::Operation { input_layout: odd, ..sum }), "aligned");
            refused(run(operation(id)), "shouter_start");
            refused(shouter_run(shouter, ptr::null()), "operation is NULL");
            let gpu = crate::work::Operation { memory: SHOUTER_MEMORY_CUDA, input_layout: &short, ..sum };
            refused(run(gpu), "on their stream");
            refused(shouter_start(shouter, &gpu, &mut work), "on their stream");
            let counts = ptr::null();
            refused(shouter_reduce_scatterv_premul(shouter, from, into, counts, SHOUTER_F32, factor), "NULL");
            ok(shouter_barrier(shouter));
            shouter_finalize(shouter);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || play(ranks[0], 0));
        scope.spawn(move || play(ranks[1], 1));
    });
    std::fs::remove_dir_all(folder).unwrap();
}
