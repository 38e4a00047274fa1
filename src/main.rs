//! `shouter`: the command line.
//!
//! The subcommands live in `cli`, one module each. They are part of this binary and not of the library, so that a
//! trainer that links `libshouter.a` carries no command-line parser.
#![deny(unsafe_code)]

use std::process::ExitCode;

mod cli;

fn main() -> ExitCode {
    cli::main()
}
