//! `shouter info`: features of this build, facts of this host, the configuration, and remedies.
//!
//! It changes nothing: it queries the ports of RDMA devices, loads the GPUs' driver and queries it, and does not start
//! DPDK.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::status::Status;
use crate::stdout;

mod built;
mod gpu;
mod host;
mod settings;
#[cfg(test)]
mod tests;
mod transports;

/// Show what is built in, what this host has, and what to do about what is missing
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Shows what is built in, what this host has, which configuration is in force and where each value comes \
        from. Whatever is not there comes with what to do about it. It changes nothing and needs no root.",
    after_help = "Examples:\n  \
        shouter info\n  \
        shouter info --json | jq -r 'select(.state != \"ok\") | .item + \": \" + .remedy'\n  \
        SHOUTER_CONFIG=shouter.toml shouter info      check a configuration file\n\n\
        With --json each line is {\"item\", \"state\", \"detail\", \"remedy\"}; the state is `ok`, `missing`, `not built in` or\n\
        `wrong`, and `remedy` is null where it is `ok`.\n\n\
        Exit status: 0, also when things are missing; 1 when the configuration cannot be used."
)]
pub(crate) struct Args {
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// The state of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ItemState {
    /// The host has it.
    #[serde(rename = "ok")]
    Ok,
    /// This host lacks it; the remedy names the features that need it.
    #[serde(rename = "missing")]
    Missing,
    /// This program cannot use it on any host.
    #[serde(rename = "not built in")]
    NotBuiltIn,
    /// The host has it, but not in a usable state.
    #[serde(rename = "wrong")]
    Wrong,
}

impl ItemState {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Missing => "missing",
            Self::NotBuiltIn => "not built in",
            Self::Wrong => "wrong",
        }
    }
}

/// One examined fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Item {
    item: String,
    state: ItemState,
    detail: String,
    remedy: Option<String>,
}

impl Item {
    fn ok(item: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { item: item.into(), state: ItemState::Ok, detail: detail.into(), remedy: None }
    }

    /// An item with a problem, and its remedy.
    fn not_ok(
        state: ItemState,
        item: impl Into<String>,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { item: item.into(), state, detail: detail.into(), remedy: Some(remedy.into()) }
    }

    fn missing(item: impl Into<String>, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::not_ok(ItemState::Missing, item, detail, remedy)
    }

    fn not_built_in(item: &str, detail: &str, remedy: &str) -> Self {
        Self::not_ok(ItemState::NotBuiltIn, item, detail, remedy)
    }

    /// The whole item on one line.
    pub(crate) fn line(&self) -> String {
        let Self { item, detail, remedy, .. } = self;
        let remedy = remedy.as_ref().map_or_else(String::new, |remedy| format!(" -> {remedy}"));
        format!("{item}: {detail}{remedy}")
    }
}

pub(crate) use host::{memory, ranges};

/// Prints all sections.
pub(crate) fn main(args: &Args) -> Status {
    let sections = [
        ("Built in", built::items()),
        ("This host", host::items(Path::new("/"))),
        ("GPUs", gpu::items(Path::new("/"))),
        ("Between hosts", transports::items()),
        ("Configuration", settings::items()),
    ];
    let usable = sections.iter().flat_map(|(_, items)| items).all(|item| !settings::is_wrong(item));
    let text = if args.json { lines(&sections) } else { table(&sections) };
    let status = if usable { Status::OK } else { Status::FAILED };
    let printed = text.and_then(|text| stdout::print(&text));
    Status::of("info", printed.map(|()| status).map_err(Into::into))
}

type Section = (&'static str, Vec<Item>);

/// One JSON object a line.
fn lines(sections: &[Section]) -> io::Result<String> {
    let mut text = String::new();
    for item in sections.iter().flat_map(|(_, items)| items) {
        text += &serde_json::to_string(item)?;
        text.push('\n');
    }
    Ok(text)
}

/// The text for people: a block per section; each remedy stands below its item.
fn table(sections: &[Section]) -> io::Result<String> {
    let items = || sections.iter().flat_map(|(_, items)| items);
    let width = items().map(|item| item.item.chars().count()).max().unwrap_or(0);
    let state = items().map(|item| item.state.name().len()).max().unwrap_or(0);
    let mut text = String::new();
    for (title, items) in sections {
        if !text.is_empty() {
            text.push('\n');
        }
        text += title;
        text.push('\n');
        for item in items {
            let Item { item: name, detail, remedy, .. } = item;
            let line = format!("  {:state$}  {name:width$}  {detail}", item.state.name());
            writeln!(text, "{}", line.trim_end()).map_err(io::Error::other)?;
            if let Some(remedy) = remedy {
                let indent = 2 + state + 2 + width + 2;
                writeln!(text, "{:indent$}-> {remedy}", "").map_err(io::Error::other)?;
            }
        }
    }
    Ok(text)
}
