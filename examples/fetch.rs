//! An HTTP client: hyper on Shouter's own TCP/IP stack. Writes the body to a file and prints its SHA-256. With several
//! pages each shard fetches one after the other; shard 0 has the list, and the others request the next page from it.
//!
//! ```text
//! cargo run --release --example fetch -- --device af_packet:veth1 --address 10.0.0.2/24 http://10.0.0.1/big
//! ```

mod adapter;
mod support;

use std::cell::RefCell;
use std::collections::VecDeque;
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
use shouter::runtime::{ShardId, spawn_local, submit_to, timeout, until_stop};

/// Fetches pages and prints their SHA-256, length and rate.
#[derive(Parser, Debug)]
#[command(after_help = "Examples:\n  \
    fetch --device af_packet:veth1 --address 10.0.0.2/24 http://10.0.0.1/big\n  \
    fetch --device af_packet:veth1 --address 10.0.0.2/24 --output page.html http://10.0.0.1:8080/\n  \
    fetch --device af_packet:veth1 --address 10.0.0.2/24 --shards 2 http://10.0.0.1/a http://10.0.0.1/b")]
struct FetchArgs {
    #[command(flatten)]
    port: support::PortArgs,
    /// Where the body of a single page goes; nowhere if it is left out
    #[arg(long)]
    output: Option<PathBuf>,
    /// Seconds to wait for the whole of a page
    #[arg(long, default_value_t = 300)]
    deadline: u64,
    /// The pages to fetch; the hosts must be addresses
    #[arg(required = true)]
    urls: Vec<Uri>,
}

thread_local! {
    /// Pages that no shard has begun to fetch; only shard 0's list is used.
    static PAGES: RefCell<VecDeque<Uri>> = const { RefCell::new(VecDeque::new()) };
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let FetchArgs { port, output, deadline, urls } = FetchArgs::parse();
    if output.is_some() && urls.len() > 1 {
        return Err("--output takes the body of one page".into());
    }
    support::run("fetch", &port, move |net| {
        // Set before shard 0 runs, because others may request a page at once.
        PAGES.set(urls.iter().cloned().collect());
        let work = fetch_all(net, output.clone(), Duration::from_secs(deadline));
        async { until_stop(work).await.unwrap_or_else(|| Err(io::Error::other("interrupted"))) }
    })
}

/// Fetches pages until there are none left.
async fn fetch_all(net: Net, output: Option<PathBuf>, limit: Duration) -> io::Result<()> {
    let next = || submit_to(ShardId(0), || PAGES.with_borrow_mut(VecDeque::pop_front));
    while let Some(url) = next().await.map_err(io::Error::other)? {
        timeout(limit, fetch(&net, url, output.clone())).await.map_err(io::Error::other)??;
    }
    Ok(())
}

async fn fetch(net: &Net, url: Uri, output: Option<PathBuf>) -> io::Result<()> {
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{url}: {why}"));
    let host = url.host().ok_or_else(|| invalid("there is no host"))?;
    let address: IpAddr = host
        .trim_matches(['[', ']'])
        .parse()
        .map_err(|_| invalid("the host must be an address; there is no resolver here"))?;
    let remote = SocketAddr::new(address, url.port_u16().unwrap_or(80));
    let begin = Instant::now();
    let stream = TcpStream::connect(net, remote).await?;
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
    // Hyper gets no more requests, and drops the stream: this closes our end of the connection.
    drop((response, sender));
    driver.await.map_err(io::Error::other)?;
    let hex: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{hex}  {bytes} bytes  {rate:.2} Gb/s  {url}");
    Ok(())
}
