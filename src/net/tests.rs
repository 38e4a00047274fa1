use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{AsyncReadExt, AsyncWriteExt};
use shouter_netstack::stack::{PortConfig, Stack, StackConfig};

use super::shard_stack::net;
use super::*;
use crate::runtime::{
    Activity, Instant, Poller, Reactor, ShardsBuilder, sleep, spawn_local, timeout, until_stop,
};

type Shard = Reactor<(NetPoller<Loopback>, NetPoller<Loopback>)>;

/// Two stacks of one shard.
impl Poller for (NetPoller<Loopback>, NetPoller<Loopback>) {
    fn poll(&mut self, now: Instant) -> Activity {
        self.0.poll(now).or(self.1.poll(now))
    }

    fn next_deadline(&self) -> Option<Instant> {
        match (self.0.next_deadline(), self.1.next_deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// Two stacks on one wire under one shard; the second is 10.0.0.2.
fn pair(mtu: u16, offloads: bool) -> (Shard, Net, Net) {
    let (left, right) =
        if offloads { Loopback::pair_with_offloads(mtu, 256) } else { Loopback::pair(mtu, 256) };
    let mut halves = [(left, 1u8), (right, 2)].into_iter().map(|(device, host)| {
        let mut stack = Stack::new(StackConfig::new(host.into()));
        stack.add_port(device, PortConfig::new([10, 0, 0, host].into(), 24, mtu)).unwrap();
        net(stack)
    });
    let ((client, left), (server, right)) = (halves.next().unwrap(), halves.next().unwrap());
    (Reactor::new((left, right)), client, server)
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], port))
}

/// Runs the body with ten seconds to spare.
fn within<F>(shard: &mut Shard, body: F)
where
    F: Future<Output = io::Result<()>> + 'static,
{
    shard.block_on(timeout(Duration::from_secs(10), body)).expect("in time").expect("no error");
}

/// Echoes all bytes on every connection.
async fn echo(mut listener: TcpListener) -> io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        spawn_local(async move {
            while let Some(chunk) = stream.read_chunk().await? {
                stream.write_all(&chunk).await?;
            }
            stream.close().await
        })
        .detach();
    }
}

#[test]
fn megabytes_come_back_as_they_went() {
    for (mtu, offloads) in [(1500, false), (1500, true), (9000, true)] {
        let (mut shard, client, server) = pair(mtu, offloads);
        within(&mut shard, async move {
            let listener = TcpListener::bind(&server, address(7))?;
            spawn_local(echo(listener)).detach();
            let stream = TcpStream::connect(&client, address(7)).await?;
            let bytes: Vec<u8> =
                (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let (mut read, mut write) = stream.split();
            let sent = bytes.clone();
            let writer = spawn_local(async move {
                write.write_all(&sent).await?;
                write.close().await
            });
            let mut back = Vec::new();
            read.read_to_end(&mut back).await?;
            writer.await?;
            assert!(back == bytes, "{} of {} bytes came back", back.len(), bytes.len());
            Ok(())
        });
    }
}

#[test]
fn a_hundred_connections_at_once() {
    let (mut shard, client, server) = pair(1500, true);
    within(&mut shard, async move {
        spawn_local(echo(TcpListener::bind(&server, address(7))?)).detach();
        let tasks: Vec<_> = (0..100u8)
            .map(|number| {
                let client = client.clone();
                spawn_local(async move {
                    let mut stream = TcpStream::connect(&client, address(7)).await?;
                    stream.write_all(&[number; 5000]).await?;
                    stream.close().await?;
                    let mut back = Vec::new();
                    stream.read_to_end(&mut back).await?;
                    assert_eq!(back, [number; 5000]);
                    io::Result::Ok(())
                })
            })
            .collect();
        for task in tasks {
            task.await?;
        }
        Ok(())
    });
}

#[test]
fn nobody_listens() {
    let (mut shard, client, _server) = pair(1500, false);
    within(&mut shard, async move {
        let why = TcpStream::connect(&client, address(9)).await.unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::ConnectionRefused, "{why}");
        assert!(why.to_string().contains("10.0.0.2:9"), "{why}");
        Ok(())
    });
}

#[test]
fn one_side_may_finish_first() {
    let (mut shard, client, server) = pair(1500, false);
    within(&mut shard, async move {
        let mut listener = TcpListener::bind(&server, address(7))?;
        let serving = spawn_local(async move {
            let (mut stream, _) = listener.accept().await?;
            let mut question = String::new();
            stream.read_to_string(&mut question).await?;
            sleep(Duration::from_millis(5)).await;
            stream.write_all(question.to_uppercase().as_bytes()).await?;
            stream.close().await
        });
        let mut stream = TcpStream::connect(&client, address(7)).await?;
        stream.write_all(b"still there?").await?;
        stream.close().await?;
        assert_eq!(stream.write(b"more").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        serving.await?;
        assert_eq!(answer, "STILL THERE?");
        Ok(())
    });
}

#[test]
fn closing_with_data_unread_resets_the_peer() {
    let (mut shard, client, server) = pair(1500, false);
    within(&mut shard, async move {
        let mut listener = TcpListener::bind(&server, address(7))?;
        let mut stream = TcpStream::connect(&client, address(7)).await?;
        let (accepted, _) = listener.accept().await?;
        stream.write_all(b"never read").await?;
        sleep(Duration::from_millis(5)).await;
        drop(accepted);
        let why = stream.read(&mut [0; 16]).await.unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::ConnectionReset, "{why}");
        Ok(())
    });
}

#[test]
fn an_attempt_that_is_dropped_leaves_nothing_behind() {
    let (mut shard, client, server) = pair(1500, false);
    within(&mut shard, async move {
        let unreachable = SocketAddr::from(([10, 0, 0, 99], 7));
        let attempt = timeout(Duration::from_millis(5), TcpStream::connect(&client, unreachable)).await;
        assert!(attempt.is_err());
        assert_eq!(client.shared().connections.len(), 0);
        assert_eq!(client.shared().stack.tcp().connections(), 0);
        drop(server);
        Ok(())
    });
}

#[test]
fn shared_memory_is_kept_until_it_is_acknowledged_and_no_longer() {
    let (mut shard, client, server) = pair(1500, true);
    within(&mut shard, async move {
        let mut listener = TcpListener::bind(&server, address(7))?;
        let bytes: Arc<[u8]> = (0..1_000_000u32).map(|i| (i / 7) as u8).collect();
        let mut stream = TcpStream::connect(&client, address(7)).await?;
        let (mut accepted, _) = listener.accept().await?;
        stream.write_shared(bytes.clone()).await?;
        assert!(Arc::strong_count(&bytes) > 1, "the connection holds them");
        stream.close().await?;
        let mut received = Vec::new();
        accepted.read_to_end(&mut received).await?;
        assert!(received == *bytes);
        while Arc::strong_count(&bytes) > 1 {
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    });
}

#[test]
fn a_listener_that_goes_refuses() {
    let (mut shard, client, server) = pair(1500, false);
    within(&mut shard, async move {
        let listener = TcpListener::bind(&server, SocketAddr::from(([0, 0, 0, 0], 0)))?;
        let port = listener.local_addr().port();
        assert_ne!(port, 0);
        let twice = TcpListener::bind(&server, address(port));
        assert_eq!(twice.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        let why = TcpStream::connect(&client, address(port)).await.unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::ConnectionRefused);
        Ok(())
    });
}

#[test]
fn datagrams_there_and_back() {
    let (mut shard, client, server) = pair(1500, false);
    within(&mut shard, async move {
        let mut at_server = UdpSocket::bind(&server, address(53))?;
        let answered = Rc::new(Cell::new(0));
        let count = answered.clone();
        spawn_local(async move {
            let mut buffer = [0; 100];
            loop {
                let received = at_server.recv_from(&mut buffer).await?;
                count.set(count.get() + 1);
                at_server.send_to(&buffer[..received.len], received.from).await?;
            }
            #[allow(unreachable_code)]
            io::Result::Ok(())
        })
        .detach();
        let mut socket = UdpSocket::bind(&client, SocketAddr::from(([0, 0, 0, 0], 0)))?;
        let mut buffer = [0; 100];
        for number in 0..20u8 {
            socket.send_to(&[number; 9], address(53)).await?;
            let received = socket.recv_from(&mut buffer).await?;
            assert_eq!((&buffer[..received.len], received.from), (&[number; 9][..], address(53)));
        }
        assert_eq!(answered.get(), 20);
        Ok(())
    });
}

#[test]
fn shards_of_both_hosts_share_a_wire() {
    // Connections are dealt out to the shards of both hosts; each server says which of its shards answers.
    let (left, right) = Loopback::pair(1500, 256);
    let interface = |host| Interface::new(Addresses::new([10, 0, 0, host].into(), 24, 1500));
    let servers = ShardsBuilder::new().start(interface(2).queues(right, 3), |queue| {
        let shard = queue.shard();
        let (net, poller) = queue.open()?;
        let mut listener = TcpListener::bind(&net, address(7))?;
        let serve = async move {
            let mut accepted = 0;
            while let Some(connection) = until_stop(listener.accept()).await {
                let (mut stream, _) = connection?;
                accepted += 1;
                // Nothing closes it before the shards end.
                spawn_local(async move {
                    stream.write_all(&shard.to_be_bytes()).await?;
                    std::future::pending::<()>().await;
                    drop(stream);
                    io::Result::Ok(())
                })
                .detach();
            }
            io::Result::Ok(accepted)
        };
        Ok((poller, serve))
    });
    let servers = servers.unwrap();
    let heard = Arc::new(AtomicUsize::new(0));
    let count = heard.clone();
    let clients = ShardsBuilder::new().start(interface(1).queues(left, 2), move |queue| {
        let (net, poller) = queue.open()?;
        let count = count.clone();
        let ask = async move {
            let (mut streams, mut answers) = (Vec::new(), [0; 3]);
            for _ in 0..30 {
                let mut stream = TcpStream::connect(&net, address(7)).await?;
                let mut answer = [0; 2];
                stream.read_exact(&mut answer).await?;
                answers[usize::from(u16::from_be_bytes(answer))] += 1;
                streams.push(stream);
            }
            count.fetch_add(1, Ordering::Release);
            // The servers end: the last data of their shards has come here, through the first of them.
            for mut stream in streams {
                assert_eq!(stream.read(&mut [0; 1]).await?, 0, "the end of the data");
            }
            io::Result::Ok(answers)
        };
        Ok((poller, ask))
    });
    let clients = clients.unwrap();
    while heard.load(Ordering::Acquire) < 2 {
        std::thread::yield_now();
    }
    servers.stop();
    let accepted = servers.join().unwrap();
    let answers = clients.join().unwrap();
    let by_shard: Vec<usize> = (0..3).map(|shard| answers.iter().map(|client| client[shard]).sum()).collect();
    assert_eq!(by_shard, accepted);
    assert_eq!(accepted.iter().sum::<usize>(), 60);
    assert!(accepted.iter().all(|count| *count > 0), "{accepted:?}");
}

#[test]
fn addresses_that_no_host_can_have_are_refused() {
    let (device, _other) = Loopback::pair(1500, 16);
    let addresses = Addresses::new([224, 0, 0, 1].into(), 24, 1500);
    let shards = ShardsBuilder::new().start(Interface::new(addresses).queues(device, 1), |queue| {
        let (_net, poller) = queue.open()?;
        Ok((poller, async { io::Result::Ok(()) }))
    });
    let why = shards.map(drop).unwrap_err();
    assert!(why.to_string().contains("224.0.0.1"), "{why}");
}
