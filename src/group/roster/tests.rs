use super::*;
use crate::wire;

fn hello(rank: u32, local_rank: u32, local_size: u32) -> Hello {
    let mut hello = Hello::new(rank, 5, local_rank, local_size).unwrap();
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
    assert_eq!(roster.members.iter().map(|member| member.node).collect::<Vec<_>>(), [0, 0, 0, 1, 1]);
    assert_eq!(roster.members[4].blob, [4, 4, 4]);
}

#[test]
fn a_roster_survives_the_wire_and_its_secret_does_not_travel() {
    let key = Key::from_secret([1; 32]);
    let roster = assemble(&[hello(0, 0, 1), hello(1, 0, 1)]).unwrap();
    let bytes = wire::encode(&roster.message(&[2; 32])).unwrap();
    let Ok(Message::Roster { epoch, nonce, members }) = wire::decode(&bytes) else { panic!("not a roster") };
    let received = |key| Roster::received(epoch, &nonce, members.clone(), "job", key);
    assert_eq!(received(&key), roster);
    let secret = key.tag("shouter session v1", &[b"job", &[2; 32]]);
    assert_eq!(roster.session_secret, Key::from_secret(secret));
    assert!(!bytes.windows(8).any(|window| window == &secret[..8]));
    assert_ne!(received(&Key::from_secret([9; 32])).session_secret, roster.session_secret);
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
