use std::collections::HashMap;
use std::sync::{Condvar, Mutex};
use std::thread;

use super::super::store::StoreError;
use super::*;
use crate::config::{Builder, Environment};
use crate::group::rendezvous::{self, RendezvousConfig};

/// Longer than anything here takes.
const SOON: &str = "30s";

#[derive(Default)]
struct Content {
    values: Mutex<HashMap<String, Vec<u8>>>,
    changed: Condvar,
}

/// The store of ranks that are threads.
#[derive(Clone, Default)]
struct Shared(Arc<Content>);

impl Store for Shared {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        assert!(key.len() <= 64, "{key} is longer than a key may be");
        self.0.values.lock().unwrap().insert(key.into(), value.into());
        self.0.changed.notify_all();
        Ok(())
    }

    fn get(&mut self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        let values = self.0.values.lock().unwrap();
        let (values, waited) =
            self.0.changed.wait_timeout_while(values, timeout, |values| !values.contains_key(key)).unwrap();
        if waited.timed_out() { Err("it is not there".into()) } else { Ok(values[key].clone()) }
    }
}

fn config(rank: u32, size: u32, more: &[(&str, &str)]) -> (Config, StorePlacement) {
    let (rank, size) = (rank.to_string(), size.to_string());
    let keys = [("rank", &*rank), ("size", &*size), ("rendezvous_deadline", SOON)];
    let builder = Builder::from_environment(Environment::default());
    let builder = keys.iter().chain(more).fold(builder, |builder, (key, value)| builder?.set(key, value));
    let mut config = builder.unwrap().through_store().build().unwrap();
    let place = config.store.take().unwrap();
    (config, place)
}

fn completed(store: &Shared, rank: u32, size: u32, more: &[(&str, &str)]) -> Result<Config, JoinError> {
    let (mut config, place) = config(rank, size, more);
    complete(&mut config, place, &mut store.clone()).map(|()| config)
}

/// Every rank's outcome.
fn all(store: &Shared, size: u32, more: &[(&str, &str)]) -> Vec<Result<Config, JoinError>> {
    thread::scope(|scope| {
        let ranks: Vec<_> =
            (0..size).map(|rank| scope.spawn(move || completed(store, rank, size, more))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A store's values may be anything.
#[test]
fn decoders_survive_what_comes() {
    let arrival =
        |size, host: &str| Arrival { nonce: [size as u8; 8], size, machine: [3; TAG_LEN], host: host.into() };
    wire::tests::fuzz(&[arrival(2, "node7"), arrival(u32::MAX, "")]);
    let point = MeetingPoint {
        addresses: "10.0.0.1,10.0.0.2".into(),
        port: 1,
        key: Some([9; TAG_LEN]),
        blocks: Some(vec![4, 300]),
    };
    let open = MeetingPoint { key: None, blocks: None, ..point.clone() };
    let meeting = |place| Meeting { nonces: vec![[1; 8], [0xff; 8]], place };
    wire::tests::fuzz(&[meeting(Ok(point)), meeting(Ok(open)), meeting(Err("no".into()))]);
}

#[test]
fn a_store_tells_address_port_key_and_hosts() {
    let all: Vec<Config> = all(&Shared::default(), 4, &[]).into_iter().map(Result::unwrap).collect();
    let first = &all[0];
    assert!(first.rendezvous.listener.is_some() && first.rendezvous.port != 0);
    for (rank, config) in (0..).zip(&all) {
        assert_eq!((config.local_rank, config.local_size), (rank, 4));
        assert_eq!((&*config.rendezvous.host, config.rendezvous.port), ("127.0.0.1", first.rendezvous.port));
        assert_eq!(config.key, first.key);
        assert!(config.key.is_some());
    }
    // They have learnt enough to meet.
    thread::scope(|scope| {
        for config in &all {
            scope.spawn(|| {
                let (roster, _) =
                    rendezvous::join(&RendezvousConfig::of(config).unwrap(), Hello::of(config).unwrap())
                        .unwrap();
                assert_eq!((roster.members.len(), roster.nodes()), (4, 1));
            });
        }
    });
}

#[test]
fn what_an_earlier_meeting_has_left_in_the_store_misleads_nobody() {
    let store = Shared::default();
    let before = all(&store, 3, &[]).remove(0).unwrap();
    thread::scope(|scope| {
        // They find the earlier meeting, and wait for rank 0's next.
        let others: Vec<_> = (1..3)
            .map(|rank| {
                scope.spawn({
                    let store = &store;
                    move || completed(store, rank, 3, &[]).unwrap()
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(50));
        let first = completed(&store, 0, 3, &[]).unwrap();
        assert_ne!(first.key, before.key);
        for other in others {
            let other = other.join().unwrap();
            assert_eq!((other.key, other.rendezvous.port), (first.key.clone(), first.rendezvous.port));
        }
    });
}

#[test]
fn sessions_are_not_sealed_with_a_key_that_the_store_shows() {
    let store = Shared::default();
    for rank in 0..2 {
        let refused = completed(&store, rank, 2, &[("rud_seal", "on")]).unwrap_err();
        assert!(matches!(refused, JoinError::KeyInClear), "{refused}");
    }
    assert!(store.0.values.lock().unwrap().is_empty(), "nothing was told");
    let given = [("rud_seal", "on"), ("key", "0123456789abcdef0123456789abcdef")];
    assert!(all(&Shared::default(), 2, &given).iter().all(Result::is_ok));
}

#[test]
fn a_key_that_was_given_is_not_put_into_the_store() {
    let store = Shared::default();
    let given = [
        ("key", "0123456789012345678901234567890123456789"),
        ("local_size", "1"),
        ("addr", "127.0.0.1,127.0.0.2"),
    ];
    let all = all(&store, 2, &given);
    let [first, second] = [&all[0], &all[1]].map(|config| config.as_ref().unwrap());
    assert_eq!(first.key, second.key);
    assert_eq!((second.local_rank, second.local_size), (0, 1));
    assert_eq!(second.rendezvous.host, "127.0.0.1,127.0.0.2");
    let meeting = store.0.values.lock().unwrap();
    let (_, meeting) = meeting.iter().find(|(key, _)| key.ends_with("/meeting")).unwrap();
    let meeting: Meeting = wire::decode(meeting).unwrap();
    assert_eq!(meeting.place.unwrap().key, None);
}

#[test]
fn a_rank_without_the_key_that_rank_0_was_given_is_told_so() {
    let store = Shared::default();
    let given = [("key", "0123456789012345678901234567890123456789")];
    thread::scope(|scope| {
        scope.spawn(|| completed(&store, 0, 2, &given).unwrap());
        let why = completed(&store, 1, 2, &[]).unwrap_err().to_string();
        assert!(why.contains("rank 0 was given a key"), "{why}");
    });
}

#[test]
fn a_rank_keeps_the_key_that_it_was_given() {
    let store = Shared::default();
    let given = [("key", "0123456789012345678901234567890123456789")];
    thread::scope(|scope| {
        scope.spawn(|| completed(&store, 0, 2, &[]).unwrap());
        let why = completed(&store, 1, 2, &given).unwrap_err().to_string();
        assert!(why.contains("this rank was given a key"), "{why}");
    });
}

#[test]
fn a_rank_0_that_begins_again_is_followed() {
    let mut store = Shared::default();
    // One that was killed before the ranks had met.
    store.put(START, &[7; 16]).unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(|| completed(&store, 1, 2, &[]));
        store.clone().get(&below(&[7; 16], 1), Duration::from_secs(20)).unwrap();
        completed(&store, 0, 2, &[]).unwrap();
        other.join().unwrap().unwrap();
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_to_all() {
    let store = Shared::default();
    let soon = [("rendezvous_deadline", "1s")];
    thread::scope(|scope| {
        let first = scope.spawn(|| completed(&store, 0, 3, &soon));
        let other = scope.spawn(|| completed(&store, 2, 3, &soon));
        // Rank 0 has read its arrival only after rank 1's.
        let why = first.join().unwrap().unwrap_err();
        let text = why.to_string();
        assert!(
            matches!(why, JoinError::Store { rank: Some(1), .. }) && text.contains("rank 1 has put nothing"),
            "{text}"
        );
        drop(other);
    });
}

#[test]
fn ranks_that_disagree_on_the_size_all_hear_of_it() {
    let store = Shared::default();
    thread::scope(|scope| {
        let first = scope.spawn(|| completed(&store, 0, 2, &[]));
        let other = completed(&store, 1, 3, &[("rendezvous_deadline", "3s")]);
        let first = first.join().unwrap().unwrap_err();
        assert!(matches!(first, JoinError::Store { rank: Some(1), .. }));
        assert!(first.to_string().contains("rank 1 says that the job has 3 ranks"), "{first}");
        drop(other);
    });
}

#[test]
fn hosts_are_blocks_of_ranks() {
    let arrival = |machine: u8| Arrival {
        nonce: [0; 8],
        size: 5,
        machine: [machine; TAG_LEN],
        host: format!("host-{machine}"),
    };
    let of = |machines: &[u8]| blocks(&machines.iter().map(|machine| arrival(*machine)).collect::<Vec<_>>());
    assert_eq!(of(&[1, 1, 2, 2, 2]), Ok(vec![2, 3]));
    assert_eq!(local(3, &[2, 3]), Some((1, 3)));
    assert_eq!(local(5, &[2, 3]), None);
    assert_eq!(local(1, &[1, u32::MAX]), None);
    assert_eq!(local(u32::MAX, &[2, u32::MAX]), None);
    let (rank, why) = of(&[1, 2, 1]).unwrap_err();
    assert_eq!(rank, 2);
    assert!(why.contains("ranks 0 and 2 are both on host host-1") && why.contains("--map-by slot"), "{why}");
}

#[test]
fn own_addresses_hold_no_loopback_and_the_preferred_one_is_first() {
    let own = own_addresses(Some(Ipv4Addr::new(10, 9, 8, 7))).unwrap();
    let all: Vec<IpAddr> = own.split(',').map(|address| address.parse().unwrap()).collect();
    assert_eq!(all[0], IpAddr::from([10, 9, 8, 7]));
    assert!(all.iter().all(|address| !address.is_loopback()), "{own}");
}
