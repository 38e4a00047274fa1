use super::*;

#[test]
fn memory_is_kept_where_a_message_can_use_it() {
    let mut spare = vec![];
    for len in [0, 8, INLINE] {
        keep(&mut spare, Slab::new(&None, len).unwrap());
    }
    assert!(spare.is_empty());
    for _ in 0..2 * SPARES {
        keep(&mut spare, Slab::new(&None, INLINE + 8).unwrap());
    }
    assert_eq!(spare.len(), SPARES);
}
