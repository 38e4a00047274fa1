use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: GpuArgs,
}

fn parse(words: &str) -> Result<GpuArgs, clap::Error> {
    Line::try_parse_from(std::iter::once("gpu").chain(words.split_whitespace())).map(|line| line.args)
}

#[test]
fn parts_choose_rows() {
    let all: usize = PARTS.iter().map(|part| parse("").unwrap().rows(*part).len()).sum();
    assert_eq!(all, 27);
    let args = parse("--only speed,staged --bytes 1Mi").unwrap();
    assert!(args.rows(Part::Bits).is_empty() && args.rows(Part::Speed).len() == 8);
    assert_eq!(args.bytes, Some(1 << 20));
    let mut names: Vec<&str> =
        PARTS.iter().flat_map(|part| parse("").unwrap().rows(*part)).map(|row| row.0).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
}

#[test]
fn nonsense_is_refused() {
    for words in [
        "--only sums",
        "--bytes 0",
        "--ipc-bytes 0",
        "--elements 0",
        "--samples 0",
        "--compile 90",
        "--device -1",
    ] {
        assert!(parse(words).is_err(), "{words}");
    }
}
