//! One core sends at full rate and another receives; or both do both. Full frames, or messages of a size.

use std::time::Duration;

use shouter::runtime::{Clock, Instant};
use shouter_netstack::rud;
use shouter_netstack::tcp;
use shouter_netstack::udp::Payload;

use super::super::report::{ReportLine, median, round4};
use super::wire::{Count, Wire};
use super::{Protocol, WorkerArgs, word};
use crate::failure::CommandError;

/// The figures of one pass of one protocol.
#[derive(Clone, Copy, Default)]
struct Pass {
    bytes: u64,
    frames: u64,
    resent: u64,
}

/// Runs all passes and prints a line per protocol on rank 0. With a `size`, messages of so many bytes are sent, each on its own, and counted; else as
/// many bytes as fit a frame.
pub(super) fn measure(wire: &mut Wire, args: &WorkerArgs, size: Option<usize>) -> Result<(), CommandError> {
    let mut passes: Vec<Vec<Pass>> = vec![vec![]; args.protocol.len()];
    for number in 0..=args.passes {
        for (index, protocol) in args.protocol.iter().enumerate() {
            // Pass 0 warms up.
            let seconds = if number == 0 { args.seconds.min(0.2) } else { args.seconds };
            let pass = one(wire, *protocol, seconds, args.duplex, size)?;
            if number > 0 {
                passes[index].push(pass);
            }
        }
    }
    if wire.rank != 0 {
        return Ok(());
    }
    for (protocol, passes) in args.protocol.iter().zip(&passes) {
        let middle =
            |figure: &dyn Fn(&Pass) -> f64| median(&mut passes.iter().map(figure).collect::<Vec<_>>());
        let bytes = size.unwrap_or_else(|| payload_bytes(wire, *protocol));
        let messages = |p: &Pass| p.bytes as f64 / bytes.max(1) as f64 / args.seconds;
        let line = ReportLine {
            protocol: Some(word(protocol)),
            duplex: args.duplex.then_some(true),
            bytes: Some(bytes as u64),
            messages_per_second: size.map(|_| middle(&messages).round()),
            goodput_gbits: Some(round4(middle(&|p| p.bytes as f64 * 8.0 / args.seconds / 1e9))),
            frames_per_second: Some(middle(&|p| p.frames as f64 / args.seconds).round()),
            resent: Some(passes.iter().map(|p| p.resent).sum()),
            passes: Some(passes.len() as u32),
            ..ReportLine::of(if size.is_some() { "messages" } else { "stream" }, "shouter")
        };
        line.print()?;
    }
    Ok(())
}

/// Payload of a full frame.
fn payload_bytes(wire: &Wire, protocol: Protocol) -> usize {
    match protocol {
        Protocol::Raw => wire.mtu.into(),
        Protocol::Udp => usize::from(wire.mtu) - 28,
        Protocol::Rud | Protocol::RudSingle | Protocol::Sealed => {
            wire.stack.rud().payload_limit(wire.session(protocol), 0)
        }
        // IPv4, TCP, timestamps.
        Protocol::Tcp => usize::from(wire.mtu) - 52,
    }
}

/// One pass: bytes received per direction within the time.
fn one(
    wire: &mut Wire,
    protocol: Protocol,
    seconds: f64,
    duplex: bool,
    size: Option<usize>,
) -> Result<Pass, CommandError> {
    if protocol == Protocol::Tcp {
        wire.connection()?;
    }
    wire.barrier("pass")?;
    let resent = wire.resent();
    let begin = Clock.now();
    let end = begin + Duration::from_secs_f64(seconds);
    // Rank 1 sends: its driver, virtio-user, can split segments.
    let sends = wire.rank == 1 || duplex;
    let len = size.unwrap_or_else(|| payload_bytes(wire, protocol));
    let (bytes, frames) = match protocol {
        Protocol::Raw => raw(wire, end, sends, len),
        Protocol::Udp => udp(wire, end, sends, len),
        Protocol::Rud | Protocol::RudSingle | Protocol::Sealed => {
            let (session, shared) = (wire.session(protocol), protocol != Protocol::RudSingle);
            rud(wire, session, end, sends, len, shared)
        }
        Protocol::Tcp if size.is_some() => tcp(wire, end, sends, |wire, now, id| write(wire, now, id, len))?,
        Protocol::Tcp => tcp(wire, end, sends, lend)?,
    };
    wire.settle();
    let resent = wire.resent() - resent;
    let [first, second] = wire.exchange(&[bytes, frames, resent])?;
    let sum = |index: usize| first.get(index).unwrap_or(&0) + second.get(index).unwrap_or(&0);
    let directions = if duplex { 2 } else { 1 };
    Ok(Pass { bytes: sum(0) / directions, frames: sum(1) / directions, resent: sum(2) })
}

fn raw(wire: &mut Wire, end: Instant, sends: bool, len: usize) -> (u64, u64) {
    let (mut bytes, mut frames) = (0u64, 0u64);
    loop {
        let now = Clock.now();
        if now >= end {
            return (bytes, frames);
        }
        for _ in 0..4 {
            if sends {
                while wire.batch.room() > 32 {
                    let Some(frame) = wire.raw_frame(len) else { break };
                    wire.batch.push(frame);
                }
                wire.raw_transmit(now);
            }
            wire.raw_receive(now, &mut |payload| {
                bytes += payload.len() as u64;
                frames += 1;
            });
        }
    }
}

fn udp(wire: &mut Wire, end: Instant, sends: bool, len: usize) -> (u64, u64) {
    let (mut bytes, mut frames) = (0u64, 0u64);
    let mut buffer = vec![0u8; len];
    let mut sink = Count::default();
    loop {
        let now = Clock.now();
        if now >= end {
            return (bytes, frames);
        }
        if sends {
            for _ in 0..32 {
                let Some(extent) = wire.payload(len) else { break };
                let sent = wire.stack.udp_send_to(now, wire.socket, wire.peer, &[], Payload::Extent(extent));
                if sent.is_err() {
                    break;
                }
            }
        }
        wire.stack.poll_with(now, &mut sink);
        while let Some(received) = wire.stack.udp_mut().recv(wire.socket, &mut buffer) {
            bytes += received.len as u64;
            frames += 1;
        }
    }
}

/// Frames are the datagrams with data that left.
fn rud(
    wire: &mut Wire,
    session: rud::SessionId,
    end: Instant,
    sends: bool,
    len: usize,
    shared: bool,
) -> (u64, u64) {
    let mut sink = Count::default();
    wire.stack.rud_mut().set_bundles(session, shared);
    let burst = if shared { MOST_WRITES } else { 64 };
    let before = wire.stack.rud().counters(session).sent;
    loop {
        let now = Clock.now();
        if now >= end {
            return (sink.bytes, wire.stack.rud().counters(session).sent - before);
        }
        if sends {
            let room = wire.stack.rud().capacity(session).min(burst);
            for _ in 0..room {
                let payload = wire.payload(len);
                if wire.stack.rud_mut().send(session, &[], payload, rud::MessageToken(0)).is_err() {
                    break;
                }
            }
        }
        wire.stack.poll_with(now, &mut sink);
    }
}

/// Bytes of one write: several super-segments.
const TCP_WRITE: usize = 256 << 10;
/// Writes between two polls.
const MOST_WRITES: usize = 256;

/// Queues several super-segments where they are.
fn lend(wire: &mut Wire, now: Instant, connection: tcp::ConnectionId) -> Result<(), tcp::Error> {
    let Some(extent) = wire.payload(TCP_WRITE) else { return Err(tcp::Error::WouldBlock) };
    wire.stack.tcp_mut().write_extent(now, connection, extent, tcp::ReleaseToken(0))
}

/// Writes a message of `len` bytes, which is copied, as small ones are.
fn write(wire: &mut Wire, now: Instant, connection: tcp::ConnectionId, len: usize) -> Result<(), tcp::Error> {
    let Some(message) = wire.payload(len) else { return Err(tcp::Error::WouldBlock) };
    wire.stack.tcp_mut().write(now, connection, message.as_bytes()).map(drop)
}

fn tcp(
    wire: &mut Wire,
    end: Instant,
    sends: bool,
    mut send: impl FnMut(&mut Wire, Instant, tcp::ConnectionId) -> Result<(), tcp::Error>,
) -> Result<(u64, u64), CommandError> {
    let connection = wire.connection()?;
    let mut bytes = 0u64;
    let before = wire.stack.device_counters(wire.port).rx_frames;
    let mut sink = Count::default();
    loop {
        let now = Clock.now();
        if now >= end {
            return Ok((bytes, wire.stack.device_counters(wire.port).rx_frames - before));
        }
        if sends {
            for _ in 0..MOST_WRITES {
                match send(wire, now, connection) {
                    Ok(()) => {}
                    Err(tcp::Error::WouldBlock) => break,
                    Err(why) => return Err(CommandError::Failed(why.to_string())),
                }
            }
        }
        wire.stack.poll_with(now, &mut sink);
        bytes += wire.drain(now)?;
    }
}
