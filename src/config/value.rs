//! Parses raw values; an error names the key, the place, the value found and the values allowed.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use super::error::{ConfigError, Source};
use super::keys;
use super::layers::{Layers, Located, Raw};
use super::{Address, LONGEST_WAIT, Levels, Overrides, PortConfig, TransportChoice};
use crate::key::Key;
use crate::observe::MetricsTarget;

/// An integer key within its range, `None` when it is not given.
pub(super) fn integer(
    layers: &Layers,
    key: &str,
    range: std::ops::RangeInclusive<u64>,
) -> Result<Option<u64>, ConfigError> {
    take(layers, key, |value| to_integer(value).filter(|number| range.contains(number)))
}

/// A text key that passes `check`.
pub(super) fn text(
    layers: &Layers,
    key: &str,
    check: impl Fn(&str) -> bool,
) -> Result<Option<String>, ConfigError> {
    take(layers, key, |value| match &value.raw {
        Raw::Text(text) if check(text) => Some(text.clone()),
        _ => None,
    })
}

/// A path key.
pub(super) fn path(layers: &Layers, key: &str) -> Result<Option<PathBuf>, ConfigError> {
    Ok(text(layers, key, |text| !text.is_empty())?.map(PathBuf::from))
}

/// A key that is one of a few words.
pub(super) fn word<T: Copy>(
    layers: &Layers,
    key: &str,
    words: &[(&str, T)],
) -> Result<Option<T>, ConfigError> {
    take(layers, key, |value| {
        let found = match &value.raw {
            Raw::Text(text) => text.to_lowercase(),
            Raw::Bool(true) => "on".into(),
            Raw::Bool(false) => "off".into(),
            _ => return None,
        };
        words.iter().find(|(word, _)| *word == found).map(|(_, meaning)| *meaning)
    })
}

/// Where counters go.
pub(super) fn metrics(layers: &Layers, key: &str) -> Result<Option<MetricsTarget>, ConfigError> {
    take(layers, key, |value| MetricsTarget::parse(to_text(value)?))
}

/// A signal that can be caught and that means nothing to the system: its number and name.
pub(super) fn signal(layers: &Layers, key: &str) -> Result<Option<(i32, &'static str)>, ConfigError> {
    use signal_hook::consts;
    const SIGNALS: [(i32, &str); 6] = [
        (consts::SIGUSR1, "USR1"),
        (consts::SIGUSR2, "USR2"),
        (consts::SIGHUP, "HUP"),
        (consts::SIGQUIT, "QUIT"),
        (consts::SIGURG, "URG"),
        (consts::SIGWINCH, "WINCH"),
    ];
    take(layers, key, |value| {
        let name = to_text(value)?.to_uppercase();
        let name = name.strip_prefix("SIG").unwrap_or(&name);
        SIGNALS.into_iter().find(|(_, known)| *known == name)
    })
}

/// Algorithms by collective.
pub(super) fn overrides(layers: &Layers, key: &str) -> Result<Overrides, ConfigError> {
    let Some(value) = layers.get(key) else { return Ok(Overrides::default()) };
    let text = to_text(value).ok_or_else(|| wrong(key, value))?;
    text.parse().map_err(|why| wrong_as(key, value, &format!("{}: {why}", keys::allowed(key))))
}

/// The sizes of groups, from a list of numbers or from text such as `8,4`.
pub(super) fn levels(layers: &Layers, key: &str) -> Result<Levels, ConfigError> {
    let Some(value) = layers.get(key) else { return Ok(Levels::default()) };
    let size = |item: &Located| to_integer(item).and_then(|size| u32::try_from(size).ok());
    let levels = match &value.raw {
        Raw::Text(text) => text.parse(),
        Raw::List(items) => {
            let sizes = items.iter().map(|item| size(item).ok_or_else(|| wrong(key, item)));
            Levels::new(&sizes.collect::<Result<Vec<_>, _>>()?)
        }
        _ => Levels::new(&[size(value).ok_or_else(|| wrong(key, value))?]),
    };
    levels.map_err(|why| wrong_as(key, value, &format!("{}: {why}", keys::allowed(key))))
}

/// A duration above zero and of at most a year.
pub(super) fn duration(layers: &Layers, key: &str) -> Result<Option<Duration>, ConfigError> {
    take(layers, key, |value| match &value.raw {
        Raw::Text(text) => to_duration(text),
        Raw::Integer(seconds) => to_seconds(*seconds as f64),
        Raw::Float(seconds) => to_seconds(*seconds),
        _ => None,
    })
}

/// A share as a fraction from 0 to below 1.
pub(super) fn percent(layers: &Layers, key: &str) -> Result<Option<f64>, ConfigError> {
    take(layers, key, |value| {
        let Raw::Text(text) = &value.raw else { return None };
        let percent: f64 = text.trim().strip_suffix('%')?.trim().parse().ok()?;
        (0.0..100.0).contains(&percent).then_some(percent / 100.0)
    })
}

/// An address of this host.
pub(super) fn ipv4(layers: &Layers, key: &str) -> Result<Option<Ipv4Addr>, ConfigError> {
    take(layers, key, |value| {
        to_ip(value).filter(|ip| !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast())
    })
}

/// A list of cores, from a list of numbers or from text such as `0,2-5`.
pub(super) fn cores(layers: &Layers, key: &str) -> Result<Option<Vec<usize>>, ConfigError> {
    take(layers, key, |value| {
        let cores = match &value.raw {
            Raw::Text(text) => to_cores(text)?,
            Raw::Integer(_) => vec![to_core(to_integer(value)?)?],
            Raw::List(items) => {
                items.iter().map(|item| to_core(to_integer(item)?)).collect::<Option<Vec<_>>>()?
            }
            _ => return None,
        };
        let distinct: std::collections::BTreeSet<_> = cores.iter().collect();
        (!cores.is_empty() && distinct.len() == cores.len()).then_some(cores)
    })
}

/// The list of ports.
pub(super) fn ports(layers: &Layers) -> Result<Vec<PortConfig>, ConfigError> {
    let Some(value) = layers.get("ports") else { return Ok(Vec::new()) };
    let Raw::List(items) = &value.raw else { return Err(wrong("ports", value)) };
    items.iter().enumerate().map(|(index, item)| port(index, item)).collect()
}

/// One port. A message names it as `ports[0].address`.
fn port(index: usize, item: &Located) -> Result<PortConfig, ConfigError> {
    let Raw::Table(fields) = &item.raw else {
        return Err(wrong_as(
            &format!("ports[{index}]"),
            item,
            "a table with the keys device, address, gateway, peers, mtu",
        ));
    };
    let (mut device, mut address, mut gateway, mut peers, mut mtu) = (None, None, None, Vec::new(), None);
    for (field, value) in fields {
        let name = format!("ports[{index}].{field}");
        let wrong = |allowed: &str| wrong_as(&name, value, allowed);
        match (field.as_str(), &value.raw) {
            ("device", Raw::Text(text)) if !text.is_empty() => {
                check_device(text).map_err(|why| wrong(&format!("a driver and its argument: {why}")))?;
                device = Some(text.clone());
            }
            ("device", _) => {
                return Err(wrong(
                    "a driver and its argument, such as \"vhost:/run/a.sock\" or \"pci:0000:3b:00.0\"",
                ));
            }
            ("address", _) => {
                let allowed = "an IPv4 address with the length of its prefix, such as \"10.77.0.1/24\"";
                address = Some(to_text(value).and_then(Address::parse).ok_or_else(|| wrong(allowed))?);
            }
            ("gateway", _) => {
                gateway =
                    Some(to_ip(value).ok_or_else(|| wrong("an IPv4 address, such as \"10.77.0.254\""))?);
            }
            ("peers", Raw::List(items)) => {
                let all: Option<Vec<_>> = items.iter().map(to_ip).collect();
                peers = all.ok_or_else(|| wrong("a list of IPv4 addresses, such as [\"10.77.0.2\"]"))?;
            }
            ("peers", _) => return Err(wrong("a list of IPv4 addresses, such as [\"10.77.0.2\"]")),
            ("mtu", _) => {
                let number = to_integer(value)
                    .filter(|n| (576..=9000).contains(n))
                    .and_then(|n| u16::try_from(n).ok());
                mtu = Some(number.ok_or_else(|| wrong("a number of bytes, from 576 to 9000"))?);
            }
            _ => {
                return Err(ConfigError::UnknownKey {
                    key: name,
                    source_of: value.source.clone(),
                    nearest: None,
                    allowed: "device, address, gateway, peers, mtu".into(),
                });
            }
        }
    }
    let missing = |field: &str, example: &str| ConfigError::Missing {
        keys: vec![format!("ports[{index}].{field}")],
        remedy: format!("{}: give each port {example}", item.source),
    };
    Ok(PortConfig {
        device: device.ok_or_else(|| missing("device", "a device, such as \"vhost:/run/a.sock\""))?,
        address: address.ok_or_else(|| missing("address", "an address, such as \"10.77.0.1/24\""))?,
        gateway,
        peers,
        mtu,
    })
}

/// Checks the syntax of a port's device.
#[cfg(feature = "dpdk")]
fn check_device(text: &str) -> Result<(), shouter_netstack::device::dpdk::SpecError> {
    text.parse::<shouter_netstack::device::dpdk::DeviceSpec>().map(drop)
}

/// A build without DPDK knows no devices, and uses no ports.
#[cfg(not(feature = "dpdk"))]
fn check_device(_: &str) -> Result<(), std::convert::Infallible> {
    Ok(())
}

/// A value that cannot be used.
pub(super) fn wrong(key: &str, value: &Located) -> ConfigError {
    wrong_as(key, value, keys::allowed(key))
}

fn wrong_as(key: &str, value: &Located, allowed: &str) -> ConfigError {
    // The job's secret is not for the log, not even when it is wrong.
    let found = if key == "key" { "the text that was given".into() } else { value.shown() };
    ConfigError::Value { key: key.into(), source_of: value.source.clone(), found, allowed: allowed.into() }
}

fn take<T>(
    layers: &Layers,
    key: &str,
    convert: impl FnOnce(&Located) -> Option<T>,
) -> Result<Option<T>, ConfigError> {
    match layers.get(key) {
        None => Ok(None),
        Some(value) => convert(value).map(Some).ok_or_else(|| wrong(key, value)),
    }
}

fn to_integer(value: &Located) -> Option<u64> {
    match &value.raw {
        Raw::Integer(number) => u64::try_from(*number).ok(),
        Raw::Text(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn to_text(value: &Located) -> Option<&str> {
    match &value.raw {
        Raw::Text(text) => Some(text.trim()),
        _ => None,
    }
}

fn to_ip(value: &Located) -> Option<Ipv4Addr> {
    to_text(value)?.parse().ok()
}

fn to_seconds(seconds: f64) -> Option<Duration> {
    (seconds > 0.0 && seconds <= LONGEST_WAIT.as_secs_f64())
        .then(|| Duration::from_secs_f64(seconds))
        .filter(|d| !d.is_zero())
}

pub(super) fn to_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let scale = match text[split..].trim() {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    to_seconds(text[..split].trim().parse::<f64>().ok()? * scale)
}

fn to_core(number: u64) -> Option<usize> {
    usize::try_from(number).ok().filter(|core| *core < 4096)
}

/// The cores of a list such as `0,2-5`.
pub fn to_cores(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (to_core(first.trim().parse().ok()?)?, to_core(last.trim().parse().ok()?)?);
        if first > last {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

/// Whether RUD's sessions are sealed. A transport that cannot seal is refused, and a key that can be guessed: nobody is to take bytes for
/// encrypted that others can read.
pub(super) fn seal(
    layers: &Layers,
    transport: TransportChoice,
    key: Option<&Key>,
) -> Result<bool, ConfigError> {
    use TransportChoice::{Auto, Kernel, Rud, Shm, Tcp, Verbs};
    let seals = word(layers, "rud_seal", &[("on", true), ("off", false)])?.unwrap_or(false);
    let source = |key| layers.get(key).map_or(Source::Call, |value| value.source.clone());
    match transport {
        Tcp | Verbs | Kernel if seals => Err(ConfigError::Conflict {
            what: format!(
                "`rud_seal` is on ({}), and `transport` is {} ({}), which does not encrypt",
                source("rud_seal"),
                transport.name(),
                source("transport")
            ),
            remedy: "use transport = \"rud\", or leave rud_seal off where the network is trusted".into(),
        }),
        _ if seals && key.is_some_and(Key::is_guessable) => Err(ConfigError::Conflict {
            what: format!(
                "`rud_seal` is on ({}), and the job's key has fewer than 32 characters, so that it could be guessed",
                source("rud_seal")
            ),
            remedy: "make a key with `openssl rand -hex 32`".into(),
        }),
        Auto | Shm | Rud | Tcp | Verbs | Kernel => Ok(seals),
    }
}
