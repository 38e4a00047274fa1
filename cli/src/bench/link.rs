//! `shouter bench stream`, `messages`, `pingpong` and `connections`: one bare link with UDP, RUD and TCP, between two processes
//! with a core each.
//!
//! All protocols use the same port, read the same 64 MiB, colder than any cache, and take turns: every pass runs each
//! of them once, and the median over the passes counts. So `raw` is the ceiling of the same link, memory and minute as
//! the others.

mod channel;
mod connections;
#[cfg(feature = "verbs")]
mod perftest;
mod pingpong;
mod stream;
mod wire;

use std::process::{Command, Stdio};
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::kernel::{self, PeerWorkload};
use super::peers::{self, Peer};
use super::report::{Report, ReportLine};
use super::sizes::Sizes;
use super::{patience, ranks_output, word};
use crate::failure::CommandError;

/// The protocol of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Protocol {
    Raw,
    Udp,
    Rud,
    /// RUD with a datagram for each message.
    #[value(hide = true)]
    RudSingle,
    /// RUD in a session that is sealed.
    Sealed,
    Tcp,
}

/// The subject of a link's bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measured {
    /// A protocol on a DPDK link.
    Wire(Protocol),
    /// A whole channel, with fragments as in an all-reduce.
    Channel(&'static str),
}

impl FromStr for Measured {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "verbs" => Ok(Self::Channel("verbs")),
            "kernel" => Ok(Self::Channel("kernel")),
            text => Protocol::from_str(text, false).map(Self::Wire).map_err(|_| {
                format!("unknown protocol '{text}'; there are raw, udp, rud, sealed, tcp, verbs and kernel")
            }),
        }
    }
}

/// Whether the port's drivers fill in checksums and split long segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Offload {
    On,
    Off,
}

/// The arguments of the link benchmarks.
#[derive(Args, Clone, Debug)]
pub(crate) struct LinkArgs {
    /// The protocol to measure: raw, udp, rud, sealed (RUD with rud_seal), tcp, several separated by commas run in turn; or the channel verbs or
    /// kernel, alone
    #[arg(long, value_delimiter = ',', default_value = "raw,rud")]
    protocol: Vec<Measured>,
    /// The RDMA devices of the two ends, for verbs, such as rxe1,rxe2
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    rdma_device: Vec<String>,
    /// Whether fragments over verbs and kernel carry a CRC32C
    #[arg(long, default_value = "on", value_parser = ["on", "off"])]
    crc: String,
    /// The drivers that join the two processes: virtio (vhost-user and virtio-user) or memif
    #[arg(long, default_value = "virtio", value_parser = ["virtio", "memif"])]
    device: String,
    /// The link's MTU in bytes
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..=9000))]
    mtu: u16,
    /// Let the drivers fill in checksums and split long segments (default: on where tcp is measured, else off)
    #[arg(long)]
    offload: Option<Offload>,
    #[command(flatten)]
    time: TimeArgs,
    /// Peers to run in the same call: kernel; perftest beside verbs; rings beside stream, which are rings in shared memory and nothing else
    #[arg(long, value_delimiter = ',', value_name = "PEERS")]
    against: Vec<Peer>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// How long is measured, and how often.
#[derive(Args, Clone, Debug)]
struct TimeArgs {
    /// Seconds of each pass
    #[arg(long, default_value_t = 1.0, value_parser = super::seconds)]
    seconds: f64,
    /// Passes that the medians are taken over
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=101))]
    passes: u32,
}

/// How many bytes a second one core sends, and another receives.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    shouter bench stream --protocol raw,rud --mtu 1500 --seconds 3\n  \
    shouter bench stream --protocol raw,udp,rud --mtu 9000 --duplex --json\n  \
    shouter bench stream --mtu 9000 --duplex --against rings\n  \
    shouter bench stream --protocol raw,tcp --offload off --against kernel\n  \
    shouter bench stream --protocol raw,rud --device memif --against kernel\n  \
    shouter bench stream --protocol verbs --rdma-device rxe1,rxe2 --against perftest")]
pub(crate) struct StreamArgs {
    #[command(flatten)]
    link: LinkArgs,
    /// Both sides send at the same time; the figures are per direction
    #[arg(long)]
    duplex: bool,
}

/// How long a message takes there and back.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    shouter bench pingpong --protocol raw,rud,tcp --bytes 64\n  \
    shouter bench pingpong --protocol raw,udp,rud --bytes 4..1024 --against kernel --json\n  \
    shouter bench pingpong --protocol verbs --rdma-device rxe1,rxe2 --against perftest")]
pub(crate) struct PingpongArgs {
    #[command(flatten)]
    link: LinkArgs,
    /// Bytes of the message: a size, a range in powers of four (4..1024), or a list
    #[arg(long, default_value = "64")]
    bytes: Sizes,
}

/// How many small messages a second one core sends, and another receives.
#[derive(Args, Clone, Debug)]
#[command(
    long_about = "Measures how many messages of a size one core sends in a second and another receives, each given to the protocol on its own: \
        a frame, a datagram of UDP, a message of RUD, or a write of TCP. TCP puts many into a segment, and RUD several into a datagram; the row \
        rud-single has a datagram for each. The kernel's peer sends datagrams of UDP.",
    after_help = "Examples:\n  \
    shouter bench messages --bytes 32 --protocol raw,udp,rud\n  \
    shouter bench messages --bytes 8,32,256 --protocol rud,tcp --against kernel --json"
)]
pub(crate) struct MessagesArgs {
    #[command(flatten)]
    link: LinkArgs,
    /// Bytes of the message: a size, a range in powers of four (4..1024), or a list
    #[arg(long, default_value = "32")]
    bytes: Sizes,
}

/// Short connections that are opened and closed in a second, and the cost of idle ones.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    shouter bench connections --against kernel\n  \
    shouter bench connections --concurrent 256 --seconds 3 --json\n  \
    shouter bench connections --idle 100000")]
pub(crate) struct ConnectionsArgs {
    /// The drivers that join the two processes: virtio (vhost-user and virtio-user) or memif
    #[arg(long, default_value = "virtio", value_parser = ["virtio", "memif"])]
    device: String,
    /// Connections that are under way at a time
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=4096))]
    concurrent: u32,
    /// Instead of short connections, open this many and leave them idle; tells the memory that each takes
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    idle: Option<u32>,
    #[command(flatten)]
    time: TimeArgs,
    /// Peers to run in the same call: kernel
    #[arg(long, value_delimiter = ',', value_name = "PEERS")]
    against: Vec<Peer>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// The arguments of one of the two processes; started by the bench itself under the launcher.
#[derive(Args, Clone, Debug)]
pub(crate) struct WorkerArgs {
    #[arg(long, value_delimiter = ',')]
    protocol: Vec<Protocol>,
    /// Present for a whole channel: its name.
    #[arg(long)]
    channel: Option<String>,
    #[arg(long)]
    seconds: f64,
    #[arg(long)]
    passes: u32,
    #[arg(long)]
    duplex: bool,
    /// Present for a ping-pong, and for messages.
    #[arg(long)]
    bytes: Option<Sizes>,
    /// Messages go one way, as many as possible.
    #[arg(long)]
    messages: bool,
    /// Present for connections: so many at a time.
    #[arg(long)]
    concurrent: Option<u32>,
    /// Present for idle connections: so many.
    #[arg(long)]
    idle: Option<u32>,
}

/// Runs `shouter bench stream`.
pub(crate) fn stream(args: &StreamArgs) -> Result<(), CommandError> {
    let extra = if args.duplex { &["--duplex"][..] } else { &[] };
    measure(&args.link, extra, Some((PeerWorkload::Stream, &[1 << 20], args.duplex)))
}

/// Runs `shouter bench connections`.
pub(crate) fn connections(args: &ConnectionsArgs) -> Result<(), CommandError> {
    let link = LinkArgs {
        protocol: vec![Measured::Wire(Protocol::Tcp)],
        rdma_device: vec![],
        crc: "on".into(),
        device: args.device.clone(),
        mtu: 1500,
        offload: Some(Offload::On),
        time: args.time.clone(),
        against: args.against.clone(),
        json: args.json,
    };
    match args.idle {
        Some(idle) => measure(&link, &["--idle", &idle.to_string()], None),
        None => {
            let extra = ["--concurrent", &args.concurrent.to_string()];
            measure(&link, &extra, Some((PeerWorkload::Connections, &[1], false)))
        }
    }
}

/// Runs `shouter bench pingpong`.
pub(crate) fn pingpong(args: &PingpongArgs) -> Result<(), CommandError> {
    let extra = ["--bytes", &sizes_that_fit(&args.link, &args.bytes)?];
    measure(&args.link, &extra, Some((PeerWorkload::Pingpong, &args.bytes.0, false)))
}

/// Runs `shouter bench messages`.
pub(crate) fn messages(args: &MessagesArgs) -> Result<(), CommandError> {
    if let Some(Measured::Channel(name)) =
        args.link.protocol.iter().find(|it| matches!(it, Measured::Channel(_)))
    {
        return Err(CommandError::Usage(format!(
            "{name} has no messages to count; there are raw, udp, rud, sealed and tcp"
        )));
    }
    let mut link = args.link.clone();
    if let Some(at) = link.protocol.iter().position(|it| *it == Measured::Wire(Protocol::Rud)) {
        link.protocol.insert(at + 1, Measured::Wire(Protocol::RudSingle));
    }
    let extra = ["--messages", "--bytes", &sizes_that_fit(&link, &args.bytes)?];
    measure(&link, &extra, Some((PeerWorkload::Messages, &args.bytes.0, false)))
}

/// The sizes as the worker takes them, if a packet holds each.
fn sizes_that_fit(link: &LinkArgs, bytes: &Sizes) -> Result<String, CommandError> {
    let largest = u64::from(link.mtu) - u64::from(wire::HEADROOM);
    if let Some(size) = bytes.0.iter().find(|size| **size > largest) {
        return Err(CommandError::Usage(format!(
            "a message of {size} bytes does not fit a packet at MTU {}; use {largest} at most, or raise --mtu",
            link.mtu
        )));
    }
    let sizes: Vec<String> = bytes.0.iter().map(ToString::to_string).collect();
    Ok(sizes.join(","))
}

/// Runs our two processes with these options of the worker, then the peers with this workload, sizes and duplex, if they have it.
fn measure(
    link: &LinkArgs,
    extra: &[&str],
    workload: Option<(PeerWorkload, &[u64], bool)>,
) -> Result<(), CommandError> {
    let mut report = Report::new(link.json);
    report.extend(run(link, extra)?)?;
    if let Some((kind, sizes, duplex)) = workload {
        let (seconds, mtu) = (link.time.seconds, link.mtu.into());
        let job = kernel::Job { kind, ranks: 2, sizes, seconds, passes: link.time.passes, duplex, mtu };
        for peer in &link.against {
            match peer {
                #[cfg(feature = "verbs")]
                Peer::Perftest if link.protocol.contains(&Measured::Channel("verbs")) => {
                    report.extend(perftest::lines(&job, &link.rdma_device, link.time.passes)?)?;
                }
                Peer::Kernel => report.extend(kernel::run(&job)?)?,
                Peer::Rings if kind == PeerWorkload::Stream => {
                    report.extend(peers::rings(job.mtu.into(), duplex, seconds, link.time.passes)?)?;
                }
                other => eprintln!("{other:?} has no {kind:?} to measure; it is left out"),
            }
        }
    }
    Ok(report.finish()?)
}

/// Starts the two processes and gathers the lines of rank 0.
fn run(args: &LinkArgs, extra: &[&str]) -> Result<Vec<ReportLine>, CommandError> {
    let mut protocols = vec![];
    let mut channel = None;
    for measured in &args.protocol {
        match *measured {
            Measured::Wire(protocol) => protocols.push(word(&protocol)),
            Measured::Channel(name) => channel = Some(name),
        }
    }
    if channel.is_some() && args.protocol.len() > 1 {
        return Err(CommandError::Usage(
            "verbs and kernel are measured alone: give one of them, or a list of raw, udp, rud, sealed and tcp"
                .into(),
        ));
    }
    let exe = std::env::current_exe()?;
    let mut command = Command::new(&exe);
    command.args(["run", "-n", "2", "--hosts", "2", "--json", "--link", &args.device]);
    command.args(["--mtu", &args.mtu.to_string()]);
    if let Some(channel) = channel {
        command.args(["--transport", channel]).env("SHOUTER_CRC", &args.crc);
    }
    if !args.rdma_device.is_empty() {
        command.args(["--rdma-device", &args.rdma_device.join(",")]);
    }
    command.arg("--").arg(&exe).args(["bench", "link-worker"]);
    match channel {
        Some(channel) => command.args(["--channel", channel]),
        None => command.args(["--protocol", &protocols.join(",")]),
    };
    command.args(["--seconds", &args.time.seconds.to_string()]);
    command.args(["--passes", &args.time.passes.to_string()]).args(extra);
    let tcp = args.protocol.contains(&Measured::Wire(Protocol::Tcp));
    let offload = args.offload.unwrap_or(if tcp { Offload::On } else { Offload::Off });
    command.env("SHOUTER_OFFLOAD", if offload == Offload::On { "on" } else { "off" });
    let series = args.protocol.len() * (args.time.passes as usize + 1) * 16;
    let mut lines = ranks_output(command.stdin(Stdio::null()), patience(series, args.time.seconds))?;
    for line in lines.iter_mut().filter(|_| channel.is_none()) {
        line.device = Some(args.device.clone());
        line.mtu = Some(args.mtu.into());
    }
    Ok(lines)
}

/// The body of one of the two processes.
pub(crate) fn worker(args: &WorkerArgs) -> Result<(), CommandError> {
    if let Some(name) = &args.channel {
        return match &args.bytes {
            Some(sizes) => channel::pingpong(args, &sizes.0, name),
            None => channel::stream(args, name),
        };
    }
    let mut wire = wire::Wire::open()?;
    match (&args.bytes, args.concurrent, args.idle) {
        (Some(sizes), ..) if args.messages => {
            sizes.0.iter().try_for_each(|&bytes| stream::measure(&mut wire, args, Some(bytes as usize)))
        }
        (Some(sizes), ..) => {
            sizes.0.iter().try_for_each(|&bytes| pingpong::measure(&mut wire, args, bytes as usize))
        }
        (None, Some(concurrent), _) => connections::short(&mut wire, args, concurrent as usize),
        (None, None, Some(idle)) => connections::idle(&mut wire, idle as usize),
        (None, None, None) => stream::measure(&mut wire, args, None),
    }
}
