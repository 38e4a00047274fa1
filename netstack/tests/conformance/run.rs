//! Runs the statements of a scenario.

use core::time::Duration;
use std::collections::BTreeMap;
use std::collections::VecDeque;

use shouter_netstack::region::Region;
use shouter_netstack::tcp::{
    Config, ConnectError, Error, Failure, ListenerId, Options, ReleaseToken, StateName, TcpEvent,
};
use shouter_netstack::wire::tcp::Header;

use super::language::Line;
use super::peer::{Flow, our_byte, peer_byte};
use super::settings;
use super::world::{PathState, World, address};

/// The port that scripts listen on, and that the peer listens on when we connect.
const SERVER_PORT: u16 = 80;

/// A failure, and its place.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) at: String,
    pub(crate) what: String,
    pub(crate) trace: Vec<String>,
}

/// A scenario as it runs.
pub(crate) struct Run {
    pub(crate) config: Config,
    pub(crate) options: Options,
    pub(crate) start: u64,
    pub(crate) ipv6: bool,
    pub(crate) peer_isn: u32,
    world: Option<World>,
    pub(crate) listener: Option<ListenerId>,
    pub(crate) flows: BTreeMap<u16, Flow>,
    pub(crate) flow: u16,
    /// Whether we open the connection.
    active: bool,
    /// Segments of the peer are not followed by a poll of ours until `go`.
    pub(crate) together: bool,
    pub(crate) trace: VecDeque<String>,
}

/// The outcome of a statement.
pub(crate) type Outcome = Result<(), String>;

/// Runs a scenario's statements.
///
/// # Errors
/// The first statement that did not hold.
pub(crate) fn run(lines: &[Line]) -> Result<(), Box<Problem>> {
    let mut run = Run::new();
    let mut last = String::new();
    for line in lines {
        last = format!("{}:{}: {}", line.file, line.number, line.text());
        run.note(format!("            | {last}"));
        if let Err(what) = run.statement(&line.words) {
            return Err(run.problem(last, what));
        }
    }
    match run.nothing_left() {
        Ok(()) => Ok(()),
        Err(what) => Err(run.problem(format!("after {last}"), what)),
    }
}

impl Run {
    fn new() -> Self {
        let mut options = Options::internet();
        // A scenario that is about it turns it on.
        options.mtu_probing = false;
        Self {
            config: Config::new([7; 32]),
            options,
            start: 1_000_000_000_000,
            ipv6: false,
            peer_isn: 700_000,
            world: None,
            listener: None,
            flows: BTreeMap::new(),
            flow: 1,
            active: false,
            together: false,
            trace: VecDeque::new(),
        }
    }

    fn problem(self, at: String, what: String) -> Box<Problem> {
        Box::new(Problem { at, what, trace: self.trace.into() })
    }

    pub(crate) fn note(&mut self, line: String) {
        if std::env::var_os("CONFORMANCE").is_some() {
            println!("{line}");
        }
        if self.trace.len() == 60 {
            self.trace.pop_front();
        }
        self.trace.push_back(line);
    }

    /// The endpoint; it is made with the first statement that needs it.
    pub(crate) fn world(&mut self) -> &mut World {
        let mut config = self.config.clone();
        config.options = self.options.clone();
        let start = self.start;
        self.world.get_or_insert_with(|| World::new(config, start))
    }

    pub(crate) fn started(&self) -> bool {
        self.world.is_some()
    }

    /// The flow that statements are about.
    pub(crate) fn flow(&mut self) -> &mut Flow {
        let (ipv6, number, isn, active) = (self.ipv6, self.flow, self.peer_isn, self.active);
        self.flows.entry(number).or_insert_with(|| {
            let (ours, peers) =
                if active { (50_000 + number, SERVER_PORT) } else { (SERVER_PORT, 40_000 + number) };
            Flow::new(address(ipv6, true, ours), address(ipv6, false, peers), isn)
        })
    }

    fn statement(&mut self, words: &[String]) -> Outcome {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (&verb, rest) = words.split_first().ok_or("an empty statement")?;
        match verb {
            "we" | "we-stream" | "drain" | "quiet" | "wait" => {}
            // The user's calls and the peer's segments come when all that we sent has been looked at.
            _ => self.nothing_left()?,
        }
        match verb {
            "option" | "config" | "family" | "peer-isn" | "isn-before-wrap" | "start" => {
                settings::set(self, verb, rest)
            }
            "path" => self.path(rest),
            "set" => self.modify(rest),
            "flow" => self.switch(rest),
            "again" => self.again(rest),
            "listen" => self.listen(rest),
            "stop-listening" => {
                let id = self.listener.take().ok_or("there is no listener")?;
                let now = self.world().now();
                self.world().endpoint.close_listener(now, id);
                self.pump()
            }
            "accept" => self.accept(rest),
            "connect" => self.connect(rest),
            "write" => self.write(rest),
            "write-extent" => self.write_extent(rest),
            "read" => self.read(rest),
            "shutdown" | "close" | "abort" => self.end(verb, rest),
            "event" | "no-event" => self.event(verb == "event", rest),
            "state" => self.state(rest),
            "gone" => self.gone(),
            "same" => self.same(rest),
            "isn" => self.isn(rest),
            "info" => self.info(rest),
            "peer" => self.peer(rest),
            "together" => {
                self.together = true;
                Ok(())
            }
            "go" => {
                self.together = false;
                self.pump()
            }
            "icmp" => self.icmp(rest),
            "we" => self.expect(rest),
            "we-stream" => self.expect_stream(rest),
            "drain" => self.drain(rest),
            "wait" => {
                let by = duration(rest.first().ok_or("wait DURATION")?)?;
                self.world().advance(by)
            }
            "quiet" => {
                self.nothing_left()?;
                if let Some(by) = rest.first() {
                    let by = duration(by)?;
                    if self.world().advance_to_output(by)? {
                        return self.nothing_left();
                    }
                }
                Ok(())
            }
            other => Err(format!("there is no statement {other}")),
        }
    }

    /// Polls the endpoint.
    pub(crate) fn pump(&mut self) -> Outcome {
        if self.together { Ok(()) } else { self.world().pump() }
    }

    /// Fails if we sent something that the script has not looked at.
    fn nothing_left(&mut self) -> Outcome {
        let Some(world) = &mut self.world else { return Ok(()) };
        let Some(sent) = world.network.sent.pop_front() else { return Ok(()) };
        let text = self.describe(&sent);
        // A broken invariant says more than that the segment is not expected.
        let broken = match self.take_note(&sent) {
            Ok(()) => String::new(),
            Err(why) => format!("; it also breaks a rule: {why}"),
        };
        Err(format!("nothing was expected, but we sent: {text}{broken}"))
    }

    fn drain(&mut self, words: &[&str]) -> Outcome {
        let mut number = 0;
        while let Some(sent) = self.world().network.sent.pop_front() {
            let text = self.describe(&sent);
            self.note(text);
            self.take_note(&sent)?;
            number += 1;
        }
        match words.first() {
            Some(range) => super::segments::in_range("the number of segments", number, range),
            None => Ok(()),
        }
    }

    fn path(&mut self, words: &[&str]) -> Outcome {
        let way = match words {
            ["mtu", mtu] => {
                let mtu = mtu.parse().map_err(|_| "path mtu BYTES")?;
                self.world().network.mtu = mtu;
                let local = self.flow().local.ip();
                self.world().endpoint.add_address(local, mtu);
                self.flow().mtu = mtu;
                return Ok(());
            }
            ["payload", bytes] => {
                self.world().network.max_payload = bytes.parse().map_err(|_| "path payload BYTES")?;
                return Ok(());
            }
            ["open"] => PathState::Open,
            ["full"] => PathState::NoRoom,
            ["none"] => PathState::NoRoute,
            _ => return Err("path mtu|payload|open|full|none".to_owned()),
        };
        self.world().network.path_state = way;
        self.pump()
    }

    fn modify(&mut self, words: &[&str]) -> Outcome {
        let id = self.id()?;
        let mut options = self.options.clone();
        settings::option(&mut options, words)?;
        let now = self.world().now();
        let mut change = Ok(());
        let result =
            self.world().endpoint.modify(now, id, |options| change = settings::option(options, words));
        change?;
        result.map_err(|why| format!("set: {why}"))?;
        self.pump()
    }

    fn switch(&mut self, words: &[&str]) -> Outcome {
        self.flow = words.first().and_then(|w| w.parse().ok()).ok_or("flow NUMBER")?;
        Ok(())
    }

    /// The same addresses, used anew.
    fn again(&mut self, words: &[&str]) -> Outcome {
        let isn = match words {
            [] => self.flow().peer_isn.wrapping_add(0x1000_0000),
            [relative] => {
                let relative = self.number(relative)?;
                self.flow().peer_isn.wrapping_add(relative)
            }
            _ => return Err("again [NUMBER]".to_owned()),
        };
        let number = self.flow;
        let old = self.flow();
        let mut new = Flow::new(old.local, old.remote, isn);
        new.mtu = old.mtu;
        new.peer_ts = old.peer_ts;
        new.last_isn = old.our_isn;
        self.flows.insert(number, new);
        Ok(())
    }

    fn listen(&mut self, words: &[&str]) -> Outcome {
        let mut backlog = 16;
        if let ["backlog", number] = words {
            backlog = number.parse().map_err(|_| "listen [backlog NUMBER]")?;
        }
        let local = address(self.ipv6, true, SERVER_PORT);
        let id =
            self.world().endpoint.listen(local, backlog, None).map_err(|why| format!("listen: {why}"))?;
        self.listener = Some(id);
        self.pump()
    }

    fn accept(&mut self, words: &[&str]) -> Outcome {
        let listener = self.listener.ok_or("there is no listener")?;
        let accepted = self.world().endpoint.accept(listener);
        self.pump()?;
        match (words, accepted) {
            (["nothing"], None) => Ok(()),
            (["nothing"], Some((_, from))) => Err(format!("there is a connection from {from}")),
            (_, None) => Err("there is nothing to accept".to_owned()),
            (_, Some((id, from))) => {
                let flow = self.flow();
                if flow.remote != from {
                    return Err(format!("accepted {from}, expected {}", flow.remote));
                }
                flow.id = Some(id);
                Ok(())
            }
        }
    }

    fn connect(&mut self, words: &[&str]) -> Outcome {
        self.active = true;
        let (local, remote) = match words {
            ["to", remote, "fails"] => {
                let remote = remote.parse().map_err(|_| "connect to ADDRESS fails")?;
                let local = address(matches!(remote, core::net::SocketAddr::V6(_)), true, 50_999);
                let now = self.world().now();
                return match self.world().endpoint.connect(now, local, remote, None) {
                    Err(ConnectError::BadRemote { .. }) => Ok(()),
                    other => Err(format!("connect: {other:?}")),
                };
            }
            _ => {
                let flow = self.flow();
                (flow.local, flow.remote)
            }
        };
        let now = self.world().now();
        let result = self.world().endpoint.connect(now, local, remote, None);
        self.pump()?;
        match (words, result) {
            ([], Ok(id)) => {
                self.flow().id = Some(id);
                Ok(())
            }
            (["in-use"], Err(ConnectError::InUse { .. })) => Ok(()),
            (["too-many"], Err(ConnectError::TooMany { .. })) => Ok(()),
            (_, other) => Err(format!("connect: {other:?}")),
        }
    }

    pub(crate) fn id(&mut self) -> Result<shouter_netstack::tcp::ConnectionId, String> {
        self.flow().id.ok_or_else(|| "the user has no connection here".to_owned())
    }

    fn write(&mut self, words: &[&str]) -> Outcome {
        let id = self.id()?;
        let (len, expected) = match words {
            [len] => (number_of(len)?, Ok(number_of(len)?)),
            [len, "takes", taken] => (number_of(len)?, Ok(number_of(taken)?)),
            [len, "takes-some"] => {
                let bytes = self.stream(number_of(len)?);
                let now = self.world().now();
                let taken = self.world().endpoint.write(now, id, &bytes).map_err(|why| why.to_string())?;
                if taken == 0 || taken > bytes.len() {
                    return Err(format!("write took {taken} bytes of {}", bytes.len()));
                }
                self.flow().written += taken as u64;
                return self.pump();
            }
            [len, "fails", why @ ..] => (number_of(len)?, Err(why)),
            _ => return Err("write LEN [takes LEN|takes-some|fails WHY]".to_owned()),
        };
        let bytes = self.stream(len);
        let now = self.world().now();
        let result = self.world().endpoint.write(now, id, &bytes);
        self.pump()?;
        match (result, expected) {
            (Ok(taken), Ok(expected)) if taken == expected => {
                self.flow().written += taken as u64;
                Ok(())
            }
            (Err(error), Err(why)) if is_error(&error, why) => Ok(()),
            (result, _) => Err(format!("write: {result:?}")),
        }
    }

    fn stream(&mut self, len: usize) -> Vec<u8> {
        let from = self.flow().written;
        (from..from + len as u64).map(our_byte).collect()
    }

    fn write_extent(&mut self, words: &[&str]) -> Outcome {
        let [len, token] = words else { return Err("write-extent LEN TOKEN".to_owned()) };
        let (id, len) = (self.id()?, number_of(len)?);
        let token = ReleaseToken(token.parse().map_err(|_| "write-extent LEN TOKEN")?);
        let bytes: &'static [u8] = self.stream(len).leak();
        let extent = Region::from_static(bytes).extent(0, len as u32).ok_or("the extent")?;
        let now = self.world().now();
        let result = self.world().endpoint.write_extent(now, id, extent, token);
        result.map_err(|why| format!("write-extent: {why}"))?;
        self.flow().written += len as u64;
        self.pump()
    }

    fn read(&mut self, words: &[&str]) -> Outcome {
        let id = self.id()?;
        let now = self.world().now();
        let (&what, rest) = words.split_first().ok_or("read LEN|end|fails WHY")?;
        let want = match what {
            "end" | "fails" => 1,
            len => number_of(len)?,
        };
        let mut got = Vec::new();
        let last = loop {
            let mut buffer = vec![0; want - got.len()];
            match self.world().endpoint.read(now, id, &mut buffer) {
                Ok(0) => break Ok(()),
                Ok(len) if len > buffer.len() => return Err(format!("read says {len} bytes")),
                Ok(len) => got.extend_from_slice(&buffer[..len]),
                Err(why) => break Err(why),
            }
            if got.len() == want {
                break Ok(());
            }
        };
        self.pump()?;
        let from = self.flow().read;
        if let Some(at) = got.iter().zip(from..).position(|(&byte, offset)| byte != peer_byte(offset)) {
            return Err(format!(
                "the byte at {} of the stream is not what the peer sent there",
                from + at as u64
            ));
        }
        self.flow().read += got.len() as u64;
        match (what, last) {
            ("end", Ok(())) if got.is_empty() => Ok(()),
            ("fails", Err(error)) if got.is_empty() && is_error(&error, rest) => Ok(()),
            ("end" | "fails", last) => Err(format!("read: {} bytes, {last:?}", got.len())),
            (_, _) if got.len() == want => Ok(()),
            (_, last) => Err(format!("read: {} bytes of {want}, then {last:?}", got.len())),
        }
    }

    fn end(&mut self, verb: &str, words: &[&str]) -> Outcome {
        let id = self.id()?;
        let now = self.world().now();
        let endpoint = &mut self.world().endpoint;
        let result = match verb {
            "shutdown" => endpoint.shutdown(now, id),
            "close" => {
                endpoint.close(now, id);
                Ok(())
            }
            _ => {
                endpoint.abort(now, id);
                Ok(())
            }
        };
        self.pump()?;
        match (words, result) {
            ([], Ok(())) | (["any"], _) => Ok(()),
            (["fails", why @ ..], Err(error)) if is_error(&error, why) => Ok(()),
            (_, other) => Err(format!("{verb}: {other:?}")),
        }
    }

    fn event(&mut self, wanted: bool, words: &[&str]) -> Outcome {
        let (&name, rest) = words.split_first().ok_or("event NAME")?;
        let id = self.flows.get(&self.flow).and_then(|flow| flow.id);
        let matches = |event: &TcpEvent| match (name, event) {
            ("acceptable", TcpEvent::Acceptable(_)) => true,
            ("connected", TcpEvent::Connected(c))
            | ("readable", TcpEvent::Readable(c))
            | ("writable", TcpEvent::Writable(c))
            | ("closed", TcpEvent::Closed(c)) => id.is_none_or(|id| id == *c),
            ("released", TcpEvent::Released(c, token)) | ("dropped", TcpEvent::Dropped(c, token)) => {
                id.is_none_or(|id| id == *c) && rest == [token.0.to_string()]
            }
            ("failed", TcpEvent::Failed(c, failure)) => {
                id.is_none_or(|id| id == *c) && (rest.is_empty() || is_failure(failure, rest))
            }
            _ => false,
        };
        let events = &mut self.world().events;
        match (events.iter().position(matches), wanted) {
            (Some(at), true) => {
                events.drain(..=at);
                Ok(())
            }
            (None, true) => Err(format!("no event {}; there are {events:?}", words.join(" "))),
            (Some(_), false) => Err(format!("there is an event {}: {events:?}", words.join(" "))),
            (None, false) => Ok(()),
        }
    }

    fn state(&mut self, words: &[&str]) -> Outcome {
        let names = words.first().ok_or("state NAME")?;
        let id = self.id()?;
        let state = self.world().endpoint.info(id).map(|info| info.state);
        let name = match state {
            None => "gone".to_owned(),
            Some(state) => state_name(state),
        };
        if names.split('|').any(|expected| expected == name) {
            Ok(())
        } else {
            Err(format!("the state is {name}"))
        }
    }

    /// Nothing is left of the connection: neither for the user nor for the peer.
    fn gone(&mut self) -> Outcome {
        if let Some(id) = self.flow().id
            && let Some(info) = self.world().endpoint.info(id)
            && info.state != StateName::Closed
        {
            return Err(format!("the state is {}", state_name(info.state)));
        }
        Ok(())
    }

    /// Two numbers are equal.
    fn same(&mut self, words: &[&str]) -> Outcome {
        let [left, right] = words else { return Err("same NUMBER NUMBER".to_owned()) };
        let (left, right) = (self.number(left)?, self.number(right)?);
        if left == right { Ok(()) } else { Err(format!("they are {left} and {right}")) }
    }

    /// How our initial sequence numbers relate.
    fn isn(&mut self, words: &[&str]) -> Outcome {
        let own = self.flow().our_isn.ok_or("we have sent no SYN")?;
        let (distance, range) = match words {
            ["since-last", range] => {
                let before = self.flow().last_isn.ok_or("there was no connection before")?;
                (own.wrapping_sub(before), range)
            }
            ["after", flow, range] => {
                let flow: u16 = flow.parse().map_err(|_| "isn after FLOW A..B")?;
                let other = self.flows.get(&flow).and_then(|flow| flow.our_isn).ok_or("no such flow")?;
                (own.wrapping_sub(other), range)
            }
            _ => return Err("isn since-last A..B, or isn after FLOW A..B".to_owned()),
        };
        super::segments::in_range("the distance", distance.into(), range)
    }

    fn info(&mut self, words: &[&str]) -> Outcome {
        let [field, compare, value] = words else { return Err("info FIELD =|>=|<= VALUE".to_owned()) };
        let id = self.id()?;
        let info = self.world().endpoint.info(id).ok_or("the endpoint does not know the connection")?;
        let value = match *value {
            "none" => u64::MAX,
            "true" => 1,
            "false" => 0,
            value => value.parse().or_else(|_| duration(value).map(|d| d.as_nanos() as u64))?,
        };
        let nanos = |d: Duration| d.as_nanos() as u64;
        let got = match *field {
            "unacknowledged" => info.unacknowledged as u64,
            "in-flight" => info.in_flight as u64,
            "writable" => info.writable as u64,
            "readable" => info.readable as u64,
            "srtt" => info.srtt.map_or(u64::MAX, nanos),
            "min-rtt" => info.min_rtt.map_or(u64::MAX, nanos),
            "rto" => nanos(info.rto),
            "window" => info.congestion_window,
            "threshold" => info.slow_start_threshold,
            "mss" => info.mss.into(),
            "peer-window" => info.peer_window.into(),
            "own-window" => info.own_window.into(),
            "our-shift" => info.window_shifts.map_or(u64::MAX, |(own, _)| own.into()),
            "peer-shift" => info.window_shifts.map_or(u64::MAX, |(_, peer)| peer.into()),
            "timestamps" => info.timestamps.into(),
            "sack" => info.sack.into(),
            "ecn" => info.ecn.into(),
            "retransmitted" => info.retransmitted,
            "timeouts" => info.timeouts,
            "spurious" => info.spurious,
            "probes" => info.probes,
            "reordering" => nanos(info.reordering_window),
            "bytes-acked" => info.bytes_acked,
            "bytes-received" => info.bytes_received,
            other => return Err(format!("there is no field {other}")),
        };
        let holds = match *compare {
            "=" => got == value,
            ">=" => got >= value,
            "<=" => got <= value,
            _ => return Err("info FIELD =|>=|<= VALUE".to_owned()),
        };
        if holds { Ok(()) } else { Err(format!("{field} is {got}")) }
    }

    /// A number: an integer, or one of the names that follow the flow, plus or minus an integer.
    pub(crate) fn number(&mut self, text: &str) -> Result<u32, String> {
        let end = text.char_indices().skip(1).find(|(_, c)| matches!(c, '+' | '-')).map(|(at, _)| at);
        let (base, offset) = text.split_at(end.unwrap_or(text.len()));
        let flow = self.flow();
        let base = match base {
            "rcv" => flow.rcv,
            "nxt" => flow.nxt,
            "sent" => flow.peer_nxt,
            "acked" => flow.peer_ack,
            "edge" => flow.edge.ok_or("we have announced no window yet")?,
            number => {
                let number: i64 = number.parse().map_err(|_| format!("{text} is not a number"))?;
                number as u32
            }
        };
        if offset.is_empty() {
            return Ok(base);
        }
        // `rcv+edge-1` is not of the language: one offset only.
        let offset: i64 = offset.parse().map_err(|_| format!("{text} is not a number"))?;
        Ok(base.wrapping_add(offset as u32))
    }

    /// Puts the start so that our first sequence number is `before` less than 2^32.
    pub(crate) fn start_before_wrap(&mut self, before: u32) -> Outcome {
        // The generator counts up once every four microseconds (RFC 6528), so a first try says how long to wait.
        let mut probe = Self::new();
        probe.config = self.config.clone();
        probe.options = self.options.clone();
        probe.ipv6 = self.ipv6;
        probe.start = self.start;
        probe.connect(&[])?;
        let sent = probe.world().network.sent.pop_front().ok_or("no SYN")?;
        let ahead = 0u32.wrapping_sub(before).wrapping_sub(sent.header.seq.0);
        self.start += u64::from(ahead) * 4000;
        Ok(())
    }

    /// The header of a segment that the peer sends, before the flow takes it in.
    pub(crate) fn on_peer(&mut self, header: &Header, len: u32) {
        self.flow().on_peer(header, len);
    }
}

pub(crate) fn number_of(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{text} is not a length"))
}

/// `10us`, `10ms`, `10s`, `10m`, `10h`; several after each other are added.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let at =
        text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(|| format!("{text} has no unit"))?;
    let (number, unit) = text.split_at(at);
    let number: f64 = number.parse().map_err(|_| format!("{text} is not a duration"))?;
    let unit = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("{text}: the units are us, ms, s, m, h")),
    };
    Ok(Duration::from_nanos((number * unit * 1e9).round() as u64))
}

fn is_error(error: &Error, words: &[&str]) -> bool {
    match (error, words) {
        (Error::WouldBlock, ["would-block"]) | (Error::Unknown, ["unknown"]) | (Error::Shut, ["shut"]) => {
            true
        }
        (Error::Failed(failure), rest) => is_failure(failure, rest),
        _ => false,
    }
}

fn is_failure(failure: &Failure, words: &[&str]) -> bool {
    if let (Failure::TimedOut { after, .. }, ["timed-out", after_what]) = (failure, words) {
        return duration(after_what) == Ok(*after);
    }
    matches!(
        (failure, words),
        (Failure::Refused { .. }, ["refused"])
            | (Failure::Reset { .. }, ["reset"])
            | (Failure::TimedOut { .. }, ["timed-out"])
            | (Failure::Unreachable { .. }, ["unreachable"])
            | (Failure::Aborted { .. }, ["aborted"])
    )
}

fn state_name(state: StateName) -> String {
    match state {
        StateName::Listen => "listen",
        StateName::SynSent => "syn-sent",
        StateName::SynReceived => "syn-received",
        StateName::Established => "established",
        StateName::FinWait1 => "fin-wait-1",
        StateName::FinWait2 => "fin-wait-2",
        StateName::CloseWait => "close-wait",
        StateName::Closing => "closing",
        StateName::LastAck => "last-ack",
        StateName::TimeWait => "time-wait",
        StateName::Closed => "closed",
    }
    .to_owned()
}
