//! The files with unsafe code, against the table in ARCHITECTURE.md that says why each has some.

use std::collections::BTreeSet;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;

use crate::{list, sources};

const TABLE: &str = "ARCHITECTURE.md";
const SECTION: &str = "## Where unsafe lives";

/// Checks that each file with unsafe code is in a place of the table, and that each place has such a file.
pub(crate) fn check() -> Result<String, String> {
    let places = places(&sources::text(TABLE)?);
    let mut files = BTreeSet::new();
    for (_, root) in sources::CRATES {
        let modules = sources::modules(root)?.into_iter();
        files.extend(modules.filter(|module| module.items.iter().any(has_unsafe)).map(|module| module.file));
    }
    // A module's file stands for the modules in it, too.
    let holds = |place: &str, file: &Path| file.with_extension("").starts_with(place.trim_end_matches(".rs"));
    let mut wrong = Vec::new();
    for file in &files {
        if !places.iter().any(|place| holds(place, file)) {
            let file = file.display();
            wrong.push(format!("{file}: has unsafe code, and is in no place of the table in {TABLE}"));
        }
    }
    for place in &places {
        if !files.iter().any(|file| holds(place, file)) && place != "bindings/dpdk-sys" {
            wrong.push(format!("{place}: the table in {TABLE} names it, and it has no unsafe code"));
        }
    }
    list::none(&wrong)?;
    Ok(format!("{} files have unsafe code, in {} places that {TABLE} explains", files.len(), places.len()))
}

fn has_unsafe(item: &syn::Item) -> bool {
    fn any(tokens: TokenStream) -> bool {
        tokens.into_iter().any(|token| match token {
            TokenTree::Ident(ident) => ident == "unsafe",
            TokenTree::Group(group) => any(group.stream()),
            _ => false,
        })
    }
    any(item.to_token_stream())
}

/// The files and folders in the first column of the section's table.
fn places(text: &str) -> Vec<String> {
    let section = text.split_once(SECTION).map_or("", |(_, section)| section);
    let section = section.split("\n## ").next().unwrap_or("");
    let columns = section.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let quoted = columns.flat_map(|column| column.split('`').skip(1).step_by(2));
    quoted.flat_map(expanded).collect()
}

/// A pattern such as `src/{a,b/{c,d}}.rs`, as a shell expands it.
fn expanded(pattern: &str) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('{') else { return vec![pattern.to_owned()] };
    let (mut depth, mut begin, mut parts) = (0, 0, Vec::new());
    for (at, sign) in rest.char_indices() {
        match sign {
            '{' => depth += 1,
            ',' if depth == 0 => {
                parts.push(&rest[begin..at]);
                begin = at + 1;
            }
            '}' if depth == 0 => {
                parts.push(&rest[begin..at]);
                let after = &rest[at + 1..];
                return parts.iter().flat_map(|part| expanded(&format!("{before}{part}{after}"))).collect();
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    vec![pattern.to_owned()]
}
