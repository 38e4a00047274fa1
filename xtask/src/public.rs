//! Public items without a user outside of tests and benchmarks, checked against a committed list of exceptions.
//!
//! An item has a user if its name appears in code of the workspace, other than as a definition, an import or the type
//! of an `impl`. The documentation's examples that run are such code: an item in one of them is for users of the
//! library. So an item that shares its name with another one may be missed, but an item with a user is never listed.

use std::collections::BTreeSet;
use std::path::PathBuf;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, ImplItem, Item, ItemImpl, Type, UseTree, Visibility};

use crate::list;
use crate::sources::{self, Module};

const LIST: &str = "public.txt";

/// The libraries among the crates, whose items are checked: the first ones.
const LIBRARIES: usize = 3;

/// Folders of programs, each a user.
const EXAMPLES: [&str; 2] = ["examples", "netstack/examples"];

/// Compares the items without a user with the listed ones.
pub(crate) fn check() -> Result<String, String> {
    let (listed, unused) = (list::read(LIST)?, unused()?);
    let mut wrong = Vec::new();
    for item in unused.difference(&listed) {
        wrong.push(format!(
            "{item}: nothing but tests uses it; remove it, or, if it is for users, show it in an example that runs"
        ));
    }
    for item in listed.difference(&unused) {
        wrong.push(format!("{item}: used, or gone; remove the line from xtask/{LIST}"));
    }
    list::none(&wrong)?;
    Ok(format!("{} public items are used by tests and benchmarks only", listed.len()))
}

/// Writes the list anew.
pub(crate) fn write() -> Result<String, String> {
    list::write(LIST, &unused()?.into_iter().collect::<Vec<_>>())?;
    check()
}

fn unused() -> Result<BTreeSet<String>, String> {
    let mut items: Vec<(String, String)> = Vec::new();
    let mut used = BTreeSet::new();
    let (libraries, others) = sources::CRATES.split_at(LIBRARIES);
    for (library, file) in libraries {
        for module in sources::modules(file)? {
            let at = [&[(*library).to_owned()], &module.path[..]].concat().join("::");
            items.extend(public(&module).into_iter().map(|(path, name)| (format!("{at}::{path}"), name)));
            uses(&module, &mut used);
        }
        for file in sources::files(file.trim_end_matches("/lib.rs"))? {
            for example in examples(&sources::text(file)?) {
                if let Ok(tokens) = example.parse() {
                    names(tokens, &mut used);
                }
            }
        }
    }
    let mut users: Vec<PathBuf> = others.iter().map(|(_, file)| file.into()).collect();
    users.push("bindings/dpdk-sys/src/lib.rs".into());
    for folder in EXAMPLES {
        users.extend(sources::files(folder)?);
    }
    for file in users {
        for module in sources::modules(&file)? {
            uses(&module, &mut used);
        }
    }
    Ok(items.into_iter().filter(|(_, name)| !used.contains(name)).map(|(path, _)| path).collect())
}

/// The public items of a module, with their names.
fn public(module: &Module) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for item in &module.items {
        let (visible, name) = match item {
            Item::Const(item) => (&item.vis, &item.ident),
            Item::Enum(item) => (&item.vis, &item.ident),
            Item::Fn(item) => (&item.vis, &item.sig.ident),
            Item::Static(item) => (&item.vis, &item.ident),
            Item::Struct(item) => (&item.vis, &item.ident),
            Item::Trait(item) => (&item.vis, &item.ident),
            Item::Type(item) => (&item.vis, &item.ident),
            Item::Union(item) => (&item.vis, &item.ident),
            Item::Impl(block) => {
                found.extend(methods(block));
                continue;
            }
            _ => continue,
        };
        if is_public(visible, sources::item_attributes(item)) {
            found.push((name.to_string(), name.to_string()));
        }
    }
    found
}

fn methods(block: &ItemImpl) -> Vec<(String, String)> {
    let Type::Path(of) = &*block.self_ty else { return Vec::new() };
    let Some(of) = of.path.segments.last() else { return Vec::new() };
    let visible = block.items.iter().filter_map(|item| match item {
        ImplItem::Fn(item) if is_public(&item.vis, &item.attrs) => Some(item.sig.ident.to_string()),
        ImplItem::Const(item) if is_public(&item.vis, &item.attrs) => Some(item.ident.to_string()),
        _ => None,
    });
    visible.map(|name| (format!("{}::{name}", of.ident), name)).collect()
}

/// Whether an item is public in Rust; an item with a C name has its users in C.
fn is_public(visible: &Visibility, attributes: &[Attribute]) -> bool {
    let has_c_name = |attribute: &Attribute| attribute.to_token_stream().to_string().contains("no_mangle");
    matches!(visible, Visibility::Public(_)) && !attributes.iter().any(has_c_name)
}

/// Adds the names that a module uses.
fn uses(module: &Module, used: &mut BTreeSet<String>) {
    for item in &module.items {
        match item {
            Item::Use(import) => renamed(&import.tree, used),
            Item::Impl(block) => {
                names(block.generics.to_token_stream(), used);
                if let Some((_, of, _)) = &block.trait_ {
                    names(of.to_token_stream(), used);
                }
                block.items.iter().for_each(|item| names(item.to_token_stream(), used));
            }
            _ => names(item.to_token_stream(), used),
        }
    }
}

/// The documentation's examples in a file that run: those whose fence has at most `rust`.
fn examples(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    // The example that a fence has opened, and whether it runs.
    let mut open: Option<(String, bool)> = None;
    for line in text.lines().map(str::trim_start) {
        let Some(line) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            open = None;
            continue;
        };
        let line = line.trim();
        match (line.strip_prefix("```"), &mut open) {
            (Some(kind), None) => open = Some((String::new(), matches!(kind, "" | "rust"))),
            (Some(_), Some(_)) => found.extend(open.take().filter(|(_, runs)| *runs).map(|(code, _)| code)),
            (None, Some((code, _))) => {
                // A hidden line of the example.
                let line = if line == "#" { "" } else { line.strip_prefix("# ").unwrap_or(line) };
                code.push_str(line);
                code.push('\n');
            }
            (None, None) => {}
        }
    }
    found
}

/// Adds the names that an import renames.
fn renamed(tree: &UseTree, used: &mut BTreeSet<String>) {
    match tree {
        UseTree::Path(path) => renamed(&path.tree, used),
        UseTree::Group(group) => group.items.iter().for_each(|tree| renamed(tree, used)),
        UseTree::Rename(name) => drop(used.insert(name.ident.to_string())),
        _ => {}
    }
}

/// Adds the names that some code uses and does not define.
fn names(tokens: TokenStream, used: &mut BTreeSet<String>) {
    const DEFINE: [&str; 8] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static"];
    let mut before = [String::new(), String::new()];
    for token in tokens {
        let word = match &token {
            TokenTree::Ident(name) => {
                // `*const T` uses T.
                let defines = DEFINE.contains(&before[1].as_str()) && before[0] != "*";
                if !defines {
                    used.insert(name.to_string());
                }
                name.to_string()
            }
            TokenTree::Group(group) => {
                names(group.stream(), used);
                String::new()
            }
            TokenTree::Punct(punct) => punct.to_string(),
            TokenTree::Literal(_) => String::new(),
        };
        before = [std::mem::take(&mut before[1]), word];
    }
}

#[cfg(test)]
mod tests;
