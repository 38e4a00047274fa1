//! Checks of the workspace's structure beyond the compiler's. `scripts/test style` runs all of them.
#![forbid(unsafe_code)]

use std::process::ExitCode;

mod citations;
mod edges;
mod list;
mod public;
mod sources;
mod unsafety;

const USAGE: &str = "\
usage: cargo run -p xtask -- COMMAND

  edges       compares the dependencies between the top-level modules of each crate with xtask/edges.txt, which has no cycle
  edges write writes the list anew
  citations   compares the requirements that comments cite with the documents that state them: each of RFC 9293 in the index of
              the conformance tests is cited, or not supported; each of RUD's specification is cited by code and by a test
  pub         compares the public items that only tests and benchmarks use, and no example in the documentation shows, with
              xtask/public.txt
  pub write   writes the list anew
  unsafe      compares the files that have unsafe code with the places that ARCHITECTURE.md names
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["edges"] => edges::check(),
        ["citations"] => citations::check(),
        ["unsafe"] => unsafety::check(),
        ["pub"] => public::check(),
        ["pub", "write"] => public::write(),
        ["edges", "write"] => edges::write(),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::FAILURE
        }
    }
}
