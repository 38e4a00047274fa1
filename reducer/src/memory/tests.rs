use super::*;

#[test]
fn a_pool_hands_out_disjoint_pieces_and_merges_them_again() {
    let mut pool = Pool::new(64 * 8).unwrap();
    assert_eq!(pool.capacity(), 512);
    let (a, b, c) = (pool.take(1).unwrap(), pool.take(100).unwrap(), pool.take(64).unwrap());
    let ranges: Vec<_> =
        [&a, &b, &c].map(|p| (p.region().as_ptr() as usize, p.region().len())).into_iter().collect();
    assert_eq!(ranges.iter().map(|r| r.1).collect::<Vec<_>>(), [64, 128, 64]);
    assert!(ranges.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
    assert!(pool.take(512).is_none());
    pool.put(b);
    pool.put(a);
    pool.put(c);
    assert!(pool.take(512).is_some());
}

#[test]
fn ranges_outside_a_region_are_refused() {
    let region = TensorRegion::empty();
    assert!(region.span(0, 0).is_some());
    assert!(region.span(0, 1).is_none());
    assert!(region.span(usize::MAX, 2).is_none());
    assert!(write((region, 0), &[1]).is_none());
}

#[test]
fn there_is_not_so_much_memory() {
    // More than addresses have bits for, and less than what an allocation may ask for.
    assert!(Owned::new(1 << 60).is_none());
    assert!(Owned::new(usize::MAX).is_none());
}
