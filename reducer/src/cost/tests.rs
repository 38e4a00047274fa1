use super::*;
use crate::grid::Levels;
use crate::grid::tests::levels;
use crate::plan::Plan;
use crate::schedule::Action;

const SIZES: [u64; 10] = [4, 64, 1 << 10, 8 << 10, 16 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30];

fn shape(collective: Collective, bytes: u64) -> Shape {
    let count = if collective == Collective::Barrier { 0 } else { bytes / 4 };
    Shape { collective, dtype: DType::F32, op: ReduceOp::Sum, count }
}

fn modelled() -> impl Iterator<Item = Collective> {
    Collective::ALL.into_iter().filter(|&collective| is_modelled(collective))
}

fn grids() -> impl Iterator<Item = Grid> {
    let sizes = [(2, 1), (3, 1), (8, 1), (13, 1), (2, 2), (4, 4), (4, 2), (16, 8), (64, 8), (256, 1)];
    sizes
        .into_iter()
        .map(|(ranks, per_node)| Grid::new(ranks, per_node).unwrap().with_levels(Levels::default()))
}

/// Every collective with every algorithm, on every grid; on the largest, those of which a few hosts are evaluated.
fn everything() -> impl Iterator<Item = (Grid, Collective, Algorithm)> {
    grids()
        .flat_map(|grid| {
            modelled().flat_map(move |collective| {
                serving(collective).map(move |algorithm| (grid, collective, algorithm))
            })
        })
        .filter(|(grid, collective, algorithm)| {
            grid.nodes() <= 64 || algorithm.is_uniform(*collective, grid.nodes()) && !collective.has_root()
        })
}

fn model(costs: Costs) -> Model {
    Plan { costs, ..Plan::default() }.model()
}

#[test]
fn a_small_all_reduce_takes_the_sum_of_its_steps() {
    let costs = Costs::default();
    let (host, network) = (costs.host, costs.network);
    let grid = Grid::new(2, 1).unwrap().with_levels(Levels::default());
    let direct = model(costs).predict(Algorithm::Direct, &grid, &shape(Collective::AllReduce, 4)).unwrap();
    // A copy, a send, the way, a receive as the bytes come, a fold of two elements.
    let bytes = |n, mb_s| Picoseconds::of_bytes(n, mb_s).0;
    let overheads = host.call_ns + 2 * host.step_ns + 2 * network.message_ns + network.latency_ns;
    let expected = Picoseconds::of_ns(overheads).0
        + bytes(4, host.copy_mb_s)
        + bytes(4, network.core_mb_s)
        + bytes(8, host.fold_mb_s);
    assert_eq!(direct.0, expected);
}

#[test]
fn more_bytes_take_longer() {
    let model = model(Costs::default());
    for (grid, collective, algorithm) in everything() {
        let mut before = Picoseconds(0);
        for bytes in SIZES {
            // Blocks of more than a lane's worth have no schedule.
            let Ok(time) = model.predict(algorithm, &grid, &shape(collective, bytes)) else { continue };
            // Slices of small tensors are cut at 64 elements, so that a few more elements can share the work better.
            let least = before.0 / 100 * 95;
            assert!(
                time.0 >= least,
                "{collective} {algorithm:?} on {grid:?}, {bytes} B: {time} after {before}"
            );
            before = time;
        }
    }
}

#[test]
fn nothing_is_faster_than_the_lower_bound() {
    for name in ["rud", "kernel", "verbs"] {
        let model = model(Costs::of_transport(name));
        for (grid, collective, algorithm) in everything() {
            for bytes in SIZES {
                let shape = shape(collective, bytes);
                let Ok(time) = model.predict(algorithm, &grid, &shape) else { continue };
                let bound = model.lower_bound(&grid, &shape);
                assert!(
                    time >= bound,
                    "{collective} {algorithm:?} on {grid:?}, {bytes} B over {name}: {time} of {bound}"
                );
            }
        }
    }
}

#[test]
fn no_algorithm_is_left_out_that_is_the_fastest() {
    let model = model(Costs::default());
    for grid in grids().filter(|grid| grid.ranks() <= 64) {
        for bytes in SIZES {
            let shape = Shape { dtype: DType::I32, ..shape(Collective::AllReduce, bytes) };
            let candidates: Vec<_> = candidates(&shape).collect();
            let all = candidates.iter().map(|&a| (model.predict(a, &grid, &shape).unwrap(), a));
            let (least, best) = all.min_by_key(|(time, _)| *time).unwrap();
            assert_eq!(
                model.fastest(&candidates, &grid, &shape),
                Some((best, least)),
                "{bytes} B on {grid:?}"
            );
            let works = candidates.iter().map(|&a| model.work(a, &grid, &shape).unwrap());
            assert!(works.min() <= Some(least));
        }
    }
}

/// Printed, not judged: time on a machine that others share. `cargo test -p shouter-reducer --lib -- --ignored --nocapture a_choice_takes`
#[test]
#[ignore = "prints times"]
fn a_choice_takes_milliseconds() {
    for (ranks, per_node) in [(2, 1), (8, 1), (64, 8), (32, 1), (256, 1), (1024, 8), (1024, 1)] {
        let grid = Grid::new(ranks, per_node).unwrap().with_levels(Levels::default());
        for (bytes, dtype) in
            SIZES.into_iter().flat_map(|bytes| [DType::F32, DType::I32].map(|dtype| (bytes, dtype)))
        {
            let shape = Shape { dtype, ..shape(Collective::AllReduce, bytes) };
            let begin = std::time::Instant::now();
            let found = Plan::default().algorithm(&grid, &shape);
            println!(
                "{ranks} ranks, {per_node} a host, {bytes} B of {dtype}: {found:?} in {:?}",
                begin.elapsed()
            );
        }
    }
}

#[test]
fn slower_parts_make_nothing_faster() {
    let base = Costs::default();
    for grid in [
        Grid::new(4, 2).unwrap().with_levels(Levels::default()),
        Grid::new(5, 1).unwrap().with_levels(levels(&[2])),
    ] {
        for collective in modelled() {
            for (algorithm, bytes) in
                serving(collective).flat_map(|a| [64, 100 << 10, 8 << 20].map(|bytes| (a, bytes)))
            {
                let shape = shape(collective, bytes);
                let of = |costs| model(costs).predict(algorithm, &grid, &shape).unwrap();
                let before = of(base);
                for (name, value) in base.fields() {
                    let mut slower = base;
                    let worse = if name.ends_with("_ns") { value * 4 } else { value / 4 };
                    *slower.field_mut(name).unwrap() = worse;
                    // Steps in another order may overlap a little better.
                    let after = of(slower);
                    assert!(
                        after.0 >= before.0 / 100 * 97,
                        "{collective} {algorithm:?} {name}: {after} {before}"
                    );
                }
            }
        }
    }
}

#[test]
fn some_hosts_stand_for_all() {
    let costs = Costs::default();
    let params = Plan::default().params();
    let grids: [(u32, u32, &[u32]); 9] = [
        (8, 1, &[8]),
        (16, 1, &[8]),
        (32, 1, &[8]),
        (32, 4, &[8]),
        (64, 8, &[8]),
        (32, 1, &[4, 2]),
        (48, 1, &[2, 3, 2]),
        (64, 2, &[4, 4]),
        (61, 1, &[4, 4]),
    ];
    for (ranks, per_node, sizes) in grids {
        let grid = Grid::new(ranks, per_node).unwrap().with_levels(levels(sizes));
        for collective in modelled() {
            let uniform = |algorithm: &Algorithm| algorithm.is_uniform(collective, grid.nodes());
            for algorithm in serving(collective).filter(uniform) {
                // A chunk that all slices have a part of.
                let bytes = if collective.is_blocked() { 4 << 10 } else { 128 << 10 };
                let problem = Problem::new(grid, Rank(0), &shape(collective, bytes), Rank(0));
                let of = |budget| {
                    let cast = cast::Cast::within(algorithm, &problem, &params, budget).unwrap();
                    (cast.schedules.len(), simulate::run(&cast, &costs, true))
                };
                let ((all, exact), (some, estimate)) = (of(usize::MAX), of(0));
                assert!(all == ranks as usize && some <= 2 * per_node as usize, "{some} of {all}");
                let ratio = estimate.as_micros() / exact.as_micros();
                assert!(
                    (0.66..=1.5).contains(&ratio),
                    "{collective} {algorithm:?} on {grid:?}: {estimate} for {exact}"
                );
            }
        }
    }
}

/// With costs of a flag that are small and large beside those of bytes.
#[test]
fn some_ranks_stand_for_all_of_a_host() {
    let params = Plan::default().params();
    for (ranks, flag_ns) in [(65, 200), (66, 50_000)] {
        let grid = Grid::new(ranks, ranks).unwrap();
        let mut costs = Costs::default();
        costs.host.flag_ns = flag_ns;
        let roots = |collective: Collective| if collective.has_root() { &[0, 40][..] } else { &[0] };
        for (collective, &root) in modelled().flat_map(|one| roots(one).iter().map(move |root| (one, root))) {
            for algorithm in serving(collective).filter(|algorithm| algorithm.serves(collective, &grid)) {
                for bytes in [4, 32 << 10] {
                    // Of a block, where there are blocks.
                    let shape = shape(collective, bytes);
                    let problem = Problem::new(grid, Rank(0), &shape, Rank(root));
                    let of = |budget| {
                        let cast = cast::Cast::within(algorithm, &problem, &params, budget);
                        cast.map(|cast| (cast.schedules.len(), simulate::run(&cast, &costs, true))).ok()
                    };
                    let (Some((all, exact)), Some((some, estimate))) = (of(usize::MAX), of(0)) else {
                        continue;
                    };
                    assert!(all == ranks as usize && some <= 5, "{some} of {all}");
                    let ratio = estimate.as_micros() / exact.as_micros();
                    assert!(
                        (0.8..=1.25).contains(&ratio),
                        "{collective} {algorithm:?} of {bytes} B from {root} on {ranks}: {estimate} for {exact}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_large_grid_is_evaluated_by_few_of_its_ranks() {
    let params = Plan::default().params();
    for per_node in [1, 8] {
        let grid = Grid::new(1024, per_node).unwrap().with_levels(Levels::default());
        let uniform = |algorithm: &Algorithm| algorithm.is_uniform(Collective::AllReduce, grid.nodes());
        for algorithm in serving(Collective::AllReduce).filter(uniform) {
            let problem = Problem::new(grid, Rank(0), &shape(Collective::AllReduce, 1 << 20), Rank(0));
            let cast = cast::Cast::of(algorithm, &problem, &params).unwrap();
            assert!(cast.schedules.len() <= 2 * per_node as usize);
        }
    }
    // Of one host a few of its ranks.
    let grid = Grid::new(4096, 4096).unwrap();
    let problem = Problem::new(grid, Rank(0), &shape(Collective::AllReduce, 1 << 20), Rank(0));
    let cast = cast::Cast::of(Algorithm::Hierarchical, &problem, &params).unwrap();
    assert!(cast.schedules.len() <= 5);
}

#[test]
fn messages_that_wait_for_credit_take_a_message_longer() {
    let grid = Grid::new(2, 1).unwrap().with_levels(Levels::default());
    let shape = shape(Collective::AllReduce, 8 << 10);
    let of = |eager_bytes| {
        Model { eager_bytes, ..model(Costs::default()) }.predict(Algorithm::Direct, &grid, &shape).unwrap()
    };
    assert!(of(4 << 10) >= of(8 << 10));
}

#[test]
fn only_what_keeps_the_order_serves_sums_of_floats() {
    let of = |dtype, op| {
        let shape = Shape { collective: Collective::AllReduce, dtype, op, count: 1 };
        candidates(&shape).any(|algorithm| algorithm == Algorithm::Ring)
    };
    assert!(
        !of(DType::F32, ReduceOp::Sum) && !of(DType::Bf16, ReduceOp::Avg) && !of(DType::F64, ReduceOp::Prod)
    );
    assert!(of(DType::I32, ReduceOp::Sum) && of(DType::F32, ReduceOp::Max) && of(DType::U8, ReduceOp::Avg));
}

#[test]
fn classes_of_sizes_are_two_in_each_power_of_two() {
    let classes = [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 4), (6, 6), (7, 6), (8, 8), (11, 8), (12, 12)];
    for (count, class) in classes {
        assert_eq!(size_class(count), class, "{count}");
    }
    assert_eq!(size_class(u64::MAX), 3 << 62);
}

#[test]
fn every_algorithm_that_serves_a_collective_has_a_schedule() {
    let grid = Grid::new(4, 2).unwrap().with_levels(Levels::default());
    for collective in modelled() {
        assert!(serving(collective).count() > 0);
        for algorithm in serving(collective) {
            let shape = shape(collective, 64);
            let problem = Problem::new(grid, Rank(0), &shape, Rank(0));
            let schedule = schedule::build(algorithm, &problem, &Plan::default().params()).unwrap();
            assert!(
                schedule
                    .steps()
                    .iter()
                    .any(|step| matches!(step.action, Action::Send { .. } | Action::Signal { .. }))
            );
        }
    }
}
