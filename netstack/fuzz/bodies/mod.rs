//! The bodies of the fuzz targets. `cargo fuzz` and the replay test (`tests/fuzz.rs`) share them.

pub(crate) mod connection;
pub(crate) mod parsers;

/// A target's body, which runs one input.
pub(crate) type Target = fn(&[u8]);

/// The targets: a name, which is also the corpus's folder, and the body.
#[allow(dead_code)]
pub(crate) const TARGETS: &[(&str, Target)] = &[
    ("ethernet", parsers::ethernet),
    ("arp", parsers::arp),
    ("ipv4", parsers::ipv4),
    ("ipv6", parsers::ipv6),
    ("icmp", parsers::icmp),
    ("udp", parsers::udp),
    ("tcp", parsers::tcp),
    ("rud", parsers::rud),
    ("connection", connection::run),
];
