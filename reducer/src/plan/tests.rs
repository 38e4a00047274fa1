use super::*;
use crate::check::check;
use crate::dtype::{DType, ReduceOp};
use crate::grid::tests::levels;
use crate::schedule::{Access, Placement};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

fn all_reduce(bytes: u64) -> Shape {
    Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count: bytes / 4 }
}

#[test]
fn every_difference_shows_by_name() {
    let plan = Plan::default();
    let overrides = Overrides::default().with(Collective::AllReduce, Algorithm::Ring);
    let others = [
        ("schedule of all-reduce", Plan { overrides, ..plan }),
        ("levels[0]", Plan { levels: levels(&[3]), ..plan }),
        ("levels[1]", Plan { levels: levels(&[8, 3]), ..plan }),
        ("eager_bytes", Plan { eager_bytes: 3, ..plan }),
        ("chunk_bytes", Plan { chunk_bytes: 3, ..plan }),
        ("lanes", Plan { lanes: 3, ..plan }),
        ("lane_bytes", Plan { lane_bytes: 3, ..plan }),
        ("depth", Plan { depth: 3, ..plan }),
    ];
    for (name, other) in others {
        let differing: Vec<_> =
            plan.fields().into_iter().zip(other.fields()).filter(|(a, b)| a != b).collect();
        assert_eq!(differing.iter().map(|(field, _)| field.0.as_str()).collect::<Vec<_>>(), [name]);
        assert_ne!(plan.digest(), other.digest(), "{name}");
    }
}

#[test]
fn the_number_of_connections_is_compared_where_one_is_given() {
    let plans = [None, Some(3), Some(10)].map(|channel_num| Plan { channel_num, ..Plan::default() });
    let of = |plan: &Plan| plan.fields().into_iter().find(|(name, _)| name == "channel_num").map(|(_, n)| n);
    assert_eq!(plans.each_ref().map(of), [None, Some(3), Some(10)]);
    let digests = plans.each_ref().map(Plan::digest);
    assert!(digests[0] != digests[1] && digests[1] != digests[2] && digests[0] != digests[2]);
}

#[test]
fn values_are_told_in_the_configurations_words() {
    for (name, value, text) in [
        ("schedule of all-reduce", Some(Algorithm::Ring as u64), "ring"),
        ("schedule of all-reduce", Some(0), "none"),
        ("schedule of all-reduce", Some(200), "200"),
        ("schedule of all-reduce", Some(258), "258"),
        ("levels[0]", Some(2), "2"),
        ("levels[1]", Some(0), "none"),
        ("channel_num", Some(2), "2"),
        ("channel_num", None, "the default (not set)"),
        ("lanes", Some(0), "0"),
        ("lanes", None, "none"),
    ] {
        assert_eq!(field_text(name, value), text, "{name} {value:?}");
    }
}

#[test]
fn every_figure_of_the_costs_is_in_the_digest() {
    let plan = Plan::default();
    for (name, value) in plan.costs.fields() {
        let mut other = plan;
        *other.costs.field_mut(name).unwrap() = value + 1;
        assert_ne!(plan.digest(), other.digest(), "{name}");
    }
    assert_eq!(plan.digest(), Plan::default().digest());
}

/// The algorithms are those that thresholds chose before there was a model, and that were measured.
#[test]
fn the_size_picks_the_algorithm() {
    let plan = Plan::default();
    let (pair, grid) = (Grid::new(2, 1).unwrap(), Grid::new(4, 1).unwrap());
    for (bytes, pair_has, grid_has) in [
        (4, Algorithm::Direct, Algorithm::Direct),
        (1 << 10, Algorithm::Direct, Algorithm::Direct),
        (64 << 10, Algorithm::Hierarchical, Algorithm::Hierarchical),
        (1 << 20, Algorithm::Hierarchical, Algorithm::Hierarchical),
        (1 << 30, Algorithm::Hierarchical, Algorithm::Hierarchical),
    ] {
        assert_eq!(plan.algorithm(&pair, &all_reduce(bytes)), pair_has, "{bytes} B on two");
        assert_eq!(plan.algorithm(&grid, &all_reduce(bytes)), grid_has, "{bytes} B on four");
    }
    let schedule = plan.schedule(&grid, Rank(1), &all_reduce(16), Rank(0)).unwrap();
    assert_eq!(schedule.sources().count(), 3);
}

#[test]
fn many_nodes_take_rounds_and_large_tensors_several_trees() {
    use {Algorithm::*, Collective as C};
    let plan = Plan::default();
    let [few, many] = [4, 33].map(|nodes| Grid::new(nodes, 1).unwrap());
    for (collective, of_few, of_many, of_large) in [
        (C::AllReduce, Direct, Bruck, Hierarchical),
        (C::Reduce, Direct, Binomial, Hierarchical),
        (C::Broadcast, Direct, Binomial, DoubleTree),
        (C::AllGather, Direct, Bruck, Direct),
        (C::Gather, Direct, Binomial, Direct),
        (C::Scatter, Direct, Binomial, Direct),
        (C::ReduceScatter, Direct, Direct, Direct),
        (C::AllToAll, Direct, Bruck, Direct),
        (C::Barrier, Direct, Dissemination, Dissemination),
        (C::Scan, Direct, Direct, Hierarchical),
        (C::AllGatherV, Direct, Direct, Direct),
    ] {
        let of = |grid, bytes: u64| {
            let count = if collective == C::Barrier { 0 } else { bytes / 4 };
            plan.algorithm(grid, &Shape { collective, count, ..all_reduce(4) })
        };
        assert_eq!(of(&few, 4), of_few, "{collective}");
        assert_eq!(of(&many, 4), of_many, "{collective}");
        assert_eq!(of(&many, 16 << 20), of_large, "{collective}");
    }
}

#[test]
fn a_named_algorithm_serves_every_size() {
    let overrides: Overrides = "all_reduce:ring".parse().unwrap();
    let plan = Plan { overrides, ..Plan::default() };
    let grid = Grid::new(4, 1).unwrap();
    for bytes in [4, 1 << 20] {
        assert_eq!(plan.algorithm(&grid, &all_reduce(bytes)), Algorithm::Ring);
    }
    let reduce = Shape { collective: Collective::Reduce, ..all_reduce(4) };
    assert_ne!(plan.algorithm(&grid, &reduce), Algorithm::Ring);
}

#[test]
fn names_are_read_and_written() {
    let text = "reduce:direct, all-reduce:ring,";
    let overrides: Overrides = text.parse().unwrap();
    assert_eq!(overrides.to_string(), "all_reduce:ring,reduce:direct");
    assert_eq!(overrides.to_string().parse(), Ok(overrides));
    assert_eq!("reduce:direct,allreduce:ring".parse(), Ok(overrides));
    assert_eq!("".parse(), Ok(Overrides::default()));
}

#[test]
fn names_that_are_none_are_refused_with_those_that_are() {
    let refused = |text: &str| text.parse::<Overrides>().unwrap_err().to_string();
    for (text, known) in [
        ("all_reduce", "all_reduce:ring"),
        ("all_reduc:ring", "all_reduce, broadcast, barrier"),
        ("all_reduce:rong", "direct, hierarchical, ring, recursive_doubling"),
        ("all_reduce:", "direct, hierarchical, ring, recursive_doubling"),
        ("reduce:ring", "direct, hierarchical, binomial, chain"),
        ("all_reduce:ring,all_reduce:direct", "all_reduce is there twice"),
        (":ring", "\"\" is no collective"),
    ] {
        assert!(refused(text).contains(known), "{text}: {}", refused(text));
    }
}

/// Ranks find their schedules by themselves: whatever the figures, the checker takes what they find, whichever tensors they have.
#[test]
fn all_ranks_choose_the_same() {
    let mut rng = SmallRng::seed_from_u64(9);
    let equal: Vec<_> = Collective::ALL.into_iter().filter(|collective| !collective.has_counts()).collect();
    let (mut direct, mut all) = (0, 0);
    for _ in 0..60 {
        let mut plan = Plan { chunk_bytes: 64 << 10, lane_bytes: 64 << 10, ..Plan::default() };
        for (name, value) in plan.costs.fields() {
            *plan.costs.field_mut(name).unwrap() = (value / 10).max(1) * rng.random_range(1..100);
        }
        let per_node = rng.random_range(1..=2);
        let ranks = rng.random_range(1..=4) * per_node;
        let grid = Grid::new(ranks, per_node).unwrap();
        let mut shape = Shape {
            collective: match rng.random() {
                true => Collective::AllReduce,
                false => equal[rng.random_range(0..equal.len())],
            },
            dtype: [DType::F32, DType::I32][rng.random_range(0..2)],
            op: ReduceOp::Sum,
            count: 1 << rng.random_range(0..18),
        };
        if shape.collective == Collective::Barrier {
            shape.count = 0;
        }
        let root = Rank(rng.random_range(0..ranks));
        let schedules: Vec<_> = (0..ranks)
            .map(|rank| {
                // A rank's own table, which may have seen another size of the class.
                let mut choices = Choices::default();
                if rank % 2 == 1 {
                    choices.algorithm(&plan, &grid, &Shape { count: cost::size_class(shape.count), ..shape });
                }
                let problem = Problem::new(grid, Rank(rank), &shape, root);
                let access = if rank % 2 == 0 { Access::Host } else { Access::Copies };
                let placement = if rank % 3 == 0 { Placement::InPlace } else { Placement::Separate };
                let algorithm = choices.algorithm(&plan, &grid, &shape);
                assert_eq!(algorithm, plan.algorithm(&grid, &shape));
                direct += u32::from(algorithm == Algorithm::Direct);
                all += 1;
                plan.build(algorithm, &Problem { access, placement, ..problem }).unwrap()
            })
            .collect();
        if let Err(flaw) = check(&schedules, 1 << 24) {
            panic!("{shape} on {grid:?}: {flaw}");
        }
    }
    assert!(0 < direct && direct < all, "both kinds were met: {direct} of {all}");
}
