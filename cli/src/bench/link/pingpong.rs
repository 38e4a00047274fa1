//! Messages there and back, one at a time.

use std::time::Duration;

use shouter::runtime::Clock;
use shouter_netstack::rud;
use shouter_netstack::udp::Payload;

use super::super::report::{ReportLine, median, percentiles_us, round4};
use super::wire::{Count, Wire};
use super::{Protocol, WorkerArgs, word};
use crate::failure::CommandError;

/// The largest number of round trips in a pass.
const MOST: usize = 200_000;

/// The largest message: the payload of the largest MTU.
static MESSAGE: [u8; 9000] = [7; 9000];

/// Runs all passes of one size and prints a line per protocol on rank 0.
pub(super) fn measure(wire: &mut Wire, args: &WorkerArgs, bytes: usize) -> Result<(), CommandError> {
    let mut figures: Vec<(Vec<f64>, Vec<f64>, u64)> = vec![(vec![], vec![], 0); args.protocol.len()];
    for number in 0..=args.passes {
        for (figures, protocol) in figures.iter_mut().zip(&args.protocol) {
            let seconds = if number == 0 { args.seconds.min(0.1) } else { args.seconds };
            let mut nanos = one(wire, *protocol, seconds, bytes)?;
            if number > 0 {
                figures.2 += nanos.len() as u64;
                let (p50, p99) = percentiles_us(&mut nanos);
                figures.0.push(p50);
                figures.1.push(p99);
            }
        }
    }
    if wire.rank != 0 {
        return Ok(());
    }
    for (protocol, (p50, p99, iterations)) in args.protocol.iter().zip(&mut figures) {
        let line = ReportLine {
            protocol: Some(word(protocol)),
            bytes: Some(bytes as u64),
            iterations: Some(*iterations),
            p50_us: Some(round4(median(p50))),
            p99_us: Some(round4(median(p99))),
            passes: Some(args.passes),
            ..ReportLine::of("pingpong", "shouter")
        };
        line.print()?;
    }
    Ok(())
}

/// One pass: the round-trip times in nanoseconds, on rank 0. Both ends agree on the number of trips first.
fn one(wire: &mut Wire, protocol: Protocol, seconds: f64, bytes: usize) -> Result<Vec<u64>, CommandError> {
    if protocol == Protocol::Tcp {
        wire.connection()?;
    }
    wire.barrier("pass")?;
    let few = trips(wire, protocol, bytes, 100)?;
    let each = few.iter().sum::<u64>() as f64 / few.len().max(1) as f64;
    let wanted = ((seconds * 1e9 / each.max(1.0)) as u64).clamp(10, MOST as u64);
    let [first, _] = wire.exchange(&[wanted])?;
    let count = first.first().copied().unwrap_or(10) as usize;
    let nanos = trips(wire, protocol, bytes, count)?;
    wire.settle();
    Ok(nanos)
}

/// `count` round trips; rank 0's times count.
fn trips(wire: &mut Wire, protocol: Protocol, bytes: usize, count: usize) -> Result<Vec<u64>, CommandError> {
    let mut nanos = Vec::with_capacity(count);
    // The buffer is longer than the message, so that `read` can tell that the connection is empty.
    let mut inbox = vec![0; bytes + 1];
    for _ in 0..count {
        let begin = Clock.now();
        if wire.rank == 0 {
            send(wire, protocol, bytes)?;
            receive(wire, protocol, bytes, &mut inbox)?;
        } else {
            receive(wire, protocol, bytes, &mut inbox)?;
            send(wire, protocol, bytes)?;
        }
        nanos.push((Clock.now() - begin).as_nanos() as u64);
    }
    Ok(nanos)
}

fn send(wire: &mut Wire, protocol: Protocol, bytes: usize) -> Result<(), CommandError> {
    let now = Clock.now();
    match protocol {
        Protocol::Raw => {
            let frame = wire.raw_frame(bytes.max(46));
            if let Some(frame) = frame {
                wire.batch.push(frame);
            }
            while !wire.batch.is_empty() {
                wire.raw_transmit(now);
            }
        }
        Protocol::Udp => {
            let extent = wire.payload(bytes);
            let payload = extent.map_or(Payload::Bytes(&[]), Payload::Extent);
            let sent = wire.stack.udp_send_to(now, wire.socket, wire.peer, &[], payload);
            sent.map_err(|why| CommandError::Failed(why.to_string()))?;
            wire.stack.transmit(now);
        }
        Protocol::Rud | Protocol::RudSingle | Protocol::Sealed => {
            let (payload, session) = (wire.payload(bytes), wire.session(protocol));
            let sent = wire.stack.rud_mut().send(session, &[], payload, rud::MessageToken(0));
            sent.map_err(|why| CommandError::Failed(why.to_string()))?;
            wire.stack.transmit(now);
        }
        Protocol::Tcp => {
            let connection = wire.connection()?;
            let message = MESSAGE.get(..bytes).unwrap_or(&MESSAGE);
            let sent = wire.stack.tcp_mut().write(now, connection, message);
            sent.map_err(|why| CommandError::Failed(why.to_string()))?;
            wire.stack.transmit(now);
        }
    }
    Ok(())
}

/// Polls until the message has arrived. A lost message (bare frames and UDP may be lost) ends the bench.
fn receive(wire: &mut Wire, protocol: Protocol, bytes: usize, inbox: &mut [u8]) -> Result<(), CommandError> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let mut now = Clock.now();
    let end = now + PATIENCE;
    let mut polls = 0u32;
    let mut missing = bytes as u64;
    loop {
        let arrived = match protocol {
            Protocol::Raw => {
                let mut arrived = false;
                wire.raw_receive(now, &mut |_| arrived = true);
                arrived
            }
            Protocol::Udp => {
                wire.stack.poll_with(now, &mut Count::default());
                wire.stack.udp_mut().recv(wire.socket, inbox).is_some()
            }
            Protocol::Rud | Protocol::RudSingle | Protocol::Sealed => {
                let mut sink = Count::default();
                wire.stack.poll_with(now, &mut sink);
                sink.frames > 0
            }
            Protocol::Tcp => {
                wire.stack.poll_with(now, &mut Count::default());
                missing = missing.saturating_sub(wire.read(now, inbox)?);
                missing == 0
            }
        };
        if arrived {
            return Ok(());
        }
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(8) {
            now = Clock.now();
            if now > end {
                return Err(CommandError::Failed(format!(
                    "a {} message did not arrive within {PATIENCE:?}",
                    word(&protocol)
                )));
            }
        }
    }
}
