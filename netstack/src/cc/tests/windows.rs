//! Windows over time, committed as `windows.txt`, so that a change shows in the diff.
//! `BLESS=1 cargo test -p shouter-netstack --lib cc::` writes it anew.

use core::time::Duration;
use std::fmt::Write as _;

use super::ALL;
use super::path::{Bottleneck, MSS, World};

/// A column per controller: window in packets, and what waits at the bottleneck.
fn table(into: &mut String, title: &str, path: Bottleneck, times: &[u64]) {
    let mut worlds: Vec<World> = ALL.iter().map(|&algorithm| World::one(path, algorithm, 1)).collect();
    writeln!(into, "{title}\n      ms     NewReno       Cubic       Dctcp         Bbr").unwrap();
    for &ms in times {
        write!(into, "{ms:>8}").unwrap();
        for world in &mut worlds {
            world.run(Duration::from_millis(ms));
            let window = world.flows[0].controller.window() / MSS;
            write!(into, "{:>7} {:>4}", window, world.backlog() / MSS).unwrap();
        }
        into.push('\n');
    }
    write!(into, "   Mbyte").unwrap();
    for world in &worlds {
        write!(into, "{:>12.2}", world.flows[0].delivered as f64 / 1e6).unwrap();
    }
    write!(into, "\n  losses").unwrap();
    for world in &worlds {
        write!(into, "{:>12}", world.flows[0].losses).unwrap();
    }
    into.push_str("\n\n");
}

#[test]
fn the_table_of_windows_is_as_committed() {
    let mut text = String::from(
        "Window and backlog in packets of 1000 bytes, over time; 10 Mbyte/s, 10 ms: 100 packets fill the pipe.\n\n",
    );
    let small = Bottleneck::small();
    let rounds: Vec<u64> = (1..=20).map(|round| round * 10).collect();
    table(&mut text, "Start, a queue of 100", small, &rounds);
    let seconds: Vec<u64> = (1..=24).map(|i| i * 500).collect();
    table(&mut text, "12 s, a queue of 100", small, &seconds);
    let marking = Bottleneck { mark_above: Some(20 * MSS), ..small };
    table(&mut text, "12 s, marks above 20", marking, &seconds);
    table(&mut text, "12 s, 1% loss", Bottleneck { loss: 0.01, ..small }, &seconds);

    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cc/tests/windows.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap();
    assert_eq!(text, committed, "windows changed: if it is meant, write the table anew with BLESS=1");
}
