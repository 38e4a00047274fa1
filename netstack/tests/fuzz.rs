//! The fuzz targets without a fuzzer: over the committed corpus, and over random input from fixed seeds.
//!
//! `SHOUTER_FUZZ_SEEDS=first..last` runs other seeds, `SHOUTER_FUZZ_FILE=path` one input of `SHOUTER_FUZZ_TARGET`.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

#[path = "../fuzz/bodies/mod.rs"]
mod bodies;

use bodies::TARGETS;

/// Runs an input, and names it if it fails.
fn check(name: &str, target: fn(&[u8]), what: &str, bytes: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(bytes))) {
        eprintln!("the fuzz target {name} fails on {what}, {} bytes: {}", bytes.len(), hex(bytes));
        resume_unwind(panic);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn corpus() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for &(name, target) in TARGETS {
        let mut files: Vec<_> = std::fs::read_dir(root.join(name))
            .unwrap_or_else(|why| panic!("the corpus of {name}: {why}"))
            .map(|entry| entry.expect("an entry").path())
            .collect();
        files.sort();
        assert!(!files.is_empty(), "the corpus of {name} is empty");
        for file in files {
            let bytes = std::fs::read(&file).expect("an input");
            check(name, target, &file.display().to_string(), &bytes);
            // Every beginning of it, and every single byte changed, within reason.
            let step = bytes.len() / 64 + 1;
            for at in (0..bytes.len()).step_by(step) {
                check(name, target, &format!("{} cut at {at}", file.display()), &bytes[..at]);
                let mut changed = bytes.clone();
                changed[at] ^= 0xff;
                check(name, target, &format!("{} changed at {at}", file.display()), &changed);
            }
        }
    }
}

#[test]
fn random_input() {
    let range = std::env::var("SHOUTER_FUZZ_SEEDS").ok();
    let range = range.as_deref().and_then(|range| {
        let (first, last) = range.split_once("..")?;
        Some(first.parse::<u64>().ok()?..last.parse().ok()?)
    });
    for seed in range.unwrap_or(0..400) {
        for &(name, target) in TARGETS {
            let mut rng = SmallRng::seed_from_u64(seed);
            let len = if name == "connection" { rng.random_range(0..1500) } else { rng.random_range(0..128) };
            let mut bytes = vec![0; len];
            rng.fill(&mut bytes[..]);
            check(name, target, &format!("seed {seed}"), &bytes);
        }
    }
}

#[test]
fn one_file() {
    let (Ok(name), Ok(file)) = (std::env::var("SHOUTER_FUZZ_TARGET"), std::env::var("SHOUTER_FUZZ_FILE"))
    else {
        return;
    };
    let bytes = std::fs::read(&file).unwrap_or_else(|why| panic!("{file}: {why}"));
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).expect("the name of a target");
    check(&name, *target, &file, &bytes);
}
