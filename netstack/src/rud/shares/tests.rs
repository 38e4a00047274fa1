use super::*;
use std::collections::VecDeque;

const PATHS: u16 = 8;
const WINDOW: u32 = 64;

/// A datagram on a path that is late arrives so many datagrams after others of its time.
const BEHIND: usize = 16;

/// Sends so many datagrams, of which those on `slow` are late; how many each path took.
fn send(shares: &mut Shares, from: &mut u16, count: u32, slow: &[u16]) -> [u32; PATHS as usize] {
    let mut taken = [0; PATHS as usize];
    let mut behind = VecDeque::from([None; BEHIND]);
    for _ in 0..count {
        let path = *from;
        taken[usize::from(path)] += 1;
        let is_slow = slow.contains(&path);
        behind.push_back(is_slow.then_some(path));
        // Late with each acknowledgement until it arrives.
        for late in behind.iter().flatten() {
            shares.on_late(*late, PATHS, WINDOW);
        }
        let arrives = [(!is_slow).then_some(path), behind.pop_front().flatten()];
        if shares.are_kept() {
            arrives.iter().flatten().for_each(|path| shares.on_delivered(*path));
            shares.on_sent(path, |_| true);
            *from = shares.next();
        } else {
            *from = (path + 1) % PATHS;
        }
        let sum = shares.paths.iter().map(|path| path.share).sum::<u32>() + shares.pool;
        assert!(!shares.are_kept() || sum == EVEN * u32::from(PATHS), "nothing is made or lost: {sum}");
    }
    taken
}

//= rud/spec.md section 6.7, RUD-53
#[test]
fn a_late_path_gives_its_share_to_the_others_and_is_still_tried() {
    let (mut shares, mut from) = (Shares::default(), 0);
    assert_eq!(send(&mut shares, &mut from, 800, &[]), [100; 8], "in turn");
    send(&mut shares, &mut from, 10_000, &[2, 5]);
    let taken = send(&mut shares, &mut from, 8_000, &[2, 5]);
    for (path, taken) in taken.iter().enumerate() {
        let expected = if [2, 5].contains(&path) { 40..250 } else { 1_150..1_450 };
        assert!(expected.contains(taken), "path {path}: {taken}");
    }
}

//= rud/spec.md section 6.7, RUD-53
#[test]
fn shares_become_even_again_when_nothing_is_late() {
    let (mut shares, mut from) = (Shares::default(), 0);
    send(&mut shares, &mut from, 10_000, &[3]);
    send(&mut shares, &mut from, 400_000, &[]);
    let taken = send(&mut shares, &mut from, 8_000, &[]);
    assert!(taken.iter().all(|taken| (800..1_200).contains(taken)), "{taken:?}");
}

//= rud/spec.md section 6.7
#[test]
fn no_path_has_more_than_twice_an_even_share() {
    let (mut shares, mut from) = (Shares::default(), 0);
    let slow = [0, 1, 2, 3, 4, 5, 6];
    send(&mut shares, &mut from, 10_000, &slow);
    let taken = send(&mut shares, &mut from, 8_000, &slow);
    assert!(shares.paths.iter().all(|path| (LEAST..=MOST).contains(&path.share)), "{shares:?}");
    assert!(taken.iter().all(|taken| *taken > 100), "all are used: {taken:?}");
}

#[test]
fn a_window_of_any_size_finds_a_next_path() {
    for window in [1, 4_032, u32::MAX] {
        for paths in [2, 64, 256, u16::MAX] {
            let mut shares = Shares::default();
            let mut path = 0;
            for _ in 0..200 {
                shares.on_late(path, paths, window);
                shares.on_sent(path, |_| true);
                path = shares.next();
                assert!(path < paths);
            }
        }
    }
}

//= rud/spec.md section 6.7
#[test]
fn a_path_that_is_left_out_gets_nothing_and_its_neighbour_no_more_than_others() {
    let mut shares = Shares::default();
    shares.on_late(0, PATHS, WINDOW);
    let mut taken = [0; PATHS as usize];
    let mut path = 0;
    for _ in 0..7_000 {
        shares.on_sent(path, |at| at != 3);
        path = shares.next();
        taken[usize::from(path)] += 1;
    }
    assert_eq!(taken[3], 0);
    let others = taken.iter().enumerate().filter(|(at, _)| *at != 3);
    assert!(others.clone().all(|(_, taken)| (950..1_050).contains(taken)), "{taken:?}");
}
