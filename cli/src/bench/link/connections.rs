//! The rate of short connections, and the memory and time of idle ones.

use std::net::SocketAddr;
use std::time::Duration;

use shouter::runtime::{Clock, Instant};
use shouter_netstack::tcp::{ConnectionId, ListenerId, Options, TcpEvent};

use super::super::report::{ReportLine, median, round4};
use super::WorkerArgs;
use super::wire::{Count, Wire};
use crate::failure::CommandError;

/// The server's ports. With the client's ephemeral ports they make a million pairs, so that no pair is needed again
/// before its TIME-WAIT is over.
const PORTS: std::ops::Range<u16> = 20_000..20_064;

/// The time for which the client keeps a closed connection: both stacks are within one host, where no segment lives for
/// longer.
const TIME_WAIT: Duration = Duration::from_millis(200);

fn options() -> Options {
    Options { time_wait: TIME_WAIT, send_buffer: 64 << 10, receive_buffer: 64 << 10, ..Options::group() }
}

fn listen(wire: &mut Wire) -> Result<Vec<ListenerId>, CommandError> {
    PORTS
        .map(|port| {
            let local = SocketAddr::from(([0, 0, 0, 0], port));
            let listener = wire.stack.tcp_mut().listen(local, 4096, Some(options()));
            listener.map_err(|why| CommandError::Failed(why.to_string()))
        })
        .collect()
}

/// The server's port for the `number`-th connection.
fn remote(wire: &Wire, number: u64) -> SocketAddr {
    let port = PORTS.start + (number % PORTS.len() as u64) as u16;
    SocketAddr::from((*wire.peer.ip(), port))
}

/// Rank 1 opens connections and closes each once it is established; rank 0 accepts them and closes after the other
/// side. A connection counts when both ends have finished it.
pub(super) fn short(wire: &mut Wire, args: &WorkerArgs, concurrent: usize) -> Result<(), CommandError> {
    let listeners = if wire.rank == 0 { listen(wire)? } else { vec![] };
    let mut rates = vec![];
    for number in 0..=args.passes {
        wire.barrier("pass")?;
        let begin = Clock.now();
        let end = begin + Duration::from_secs_f64(if number == 0 { 0.2 } else { args.seconds });
        let finished =
            if wire.rank == 0 { serve(wire, &listeners, end) } else { open(wire, concurrent, end)? };
        let seconds = (Clock.now() - begin).as_secs_f64();
        wire.settle();
        let [_, client] = wire.exchange(&[finished, seconds.to_bits()])?;
        if let (1.., [finished, seconds]) = (number, client.as_slice()) {
            rates.push(*finished as f64 / f64::from_bits(*seconds));
        }
    }
    if wire.rank == 0 {
        let line = ReportLine {
            protocol: Some("tcp".into()),
            connections_per_second: Some(median(&mut rates).round()),
            passes: Some(args.passes),
            ..ReportLine::of("connections", "shouter")
        };
        line.print()?;
    }
    Ok(())
}

/// The client: returns the number of connections that both sides opened and closed.
fn open(wire: &mut Wire, concurrent: usize, end: Instant) -> Result<u64, CommandError> {
    let failed = |why: &dyn std::fmt::Display| CommandError::Failed(why.to_string());
    let (mut under_way, mut begun, mut finished) = (0, 0u64, 0u64);
    loop {
        let now = Clock.now();
        let over = now >= end;
        while !over && under_way < concurrent {
            let to = remote(wire, begun);
            wire.stack.tcp_connect(now, None, to, Some(options())).map_err(|why| failed(&why))?;
            begun += 1;
            under_way += 1;
        }
        wire.stack.poll_with(now, &mut Count::default());
        while let Some(event) = wire.stack.tcp_mut().next_event() {
            match event {
                // This side sends the FIN first, so TIME-WAIT is here, as with most clients.
                TcpEvent::Connected(id) => {
                    wire.stack.tcp_mut().shutdown(now, id).map_err(|why| failed(&why))?;
                }
                TcpEvent::Readable(id) => {
                    wire.stack.tcp_mut().close(now, id);
                    under_way -= 1;
                    finished += 1;
                }
                TcpEvent::Failed(_, why) => return Err(failed(&why)),
                _ => {}
            }
        }
        if over && under_way == 0 {
            return Ok(finished);
        }
        if now > end + Duration::from_secs(10) {
            return Err(failed(&format!("{under_way} connections did not end")));
        }
    }
}

/// The server: accepts until a while after the pass, and closes connections that the client has closed.
fn serve(wire: &mut Wire, listeners: &[ListenerId], end: Instant) -> u64 {
    let mut finished = 0;
    let mut last = Clock.now();
    loop {
        let now = Clock.now();
        wire.stack.poll_with(now, &mut Count::default());
        while let Some(event) = wire.stack.tcp_mut().next_event() {
            last = now;
            match event {
                TcpEvent::Acceptable(listener) if listeners.contains(&listener) => {
                    while wire.stack.tcp_mut().accept(listener).is_some() {}
                }
                TcpEvent::Readable(id) => {
                    wire.stack.tcp_mut().close(now, id);
                    finished += 1;
                }
                _ => {}
            }
        }
        if now >= end && now - last > Duration::from_millis(50) {
            return finished;
        }
    }
}

/// Opens `count` connections, leaves them idle, and reports the cost of each to this process.
pub(super) fn idle(wire: &mut Wire, count: usize) -> Result<(), CommandError> {
    const AT_A_TIME: usize = 512;
    let listeners = if wire.rank == 0 { listen(wire)? } else { vec![] };
    wire.barrier("listening")?;
    let before = resident()?;
    let mut open: Vec<ConnectionId> = Vec::with_capacity(count);
    let reserved = (count * size_of::<ConnectionId>()) as u64;
    let mut begun = 0;
    while open.len() < count {
        let enough = open.len() + AT_A_TIME;
        while wire.rank == 1 && begun < count.min(enough) {
            let to = remote(wire, begun as u64);
            let connection = wire.stack.tcp_connect(Clock.now(), None, to, Some(options()));
            connection.map_err(|why| CommandError::Failed(why.to_string()))?;
            begun += 1;
        }
        let listeners = &listeners;
        wire.poll_until(|wire, _| {
            let had = open.len();
            while let Some(event) = wire.stack.tcp_mut().next_event() {
                match event {
                    TcpEvent::Connected(id) => open.push(id),
                    TcpEvent::Failed(_, why) => return Err(CommandError::Failed(why.to_string())),
                    _ => {}
                }
            }
            for listener in listeners {
                while let Some((id, _)) = wire.stack.tcp_mut().accept(*listener) {
                    open.push(id);
                }
            }
            Ok((open.len() > had || open.len() >= count).then_some(()))
        })?;
    }
    wire.settle();
    let each = resident()?.saturating_sub(before + reserved) as f64 / count as f64;
    let [server, client] = wire.exchange(&[each.to_bits(), wire.stack.tcp().connections() as u64])?;
    if wire.rank == 0 {
        let worst = [&server, &client]
            .iter()
            .filter_map(|side| side.first())
            .map(|bits| f64::from_bits(*bits))
            .fold(0.0, f64::max);
        let line = ReportLine {
            protocol: Some("tcp".into()),
            connections: server.get(1).copied(),
            bytes_per_connection: Some(round4(worst)),
            ..ReportLine::of("idle", "shouter")
        };
        line.print()?;
    }
    Ok(())
}

/// This process's resident memory in bytes (proc_pid_statm(5)).
fn resident() -> Result<u64, CommandError> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.map(|pages| pages * 4096).ok_or_else(|| CommandError::Failed(format!("/proc/self/statm: {text}")))
}
