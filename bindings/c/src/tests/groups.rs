use super::*;
use crate::groups::*;

/// Groups of some ranks through their C functions, used like the group that they were made from.
#[test]
fn groups_are_made_and_used_from_c() {
    let (ranks, folder) = two("groups");
    let play = |rank: Shared, me: u32| {
        let shouter = rank.get();
        let ok = |status| assert_eq!(status, SHOUTER_OK, "{}", last());
        // SAFETY: live groups, and room for the results.
        unsafe {
            let sum = |group| {
                let mut data = [me + 1, 1];
                let at = data.as_mut_ptr().cast();
                assert_eq!(
                    shouter_allreduce(group, at, 2, SHOUTER_U32, SHOUTER_SUM),
                    SHOUTER_OK,
                    "{}",
                    last()
                );
                data
            };
            let [mut twin, mut turned, mut own, mut none] = [ptr::null_mut::<Shouter>(); 4];
            ok(shouter_group_duplicate(shouter, &mut twin));
            assert_eq!((shouter_rank(twin), shouter_size(twin), shouter_local_size(twin)), (me, 2, 2));
            assert_eq!(sum(twin), [3, 2]);
            ok(shouter_group_create(shouter, [1, 0].as_ptr(), 2, &mut turned));
            assert_eq!((shouter_rank(turned), shouter_local_rank(turned)), (1 - me, 1 - me));
            let mut number = 9;
            ok(shouter_job_rank(turned, 0, &mut number));
            assert_eq!(number, 1);
            assert_eq!(shouter_job_rank(turned, 2, &mut number), SHOUTER_ERROR_ARGUMENT);
            assert_eq!(sum(turned), [3, 2]);
            ok(shouter_group_split(shouter, me.into(), 0, &mut own));
            assert_eq!(sum(own), [me + 1, 1]);
            let color = if me == 0 { SHOUTER_NO_COLOR } else { 7 };
            ok(shouter_group_split(shouter, color, 0, &mut none));
            assert_eq!(none.is_null(), me == 0);
            ok(shouter_finalize(none));
            for color in [-2, 1 << 32] {
                assert_eq!(shouter_group_split(shouter, color, 0, &mut none), SHOUTER_ERROR_ARGUMENT);
                assert!(last().contains("color"), "{}", last());
            }
            for refused in [
                shouter_group_split(ptr::null(), 0, 0, &mut none),
                shouter_group_split(shouter, 0, 0, ptr::null_mut()),
                shouter_group_split_within(ptr::null(), 0, 0, 1, &mut none),
                shouter_group_split_within(shouter, 0, 0, 0, &mut none),
                shouter_group_split_within(shouter, 0, 0, i64::MAX, &mut none),
                shouter_group_split_within(shouter, 0, 0, 1, ptr::null_mut()),
                shouter_group_create(ptr::null(), [0].as_ptr(), 1, &mut none),
                shouter_group_create(shouter, ptr::null(), 1, &mut none),
                shouter_group_create(shouter, [me].as_ptr(), 1, ptr::null_mut()),
                shouter_group_create(shouter, [me, me].as_ptr(), 2, &mut none),
                shouter_group_create(shouter, [me].as_ptr(), 3, &mut none),
                shouter_group_create_within(ptr::null(), [0].as_ptr(), 1, 1, &mut none),
                shouter_group_create_within(shouter, [me].as_ptr(), 1, 0, &mut none),
                shouter_group_create_within(shouter, [me].as_ptr(), 1, -1, &mut none),
                shouter_group_create_within(shouter, [me].as_ptr(), 1, i64::MAX, &mut none),
                shouter_group_create_within(shouter, [me].as_ptr(), 1, 1, ptr::null_mut()),
                shouter_group_duplicate(ptr::null(), &mut none),
                shouter_group_duplicate(shouter, ptr::null_mut()),
                shouter_job_rank(shouter, 0, ptr::null_mut()),
                shouter_job_rank(ptr::null(), 0, &mut number),
            ] {
                assert_eq!(refused, SHOUTER_ERROR_ARGUMENT);
            }
            // The process leaves the job with its last group.
            ok(shouter_finalize(shouter));
            assert_eq!(sum(twin), [3, 2]);
            [own, turned, twin].into_iter().for_each(|group| ok(shouter_finalize(group)));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || play(ranks[0], 0));
        scope.spawn(move || play(ranks[1], 1));
    });
    std::fs::remove_dir_all(folder).unwrap();
}

/// A group's own deadline ends that group, long before the deadline of the group that it was made from, which goes on.
#[test]
fn a_group_has_a_deadline_of_its_own() {
    ["create", "split"].into_iter().for_each(own_deadline);
}

fn own_deadline(how: &'static str) {
    let (ranks, folder) = two(&format!("within-{how}"));
    let play = |rank: Shared, me: u32| {
        let shouter = rank.get();
        let ok = |status| assert_eq!(status, SHOUTER_OK, "{}", last());
        let mut data = [me];
        let at = data.as_mut_ptr().cast();
        let mut within = ptr::null_mut::<Shouter>();
        // SAFETY: live groups, room for the results, and data that no operation uses when it is dropped.
        unsafe {
            match how {
                "create" => ok(shouter_group_create_within(shouter, [0, 1].as_ptr(), 2, 200, &mut within)),
                _ => ok(shouter_group_split_within(shouter, 4, 0, 200, &mut within)),
            }
            if me == 0 {
                let begin = std::time::Instant::now();
                let status = shouter_allreduce(within, at, 1, SHOUTER_U32, SHOUTER_SUM);
                let took = begin.elapsed().as_millis();
                assert_eq!(status, SHOUTER_ERROR_DEADLINE, "{}", last());
                assert!((200..60_000).contains(&took), "{took} ms");
                let why = info(size_of::<ErrorInfo>()).1;
                assert_eq!(why.operation, SHOUTER_OPERATION_ALLREDUCE, "{}", last());
                assert!(last().contains("waiting for rank 1"), "{}", last());
            }
            // Rank 1 takes part only in the other group.
            ok(shouter_allreduce(shouter, at, 1, SHOUTER_U32, SHOUTER_SUM));
            assert_ne!(shouter_finalize(within), SHOUTER_OK);
            ok(shouter_finalize(shouter));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || play(ranks[0], 0));
        scope.spawn(move || play(ranks[1], 1));
    });
    std::fs::remove_dir_all(folder).unwrap();
}
