//! The requirements of RFC 9293, appendix B, in a few words, and where those without a scenario stand.

/// A requirement.
pub(crate) struct Requirement {
    /// The RFC's name for it.
    pub(crate) id: &'static str,
    /// The behaviour that it requires.
    pub(crate) what: &'static str,
    /// Why there is no scenario.
    pub(crate) elsewhere: Option<&'static str>,
}

const fn scripted(id: &'static str, what: &'static str) -> Requirement {
    Requirement { id, what, elsewhere: None }
}

const fn elsewhere(id: &'static str, what: &'static str, why: &'static str) -> Requirement {
    Requirement { id, what, elsewhere: Some(why) }
}

const URGENT: &str = "not supported: urgent data is passed as ordinary data, and the user is not told of it (RFC 6093 \
                      advises against its use)";
const SOURCE_ROUTE: &str = "not supported: the IP layer ignores source routes of IPv4, refuses those of IPv6 (RFC 5095) and sends none";
const DIFFSERV: &str =
    "not supported: the Diffserv field is zero in all that is sent, and is not shown to the user";
const SOFT_ERRORS: &str = "not supported: there are no reports while a connection lasts. `Info` has the counts of time-outs; \
                           an ICMP error is the reason given when the connection fails";

/// All of them but those that only allow something (MAY).
pub(crate) const REQUIREMENTS: &[Requirement] = &[
    scripted("MUST-1", "the window is an unsigned number"),
    elsewhere("MUST-2", "the sender computes the checksum", "the layer below fills it in: the stack's tests"),
    elsewhere("MUST-3", "the receiver checks the checksum", "the layer below checks it: the stack's tests"),
    scripted("MUST-4", "the mandatory options are supported: end of list, no operation, MSS"),
    scripted("MUST-5", "options may come in any segment"),
    scripted("MUST-6", "unknown options are ignored"),
    scripted("MUST-7", "impossible option lengths do no harm"),
    scripted("MUST-8", "initial sequence numbers are driven by a clock"),
    elsewhere(
        "MUST-9",
        "they cannot be computed from outside",
        "the key is secret and the hash is SipHash: unit tests of the endpoint",
    ),
    scripted("MUST-10", "simultaneous open"),
    scripted("MUST-11", "SYN-RECEIVED remembers whether the open was passive"),
    scripted("MUST-12", "the application learns of an aborted connection"),
    scripted("MUST-13", "TIME-WAIT lasts for twice the segment lifetime"),
    scripted("MUST-14", "MSS is sent and received"),
    scripted("MUST-15", "the default MSS is 536, or 1220 on IPv6"),
    scripted("MUST-16", "the effective MSS is computed"),
    scripted("MUST-17", "Nagle's algorithm can be disabled"),
    scripted("MUST-18", "the retransmission time-out follows RFC 6298, with Karn's algorithm"),
    scripted("MUST-19", "exponential back-off, slow start, congestion avoidance"),
    scripted("MUST-20", "excessive retransmissions end the connection"),
    scripted("MUST-21", "the application can say when"),
    scripted("MUST-22", "the same holds for SYN"),
    scripted("MUST-23", "SYN is repeated for three minutes, if so set"),
    scripted("MUST-24", "keep-alive can be turned on for a connection"),
    scripted("MUST-25", "it is off by default"),
    scripted("MUST-26", "it probes only an idle connection"),
    scripted("MUST-27", "its interval can be set"),
    scripted("MUST-28", "its interval is two hours by default"),
    scripted("MUST-29", "a probe without an answer does not end the connection"),
    scripted("MUST-30", "segments with an urgent pointer are accepted"),
    scripted("MUST-31", "urgent data of any length"),
    elsewhere("MUST-32", "the application is told of urgent data", URGENT),
    elsewhere("MUST-33", "the application can learn how much of it there is", URGENT),
    scripted("MUST-34", "a peer that shrinks its window does no harm"),
    scripted("MUST-35", "a window that shrinks to zero is probed"),
    scripted("MUST-36", "zero windows are probed"),
    scripted("MUST-37", "a window may stay zero as long as probes are answered"),
    scripted("MUST-38", "the sender avoids silly windows"),
    scripted("MUST-39", "the receiver avoids silly windows"),
    scripted("MUST-40", "an acknowledgement waits for less than half a second"),
    scripted("MUST-41", "a passive open does not interfere with other connections"),
    scripted("MUST-42", "listening on a port that has a connection in its handshake"),
    scripted("MUST-43", "the local address can be given"),
    elsewhere(
        "MUST-44",
        "otherwise IP chooses it",
        "`Stack::tcp_connect` asks the routes: the stack's tests",
    ),
    scripted("MUST-45", "and it stays the same"),
    scripted("MUST-46", "broadcast and multicast addresses cannot be connected to"),
    elsewhere("MUST-47", "soft errors are reported", SOFT_ERRORS),
    elsewhere("MUST-48", "the Diffserv field can be set", DIFFSERV),
    elsewhere("MUST-49", "the TTL can be set", "not supported: all packets may take 64 hops"),
    elsewhere("MUST-50", "unknown IP options are ignored", "the IP layer's tests"),
    elsewhere("MUST-51", "source routes can be given", SOURCE_ROUTE),
    elsewhere("MUST-52", "and override received ones", SOURCE_ROUTE),
    elsewhere("MUST-53", "return routes are kept", SOURCE_ROUTE),
    scripted("MUST-54", "ICMP errors reach the connection"),
    elsewhere("MUST-55", "source quench is dropped", "the IP layer does not pass it on"),
    scripted("MUST-56", "soft errors do not abort a connection"),
    scripted("MUST-57", "segments to broadcast and multicast addresses are dropped"),
    scripted("MUST-58", "acknowledgements are aggregated"),
    scripted("MUST-59", "all queued segments are processed before an acknowledgement is sent"),
    scripted("MUST-60", "data is not held back for ever"),
    scripted("MUST-61", "PSH is on the last segment of what was written"),
    elsewhere(
        "MUST-62",
        "the urgent pointer that is sent points behind urgent data",
        "not supported: no urgent data is sent",
    ),
    scripted("MUST-63", "a SYN from an invalid address is dropped"),
    scripted("MUST-64", "options need not be aligned"),
    scripted("MUST-65", "MSS is only on SYN"),
    scripted("MUST-66", "RST and URG count even with a window of zero"),
    scripted("MUST-67", "the MSS announced follows from what can be received"),
    scripted("MUST-68", "options have lengths"),
    scripted("MUST-69", "the header is padded with zeros"),
    scripted("SHLD-1", "initial sequence numbers are keyed"),
    scripted("SHLD-2", "a RST that is received may carry data"),
    scripted("SHLD-3", "closing with data unread sends a RST"),
    scripted("SHLD-4", "timestamps shorten TIME-WAIT"),
    scripted("SHLD-5", "MSS is sent unless it is the default"),
    scripted("SHLD-6", "the MSS announced follows from the least MTU of the interface"),
    scripted("SHLD-7", "Nagle's algorithm"),
    scripted("SHLD-8", "ECN"),
    elsewhere("SHLD-9", "the application learns of trouble before the end", SOFT_ERRORS),
    elsewhere("SHLD-10", "R1 is at least three retransmissions", "not supported: nothing happens at R1"),
    scripted("SHLD-11", "R2 is at least 100 seconds"),
    scripted("SHLD-12", "keep-alive probes carry no data"),
    elsewhere("SHLD-13", "applications do not use urgent data", "there is no call for it"),
    scripted("SHLD-14", "the window does not shrink"),
    scripted("SHLD-15", "no new data goes out when the window has shrunk"),
    scripted("SHLD-16", "old data within the window is repeated"),
    scripted("SHLD-17", "data beyond the window does not time the connection out"),
    scripted("SHLD-18", "acknowledgements are delayed"),
    scripted("SHLD-19", "every second full segment is acknowledged"),
    elsewhere("SHLD-20", "error reports can be disabled", SOFT_ERRORS),
    elsewhere("SHLD-21", "the Diffserv field can be changed", DIFFSERV),
    elsewhere("SHLD-22", "the Diffserv field is passed on unchanged", DIFFSERV),
    elsewhere("SHLD-23", "applications do not change it while a connection lasts", DIFFSERV),
    elsewhere("SHLD-24", "a later source route overrides", SOURCE_ROUTE),
    elsewhere("SHLD-25", "the application learns of unreachable networks", SOFT_ERRORS),
    scripted("SHLD-26", "hard ICMP errors abort a connection (before it is synchronised: RFC 5461)"),
    scripted("SHLD-27", "PSH is collapsed"),
    scripted("SHLD-28", "segments are as large as possible"),
    scripted("SHLD-29", "the first probe follows after a time-out"),
    scripted("SHLD-30", "probes back off"),
    scripted("SHLD-31", "out-of-order segments are kept"),
    scripted("REC-1", "window arithmetic has 32 bits"),
];
