use proptest::prelude::*;

use super::*;
use crate::ps::protocol::{Request, Seen};

const SEEN: Seen = Seen { generation: 2, pushes: 9 };

fn meta(shape: &[u64], layout: Layout) -> Meta {
    Meta { name: "w".into(), dtype: DType::F32, shape: shape.to_vec(), layout, step: 7 }
}

fn envelope(meta: Meta, body: Request) -> Envelope {
    Envelope::new(&None, &Head { meta, body }, &mut None).unwrap()
}

fn opened(bytes: &[u8]) -> Result<(Head<Request>, usize), String> {
    parse(bytes)
}

#[test]
fn a_message_comes_as_it_was_sent() {
    let about = meta(&[3, 2], Layout::Rows(2));
    let mut sent = envelope(about.clone(), Request::Push(SEEN));
    sent.data_mut()[..8].copy_from_slice(&0u64.to_ne_bytes());
    sent.data_mut()[8..16].copy_from_slice(&2u64.to_ne_bytes());
    sent.data_mut()[16..].copy_from_slice(bytemuck::cast_slice(&[1f32, 2.0, 3.0, 4.0]));
    assert_eq!(sent.bytes().len() % 8, 0);
    let arrived = Arrived::<Request>::open(sent.into_slab()).unwrap();
    assert_eq!((&arrived.head.meta, &arrived.head.body), (&about, &Request::Push(SEEN)));
    let (rows, values) = arrived.rows();
    assert_eq!(rows, [0, 2]);
    assert_eq!(bytemuck::cast_slice::<u8, f32>(values), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn another_header_may_go_before_the_same_elements() {
    let widest =
        Head { meta: Meta { step: u64::MAX, ..meta(&[2], Layout::Shard(2)) }, body: Request::Pull(1) };
    let mut sent = Envelope::new(&None, &widest, &mut None).unwrap();
    sent.data_mut().copy_from_slice(bytemuck::cast_slice(&[5f32, 6.0]));
    sent.restamp(&Head { meta: meta(&[2], Layout::Shard(2)), body: Request::Pull(1) }).unwrap();
    let arrived = Arrived::<Request>::open(sent.into_slab()).unwrap();
    assert_eq!(arrived.head.meta.step, 7);
    assert_eq!(bytemuck::cast_slice::<u8, f32>(arrived.data()), [5.0, 6.0]);
}

#[test]
fn bytes_that_are_no_message_are_refused() {
    let sent = envelope(meta(&[4], Layout::Dense), Request::Pull(1));
    let bytes = sent.bytes();
    for len in 0..bytes.len() {
        assert!(opened(&bytes[..len]).is_err(), "{len} bytes");
    }
    let mut longer = bytes.to_vec();
    longer.push(0);
    assert!(opened(&longer).unwrap_err().contains("17 bytes of elements where its header says 16"));
    // A byte in the padding behind the header.
    let mut padded = bytes.to_vec();
    padded[63] = 1;
    assert!(opened(&padded).unwrap_err().contains("left over"));
    let mut other = bytes.to_vec();
    other[0] ^= 1;
    assert!(opened(&other).is_err());
    // Sizes that no memory has.
    let huge = Meta { shape: vec![u64::MAX, u64::MAX], ..meta(&[], Layout::Dense) };
    assert_eq!(huge.data_bytes(), None);
    assert_eq!(meta(&[2, 2], Layout::Rows(u64::MAX)).data_bytes(), None);
    assert!(Envelope::new(&None, &Head { meta: huge, body: Request::Pull(1) }, &mut None).is_err());
    let many = meta(&[1; MOST_DIMENSIONS + 1], Layout::Dense);
    assert!(Envelope::new(&None, &Head { meta: many, body: Request::Pull(1) }, &mut None).is_err());
    assert!(Array::new(&[1f32; 4], &[5]).is_err());
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..64, value in any::<u8>()) {
        let _ = opened(&bytes);
        let mut near = envelope(meta(&[3], Layout::Dense), Request::Push(SEEN)).bytes().to_vec();
        near[at] = value;
        if let Ok((head, data)) = opened(&near) {
            prop_assert_eq!(head.meta.data_bytes(), Some(near.len() - data));
        }
    }
}
