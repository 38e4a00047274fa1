//! The scripted peer's view of one connection, and the rules that every segment of ours must keep to, in any script.

use core::net::SocketAddr;
use std::collections::BTreeMap;

use shouter_netstack::tcp::ConnectionId;
use shouter_netstack::wire::tcp::{Flags, Header};

/// A byte of our stream, by its offset: known to both ends.
pub(crate) fn our_byte(offset: u64) -> u8 {
    (offset.wrapping_mul(131) ^ (offset >> 8)) as u8
}

/// A byte of the peer's stream, by its offset.
pub(crate) fn peer_byte(offset: u64) -> u8 {
    (offset.wrapping_mul(29) ^ (offset >> 7)) as u8 ^ 0x5a
}

/// A segment that left.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// Nanoseconds of virtual time.
    pub(crate) at: u64,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) ect: bool,
    pub(crate) header: Header,
    /// Bytes of the header's options, as they are on the wire.
    pub(crate) raw_options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

/// One pair of addresses. Numbers called relative count from an initial sequence number, so that SYN is 0.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) id: Option<ConnectionId>,
    pub(crate) our_isn: Option<u32>,
    /// Our initial sequence number of the connection before, between the same addresses.
    pub(crate) last_isn: Option<u32>,
    pub(crate) peer_isn: u32,
    /// One after the highest number that we sent, relative.
    pub(crate) nxt: u32,
    /// The acknowledgement number that we sent last, relative.
    pub(crate) rcv: u32,
    /// The highest right edge of our window that we announced, relative.
    pub(crate) edge: Option<u32>,
    /// One after the highest number that the peer sent, relative.
    pub(crate) peer_nxt: u32,
    /// The highest acknowledgement that the peer sent, relative.
    pub(crate) peer_ack: u32,
    /// The right edge of the peer's window, as we may have seen it at its farthest, relative.
    pub(crate) peer_edge: u32,
    /// The peer's window field, for segments that name none.
    pub(crate) window: u16,
    our_syn: Option<Header>,
    pub(crate) peer_syn: Option<Header>,
    /// Our latest timestamp, and when it was sent.
    pub(crate) last_ts: Option<u32>,
    last_ts_at: u64,
    /// Timestamps of ours that a script has given names.
    pub(crate) marks: BTreeMap<String, u32>,
    /// The peer's latest timestamp.
    pub(crate) peer_ts: u32,
    /// Bytes written and read by the user.
    pub(crate) written: u64,
    pub(crate) read: u64,
    pub(crate) mtu: u16,
}

impl Flow {
    pub(crate) fn new(local: SocketAddr, remote: SocketAddr, peer_isn: u32) -> Self {
        Self {
            local,
            remote,
            id: None,
            our_isn: None,
            last_isn: None,
            peer_isn,
            nxt: 0,
            rcv: 0,
            edge: None,
            peer_nxt: 0,
            peer_ack: 0,
            peer_edge: 0,
            window: 65535,
            our_syn: None,
            peer_syn: None,
            last_ts: None,
            last_ts_at: 0,
            marks: BTreeMap::new(),
            peer_ts: 0,
            written: 0,
            read: 0,
            mtu: 1500,
        }
    }

    /// Whether both SYNs had timestamps.
    pub(crate) fn timestamps(&self) -> bool {
        self.both(|header| header.options.timestamps.is_some())
    }

    fn both(&self, test: impl Fn(&Header) -> bool) -> bool {
        self.our_syn.as_ref().is_some_and(&test) && self.peer_syn.as_ref().is_some_and(&test)
    }

    fn scaling(&self) -> bool {
        self.both(|header| header.options.window_scale.is_some())
    }

    /// The window in bytes that a header of ours announces.
    pub(crate) fn our_window(&self, header: &Header) -> u32 {
        let shift = match self.our_syn {
            Some(syn) if self.scaling() && !header.flags.contains(Flags::SYN) => {
                syn.options.window_scale.unwrap_or(0)
            }
            _ => 0,
        };
        u32::from(header.window) << shift
    }

    fn peer_window(&self, header: &Header) -> u32 {
        let shift = match self.peer_syn {
            Some(syn) if self.scaling() && !header.flags.contains(Flags::SYN) => {
                // A shift above 14 is taken for 14 (RFC 7323 section 2.3).
                syn.options.window_scale.unwrap_or(0).min(14)
            }
            _ => 0,
        };
        u32::from(header.window) << shift
    }

    /// Takes note of a segment of the peer.
    pub(crate) fn on_peer(&mut self, header: &Header, len: u32) {
        let flags = header.flags;
        if flags.contains(Flags::RST) {
            return;
        }
        if flags.contains(Flags::SYN) && self.peer_syn.is_none() {
            self.peer_syn = Some(*header);
        }
        let seq = header.seq.0.wrapping_sub(self.peer_isn);
        let end = seq.wrapping_add(len + occupied(flags));
        if (end.wrapping_sub(self.peer_nxt) as i32) > 0 {
            self.peer_nxt = end;
        }
        if let Some(isn) = self.our_isn
            && flags.contains(Flags::ACK)
        {
            let ack = header.ack.0.wrapping_sub(isn);
            if (ack.wrapping_sub(self.nxt) as i32) <= 0 {
                if (ack.wrapping_sub(self.peer_ack) as i32) > 0 {
                    self.peer_ack = ack;
                }
                let edge = ack.wrapping_add(self.peer_window(header));
                if (edge.wrapping_sub(self.peer_edge) as i32) > 0 {
                    self.peer_edge = edge;
                }
            }
        }
    }

    /// Checks a segment of ours against the invariants, and takes note of it.
    ///
    /// # Errors
    /// The fault, and the rule.
    pub(crate) fn on_ours(&mut self, sent: &Sent) -> Result<(), String> {
        let header = &sent.header;
        let flags = header.flags;
        let (syn, rst) = (flags.contains(Flags::SYN), flags.contains(Flags::RST));
        if syn && self.our_isn.is_none() {
            self.our_isn = Some(header.seq.0);
            self.our_syn = Some(*header);
            if flags.contains(Flags::ACK)
                && let Some(peer) = self.peer_syn
            {
                self.peer_edge = 1 + u32::from(peer.window);
            }
        }
        let rule = |ok: bool, what: &str| if ok { Ok(()) } else { Err(what.to_owned()) };
        rule(
            flags.0 & 0x07 != 0 || flags.contains(Flags::ACK),
            "a segment has SYN, FIN, RST or ACK (RFC 9293 section 3.10.7.4)",
        )?;
        rule(
            header.options.mss.is_none() || syn,
            "the option MSS is on SYN only (RFC 9293 section 3.7.1, MUST-65)",
        )?;
        rule(
            (header.options.window_scale.is_none() && !header.options.sack_permitted) || syn,
            "window scale and SACK-permitted are on SYN only (RFC 7323 section 2.2, RFC 2018 section 2)",
        )?;
        rule(
            option_lengths(&sent.raw_options),
            "options have their lengths and are padded with zeros or NOP (RFC 9293 section 3.1, MUST-68, MUST-69)",
        )?;
        rule(header.urgent == 0 || flags.contains(Flags::URG), "no urgent pointer without URG")?;
        if rst {
            return rule(sent.payload.is_empty(), "our resets carry no data");
        }
        let Some(isn) = self.our_isn else { return Ok(()) };
        let known = syn || self.our_syn.is_some();
        if known && !syn && self.timestamps() {
            rule(
                header.options.timestamps.is_some(),
                "every segment has timestamps once they are agreed (RFC 7323 section 3.2)",
            )?;
        }
        if !syn && !self.timestamps() {
            rule(
                header.options.timestamps.is_none(),
                "no timestamps unless both SYNs had them (RFC 7323 section 3.2)",
            )?;
        }
        if !self.both(|header| header.options.sack_permitted) {
            rule(
                header.options.sack.is_empty(),
                "no SACK unless both SYNs permitted it (RFC 2018 section 2)",
            )?;
        }
        if let Some(ts) = header.options.timestamps {
            // After 24 days the clock has gone half around, and "before" means nothing.
            let old = sent.at.saturating_sub(self.last_ts_at) > 20 * 24 * 3600 * 1_000_000_000;
            rule(
                old || self.last_ts.is_none_or(|last| (ts.value.wrapping_sub(last) as i32) >= 0),
                "our timestamps do not go back (RFC 7323 section 4.1)",
            )?;
            self.last_ts = Some(ts.value);
            self.last_ts_at = sent.at;
        }
        let seq = header.seq.0.wrapping_sub(isn);
        let len = sent.payload.len() as u32;
        for (index, byte) in sent.payload.iter().enumerate() {
            let offset = u64::from(seq.wrapping_sub(1).wrapping_add(index as u32));
            rule(
                *byte == our_byte(offset),
                &format!("the byte at sequence number {} is what was written there", offset + 1),
            )?;
        }
        let end = seq.wrapping_add(len + occupied(flags));
        if !syn && len > 0 {
            let limit = self.largest_payload(header, sent.raw_options.len());
            rule(
                len <= limit,
                &format!(
                    "a segment of {len} bytes is larger than {limit}, which MSS, MTU and options leave (RFC 9293 section \
                     3.7.1, MUST-16)"
                ),
            )?;
            let beyond = end.wrapping_sub(self.peer_edge) as i32;
            rule(
                beyond <= 0 || (beyond <= 1 && len <= 1) || (seq.wrapping_sub(self.nxt) as i32) < 0,
                &format!(
                    "new data up to {end} is beyond the peer's window, which ends at {}",
                    self.peer_edge
                ),
            )?;
        }
        if (end.wrapping_sub(self.nxt) as i32) > 0 {
            self.nxt = end;
        }
        if flags.contains(Flags::ACK) {
            let ack = header.ack.0.wrapping_sub(self.peer_isn);
            rule(
                (ack.wrapping_sub(self.peer_nxt) as i32) <= 0,
                &format!("{ack} is acknowledged, but the peer has sent only up to {}", self.peer_nxt),
            )?;
            rule(
                (ack.wrapping_sub(self.rcv) as i32) >= 0 || syn,
                &format!("acknowledgement {ack} is less than {}, sent before", self.rcv),
            )?;
            self.rcv = ack;
            let edge = ack.wrapping_add(self.our_window(header));
            if let Some(before) = self.edge {
                // A scaled window is rounded down, so the edge may seem to move by less than one unit.
                let unit = match self.our_syn {
                    Some(syn) if self.scaling() => 1i32 << syn.options.window_scale.unwrap_or(0),
                    _ => 1,
                };
                rule(
                    (edge.wrapping_sub(before) as i32) > -unit,
                    &format!(
                        "the window's right edge went back from {before} to {edge} (RFC 9293 section 3.8.6, SHLD-14)"
                    ),
                )?;
            }
            // The window in a SYN is not scaled and says little.
            if !syn || !self.scaling() {
                self.edge = Some(
                    self.edge.map_or(edge, |b| if (edge.wrapping_sub(b) as i32) > 0 { edge } else { b }),
                );
            }
        }
        Ok(())
    }

    /// The most payload that a segment with that header may have (RFC 9293 section 3.7.1).
    fn largest_payload(&self, _header: &Header, options: usize) -> u32 {
        let ip = if self.local.is_ipv4() { 20 } else { 40 };
        let default = if self.local.is_ipv4() { 536 } else { 1220 };
        let announced = self.peer_syn.as_ref().and_then(|syn| syn.options.mss).unwrap_or(default);
        let path = u32::from(self.mtu).saturating_sub(ip + 20);
        u32::from(announced).min(path).saturating_sub(options as u32)
    }
}

fn occupied(flags: Flags) -> u32 {
    u32::from(flags.contains(Flags::SYN)) + u32::from(flags.contains(Flags::FIN))
}

/// Whether options are a sequence of NOP and options with a length, then zeros.
fn option_lengths(mut bytes: &[u8]) -> bool {
    while let Some((&kind, rest)) = bytes.split_first() {
        match kind {
            0 => return rest.iter().all(|&b| b == 0),
            1 => bytes = rest,
            _ => match rest.first().map(|&len| usize::from(len)) {
                Some(len) if len >= 2 && len <= bytes.len() => bytes = &bytes[len..],
                _ => return false,
            },
        }
    }
    true
}
