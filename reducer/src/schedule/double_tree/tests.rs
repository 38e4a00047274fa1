use super::*;

#[test]
fn every_node_is_in_both_trees_and_inside_one_at_most() {
    for nodes in 2..=130u32 {
        let places: Vec<_> = (0..nodes).map(|me| below_root(me, nodes)).collect();
        for tree in [0, 1] {
            let mut depth = 0;
            for me in 1..nodes {
                // Each is a child of its parent, and the way up ends at the root.
                let (mut at, mut hops) = (me, 0);
                while let Some(parent) = places[at as usize][tree].parent {
                    assert!(places[parent as usize][tree].children.contains(&at), "{at} of {nodes}");
                    (at, hops) = (parent, hops + 1);
                }
                assert_eq!(at, 0, "{me} of {nodes}");
                depth = depth.max(hops);
            }
            assert!(depth <= nodes.ilog2() + 1, "{depth} for {nodes}");
        }
        for place in &places[1..] {
            assert!(place.iter().any(|tree| tree.children.is_empty()), "{place:?} of {nodes}");
            assert!(place.iter().all(|tree| tree.children.len() <= 2), "{place:?} of {nodes}");
        }
    }
}
