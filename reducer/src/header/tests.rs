use super::*;
use crate::dtype::{DType, ReduceOp};
use proptest::prelude::*;

fn any_header() -> impl Strategy<Value = Header> {
    let identity = prop_oneof![
        (any::<u32>(), any::<u32>(), any::<u32>()).prop_map(|(generation, tensor, instance)| {
            Identity::Registered { generation, tensor, instance }
        }),
        any::<u32>().prop_map(|root| Identity::AdHoc { root: Rank(root) }),
        any::<u32>().prop_map(|root| Identity::Started { root: Rank(root) }),
    ];
    let kind = prop_oneof![
        Just(MessageKind::Data),
        Just(MessageKind::Credit),
        Just(MessageKind::Abort),
        Just(MessageKind::Vote),
        Just(MessageKind::Floor),
        Just(MessageKind::Message),
        Just(MessageKind::Ready),
        Just(MessageKind::Clear),
        Just(MessageKind::Taken),
        Just(MessageKind::Refused),
        Just(MessageKind::Withdrawn),
        Just(MessageKind::Relay),
        Just(MessageKind::Relayed)
    ];
    let collective = proptest::sample::select(&Collective::ALL[..]);
    let shape = (collective, 0..DType::ALL.len(), 0..ReduceOp::ALL.len(), 0..=MAX_COUNT).prop_map(
        |(collective, d, o, count)| {
            let (dtype, op) = (DType::ALL[d], ReduceOp::ALL[o]);
            // The first that the type has, where it lacks this one.
            let op =
                if op.is_of(dtype) { op } else { *ReduceOp::ALL.iter().find(|op| op.is_of(dtype)).unwrap() };
            Shape { collective, dtype, op, count }
        },
    );
    let place = (1..=u32::from(u16::MAX), any::<u32>(), any::<u32>());
    (kind, any::<(u32, u32, u32, u64, u32)>(), identity, shape, place).prop_map(
        |(kind, (src, group, epoch, seq, round), identity, shape, (units, index, len))| {
            let granule = units * GRANULE_UNIT as u32;
            Header {
                kind,
                src: Rank(src),
                key: MatchKey { group, epoch, seq },
                identity,
                shape,
                round,
                offset: u64::from(index) * u64::from(granule),
                granule,
                len: if kind.carries_payload() { len % (granule + 1) } else { len },
            }
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read(header in any_header()) {
        let mut bytes = [0; HEADER_BYTES];
        header.encode(&mut bytes);
        prop_assert_eq!(Header::parse(&bytes), Ok(header));
    }

    #[test]
    fn a_message_in_one_fragment_is_read_from_its_short_form(mut header in any_header(), len in 0..=80u32, tag: u32) {
        let elem = header.shape.dtype.size() as u32;
        header.kind = MessageKind::Message;
        header.identity = Identity::AdHoc { root: Rank(tag) };
        header.shape.count = u64::from(len / elem);
        (header.round, header.offset, header.granule, header.len) = (0, 0, 64, len);
        match header.to_short() {
            Some(short) => {
                prop_assert!(len <= 64 && len % elem == 0);
                prop_assert_eq!(Header::of_short(header.src, &short, len as usize), Ok(header));
                prop_assert!(Header::of_short(header.src, &short[1..], len as usize).is_err());
                prop_assert!(Header::of_short(header.src, &short, 65).is_err());
            }
            None => prop_assert!(len > 64 || len % elem != 0),
        }
        // What the short form leaves out has to have one value.
        for other in [
            Header { kind: MessageKind::Data, ..header },
            Header { round: 1, ..header },
            Header { offset: 64, ..header },
            Header { identity: Identity::Started { root: Rank(tag) }, ..header },
        ] {
            prop_assert_eq!(other.to_short(), None);
        }
    }

    #[test]
    fn no_bytes_panic_as_a_short_form(bytes in proptest::collection::vec(any::<u8>(), 0..30), len in 0..100usize) {
        let _ = Header::of_short(Rank(1), &bytes, len);
    }

    #[test]
    fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), valid in any::<bool>()) {
        if valid && bytes.len() >= 4 {
            bytes[..4].copy_from_slice(&[VERSION, 1, 0x20, 2]);
        }
        if let Ok(header) = Header::parse(&bytes) {
            let mut again = [0; HEADER_BYTES];
            header.encode(&mut again);
            prop_assert_eq!(Header::parse(&again), Ok(header));
        }
    }
}

#[test]
fn a_fragment_beyond_its_granule_is_refused() {
    let shape = Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count: 1 };
    let identity = Identity::AdHoc { root: Rank(0) };
    let key = MatchKey::default();
    let mut header = Header {
        kind: MessageKind::Data,
        src: Rank(0),
        key,
        identity,
        shape,
        round: 0,
        offset: 0,
        granule: 64,
        len: 65,
    };
    let mut bytes = [0; HEADER_BYTES];
    header.encode(&mut bytes);
    assert_eq!(Header::parse(&bytes), Err(HeaderError::Granule { len: 65, granule: 64 }));
    header.granule = 0;
    header.encode(&mut bytes);
    assert_eq!(Header::parse(&bytes), Err(HeaderError::Granule { len: 65, granule: 0 }));
    assert_eq!(Header::parse(&bytes[..55]), Err(HeaderError::Short(55)));
}

#[test]
fn every_shape_has_a_code_and_what_a_type_lacks_is_refused() {
    for collective in Collective::ALL {
        for &dtype in DType::ALL {
            for &op in ReduceOp::ALL {
                let shape = Shape { collective, dtype, op, count: 3 };
                let due = match op.check(dtype) {
                    Err(why) if collective.reduces() => Err(HeaderError::NoReduction(why)),
                    _ => Ok(shape),
                };
                assert!(shape.code() < ADHOC);
                assert_eq!(Shape::from_code(shape.code() | ADHOC, 3), due, "{shape}");
            }
        }
    }
    // No code panics, and each stands for one shape.
    for code in 0..ADHOC {
        assert!(
            Shape::from_code(code, 0).is_ok_and(|shape| shape.code() == code)
                || Shape::from_code(code, 0).is_err()
        );
    }
    assert_eq!(Shape::from_code(0, 0), Err(HeaderError::Collective(0)));
    assert_eq!(Shape::from_code(1 << 9 | 17 << 4, 0), Err(HeaderError::DType(DTypeError::Number(17))));
    assert_eq!(Shape::from_code(1 << 9 | 11, 0), Err(HeaderError::Op(ReduceOpError::Number(11))));
}

#[test]
fn a_view_says_what_is_run() {
    let view = |collective, root| {
        let shape = Shape { collective, dtype: DType::F32, op: ReduceOp::Sum, count: 7 };
        View { identity: Identity::AdHoc { root: Rank(root) }, shape }.to_string()
    };
    let counts = COUNTS_OF + Collective::AllToAllV as u32;
    for (view, text) in [
        (view(Collective::AllReduce, 0), "all-reduce sum of 7 x f32"),
        (view(Collective::Broadcast, 2), "broadcast of 7 x f32 with root 2"),
        (view(Collective::ReduceScatter, 0), "reduce-scatter sum of blocks of 7 x f32"),
        (view(Collective::Barrier, 0), "barrier"),
        (view(Collective::Scan, 0), "scan sum of 7 x f32"),
        (
            view(Collective::AllGatherV, 0xabc),
            "all-gather-v of 7 x f32 in blocks with counts of digest 00000abc",
        ),
        (view(Collective::GatherV, 1), "gather-v of 7 x f32 with root 1"),
        (
            view(Collective::AllGather, counts),
            "all-gather of blocks of 7 x f32 (the counts for all-to-all-v)",
        ),
    ] {
        assert_eq!(view, text);
    }
    assert!(view(Collective::AllToAllV, 1).contains("of up to 7 x f32 a rank"));
}
