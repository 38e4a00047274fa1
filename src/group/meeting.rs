//! Meeting through a [`Store`]: the ranks of a job learn rank 0's address, its port, the job's key, and which ranks
//! share a host.
//!
//! ```text
//!   rank 0                                        the others
//!   put start = a number that no other start has
//!                                                 get start; put <start>/<rank> = their host, a number of their own
//!   get <start>/<rank> of all; open the port
//!   put <start>/meeting = all of that, and their numbers
//!                                                 get <start>/meeting
//! ```
//!
//! A store may keep the values of an earlier meeting, as when a process joins again through the same one. No rank is
//! misled: rank 0 looks only below its own new number, and another rank that does not find its own number in the
//! meeting begins again.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::error::JoinError;
use super::hello::Hello;
use super::store::Store;
use crate::config::{Config, MAX_RANKS, StorePlacement};
use crate::key::{Key, TAG_LEN, random};
use crate::wire;

/// A number that distinguishes one start from another.
type Nonce = [u8; 8];

/// The most addresses of rank 0 that are tried.
const MAX_ADDRESSES: usize = 16;
/// The longest text in a message, in bytes.
const LONGEST_TEXT: usize = 600;
/// Pauses between two checks whether an earlier meeting has been replaced grow from this...
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// ...to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// A rank's facts about itself.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Arrival {
    nonce: Nonce,
    size: u32,
    machine: [u8; TAG_LEN],
    host: String,
}

/// The answer of rank 0.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Meeting {
    /// The nonce of every rank, by rank.
    #[serde(deserialize_with = "wire::at_most::<{ MAX_RANKS as usize }, _, _>")]
    nonces: Vec<Nonce>,
    place: Result<MeetingPoint, String>,
}

/// Where the ranks meet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct MeetingPoint {
    /// Addresses of rank 0, with commas between them.
    addresses: String,
    port: u16,
    /// The job's key; `None`: the ranks were given one.
    key: Option<[u8; TAG_LEN]>,
    /// The number of ranks on each host, in the order of ranks; `None`: the ranks were given their places.
    #[serde(deserialize_with = "blocks_of_hosts")]
    blocks: Option<Vec<u32>>,
}

fn blocks_of_hosts<'a, D: serde::Deserializer<'a>>(from: D) -> Result<Option<Vec<u32>>, D::Error> {
    #[derive(Deserialize)]
    struct Blocks(#[serde(deserialize_with = "wire::at_most::<{ MAX_RANKS as usize }, _, _>")] Vec<u32>);
    Ok(Option::<Blocks>::deserialize(from)?.map(|Blocks(blocks)| blocks))
}

/// Fills in, through the store, the values that the configuration leaves open.
///
/// # Errors
/// The store's error, that ranks did not come, or that they cannot make a job; the ranks that reach the store in time
/// get the same. [`JoinError::KeyInClear`] where sessions are to be sealed with a key that anyone may read at the store.
pub fn complete(config: &mut Config, given: StorePlacement, store: &mut dyn Store) -> Result<(), JoinError> {
    if config.rud_seal && config.key.is_none() {
        return Err(JoinError::KeyInClear);
    }
    let own = Arrival {
        nonce: random().map_err(JoinError::Randomness)?,
        size: config.size,
        machine: *Hello::of(config)?.machine(),
        host: host_name(),
    };
    let until = Instant::now() + config.rendezvous_deadline;
    let mut steps = Steps { rank: config.rank, store, until };
    let (place, listener) = match config.rank {
        0 => lead(config, given, own, &mut steps)?,
        rank => (follow(rank, &own, &mut steps)?, None),
    };
    if let Some(blocks) = &place.blocks {
        (config.local_rank, config.local_size) = local(config.rank, blocks)
            .ok_or_else(|| failed(Some(0), "rank 0 has left this rank out of the hosts".into()))?;
    }
    match (place.key, &config.key) {
        (Some(_), Some(_)) => {
            let why = "this rank was given a key (SHOUTER_KEY or SHOUTER_KEY_FILE) and rank 0 was not; give all ranks the same, or none";
            return Err(failed(Some(0), why.into()));
        }
        (Some(key), None) => config.key = Some(Key::from_secret(key)),
        (None, Some(_)) => {}
        (None, None) => {
            let why = "rank 0 was given a key (SHOUTER_KEY or SHOUTER_KEY_FILE) and this rank was not; give all ranks the same, or none";
            return Err(failed(None, why.into()));
        }
    }
    config.rendezvous.host = place.addresses;
    config.rendezvous.port = place.port;
    config.rendezvous.listener = listener;
    Ok(())
}

fn failed(rank: Option<u32>, text: String) -> JoinError {
    JoinError::Store { rank, text }
}

/// The steps that ranks take at the store, within the remaining time.
struct Steps<'a> {
    rank: u32,
    store: &'a mut dyn Store,
    until: Instant,
}

impl Steps<'_> {
    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), JoinError> {
        let put = self.store.put(key, value);
        put.map_err(|why| {
            let rank = self.rank;
            let what = format!("rank {rank} could not put {key} into the job's store: {why}");
            failed(
                Some(rank),
                format!("{what}; look whether the store's process runs, and whether this rank reaches it"),
            )
        })
    }

    fn get(&mut self, key: &str, of: u32) -> Result<Vec<u8>, JoinError> {
        let left = self.left();
        self.store.get(key, left).map_err(|why| {
            let what = format!("rank {of} has put nothing at {key} in the job's store");
            failed(Some(of), format!("{what}: {why}; look whether it runs, and at its log"))
        })
    }

    /// The meeting that rank 0 has put there after this start; `None` if it has begun again before that.
    fn meeting_of(&mut self, start: &[u8]) -> Result<Option<Vec<u8>>, JoinError> {
        let key = below(start, "meeting");
        while self.left() > SLICE {
            let asked = Instant::now();
            match self.store.get(&key, SLICE) {
                Ok(bytes) => return Ok(Some(bytes)),
                // It does not wait: the value does not come any more.
                Err(_) if asked.elapsed() < SLICE / 2 => break,
                Err(_) if self.get(START, 0)? != start => return Ok(None),
                Err(_) => {}
            }
        }
        self.get(&key, 0).map(Some)
    }

    fn fence(&mut self) -> Result<(), JoinError> {
        let left = self.left();
        let met = self.store.fence(left);
        met.map_err(|why| {
            failed(
                None,
                format!(
                    "rank {} waited at the launcher's store, and not all ranks have come: {why}; look at the log of the others",
                    self.rank
                ),
            )
        })
    }
}

/// The keys below one start.
fn below(start: &[u8], what: impl std::fmt::Display) -> String {
    format!("shouter/{}/{what}", hex::encode(start.get(..size_of::<Nonce>()).unwrap_or(start)))
}

/// How long to wait for a meeting before looking whether rank 0 has begun again.
const SLICE: Duration = Duration::from_secs(1);

/// The key of the start.
const START: &str = "shouter/start";

/// Rank 0's part. Whatever goes wrong, it takes all steps, so that the others get the reason.
fn lead(
    config: &Config,
    given: StorePlacement,
    own: Arrival,
    steps: &mut Steps<'_>,
) -> Result<(MeetingPoint, Option<Arc<TcpListener>>), JoinError> {
    let start: Nonce = random().map_err(JoinError::Randomness)?;
    steps.put(START, &start)?;
    steps.fence()?;
    steps.fence()?;
    let mut all = vec![own];
    let mut opened = Ok(());
    for rank in 1..config.size {
        let arrival = steps.get(&below(&start, rank), rank).and_then(|bytes| {
            let arrival: Arrival = wire::decode(&bytes).map_err(|why| {
                failed(Some(rank), format!("what rank {rank} has put into the job's store: {why}"))
            })?;
            if arrival.size != config.size {
                let what = format!(
                    "rank {rank} says that the job has {} ranks, and rank 0 says {}",
                    arrival.size, config.size
                );
                return Err(failed(Some(rank), format!("{what}; give every rank the same size")));
            }
            Ok(arrival)
        });
        match arrival {
            Ok(arrival) => all.push(arrival),
            Err(why) => {
                opened = Err(why);
                break;
            }
        }
    }
    let opened = opened.and_then(|()| open(config, given, &all));
    let place = match &opened {
        Ok((place, _)) => Ok(place.clone()),
        Err(why) => Err(wire::shortened(&why.to_string(), LONGEST_TEXT).to_owned()),
    };
    let nonces = all.iter().map(|arrival| arrival.nonce).collect();
    let told = wire::encode(&Meeting { nonces, place }).map_err(JoinError::from);
    let told = told.and_then(|bytes| steps.put(&below(&start, "meeting"), &bytes));
    let told = told.and_then(|()| steps.fence());
    let (place, listener) = opened?;
    told?;
    Ok((place, Some(Arc::new(listener))))
}

/// The part of every other rank.
fn follow(rank: u32, own: &Arrival, steps: &mut Steps<'_>) -> Result<MeetingPoint, JoinError> {
    steps.fence()?;
    let mut pause = FIRST_PAUSE;
    let mut first = true;
    let mut earlier = String::from("look whether rank 0 runs");
    loop {
        let start = steps.get(START, 0)?;
        steps.put(&below(&start, rank), &wire::encode(own)?)?;
        if std::mem::take(&mut first) {
            steps.fence()?;
            steps.fence()?;
        }
        let Some(bytes) = steps.meeting_of(&start)? else { continue };
        let meeting: Meeting = wire::decode(&bytes)
            .map_err(|why| failed(Some(0), format!("what rank 0 has put into the job's store: {why}")))?;
        let is_in = meeting.nonces.get(rank as usize) == Some(&own.nonce);
        match meeting.place {
            Ok(place) if is_in => return Ok(place),
            Err(why) if is_in => return Err(failed(Some(0), format!("rank 0 has given up: {why}"))),
            Ok(_) => {}
            // Of an earlier meeting, or of this one before rank 0 has looked at this rank.
            Err(why) => earlier = format!("rank 0 has given up: {why}"),
        }
        if steps.left() <= pause {
            let what =
                "the job's store holds a meeting without this rank, and no other has replaced it in time";
            return Err(failed(Some(0), format!("{what}: {earlier}")));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Opens rank 0's port where the others can reach it.
fn open(
    config: &Config,
    given: StorePlacement,
    all: &[Arrival],
) -> Result<(MeetingPoint, TcpListener), JoinError> {
    let blocks = match given {
        StorePlacement::Given => None,
        StorePlacement::Found => Some(blocks(all).map_err(|(rank, why)| failed(Some(rank), why))?),
    };
    let one_host = all.iter().all(|arrival| arrival.machine == all[0].machine);
    let addresses = match config.rendezvous.host.as_str() {
        "" if one_host => Ipv4Addr::LOCALHOST.to_string(),
        "" => own_addresses(config.kernel_address)?,
        host => host.to_owned(),
    };
    let all_of_family = match addresses.split(',').any(|a| a.parse::<Ipv6Addr>().is_err()) {
        true => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        false => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    // An address that stands for this host without being one of its own cannot be listened at.
    let at = addresses.parse::<IpAddr>().ok().filter(is_own).unwrap_or(all_of_family);
    let cannot = |why: std::io::Error| JoinError::CannotListen {
        host: at.to_string(),
        port: config.rendezvous.port,
        why: why.to_string(),
    };
    let listener = TcpListener::bind((at, config.rendezvous.port)).map_err(cannot)?;
    let port = listener.local_addr().map_err(cannot)?.port();
    let key = match &config.key {
        Some(_) => None,
        None => Some(random().map_err(JoinError::Randomness)?),
    };
    Ok((MeetingPoint { addresses, port, key, blocks }, listener))
}

/// How many ranks follow each other on each host.
fn blocks(all: &[Arrival]) -> Result<Vec<u32>, (u32, String)> {
    let mut blocks: Vec<u32> = Vec::new();
    let mut last: HashMap<&[u8; TAG_LEN], u32> = HashMap::new();
    for (rank, arrival) in (0..).zip(all) {
        match (last.insert(&arrival.machine, rank), blocks.last_mut()) {
            (Some(before), Some(block)) if before + 1 == rank => *block += 1,
            (Some(before), _) => {
                let between = all.get(before as usize + 1).map_or("another", |other| &other.host);
                let what = format!(
                    "ranks {before} and {rank} are both on host {}, and between them is rank {} on host {between}",
                    arrival.host,
                    before + 1
                );
                let remedy =
                    "ranks fill hosts in blocks: `mpirun --map-by slot`, `srun --distribution=block`";
                return Err((rank, format!("{what}; {remedy}")));
            }
            (None, _) => blocks.push(1),
        }
    }
    Ok(blocks)
}

/// A rank's number on its host, and how many that host has.
fn local(rank: u32, blocks: &[u32]) -> Option<(u32, u32)> {
    let mut first = 0u32;
    for &block in blocks {
        if rank < first.checked_add(block)? {
            return Some((rank - first, block));
        }
        first += block;
    }
    None
}

/// The addresses by which other hosts may reach this one, the likeliest first.
fn own_addresses(preferred: Option<Ipv4Addr>) -> Result<String, JoinError> {
    // A datagram socket that is connected sends nothing; it only makes the kernel choose its own address. The peer is one of
    // those that only documents use (RFC 5737).
    let routed = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|socket| {
            socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).and_then(|()| socket.local_addr())
        })
        .map(|address| address.ip());
    let interfaces = if_addrs::get_if_addrs().map_err(|why| JoinError::System {
        what: "looking for this host's addresses",
        why: why.to_string(),
    })?;
    let reachable = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_unspecified(),
        // Others would have to know the link of a link-local address.
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    };
    let (four, six): (Vec<IpAddr>, Vec<IpAddr>) =
        interfaces.iter().map(if_addrs::Interface::ip).partition(IpAddr::is_ipv4);
    let mut found: Vec<String> = Vec::new();
    for ip in preferred.map(IpAddr::V4).into_iter().chain(routed).chain(four).chain(six).filter(reachable) {
        let ip = ip.to_string();
        if !found.contains(&ip) && found.len() < MAX_ADDRESSES {
            found.push(ip);
        }
    }
    if found.is_empty() {
        let why = "the job has several hosts, and rank 0's has no address but loopback; give it one, or set SHOUTER_ADDR";
        return Err(failed(Some(0), why.into()));
    }
    Ok(found.join(","))
}

/// Whether an address is this host's: no other can be bound.
fn is_own(ip: &IpAddr) -> bool {
    UdpSocket::bind((*ip, 0)).is_ok()
}

/// This host's name, for messages.
fn host_name() -> String {
    wire::shortened(&rustix::system::uname().nodename().to_string_lossy(), LONGEST_TEXT).to_owned()
}

#[cfg(test)]
mod tests;
