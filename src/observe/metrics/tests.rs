use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

fn of() -> MetricsOf {
    MetricsOf { job: "a \"b\"".into(), rank: 3, local_rank: 0, host: "1".into() }
}

/// A count that grows each time.
fn count() -> Count {
    let asked = AtomicU64::new(0);
    Box::new(move || {
        let value = asked.fetch_add(1, Ordering::Relaxed) as f64;
        vec![
            Metric { kind: MetricKind::Counter, name: "operations_total", help: "Operations.", value },
            Metric { kind: MetricKind::Gauge, name: "paths_out", help: "Paths.", value: 7.0 - value },
        ]
    })
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_rank_whose_port_would_be_beyond_the_last_is_told_its_target() {
    let target = MetricsTarget::parse("127.0.0.1:65535").unwrap();
    assert_eq!(target.of_rank(&of()).unwrap(), target);
    let beyond = target.of_rank(&MetricsOf { local_rank: 1, ..of() }).unwrap_err().to_string();
    assert_eq!(beyond, "127.0.0.1:65535: local rank 1 would have a port above 65535");
}

#[test]
fn targets_are_paths_or_addresses() {
    assert_eq!(MetricsTarget::parse("/run/x.prom"), Some(MetricsTarget::File("/run/x.prom".into())));
    let address = |text: &str| Some(MetricsTarget::Http(text.parse().unwrap()));
    assert_eq!(MetricsTarget::parse("127.0.0.1:9400"), address("127.0.0.1:9400"));
    assert_eq!(MetricsTarget::parse("localhost:9400"), address("127.0.0.1:9400"));
    assert_eq!(MetricsTarget::parse("[::1]:9400"), address("[::1]:9400"));
    for wrong in ["", "9400", "host:9400", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000"] {
        assert_eq!(MetricsTarget::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn http_shows_the_counters_of_that_moment() {
    // The port of a listener that has just been closed is free.
    let address = TcpListener::bind("127.77.0.1:0").unwrap().local_addr().unwrap();
    let exporter = Exporter::start(&MetricsTarget::Http(address), of(), count()).unwrap();
    for number in 0..2 {
        let answer = get(address, "/metrics");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        // The labels come in any order.
        let line = answer.lines().find(|line| line.starts_with("shouter_operations_total{")).unwrap();
        for label in ["host=\"1\"", "job=\"a \\\"b\\\"\"", "rank=\"3\""] {
            assert!(line.contains(label), "{label}: {line}");
        }
        assert!(line.ends_with(&format!("}} {number}")), "{line}");
        assert!(answer.contains("# TYPE shouter_operations_total counter"), "{answer}");
        assert!(answer.contains("# TYPE shouter_paths_out gauge"), "{answer}");
    }
    assert!(get(address, "/").starts_with("HTTP/1.1 404"));
    let taken = Exporter::start(&MetricsTarget::Http(address), of(), count()).err().unwrap();
    assert!(taken.to_string().contains("in use"), "{taken}");
    drop(exporter);
    assert!(TcpStream::connect(address).is_err(), "the port is closed with the group");
    // The next group of this process may have it.
    drop(Exporter::start(&MetricsTarget::Http(address), of(), count()).unwrap());
}

#[test]
fn a_file_is_written_at_the_start_and_at_the_end() {
    let path = std::env::temp_dir().join(format!("shouter-metrics-{}.prom", std::process::id()));
    let exporter = Exporter::start(&MetricsTarget::File(path.clone()), of(), count()).unwrap();
    let value = || {
        let text = fs::read_to_string(&path).unwrap();
        text.lines().find(|line| line.starts_with("shouter_operations_total")).unwrap().to_owned()
    };
    assert!(value().ends_with(" 0"), "{}", value());
    drop(exporter);
    assert!(!value().ends_with(" 0"), "{}", value());
    fs::remove_file(&path).unwrap();
    let nowhere = MetricsTarget::File("/nonexistent/x.prom".into());
    assert!(Exporter::start(&nowhere, of(), count()).is_err());
}
