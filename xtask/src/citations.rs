//! Citations of requirements in code: of RUD's specification in `rud.rs`, and of RFC 9293 here (`//= RFC 9293 section 3.8.6.1, MUST-36:
//! ...`), against the index of its requirements.
//!
//! A cited requirement must be in the index, and the section before it must be the one that states it. Each requirement
//! of the index is cited somewhere, or the index says that it is not supported. Not checked are citations without a
//! requirement, of things that the RFC only allows (MAY), and citations of other documents.

use std::collections::{BTreeMap, BTreeSet};

use crate::{list, sources};

mod rud;

const INDEX: &str = "netstack/tests/conformance/INDEX.md";
const SECTIONS: &str = "netstack/tests/conformance/sections.list";

/// Checks the citations of both documents.
pub(crate) fn check() -> Result<String, String> {
    match (check_rfc(), rud::check()) {
        (Ok(rfc), Ok(rud)) => Ok(format!("{rfc}\n{rud}")),
        (Err(rfc), Err(rud)) => Err(format!("{rfc}\n{rud}")),
        (Err(wrong), _) | (_, Err(wrong)) => Err(wrong),
    }
}

/// Checks every citation of RFC 9293, and that each requirement is cited or unsupported.
fn check_rfc() -> Result<String, String> {
    let sections = sections(&sources::text(SECTIONS)?);
    let index = sources::text(INDEX)?;
    let indexed = indexed(&index);
    let mut wrong = Vec::new();
    for id in indexed.keys().filter(|id| !sections.contains_key(**id)) {
        wrong.push(format!("{SECTIONS}: {id} of {INDEX} has no section"));
    }
    let mut cited = BTreeSet::new();
    for file in sources::files("netstack/src")? {
        for (line, section, id) in citations(&sources::text(&file)?) {
            match sections.get(&id) {
                _ if id.starts_with("MAY-") => {}
                Some(stated) if *stated == section => {}
                Some(stated) => wrong
                    .push(format!("{}:{line}: {id} is in section {stated}, not {section}", file.display())),
                None => wrong.push(format!("{}:{line}: RFC 9293 has no {id}", file.display())),
            }
            cited.insert(id);
        }
    }
    for (id, supported) in &indexed {
        match (supported, cited.contains(*id)) {
            (true, false) => wrong
                .push(format!("{id}: no code cites it, and {INDEX} does not say that it is not supported")),
            (false, true) => {
                wrong.push(format!("{id}: {INDEX} says that it is not supported, but it is cited"))
            }
            _ => {}
        }
    }
    list::none(&wrong)?;
    let missing: Vec<&str> =
        indexed.iter().filter(|(_, supported)| !**supported).map(|(id, _)| *id).collect();
    Ok(format!(
        "RFC 9293: {} requirements are cited; {} are not supported: {}",
        indexed.len() - missing.len(),
        missing.len(),
        missing.join(", ")
    ))
}

/// The requirements in the index's table, and whether each is supported.
fn indexed(index: &str) -> BTreeMap<&str, bool> {
    let rows = index.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    rows.filter(|(id, _)| is_requirement(id))
        .map(|(id, row)| (id, !row.contains(" | not supported: ")))
        .collect()
}

/// The section of each requirement.
fn sections(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let entries = lines.filter_map(|line| line.split_once(' '));
    entries
        .flat_map(|(section, ids)| ids.split(' ').map(move |id| (id.to_owned(), section.to_owned())))
        .collect()
}

fn is_requirement(word: &str) -> bool {
    let number = ["MUST-", "SHLD-", "MAY-", "REC-"].iter().find_map(|kind| word.strip_prefix(kind));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// The cited requirements: line, the section before it, requirement. A citation may extend over several lines.
fn citations(text: &str) -> Vec<(usize, String, String)> {
    let mut found: Vec<(usize, String, String)> = Vec::new();
    let (mut document, mut section) = (String::new(), String::new());
    for (number, line) in text.lines().enumerate() {
        let Some(citation) = line.trim_start().strip_prefix("//= ") else {
            document.clear();
            continue;
        };
        let mut before = ["", ""];
        for word in citation.split_whitespace() {
            let word = word.trim_matches(|c: char| !c.is_alphanumeric());
            match before[1] {
                "RFC" => word.clone_into(&mut document),
                "section" => word.clone_into(&mut section),
                _ if document == "9293" && is_requirement(word) => {
                    if before[1] == "to" {
                        found.extend(between(before[0], word).map(|id| (number + 1, section.clone(), id)));
                    }
                    found.push((number + 1, section.clone(), word.to_owned()));
                }
                _ => {}
            }
            before = [before[1], word];
        }
    }
    found
}

/// The requirements between two of a kind, such as MUST-6 between MUST-5 and MUST-7.
fn between(first: &str, last: &str) -> impl Iterator<Item = String> {
    let split = |id: &str| {
        id.split_once('-').map(|(kind, number)| (kind.to_owned(), number.parse::<u32>().unwrap_or(0)))
    };
    let range = match (split(first), split(last)) {
        (Some((kind, from)), Some((same, to))) if kind == same => Some((kind, from + 1..to)),
        _ => None,
    };
    range.into_iter().flat_map(|(kind, numbers)| numbers.map(move |number| format!("{kind}-{number}")))
}

#[cfg(test)]
mod tests;
