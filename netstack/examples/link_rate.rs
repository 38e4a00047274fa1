//! The raw rate of an embedded link: two processes, a core each, bare frames.
//!
//! ```text
//! cargo run --release -p shouter-netstack --example link_rate -- [--server vhost] [--client virtio] [--seconds 1]
//!     [--rounds 5] [--memory-mb 256] [--ring 0] [--mtu 9000] [--payload auto|copy] [--hot] [--hugepages]
//!     [--offload] [--super]
//! ```
//!
//! `--offload` opens the ports with offloads, `--super` moreover sends super-segments of TCP, IP packets of 65,535 bytes.
//!
//! The payload comes from a region of 64 MiB that is walked through (cold), or from one place (`--hot`). The receiver
//! reads a byte of every frame. Each figure is the median of the rounds: of the whole time, and of the 95th percentile
//! of windows of 5 ms, which is what an otherwise idle machine would do.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::collections::HashMap;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant as Clock};

use shouter_netstack::device::dpdk::{DpdkDevice, DpdkPortConfig, Eal, EalConfig, PayloadMode, Port};
use shouter_netstack::device::{Device, Frame, Offload, Transport, TxBatch};
use shouter_netstack::region::Region;
use shouter_netstack::time::Instant;
use shouter_netstack::wire::ip::{Ecn, IpHeader, Protocol};

type Failure = Box<dyn std::error::Error>;

/// Bytes of the region that cold payload is walked through.
const COLD: usize = 64 << 20;

/// Round trips per measurement.
const TRIPS: usize = 200_000;

/// The longest IP packet, which `--super` sends.
const SUPER: usize = 65_535;

/// The rate is looked at in windows of this length.
const WINDOW: Duration = Duration::from_millis(5);

const PATIENCE: Duration = Duration::from_secs(10);

/// `--name value` pairs, and `--flag` alone.
fn options() -> HashMap<String, String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut options = HashMap::new();
    for (index, name) in arguments.iter().enumerate().filter(|(_, a)| a.starts_with("--")) {
        let value = arguments.get(index + 1).filter(|v| !v.starts_with("--")).cloned().unwrap_or_default();
        options.insert(name.trim_start_matches('-').to_owned(), value);
    }
    options
}

/// Median time in nanoseconds for a cache line to change hands between two cores and back: a lower bound for any link.
fn line_there_and_back() -> f64 {
    let (there, back) = (Arc::new(Line::default()), Arc::new(Line::default()));
    let echo = {
        let (there, back) = (there.clone(), back.clone());
        std::thread::spawn(move || {
            for trip in 1..=TRIPS {
                while there.0.load(Ordering::Acquire) != trip {}
                back.0.store(trip, Ordering::Release);
            }
        })
    };
    let times = (1..=TRIPS).map(|trip| {
        let before = Clock::now();
        there.0.store(trip, Ordering::Release);
        while back.0.load(Ordering::Acquire) != trip {}
        before.elapsed().as_nanos() as f64
    });
    let median = median(times.collect());
    let _ = echo.join();
    median
}

/// A word that has a cache line (and the one that is fetched with it) to itself.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicUsize);

fn main() -> Result<(), Failure> {
    let options = options();
    if options.contains_key("role") {
        return part(&options);
    }
    let number = |name: &str, default: usize| options.get(name).map_or(Ok(default), |v| v.parse());
    let rounds = number("rounds", 5)?;
    println!(
        "{:<10} {:>6} {:>10} {:>10} {:>16} {:>10}",
        "direction", "MTU", "Mframes/s", "Gb/s", "quiet Mframes/s", "Gb/s"
    );
    let all = if options.contains_key("super") { vec![SUPER] } else { vec![1500, 9000] };
    let mtus = options.get("mtu").map_or(Ok(all), |v| v.parse().map(|mtu| vec![mtu]))?;
    for mtu in mtus {
        for (label, modes) in [("to server", ["receive", "send"]), ("to client", ["send", "receive"])] {
            let rates = repeat(rounds, &options, mtu, modes)?;
            line(label, mtu, &rates, 0);
        }
        let rates = repeat(rounds, &options, mtu, ["duplex", "duplex"])?;
        line("duplex in", mtu, &rates, 0);
        line("duplex out", mtu, &rates, 2);
    }
    println!("cache line there and back: p50 {:.2} us", line_there_and_back() / 1e3);
    for bytes in [64, 1500] {
        let rates = repeat(rounds, &options, bytes, ["echo", "ping"])?;
        let p50 = median(rates.iter().filter_map(|r| r.first().copied()).collect());
        let p99 = median(rates.iter().filter_map(|r| r.get(1).copied()).collect());
        println!("round trip of {bytes} bytes: p50 {:.2} us, p99 {:.2} us", p50 / 1e3, p99 / 1e3);
    }
    Ok(())
}

/// Prints the figures at `first` (overall) and behind it (quiet).
fn line(label: &str, mtu: usize, rounds: &[Vec<f64>], first: usize) {
    let figure = |at: usize| median(rounds.iter().filter_map(|r| r.get(at).copied()).collect());
    let gigabits = |rate: f64| rate * (mtu + 14) as f64 * 8.0 / 1e9;
    let (overall, quiet) = (figure(first), figure(first + 1));
    println!(
        "{label:<10} {mtu:>6} {:>10.2} {:>10.1} {:>16.2} {:>10.1}",
        overall / 1e6,
        gigabits(overall),
        quiet / 1e6,
        gigabits(quiet)
    );
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The figures that the two parts print, server's first, for each round.
fn repeat(
    rounds: usize,
    options: &HashMap<String, String>,
    mtu: usize,
    modes: [&str; 2],
) -> Result<Vec<Vec<f64>>, Failure> {
    let path = std::env::temp_dir().join(format!("link-rate-{}.sock", std::process::id()));
    let kind = |name: &str, default: &'static str| options.get(name).cloned().unwrap_or(default.into());
    let kinds = [kind("server", "vhost"), kind("client", "virtio")];
    let mut figures = Vec::new();
    for _ in 0..rounds {
        let mut children = Vec::new();
        for cpu in 0..2 {
            let spec = format!("{}:{}", kinds[cpu], path.display());
            let mut command = Command::new("taskset");
            command.args(["-c", &cpu.to_string()]).arg(std::env::current_exe()?);
            command.args(["--role", modes[cpu], "--spec", &spec, "--size", &mtu.to_string()]);
            for (name, value) in options {
                command.arg(format!("--{name}")).arg(value);
            }
            children.push(command.stdout(Stdio::piped()).spawn()?);
        }
        let mut round = Vec::new();
        for mut child in children {
            round.extend(result_of(&mut child)?);
        }
        figures.push(round);
    }
    Ok(figures)
}

fn result_of(child: &mut Child) -> Result<Vec<f64>, Failure> {
    let mut text = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut text)?;
    }
    if !child.wait()?.success() {
        return Err("a part of the measurement failed (see above)".into());
    }
    Ok(text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

/// One end of the link.
fn part(options: &HashMap<String, String>) -> Result<(), Failure> {
    let text = |name: &str| options.get(name).map_or("", String::as_str);
    let number = |name: &str, default: usize| options.get(name).map_or(Ok(default), |v| v.parse());
    let config = EalConfig {
        memory_mb: number("memory-mb", 256)? as u32,
        hugepages: options.contains_key("hugepages"),
        echo_log: options.contains_key("log"),
        ..EalConfig::default()
    };
    let eal = Eal::init(&config)?;
    let size = number("size", 1500)?;
    let mut config = DpdkPortConfig::new(text("spec").parse()?);
    config.mtu = if size == SUPER { 1500 } else { size.max(1500) as u16 };
    config.offload = ["offload", "super"].iter().any(|name| options.contains_key(*name));
    config.ring_size = number("ring", 0)? as u16;
    config.payload = if text("payload") == "copy" { PayloadMode::Copy } else { PayloadMode::Auto };
    let started = Clock::now();
    let mut device = Port::open(eal, &config, PATIENCE)?.into_devices().remove(0);
    while !device.link_up() {
        if started.elapsed() > PATIENCE {
            return Err("the link does not come up".into());
        }
        std::thread::yield_now();
    }
    let seconds = Duration::from_secs_f64(options.get("seconds").map_or(Ok(1.0), |v| v.parse())?);
    let memory = vec![1_u8; COLD];
    // SAFETY: the memory lives to the end of the process, and is not written.
    let region = unsafe { Region::from_raw_parts(NonNull::from(memory.leak() as &[u8]).cast::<u8>(), COLD) };
    match text("role") {
        "echo" | "ping" => trips(&mut device, &region, size, text("role") == "ping", started)?,
        role => stream(&mut device, &region, size, role, seconds, options.contains_key("hot"))?,
    }
    Ok(())
}

/// Sends, receives or both for the given time from the first frame that arrives; a sender goes on a little longer.
fn stream(
    device: &mut DpdkDevice,
    region: &Region,
    mtu: usize,
    role: &str,
    seconds: Duration,
    hot: bool,
) -> Result<(), Failure> {
    let (sends, receives) = (role != "receive", role != "send");
    let (header, offload) = if mtu == SUPER { super_header() } else { (header(), Offload::NONE) };
    let payload = mtu + 14 - header.len();
    let mut batch = TxBatch::with_capacity(64);
    let (mut offset, mut received, mut sum) = (0, 0_usize, 0_u64);
    let mut first: Option<Clock> = None;
    let mut rate = None;
    let mut windows = Vec::with_capacity(1 << 16);
    let mut window = (Clock::now(), 0_usize);
    let started = Clock::now();
    let mut end = started + seconds * 2 + PATIENCE;
    if !receives {
        end = started + seconds + Duration::from_millis(500);
    }
    loop {
        if sends {
            while batch.room() > 0 {
                let extent = region.extent(offset, payload as u32).ok_or("payload outside the region")?;
                batch.push(Frame::with_extents(&[&header], &[extent], offload).ok_or("header too long")?);
                if !hot {
                    offset += payload.next_multiple_of(64);
                    if offset + payload > region.len() {
                        offset = 0;
                    }
                }
            }
            device.transmit(Instant::ZERO, &mut batch);
        }
        if receives {
            received += device.receive(Instant::ZERO, 64, &mut |frame| sum += u64::from(frame.head()[20]));
        }
        let now = Clock::now();
        if now > end {
            break;
        }
        if received > 0 && first.is_none() {
            (first, received, window) = (Some(now), 0, (now, 0));
        }
        if now - window.0 >= WINDOW {
            windows.push((received - window.1) as f64 / (now - window.0).as_secs_f64());
            window = (now, received);
        }
        if let Some(first) = first.filter(|f| rate.is_none() && now - *f >= seconds) {
            rate = Some(received as f64 / (now - first).as_secs_f64());
            end = now + Duration::from_millis(if sends { 300 } else { 0 });
        }
    }
    match rate {
        Some(rate) => {
            windows.sort_by(f64::total_cmp);
            println!("{rate} {}", windows.get(windows.len() * 95 / 100).copied().unwrap_or(rate));
        }
        None if receives => return Err("no frame arrived".into()),
        None => {}
    }
    std::hint::black_box(sum);
    Ok(())
}

/// Frames there and back: `ping` prints the median and the 99th percentile in nanoseconds.
fn trips(
    device: &mut DpdkDevice,
    region: &Region,
    size: usize,
    ping: bool,
    started: Clock,
) -> Result<(), Failure> {
    let header = header();
    let extent = region.extent(0, (size - header.len()) as u32).ok_or("payload outside the region")?;
    let frame = Frame::new(&[&header], Some(extent)).ok_or("header too long")?;
    let mut batch = TxBatch::with_capacity(4);
    let mut times = Vec::with_capacity(TRIPS);
    let mut done = 0;
    while done < TRIPS {
        let before = Clock::now();
        if ping {
            batch.push(frame);
        }
        let mut answered = false;
        let mut spins = 0_u32;
        while !answered {
            if !batch.is_empty() {
                device.transmit(Instant::ZERO, &mut batch);
            }
            answered = device.receive(Instant::ZERO, 1, &mut |_| ()) > 0;
            spins = spins.wrapping_add(1);
            if spins == 0 && started.elapsed() > PATIENCE * 2 {
                return Err("no answer".into());
            }
        }
        if ping {
            times.push(before.elapsed().as_nanos() as f64);
        } else {
            batch.push(frame);
            while device.transmit(Instant::ZERO, &mut batch) == 0 {}
        }
        done += 1;
    }
    if ping {
        times.sort_by(f64::total_cmp);
        println!("{} {}", times[TRIPS / 2], times[TRIPS * 99 / 100]);
    } else {
        // The last answer is in the ring; the peer reads it from our memory.
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// As long as the headers of a protocol: Ethernet, IPv4, UDP and some.
fn header() -> Vec<u8> {
    let mut header = vec![0x02; 50];
    header[12..14].copy_from_slice(&[0x88, 0xb5]); // IEEE 802 local experimental
    header
}

/// The headers of a super-segment, and its offload request.
fn super_header() -> (Vec<u8>, Offload) {
    let mut header = vec![0x02; 12];
    header.extend([0x08, 0x00]);
    let payload = SUPER - 20;
    let ip = IpHeader::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Protocol::Tcp, payload, Ecn::NotEct);
    header.extend_from_slice(ip.as_ref().map_or(&[], |ip| ip.as_bytes()));
    header.extend([0x10, 0, 0x20, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    (header, Offload { transport: Transport::Tcp, l3_offset: 14, l4_offset: 34, segment_size: 1460 })
}
