use super::*;

#[test]
fn finds_what_was_inserted_through_many_removals() {
    let mut table = TagTable::new(64);
    // Tags whose homes collide: multiples of a large power of two share their hash's upper bits rarely, small
    // consecutive numbers do so by design of the test.
    for round in 0u64..50 {
        let tags: Vec<u64> = (1..=64).map(|i| i + round * 7).collect();
        for (index, tag) in tags.iter().enumerate() {
            table.insert(*tag, index as u16);
        }
        for (index, tag) in tags.iter().enumerate() {
            if (index as u64 + round).is_multiple_of(3) {
                table.remove(*tag);
            }
        }
        for (index, tag) in tags.iter().enumerate() {
            let removed = (index as u64 + round).is_multiple_of(3);
            assert_eq!(table.get(*tag), (!removed).then_some(index as u16), "round {round}, tag {tag}");
            table.remove(*tag);
        }
        assert!(table.slots.iter().all(|slot| slot.0 == 0), "round {round}");
    }
    assert_eq!(table.get(0), None);
}
