use proptest::prelude::*;

use super::*;
use crate::ps::protocol::{Request, Seen};

const SEEN: Seen = Seen { generation: 2, pushes: 9 };

fn meta(shape: &[u64], layout: Layout) -> Meta {
    Meta { name: "w".into(), dtype: DType::F32, shape: shape.to_vec(), layout, step: 7 }
}

fn envelope(meta: Meta, body: Request) -> Envelope {
    Envelope::new(&None, &Head { meta, body }).unwrap()
}

/// The bytes as they come.
fn slab(bytes: &[u8]) -> Slab {
    let mut slab = Slab::new(&None, bytes.len()).unwrap();
    slab.bytes_mut().copy_from_slice(bytes);
    slab
}

fn opened(bytes: &[u8]) -> Result<Arrived<Request>, String> {
    Arrived::open(slab(bytes))
}

#[test]
fn a_message_comes_as_it_was_sent() {
    let about = meta(&[3, 2], Layout::Rows(2));
    let mut sent = envelope(about.clone(), Request::Push(SEEN));
    sent.data_mut()[..8].copy_from_slice(&0u64.to_ne_bytes());
    sent.data_mut()[8..16].copy_from_slice(&2u64.to_ne_bytes());
    sent.data_mut()[16..].copy_from_slice(bytemuck::cast_slice(&[1f32, 2.0, 3.0, 4.0]));
    assert_eq!(sent.bytes().len() % 8, 0);
    let arrived = opened(sent.bytes()).unwrap();
    assert_eq!((&arrived.head.meta, &arrived.head.body), (&about, &Request::Push(SEEN)));
    let (rows, values) = arrived.rows();
    assert_eq!(rows, [0, 2]);
    assert_eq!(bytemuck::cast_slice::<u8, f32>(values), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn many_elements_may_come_behind_their_header() {
    let about = meta(&[INLINE as u64 / 4 + 1], Layout::Dense);
    let elements = vec![7u8; INLINE + 4];
    let head = Head { meta: about, body: Request::Pull(1) };
    let sent = Envelope::about(&head, &elements).unwrap();
    assert!(sent.bytes().len() < 256, "the header alone");
    assert!(refused(sent.bytes()).contains("0 bytes of elements where its header says 65540"));
    let arrived = Arrived::<Request>::of_client_or_server(slab(sent.bytes())).unwrap();
    assert_eq!(arrived.missing(), INLINE + 4);
    let arrived = arrived.complete(slab(&elements));
    assert_eq!((arrived.missing(), arrived.data()), (0, &*elements));
    // A few do not.
    let head = Head { meta: meta(&[INLINE as u64 / 4], Layout::Dense), body: Request::Pull(1) };
    let sent = Envelope::about(&head, &elements[..INLINE]).unwrap();
    assert_eq!(opened(sent.bytes()).unwrap().data(), &elements[..INLINE]);
    assert!(sent.bytes().len() <= LONGEST_INLINE);
    let alone = &sent.bytes()[..sent.bytes().len() - INLINE];
    assert!(Arrived::<Request>::of_client_or_server(slab(alone)).is_err());
}

fn refused(bytes: &[u8]) -> String {
    opened(bytes).map(|arrived| arrived.head).unwrap_err()
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
    assert!(refused(&longer).contains("17 bytes of elements where its header says 16"));
    // A byte in the padding behind the header.
    let mut padded = bytes.to_vec();
    padded[63] = 1;
    assert!(refused(&padded).contains("left over"));
    let mut other = bytes.to_vec();
    other[0] ^= 1;
    assert!(opened(&other).is_err());
    // Sizes that no memory has.
    let huge = Meta { shape: vec![u64::MAX, u64::MAX], ..meta(&[], Layout::Dense) };
    assert_eq!(huge.data_bytes(), None);
    assert_eq!(meta(&[2, 2], Layout::Rows(u64::MAX)).data_bytes(), None);
    assert!(Envelope::new(&None, &Head { meta: huge, body: Request::Pull(1) }).is_err());
    let many = meta(&[1; MOST_DIMENSIONS + 1], Layout::Dense);
    assert!(Envelope::new(&None, &Head { meta: many, body: Request::Pull(1) }).is_err());
    assert!(Array::new(&[1f32; 4], &[5]).is_err());
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..64, value in any::<u8>()) {
        let _ = opened(&bytes);
        let mut near = envelope(meta(&[3], Layout::Dense), Request::Push(SEEN)).bytes().to_vec();
        near[at] = value;
        if let Ok(arrived) = opened(&near) {
            prop_assert_eq!(arrived.head.meta.data_bytes(), Some(arrived.data().len()));
        }
        if let Ok(arrived) = Arrived::<Request>::of_client_or_server(slab(&near)) {
            prop_assert_eq!(arrived.head.meta.data_bytes(), Some(arrived.data().len() + arrived.missing()));
        }
    }
}
