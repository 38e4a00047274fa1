//! `shouter bench`, shortly: each measurement ends well, which says that its results were right, and prints its figures.

use std::process::{Command, Output, Stdio};

use crate::run::{Home, lines};
use serde_json::Value;

/// Runs a bench, whatever comes of it.
fn run(home: &Home, options: &[&str]) -> Output {
    let seconds: &[&str] = if options.contains(&"--seconds") { &[] } else { &["--seconds", "0.02"] };
    Command::new(env!("CARGO_BIN_EXE_shouter"))
        .arg("bench")
        .args(options)
        .args(seconds)
        .arg("--json")
        .env("XDG_RUNTIME_DIR", &home.0)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Runs a bench and returns its lines, in any order.
fn rows(home: &Home, options: &[&str]) -> Vec<Value> {
    let output = run(home, options);
    assert_eq!(output.status.code(), Some(0), "{options:?}: {output:?}");
    lines(&output.stdout).iter().map(|row| serde_json::from_str(row).unwrap()).collect()
}

/// A figure of a line, which is above zero.
fn figure(row: &Value, name: &str) -> f64 {
    let value = row[name].as_f64().unwrap_or_else(|| panic!("no {name}: {row}"));
    assert!(value > 0.0, "{name}: {row}");
    value
}

/// The bench checks every element of each result, and fails if a rank leaves a barrier too early.
#[test]
fn every_collective_is_measured_on_one_host_and_on_several() {
    let home = Home::new("collectives");
    let collectives = [
        "allreduce",
        "reduce",
        "broadcast",
        "allgather",
        "gather",
        "scatter",
        "reduce_scatter",
        "alltoall",
        "scan",
        "exscan",
        "allgather_v",
        "gather_v",
        "scatter_v",
        "reduce_scatter_v",
        "alltoall_v",
    ];
    for collective in collectives {
        for job in [
            &["--ranks", "3", "--memory", "shared,private"][..],
            &["--ranks", "4", "--hosts", "2", "--transport", "kernel"][..],
        ] {
            let rows = rows(&home, &[&[collective], job, &["--bytes", "48,48Ki"]].concat());
            assert_eq!(rows.len(), 2, "{rows:?}");
            for bytes in [48, 48 << 10] {
                let row = rows.iter().find(|row| row["bytes"] == bytes);
                let row = row.unwrap_or_else(|| panic!("{collective} of {bytes}: {rows:?}"));
                assert_eq!(row["bench"], collective, "{row}");
                assert!(row["busbw_gbytes"].is_number(), "{row}");
            }
        }
    }
    for hosts in ["1", "2"] {
        let rows = rows(&home, &["barrier", "--ranks", "2", "--hosts", hosts]);
        assert_eq!((rows.len(), &rows[0]["bench"], rows[0].get("bytes")), (1, &"barrier".into(), None));
    }
}

#[test]
fn a_bare_loop_lasts_as_long_as_the_operation_beside_it() {
    let home = Home::new("spin");
    let job = ["allreduce", "--hosts", "2", "--bytes", "64,64Ki", "--rounds", "1", "--against", "spin"];
    let rows = rows(&home, &job);
    assert_eq!(rows.len(), 4, "{rows:?}");
    for bytes in [64, 64 << 10] {
        let of = |who| rows.iter().find(|row| row["bytes"] == bytes && row["who"] == who).unwrap();
        let (ours, spin) = (of("shouter"), of("spin"));
        assert!(ours["sent"].is_u64() && ours["resent"].is_u64(), "{ours}");
        // No loop is shorter than the shortest one that it was measured by, but for a core that becomes faster.
        assert!(figure(spin, "p50_us") > 0.5 * figure(ours, "p50_us"), "{rows:?}");
        assert!(figure(spin, "p99_us") >= figure(spin, "p50_us"), "{rows:?}");
    }
}

/// A collective that a peer lacks does not end the bench.
#[test]
fn a_collective_that_a_peer_lacks_is_said_to_be_unavailable() {
    let home = Home::new("unavailable");
    for (collective, peer) in [("gather", "kernel"), ("scan", "gloo"), ("scatter_v", "gloo")] {
        let output = run(&home, &[collective, "--bytes", "4", "--rounds", "2", "--against", peer]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        // Once, and not in each round.
        assert_eq!(said.matches(&format!("{peer}: {collective} is unavailable")).count(), 1, "{output:?}");
        assert_eq!(lines(&output.stdout).len(), 1);
    }
}

#[test]
fn messages_and_accesses_to_windows_are_measured() {
    let home = Home::new("pairs");
    for hosts in ["1", "2"] {
        for (bench, options) in [
            ("sendrecv", &["sendrecv"][..]),
            ("put", &["window", "--action", "put"]),
            ("fetch_and_op", &["window", "--action", "fetch_and_op", "--memory", "private", "--busy"]),
        ] {
            let rows = rows(&home, &[options, &["--hosts", hosts, "--bytes", "8,4Ki"]].concat());
            assert_eq!(rows.len(), 2, "{rows:?}");
            for row in rows {
                assert_eq!((&row["bench"], &row["ranks"]), (&bench.into(), &2.into()), "{row}");
                assert!(figure(&row, "p50_us") <= figure(&row, "p99_us"), "{row}");
            }
        }
    }
}

#[cfg(feature = "dpdk")]
#[test]
fn small_messages_over_a_link_are_counted_for_each_protocol_and_the_kernel() {
    let home = Home::new("messages");
    // What has come in this time is counted, also while a process waits for a core.
    let job = ["messages", "--passes", "1", "--seconds", "0.5"];
    // Several sizes are alike for all protocols.
    let [all, sizes] = [
        &["--protocol", "raw,udp,tcp", "--bytes", "32"][..],
        &["--protocol", "rud", "--bytes", "32,256", "--against", "kernel"],
    ]
    .map(|options| rows(&home, &[&job[..], options].concat()));
    let expected = ["raw", "udp", "tcp"].map(|who| (&all, who, 32));
    let several = ["rud", "kernel"].into_iter().flat_map(|who| [32, 256].map(|bytes| (&sizes, who, bytes)));
    for (rows, who, bytes) in expected.into_iter().chain(several) {
        let is = |row: &&Value| row["bytes"] == bytes && (row["protocol"] == who || row["who"] == who);
        let row = rows.iter().find(is).unwrap_or_else(|| panic!("{who} of {bytes}: {rows:?}"));
        figure(row, "messages_per_second");
    }
}

/// The bench checks the ends of every message.
#[test]
fn messages_of_several_ranks_to_one_are_measured() {
    let home = Home::new("incast");
    let job = ["incast", "-n", "3", "--hosts", "3", "--transport", "kernel", "--bytes", "64,64Ki"];
    let rows = rows(&home, &[&job[..], &["--against", "kernel", "--rounds", "1"]].concat());
    let mut who: Vec<_> = rows.iter().map(|row| row["who"].as_str().unwrap()).collect();
    who.sort_unstable();
    assert_eq!(who, ["kernel", "kernel", "shouter", "shouter"]);
    for row in rows {
        assert_eq!((&row["bench"], &row["ranks"]), (&"incast".into(), &3.into()), "{row}");
        assert!(figure(&row, "p50_us") <= figure(&row, "p99_us"), "{row}");
        figure(&row, "goodput_gbits");
        figure(&row, "share_of_one");
        assert_eq!(row["resent"].is_u64(), row["who"] == "shouter", "{row}");
    }
}

#[test]
fn a_tensor_beside_another_is_measured_at_each_place_of_the_table() {
    let home = Home::new("beside");
    let options = [
        "beside",
        "--hosts",
        "2",
        "--transport",
        "kernel",
        "--bytes",
        "4Ki",
        "--large",
        "16Mi",
        "--registered",
        "first,last",
    ];
    let rows = rows(&home, &options);
    let mut places: Vec<_> = rows.iter().map(|row| row["priority"].as_str()).collect();
    places.sort_unstable();
    assert_eq!(places, [Some("first"), Some("last")]);
    rows.iter().for_each(|row| assert!(figure(row, "p50_us") <= figure(row, "p99_us"), "{row}"));
}

#[test]
fn every_way_to_hear_of_an_end_is_measured_in_both_modes() {
    let home = Home::new("callbacks");
    for place in [&["--hosts", "1"][..], &["--hosts", "2", "--transport", "kernel"]] {
        let rows = rows(&home, &[&["callback", "--bytes", "8,4Ki"], place].concat());
        assert_eq!(rows.len(), 16, "{rows:?}");
        for mode in ["caller", "dedicated"] {
            for by in ["callback", "future", "thread", "wait"] {
                for bytes in [8, 4 << 10] {
                    let is_it =
                        |row: &&Value| row["mode"] == mode && row["heard_by"] == by && row["bytes"] == bytes;
                    let row = rows.iter().find(is_it);
                    let row = row.unwrap_or_else(|| panic!("{mode}, {by}, {bytes}: {rows:?}"));
                    assert_eq!(
                        (&row["bench"], &row["who"]),
                        (&"callback".into(), &"shouter".into()),
                        "{row}"
                    );
                    figure(row, "iterations");
                    assert!(figure(row, "p50_us") <= figure(row, "p99_us"), "{row}");
                    assert!(figure(row, "since_end_p50_us") <= figure(row, "since_end_p99_us"), "{row}");
                }
            }
        }
    }
}

#[test]
fn every_way_to_make_a_group_is_measured() {
    let home = Home::new("groups");
    for hosts in ["1", "2"] {
        for how in ["split", "group", "duplicate"] {
            let rows = rows(&home, &["group", "--how", how, "--hosts", hosts]);
            assert_eq!(rows.len(), 1, "{rows:?}");
            let row = &rows[0];
            assert_eq!((&row["bench"], row.get("bytes")), (&how.into(), None), "{row}");
            assert_eq!(row["hosts"].to_string(), hosts, "{row}");
            let p50 = figure(row, "p50_us");
            assert!(p50 <= figure(row, "p99_us") && p50 <= figure(row, "used_us"), "{row}");
        }
    }
}

#[test]
fn what_cannot_be_measured_is_a_wrong_command_line() {
    let home = Home::new("wrong");
    for (options, says) in [
        (&["callback", "-n", "3"][..], "two processes"),
        (&["callback", "--against", "openmpi"], "of shouter alone"),
        (&["callback", "--bytes", "12"], "no multiple of 8"),
        (&["callback", "--mode", "both"], "dedicated"),
        (&["group", "-n", "3"], "two processes"),
        (&["group", "--how", "dup"], "duplicate"),
        (&["messages", "--bytes", "4000"], "does not fit a packet"),
        (&["pingpong", "--protocol", "tcp", "--bytes", "4096"], "does not fit a packet"),
        (&["callback", "--rounds", "3"], "--rounds"),
        (&["incast", "-n", "2"], "several send to one"),
        (&["incast", "-n", "3", "--bytes", "6"], "no multiple of 4"),
        (&["messages", "--protocol", "verbs"], "no messages to count"),
    ] {
        let output = run(&home, options);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(says), "{options:?}: {output:?}");
    }
}

/// The bench checks every pulled parameter.
#[test]
fn a_parameter_server_is_measured_beside_messages() {
    let home = Home::new("ps");
    for options in [
        &["--servers", "2", "--trainers", "2", "--memory", "shared"][..],
        &["--servers", "1", "--trainers", "3", "--mode", "asynchronous"],
        &["--servers", "3", "--trainers", "1", "--hosts", "2", "--transport", "kernel"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_shouter"))
            .args(["bench", "ps", "--bytes", "100004", "--passes", "3", "--json"])
            .args(options)
            .env("XDG_RUNTIME_DIR", &home.0)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{options:?}: {output:?}");
        let rows: Vec<Value> =
            lines(&output.stdout).iter().map(|row| serde_json::from_str(row).unwrap()).collect();
        for who in ["shouter", "send-receive"] {
            let row =
                rows.iter().find(|row| row["who"] == who).unwrap_or_else(|| panic!("no {who}: {rows:?}"));
            figure(row, "algbw_gbytes");
        }
    }
}
