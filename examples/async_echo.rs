//! A TCP server of async sockets behind a TAP interface: it sends back what it gets, with a task for each connection.

use std::error::Error;
use std::io;

use futures_util::AsyncWriteExt;
use shouter::net::{Addresses, Device, Interface, Net, Tap, TcpListener, TcpStream};
use shouter::runtime::{ShardsBuilder, spawn_local, until_stop};

/// Threads, each with a stack, tasks and timers of its own.
const SHARDS: u16 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let tap = Tap::open("tap0")?;
    let mtu = tap.capabilities().mtu;
    let interface = Interface::new(Addresses::new([10, 0, 0, 2].into(), 24, mtu));
    let queues = interface.queues(tap, SHARDS);
    let shards = ShardsBuilder::new().name("echo").stop_on_signals().start(queues, |queue| {
        // On the shard's thread: what the shard polls, and its work.
        let (net, poller) = queue.open()?;
        Ok((poller, serve(net)))
    })?;
    shards.join()?;
    Ok(())
}

/// Accepts this shard's connections until SIGINT or SIGTERM.
async fn serve(net: Net) -> io::Result<()> {
    let mut listener = TcpListener::bind(&net, ([10, 0, 0, 2], 7777).into())?;
    while let Some(accepted) = until_stop(listener.accept()).await {
        let (stream, _peer) = accepted?;
        spawn_local(async move {
            // The error of a connection, such as a reset, ends its task alone.
            let _ = echo(stream).await;
        })
        .detach();
    }
    Ok(())
}

/// Sends chunks back until the peer has ended its data.
async fn echo(mut stream: TcpStream) -> io::Result<()> {
    while let Some(chunk) = stream.read_chunk().await? {
        stream.write_all(&chunk).await?;
    }
    stream.close().await
}
