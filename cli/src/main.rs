//! `shouter`, the command line for people, with exit statuses for scripts.
//!
//! Every subcommand is a module with an `Args` that clap fills and a `main(&Args) -> Status`. Exit statuses follow the
//! shell's: 0 success, 1 the work failed, 2 a wrong command line, 3 a checked figure is too slow, 127 no such command,
//! 128 + n ended by signal n.
#![deny(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod check;
mod explain;
mod failure;
mod hosts;
mod info;
mod plan;
mod ports;
mod run;
mod status;
mod stdout;
mod timeline;

#[derive(Debug, Parser)]
#[command(
    name = "shouter",
    version,
    about = "Keeps the replicas of a training job in step",
    after_help = "Examples:\n  \
        shouter run -n 4 --hosts 2 -- ./trainer --epochs 10\n  \
        shouter help run\n\n\
        SHOUTER_LOG sets what is logged to standard error (default: warn): error, warn, info, debug, trace or off, or levels \
        by module such as SHOUTER_LOG=warn,shouter::channel=debug."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// A variant without a text has its arguments', which would lose their longer one else.
#[derive(Debug, Subcommand)]
enum Command {
    Info(info::Args),
    Run(run::Args),
    Check(check::CheckArgs),
    /// Measure this machine, and the peers in the same call
    Bench(bench::BenchArgs),
    Plan(plan::PlanArgs),
    /// Put the timelines of several ranks into one
    Timeline(timeline::TimelineArgs),
    /// Say who was late or at fault, from the last events that the ranks of a failed job have left
    Explain(explain::ExplainArgs),
}

fn main() -> ExitCode {
    shouter::log::start();
    let cli = Cli::parse();
    let status = match &cli.command {
        Command::Info(args) => info::main(args),
        Command::Run(args) => run::main(args),
        Command::Check(args) => check::main(args),
        Command::Bench(args) => bench::main(args),
        Command::Plan(args) => plan::main(args),
        Command::Timeline(args) => timeline::main(args),
        Command::Explain(args) => explain::main(args),
    };
    ExitCode::from(status.0)
}
