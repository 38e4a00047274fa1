use super::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

#[test]
fn the_first_is_that_of_a_table() {
    let mut rng = SmallRng::seed_from_u64(9);
    let mut deadlines = Deadlines::default();
    let mut table = vec![None; 300];
    assert_eq!(deadlines.first(), (NEVER, NOWHERE));
    for _ in 0..100_000 {
        if rng.random_bool(0.7) {
            let (session, time) = (rng.random_range(0..300u16), rng.random_range(0..1000u64));
            deadlines.bring_forward(session, time);
            let known: &mut Option<u64> = &mut table[usize::from(session)];
            *known = Some(known.map_or(time, |known| known.min(time)));
        } else {
            let (time, session) = deadlines.first();
            let later =
                if rng.random_bool(0.1) { NEVER } else { time.saturating_add(rng.random_range(0..500)) };
            deadlines.put_off_first(later);
            if session != NOWHERE {
                table[usize::from(session)] = Some(later);
            }
        }
        let (time, session) = deadlines.first();
        assert_eq!(Some(time), table.iter().flatten().min().copied().or(Some(NEVER)));
        assert!(session == NOWHERE || table[usize::from(session)] == Some(time));
    }
}
