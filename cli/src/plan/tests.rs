use super::fit::{self, Point};
use super::*;
use shouter_reducer::cost::Costs;
use shouter_reducer::schedule::Algorithm;

pub(super) fn parsed(args: &[&str]) -> Result<PlanArgs, String> {
    #[derive(clap::Parser)]
    struct Alone {
        #[command(flatten)]
        plan: PlanArgs,
    }
    let all = std::iter::once(&"plan").chain(args);
    <Alone as clap::Parser>::try_parse_from(all).map(|alone| alone.plan).map_err(|why| why.to_string())
}

#[test]
fn collectives_are_named_as_in_the_configuration() {
    assert_eq!("all_gather".parse(), Ok(Collectives(vec![Collective::AllGather])));
    let both = Collectives(vec![Collective::Reduce, Collective::AllReduce]);
    assert_eq!("reduce,all-reduce".parse(), Ok(both));
    // Collectives with several counts, and scans, have only one algorithm.
    let all = Collective::ALL.into_iter().filter(|one| !one.has_counts() && !one.is_scan()).collect();
    assert_eq!("all".parse(), Ok(Collectives(all)));
    let refused = "allgathers".parse::<Collectives>().unwrap_err();
    assert!(refused.contains("all_gather, reduce_scatter"), "{refused}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    for args in [
        &["--ranks", "0"][..],
        &["--ranks", "70000"],
        &["--collective", "all_reduce,nothing"],
        &["--bytes", "0"],
        &["--bytes", "1Mi..4"],
        &["--dtype", "f12"],
        &["--transport", "pigeon"],
        &["--measure", "--compare"],
        &["--levels", "8,0"],
        &["--levels", "2,2,2,2,2"],
        &["--levels", "eight"],
        &["--measure", "--levels", "4"],
    ] {
        assert!(parsed(args).is_err(), "{args:?}");
    }
    let too_many = grid(&parsed(&["--ranks", "2", "--hosts", "7"]).unwrap(), Levels::default()).unwrap_err();
    assert!(too_many.to_string().contains("2 ranks cannot fill 7 hosts"), "{too_many}");
    let none = parsed(&["--ranks", "4", "--collective", "reduce_scatter", "--bytes", "4,8"]).unwrap();
    let four = grid(&none, Levels::default()).unwrap();
    let refused = rows(&Plan::default(), &four, Collective::ReduceScatter, &none).unwrap_err();
    assert!(refused.to_string().contains("multiple of 16"), "{refused}");
}

#[test]
fn each_size_has_its_algorithm_its_times_and_its_bound() {
    let args = parsed(&["--ranks", "64", "--hosts", "8", "--bytes", "4..1Gi"]).unwrap();
    let grid = grid(&args, Levels::default()).unwrap();
    let rows = rows(&Plan::default(), &grid, Collective::AllReduce, &args).unwrap();
    assert_eq!(rows.len(), 15);
    for row in &rows {
        let predicted = row.predicted_us.unwrap();
        assert!(row.bound_us <= predicted, "{row:?}");
        let of_row = |name| row.algorithms.iter().find(|(known, _)| *known == name).unwrap().1.clone();
        assert_eq!(of_row(row.algorithm), Ok(predicted));
    }
    assert_eq!((rows[0].algorithm, rows[14].algorithm), ("bruck", "hierarchical"));
    let text = table::text(&rows);
    assert!(text.lines().count() == 17 && text.contains("1073741824  hierarchical"), "{text}");
    for (name, _) in &rows[0].algorithms {
        assert!(text.lines().next().unwrap().split_whitespace().any(|word| word == *name), "{text}");
    }
    let json: serde_json::Value = serde_json::to_value(&rows[0]).unwrap();
    assert_eq!(json["algorithm"], "bruck");
    assert!(json["algorithms_us"]["ring"].is_f64() && json.get("measured_us").is_none(), "{json}");
}

#[test]
fn no_prediction_is_below_the_bound() {
    for (ranks, hosts) in [(1, 1), (2, 1), (3, 1), (8, 1), (2, 2), (8, 2), (64, 8)] {
        let (ranks, hosts) = (u32::to_string(&ranks), u32::to_string(&hosts));
        // A multiple of each block, for every collective.
        let args = ["--ranks", &ranks, "--hosts", &hosts, "--bytes", "768,3Ki,12Ki,48Ki,3Mi,192Mi"];
        let args = parsed(&args).unwrap();
        let grid = grid(&args, Levels::default()).unwrap();
        for collective in Collective::ALL.into_iter().filter(|&one| cost::is_modelled(one)) {
            for row in rows(&Plan::default(), &grid, collective, &args).unwrap() {
                assert!(row.predicted_us.is_some_and(|us| us >= row.bound_us), "{row:?}");
            }
        }
    }
}

#[test]
fn reductions_that_there_are_not_are_refused() {
    for (op, dtype) in [("band", "f32"), ("avg", "bool")] {
        let args = parsed(&["--op", op, "--dtype", dtype]).unwrap();
        let refused = predict(&args).unwrap_err();
        assert!(matches!(refused, CommandError::Usage(_)), "{refused}");
        assert!(refused.to_string().contains(dtype), "{refused}");
    }
}

#[test]
fn algorithms_that_other_bits_forbid_are_named() {
    let of = |dtype: &str| {
        let args = ["--ranks", "64", "--hosts", "64", "--bytes", "64Ki", "--dtype", dtype];
        let args = parsed(&args).unwrap();
        let grid = grid(&args, Levels::default()).unwrap();
        rows(&Plan::default(), &grid, Collective::AllReduce, &args).unwrap()
    };
    let (floats, whole) = (of("f32"), of("i32"));
    assert!(floats[0].passed_over.contains(&"halving_doubling"), "{floats:?}");
    assert!(!floats[0].passed_over.contains(&floats[0].algorithm), "{floats:?}");
    assert!(table::text(&floats).contains("halving_doubling"), "{floats:?}");
    assert!(table::text(&floats).lines().last().unwrap().contains("not chosen"), "{floats:?}");
    assert!(whole[0].passed_over.is_empty() && !table::text(&whole).contains("not chosen"), "{whole:?}");
}

#[test]
fn hosts_may_have_different_numbers_of_ranks() {
    let args = parsed(&["--hosts", "4,2", "--bytes", "24Ki,1536Ki"]).unwrap();
    let grid = grid(&args, Levels::default()).unwrap();
    assert_eq!((grid.ranks(), hosts(&grid)), (6, "hosts of 4, 2".to_owned()));
    for collective in Collective::ALL.into_iter().filter(|&one| cost::is_modelled(one)) {
        for row in rows(&Plan::default(), &grid, collective, &args).unwrap() {
            assert!(row.predicted_us.is_some_and(|us| us >= row.bound_us), "{collective}: {row:?}");
            let of_blocks = collective.is_blocked() && row.algorithms.iter().any(|(name, _)| *name == "ring");
            assert!(!of_blocks, "{collective}: a ring forwards as many blocks of each host");
        }
    }
    let refused = compare::measure(
        &mut [],
        Collective::AllReduce,
        (&grid, Levels::default()),
        &args,
        &figures::Source::BuiltIn,
    )
    .unwrap_err();
    assert!(refused.to_string().contains("the same number of ranks"), "{refused}");
    let spread = super::grid(&parsed(&["--ranks", "7", "--hosts", "2"]).unwrap(), Levels::default()).unwrap();
    assert_eq!(hosts(&spread), "hosts of 4, 3");
}

#[test]
fn levels_change_predictions() {
    let of = |levels: &str| {
        let args = [
            "--ranks",
            "64",
            "--hosts",
            "64",
            "--bytes",
            "64Mi",
            "--transport",
            "kernel",
            "--levels",
            levels,
        ];
        let args = parsed(&args).unwrap();
        let levels = super::levels(&args, &Environment::default()).unwrap();
        let grid = grid(&args, levels).unwrap();
        let costs = Costs::of_transport("kernel");
        let plan = Plan { levels, costs, ..Plan::default() };
        let rows = rows(&plan, &grid, Collective::AllReduce, &args).unwrap();
        let hierarchical = rows[0].algorithms.iter().find(|(name, _)| *name == "hierarchical").unwrap();
        (groups(&grid), rows[0].levels.clone(), hierarchical.1.clone().unwrap())
    };
    let (flat, one, two) = (of("1"), of("8"), of("4,4"));
    assert_eq!((flat.0.as_str(), one.0.as_str(), two.0.as_str()), ("", ", levels 8,", ", levels 4,4,"));
    assert_eq!((flat.1, one.1, two.1), (vec![], vec![8], vec![4, 4]));
    // Messages have a cost: 126, 28 and 18 of each node for a chunk.
    assert!(flat.2 > one.2 && one.2 > two.2, "{} {} {}", flat.2, one.2, two.2);
}

#[test]
fn levels_are_those_of_a_job_unless_they_are_named() {
    let file = std::env::temp_dir().join(format!("shouter-plan-levels-{}.toml", std::process::id()));
    std::fs::write(&file, "levels = [2, 3]\n").unwrap();
    let (file_is, levels_are) = (("SHOUTER_CONFIG", file.to_str().unwrap()), ("SHOUTER_LEVELS", "4,4"));
    let of = |args: &[&str], variables: &[(&str, &str)]| {
        levels(&parsed(args).unwrap(), &variables.iter().copied().collect()).map(|found| found.to_string())
    };
    assert_eq!(of(&[], &[]).unwrap(), Levels::default().to_string());
    assert_eq!(of(&[], &[file_is]).unwrap(), "2,3");
    assert_eq!(of(&[], &[file_is, levels_are]).unwrap(), "4,4");
    for named in ["1", "8", "5,2"] {
        assert_eq!(of(&["--levels", named], &[file_is, levels_are]).unwrap(), named);
    }
    std::fs::remove_file(&file).unwrap();
    let refused = of(&[], &[("SHOUTER_LEVELS", "8,0")]).unwrap_err();
    assert!(matches!(refused, CommandError::Usage(_)), "{refused}");
    assert!(refused.to_string().contains("SHOUTER_LEVELS"), "{refused}");
    let unreadable = of(&[], &[("SHOUTER_CONFIG", "/nowhere/shouter.toml")]).unwrap_err();
    assert!(matches!(unreadable, CommandError::Failed(_)), "{unreadable}");
}

/// `shouter bench` writes some collectives without an underscore.
#[test]
fn collectives_are_known_by_both_spellings() {
    let listed = |text: &str| parsed(&["--collective", text]).unwrap().collective;
    assert_eq!(listed("allreduce,alltoall,allgather"), listed("all_reduce,all_to_all,all-gather"));
}

#[test]
fn small_operations_of_one_host_go_through_cells() {
    let args = parsed(&["--bytes", "4Ki,8Ki"]).unwrap();
    let rows = rows(&Plan::default(), &grid(&args, Levels::default()).unwrap(), Collective::AllReduce, &args)
        .unwrap();
    assert_eq!(rows[0].algorithm, "cells");
    assert_ne!(rows[1].algorithm, "cells");
}

#[test]
fn predictions_that_are_too_far_off_are_named() {
    let args = parsed(&["--bytes", "8Ki"]).unwrap();
    let mut rows =
        rows(&Plan::default(), &grid(&args, Levels::default()).unwrap(), Collective::AllReduce, &args)
            .unwrap();
    let predicted = rows[0].predicted_us.unwrap();
    for (measured, far) in [(predicted, 0), (predicted * 1.9, 0), (predicted * 2.1, 1), (predicted / 2.1, 1)]
    {
        rows[0].measured_us = Some(measured);
        assert_eq!(compare::beyond(&rows, Some(2.0)).len(), far, "{measured}");
        assert!(compare::beyond(&rows, None).is_empty());
    }
    assert!(table::text(&rows).contains("2.10"));
    assert!(parsed(&["--within", "2"]).is_err() && parsed(&["--compare", "--within", "0.5"]).is_err());
}

/// Fitting to the predictions of some figures finds figures that predict the same.
#[test]
fn figures_are_found_from_what_was_measured() {
    let mut real = Costs::of_transport("rud");
    real.network.latency_ns = 2_500;
    real.network.message_ns = 900;
    real.network.core_mb_s = 3_000;
    let grid = Grid::new(2, 1).unwrap();
    let model = Plan { costs: real, ..Plan::default() }.model();
    let kinds = [Algorithm::Direct, Algorithm::Hierarchical];
    let points: Vec<_> = kinds
        .into_iter()
        .flat_map(|algorithm| [4, 4 << 10, 64 << 10, 1 << 20].map(|bytes| (algorithm, bytes)))
        .map(|(algorithm, bytes)| {
            let shape = shape(Collective::AllReduce, bytes, 2, (DType::F32, ReduceOp::Sum));
            let us = model.predict(algorithm, &grid, &shape).unwrap().as_micros();
            Point { grid, shape, algorithm, us }
        })
        .collect();
    let (found, off) = fit::fit(Costs::of_transport("rud"), &fit::NETWORK, &points);
    assert!(off < 1.1, "{off}: {found:?}");
    assert!(found.network.core_mb_s.abs_diff(3_000) < 300, "{found:?}");
}
