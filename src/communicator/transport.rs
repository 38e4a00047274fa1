//! The channels of a group's data, and the reasons: for people, and for `shouter_transport`.

use std::fmt;

use shouter_reducer::grid::{Grid, Rank};

/// How many ranks a reason names before it counts the others.
const NAMED: usize = 8;

/// The channels that carry a group's data on this host, and the reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transport {
    /// `local`; or `shm` within the host, and `verbs`, `rud`, `tcp` or `kernel` to other hosts, with `+` between, such as
    /// `shm+rud`.
    pub channels: String,
    /// A line for each choice: its purpose, the channel taken, and those passed over with the reason. Between hosts the
    /// first rank of each host chooses, and has the reasons.
    pub reasons: Vec<String>,
}

/// The channels, and below them each reason on a line of its own.
impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.channels)?;
        self.reasons.iter().try_for_each(|reason| write!(f, "\n{reason}"))
    }
}

/// What a group knows of the channels of its data.
#[derive(Clone)]
pub(super) struct ChannelFacts {
    pub(super) transport: Transport,
    /// The kind of this host's ports, on the rank that owns them.
    pub(super) device: Option<&'static str>,
    /// The channel to other hosts makes use of registered memory.
    pub(super) take_memory: bool,
}

impl Transport {
    /// Of a rank of this grid, whose leader uses `channels` to other hosts for those `reasons`, which only it has.
    pub(super) fn new(grid: &Grid, rank: Rank, channels: &str, reasons: Vec<String>) -> Self {
        let mut all = vec![];
        let locals = grid.locals(grid.node_of(rank));
        match locals {
            1 if grid.nodes() == 1 => all.push("local: the group has one rank".to_owned()),
            1 => {}
            ranks => all.push(format!("shm: the {ranks} ranks of this host share memory")),
        }
        let leader = grid.leader_of(grid.node_of(rank));
        if grid.nodes() > 1 && leader != rank {
            all.push(format!("{channels}: chosen by {leader}, the first of this host; its log says why"));
        }
        all.extend(reasons);
        let channels = match (locals > 1, grid.nodes() > 1) {
            (false, false) => "local".to_owned(),
            (true, false) => "shm".to_owned(),
            (false, true) => channels.to_owned(),
            (true, true) => format!("shm+{channels}"),
        };
        Self { channels, reasons: all }
    }
}

/// Ranks as a reason names them: `rank 4`, `ranks 4, 8`, `ranks 0, 1, 2, 3, 4, 5, 6, 7 and 120 more`.
pub(super) fn named(ranks: &[Rank]) -> String {
    if let [one] = ranks {
        return one.to_string();
    }
    let some: Vec<String> = ranks.iter().take(NAMED).map(|rank| rank.0.to_string()).collect();
    let more = ranks.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("ranks {}{more}", some.join(", "))
}

#[cfg(test)]
mod tests;
