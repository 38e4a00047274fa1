use std::time::Duration;

use super::*;

const FRAGMENT: usize = 32 << 10;

fn load(rate: f64) -> Load {
    Load { open: true, unacknowledged: 0, unsent: 0, rate }
}

/// Gives away the fragments, and returns how many each connection got.
fn share(loads: &mut [Load], fragments: usize) -> Vec<usize> {
    let mut taken = vec![0; loads.len()];
    for left in (1..=fragments).rev() {
        let Some(index) = pick(loads, left * FRAGMENT, FRAGMENT) else { break };
        loads[index].add(FRAGMENT);
        taken[index] += 1;
    }
    taken
}

#[test]
fn equal_connections_take_equal_parts() {
    assert_eq!(share(&mut [load(1e8); 10], 20), vec![2; 10]);
}

#[test]
fn nobody_takes_more_than_it_can_send_soon() {
    let most = UNSENT.div_ceil(FRAGMENT);
    assert_eq!(share(&mut [load(1e8); 10], 1000), vec![most; 10]);
}

#[test]
fn a_slow_connection_takes_nothing_that_the_others_would_have_done_sooner() {
    let mut loads = [load(1e8); 10];
    loads[3] = load(1e7);
    let taken = share(&mut loads, 9);
    assert_eq!((taken[3], taken.iter().sum()), (0, 9));
    // With more to do its part is worth having.
    loads.iter_mut().for_each(|load| (load.unacknowledged, load.unsent) = (0, 0));
    let taken = share(&mut loads, 1000);
    assert!(taken[3] >= 1, "{taken:?}");
}

#[test]
fn the_only_usable_connection_takes_everything_and_none_takes_nothing() {
    let mut loads = [Load { open: false, ..load(1e9) }, load(1.0)];
    assert_eq!(pick(&loads, FRAGMENT, FRAGMENT), Some(1));
    loads[1].open = false;
    assert_eq!(pick(&loads, FRAGMENT, FRAGMENT), None);
    assert_eq!(pick(&[], 0, 0), None);
}

#[test]
fn a_fast_connection_that_is_full_is_waited_for_at_the_end() {
    let full = Load { unacknowledged: 2 * UNSENT, unsent: UNSENT, ..load(1e9) };
    assert_eq!(pick(&[full, load(1e6)], FRAGMENT, FRAGMENT), None);
    assert_eq!(pick(&[full, load(1e6)], 1 << 30, FRAGMENT), Some(1));
}

#[test]
fn rates_are_windows_per_round_trip() {
    assert_eq!(Load::rate(1000, Some(Duration::from_millis(1))), 1e6);
    assert!(Load::rate(0, Some(Duration::ZERO)).is_finite() && Load::rate(0, None) > 0.0);
}
