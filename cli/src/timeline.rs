//! `shouter timeline`: merges the timeline files of several ranks.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use shouter::observe::{Merged, merge};

use crate::failure::CommandError;
use crate::status::Status;
use crate::stdout;

/// Arguments of `shouter timeline`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    SHOUTER_TIMELINE=trace shouter run -n 4 --hosts 2 -- ./trainer\n  \
    shouter timeline merge all.json trace/*.json\n\n\
    A rank writes its file into the folder that SHOUTER_TIMELINE names when it leaves the job. \
    https://ui.perfetto.dev opens it. The last events that a rank leaves in the folder `dump_folder` are such a file, too.\n\n\
    Exit status: 0 done, 1 a file cannot be read or written, 2 a wrong command line.")]
pub(crate) struct TimelineArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Put the files of several ranks into one, with the clocks of their hosts lined up
    Merge(MergeArgs),
}

/// `shouter timeline merge`.
#[derive(Debug, Args)]
struct MergeArgs {
    /// The file to write, which must not be there yet
    out: PathBuf,
    /// The ranks' files, one of each
    #[arg(required = true, value_name = "IN")]
    files: Vec<PathBuf>,
}

/// Runs it and returns the exit status.
pub(crate) fn main(args: &TimelineArgs) -> Status {
    let What::Merge(MergeArgs { out, files }) = &args.what;
    let merged = merge(files, out).map_err(|error| CommandError::Failed(error.to_string()));
    let printed = merged.and_then(|Merged { ranks, events, overwritten }| {
        let lost = match overwritten {
            0 => String::new(),
            lost => format!("; {lost} earlier ones had made room for later ones"),
        };
        let told = format!("{}: {events} events of {ranks} ranks{lost}\n", out.display());
        Ok(stdout::print(&told)?)
    });
    Status::of("timeline", printed.map(|()| Status::OK))
}
