//! The dependencies between the top-level modules of each crate, checked against a committed list of allowed ones.
//!
//! A module depends on another one if a path in its code begins at the crate's root, or leaves the module by `super`,
//! and leads there: in expressions, types, imports, re-exports and macros' arguments. An item that the root re-exports
//! counts as part of its own module. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Item, UseTree};

use crate::{list, sources};

const LIST: &str = "edges.txt";

/// The name of a crate's root as a module of its own, for the items defined there.
const ROOT: &str = "crate";

/// Modules, the modules that each depends on, and the first place of each dependency.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// Compares the edges with the allowed ones, and looks for cycles.
pub(crate) fn check() -> Result<String, String> {
    let list = list::read(LIST)?;
    // An exclamation mark: an edge of a cycle that is still to be removed.
    let (to_go, allowed): (Vec<_>, BTreeSet<_>) = {
        let to_go = list.iter().filter_map(|entry| entry.strip_prefix("! ")).map(str::to_owned);
        (to_go.collect(), list.iter().map(|entry| entry.trim_start_matches("! ").to_owned()).collect())
    };
    let (mut there, mut wrong) = (BTreeSet::new(), Vec::new());
    for (name, file) in sources::CRATES {
        let mut graph = graph(file)?;
        for (edge, at) in edges(name, &graph) {
            if !allowed.contains(&edge) {
                wrong.push(format!(
                    "{edge}: a new dependency, in {at}; if it is wanted, add this line to xtask/{LIST}"
                ));
            }
            there.insert(edge);
        }
        for (from, to) in &mut graph {
            to.retain(|to, _| !to_go.contains(&edge(name, from, to)));
        }
        for modules in cycles(&graph) {
            wrong.push(format!("{name}: these modules depend on each other: {}", modules.join(", ")));
        }
    }
    for edge in allowed.difference(&there) {
        wrong.push(format!("{edge}: not there any more; remove the line from xtask/{LIST}"));
    }
    list::none(&wrong)?;
    Ok(match to_go.len() {
        0 => format!("{} dependencies, no cycle", there.len()),
        left => format!(
            "{} dependencies, no cycle but for the {left} that are marked in xtask/{LIST}",
            there.len()
        ),
    })
}

/// Writes the list anew, with its marks and the comment at its head.
pub(crate) fn write() -> Result<String, String> {
    let marked = list::read(LIST)?;
    let mut all = Vec::new();
    for (name, file) in sources::CRATES {
        all.extend(edges(name, &graph(file)?).into_iter().map(|(edge, _)| {
            let to_go = format!("! {edge}");
            if marked.contains(&to_go) { to_go } else { edge }
        }));
    }
    list::write(LIST, &all)?;
    check()
}

fn edge(name: &str, from: &str, to: &str) -> String {
    format!("{name}: {from} -> {to}")
}

/// The edges between modules, and the place of each.
fn edges(name: &str, graph: &Graph) -> Vec<(String, String)> {
    let from = graph.iter().filter(|(from, _)| *from != ROOT);
    from.flat_map(|(from, to)| to.iter().map(move |(to, at)| (edge(name, from, to), at.clone()))).collect()
}

/// The edges of a crate.
fn graph(file: &str) -> Result<Graph, String> {
    let modules = sources::modules(file)?;
    let mut names = Names::default();
    for module in &modules {
        names.top.extend(module.path.first().cloned());
    }
    for module in &modules {
        for item in &module.items {
            match item {
                Item::Use(import) if module.path.is_empty() => names.re_exported(&import.tree, None),
                Item::Macro(defined) => {
                    if let (Some(name), Some(top)) = (&defined.ident, module.path.first()) {
                        names.origin.insert(name.to_string(), top.clone());
                    }
                }
                _ => {}
            }
        }
    }
    let mut graph = Graph::new();
    for module in &modules {
        let from = module.path.first().map_or(ROOT, String::as_str);
        let mut to = BTreeSet::new();
        for item in &module.items {
            if !(module.path.is_empty() && matches!(item, Item::Use(_))) {
                names.paths(item.to_token_stream(), &module.path, &mut to);
            }
        }
        to.remove(from);
        let all = graph.entry(from.to_owned()).or_default();
        for to in to {
            all.entry(to).or_insert_with(|| [&[ROOT.to_owned()], &module.path[..]].concat().join("::"));
        }
    }
    Ok(graph)
}

/// The meaning of the names at a crate's root.
#[derive(Default)]
struct Names {
    top: BTreeSet<String>,
    /// The top-level modules of macros and of the root's re-exports.
    origin: BTreeMap<String, String>,
}

impl Names {
    /// Notes the names that the root re-exports, or only imports for itself, from its modules.
    fn re_exported(&mut self, tree: &UseTree, top: Option<&str>) {
        match tree {
            UseTree::Path(path) => {
                let name = path.ident.to_string();
                let is_top = self.top.contains(&name);
                let below = top.or(is_top.then_some(name.as_str()));
                self.re_exported(&path.tree, below);
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.re_exported(tree, top)),
            UseTree::Name(name) => self.note(name.ident.to_string(), top),
            UseTree::Rename(name) => self.note(name.rename.to_string(), top),
            UseTree::Glob(_) => {}
        }
    }

    fn note(&mut self, name: String, top: Option<&str>) {
        if let Some(top) = top {
            self.origin.insert(name, top.to_owned());
        }
    }

    /// Adds the top-level modules that paths in `tokens` lead to; the tokens are in `module`.
    fn paths(&self, tokens: TokenStream, module: &[String], to: &mut BTreeSet<String>) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (index, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.paths(group.stream(), module, to),
                TokenTree::Ident(first) if !goes_on(&tokens[..index]) => {
                    let first = first.to_string();
                    let base = match first.as_str() {
                        "crate" => Some(&module[..0]),
                        "self" => Some(module),
                        "super" => Some(&module[..module.len().saturating_sub(1)]),
                        // At the root itself a module needs no `crate`.
                        _ if module.is_empty() && self.top.contains(&first) => {
                            to.insert(first);
                            None
                        }
                        _ => None,
                    };
                    if let Some(base) = base {
                        self.follow(base, &tokens[index + 1..], to);
                    }
                }
                _ => {}
            }
        }
    }

    /// Follows a path from `base` along `rest`.
    fn follow(&self, base: &[String], rest: &[TokenTree], to: &mut BTreeSet<String>) {
        let [TokenTree::Punct(one), TokenTree::Punct(two), next, rest @ ..] = rest else { return };
        if one.as_char() == ':' && two.as_char() == ':' {
            self.step(base, next, rest, to);
        }
    }

    fn step(&self, base: &[String], next: &TokenTree, rest: &[TokenTree], to: &mut BTreeSet<String>) {
        match next {
            TokenTree::Ident(name) if *name == "super" => {
                self.follow(&base[..base.len().saturating_sub(1)], rest, to)
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let is_comma =
                    |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',');
                for part in inner.split(is_comma) {
                    if let [next, rest @ ..] = part {
                        self.step(base, next, rest, to);
                    }
                }
            }
            TokenTree::Ident(name) => {
                let name = name.to_string();
                to.insert(match base.first() {
                    Some(top) => top.clone(),
                    None if self.top.contains(&name) => name,
                    None => self.origin.get(&name).map_or(ROOT, String::as_str).to_owned(),
                });
            }
            _ => {
                to.insert(base.first().map_or(ROOT, String::as_str).to_owned());
            }
        }
    }
}

/// Whether a path continues after these tokens: they end with `::`.
fn goes_on(tokens: &[TokenTree]) -> bool {
    let is_colon = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ':');
    matches!(tokens, [.., one, two] if is_colon(one) && is_colon(two))
}

/// The sets of modules that depend on each other.
fn cycles(graph: &Graph) -> Vec<Vec<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|from| (from.as_str(), reach(graph, from))).collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    for (from, to) in &reached {
        let mutual = to.iter().filter(|other| reached.get(*other).is_some_and(|back| back.contains(from)));
        let mutual: Vec<String> = mutual.map(|name| (*name).to_owned()).collect();
        if !mutual.is_empty() && !found.contains(&mutual) {
            found.push(mutual);
        }
    }
    found
}

/// All modules that `from` depends on, directly or not.
fn reach<'a>(graph: &'a Graph, from: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut left: Vec<&str> = vec![from];
    while let Some(next) = left.pop() {
        let to = graph.get(next).into_iter().flat_map(BTreeMap::keys);
        left.extend(to.map(String::as_str).filter(|name| reached.insert(*name)));
    }
    reached
}

#[cfg(test)]
mod tests;
