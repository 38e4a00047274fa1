//! An incast over the kernel's TCP: all other ranks send a message each to rank 0 at once, on a connection each.
//!
//! Rank 0 tells the senders of a round to begin. Behind its message each sends the time at which it began, on the clock that all processes of
//! the host share; those bytes do not count. With more ranks than cores, who waits gives up its core.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::time::Instant;

use super::super::now;
use super::super::report::ReportLine;
use super::super::report::incast::{FEWEST, MOST, Times, WARM_UP};
use super::PeerArgs;
use super::wire::{Ring, SILENCE};

/// Bytes behind a message: the time at which its sender began.
const TIME: usize = 8;

/// Measures messages of `bytes`; the figures are those of rank 0.
pub(super) fn measure(args: &PeerArgs, ring: &mut Ring, bytes: usize) -> io::Result<ReportLine> {
    let others = args.addresses.len().saturating_sub(1);
    let mut incast = Incast::connect(args, ring, bytes)?;
    let begun = Instant::now();
    for round in 0..WARM_UP {
        incast.round(round, 1..=others)?;
    }
    let each = begun.elapsed().as_secs_f64() / WARM_UP as f64;
    let mut wanted = ((args.seconds / 2.0 / each.max(1e-8)) as u64).clamp(FEWEST, MOST).to_le_bytes();
    ring.broadcast(args.rank, &mut wanted)?;
    let mut times = Times::new(bytes);
    for round in 0..u64::from_le_bytes(wanted) {
        let one = 1 + round as usize % others.max(1);
        times.one(&incast.round(round, one..=one)?);
        times.all(incast.round(round, 1..=others)?);
    }
    Ok(ReportLine {
        transport: Some("tcp".into()),
        ranks: Some(args.addresses.len() as u32),
        bytes: Some(bytes as u64),
        ..times.line(&args.who)
    })
}

struct Incast {
    rank: usize,
    bytes: usize,
    /// To each sender, in the order of their ranks, or to rank 0.
    streams: Vec<TcpStream>,
    /// What is sent, or what comes from each sender.
    data: Vec<u8>,
}

impl Incast {
    fn connect(args: &PeerArgs, ring: &mut Ring, bytes: usize) -> io::Result<Self> {
        let PeerArgs { rank, ref addresses, .. } = *args;
        let mut streams = vec![];
        if rank == 0 {
            let listener = TcpListener::bind((addresses[0].ip(), 0))?;
            ring.broadcast(rank, &mut listener.local_addr()?.port().to_le_bytes())?;
            listener.set_nonblocking(true)?;
            let mut came: Vec<Option<TcpStream>> = addresses[1..].iter().map(|_| None).collect();
            for _ in 1..addresses.len() {
                let mut accepted = None;
                moved(1, |_| {
                    accepted = Some(listener.accept()?.0);
                    Ok(1)
                })?;
                let Some(mut stream) = accepted else { break };
                stream.set_nonblocking(true)?;
                let mut its = [0; 8];
                moved(its.len(), |at| stream.read(&mut its[at..]))?;
                let place = (u64::from_le_bytes(its) as usize).checked_sub(1);
                let place = place.and_then(|index| came.get_mut(index));
                *place.ok_or_else(|| io::Error::other("a sender's rank is none of the job"))? = Some(stream);
            }
            streams = came
                .into_iter()
                .collect::<Option<_>>()
                .ok_or_else(|| io::Error::other("two senders have one rank"))?;
        } else {
            let mut port = [0; 2];
            ring.broadcast(rank, &mut port)?;
            let address = SocketAddr::new(addresses[0].ip(), u16::from_le_bytes(port));
            let mut stream = TcpStream::connect_timeout(&address, SILENCE)?;
            stream.write_all(&(rank as u64).to_le_bytes())?;
            stream.set_nonblocking(true)?;
            streams.push(stream);
        }
        for stream in &streams {
            stream.set_nodelay(true)?;
        }
        let data = vec![0; streams.len() * (bytes + TIME)];
        Ok(Self { rank, bytes, streams, data })
    }

    /// The ranks `senders` send a message each to rank 0, at once: for each the nanoseconds from the start of the first of them until rank 0
    /// has it, on rank 0.
    fn round(&mut self, round: u64, senders: RangeInclusive<usize>) -> io::Result<Vec<u64>> {
        let Self { rank, bytes, ref mut streams, ref mut data } = *self;
        let mark = |rank: usize| (round as u8).wrapping_mul(31) ^ rank as u8 ^ 0x5a;
        let mut go = [0; 1];
        if rank != 0 {
            if senders.contains(&rank)
                && let Some(stream) = streams.first_mut()
            {
                (data[0], data[bytes - 1]) = (mark(rank), mark(rank));
                moved(go.len(), |at| stream.read(&mut go[at..]))?;
                data[bytes..].copy_from_slice(&now().to_le_bytes());
                moved(data.len(), |at| stream.write(&data[at..]))?;
            }
            return Ok(vec![]);
        }
        let streams = &mut streams[senders.start() - 1..*senders.end()];
        for stream in &mut *streams {
            moved(go.len(), |at| stream.write(&go[at..]))?;
        }
        let whole = bytes + TIME;
        let (mut came, mut ends) = (vec![0; streams.len()], vec![0; streams.len()]);
        moved(whole * streams.len(), |_| {
            let before: usize = came.iter().sum();
            let parts = data.chunks_exact_mut(whole);
            for (((stream, into), came), end) in streams.iter_mut().zip(parts).zip(&mut came).zip(&mut ends) {
                if *came == whole {
                    continue;
                }
                match stream.read(&mut into[*came..]) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(more) => *came += more,
                    Err(why) if why.kind() == ErrorKind::WouldBlock => {}
                    Err(why) => return Err(why),
                }
                if *came >= bytes && *end == 0 {
                    *end = now();
                }
            }
            let more = came.iter().sum::<usize>() - before;
            if more == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(more) }
        })?;
        let mut start = u64::MAX;
        for (rank, came) in senders.zip(data.chunks_exact(whole)) {
            let (message, time) = came.split_at(bytes);
            if [message.first(), message.last()] != [Some(&mark(rank)); 2] {
                return Err(io::Error::other(format!("round {round}: the message of rank {rank} is wrong")));
            }
            start = start.min(time.try_into().map_or(u64::MAX, u64::from_le_bytes));
        }
        Ok(ends.into_iter().map(|end| end.saturating_sub(start)).collect())
    }
}

/// Calls `once` with the bytes moved so far, until they are `bytes`; it says how many more it has moved. Gives up the core when it would block.
fn moved(bytes: usize, mut once: impl FnMut(usize) -> io::Result<usize>) -> io::Result<()> {
    let (mut done, mut last) = (0, Instant::now());
    while done < bytes {
        match once(done) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(more) => {
                done += more;
                last = Instant::now();
            }
            Err(why) if why.kind() == ErrorKind::WouldBlock => {
                if last.elapsed() > SILENCE {
                    return Err(io::Error::new(ErrorKind::TimedOut, "a rank of the incast fell silent"));
                }
                std::thread::yield_now();
            }
            Err(why) => return Err(why),
        }
    }
    Ok(())
}
