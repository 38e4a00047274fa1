//! Two network namespaces joined by a veth pair, made for one run and removed after it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

/// Two namespaces; removed on drop.
pub(super) struct Namespaces {
    names: [String; 2],
}

impl Namespaces {
    /// Makes the pair with the given MTU; needs root and iproute2. The error says which is missing.
    pub(super) fn create(mtu: u32) -> io::Result<Self> {
        let tag = std::process::id();
        let this = Self { names: [format!("shouter{tag}a"), format!("shouter{tag}b")] };
        for name in &this.names {
            ip(&["netns", "add", name])?;
        }
        let [a, b] = &this.names;
        let mtu = mtu.to_string();
        ip(&[
            "link", "add", "v0", "mtu", &mtu, "netns", a, "type", "veth", "peer", "name", "v0", "mtu", &mtu,
            "netns", b,
        ])?;
        for (index, name) in this.names.iter().enumerate() {
            ip(&["-n", name, "addr", "add", &format!("{}/24", address(index)), "dev", "v0"])?;
            ip(&["-n", name, "link", "set", "v0", "up"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        Ok(this)
    }

    /// The address of each side.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        (0..self.names.len()).map(|i| SocketAddr::new(IpAddr::V4(address(i)), 7100)).collect()
    }

    /// A command that runs `program` in the namespace of `rank`.
    pub(super) fn command(&self, rank: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[rank % self.names.len()]]).arg(program);
        command
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            if let Err(error) = ip(&["netns", "delete", name]) {
                tracing::debug!(%error, name, "a namespace was not there to be removed");
            }
        }
    }
}

fn address(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 78, 0, index as u8 + 1)
}

/// Runs `ip` with these arguments.
fn ip(args: &[&str]) -> io::Result<()> {
    let output = Command::new("ip").args(args).output().map_err(|e| {
        io::Error::new(e.kind(), format!("the command 'ip' does not run ({e}); install the package iproute2"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_string();
    Err(io::Error::other(format!("'ip {}' failed ({why}); it needs root", args.join(" "))))
}
