//! An HTTP client: hyper on Shouter's own TCP/IP stack. Writes the body to a file and prints its SHA-256.
//!
//! ```text
//! cargo run --release --example fetch -- --device af_packet:veth1 --address 10.0.0.2/24 http://10.0.0.1/big
//! ```

mod adapter;
mod support;

use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, Uri};
use sha2::{Digest, Sha256};
use shouter::net::{Net, TcpStream};
use shouter::runtime::{spawn_local, timeout, yield_now};

/// Fetches a page and prints its SHA-256, length and rate.
#[derive(Parser, Debug)]
#[command(after_help = "Examples:\n  \
    fetch --device af_packet:veth1 --address 10.0.0.2/24 http://10.0.0.1/big\n  \
    fetch --device af_packet:veth1 --address 10.0.0.2/24 --output page.html http://10.0.0.1:8080/")]
struct FetchArgs {
    #[command(flatten)]
    port: support::PortArgs,
    /// Where the body goes; nowhere if it is left out
    #[arg(long)]
    output: Option<PathBuf>,
    /// Seconds to wait for the whole answer
    #[arg(long, default_value_t = 300)]
    deadline: u64,
    /// What to fetch; the host must be an address
    url: Uri,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = FetchArgs::parse();
    let mut port = args.port.clone();
    // One connection: one shard.
    port.shards = 1;
    let (url, output, limit) = (args.url, args.output, Duration::from_secs(args.deadline));
    support::run(&port, move |_, net| {
        let (url, output) = (url.clone(), output.clone());
        async move { timeout(limit, fetch(net, url, output)).await.map_err(io::Error::other)? }
    })
}

async fn fetch(net: Net, url: Uri, output: Option<PathBuf>) -> io::Result<()> {
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{url}: {why}"));
    let host = url.host().ok_or_else(|| invalid("there is no host"))?;
    let address: IpAddr = host
        .trim_matches(['[', ']'])
        .parse()
        .map_err(|_| invalid("the host must be an address; there is no resolver here"))?;
    let remote = SocketAddr::new(address, url.port_u16().unwrap_or(80));
    let begin = Instant::now();
    let stream = TcpStream::connect(&net, remote).await?;
    let (mut sender, connection) = http1::handshake(adapter::Io(stream)).await.map_err(io::Error::other)?;
    let driver = spawn_local(connection);
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let request =
        Request::get(path).header("host", host).body(Empty::<Bytes>::new()).map_err(io::Error::other)?;
    let mut response = sender.send_request(request).await.map_err(io::Error::other)?;
    if !response.status().is_success() {
        return Err(io::Error::other(format!("{url}: {}", response.status())));
    }
    let mut file = output.map(File::create).transpose()?;
    let (mut digest, mut bytes) = (Sha256::new(), 0u64);
    while let Some(frame) = response.frame().await {
        if let Ok(data) = frame.map_err(io::Error::other)?.into_data() {
            digest.update(&data);
            bytes += data.len() as u64;
            if let Some(file) = &mut file {
                file.write_all(&data)?;
            }
        }
    }
    let rate = bytes as f64 * 8.0 / begin.elapsed().as_secs_f64() / 1e9;
    // Our end of the connection: hyper is asked for no more, drops the stream, and the next turn sends its FIN.
    drop((response, sender));
    driver.await.map_err(io::Error::other)?;
    yield_now().await;
    let hex: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{hex}  {bytes} bytes  {rate:.2} Gb/s");
    Ok(())
}
