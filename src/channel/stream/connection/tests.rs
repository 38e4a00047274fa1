use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Collective, Identity, MatchKey, MessageKind, Shape};

use super::*;

/// A frame, owned.
#[derive(Clone, Debug, PartialEq)]
enum Owned {
    Message(Vec<u8>, Vec<u8>),
    Side(Vec<u8>),
    Alive,
    Farewell,
}

impl From<Frame<'_>> for Owned {
    fn from(frame: Frame<'_>) -> Self {
        match frame {
            Frame::Message(header, payload) => Self::Message(header.to_vec(), payload.to_vec()),
            Frame::Side(bytes) => Self::Side(bytes.to_vec()),
            Frame::Alive => Self::Alive,
            Frame::Farewell => Self::Farewell,
        }
    }
}

fn payload(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed) as u8).collect()
}

fn header(index: usize, len: usize) -> Header {
    Header {
        kind: MessageKind::Data,
        src: Rank(index as u32),
        key: MatchKey::default(),
        identity: Identity::AdHoc { root: Rank(0) },
        shape: Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count: 9 },
        round: 0,
        offset: 0,
        granule: 0,
        len: len as u32,
    }
}

/// Frames of every kind, messages with these payload lengths among them, and the frames expected from reading them.
fn stream(lens: &[usize], crc: bool) -> (Vec<u8>, Vec<Owned>) {
    let (mut bytes, mut frames) = (vec![], vec![]);
    for (index, &len) in lens.iter().enumerate() {
        let (header, payload) = (header(index, len), payload(len, index));
        let head = message_head(&header, &payload, crc);
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(&payload);
        frames.push(Owned::Message(head[4..4 + HEADER_BYTES].to_vec(), payload));
    }
    for len in [0, 1, 5000, MAX_SIDE] {
        bytes.extend_from_slice(&side_frame(&payload(len, 3), crc));
        frames.push(Owned::Side(payload(len, 3)));
    }
    bytes.extend_from_slice(&sign(false, crc));
    bytes.extend_from_slice(&sign(true, crc));
    frames.extend([Owned::Alive, Owned::Farewell]);
    (bytes, frames)
}

#[test]
fn frames_come_out_whole_however_the_stream_is_cut() {
    for crc in [true, false] {
        let (bytes, due) = stream(&[0, 1, MAX_FRAGMENT, 64, 0, 0, 1000, 3], crc);
        for cut in (1..200).chain([HEAD - 1, HEAD, HEAD + 1, 1460, 4096, 65_536, bytes.len()]) {
            let (mut frames, mut found) = (Frames::default(), vec![]);
            for piece in bytes.chunks(cut) {
                frames.feed(piece, crc, |frame| found.push(Owned::from(frame))).unwrap();
            }
            assert!(found == due, "pieces of {cut} bytes");
        }
    }
}

#[test]
fn a_frame_that_lies_in_one_piece_is_not_copied() {
    let (bytes, _) = stream(&[5000, 5000], true);
    let mut inside = 0;
    let count = |frame: Frame<'_>| {
        if let Frame::Message(_, payload) = frame {
            inside += usize::from(bytes.as_ptr_range().contains(&payload.as_ptr()));
        }
    };
    Frames::default().feed(&bytes, true, count).unwrap();
    assert_eq!(inside, 2);
}

#[test]
fn a_length_that_no_frame_has_is_an_error_wherever_it_is_cut() {
    let fragment = MAX_FRAGMENT as u32 + 1;
    for what in [fragment, SIDE | (MAX_SIDE as u32 + 1), SIGN | 1, SIDE | SIGN, u32::MAX] {
        let mut bytes = what.to_le_bytes().to_vec();
        bytes.resize(HEAD, 0);
        for cut in 1..=HEAD {
            let mut frames = Frames::default();
            let mut results = bytes.chunks(cut).map(|piece| frames.feed(piece, true, |_| panic!("no frame")));
            assert!(
                results.any(|result| result == Err(BadFrame::Nonsense)),
                "{what:#x} in pieces of {cut} bytes"
            );
        }
    }
}

#[test]
fn every_flipped_bit_is_found_by_the_crc() {
    let payload = payload(100, 1);
    let mut frame = message_head(&header(3, 100), &payload, true).to_vec();
    frame.extend_from_slice(&payload);
    let open = |bytes: &[u8]| {
        let mut frames = 0;
        Frames::default().feed(bytes, true, |_| frames += 1).map(|()| frames)
    };
    assert_eq!(open(&frame), Ok(1));
    for bit in 0..frame.len() * 8 {
        let mut changed = frame.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        // A length that has become greater waits for more; the CRC is looked at then.
        if bit < 32 {
            changed.resize(HEAD + MAX_SIDE, 0);
        }
        assert!(open(&changed).is_err(), "bit {bit}");
    }
    let mut changed = frame.clone();
    changed[HEAD] ^= 1;
    let mut frames = 0;
    assert_eq!(Frames::default().feed(&changed, false, |_| frames += 1), Ok(()), "nobody looks at the CRC");
    assert_eq!(frames, 1);
}
