//! A forwarder on Shouter's own TCP/IP stack: each incoming connection is joined to an outgoing one.
//!
//! ```text
//! cargo run --release --example forward -- --device af_packet:veth1 --address 10.0.0.2/24 10.0.0.1:443
//! openssl s_client -connect 10.0.0.2:7
//! ```

mod support;

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::num::NonZero;
use std::time::Duration;

use clap::Parser;
use futures_util::future::{join, try_join};
use futures_util::io::{copy, sink};
use futures_util::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use shouter::net::{Net, TcpKeepAlive, TcpListener, TcpStream};
use shouter::runtime::{current_shard, spawn_local, timeout, until_stop};

/// How long the sides of a connection that failed may take to end.
const LINGER: Duration = Duration::from_secs(1);

/// Passes TCP connections on, TLS or whatever they carry.
#[derive(Parser, Debug)]
#[command(after_help = "Examples:\n  \
    forward --device af_packet:veth1 --address 10.0.0.2/24 --port 443 10.0.0.1:443\n  \
    forward --device tap:shouter0 --address 10.0.0.2/24 --address6 fd00::2/64 '[fd00::1]:80'")]
struct ForwardArgs {
    #[command(flatten)]
    port: support::PortArgs,
    /// Where to listen
    #[arg(long = "port", default_value_t = 7)]
    listen: u16,
    /// Seconds of silence after which a peer is asked whether it still has the connection. A reset is sent once and can
    /// get lost: without the question, the connection to the other side would stay open for ever
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    keep_alive: NonZero<u32>,
    /// Where to connect to
    target: SocketAddr,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ForwardArgs { port, listen, keep_alive, target } = ForwardArgs::parse();
    let idle = Duration::from_secs(keep_alive.get().into());
    let keep_alive = TcpKeepAlive { idle, interval: idle, probes: 3 };
    support::run("forward", &port, move |net| serve(net, listen, keep_alive, target))
}

async fn serve(net: Net, port: u16, keep_alive: TcpKeepAlive, target: SocketAddr) -> io::Result<()> {
    let mut listener = TcpListener::bind(&net, (Ipv6Addr::UNSPECIFIED, port).into())?;
    eprintln!("{} listens on port {port}", current_shard().unwrap_or_default());
    while let Some(accepted) = until_stop(listener.accept()).await {
        let (client, from) = accepted?;
        let net = net.clone();
        spawn_local(async move {
            if let Err(why) = forward(&net, client, keep_alive, target).await {
                eprintln!("{from}: {why}");
            }
        })
        .detach();
    }
    Ok(())
}

/// Joins a client to the target until both have finished.
async fn forward(
    net: &Net,
    client: TcpStream,
    keep_alive: TcpKeepAlive,
    target: SocketAddr,
) -> io::Result<()> {
    let server = TcpStream::connect(net, target).await?;
    for side in [&client, &server] {
        side.modify(|options| options.keep_alive = Some(keep_alive))?;
    }
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let there = pass(&mut from_client, &mut to_server);
    let back = pass(&mut from_server, &mut to_client);
    let passed = try_join(there, back).await;
    if passed.is_err() {
        // A side that is dropped with bytes unread is reset, and a reset is sent once: if it gets lost, a server that asks nobody waits
        // for ever. So the side that has not failed ends as usual.
        let both = join(end(from_client, to_client), end(from_server, to_server));
        timeout(LINGER, both).await.ok();
    }
    passed.map(|_| ())
}

/// Copies bytes to the end of the stream, then closes the other side.
async fn pass<R, W>(from: &mut R, to: &mut W) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer).await? {
            0 => return to.close().await,
            len => to.write_all(&buffer[..len]).await?,
        }
    }
}

/// Closes a side, and reads what it still sends.
async fn end<R, W>(from: R, mut to: W) -> io::Result<()>
where
    R: AsyncRead,
    W: AsyncWrite + Unpin,
{
    to.close().await?;
    copy(from, &mut sink()).await?;
    Ok(())
}
