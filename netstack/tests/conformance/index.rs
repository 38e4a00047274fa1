//! The table of RFC 9293's requirements and the scenarios that cover them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::language::Scripts;
use super::requirements::{REQUIREMENTS, Requirement};

/// The text of `INDEX.md`, and the faults found.
pub(crate) fn generate(scripts: &Scripts) -> (String, Vec<String>) {
    let mut wrong = Vec::new();
    let mut by_requirement: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut sections: BTreeMap<u32, BTreeMap<&str, usize>> = BTreeMap::new();
    let mut names = BTreeMap::new();
    let mut total = 0;
    for (file, scenarios) in &scripts.scenarios {
        for scenario in scenarios {
            total += 1;
            if names.insert(scenario.name.as_str(), file).is_some() {
                wrong.push(format!("{file}: the name {} is there twice", scenario.name));
            }
            for id in &scenario.requirements {
                if REQUIREMENTS.iter().all(|known| known.id != id) {
                    wrong.push(format!("{file}: {} names {id}, which RFC 9293 does not have", scenario.name));
                }
                by_requirement.entry(id).or_default().push(&scenario.name);
            }
            for (rfc, cited) in &scenario.citations {
                for section in cited {
                    *sections.entry(*rfc).or_default().entry(section).or_default() += 1;
                }
            }
        }
    }
    let mut out = String::new();
    let covered = REQUIREMENTS.iter().filter(|known| by_requirement.contains_key(known.id)).count();
    let elsewhere =
        REQUIREMENTS.iter().filter(|k| !by_requirement.contains_key(k.id) && k.elsewhere.is_some()).count();
    let _ = writeln!(
        out,
        "# What the scenarios cover\n\n\
         Generated from the scripts beside this file; a test compares them.\n\
         `SHOUTER_UPDATE_INDEX=1 cargo test -p shouter-netstack --test conformance` writes it anew.\n\n\
         {total} scenarios. Of the {} requirements that appendix B of RFC 9293 lists (MUST, SHOULD and their negations), \
         {covered} have scenarios, {elsewhere} are tested elsewhere or not supported, as the table says, and {} are not \
         covered.\n",
        REQUIREMENTS.len(),
        REQUIREMENTS.len() - covered - elsewhere,
    );
    let _ = writeln!(out, "## Requirements of RFC 9293\n\n| requirement | what | scenarios |\n|---|---|---|");
    for Requirement { id, what, elsewhere } in REQUIREMENTS {
        let cell = match (by_requirement.get(id), elsewhere) {
            (Some(scenarios), None) => list(scenarios),
            (Some(scenarios), Some(_)) => {
                wrong.push(format!("{id} is said to be not covered, but has scenarios"));
                list(scenarios)
            }
            (None, Some(why)) if why.starts_with("not supported: ") => (*why).to_owned(),
            (None, Some(why)) => format!("no scenario: {why}"),
            (None, None) => {
                wrong.push(format!("{id} has neither a scenario nor a reason"));
                "not covered".to_owned()
            }
        };
        let _ = writeln!(out, "| {id} | {what} | {cell} |");
    }
    let _ = writeln!(
        out,
        "\n## What is not there\n\n\
         TCP fast open (RFC 7413), MD5 signatures (RFC 2385), zero-copy sends as Linux's sockets have them (MSG_ZEROCOPY), \
         and TCP over UDP: scripts of other suites that need one of these do not apply."
    );
    let _ = writeln!(out, "\n## Sections cited\n\n| RFC | sections (scenarios) |\n|---|---|");
    for (rfc, cited) in sections {
        let cited: Vec<String> =
            cited.iter().map(|(section, count)| format!("{section} ({count})")).collect();
        let _ = writeln!(out, "| {rfc} | {} |", cited.join(", "));
    }
    let _ = writeln!(out, "\n## Scenarios\n");
    for (file, scenarios) in &scripts.scenarios {
        let names: Vec<&str> = scenarios.iter().map(|scenario| scenario.name.as_str()).collect();
        let _ = writeln!(out, "- `{file}` ({}): {}", names.len(), names.join(", "));
    }
    (out, wrong)
}

/// Names, the first few of a long list.
fn list(names: &[&str]) -> String {
    const SHOWN: usize = 6;
    match names.get(..SHOWN) {
        Some(first) if names.len() > SHOWN => {
            format!("{} and {} more", first.join(", "), names.len() - SHOWN)
        }
        _ => names.join(", "),
    }
}
