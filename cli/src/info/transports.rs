//! The channels between hosts that this host offers, and the reasons against the others.

use shouter::Config;
use shouter::config::{Builder, TransportChoice};

use super::{Item, ItemState};

/// One item per channel, the best first, and those that the configuration allows.
pub(super) fn items() -> Vec<Item> {
    let Some(config) = config() else { return vec![] };
    let verbs = verbs(&config);
    let rud = rud(&config);
    let kernel = kernel(&config);
    let choice = choice(config.transport, verbs.state == ItemState::Ok, rud.state == ItemState::Ok);
    vec![verbs, rud, kernel, choice]
}

/// The configuration; outside a job, that of a job of one rank.
fn config() -> Option<Config> {
    let builder = Builder::from_process().ok()?;
    builder
        .clone()
        .build()
        .ok()
        .or_else(|| builder.set("size", "1").ok()?.set("rank", "0").ok()?.build().ok())
}

fn kernel(config: &Config) -> Item {
    let item = "channel kernel";
    let Some(address) = config.kernel_address else {
        return Item::ok(item, "sockets of the kernel; they are always there");
    };
    match std::net::TcpListener::bind((address, 0)) {
        Ok(_) => Item::ok(item, format!("sockets of the kernel, at {address}")),
        Err(why) => Item::not_ok(
            ItemState::Wrong,
            item,
            format!("kernel_address {address}: {why}"),
            "name an address of this host (`ip -4 address` lists them), or leave kernel_address out",
        ),
    }
}

fn choice(transport: TransportChoice, verbs: bool, rud: bool) -> Item {
    let item = "transport between hosts";
    let there = |name: &str, is: bool, what: &str| {
        if is {
            Item::ok(item, format!("{name}, as configured"))
        } else {
            Item::missing(item, format!("{name} is configured"), what)
        }
    };
    match transport {
        TransportChoice::Auto | TransportChoice::Shm => {
            let transports = [(verbs, "verbs"), (rud, "rud"), (true, "kernel")];
            let transports: Vec<&str> =
                transports.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
            Item::ok(
                item,
                format!("auto: {}, whichever first leads to the peer and back", transports.join(", else ")),
            )
        }
        TransportChoice::Verbs => there("verbs", verbs, "see channel verbs, or use transport = \"auto\""),
        TransportChoice::Rud | TransportChoice::Tcp => {
            there(transport.name(), rud, "see channel rud, or use transport = \"auto\"")
        }
        _ => Item::ok(item, format!("{}, as configured", transport.name())),
    }
}

fn rud(config: &Config) -> Item {
    let item = "channel rud";
    if cfg!(not(feature = "dpdk")) {
        return Item::not_built_in(
            item,
            "this build has no DPDK",
            "build with the feature `dpdk`, which is on by default",
        );
    }
    if config.ports.is_empty() {
        return Item::missing(
            item,
            "no port is configured",
            "name this host's ports (ports = [{ device = \"...\", address = \"...\" }]); `shouter run --hosts` does it by itself",
        );
    }
    let ports: Vec<String> =
        config.ports.iter().map(|port| format!("{} at {}", port.device, port.address.ip)).collect();
    Item::ok(item, ports.join(", "))
}

#[cfg(feature = "verbs")]
fn verbs(config: &Config) -> Item {
    let item = "channel verbs";
    let found = shouter::channel::verbs::survey(&config.rdma_device);
    let reachable = found.reachable().to_string();
    let mut ports: Vec<String> = found
        .ports
        .iter()
        .map(|(device, port)| format!("{device}/{}, path MTU {}", port.number, port.active_mtu))
        .collect();
    if ports.is_empty() {
        return Item::missing(item, "no RDMA port can be used", found.problems.join("; "));
    }
    ports.push(format!("addresses {reachable}"));
    Item::ok(item, ports.join("; "))
}

#[cfg(not(feature = "verbs"))]
fn verbs(_: &Config) -> Item {
    Item::not_built_in(
        "channel verbs",
        "this build has no verbs",
        "build with the feature `verbs`, which is on by default",
    )
}
