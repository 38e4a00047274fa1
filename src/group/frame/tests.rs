use super::*;

fn part(bytes: &[u8]) -> Message {
    Message::Part { number: 0, tag: String::new(), bytes: bytes.to_vec() }
}

fn pair() -> (Framer, Framer) {
    let key = |byte| Key::from_secret([byte; 32]);
    (Framer::new(key(1), key(2)), Framer::new(key(2), key(1)))
}

#[test]
fn messages_come_out_whole_and_in_order_however_they_are_cut() {
    let (mut a, mut b) = pair();
    let wire =
        [part(b"one"), Message::Leave(None)].map(|message| a.seal(&wire::encode(&message).unwrap())).concat();
    for cut in 0..wire.len() {
        let mut b = Framer::new(b.send.clone(), b.receive.clone());
        let mut inbox = wire[..cut].to_vec();
        let mut out = Vec::new();
        while let Some(message) = b.open(&mut inbox, 10).unwrap() {
            out.push(message);
        }
        inbox.extend_from_slice(&wire[cut..]);
        while let Some(message) = b.open(&mut inbox, 10).unwrap() {
            out.push(message);
        }
        assert_eq!(out, [part(b"one"), Message::Leave(None)], "cut at {cut}");
    }
    assert_eq!(b.open(&mut Vec::new(), 10), Ok(None));
}

#[test]
fn every_flipped_bit_is_seen() {
    let (mut a, b) = pair();
    let wire = a.seal(&wire::encode(&part(b"payload")).unwrap());
    for bit in 0..wire.len() * 8 {
        let mut b = Framer::new(b.send.clone(), b.receive.clone());
        let mut inbox = wire.clone();
        inbox[bit / 8] ^= 1 << (bit % 8);
        // A flip in the length may only make the message incomplete or too long.
        assert!(!matches!(b.open(&mut inbox, 100), Ok(Some(_))), "bit {bit}");
    }
}

#[test]
fn a_message_cannot_be_repeated_left_out_or_sent_back() {
    let (mut a, mut b) = pair();
    let (one, two) = (
        a.seal(&wire::encode(&Message::Lost(1)).unwrap()),
        a.seal(&wire::encode(&Message::Lost(2)).unwrap()),
    );
    assert_eq!(b.open(&mut two.clone(), 10), Err(FrameError::Forged), "the first is left out");
    assert!(b.open(&mut one.clone(), 10).unwrap().is_some());
    assert_eq!(b.open(&mut one.clone(), 10), Err(FrameError::Forged), "repeated");
    assert_eq!(a.open(&mut one.clone(), 10), Err(FrameError::Forged), "sent back");
}

#[test]
fn a_length_beyond_the_limit_is_refused_before_its_bytes_come() {
    let (mut a, mut b) = pair();
    let wire = a.seal(&[0; 11]);
    assert_eq!(b.open(&mut wire[..HEADER_LEN].to_vec(), 10), Err(FrameError::TooLong));
}

#[test]
fn what_is_authentic_and_no_message_is_refused() {
    let (mut a, mut b) = pair();
    for bytes in [&b""[..], b"\xff", &[&wire::encode(&Message::Leave(None)).unwrap()[..], b"more"].concat()] {
        assert_eq!(b.open(&mut a.seal(bytes), 10), Err(FrameError::Malformed));
        b.received += 1;
    }
}
