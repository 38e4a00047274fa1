use proptest::prelude::*;

use super::*;

fn any_options() -> impl Strategy<Value = Options> {
    let timestamps =
        any::<Option<(u32, u32)>>().prop_map(|pair| pair.map(|(value, echo)| Timestamps { value, echo }));
    let blocks = proptest::collection::vec(any::<(u32, u32)>(), 0..=3);
    (any::<Option<u16>>(), proptest::option::of(0u8..=14), any::<bool>(), timestamps, blocks).prop_map(
        |(mss, window_scale, sack_permitted, timestamps, blocks)| {
            let mut sack = SackBlocks::NONE;
            // SYN segments carry no blocks, others no SYN options: together they would not fit.
            if mss.is_none() && window_scale.is_none() && !sack_permitted {
                for (start, end) in blocks {
                    sack.push(SeqRange { start: SeqNumber(start), end: SeqNumber(end) });
                }
            }
            Options { mss, window_scale, sack_permitted, timestamps, sack, user_timeout: None }
        },
    )
}

proptest! {
    #[test]
    fn what_is_emitted_is_parsed(
        ports in any::<(u16, u16)>(), seq: u32, ack: u32, flags: u8, window: u16, urgent: u16,
        options in any_options(),
    ) {
        let header = Header {
            source_port: ports.0,
            destination_port: ports.1,
            seq: SeqNumber(seq),
            ack: SeqNumber(ack),
            flags: Flags(flags),
            window,
            urgent,
            options,
        };
        let bytes = header.emit();
        prop_assert_eq!(bytes.as_bytes().len() % 4, 0);
        prop_assert_eq!(Header::parse(bytes.as_bytes()), Ok((header, bytes.as_bytes().len())));
    }

    #[test]
    fn a_plain_header_is_read_alike(
        seq: u32, ack: u32, push: bool, flag in 0u32..=12, window: u16, stamps: Option<(u32, u32)>,
        blocks in 0u32..=8, trailing in 0usize..=8,
    ) {
        let mut sack = SackBlocks::NONE;
        if blocks == 1 {
            sack.push(SeqRange { start: SeqNumber(seq), end: SeqNumber(ack) });
        }
        let timestamps = stamps.map(|(value, echo)| Timestamps { value, echo });
        let flags = Flags(Flags::ACK.0 ^ 1u8.checked_shl(flag).unwrap_or(0) | if push { Flags::PSH.0 } else { 0 });
        let options = Options { timestamps, sack, ..Options::default() };
        let header = Header {
            source_port: 1,
            destination_port: 2,
            seq: SeqNumber(seq),
            ack: SeqNumber(ack),
            flags,
            window,
            urgent: 0,
            options,
        };
        let mut bytes = header.emit().as_bytes().to_vec();
        // Most often none.
        bytes.extend(core::iter::repeat_n(0, trailing.saturating_sub(5)));
        let plain = flags.without(Flags::PSH) == Flags::ACK && sack.is_empty() && trailing <= 5;
        let expected = PlainHeader {
            source_port: 1,
            destination_port: 2,
            seq: header.seq,
            ack: header.ack,
            window,
            timestamps,
        };
        prop_assert_eq!(PlainHeader::parse(&bytes), plain.then_some(expected));
    }

    #[test]
    fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        if let Ok((_, len)) = Header::parse(&bytes) {
            prop_assert!(len <= bytes.len());
        }
    }

    #[test]
    fn order_survives_the_wrap(start: u32, by in 1u32..0x7fff_ffff) {
        let (a, b) = (SeqNumber(start), SeqNumber(start) + by);
        prop_assert!(a.is_before(b) && b.is_after(a) && b.distance(a) == by && a.distance(b) == 0);
        prop_assert_eq!((a.max(b), a.min(b)), (b, a));
    }
}

#[test]
fn an_impossible_option_length_is_malformed() {
    for options in [&[2u8, 1, 0, 0][..], &[2, 0, 0, 0], &[8, 40, 0, 0], &[1, 1, 1, 2]] {
        assert_eq!(Options::parse(options), Err(Malformed::Length), "{options:?}");
    }
}

#[test]
fn unknown_options_are_skipped_and_the_end_ends() {
    let options = Options::parse(&[254, 4, 9, 9, 2, 4, 5, 180, 0, 8, 1, 1]).unwrap();
    assert_eq!(options, Options { mss: Some(1460), ..Options::default() });
}

#[test]
fn a_user_timeout_in_minutes() {
    let seconds = |bytes: &[u8]| Options::parse(bytes).unwrap().user_timeout.unwrap().seconds;
    assert_eq!((seconds(&[28, 4, 0x80, 2]), seconds(&[28, 4, 0, 30])), (120, 30));
}

#[test]
fn sack_blocks_give_way_to_timestamps() {
    let mut sack = SackBlocks::NONE;
    for n in 0..4 {
        assert!(sack.push(SeqRange { start: SeqNumber(n * 10), end: SeqNumber(n * 10 + 5) }));
    }
    let timestamps = Some(Timestamps { value: 1, echo: 2 });
    let header = Header { options: Options { sack, timestamps, ..Options::default() }, ..Header::default() };
    let (parsed, _) = Header::parse(header.emit().as_bytes()).unwrap();
    //= RFC 2018 section 3: with timestamps three blocks fit.
    assert_eq!(parsed.options.sack.as_slice(), &sack.as_slice()[..3]);
}
