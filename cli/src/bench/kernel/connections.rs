//! Short connections through the kernel: rank 1 opens and closes, rank 0 accepts and closes.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::super::report::{ReportLine, median};
use super::PeerArgs;
use super::wire::Ring;

/// The number of the server's ports: enough that the client's do not run out while pairs are in TIME-WAIT.
const PORTS: usize = 64;
/// Threads that open connections, so that the core is not idle while one waits for its handshake.
const CLIENTS: usize = 32;

/// Opens and closes connections for `seconds` a pass; the rate is the client's.
pub(super) fn measure(args: &PeerArgs, ring: &mut Ring) -> io::Result<ReportLine> {
    let own = args.addresses[args.rank].ip();
    let mut rates = vec![];
    if args.rank == 0 {
        let listeners: Vec<TcpListener> =
            (0..PORTS).map(|_| TcpListener::bind((own, 0))).collect::<io::Result<_>>()?;
        for listener in &listeners {
            listener.set_nonblocking(true)?;
            ring.send(&listener.local_addr()?.port().to_le_bytes())?;
        }
        for _ in 0..args.passes {
            serve(&listeners, Duration::from_secs_f64(args.seconds))?;
            let mut rate = [0; 8];
            ring.receive(&mut rate)?;
            rates.push(f64::from_le_bytes(rate));
        }
    } else {
        let server = args.addresses[0].ip();
        let mut ports = vec![];
        for _ in 0..PORTS {
            let mut port = [0; 2];
            ring.receive(&mut port)?;
            ports.push(SocketAddr::new(server, u16::from_le_bytes(port)));
        }
        for _ in 0..args.passes {
            ring.send(&open(&ports, Duration::from_secs_f64(args.seconds))?.to_le_bytes())?;
        }
    }
    Ok(ReportLine {
        transport: Some("tcp".into()),
        connections_per_second: Some(median(&mut rates).round()),
        passes: Some(args.passes),
        ..ReportLine::of("connections", &args.who)
    })
}

/// Opens and closes from all threads, which share the rank's core; returns connections a second.
fn open(ports: &[SocketAddr], pass: Duration) -> io::Result<f64> {
    let begin = Instant::now();
    let counts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS)
            .map(|first| {
                scope.spawn(move || {
                    let mut count = 0u64;
                    for port in ports.iter().cycle().skip(first) {
                        let mut stream = TcpStream::connect(port)?;
                        stream.shutdown(Shutdown::Write)?;
                        stream.read_to_end(&mut vec![])?;
                        count += 1;
                        if begin.elapsed() >= pass {
                            break;
                        }
                    }
                    io::Result::Ok(count)
                })
            })
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .map(|count| count.map_err(|_| io::Error::other("a client thread panicked"))?)
            .sum::<io::Result<u64>>()
    })?;
    Ok(counts as f64 / begin.elapsed().as_secs_f64())
}

/// Accepts and closes until no connection has come for a while after the pass.
fn serve(listeners: &[TcpListener], pass: Duration) -> io::Result<()> {
    let begin = Instant::now();
    let mut last = begin;
    loop {
        let mut idle = true;
        for listener in listeners {
            match listener.accept() {
                Ok((stream, _)) => {
                    idle = false;
                    // The client has finished or is about to: closing now sends our FIN at once.
                    drop(stream);
                }
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                Err(why) => return Err(why),
            }
        }
        if !idle {
            last = Instant::now();
        } else if begin.elapsed() > pass && last.elapsed() > Duration::from_millis(100) {
            return Ok(());
        }
    }
}
