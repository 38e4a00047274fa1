//! A TCP server behind a TAP interface: it sends back what it gets.
#![allow(missing_docs)]

use std::error::Error;
use std::time::{Duration, Instant as Clock};

use rand::{TryRngCore, rngs::OsRng};
use shouter_netstack::device::{Device, Tap};
use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
use shouter_netstack::tcp::{ConnectionId, Error as TcpError, TcpEvent};
use shouter_netstack::time::Instant;

/// Sends back what has come, as far as the peer takes it. False at the end of the connection.
fn echo(stack: &mut Stack<Tap>, now: Instant, id: ConnectionId) -> Result<bool, TcpError> {
    let mut buffer = [0; 16 * 1024];
    loop {
        // What is not sent is not read, so that the peer is slowed down.
        let room = stack.tcp().info(id).map_or(0, |info| info.writable).min(buffer.len());
        if room == 0 {
            return Ok(true);
        }
        match stack.tcp_mut().read(now, id, &mut buffer[..room]) {
            Ok(0) => return Ok(false),
            Ok(len) => stack.tcp_mut().write(now, id, &buffer[..len])?,
            Err(TcpError::WouldBlock) => return Ok(true),
            Err(why) => return Err(why),
        };
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let tap = Tap::open("tap0")?;
    let mtu = tap.capabilities().mtu;
    // A stack that strangers reach needs a seed that they cannot guess.
    let mut stack = Stack::new(StackConfig::new(OsRng.try_next_u64()?));
    let port = stack.add_port(tap, PortConfig::new([10, 0, 0, 2].into(), 24, mtu))?;
    let listener = stack.tcp_mut().listen("10.0.0.2:7777".parse()?, 128, None)?;
    let start = Clock::now();
    loop {
        let now = Instant::ZERO + start.elapsed();
        let progress = stack.poll(now);
        while let Some(event) = stack.tcp_mut().next_event() {
            let id = match event {
                TcpEvent::Acceptable(_) => match stack.tcp_mut().accept(listener) {
                    Some((id, peer)) => {
                        println!("{peer} connects");
                        id
                    }
                    None => continue,
                },
                TcpEvent::Readable(id) | TcpEvent::Writable(id) => id,
                _ => continue,
            };
            // At the end, and after an error: closing it forgets it.
            if !echo(&mut stack, now, id).unwrap_or(false) {
                stack.tcp_mut().close(now, id);
            }
        }
        if progress.is_idle() && !stack.tcp().wants_transmit() {
            // Until the next frame or timer. A server that is never idle would rather poll.
            let timer = stack.next_deadline().map_or(Duration::MAX, |at| at.saturating_since(now));
            stack.device(port).ok_or("no port")?.wait(timer.min(Duration::from_secs(1)))?;
        }
    }
}
