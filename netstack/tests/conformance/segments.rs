//! Statements about segments: `peer` sends one, `we` expects one.

use core::fmt::Write as _;
use core::net::SocketAddr;
use core::time::Duration;

use shouter_netstack::tcp::{IcmpKind, Payload, SegmentIcmpError, SegmentMeta};
use shouter_netstack::wire::tcp::{Flags, Header, SeqNumber, SeqRange, Timestamps, UserTimeout};

use super::peer::{Sent, peer_byte};
use super::run::{Outcome, Run, duration, number_of};

const NAMES: [(&str, Flags); 8] = [
    ("SYN", Flags::SYN),
    ("FIN", Flags::FIN),
    ("RST", Flags::RST),
    ("PSH", Flags::PSH),
    ("URG", Flags::URG),
    ("ECE", Flags::ECE),
    ("CWR", Flags::CWR),
    ("ACK", Flags::ACK),
];

fn flag(name: &str) -> Result<Flags, String> {
    NAMES.iter().find(|(n, _)| *n == name).map(|(_, f)| *f).ok_or_else(|| format!("there is no flag {name}"))
}

/// Flags that must be there, and flags that may.
fn flags(text: &str) -> Result<(Flags, Flags), String> {
    let (mut must, mut may) = (Flags::default(), Flags::default());
    for name in text.split(',').filter(|name| *name != "none") {
        match name.strip_suffix('?') {
            Some(name) => may = may.with(flag(name)?),
            None => must = must.with(flag(name)?),
        }
    }
    Ok((must, may))
}

/// A relative number modulo 2^32, small negative ones as such.
fn show(value: u32) -> String {
    (value as i32).to_string()
}

impl Run {
    /// `peer FLAGS ...`: a segment arrives.
    pub(crate) fn peer(&mut self, words: &[&str]) -> Outcome {
        let mut words = words.iter().copied();
        let (flags, _) = flags(words.next().ok_or("peer FLAGS ...")?)?;
        let clock = 1000u32.wrapping_add((self.world().now / 1_000_000) as u32);
        let flow = self.flow();
        let (local, mut source, mut destination) = (flow.local, flow.remote.ip(), flow.local.ip());
        let (our_isn, peer_isn) = (flow.our_isn.unwrap_or(0), flow.peer_isn);
        let mut header = Header {
            source_port: flow.remote.port(),
            destination_port: local.port(),
            seq: SeqNumber(peer_isn.wrapping_add(flow.peer_nxt)),
            flags,
            window: flow.window,
            ..Header::default()
        };
        if flags.contains(Flags::ACK) {
            header.ack = SeqNumber(our_isn.wrapping_add(flow.nxt));
        }
        let mut timestamps = (flow.timestamps() && !flags.intersects(Flags::RST.with(Flags::SYN)))
            .then(|| Timestamps { value: clock, echo: flow.last_ts.unwrap_or(0) });
        let (mut len, mut junk, mut ce) = (0, 0u8, false);
        let mut raw = Vec::new();
        let mut number = None;
        while let Some(word) = words.next() {
            let mut next = || words.next().ok_or_else(|| format!("{word} what?"));
            match word {
                "seq" => header.seq = SeqNumber(peer_isn.wrapping_add(self.number(next()?)?)),
                "ack" => header.ack = SeqNumber(our_isn.wrapping_add(self.number(next()?)?)),
                "len" => len = number_of(next()?)?,
                "junk" => junk = 0xff,
                "wnd" => {
                    header.window = next()?.parse().map_err(|_| "wnd 0..65535")?;
                    self.flow().window = header.window;
                }
                "mss" => header.options.mss = Some(next()?.parse().map_err(|_| "mss 0..65535")?),
                "wscale" => header.options.window_scale = Some(next()?.parse().map_err(|_| "wscale 0..14")?),
                "sackok" => header.options.sack_permitted = true,
                "no-ts" => timestamps = None,
                "ts" => {
                    let echo = self.flow().last_ts.unwrap_or(0);
                    let value = match next()? {
                        "auto" => clock,
                        relative if relative.starts_with("auto") => {
                            let by: i64 = relative["auto".len()..].parse().map_err(|_| "ts auto-N")?;
                            clock.wrapping_add(by as u32)
                        }
                        value => value.parse().map_err(|_| "ts NUMBER|auto|auto-N")?,
                    };
                    let echo = timestamps.map_or(echo, |ts| ts.echo);
                    let echo = if flags.contains(Flags::ACK) { echo } else { 0 };
                    timestamps = Some(Timestamps { value, echo });
                }
                "echo" => {
                    let name = next()?;
                    let echo = match self.flow().marks.get(name) {
                        Some(&value) => value,
                        None => name.parse().map_err(|_| format!("no segment has the name {name}"))?,
                    };
                    timestamps = timestamps.map(|ts| Timestamps { echo, ..ts });
                }
                "sack" => {
                    for block in next()?.split(',') {
                        let (start, end) = block.split_once("..").ok_or("sack A..B,C..D")?;
                        let start = SeqNumber(our_isn.wrapping_add(self.number(start)?));
                        let end = SeqNumber(our_isn.wrapping_add(self.number(end)?));
                        header.options.sack.push(SeqRange { start, end });
                    }
                }
                "urg" => header.urgent = next()?.parse().map_err(|_| "urg NUMBER")?,
                "uto" => {
                    let seconds = next()?.parse().map_err(|_| "uto SECONDS")?;
                    header.options.user_timeout = Some(UserTimeout { seconds });
                }
                "ce" => ce = true,
                "raw" => raw = hex(next()?)?,
                "from" => source = next()?.parse().map_err(|_| "from ADDRESS")?,
                "to" => destination = next()?.parse().map_err(|_| "to ADDRESS")?,
                "port" => header.destination_port = next()?.parse().map_err(|_| "port NUMBER")?,
                "times" => number = Some(number_of(next()?)?),
                other => return Err(format!("peer: {other}?")),
            }
        }
        header.options.timestamps = timestamps;
        if let Some(ts) = timestamps {
            self.flow().peer_ts = ts.value;
        }
        for _ in 0..number.unwrap_or(1) {
            let seq = header.seq.0.wrapping_sub(peer_isn);
            let data_at = seq.wrapping_add(u32::from(flags.contains(Flags::SYN))).wrapping_sub(1);
            let payload: Vec<u8> =
                (0..len as u32).map(|i| peer_byte(u64::from(data_at.wrapping_add(i))) ^ junk).collect();
            let mut bytes = header.emit().as_bytes().to_vec();
            bytes.extend_from_slice(&raw);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes[12] = ((bytes.len() / 4) as u8) << 4;
            let text = self.text(true, &header, len);
            self.note(text);
            self.on_peer(&header, len as u32);
            let meta = SegmentMeta { source, destination, congestion_experienced: ce };
            let now = self.world().now();
            self.world().endpoint.on_segment(now, &meta, &bytes, Payload::new(&payload));
            self.pump()?;
            header.seq += len as u32;
        }
        Ok(())
    }

    /// `icmp KIND [MTU] [seq N]`: an error about a segment of ours arrives.
    pub(crate) fn icmp(&mut self, words: &[&str]) -> Outcome {
        let (&kind, mut rest) = words.split_first().ok_or("icmp KIND ...")?;
        let kind = match kind {
            "too-big" => {
                let (mtu, more) = rest.split_first().ok_or("icmp too-big MTU")?;
                rest = more;
                IcmpKind::TooBig(mtu.parse().map_err(|_| "icmp too-big MTU")?)
            }
            "unreachable" => IcmpKind::Unreachable,
            "refused" => IcmpKind::Refused,
            other => return Err(format!("icmp {other}?")),
        };
        let seq = match rest {
            [] => self.flow().peer_ack,
            ["seq", seq] => self.number(seq)?,
            _ => return Err("icmp KIND [MTU] [seq NUMBER]".to_owned()),
        };
        let flow = self.flow();
        let seq = SeqNumber(flow.our_isn.unwrap_or(0).wrapping_add(seq));
        let error = SegmentIcmpError { local: flow.local, remote: flow.remote, seq, kind };
        let now = self.world().now();
        self.world().endpoint.on_icmp_error(now, &error);
        self.pump()
    }

    /// `we FLAGS ...`: the next segment that we send.
    pub(crate) fn expect(&mut self, words: &[&str]) -> Outcome {
        let since = self.world().now;
        let (earliest, latest) = timing(words)?;
        if self.world().network.sent.is_empty() {
            if let Some(latest) = latest {
                self.world().advance_to_output(latest)?;
            }
            let now = self.world().now;
            if self.world().network.sent.is_empty() {
                let next = self.world().endpoint.next_deadline();
                let next = next.map_or("there is no deadline".to_owned(), |at| {
                    format!(
                        "the next deadline is {:?} away",
                        Duration::from_nanos(at.as_nanos().saturating_sub(now))
                    )
                });
                return Err(format!("we sent nothing; {next}"));
            }
        }
        let Some(sent) = self.world().network.sent.pop_front() else {
            return Err("we sent nothing".to_owned());
        };
        let text = self.describe(&sent);
        self.note(text.clone());
        let before = self.flow().nxt;
        let wrong = |why: String| format!("{why}\n  we sent: {text}");
        let addresses = (self.flow().local, self.flow().remote);
        if (sent.local, sent.remote) != addresses {
            return Err(wrong(format!("another connection sends, not {addresses:?}")));
        }
        self.take_note(&sent).map_err(wrong)?;
        let passed = Duration::from_nanos(sent.at.saturating_sub(since));
        if passed < earliest {
            return Err(wrong(format!(
                "it came after {passed:?}, expected after {earliest:?} at the earliest"
            )));
        }
        if let Some(latest) = latest
            && passed > latest
        {
            return Err(wrong(format!("it came after {passed:?}, expected within {latest:?}")));
        }
        self.compare(words, &sent, before).map_err(wrong)
    }

    fn compare(&mut self, words: &[&str], sent: &Sent, before: u32) -> Outcome {
        let mut words = words.iter().copied();
        let (must, may) = flags(words.next().ok_or("we FLAGS ...")?)?;
        let header = &sent.header;
        let got = header.flags.without(Flags::PSH).without(may);
        if got != must.without(Flags::PSH) {
            return Err(format!("the flags are {:?}", header.flags));
        }
        let flow = self.flow();
        let seq = header.seq.0.wrapping_sub(flow.our_isn.unwrap_or(0));
        let ack = header.ack.0.wrapping_sub(flow.peer_isn);
        let window = flow.our_window(header);
        let (mut expected_seq, mut len_seen) = (Some(before), false);
        if must.contains(Flags::RST) {
            expected_seq = None;
        }
        if must.contains(Flags::SYN) {
            expected_seq = Some(0);
        }
        let says = |what: &str, got: String, expected: &str| -> Outcome {
            if got == expected { Ok(()) } else { Err(format!("{what} is {got}, expected {expected}")) }
        };
        while let Some(word) = words.next() {
            let mut next = || words.next().ok_or_else(|| format!("{word} what?"));
            match word {
                "seq" => {
                    expected_seq = match next()? {
                        "any" => None,
                        number => Some(self.number(number)?),
                    }
                }
                "ack" => {
                    let expected = self.number(next()?)?;
                    if !header.flags.contains(Flags::ACK) {
                        return Err("there is no ACK".to_owned());
                    }
                    says("the acknowledgement", show(ack), &show(expected))?;
                }
                "len" => {
                    len_seen = true;
                    in_range("the length", sent.payload.len() as u64, next()?)?;
                }
                "wnd" => in_range("the window", window.into(), next()?)?,
                "mss" => {
                    let got = header.options.mss.map_or("none".to_owned(), |mss| mss.to_string());
                    says("MSS", got, next()?)?;
                }
                "wscale" => {
                    let got =
                        header.options.window_scale.map_or("none".to_owned(), |shift| shift.to_string());
                    let expected = next()?;
                    if expected == "any" {
                        if got == "none" {
                            return Err("there is no window scale".to_owned());
                        }
                    } else {
                        says("the window scale", got, expected)?;
                    }
                }
                "sackok" | "no-sackok" => {
                    if header.options.sack_permitted != (word == "sackok") {
                        return Err(format!("{word} does not hold"));
                    }
                }
                "ts" | "no-ts" => {
                    if header.options.timestamps.is_some() != (word == "ts") {
                        return Err(format!("{word} does not hold"));
                    }
                }
                "echo" => {
                    let expected = match next()? {
                        "auto" => self.flow().peer_ts,
                        name => match self.flow().marks.get(name) {
                            Some(&value) => value,
                            None => name.parse().map_err(|_| "echo NUMBER|auto|NAME")?,
                        },
                    };
                    let got = header.options.timestamps.map(|ts| ts.echo).ok_or("there are no timestamps")?;
                    says("the echo", got.to_string(), &expected.to_string())?;
                }
                "sack" => {
                    let got: Vec<String> = header
                        .options
                        .sack
                        .as_slice()
                        .iter()
                        .map(|block| {
                            let peer_isn = self.flow().peer_isn;
                            let relative = |n: SeqNumber| show(n.0.wrapping_sub(peer_isn));
                            format!("{}..{}", relative(block.start), relative(block.end))
                        })
                        .collect();
                    let got = if got.is_empty() { "none".to_owned() } else { got.join(",") };
                    says("SACK", got, next()?)?;
                }
                "uto" => {
                    let got =
                        header.options.user_timeout.map_or("none".to_owned(), |uto| uto.seconds.to_string());
                    says("the user timeout", got, next()?)?;
                }
                "ect" | "not-ect" => {
                    if sent.ect != (word == "ect") {
                        return Err(format!("{word} does not hold"));
                    }
                }
                "psh" | "no-psh" => {
                    if header.flags.contains(Flags::PSH) != (word == "psh") {
                        return Err(format!("{word} does not hold"));
                    }
                }
                "as" => {
                    let name = next()?.to_owned();
                    let value = header.options.timestamps.map_or(0, |ts| ts.value);
                    self.flow().marks.insert(name, value);
                }
                "after" | "within" => {
                    next()?;
                }
                other => return Err(format!("we: {other}?")),
            }
        }
        if let Some(expected) = expected_seq {
            says("the sequence number", show(seq), &show(expected))?;
        }
        if !len_seen && !sent.payload.is_empty() {
            return Err(format!("it carries {} bytes, expected none", sent.payload.len()));
        }
        Ok(())
    }

    /// `we-stream A..B [in DURATION]`: data from A up to B in order, in segments of any size, each once.
    pub(crate) fn expect_stream(&mut self, words: &[&str]) -> Outcome {
        let (range, limit) = match words {
            [range] => (range, None),
            [range, "in", limit] => (range, Some(duration(limit)?)),
            _ => return Err("we-stream A..B [in DURATION]".to_owned()),
        };
        let (from, to) = range.split_once("..").ok_or("we-stream A..B")?;
        let (mut at, to) = (self.number(from)?, self.number(to)?);
        let end = self.world().now + limit.unwrap_or(Duration::ZERO).as_nanos() as u64;
        while at != to {
            if self.world().network.sent.is_empty() {
                let left = Duration::from_nanos(end.saturating_sub(self.world().now));
                self.world().advance_to_output(left)?;
            }
            let Some(sent) = self.world().network.sent.pop_front() else {
                return Err(format!("we sent nothing beyond {}", show(at)));
            };
            let text = self.describe(&sent);
            self.note(text.clone());
            self.take_note(&sent).map_err(|why| format!("{why}\n  we sent: {text}"))?;
            let seq = sent.header.seq.0.wrapping_sub(self.flow().our_isn.unwrap_or(0));
            if seq != at || sent.payload.is_empty() {
                return Err(format!("expected data from {}\n  we sent: {text}", show(at)));
            }
            at = at.wrapping_add(sent.payload.len() as u32);
            if (at.wrapping_sub(to) as i32) > 0 {
                return Err(format!("expected data up to {}\n  we sent: {text}", show(to)));
            }
        }
        Ok(())
    }

    /// Lets the flow of a segment of ours check and remember it.
    pub(crate) fn take_note(&mut self, sent: &Sent) -> Outcome {
        let current = self.flow();
        if (current.local, current.remote) == (sent.local, sent.remote) {
            return current.on_ours(sent);
        }
        match self.flows.values_mut().find(|flow| (flow.local, flow.remote) == (sent.local, sent.remote)) {
            Some(flow) => flow.on_ours(sent),
            None => Err(format!("no flow goes from {} to {}", sent.local, sent.remote)),
        }
    }

    /// A segment of ours in words.
    pub(crate) fn describe(&mut self, sent: &Sent) -> String {
        let mut text = self.text(false, &sent.header, sent.payload.len());
        if sent.ect {
            text.push_str(" ect");
        }
        let known = self.flow();
        let (local, remote): (SocketAddr, SocketAddr) = (known.local, known.remote);
        if (local, remote) != (sent.local, sent.remote) {
            let _ = write!(text, " ({} to {})", sent.local, sent.remote);
        }
        text
    }

    fn text(&mut self, peer: bool, header: &Header, len: usize) -> String {
        let now = self.world().now;
        let start = self.start;
        let flow = self.flow();
        let (own, other) = if peer {
            (flow.peer_isn, flow.our_isn.unwrap_or(0))
        } else {
            (flow.our_isn.unwrap_or(0), flow.peer_isn)
        };
        let mut text =
            format!("{:>11.6} {} ", (now - start) as f64 / 1e9, if peer { "peer" } else { "we  " });
        let names: Vec<&str> =
            NAMES.iter().filter(|(_, f)| header.flags.contains(*f)).map(|(name, _)| *name).collect();
        let _ = write!(text, "{} seq {}", names.join(","), show(header.seq.0.wrapping_sub(own)));
        if header.flags.contains(Flags::ACK) {
            let _ = write!(text, " ack {}", show(header.ack.0.wrapping_sub(other)));
        }
        let _ = write!(text, " len {len} wnd {}", header.window);
        let options = &header.options;
        if let Some(mss) = options.mss {
            let _ = write!(text, " mss {mss}");
        }
        if let Some(shift) = options.window_scale {
            let _ = write!(text, " wscale {shift}");
        }
        if options.sack_permitted {
            text.push_str(" sackok");
        }
        if let Some(ts) = options.timestamps {
            let _ = write!(text, " ts {} echo {}", ts.value, ts.echo);
        }
        for block in options.sack.as_slice() {
            let relative = |n: SeqNumber| show(n.0.wrapping_sub(other));
            let _ = write!(text, " sack {}..{}", relative(block.start), relative(block.end));
        }
        text
    }
}

/// When a segment is expected: not before, and not after (`None`: now).
fn timing(words: &[&str]) -> Result<(Duration, Option<Duration>), String> {
    for pair in words.windows(2) {
        match pair {
            ["after", text] => {
                return match text.split_once("..") {
                    Some((from, to)) => Ok((duration(from)?, Some(duration(to)?))),
                    None => {
                        // A timer has a grain, and its rounding is up.
                        let at = duration(text)?;
                        Ok((at, Some(at + at / 50 + Duration::from_millis(2))))
                    }
                };
            }
            ["within", text] => return Ok((Duration::ZERO, Some(duration(text)?))),
            _ => {}
        }
    }
    Ok((Duration::ZERO, None))
}

/// `N`, `A..B` (both included), `>=N`, `<=N`.
pub(crate) fn in_range(what: &str, got: u64, expected: &str) -> Outcome {
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text} is not a number"));
    let holds = if let Some(least) = expected.strip_prefix(">=") {
        got >= number(least)?
    } else if let Some(most) = expected.strip_prefix("<=") {
        got <= number(most)?
    } else if let Some((least, most)) = expected.split_once("..") {
        (number(least)?..=number(most)?).contains(&got)
    } else {
        got == number(expected)?
    };
    if holds { Ok(()) } else { Err(format!("{what} is {got}, expected {expected}")) }
}

fn hex(text: &str) -> Result<Vec<u8>, String> {
    (0..text.len())
        .step_by(2)
        .map(|at| {
            text.get(at..at + 2)
                .and_then(|pair| u8::from_str_radix(pair, 16).ok())
                .ok_or_else(|| format!("raw {text}?"))
        })
        .collect()
}
