//! The peer of the channel `verbs`: perftest's ib_write_bw and ib_send_lat between the same two devices.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use shouter::channel::verbs::{PortSurvey, survey};

use super::super::report::{ReportLine, median, round4};
use super::super::{kernel, output_within};
use crate::failure::CommandError;

/// Bytes of a write, the length of the channel's fragments.
const WRITE: u64 = 64 << 10;
/// The TCP port of the first pass, on which the two programs meet; every pass takes the next port.
const MEETING: u16 = 18_515;
/// The time limit of a program.
const LIMIT: Duration = Duration::from_secs(60);

/// A program of perftest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    /// `ib_write_bw`: RDMA writes one way.
    WriteBandwidth,
    /// `ib_send_lat`: half of a round trip of sends.
    SendLatency,
}

/// Two devices, each with the index of the GID to use.
type Devices = [(String, u8); 2];

impl Tool {
    fn program(self) -> &'static str {
        match self {
            Self::WriteBandwidth => "ib_write_bw",
            Self::SendLatency => "ib_send_lat",
        }
    }
}

/// A server, killed on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // The server ends with its client, unless it has failed.
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

/// Measures the job with perftest between the two named devices.
pub(super) fn lines(
    job: &kernel::Job<'_>,
    names: &[String],
    passes: u32,
) -> Result<Vec<ReportLine>, CommandError> {
    let devices = devices(names)?;
    let mut lines = vec![];
    match job.kind {
        kernel::PeerWorkload::Stream => lines.extend(run(Tool::WriteBandwidth, &devices, WRITE, passes)?),
        kernel::PeerWorkload::Pingpong => {
            for bytes in job.sizes {
                lines.extend(run(Tool::SendLatency, &devices, *bytes, passes)?);
            }
        }
        _ => eprintln!("perftest has no {:?} to measure; it is left out", job.kind),
    }
    Ok(lines)
}

/// Two devices with a route between them, and the GIDs of its ends.
fn devices(names: &[String]) -> Result<Devices, CommandError> {
    let usage = |text: &str| CommandError::Usage(text.into());
    let [a, b] = names else { return Err(usage("perftest needs two devices: --rdma-device NAME,NAME")) };
    let (a, b) = (survey(a), survey(b));
    let none = || usage("no route between the two RDMA devices; look at `rdma link` and `ip route get`");
    let way = |from: &PortSurvey, to: &PortSurvey| {
        let (at, gid) = from.way(&to.reachable())?;
        Some((from.ports.get(at)?.0.clone(), gid.index))
    };
    Ok([way(&a, &b).ok_or_else(none)?, way(&b, &a).ok_or_else(none)?])
}

/// Runs `passes` of a tool; `None` if perftest is not installed.
fn run(tool: Tool, devices: &Devices, bytes: u64, passes: u32) -> Result<Option<ReportLine>, CommandError> {
    let (mut figures, mut tails, mut iterations) = (vec![], vec![], 0);
    let count: u64 = if tool == Tool::WriteBandwidth { 1_000 } else { 2_000 };
    for pass in 0..passes {
        let port = MEETING + (pass % 1_000) as u16;
        let [server, client] = devices;
        let mut command = program(tool, server, bytes, count, port);
        let child = match command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("perftest is absent: install Debian's package perftest to compare with it");
                return Ok(None);
            }
            Err(why) => return Err(why.into()),
        };
        let _server = Server(child);
        let text = client_output(tool, client, bytes, count, port)?;
        let Some(row) = row(&text) else {
            return Err(CommandError::Failed(format!("{} printed no figures:\n{text}", tool.program())));
        };
        iterations += count;
        match tool {
            // bytes, iterations, peak, average, message rate
            Tool::WriteBandwidth => figures.extend(row.get(3)),
            // bytes, iterations, minimum, maximum, typical, average, deviation, 99%, 99.9%: of half a round trip
            Tool::SendLatency => {
                figures.extend(row.get(4).map(|half| half * 2.0));
                tails.extend(row.get(7).map(|half| half * 2.0));
            }
        }
    }
    let bandwidth = tool == Tool::WriteBandwidth;
    let middle = round4(median(&mut figures));
    Ok(Some(ReportLine {
        protocol: Some(tool.program().into()),
        bytes: Some(bytes),
        iterations: Some(iterations),
        goodput_gbits: bandwidth.then_some(middle),
        p50_us: (!bandwidth).then_some(middle),
        p99_us: (!bandwidth).then(|| round4(median(&mut tails))),
        passes: Some(passes),
        ..ReportLine::of(if bandwidth { "stream" } else { "pingpong" }, "perftest")
    }))
}

fn program(tool: Tool, (device, gid): &(String, u8), bytes: u64, count: u64, port: u16) -> Command {
    let mut command = Command::new(tool.program());
    command.args(["-d", device, "-x", &gid.to_string(), "-s", &bytes.to_string(), "-n", &count.to_string()]);
    command.args(["-p", &port.to_string(), "-F"]).stdin(Stdio::null());
    if tool == Tool::WriteBandwidth {
        command.arg("--report_gbits");
    }
    command
}

/// Runs the client again until it finds the server listening.
fn client_output(
    tool: Tool,
    device: &(String, u8),
    bytes: u64,
    count: u64,
    port: u16,
) -> Result<String, CommandError> {
    const TRIES: u32 = 50;
    let mut last = String::new();
    for _ in 0..TRIES {
        let mut command = program(tool, device, bytes, count, port);
        let output = output_within(command.arg("127.0.0.1").stderr(Stdio::null()), LIMIT)?;
        last = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(last);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(CommandError::Failed(format!("{} found no server within {TRIES} tries:\n{last}", tool.program())))
}

/// The figures in the only row of the table.
fn row(text: &str) -> Option<Vec<f64>> {
    let table = text.split_once("#bytes")?.1;
    let row = table.lines().nth(1)?;
    let figures: Result<Vec<f64>, _> = row.split_ascii_whitespace().map(str::parse).collect();
    figures.ok().filter(|figures| figures.len() >= 4)
}

#[cfg(test)]
mod tests;
