use super::*;
use crate::group::message::Message;
use crate::wire;

fn key(byte: u8) -> Key {
    Key::from_secret([byte; 32])
}

struct Ends {
    listener: Acceptor,
    connector: Connector,
}

fn ends() -> Ends {
    Ends { listener: Acceptor::new(VERSION, [1; 32]), connector: Connector::new(VERSION, [2; 32]) }
}

/// Runs a handshake and returns the conclusion of each end.
fn shake(
    listener_key: &Key,
    connector_key: &Key,
    jobs: [&str; 2],
) -> (Option<Peer>, Result<(Framer, u32), HandshakeError>) {
    let Ends { mut listener, mut connector } = ends();
    let Ok(Answer::Send(theirs)) = listener.step(listener_key, jobs[0], connector.opening()) else {
        panic!("an opening is answered")
    };
    let proof = connector.prove(connector_key, jobs[1], &theirs).unwrap();
    match listener.step(listener_key, jobs[0], &proof).unwrap() {
        Answer::Welcome(verdict, peer) => (Some(peer), connector.conclude(connector_key, &verdict)),
        Answer::Refuse(verdict) => (None, connector.conclude(connector_key, &verdict)),
        Answer::Send(_) => panic!("the second step decides"),
    }
}

#[test]
fn two_holders_of_the_key_can_talk() {
    let (peer, framer) = shake(&key(1), &key(1), ["a", "a"]);
    let (mut peer, (mut framer, version)) = (peer.unwrap(), framer.unwrap());
    assert!(peer.same_job && peer.version == VERSION && version == VERSION);
    let mut wire = framer.seal(&wire::encode(&Message::Lost(1)).unwrap());
    assert_eq!(peer.framer.open(&mut wire, 100), Ok(Some(Message::Lost(1))));
    let mut wire = peer.framer.seal(&wire::encode(&Message::Leave(None)).unwrap());
    assert_eq!(framer.open(&mut wire, 100), Ok(Some(Message::Leave(None))));
}

#[test]
fn another_key_is_refused_on_both_ends() {
    let (peer, framer) = shake(&key(1), &key(2), ["a", "a"]);
    assert!(peer.is_none());
    assert_eq!(framer.err(), Some(HandshakeError::WrongKey));
}

#[test]
fn another_job_with_the_same_key_is_told_apart() {
    let (peer, _) = shake(&key(1), &key(1), ["a", "b"]);
    assert!(!peer.unwrap().same_job);
}

#[test]
fn a_false_listener_cannot_prove_itself() {
    let Ends { connector: mut honest, .. } = ends();
    let theirs = opening(LISTENER_MAGIC, VERSION, &[9; 32]);
    let proof = honest.prove(&key(1), "a", &theirs).unwrap();
    // It returns the connector's own proof, having no other.
    let mut verdict = [ACCEPTED; VERDICT_LEN];
    verdict[1..].copy_from_slice(&proof[TAG_LEN..]);
    assert_eq!(honest.conclude(&key(1), &verdict).err(), Some(HandshakeError::WrongKey));
}

#[test]
fn a_recorded_proof_is_of_no_use_for_another_nonce() {
    let Ends { mut listener, mut connector } = ends();
    let Ok(Answer::Send(theirs)) = listener.step(&key(1), "a", connector.opening()) else { panic!() };
    let proof = connector.prove(&key(1), "a", &theirs).unwrap();
    let mut later = Acceptor::new(VERSION, [3; 32]);
    let Ok(Answer::Send(_)) = later.step(&key(1), "a", connector.opening()) else { panic!() };
    assert!(matches!(later.step(&key(1), "a", &proof), Ok(Answer::Refuse(_))));
}

#[test]
fn a_foreign_protocol_is_seen_at_its_first_byte() {
    let Ends { mut listener, mut connector } = ends();
    assert!(!listener.plausible(b"G"));
    assert!(listener.plausible(b"") && listener.plausible(b"SHOU"));
    assert!(!listener.plausible(b"SHOUTER\x02"), "another listener");
    let http = [b"GET / HTTP/1.1\r\n".to_vec(), vec![b' '; 64]].concat();
    assert_eq!(listener.step(&key(1), "a", &http[..OPENING_LEN]).err(), Some(HandshakeError::OtherProtocol));
    let foreign: Opening = http[..OPENING_LEN].try_into().unwrap();
    assert_eq!(connector.prove(&key(1), "a", &foreign).err(), Some(HandshakeError::OtherProtocol));
}

/// The handshake comes before versions are compared, so it never changes: every byte of one with fixed nonces. The digests
/// were computed by Python's hmac module.
#[test]
fn the_handshake_stays_as_it_is_byte_for_byte() {
    let mut listener = Acceptor::new(0x0102_0304, [1; 32]);
    let mut connector = Connector::new(0x0506_0708, [2; 32]);
    assert_eq!(
        hex::encode(connector.opening()),
        format!("53484f5554455201{}{}", "05060708", "02".repeat(32))
    );
    let Ok(Answer::Send(theirs)) = listener.step(&key(7), "job", connector.opening()) else { panic!() };
    assert_eq!(hex::encode(theirs), format!("53484f5554455202{}{}", "01020304", "01".repeat(32)));
    let proof = connector.prove(&key(7), "job", &theirs).unwrap();
    assert_eq!(hex::encode(&proof[..32]), "6f52c10bb3ad93d1095616648cb675c9481f6567fa946ad6ecbb4d5c90bcd9b5");
    assert_eq!(hex::encode(&proof[32..]), "7cfb327a3a49df1e04146734b6d78063163eb709ccc616ca8a6e43dd2bf62a29");
    let Ok(Answer::Welcome(verdict, _)) = listener.step(&key(7), "job", &proof) else { panic!() };
    assert_eq!(hex::encode(verdict), "00d8879757735ee5256f9f32a0ba68fe646844ad1ce18c4e992ad007da97cea535");
    let mut other = Acceptor::new(1, [1; 32]);
    other.step(&key(7), "job", connector.opening()).ok().unwrap();
    let Ok(Answer::Refuse(verdict)) = other.step(&key(7), "job", &proof) else { panic!() };
    assert_eq!(hex::encode(verdict), format!("01{}", "00".repeat(32)));
}
