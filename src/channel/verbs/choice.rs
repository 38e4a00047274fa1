//! Selects the RDMA device and port that lead to a peer.

use std::fmt;
use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};
use shouter_netstack::verbs::{self, Gid, GidKind, LinkLayer, PortInfo, PortState};

/// The addresses of a rank's RDMA ports, for the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reachable {
    /// The RoCE v2 GIDs of its active ports.
    pub gids: Vec<[u8; 16]>,
    /// The LIDs of its active ports on InfiniBand proper.
    pub lids: Vec<u16>,
}

impl fmt::Display for Reachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gids = self.gids.iter().map(|gid| Ipv6Addr::from(*gid).to_canonical().to_string());
        let lids = self.lids.iter().map(|lid| format!("LID {lid}"));
        let all: Vec<String> = gids.chain(lids).collect();
        if all.is_empty() { f.write_str("none") } else { f.write_str(&all.join(", ")) }
    }
}

/// The RDMA ports that this rank may use, and why there are no others.
#[derive(Clone, Debug, Default)]
pub struct PortSurvey {
    /// Active ports, each with its device's name.
    pub ports: Vec<(String, PortInfo)>,
    /// The faults of each of the others, or of all.
    pub problems: Vec<String>,
}

/// Looks for ports: of all devices (`auto`), of none (`none`), of the device named, or the one port named (`mlx5_0/1`).
pub fn survey(wanted: &str) -> PortSurvey {
    let mut found = PortSurvey::default();
    if wanted == "none" {
        found.problems.push("rdma_device = \"none\"".into());
        return found;
    }
    let devices = match verbs::devices() {
        Ok(devices) => devices,
        Err(why) => {
            found.problems.push(why.to_string());
            return found;
        }
    };
    let (name, number) = match wanted.split_once('/') {
        Some((name, number)) => (name, number.parse::<u8>().ok()),
        None => (wanted, None),
    };
    let known: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    if name != "auto" && !known.contains(&name) {
        found.problems.push(format!(
            "there is no RDMA device {name}; there are: {}; see `rdma link` and the key rdma_device",
            known.join(", ")
        ));
        return found;
    }
    for device in devices.iter().filter(|device| name == "auto" || device.name == name) {
        for port in device.ports.iter().filter(|port| number.is_none_or(|number| port.number == number)) {
            let called = format!("{}/{}", device.name, port.number);
            if port.state != PortState::Active {
                found.problems.push(format!(
                    "port {called} is {:?}, not active; set its interface up (`ip link set ... up`), see `rdma link`",
                    port.state
                ));
            } else if port.link_layer == LinkLayer::Ethernet && gids(port).is_empty() {
                found.problems.push(format!(
                    "port {called} has no RoCE v2 address; give its interface an IP address, and see that RoCE v2 is on"
                ));
            } else {
                found.ports.push((device.name.clone(), port.clone()));
            }
        }
    }
    if found.ports.is_empty() && found.problems.is_empty() {
        found.problems.push(format!("{wanted} has no such port; see `rdma link`"));
    }
    found
}

fn gids(port: &PortInfo) -> Vec<[u8; 16]> {
    port.gids.iter().filter(|gid| gid.kind == GidKind::RoceV2).map(|gid| gid.raw).collect()
}

impl PortSurvey {
    /// The addresses for the others.
    pub fn reachable(&self) -> Reachable {
        let of =
            |layer: LinkLayer| self.ports.iter().map(|(_, port)| port).filter(move |p| p.link_layer == layer);
        Reachable {
            gids: of(LinkLayer::Ethernet).flat_map(gids).collect(),
            lids: of(LinkLayer::InfiniBand).map(|port| port.lid).collect(),
        }
    }

    /// The port, by its place in `ports`, and the GID from which a peer is reached.
    pub fn way(&self, theirs: &Reachable) -> Option<(usize, Gid)> {
        self.ports.iter().enumerate().find_map(|(at, (_, port))| {
            if port.link_layer == LinkLayer::InfiniBand {
                // One subnet is assumed: LIDs do not lead out of it.
                let gid = port.gids.first().cloned();
                return gid.filter(|_| !theirs.lids.is_empty()).map(|gid| (at, gid));
            }
            let way = verbs::route(&port.gids, &theirs.gids);
            let way = way.inspect_err(|why| tracing::warn!(%why, "RDMA routes are not known"));
            way.ok().flatten().map(|(gid, _)| (at, gid))
        })
    }
}
