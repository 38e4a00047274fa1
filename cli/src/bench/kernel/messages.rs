//! Datagrams of UDP through the kernel, one system call each: rank 1 sends as many as it can, rank 0 counts.

use std::io;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use super::super::report::{ReportLine, median};
use super::PeerArgs;
use super::wire::Ring;

/// Datagrams between two readings of the clock.
const BURST: usize = 32;

/// Sends messages of `bytes` for `seconds` a pass; the rate is the receiver's.
pub(super) fn measure(args: &PeerArgs, ring: &mut Ring, bytes: usize) -> io::Result<ReportLine> {
    let socket = UdpSocket::bind((args.addresses[args.rank].ip(), 0))?;
    socket.set_nonblocking(true)?;
    // Each tells the other its port.
    let mut port = [0; 2];
    ring.both(&socket.local_addr()?.port().to_le_bytes(), &mut port)?;
    let other = args.addresses[1 - args.rank.min(1)].ip();
    socket.connect((other, u16::from_le_bytes(port)))?;
    let mut rates = vec![];
    for number in 0..=args.passes {
        // What the last pass has left in the queue is not counted in this one.
        let mut buffer = vec![0; bytes];
        while args.rank == 0 && socket.recv(&mut buffer).is_ok() {}
        ring.broadcast(args.rank, &mut [0])?;
        // Pass 0 warms up.
        let seconds = if number == 0 { args.seconds.min(0.2) } else { args.seconds };
        let received = pass(&socket, args.rank == 1, bytes, Duration::from_secs_f64(seconds))?;
        // Rank 1 has ended its pass before rank 0 empties its queue.
        ring.broadcast_back(args.rank, &mut [0])?;
        if number > 0 {
            rates.push(received as f64 / seconds);
        }
    }
    Ok(ReportLine {
        transport: Some("udp".into()),
        bytes: Some(bytes as u64),
        messages_per_second: Some(median(&mut rates).round()),
        passes: Some(args.passes),
        ..ReportLine::of("messages", &args.who)
    })
}

/// One pass: how many datagrams came.
fn pass(socket: &UdpSocket, sends: bool, bytes: usize, length: Duration) -> io::Result<u64> {
    let message = vec![7; bytes];
    let mut buffer = vec![0; bytes];
    let begin = Instant::now();
    let mut count = 0;
    while begin.elapsed() < length {
        for _ in 0..BURST {
            let moved = if sends { socket.send(&message) } else { socket.recv(&mut buffer) };
            match moved {
                Ok(_) => count += 1,
                // The queue is full, or empty; or the other end has ended its last pass.
                Err(why)
                    if matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused) => {
                }
                Err(why) => return Err(why),
            }
        }
    }
    Ok(count)
}
