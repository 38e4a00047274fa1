//! What the fuzz targets do with their input. `cargo fuzz` and the replay test (`tests/fuzz.rs`) share it.

pub(crate) mod connection;
pub(crate) mod parsers;

/// What a target does with an input.
pub(crate) type Target = fn(&[u8]);

/// The targets: a name, which is also the corpus's folder, and what it does.
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
