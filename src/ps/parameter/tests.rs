use super::*;
use crate::ps::message::Envelope;
use crate::ps::shard::Sharding;

fn about(layout: Layout) -> Meta {
    Meta { name: "w".into(), dtype: DType::F32, shape: vec![4, 2], layout, step: 0 }
}

fn parameter(optimizer: Optimizer) -> Parameter {
    let shard = Arc::new(Sharding::Contiguous.shard(4, 0, 1));
    Parameter::new(&None, about(Layout::Dense), optimizer, shard, bytemuck::cast_slice(&[0f32; 8])).unwrap()
}

fn gradient(layout: Layout, rows: &[u64], values: &[f32]) -> Gradient {
    let elements = [bytemuck::cast_slice(rows), bytemuck::cast_slice::<f32, u8>(values)].concat();
    let envelope = Envelope::about(&Head { meta: about(layout), body: Request::Pull(0) }, &elements).unwrap();
    let mut slab = Slab::new(&None, envelope.bytes().len()).unwrap();
    slab.bytes_mut().copy_from_slice(envelope.bytes());
    Gradient::open(slab).unwrap()
}

fn dense(values: [f32; 8]) -> Gradient {
    gradient(Layout::Shard(4), &[], &values)
}

fn rows(rows: &[u64], values: &[f32]) -> Gradient {
    gradient(Layout::Rows(rows.len() as u64), rows, values)
}

fn value(parameter: &Parameter) -> &[f32] {
    bytemuck::cast_slice(parameter.value())
}

/// No update of a test waits.
const SOON: Duration = Duration::ZERO;

const SGD: Optimizer = Optimizer::Sgd { rate: 1.0 };

#[test]
fn gradients_are_folded_in_their_order() {
    // In another order the small one would survive.
    let (large, small) = (1e8f32, 1f32);
    let mut p = parameter(SGD);
    p.update(&[dense([large; 8]), dense([small; 8]), dense([-large; 8])], false, SOON).unwrap();
    assert_eq!(value(&p), [-((large + small) - large); 8]);
    assert_eq!(p.version, 1);
    let mut p = parameter(SGD);
    p.update(&[dense([large; 8]), dense([-large; 8]), dense([small; 8])], false, SOON).unwrap();
    assert_eq!(value(&p), [-1.0; 8]);
}

#[test]
fn an_average_divides_once_by_the_number_of_gradients() {
    let mut p = parameter(SGD);
    p.update(&[dense([1.0; 8]), dense([2.0; 8]), dense([4.0; 8])], true, SOON).unwrap();
    assert_eq!(value(&p), [-(7.0f32 / 3.0); 8]);
}

#[test]
fn rows_update_themselves_alone_and_repeated_ones_are_summed() {
    let mut p = parameter(Optimizer::Momentum { rate: 1.0, momentum: 0.5 });
    p.update(&[rows(&[1, 1, 3], &[1.0, 1.0, 2.0, 2.0, 5.0, 5.0]), rows(&[1], &[4.0, 4.0])], false, SOON)
        .unwrap();
    assert_eq!(value(&p), [0.0, 0.0, -7.0, -7.0, 0.0, 0.0, -5.0, -5.0]);
    p.update(&[rows(&[0], &[1.0, 1.0])], false, SOON).unwrap();
    assert_eq!(value(&p), [-1.0, -1.0, -7.0, -7.0, 0.0, 0.0, -5.0, -5.0], "the velocity of other rows stays");
    p.update(&[rows(&[], &[])], false, SOON).unwrap();
    assert_eq!(p.version, 3);
}

#[test]
fn rows_and_whole_gradients_go_together() {
    for whole_first in [true, false] {
        let mut p = parameter(SGD);
        let mut gradients = [dense([1.0; 8]), rows(&[2], &[10.0, 20.0])];
        if !whole_first {
            gradients.reverse();
        }
        p.update(&gradients, false, SOON).unwrap();
        assert_eq!(value(&p), [-1.0, -1.0, -1.0, -1.0, -11.0, -21.0, -1.0, -1.0]);
    }
}

#[test]
fn indices_are_in_range_and_in_order() {
    let meta = about(Layout::Rows(3));
    assert!(check_rows(&meta, &[0, 2, 2, 3]).is_ok());
    for (indices, at, says) in
        [(&[0u64, 4][..], 1, "4 rows"), (&[2, 3, 1], 2, "the one before is 3"), (&[u64::MAX], 0, "4 rows")]
    {
        let Err(Error::Rows { at: found, why, .. }) = check_rows(&meta, indices) else {
            panic!("{indices:?}")
        };
        assert!(found == at && why.contains(says), "{why}");
    }
}

#[test]
fn a_pull_has_the_rows_and_the_number_of_updates() {
    let mut p = parameter(SGD);
    for _ in 0..300 {
        p.update(&[dense([-1.0; 8])], false, SOON).unwrap();
    }
    let (head, rows) = p.message();
    assert_eq!((head.meta.step, head.meta.layout), (300, Layout::Shard(4)));
    assert_eq!(bytemuck::cast_slice::<u8, f32>(rows.bytes()), [300.0; 8]);
}

#[test]
fn a_message_on_its_way_stays_as_it_was() {
    let mut p = parameter(Optimizer::Momentum { rate: 1.0, momentum: 0.5 });
    let (_, first) = p.message();
    p.update(&[dense([1.0; 8])], false, SOON).unwrap();
    let (_, second) = p.message();
    p.update(&[dense([1.0; 8])], false, SOON).unwrap();
    let data = |rows: &Slab| bytemuck::cast_slice::<u8, f32>(rows.bytes()).to_vec();
    assert_eq!((data(&first), data(&second), value(&p)), (vec![0.0; 8], vec![-1.0; 8], &[-2.5; 8][..]));
}
