use std::collections::HashMap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Table;

/// Against a map, with hashes that collide in their homes and in full.
#[test]
fn it_does_as_a_map_does() {
    for seed in 0..20 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let spread = [3u64, 50, 1 << 40][seed as usize % 3];
        let mut table = Table::new();
        let mut model: HashMap<u32, u64> = HashMap::new();
        for step in 0..4000 {
            let value = rng.random_range(0..600u32);
            match model.get(&value).copied() {
                Some(hash) if rng.random_bool(0.5) => {
                    assert!(table.remove(hash, value), "seed {seed} step {step}");
                    model.remove(&value);
                }
                Some(hash) => {
                    assert_eq!(table.find(hash, |v| v == value), Some(value), "seed {seed} step {step}");
                }
                None => {
                    let hash = rng.random_range(0..spread).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    assert_eq!(table.find(hash, |v| v == value), None, "seed {seed} step {step}");
                    assert!(!table.remove(hash, value), "seed {seed} step {step}");
                    table.insert(hash, value);
                    model.insert(value, hash);
                }
            }
            assert_eq!(table.len(), model.len(), "seed {seed} step {step}");
        }
        for (value, hash) in model {
            assert_eq!(table.find(hash, |v| v == value), Some(value), "seed {seed}");
        }
    }
}
