//! `shouter explain`: names the rank that was late or at fault, in a sentence and a table.

use std::path::PathBuf;

use clap::Args;
use shouter::observe::{Explanation, OpenOperation, explain};

use crate::failure::CommandError;
use crate::status::Status;
use crate::stdout;

/// Arguments of `shouter explain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    shouter explain /tmp/shouter-JOB-rank*.json\n  \
    shouter explain --json /tmp/shouter-JOB-rank*.json | jq .culprits\n\n\
    A rank writes its last events to `dump_folder` when its group ends in error (the error names the file), on `dump_signal`, \
    and by shouter_dump (Group::dump). For a job that hangs: set SHOUTER_DUMP_SIGNAL=USR2 before it starts, send that signal to every rank, or to `shouter run`.\n\n\
    Exit status: 0 done, 1 a file cannot be read or is not a dump of this job, 2 a wrong command line.")]
pub(crate) struct ExplainArgs {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// The ranks' files, one of each
    #[arg(required = true, value_name = "DUMP")]
    files: Vec<PathBuf>,
}

/// Runs it and returns the exit status.
pub(crate) fn main(args: &ExplainArgs) -> Status {
    let explained = explain(&args.files).map_err(|error| CommandError::Failed(error.to_string()));
    let printed = explained.and_then(|found| {
        let printed = match args.json {
            true => stdout::print_json(&found),
            false => stdout::print(&format!("{}\n", text(&found).trim_end())),
        };
        Ok(printed?)
    });
    Status::of("explain", printed.map(|()| Status::OK))
}

fn text(found: &Explanation) -> String {
    let mut verdict = found.verdict.clone();
    verdict[..1].make_ascii_uppercase();
    let mut text = format!("{verdict}.\n\nJob \"{}\", {} ranks\n", found.job, found.size);
    text += &format!(
        "{:>5}  {:<12}  {:>9}  {:<44}  {:>10}  {:>6}\n",
        "rank", "host", "finished", "waited in", "for s", "blames"
    );
    let number = |of: Option<u64>| of.map_or_else(|| "-".to_owned(), |number| number.to_string());
    for rank in &found.ranks {
        let (open, length) = match &rank.open {
            Some(open) => (waited_in(open), format!("{:.3}", open.open_ns as f64 / 1e9)),
            None => ("-".into(), "-".into()),
        };
        let finished = number(rank.finished.or(rank.finished_small));
        text += &format!(
            "{:>5}  {:<12}  {finished:>9}  {open:<44}  {length:>10}  {:>6}\n",
            rank.rank,
            rank.host,
            number(rank.blames)
        );
    }
    for rank in &found.silent {
        text += &format!("{rank:>5}  no dump\n");
    }
    text.push('\n');
    for rank in &found.ranks {
        text += &format!("rank {}: {}\n", rank.rank, rank.cause);
    }
    text
}

fn waited_in(open: &OpenOperation) -> String {
    let OpenOperation { seq, is_small, tensor, step, bytes, .. } = open;
    let small = if *is_small { "small " } else { "" };
    match tensor {
        Some(name) => format!("{small}{seq} \"{name}\" step {step}, {bytes} B"),
        None => format!("{small}{seq} step {step}, {bytes} B"),
    }
}
