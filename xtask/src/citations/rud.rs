//! Citations of RUD's specification (`//= rud/spec.md section 6.3, RUD-46: ...`), against the requirements that it numbers.
//!
//! A cited requirement must be in the specification, and the section before it must be the one that states it. Each
//! requirement is cited by code and by a test. A citation of a section alone, of what it describes, names one that exists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::{list, sources};

const SPEC: &str = "netstack/src/rud/spec.md";

/// Where it is implemented and tested.
const FOLDERS: [&str; 3] = ["netstack/src", "netstack/tests", "src"];

/// Compares all citations with the specification.
pub(super) fn check() -> Result<String, String> {
    let spec = Spec::read(&sources::text(SPEC)?);
    let mut files = Vec::new();
    for folder in FOLDERS {
        for file in sources::files(folder)? {
            let text = sources::text(&file)?;
            files.push((file.strip_prefix(sources::root()).unwrap_or(&file).to_path_buf(), text));
        }
    }
    let wrong = spec.compare(files.iter().map(|(file, text)| (file.as_path(), text.as_str())));
    list::none(&wrong)?;
    Ok(format!("RUD: all {} requirements are cited by code and by tests", spec.requirements.len()))
}

/// What the specification has.
#[derive(Debug, Default)]
struct Spec {
    sections: BTreeSet<String>,
    /// The numbers of the requirements, and their sections.
    requirements: BTreeMap<u32, String>,
    /// Numbers that are there twice or without a requirement, and requirements without a number.
    wrong: Vec<String>,
}

impl Spec {
    /// Reads paragraphs and list items. In each a requirement begins with its number in bold.
    fn read(text: &str) -> Self {
        let mut spec = Self::default();
        let (mut section, mut block, mut is_code) = (String::new(), String::new(), false);
        for line in text.lines().chain([""]) {
            let begins =
                line.is_empty() || line.starts_with(['#', '|', '`']) || line.trim_start().starts_with("- ");
            if begins {
                spec.take(&section, &std::mem::take(&mut block));
            }
            if line.starts_with("```") {
                is_code = !is_code;
            } else if let Some(heading) = line.strip_prefix("##") {
                let number = heading.trim_start_matches('#').split_whitespace().next().unwrap_or_default();
                number.trim_end_matches('.').clone_into(&mut section);
                spec.sections.insert(section.clone());
            } else if !is_code {
                block = block + line + " ";
            }
        }
        spec
    }

    /// A paragraph. Those before the first section say how the words are used.
    fn take(&mut self, section: &str, block: &str) {
        if section.is_empty() {
            return;
        }
        let requires = |text: &str| {
            text.split(|c: char| !c.is_alphanumeric()).any(|word| ["MUST", "SHOULD"].contains(&word))
        };
        let mut parts = block.split("**RUD-");
        let before = parts.next().unwrap_or_default();
        if requires(before) {
            self.wrong.push(format!("{SPEC}: a requirement of section {section} has no number: {before}"));
        }
        for part in parts {
            let (number, text) = part.split_once("**").unwrap_or((part, ""));
            let Ok(number) = number.parse() else {
                self.wrong.push(format!("{SPEC}: RUD-{number} is no number of a requirement"));
                continue;
            };
            if !requires(text) {
                self.wrong
                    .push(format!("{SPEC}: RUD-{number} requires nothing: it has neither MUST nor SHOULD"));
            }
            if let Some(other) = self.requirements.insert(number, section.to_owned()) {
                self.wrong
                    .push(format!("{SPEC}: RUD-{number} is in section {other} and in section {section}"));
            }
        }
    }

    /// All that is wrong, with the citations in these files.
    fn compare<'a>(&self, files: impl Iterator<Item = (&'a Path, &'a str)>) -> Vec<String> {
        let mut wrong = self.wrong.clone();
        // By code, and by tests.
        let mut cited = [BTreeSet::new(), BTreeSet::new()];
        for (file, text) in files {
            for (line, section, numbers) in citations(text) {
                let place = format!("{}:{line}", file.display());
                if !self.sections.contains(section) {
                    wrong.push(format!("{place}: {SPEC} has no section {section}"));
                }
                for number in numbers {
                    match self.requirements.get(&number) {
                        Some(stated) if stated == section => {}
                        Some(stated) => {
                            wrong
                                .push(format!("{place}: RUD-{number} is in section {stated}, not {section}"));
                        }
                        None => wrong.push(format!("{place}: {SPEC} has no RUD-{number}")),
                    }
                    cited[usize::from(is_test(file))].insert(number);
                }
            }
        }
        for (by, cited) in ["code", "test"].iter().zip(cited) {
            let missing = self.requirements.keys().filter(|number| !cited.contains(number));
            wrong.extend(missing.map(|number| format!("RUD-{number}: no {by} cites it")));
        }
        wrong
    }
}

/// Whether a file has tests alone.
fn is_test(file: &Path) -> bool {
    file.ends_with("tests.rs") || file.components().any(|part| part.as_os_str() == "tests")
}

/// The citations: line, section, and the numbers behind it. A citation may extend over several lines.
fn citations(text: &str) -> Vec<(usize, &str, Vec<u32>)> {
    let mut found: Vec<(usize, &str, Vec<u32>)> = Vec::new();
    let mut is_open = false;
    for (number, line) in text.lines().enumerate() {
        let Some(citation) = line.trim_start().strip_prefix("//= ") else {
            is_open = false;
            continue;
        };
        let mut words = citation.split([' ', ',', ':', ';']);
        if citation.starts_with("rud/spec.md") {
            let section = words.nth(2).unwrap_or_default();
            found.push((number + 1, section, Vec::new()));
            is_open = true;
        } else if citation.starts_with("RFC ") {
            is_open = false;
        }
        if let (true, Some((_, _, numbers))) = (is_open, found.last_mut()) {
            numbers.extend(words.filter_map(|word| word.strip_prefix("RUD-")?.parse::<u32>().ok()));
        }
    }
    found
}

#[cfg(test)]
mod tests;
