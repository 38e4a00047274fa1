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
fn check(name: &str, target: bodies::Target, what: &str, bytes: &[u8]) {
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
    for &(name, target) in TARGETS {
        let inputs = corpus_of(name);
        assert!(!inputs.is_empty(), "the corpus of {name} is empty");
        for (file, bytes) in inputs {
            check(name, target, &file, &bytes);
            // Every beginning of it, and every single byte changed, within reason.
            let step = bytes.len() / 64 + 1;
            for at in (0..bytes.len()).step_by(step) {
                check(name, target, &format!("{} cut at {at}", file), &bytes[..at]);
                let mut changed = bytes.clone();
                changed[at] ^= 0xff;
                check(name, target, &format!("{} changed at {at}", file), &changed);
            }
        }
    }
}

/// The committed inputs of a target.
fn corpus_of(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|why| panic!("{}: {why}", folder.display()))
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|file| (file.display().to_string(), std::fs::read(&file).expect("an input")))
        .collect()
}

#[test]
fn random_input() {
    let corpora: Vec<(&str, Vec<Vec<u8>>)> = TARGETS
        .iter()
        .map(|(name, _)| (*name, corpus_of(name).into_iter().map(|(_, bytes)| bytes).collect()))
        .collect();
    let range = std::env::var("SHOUTER_FUZZ_SEEDS").ok();
    let range = range.as_deref().and_then(|range| {
        let (first, last) = range.split_once("..")?;
        Some(first.parse::<u64>().ok()?..last.parse().ok()?)
    });
    for seed in range.unwrap_or(0..2000) {
        for &(name, target) in TARGETS {
            let mut rng = SmallRng::seed_from_u64(seed);
            let inputs =
                corpora.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, inputs)| inputs);
            let bytes = input(&mut rng, inputs, if name == "connection" { 600 } else { 128 });
            check(name, target, &format!("seed {seed}"), &bytes);
        }
    }
}

/// The beginning of an input that is known to lead somewhere, most of the time, with some bytes changed, and then
/// random bytes: small ones are frequent, since they are in sequence and likely steps.
fn input(rng: &mut SmallRng, known: &[Vec<u8>], most: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    if !known.is_empty() && rng.random_ratio(9, 10) {
        let whole = &known[rng.random_range(0..known.len())];
        bytes.extend_from_slice(&whole[..rng.random_range(0..=whole.len())]);
        if rng.random_ratio(1, 3) && !bytes.is_empty() {
            let at = rng.random_range(0..bytes.len());
            bytes[at] = rng.random();
        }
    }
    let tame = rng.random_range(0..4u32);
    for _ in 0..rng.random_range(0..most) {
        bytes.push(match rng.random_range(0..4u32) {
            choice if choice < tame => rng.random_range(0..16),
            _ => rng.random(),
        });
    }
    bytes
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
