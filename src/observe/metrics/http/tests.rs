use std::process::Command;
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

/// A server on a free port, and the end of it.
struct Served(SocketAddr, Arc<Http>, Option<thread::JoinHandle<()>>);

impl Served {
    fn new() -> Self {
        let http = Arc::new(Http::open("127.77.0.2:0".parse().unwrap()).unwrap());
        let (address, answering) = (http.listener.local_addr().unwrap(), http.clone());
        let thread = thread::spawn(move || answering.answer_all(&|| Ok("counters\n".into())));
        Self(address, http, Some(thread))
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.0).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    fn ask(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let thread = self.2.take().unwrap();
        self.1.stop(thread.thread());
        thread.join().unwrap();
    }
}

const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

#[test]
fn only_a_get_of_the_counters_shows_them() {
    let served = Served::new();
    let long = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n", "x".repeat(20_000));
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
    for (request, status) in [
        (GET, "200"),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", "200"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405"),
        (b"\x16\x03\x01 no request\r\n\r\n", "400"),
        (long.as_bytes(), "431"),
        (many.as_bytes(), "431"),
    ] {
        let answer = served.ask(request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert_eq!(answer.ends_with("counters\n") && !answer.contains("GET"), status == "200", "{answer}");
        assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
    }
    // In pieces, as a network may deliver it.
    let mut slow = served.connect();
    for piece in GET.chunks(7) {
        slow.write_all(piece).unwrap();
    }
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn a_peer_without_end_takes_a_second_and_little_memory() {
    let served = Served::new();
    let mut flood = served.connect();
    flood.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    let begin = Instant::now();
    // No line ever ends: the server reads no more once it has answered and the time is over.
    let (mut sent, block) = (0, [b'a'; 1 << 16]);
    while let Ok(more) = flood.write(&block) {
        sent += more;
        assert!(begin.elapsed() < Duration::from_secs(20), "{sent} bytes were taken");
    }
    // Others that send nothing are closed, too, and then a scraper is served.
    let idle: Vec<TcpStream> = (0..2).map(|_| served.connect()).collect();
    assert!(served.ask(GET).starts_with("HTTP/1.1 200 "));
    for mut stream in idle {
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "an idle peer is closed without an answer");
    }
}

/// In a process of its own, whose limit concerns no other test.
#[test]
fn it_comes_back_after_too_many_open_files() {
    const ALONE: &str = "SHOUTER_METRICS_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "observe::metrics::http::tests::it_comes_back_after_too_many_open_files";
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let ended = alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().unwrap();
        let told = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && told.contains("1 passed"), "{ended:?}");
        return;
    }
    let served = Served::new();
    let (first, mut second) = (served.connect(), served.connect());
    second.write_all(GET).unwrap();
    // The server has the first, or a descriptor for it; there is none for the second.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limit }).unwrap();
    assert!(TcpStream::connect(served.0).is_err(), "no descriptor is left");
    second.set_read_timeout(Some(PATIENCE * 3)).unwrap();
    let waited = second.read(&mut [0; 8]).unwrap_err();
    assert_eq!(waited.kind(), io::ErrorKind::WouldBlock, "{waited}");
    setrlimit(Resource::Nofile, limit).unwrap();
    second.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut answer = String::new();
    second.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    drop(first);
    assert!(served.ask(GET).starts_with("HTTP/1.1 200 "));
}
