use super::*;
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
        Just(MessageKind::Floor)
    ];
    let collective =
        prop_oneof![Just(Collective::AllReduce), Just(Collective::Broadcast), Just(Collective::Barrier)];
    let shape = (collective, 0..DType::ALL.len(), 0..ReduceOp::ALL.len(), 0..=MAX_COUNT).prop_map(
        |(collective, d, o, count)| Shape { collective, dtype: DType::ALL[d], op: ReduceOp::ALL[o], count },
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
                len: if kind == MessageKind::Data { len % (granule + 1) } else { len },
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
    fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), valid in any::<bool>()) {
        if valid && bytes.len() >= 4 {
            bytes[..4].copy_from_slice(&[VERSION, 1, 0x20, 1]);
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
