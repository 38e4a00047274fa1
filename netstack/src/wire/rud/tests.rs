use super::*;
use proptest::prelude::*;

prop_compose! {
    fn any_header()(
        kind in 0..6usize, ack_request in any::<bool>(), body in 0..=MAX_BODY as u8, payload_len in 0..=9000u16,
        tag in any::<u64>(), psn in any::<u32>(), base_lag in 0..=MAX_WINDOW as u16, cumulative in any::<u32>(),
        sack_word in 0..WORDS as u16, sack in any::<u64>(), marks in any::<u16>(), network_marks in any::<bool>(), held in any::<u16>(),
    ) -> Header {
        let kind = [DatagramKind::Data, DatagramKind::Ack, DatagramKind::Probe, DatagramKind::Answer, DatagramKind::Piece, DatagramKind::Bundle][kind];
        let blocks = usize::from(body).min(MAX_BLOCKS * BLOCK_LEN) / BLOCK_LEN * BLOCK_LEN;
        let (body_len, payload_len) = match kind {
            DatagramKind::Data => (body, payload_len),
            DatagramKind::Piece => (body + SPLIT_LEN as u8, payload_len),
            DatagramKind::Bundle => (0, payload_len),
            DatagramKind::Probe => ((blocks + kind.stamp_len()) as u8, payload_len),
            _ => ((blocks + kind.stamp_len()) as u8, 0),
        };
        Header {
            kind, ack_request, body_len, payload_len, tag, psn: Psn(psn), base_lag,
            cumulative: Psn(cumulative), sack_word, sack, marks, network_marks, held: Held(held),
        }
    }
}

proptest! {
    //= rud/spec.md section 4.1, RUD-7
    #[test]
    fn what_is_emitted_is_parsed_again(header in any_header()) {
        let mut datagram = vec![0; header.payload_offset() + header.payload_len as usize];
        header.emit(datagram.first_chunk_mut().unwrap());
        prop_assert_eq!(Header::parse(&datagram), Ok(header));
        let mut sealed = [&datagram[..], &[0; SEAL_LEN]].concat();
        Header::mark_sealed(sealed.first_chunk_mut().unwrap(), header.tag);
        prop_assert_eq!(Header::parse_sealed(&sealed), Ok((header, header.tag as u32)));
        prop_assert!(Header::parse(&sealed).is_err() && Header::parse_sealed(&datagram).is_err());
        datagram.push(0);
        prop_assert_eq!(Header::parse(&datagram), Err(MalformedDatagram::Length));
        datagram.truncate(HEADER_LEN - 1);
        prop_assert_eq!(Header::parse(&datagram), Err(MalformedDatagram::Short));
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(header) = Header::parse(&bytes) {
            prop_assert!(header.payload_offset() <= bytes.len());
            let mut again = bytes.clone();
            header.emit(again.first_chunk_mut().unwrap());
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn blocks_come_back(words in proptest::collection::vec((0..WORDS as u16, any::<Option<[u8; 2]>>(), any::<u64>(), any::<u64>()), 0..=MAX_BLOCKS)) {
        let blocks: Vec<Block> =
            words.into_iter().map(|(word, bundle, received, refused)| {
                let bundle = bundle.map(|bytes| Block::BUNDLE | (u16::from_be_bytes(bytes) % 4096));
                Block { word: bundle.unwrap_or(word), received, refused }
            }).collect();
        let mut body = vec![0; blocks.len() * BLOCK_LEN];
        for (block, out) in blocks.iter().zip(body.as_chunks_mut::<BLOCK_LEN>().0) {
            block.emit(out);
        }
        prop_assert_eq!(Block::parse_all(&body).collect::<Vec<_>>(), blocks);
    }
}

#[test]
fn a_piece_says_which_part_it_has() {
    let header =
        Header { kind: DatagramKind::Piece, body_len: 5 + SPLIT_LEN as u8, payload_len: 3, ..HEADER };
    let mut datagram = vec![0; HEADER_LEN + 5 + SPLIT_LEN + 3];
    header.emit(datagram.first_chunk_mut().unwrap());
    let split = Split { unit: 17, total: 8_896 };
    split.emit(datagram[HEADER_LEN + 5..].first_chunk_mut().unwrap());
    assert_eq!(Header::parse(&datagram).unwrap().split(&datagram), Some(split));
    assert_eq!(Header { kind: DatagramKind::Data, ..header }.split(&datagram), None);
    // Without room for that, it is none.
    Header { body_len: SPLIT_LEN as u8 - 1, payload_len: 9, ..header }
        .emit(datagram.first_chunk_mut().unwrap());
    assert_eq!(Header::parse(&datagram), Err(MalformedDatagram::Length));
}

proptest! {
    #[test]
    fn what_is_whole_is_made_of_its_messages(bytes in proptest::collection::vec(0..6u8, 0..100)) {
        if Bundled::are_whole(&bytes) {
            let again: Vec<u8> = Bundled::new(&bytes)
                .flat_map(|(header, payload)| [&[header.len() as u8, payload.len() as u8], header, payload].concat())
                .collect();
            prop_assert_eq!(again, bytes);
        }
    }
}

//= rud/spec.md section 4.2, RUD-10
#[test]
fn a_bundle_has_whole_messages_and_nothing_else() {
    let messages = |payload: &[u8]| Bundled::new(payload).count();
    assert!(Bundled::are_whole(&[0, 0]) && Bundled::are_whole(&[1, 2, 3, 4, 5, 0, 1, 6]));
    assert_eq!(messages(&[1, 2, 3, 4, 5, 0, 1, 6]), 2);
    for broken in [&[][..], &[0], &[1, 0], &[0, 3, 1, 2], &[0, 0, 9], &[1, 1, 0, 0, 200, 0]] {
        assert!(!Bundled::are_whole(broken), "{broken:?}");
    }
    assert!(Bundled::are_whole(&[0; 2 * MAX_BUNDLED]) && !Bundled::are_whole(&[0; 2 * MAX_BUNDLED + 2]));
    let long_header = |len: u8| [&[len, 0][..], &vec![0; len.into()]].concat();
    assert!(Bundled::are_whole(&long_header(64)) && !Bundled::are_whole(&long_header(65)));
}

#[test]
fn a_psn_wraps() {
    assert!(Psn(u32::MAX).is_before(Psn(3)));
    assert!(!Psn(3).is_before(Psn(u32::MAX)));
    assert_eq!(Psn(3).since(Psn(u32::MAX)), 4);
    assert_eq!(Psn(u32::MAX).plus(4), Psn(3));
    assert_eq!(Psn(u32::MAX).word_start(), Psn(u32::MAX - 63));
}

const HEADER: Header = Header {
    kind: DatagramKind::Data,
    ack_request: false,
    body_len: 0,
    payload_len: 0,
    tag: 7,
    psn: Psn(1),
    base_lag: 0,
    cumulative: Psn(1),
    sack_word: 0,
    sack: 0,
    marks: 0,
    network_marks: false,
    held: Held::new(0, false),
};

//= rud/spec.md section 4.1, RUD-8
#[test]
fn fields_out_of_range_are_refused() {
    let header = HEADER;
    let mut bytes = [0; HEADER_LEN];
    Header { sack_word: WORDS as u16, ..header }.emit(&mut bytes);
    assert_eq!(Header::parse(&bytes), Err(MalformedDatagram::Range));
    Header { base_lag: MAX_WINDOW as u16 + 1, ..header }.emit(&mut bytes);
    assert_eq!(Header::parse(&bytes), Err(MalformedDatagram::Range));
    Header { body_len: MAX_BODY as u8 + 1, ..header }.emit(&mut bytes);
    assert_eq!(Header::parse(&bytes), Err(MalformedDatagram::Range));
    let mut half_a_block = [0; HEADER_LEN + BLOCK_LEN / 2];
    Header { kind: DatagramKind::Ack, body_len: BLOCK_LEN as u8 / 2, ..header }
        .emit(half_a_block.first_chunk_mut().unwrap());
    assert_eq!(Header::parse(&half_a_block), Err(MalformedDatagram::Length));
    header.emit(&mut bytes);
    bytes[4] = 0x10;
    assert_eq!(Header::parse(&bytes), Err(MalformedDatagram::Version));
    for kind in [0x46, 0x48, 0x4e] {
        bytes[4] = kind;
        assert_eq!(Header::parse(&bytes), Err(MalformedDatagram::Kind));
    }
    let sealed = |kind: u8, len: usize| {
        let mut bytes = [&bytes[..], &[0; SEAL_LEN]].concat();
        bytes[4] = kind;
        Header::parse_sealed(&bytes[..len]).map(|(header, number)| (header.kind, number))
    };
    let whole = HEADER_LEN + SEAL_LEN;
    assert_eq!(sealed(0x48, whole), Ok((DatagramKind::Data, 0)));
    assert_eq!(sealed(0x48, whole - 1), Err(MalformedDatagram::Length));
    assert_eq!(sealed(0x48, HEADER_LEN - 1), Err(MalformedDatagram::Short));
    assert_eq!(sealed(0x38, whole), Err(MalformedDatagram::Version));
    assert_eq!(
        (sealed(0x40, whole), sealed(0x4e, whole)),
        (Err(MalformedDatagram::Kind), Err(MalformedDatagram::Kind))
    );
}

#[test]
fn a_holding_time_is_told_in_units_up_to_four_milliseconds() {
    assert_eq!((Held::new(0, false).nanos(), Held::new(127, false).nanos()), (Some(0), Some(0)));
    assert_eq!(Held::new(20_000, false).nanos(), Some(19_968));
    assert_eq!(Held::new(32_766 * 128, true).nanos(), Some(32_766 * 128));
    assert_eq!((Held::new(32_767 * 128, false).nanos(), Held::new(u64::MAX, false).nanos()), (None, None));
    assert!(Held::new(u64::MAX, true).is_late() && !Held::new(u64::MAX, false).is_late());
}
