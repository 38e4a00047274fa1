//! Scripted conversations with a TCP endpoint, segment by segment, under a clock that only the script moves. README.md
//! beside this file has the language; the scripts follow the RFCs that they cite, not the code.
//!
//! `CONFORMANCE=name cargo test -p shouter-netstack --test conformance -- --nocapture` runs the scenarios whose names
//! begin so, and shows every segment.

mod index;
mod language;
mod peer;
mod requirements;
mod run;
mod segments;
mod settings;
mod world;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use language::Scripts;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap_or_default()
}

fn scripts() -> Scripts {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .expect("the folder of scripts")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .filter(|name| name.ends_with(".txt"))
        .collect();
    names.sort();
    let mut scripts = Scripts::default();
    for name in names {
        scripts.read(&name, &read(&name));
    }
    scripts
}

#[test]
fn scenarios_hold() {
    let scripts = scripts();
    let filter = std::env::var("CONFORMANCE").unwrap_or_default();
    let known: BTreeSet<String> = read("FAILURES")
        .lines()
        .map(|line| line.split('#').next().unwrap_or("").trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    let (mut ran, mut failed, mut report) = (0, 0, String::new());
    for scenario in scripts.scenarios.iter().flat_map(|(_, scenarios)| scenarios) {
        if !scenario.name.starts_with(&filter) {
            continue;
        }
        ran += 1;
        let lines = scripts.statements(scenario);
        let problem = match catch_unwind(AssertUnwindSafe(|| run::run(&lines))) {
            Ok(Ok(())) => None,
            Ok(Err(problem)) => Some((format!("{}\n  {}", problem.at, problem.what), problem.trace)),
            Err(_) => Some(("it panicked, see above".to_owned(), Vec::new())),
        };
        match (problem, known.contains(&scenario.name)) {
            (None, false) => {}
            (None, true) => {
                failed += 1;
                let _ = writeln!(report, "\n{} holds now: take it out of FAILURES", scenario.name);
            }
            (Some(_), true) if filter.is_empty() => {}
            (Some((what, trace)), _) => {
                failed += 1;
                let _ = writeln!(report, "\n{}: {what}", scenario.name);
                let shown = if failed > 40 { 0 } else { trace.len().saturating_sub(24) };
                for line in trace.get(shown..).filter(|_| failed <= 40).unwrap_or_default() {
                    let _ = writeln!(report, "    {line}");
                }
            }
        }
    }
    assert!(failed == 0, "{failed} of {ran} scenarios do not hold\n{report}");
    println!("{ran} scenarios");
}

#[test]
fn index_is_current() {
    let (text, wrong) = index::generate(&scripts());
    let file = folder().join("INDEX.md");
    if std::env::var_os("SHOUTER_UPDATE_INDEX").is_some() {
        std::fs::write(&file, &text).expect("INDEX.md can be written");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        read("INDEX.md") == text,
        "INDEX.md is not what the scripts say: SHOUTER_UPDATE_INDEX=1 cargo test -p shouter-netstack --test conformance"
    );
}

#[test]
fn there_are_enough() {
    let scripts = scripts();
    let count: usize = scripts.scenarios.iter().map(|(_, scenarios)| scenarios.len()).sum();
    assert!(count >= 150, "{count} scenarios");
}
