//! An echo server (RFC 862) on Shouter's own TCP/IP stack: TCP and UDP.
//!
//! ```text
//! cargo run --release --example echo -- --device af_packet:veth1 --address 10.0.0.2/24
//! socat - TCP:10.0.0.2:7
//! ```

mod support;

use std::io;
use std::net::Ipv6Addr;

use clap::Parser;
use futures_util::AsyncWriteExt;
use shouter::net::{Net, TcpListener, TcpStream, UdpSocket};
use shouter::runtime::{current_shard, spawn_local, until_stop};

/// Sends back whatever it gets, over TCP and UDP.
#[derive(Parser, Debug)]
#[command(after_help = "Examples:\n  \
    echo --device af_packet:veth1 --address 10.0.0.2/24\n  \
    echo --device tap:shouter0 --address 10.0.0.2/24 --address6 fd00::2/64 --port 7777")]
struct EchoArgs {
    #[command(flatten)]
    port: support::PortArgs,
    /// Where to listen
    #[arg(long = "port", default_value_t = 7)]
    listen: u16,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let EchoArgs { port, listen } = EchoArgs::parse();
    support::run("echo", &port, move |net| serve(net, listen))
}

async fn serve(net: Net, port: u16) -> io::Result<()> {
    let mut listener = TcpListener::bind(&net, (Ipv6Addr::UNSPECIFIED, port).into())?;
    let mut datagrams = UdpSocket::bind(&net, ([0, 0, 0, 0], port).into())?;
    spawn_local(async move {
        let mut buffer = vec![0; 65_536];
        loop {
            let received = datagrams.recv_from(&mut buffer).await?;
            datagrams.send_to(&buffer[..received.len.min(buffer.len())], received.from).await?;
        }
        #[allow(unreachable_code)]
        io::Result::Ok(())
    })
    .detach();
    eprintln!("{} listens on port {port}", current_shard().unwrap_or_default());
    while let Some(accepted) = until_stop(listener.accept()).await {
        let (stream, _) = accepted?;
        spawn_local(async move {
            if let Err(why) = echo(stream).await {
                eprintln!("{why}");
            }
        })
        .detach();
    }
    Ok(())
}

/// Sends chunks back until the peer has finished.
async fn echo(mut stream: TcpStream) -> io::Result<()> {
    while let Some(chunk) = stream.read_chunk().await? {
        stream.write_all(&chunk).await?;
    }
    stream.close().await
}
