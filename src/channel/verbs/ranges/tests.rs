use super::*;

#[test]
fn a_range_is_found_by_what_lies_in_it_and_by_nothing_else() {
    let mut ranges = Ranges::default();
    for (base, len, key) in [(300, 50, 3), (100, 100, 1), (200, 100, 2)] {
        assert!(ranges.is_free(base, len));
        ranges.insert(base, len, key);
    }
    for _ in 0..2 {
        assert_eq!(ranges.find(100, 100), Some((1, 0)));
        assert_eq!(ranges.find(299, 1), Some((2, 99)));
        assert_eq!(ranges.find(310, 40), Some((3, 10)));
        assert_eq!(ranges.find(310, 41), None);
        assert_eq!(ranges.find(190, 20), None, "not across two registrations");
        assert_eq!(ranges.find(99, 1), None);
        assert_eq!(ranges.find(usize::MAX, 2), None);
    }
    assert_eq!(ranges.remove(250), None);
    assert_eq!(ranges.remove(200), Some(2));
    assert_eq!((ranges.find(299, 1), ranges.len()), (None, 2));
}

#[test]
fn what_overlaps_is_seen() {
    let mut ranges = Ranges::default();
    ranges.insert(100, 100, 1);
    for (base, len, free) in [
        (0, 100, true),
        (0, 101, false),
        (100, 1, false),
        (150, 500, false),
        (199, 1, false),
        (200, 1, true),
        (0, 500, false),
    ] {
        assert_eq!(ranges.is_free(base, len), free, "{base}, {len}");
    }
}
