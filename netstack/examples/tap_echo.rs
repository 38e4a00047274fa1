//! A TCP server behind a TAP interface: it sends back what it gets.
#![allow(missing_docs)]

use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, Instant as Clock};

use shouter_netstack::device::{Device, Tap};
use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
use shouter_netstack::tcp::{ConnectionId, Error as TcpError, TcpEvent};
use shouter_netstack::time::Instant;

/// Sends back what has come until the peer has ended its data. `WouldBlock`: an event will follow when it can go on; `rest` is
/// what the peer takes first.
fn echo(stack: &mut Stack<Tap>, now: Instant, id: ConnectionId, rest: &mut Vec<u8>) -> Result<(), TcpError> {
    let mut buffer = [0; 16 * 1024];
    loop {
        while !rest.is_empty() {
            let sent = stack.tcp_mut().write(now, id, rest)?;
            rest.drain(..sent);
        }
        match stack.tcp_mut().read(now, id, &mut buffer)? {
            0 => return Ok(()),
            len => rest.extend(&buffer[..len]),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let tap = Tap::open("tap0")?;
    let mtu = tap.capabilities().mtu;
    // A stack that strangers reach needs a seed that they cannot guess.
    let mut stack = Stack::new(StackConfig::new(rand::random()));
    let port = stack.add_port(tap, PortConfig::new([10, 0, 0, 2].into(), 24, mtu))?;
    let listener = stack.tcp_mut().listen("10.0.0.2:7777".parse()?, 128, None)?;
    let mut connections = HashMap::new();
    let start = Clock::now();
    loop {
        let now = Instant::ZERO + start.elapsed();
        let progress = stack.poll(now);
        while let Some(event) = stack.tcp_mut().next_event() {
            let id = match event {
                TcpEvent::Acceptable(_) => match stack.tcp_mut().accept(listener) {
                    Some((id, _peer)) => id,
                    None => continue,
                },
                TcpEvent::Readable(id) | TcpEvent::Writable(id) | TcpEvent::Failed(id, _) => id,
                _ => continue,
            };
            let rest = connections.entry(id).or_default();
            if echo(&mut stack, now, id, rest) != Err(TcpError::WouldBlock) {
                // It is done, or has failed. What was written is still sent.
                stack.tcp_mut().close(now, id);
                connections.remove(&id);
            }
        }
        if progress.is_idle() && !stack.tcp().wants_transmit() && !stack.is_backlogged() {
            // Until the next frame or timer. A server that is never idle would rather poll.
            let timer = stack.next_deadline().map_or(Duration::MAX, |at| at.saturating_since(now));
            stack.device(port).ok_or("no port")?.wait(timer)?;
        }
    }
}
