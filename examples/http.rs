//! An HTTP server: hyper on Shouter's own TCP/IP stack.
//!
//! ```text
//! cargo run --release --example http -- --device af_packet:veth1 --address 10.0.0.2/24
//! curl -o /dev/null http://10.0.0.2/bytes/1Gi
//! ```

mod adapter;
mod support;

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::net::Ipv6Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use clap::Parser;
use futures_util::AsyncWriteExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use shouter::net::{Net, TcpListener};
use shouter::runtime::{all_shards, current_shard, spawn_local, submit_to, until_stop};

/// Serves a greeting at `/`, any number of bytes at `/bytes/N` (with Ki, Mi or Gi behind it, if wished), and what each shard has
/// done at `/stats`.
#[derive(Parser, Debug)]
#[command(after_help = "Examples:\n  \
    http --device af_packet:veth1 --address 10.0.0.2/24\n  \
    http --device vhost:/tmp/link.sock --address 10.0.0.2/24 --mtu 9000 --shards 2")]
struct HttpArgs {
    #[command(flatten)]
    port: support::PortArgs,
    /// Where to listen
    #[arg(long = "port", default_value_t = 80)]
    listen: u16,
    /// Say of each connection, when it ends, what was sent and sent again
    #[arg(long)]
    report: bool,
}

thread_local! {
    /// The counters of this shard.
    static SERVED: Served = Served::default();
}

#[derive(Default)]
struct Served {
    net: RefCell<Option<Net>>,
    open: Cell<u64>,
    accepted: Cell<u64>,
    requests: Cell<u64>,
}

impl Served {
    /// A line of text.
    fn report(&self) -> String {
        let tcp = self.net.borrow().as_ref().map(Net::tcp_counters).unwrap_or_default();
        format!(
            "{}: {} connections, {} of them open, {} requests, {} segments received\n",
            current_shard().unwrap_or_default(),
            self.accepted.get(),
            self.open.get(),
            self.requests.get(),
            tcp.received
        )
    }
}

/// An open connection.
struct Open;

impl Open {
    fn new() -> Self {
        SERVED.with(|served| {
            served.accepted.update(|count| count + 1);
            served.open.update(|count| count + 1);
        });
        Self
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        SERVED.with(|served| served.open.update(|count| count - 1));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let HttpArgs { port, listen, report } = HttpArgs::parse();
    support::run("http", &port, move |net| serve(net, listen, report))
}

async fn serve(net: Net, port: u16, report: bool) -> io::Result<()> {
    let mut listener = TcpListener::bind(&net, (Ipv6Addr::UNSPECIFIED, port).into())?;
    let pattern = Bytes::from_owner(pattern());
    SERVED.with(|served| served.net.replace(Some(net)));
    eprintln!("{} listens on port {port}", current_shard().unwrap_or_default());
    while let Some(accepted) = until_stop(listener.accept()).await {
        let (stream, from) = accepted?;
        let pattern = pattern.clone();
        spawn_local(async move {
            let _open = Open::new();
            let service = service_fn(move |request| {
                SERVED.with(|served| served.requests.update(|count| count + 1));
                let response = (request.uri().path() != "/stats").then(|| answer(&request, &pattern));
                async move {
                    Ok::<_, Infallible>(match response {
                        Some(response) => response,
                        None => stats().await,
                    })
                }
            });
            let connection = http1::Builder::new().serve_connection(adapter::Io(stream), service);
            match connection.without_shutdown().await {
                Ok(parts) => {
                    let mut stream = parts.io.0;
                    let end = stream.close().await;
                    if let (true, Ok(info)) = (report, stream.info()) {
                        eprintln!(
                            "{from}: resent={} timeouts={} spurious={} probes={} srtt={:?} min_rtt={:?}",
                            info.retransmitted,
                            info.timeouts,
                            info.spurious,
                            info.probes,
                            info.srtt.unwrap_or_default(),
                            info.min_rtt.unwrap_or_default(),
                        );
                    }
                    if let Err(why) = end {
                        eprintln!("{from}: {why}");
                    }
                }
                // A client that disconnects early is no error.
                Err(why) if why.is_incomplete_message() => {}
                Err(why) => eprintln!("{from}: {why}"),
            }
        })
        .detach();
    }
    // The net refers to the stack, which ends with the shard.
    SERVED.with(|served| served.net.take());
    Ok(())
}

/// The counters of each shard, reported by the shard itself.
async fn stats() -> Response<Repeat> {
    let mut text = String::new();
    for shard in all_shards() {
        match submit_to(shard, || SERVED.with(Served::report)).await {
            Ok(line) => text.push_str(&line),
            Err(why) => text.push_str(&format!("{shard}: {why}\n")),
        }
    }
    Response::new(Repeat::once(Bytes::from(text)))
}

/// A mebibyte in which every 4 bytes are their own number, multiplied to look random.
fn pattern() -> Arc<[u8]> {
    (0..1u32 << 18).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

fn answer(request: &Request<Incoming>, pattern: &Bytes) -> Response<Repeat> {
    let path = request.uri().path();
    let body = match path.strip_prefix("/bytes/") {
        Some(count) => count_of(count).map(|left| Repeat { pattern: pattern.clone(), left }),
        None if path == "/" => Some(Repeat::once(Bytes::from_static(b"hello from Shouter\n"))),
        None => None,
    };
    body.map(Response::new).unwrap_or_else(|| {
        let mut response =
            Response::new(Repeat::once(Bytes::from_static(b"there are /, /bytes/N and /stats\n")));
        *response.status_mut() = StatusCode::NOT_FOUND;
        response
    })
}

/// Parses a number with an optional suffix Ki, Mi or Gi.
fn count_of(text: &str) -> Option<u64> {
    let (digits, shift) = [("Ki", 10), ("Mi", 20), ("Gi", 30)]
        .into_iter()
        .find_map(|(unit, shift)| text.strip_suffix(unit).map(|digits| (digits, shift)))
        .unwrap_or((text, 0));
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A body that repeats a pattern for a number of bytes.
struct Repeat {
    pattern: Bytes,
    left: u64,
}

impl Repeat {
    fn once(bytes: Bytes) -> Self {
        Self { left: bytes.len() as u64, pattern: bytes }
    }
}

impl Body for Repeat {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let len = self.left.min(self.pattern.len() as u64);
        self.left -= len;
        Poll::Ready(Some(Ok(Frame::data(self.pattern.slice(..len as usize)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
