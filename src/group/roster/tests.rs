use super::*;

fn hello(rank: u32, local_rank: u32, local_size: u32) -> Hello {
    let mut hello = Hello::new(rank, 5, local_rank, local_size);
    hello.blob = vec![rank as u8; 3];
    hello
}

fn assemble(hellos: &[Hello]) -> Result<Roster, Refusal> {
    Roster::assemble(hellos, "job", &Key::from_secret([1; 32]), &[2; 32])
}

#[test]
fn blocks_of_unequal_length_become_nodes() {
    let roster =
        assemble(&[hello(0, 0, 3), hello(1, 1, 3), hello(2, 2, 3), hello(3, 0, 2), hello(4, 1, 2)]).unwrap();
    assert_eq!(roster.nodes(), 2);
    assert_eq!(roster.ranks_of(0).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(roster.ranks_of(1).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(roster.members[4].blob, [4, 4, 4]);
}

#[test]
fn a_roster_survives_the_wire_and_its_secret_does_not_travel() {
    let key = Key::from_secret([1; 32]);
    let roster = assemble(&[hello(0, 0, 1), hello(1, 0, 1)]).unwrap();
    let bytes = roster.encode(&[2; 32]);
    assert_eq!(Roster::decode(&bytes, "job", &key), Ok(roster.clone()));
    let secret = key.tag("shouter session v1", &[b"job", &[2; 32]]);
    assert_eq!(roster.session_secret, Key::from_secret(secret));
    assert!(!bytes.windows(8).any(|window| window == &secret[..8]));
    let other = Roster::decode(&bytes, "job", &Key::from_secret([9; 32])).unwrap();
    assert_ne!(other.session_secret, roster.session_secret);
    for cut in 0..bytes.len() {
        assert_eq!(Roster::decode(&bytes[..cut], "job", &key), Err(Malformed), "cut at {cut}");
    }
}

#[test]
fn ranks_that_do_not_fill_hosts_in_blocks_are_named() {
    let cases: [(Vec<Hello>, u32, &str); 6] = [
        (vec![hello(0, 1, 2), hello(1, 0, 2)], 0, "begins a host and has local rank 1"),
        (vec![hello(0, 0, 3), hello(1, 1, 3)], 0, "go beyond the job's 2"),
        (vec![hello(0, 0, 2), hello(1, 0, 1)], 1, "local rank 0 of 1"),
        (vec![hello(0, 0, 0)], 0, "has no ranks"),
        (vec![hello(0, 0, 2), hello(1, 1, 2).on_machine(7)], 1, "runs on another machine"),
        (vec![hello(0, 0, u32::MAX), hello(1, 1, 3)], 0, "go beyond"),
    ];
    for (hellos, rank, message) in cases {
        let refusal = assemble(&hellos).unwrap_err();
        assert!(matches!(&refusal, Refusal::Place { rank: found, .. } if *found == rank), "{refusal}");
        assert!(refusal.to_string().contains(message), "{refusal}");
    }
    let mut misled = hello(1, 0, 1);
    misled.node = Some(3);
    assert!(
        assemble(&[hello(0, 0, 1), misled])
            .unwrap_err()
            .to_string()
            .contains("number 3, and by rank it is 1")
    );
}

#[test]
fn a_hello_survives_the_wire_and_a_damaged_one_does_not() {
    let mut hello = hello(3, 1, 2);
    hello.node = Some(1);
    hello.table = vec![9; 100];
    let bytes = hello.encode();
    assert_eq!(Hello::decode(&bytes), Ok(hello));
    for cut in 0..bytes.len() {
        assert_eq!(Hello::decode(&bytes[..cut]), Err(Malformed), "cut at {cut}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(Hello::decode(&longer), Err(Malformed));
}

#[test]
fn damaged_bytes_from_ten_thousand_seeds_do_not_panic() {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    let key = Key::from_secret([1; 32]);
    let whole = assemble(&[hello(0, 0, 1), hello(1, 0, 1)]).unwrap().encode(&[2; 32]);
    for seed in 0..10_000 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut bytes = if seed % 2 == 0 { whole.clone() } else { hello(3, 1, 2).encode() };
        for _ in 0..rng.random_range(1..8) {
            let at = rng.random_range(0..bytes.len());
            bytes[at] = rng.random();
        }
        bytes.truncate(rng.random_range(0..=bytes.len()));
        // Whatever is still understood must say the same when it is said again.
        if let Ok(hello) = Hello::decode(&bytes) {
            assert_eq!(hello.encode(), bytes, "seed {seed}");
        }
        if let Ok(roster) = Roster::decode(&bytes, "job", &key) {
            assert_eq!(Roster::decode(&bytes, "job", &key), Ok(roster), "seed {seed}");
        }
    }
}
