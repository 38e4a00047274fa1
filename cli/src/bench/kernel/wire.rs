//! A ring of polled TCP connections: each rank sends to the next and receives from the one before.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// The time limit for a peer that sends nothing.
pub(super) const SILENCE: Duration = Duration::from_secs(20);

/// One rank's two connections.
pub(super) struct Ring {
    next: TcpStream,
    previous: TcpStream,
    ranks: usize,
}

impl Ring {
    /// Connects all ranks; every rank calls this. Fails after `deadline` without a neighbour.
    pub(super) fn connect(rank: usize, addresses: &[SocketAddr], deadline: Duration) -> io::Result<Self> {
        let until = Instant::now() + deadline;
        let listener = TcpListener::bind(addresses[rank])?;
        listener.set_nonblocking(true)?;
        let neighbour = addresses[(rank + 1) % addresses.len()];
        let mut next = None;
        let mut previous = None;
        while next.is_none() || previous.is_none() {
            if Instant::now() > until {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "a neighbour in the ring did not come"));
            }
            if next.is_none() {
                next = TcpStream::connect_timeout(&neighbour, Duration::from_secs(1)).ok();
            }
            if previous.is_none() {
                previous = listener.accept().ok().map(|(stream, _)| stream);
            }
            std::thread::yield_now();
        }
        let (Some(next), Some(previous)) = (next, previous) else {
            return Err(io::Error::other("the ring did not close"));
        };
        for stream in [&next, &previous] {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
        }
        Ok(Self { next, previous, ranks: addresses.len() })
    }

    /// Sends all of `bytes` to the next rank.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.both(bytes, &mut [])
    }

    /// Fills `bytes` from the previous rank.
    pub(super) fn receive(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.both(&[], bytes)
    }

    /// Sends and receives at the same time, polling both sockets.
    pub(super) fn both(&mut self, mut out: &[u8], mut input: &mut [u8]) -> io::Result<()> {
        let mut last = Instant::now();
        let mut idle = 0u32;
        while !out.is_empty() || !input.is_empty() {
            let mut moved = false;
            if !out.is_empty() {
                match self.next.write(out) {
                    Ok(n) => {
                        out = &out[n..];
                        moved = n > 0;
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(e) => return Err(e),
                }
            }
            if !input.is_empty() {
                match self.previous.read(input) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(n) => {
                        input = &mut input[n..];
                        moved = true;
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(e) => return Err(e),
                }
            }
            idle = if moved { 0 } else { idle.wrapping_add(1) };
            if moved {
                last = Instant::now();
            } else if idle.is_multiple_of(1024) && last.elapsed() > SILENCE {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the neighbour in the ring fell silent"));
            }
        }
        Ok(())
    }

    /// Passes `bytes` of rank 0 once around the ring.
    pub(super) fn broadcast(&mut self, rank: usize, bytes: &mut [u8]) -> io::Result<()> {
        if rank == 0 {
            self.send(bytes)?;
            let mut back = vec![0; bytes.len()];
            self.receive(&mut back)
        } else {
            self.receive(bytes)?;
            self.send(bytes)
        }
    }

    /// Rank 0 waits until the last rank of the ring has received everything.
    pub(super) fn broadcast_back(&mut self, rank: usize, byte: &mut [u8; 1]) -> io::Result<()> {
        if rank == 0 { self.receive(byte) } else { self.send(byte) }
    }

    /// Ring all-reduce (reduce-scatter, then allgather) of float32 sums, in place; `data` holds the floats as
    /// little-endian bytes and `scratch` has room for the largest slice.
    pub(super) fn allreduce(&mut self, rank: usize, data: &mut [u8], scratch: &mut [u8]) -> io::Result<()> {
        let ranks = self.ranks;
        let width = (data.len() / 4).div_ceil(ranks) * 4;
        let len = data.len();
        let slice = |index: usize| {
            let start = (index % ranks * width).min(len);
            start..(start + width).min(len)
        };
        for round in 0..ranks - 1 {
            let out = slice(rank + ranks - round);
            let into = slice(rank + ranks - round - 1);
            let arriving = &mut scratch[..into.len()];
            self.both(&data[out], arriving)?;
            for (sum, value) in data[into].chunks_exact_mut(4).zip(arriving.chunks_exact(4)) {
                let total = float(sum) + float(value);
                sum.copy_from_slice(&total.to_le_bytes());
            }
        }
        for round in 0..ranks - 1 {
            let out = slice(rank + 1 + ranks - round);
            let into = slice(rank + ranks - round);
            let arriving = &mut scratch[..into.len()];
            self.both(&data[out], arriving)?;
            data[into].copy_from_slice(arriving);
        }
        Ok(())
    }
}

/// The float in four little-endian bytes.
pub(super) fn float(bytes: &[u8]) -> f32 {
    bytes.try_into().map_or(f32::NAN, f32::from_le_bytes)
}
