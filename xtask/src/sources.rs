//! The modules of a crate, without the parts for tests.

use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::TokenStream;
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, Block, File, ImplItem, Item, Meta, Stmt};

/// The crates whose structure is checked: libraries, then their users. dpdk-sys is generated from DPDK's headers.
pub(crate) const CRATES: [(&str, &str); 7] = [
    ("netstack", "netstack/src/lib.rs"),
    ("reducer", "reducer/src/lib.rs"),
    ("shouter", "src/lib.rs"),
    ("cli", "cli/src/main.rs"),
    ("c", "bindings/c/src/lib.rs"),
    ("python", "bindings/python/src/lib.rs"),
    ("packetdrill", "bindings/packetdrill/src/lib.rs"),
];

/// A module: a file, or the braces of an inline module.
pub(crate) struct Module {
    /// Its names from the crate's root, whose own path is empty.
    pub(crate) path: Vec<String>,
    /// The file that it is in, below the repository.
    pub(crate) file: PathBuf,
    /// Its items, less the modules in it.
    pub(crate) items: Vec<Item>,
}

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/")).to_path_buf()
}

/// The text of a file, whose path may be below the repository.
pub(crate) fn text(file: impl AsRef<Path>) -> Result<String, String> {
    let file = file.as_ref();
    fs::read_to_string(root().join(file)).map_err(|error| format!("{}: {error}", file.display()))
}

/// All Rust files in a folder of the repository and in those below.
pub(crate) fn files(folder: &str) -> Result<Vec<PathBuf>, String> {
    let mut left = vec![PathBuf::from(folder)];
    let mut files = Vec::new();
    while let Some(folder) = left.pop() {
        let entries =
            fs::read_dir(root().join(&folder)).map_err(|error| format!("{}: {error}", folder.display()))?;
        for entry in entries {
            let path = entry.map_err(|error| error.to_string())?.path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// All modules of the crate whose root is `file`, below the repository.
pub(crate) fn modules(file: impl AsRef<Path>) -> Result<Vec<Module>, String> {
    let file = root().join(file);
    let folder = file.parent().expect("a file is in a folder").to_path_buf();
    let mut found = Vec::new();
    read(&file, &folder, Vec::new(), &mut found)?;
    Ok(found)
}

/// Reads the file of a module, and those of the modules in it, from `folder`.
fn read(file: &Path, folder: &Path, path: Vec<String>, found: &mut Vec<Module>) -> Result<(), String> {
    let mut parsed = syn::parse_file(&text(file)?).map_err(|error| format!("{}: {error}", file.display()))?;
    WithoutTests.visit_file_mut(&mut parsed);
    collect(parsed.items, (file, folder), path, found)
}

fn collect(
    items: Vec<Item>,
    (file, folder): (&Path, &Path),
    path: Vec<String>,
    found: &mut Vec<Module>,
) -> Result<(), String> {
    let mut own = Vec::new();
    for item in items {
        let Item::Mod(module) = item else {
            own.push(item);
            continue;
        };
        let name = module.ident.to_string();
        let below = folder.join(&name);
        let path = [&path[..], std::slice::from_ref(&name)].concat();
        match module.content {
            Some((_, items)) => collect(items, (file, &below), path, found)?,
            None => {
                let beside = folder.join(format!("{name}.rs"));
                let file = if beside.exists() { beside } else { below.join("mod.rs") };
                read(&file, &below, path, found)?;
            }
        }
    }
    let file = file.strip_prefix(root()).unwrap_or(file).to_path_buf();
    found.push(Module { path, file, items: own });
    Ok(())
}

/// The attributes of a node of syn's, which is an enum; none if it is of another kind than these.
macro_rules! attributes {
    ($node:expr, $type:ident: $($kind:ident)*) => {
        match $node {
            $($type::$kind(node) => &node.attrs[..],)*
            _ => &[],
        }
    };
}

/// Removes items that are compiled only for tests.
struct WithoutTests;

impl VisitMut for WithoutTests {
    fn visit_file_mut(&mut self, file: &mut File) {
        file.items.retain(|item| !for_tests(item_attributes(item)));
        visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mut(&mut self, item: &mut Item) {
        match item {
            Item::Mod(module) => {
                if let Some((_, items)) = &mut module.content {
                    items.retain(|item| !for_tests(item_attributes(item)));
                }
            }
            Item::Impl(block) => {
                block.items.retain(|item| !for_tests(attributes!(item, ImplItem: Const Fn Type Macro)));
            }
            _ => {}
        }
        visit_mut::visit_item_mut(self, item);
    }

    fn visit_block_mut(&mut self, block: &mut Block) {
        block.stmts.retain(|statement| {
            !for_tests(match statement {
                Stmt::Item(item) => item_attributes(item),
                _ => attributes!(statement, Stmt: Local Macro),
            })
        });
        visit_mut::visit_block_mut(self, block);
    }
}

/// The attributes of an item.
pub(crate) fn item_attributes(item: &Item) -> &[Attribute] {
    attributes!(item, Item: Const Enum ExternCrate Fn ForeignMod Impl Macro Mod Static Struct Trait TraitAlias Type Union Use)
}

/// `#[cfg(test)]`, `#[cfg(all(test, ...))]`, `#[test]`.
fn for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => needs_test(list.tokens.clone()),
        _ => false,
    })
}

/// Whether a condition holds only in tests.
fn needs_test(condition: TokenStream) -> bool {
    match syn::parse2::<Meta>(condition) {
        Ok(Meta::Path(path)) => path.is_ident("test"),
        Ok(Meta::List(list)) if list.path.is_ident("all") => {
            let parts =
                list.parse_args_with(syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated);
            parts.is_ok_and(|parts| parts.iter().any(|part| part.path().is_ident("test")))
        }
        _ => false,
    }
}
