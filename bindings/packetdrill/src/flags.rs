//! The text of packetdrill's option `--so_flags`: words `--name=value`.

use core::net::{Ipv4Addr, Ipv6Addr};
use core::str::FromStr;
use core::time::Duration;

use shouter_netstack::cc::Algorithm;
use shouter_netstack::tcp::Options;

/// The setup of the stack under test.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Our IPv4 address; packetdrill's default if none is set.
    pub(crate) ipv4: Ipv4Addr,
    /// Our IPv6 address.
    pub(crate) ipv6: Ipv6Addr,
    /// The link's MTU in bytes.
    pub(crate) mtu: u16,
    /// The initial options of sockets.
    pub(crate) options: Options,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            ipv4: Ipv4Addr::new(192, 168, 0, 1),
            ipv6: Ipv6Addr::new(0xfd3d, 0x0a0b, 0x17d6, 0, 0, 0, 0, 1),
            mtu: 1500,
            // The default of Linux's sockets, for which scripts are written.
            options: Options { nagle: true, mtu_probing: false, ..Options::internet() },
        }
    }
}

/// The algorithm with this name on Linux.
pub(crate) fn algorithm(name: &str) -> Option<Algorithm> {
    Some(match name {
        "reno" | "newreno" => Algorithm::NewReno,
        "cubic" => Algorithm::Cubic,
        "dctcp" => Algorithm::Dctcp,
        "bbr" => Algorithm::Bbr,
        _ => return None,
    })
}

/// Linux's name of an algorithm.
pub(crate) const fn algorithm_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::NewReno => "reno",
        Algorithm::Cubic => "cubic",
        Algorithm::Dctcp => "dctcp",
        Algorithm::Bbr => "bbr",
        _ => "unknown",
    }
}

fn set<T: FromStr>(field: &mut T, value: &str) -> Option<()> {
    *field = value.parse().ok()?;
    Some(())
}

fn set_switch(field: &mut bool, value: &str) -> Option<()> {
    *field = match value {
        "1" | "on" | "yes" | "true" => true,
        "0" | "off" | "no" | "false" => false,
        _ => return None,
    };
    Some(())
}

fn set_micros(field: &mut Duration, value: &str) -> Option<()> {
    *field = Duration::from_micros(value.parse().ok()?);
    Some(())
}

impl Setup {
    /// Parses the flags. The error names the first unknown one.
    pub(crate) fn parse(flags: &str) -> Result<Self, String> {
        let mut setup = Self::default();
        for word in flags.split([' ', '\t', '\n', ',']).filter(|word| !word.is_empty()) {
            let (name, value) = word.trim_start_matches('-').split_once('=').unwrap_or((word, ""));
            if setup.set(name, value).is_none() {
                return Err(format!("{word}: no such flag, or not a value for it"));
            }
        }
        Ok(setup)
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        let options = &mut self.options;
        match name {
            "local_ip" => match value.parse::<core::net::IpAddr>().ok()? {
                core::net::IpAddr::V4(address) => self.ipv4 = address,
                core::net::IpAddr::V6(address) => self.ipv6 = address,
            },
            // The stack has both versions, and every other address is behind one router.
            "ip_version" | "remote_ip" | "gateway_ip" | "netmask_ip" => {}
            "mtu" => set(&mut self.mtu, value)?,
            "congestion" => options.congestion = algorithm(value)?,
            "nagle" => set_switch(&mut options.nagle, value)?,
            "ecn" => set_switch(&mut options.ecn, value)?,
            "sack" => set_switch(&mut options.sack, value)?,
            "timestamps" => set_switch(&mut options.timestamps, value)?,
            "window_scaling" => set_switch(&mut options.window_scaling, value)?,
            "pacing" => set_switch(&mut options.pacing, value)?,
            "mtu_probing" => set_switch(&mut options.mtu_probing, value)?,
            "initial_window" => set(&mut options.initial_window, value)?,
            "syn_retries" => set(&mut options.syn_retries, value)?,
            "send_buffer" => set(&mut options.send_buffer, value)?,
            "receive_buffer" => set(&mut options.receive_buffer, value)?,
            "min_rto_us" => set_micros(&mut options.min_rto, value)?,
            "max_rto_us" => set_micros(&mut options.max_rto, value)?,
            "initial_rto_us" => set_micros(&mut options.initial_rto, value)?,
            "max_ack_delay_us" => set_micros(&mut options.max_ack_delay, value)?,
            "time_wait_us" => set_micros(&mut options.time_wait, value)?,
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
