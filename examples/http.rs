//! An HTTP server: hyper on Shouter's own TCP/IP stack.
//!
//! ```text
//! cargo run --release --example http -- --device af_packet:veth1 --address 10.0.0.2/24
//! curl -o /dev/null http://10.0.0.2/bytes/1Gi
//! ```

mod adapter;
mod support;

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
use shouter::runtime::spawn_local;

/// Serves a greeting at `/` and any number of bytes at `/bytes/N` (with Ki, Mi or Gi behind it, if wished).
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = HttpArgs::parse();
    let (listen, report) = (args.listen, args.report);
    support::run(&args.port, move |shard, net| serve(shard, net, listen, report))
}

async fn serve(shard: u16, net: Net, port: u16, report: bool) -> io::Result<()> {
    let mut listener = TcpListener::bind(&net, (Ipv6Addr::UNSPECIFIED, port).into())?;
    let pattern = Bytes::from_owner(pattern());
    eprintln!("shard {shard} listens on port {port}");
    loop {
        let (stream, from) = listener.accept().await?;
        let pattern = pattern.clone();
        spawn_local(async move {
            let service = service_fn(move |request| {
                let response = answer(&request, &pattern);
                async move { Ok::<_, Infallible>(response) }
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
                // A client that goes away in the middle is its own business.
                Err(why) if why.is_incomplete_message() => {}
                Err(why) => eprintln!("{from}: {why}"),
            }
        })
        .detach();
    }
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
        let mut response = Response::new(Repeat::once(Bytes::from_static(b"there are / and /bytes/N\n")));
        *response.status_mut() = StatusCode::NOT_FOUND;
        response
    })
}

/// A number, with Ki, Mi or Gi behind it if wished.
fn count_of(text: &str) -> Option<u64> {
    let (digits, shift) = [("Ki", 10), ("Mi", 20), ("Gi", 30)]
        .into_iter()
        .find_map(|(unit, shift)| text.strip_suffix(unit).map(|digits| (digits, shift)))
        .unwrap_or((text, 0));
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A body that repeats a pattern until so many bytes are sent.
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
