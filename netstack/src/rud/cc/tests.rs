use super::swift::ONE;
use super::*;
use crate::rud::api::Config;
use crate::wire::rud::{DatagramKind, Header, Held, Psn};

const BASE: u64 = 10_000;
const MTU: usize = 1400;

/// A network on which every round takes `delay`, in virtual time.
struct Rounds {
    swift: Swift,
    /// Whether the network marks datagrams.
    marks: bool,
    now: u64,
}

impl Rounds {
    fn new() -> Self {
        Self { swift: Swift::new(&Config::default(), MTU), marks: false, now: 0 }
    }

    /// In avoidance, with a window that fits `base` and no queue.
    fn open(window: u32) -> Self {
        let mut rounds = Self::new();
        while rounds.swift.limit() < window {
            rounds.round(BASE, 0, 0);
        }
        rounds.round(BASE + 20_000, 0, 0);
        while rounds.swift.limit() > window {
            rounds.round(BASE + 20_000, 0, 0);
        }
        rounds
    }

    fn sample(&self, delay: u64, acked: u32, marked: u32) -> AckSample {
        let (now, sent_at) = (self.now, self.now - 1);
        let (base, marks, flight) = (BASE, self.marks, self.swift.limit());
        AckSample { now, acked, marked, spurious: 0, sent_at, delay, base, marks, samples: 1, flight }
    }

    /// A whole window is acknowledged, of which so many were marked, and so many more lost.
    fn round(&mut self, delay: u64, marked: u32, lost: u32) {
        self.now += delay;
        if lost != 0 {
            self.swift.on_lost(lost);
        }
        let sample = self.sample(delay, self.swift.limit(), marked);
        self.swift.on_acked(&sample);
    }
}

//= rud/spec.md section 7.3, RUD-78
#[test]
fn the_first_window_is_a_number_of_bytes() {
    let limit = |payload| Swift::new(&Config::default(), payload).limit();
    assert_eq!([64, 1400, 2000, 8900, 60_000].map(limit), [10, 10, 7, 4, 4]);
    let few = Config { initial_window: 2, ..Config::default() };
    assert_eq!(Swift::new(&few, 8900).limit(), 2);
}

//= rud/spec.md section 7.3, RUD-79
#[test]
fn slow_start_doubles_until_there_is_a_queue_or_a_mark() {
    for (delay, marked) in [(BASE + 30_000, 0), (BASE, 1)] {
        let mut rounds = Rounds::new();
        for window in [20, 40, 80] {
            rounds.round(BASE, 0, 0);
            assert_eq!(rounds.swift.limit(), window);
        }
        rounds.round(delay, marked, 0);
        let window = rounds.swift.limit();
        assert!((40..=43).contains(&window), "delay {delay}, {marked} marks: {window}");
        rounds.round(BASE + 5_000, 0, 0);
        assert!(rounds.swift.limit() <= window + 3, "by less than three in a round of avoidance");
    }
}

//= rud/spec.md section 7.4, RUD-82
#[test]
fn a_window_that_is_not_used_does_not_grow() {
    let mut rounds = Rounds::new();
    for _ in 0..10 {
        rounds.now += BASE;
        let sample = AckSample { flight: 4, ..rounds.sample(BASE, 4, 0) };
        rounds.swift.on_acked(&sample);
    }
    assert_eq!(rounds.swift.limit(), 10);
}

//= rud/spec.md section 7.4
#[test]
fn the_target_is_longer_for_small_windows_and_where_the_network_marks() {
    // The queue that is aimed at is 7.5 us of 10, and at least 8.
    let shrinks = |window: u32, marks, above: u64| {
        let mut rounds = Rounds { marks, ..Rounds::open(window) };
        let before = rounds.swift.limit();
        rounds.round(BASE, 0, 0);
        rounds.round(BASE + above, 0, 0);
        rounds.swift.limit() < before
    };
    for (window, queue) in [(100, 8_000), (16, 14_000)] {
        for (marks, times) in [(false, 1), (true, 4)] {
            let aim = queue * times;
            assert!(!shrinks(window, marks, aim * 9 / 10), "window {window}, marks {marks}");
            assert!(shrinks(window, marks, aim * 11 / 10), "window {window}, marks {marks}");
        }
    }
}

//= rud/spec.md section 7.4, RUD-81
#[test]
fn a_queue_is_emptied_once_a_round_and_only_if_all_of_the_round_met_it() {
    let mut rounds = Rounds::open(100);
    let before = rounds.swift.limit();
    // One of the round's delays was short.
    rounds.now += BASE;
    for delay in [BASE + 60_000, BASE + 1_000, BASE + 60_000] {
        let sample = AckSample { sent_at: NEVER, ..rounds.sample(delay, 1, 0) };
        rounds.swift.on_acked(&sample);
    }
    rounds.round(BASE + 60_000, 0, 0);
    assert_eq!(rounds.swift.limit(), before);
    // Two thirds of 30 us were a queue; a quarter of the aim is left, and never less than half.
    rounds.round(BASE + 10_500, 0, 0);
    let once = rounds.swift.limit();
    assert_eq!(once, before * 12_000 / 20_500);
    let old = AckSample { sent_at: rounds.now - 1000, ..rounds.sample(BASE + 80_000, 1, 0) };
    rounds.swift.on_acked(&old);
    assert_eq!(rounds.swift.limit(), once, "a datagram that was sent before the round");
    rounds.round(BASE + 80_000, 0, 0);
    assert_eq!(rounds.swift.limit(), once / 2);
    for _ in 0..10 {
        rounds.round(BASE + 80_000, 0, 0);
    }
    assert_eq!(rounds.swift.limit(), 1);
    assert!(rounds.swift.gap() > 8 * BASE, "less than a datagram: {}", rounds.swift.gap());
}

//= rud/spec.md section 7.7, RUD-101
//= rud/spec.md section 7.7, RUD-102
//= rud/spec.md section 7.7, RUD-109
#[test]
fn a_queue_that_does_not_give_way_is_met_by_losses_alone() {
    let (empty, full) = (BASE, BASE + 80_000);
    let mut rounds = Rounds::open(100);
    rounds.round(empty, 0, 0);
    let before = rounds.swift.limit();
    // The window is halved in every round, until it is next to nothing.
    let is_there = |rounds: &mut Rounds, most| {
        (0..most).position(|_| {
            rounds.round(full, 0, 0);
            rounds.swift.rival().is_there()
        })
    };
    let after = is_there(&mut rounds, 24);
    assert!(after.is_some_and(|rounds| rounds >= 8), "{after:?}");
    assert_eq!(rounds.swift.limit(), before / 2, "there is a rival");
    for _ in 0..20 {
        rounds.round(full, 0, 0);
    }
    let grown = rounds.swift.limit();
    assert!((before / 2 + 15..=before / 2 + 20).contains(&grown), "one datagram a round: {grown}");
    // Halved, after four rounds in which it is seen whether the queue is this session's own.
    rounds.round(full, 0, 3);
    assert!(rounds.swift.limit() <= grown * 13 / 90 + 1, "stands back: {}", rounds.swift.limit());
    for _ in 0..4 {
        rounds.round(full, 0, 0);
    }
    assert!((grown / 2..=grown / 2 + 1).contains(&rounds.swift.limit()), "{}", rounds.swift.limit());
    // It stands back without a loss as well, and finds that the queue is gone.
    let mut least = u32::MAX;
    for _ in 0..257 {
        rounds.round(full, 0, 0);
        least = least.min(rounds.swift.limit());
    }
    assert!(least < 50, "{least}");
    rounds.round(empty, 0, 0);
    let alone = rounds.swift.limit();
    rounds.round(full, 0, 0);
    assert!(rounds.swift.limit() < alone, "delays count again");
    // What was found before is not forgotten at once: one response is enough.
    assert!(is_there(&mut rounds, 4).is_some());
}

//= rud/spec.md section 7.7, RUD-109
#[test]
fn a_queue_that_gives_way_is_nobody_elses() {
    // A link that holds 20 datagrams, of so many senders that shrink and grow as this one does, and one with a fixed window.
    let rival_after = |alike: u32, fixed: u32| {
        let mut rounds = Rounds::open(20);
        (0..1000).position(|_| {
            let queued = rounds.swift.limit() * alike + fixed;
            rounds.round(BASE.max(u64::from(queued) * 500), 0, 0);
            rounds.swift.rival().is_there()
        })
    };
    for (alike, fixed) in [(1, 0), (2, 0), (4, 0), (16, 0), (2, 15), (4, 10), (2, 25), (4, 25)] {
        assert_eq!(rival_after(alike, fixed), None, "{alike}, {fixed}");
    }
    let after = rival_after(1, 60);
    assert!(after.is_some_and(|rounds| rounds < 40), "{after:?}");
}

//= rud/spec.md section 7.6, RUD-84
//= rud/spec.md section 7.7, RUD-109
#[test]
fn a_time_out_of_a_small_window_finds_a_likely_rival_unless_it_was_spurious() {
    // So many rounds above the target, in which a window of a hundred datagrams is cut in vain, and a time-out.
    for (above, window, finds) in [(4, 5, false), (5, 2, false), (6, 1, true)] {
        let mut rounds = Rounds::open(100);
        rounds.round(BASE, 0, 0);
        (0..above).for_each(|_| rounds.round(BASE + 80_000, 0, 0));
        assert_eq!((rounds.swift.limit(), rounds.swift.rival().is_there()), (window, false));
        rounds.swift.on_timeout();
        assert_eq!(rounds.swift.rival().is_there(), finds, "{above}");
        let mut sample = rounds.sample(BASE + 80_000, 1, 0);
        sample.spurious = 1;
        rounds.swift.on_acked(&sample);
        assert!(!rounds.swift.rival().is_there(), "{above}");
    }
}

//= rud/spec.md section 7.7, RUD-109
#[test]
fn cuts_of_long_ago_say_nothing_of_the_senders_of_now() {
    // Cut in vain twice, with so many rounds in between whose queue is not too long.
    let is_there = |between: u32| {
        let mut rounds = Rounds::open(200);
        rounds.round(BASE, 0, 0);
        for calm in [between, 0] {
            (0..5).for_each(|_| rounds.round(BASE + 80_000, 0, 0));
            (0..calm).for_each(|_| rounds.round(BASE + 5_000, 0, 0));
        }
        rounds.swift.rival().is_there()
    };
    assert_eq!([1, 200].map(is_there), [true, false]);
}

//= rud/spec.md section 7.4
#[test]
fn a_short_path_among_long_ones_keeps_the_window_open() {
    let mut rounds = Rounds::open(8);
    let mut acked = |delay| {
        rounds.now += delay;
        let sample = AckSample { samples: 16, ..rounds.sample(delay, 1, 0) };
        let before = rounds.swift.limit();
        rounds.swift.on_acked(&sample);
        rounds.swift.limit() < before
    };
    for _ in 0..4 {
        for path in 0..16 {
            assert!(!acked(BASE + if path == 3 { 0 } else { 60_000 }));
        }
    }
    acked(BASE);
    let shrunk: Vec<bool> = (0..32).map(|_| acked(BASE + 60_000)).collect();
    assert_eq!(shrunk.iter().filter(|shrunk| **shrunk).count(), 2, "once in 16 datagrams: {shrunk:?}");
    // Little is sent, and nothing is in its way: what was measured before says nothing of what comes.
    let mut rounds = Rounds::open(8);
    let before = rounds.swift.limit();
    for (delay, flight) in
        [[(BASE + 60_000, 8); 15].as_slice(), &[(BASE, 1)], &[(BASE + 60_000, 8); 15]].concat()
    {
        rounds.now += delay;
        let sample = AckSample { samples: 16, flight, ..rounds.sample(delay, 1, 0) };
        rounds.swift.on_acked(&sample);
        assert_eq!(rounds.swift.limit(), before);
    }
}

//= rud/spec.md section 7.4, RUD-81
#[test]
fn marks_take_half_of_their_smoothed_share() {
    let mut rounds = Rounds::new();
    while rounds.swift.limit() < 100 {
        rounds.round(BASE, 0, 0);
    }
    let all = rounds.swift.limit();
    rounds.round(BASE, 1, 0);
    assert!((all / 2..all / 2 + 5).contains(&rounds.swift.limit()), "alpha is one at first");
    let mut rounds = Rounds::open(100);
    let all = rounds.swift.limit();
    rounds.round(BASE + 5_000, all, 0);
    let left = f64::from(rounds.swift.limit()) / f64::from(all);
    assert!((0.95..0.98).contains(&left), "zero, where slow start ended without a mark: {left}");
    // A tenth is marked for long: alpha is a tenth.
    for _ in 0..200 {
        rounds.now += BASE;
        let sample = rounds.sample(BASE + 5_000, 100, 10);
        rounds.swift.on_acked(&sample);
    }
    while rounds.swift.limit() < 400 {
        rounds.now += BASE;
        let sample = AckSample { sent_at: NEVER, ..rounds.sample(BASE, 1000, 0) };
        rounds.swift.on_acked(&sample);
    }
    let before = rounds.swift.limit();
    rounds.now += BASE;
    let sample = rounds.sample(BASE + 5_000, 1000, 100);
    rounds.swift.on_acked(&sample);
    let left = f64::from(rounds.swift.limit()) / f64::from(before);
    assert!((0.94..0.96).contains(&left), "{left}");
}

//= rud/spec.md section 7.4, RUD-81
#[test]
fn losses_count_where_there_is_a_queue_or_too_many_of_them() {
    let mut rounds = Rounds::open(100);
    let before = rounds.swift.limit();
    for _ in 0..100 {
        rounds.round(BASE + 1_500, 0, 1 + rounds.swift.limit() / 50);
    }
    assert!(rounds.swift.limit() >= before, "by chance, without a queue");
    let before = rounds.swift.limit();
    rounds.round(BASE + 6_000, 0, 1);
    let left = rounds.swift.limit() * 100 / before;
    assert!((73..=76).contains(&left), "12 of 16 us: {left}%");
    let before = rounds.swift.limit();
    rounds.round(BASE, 0, before / 2);
    let left = rounds.swift.limit() * 100 / before;
    assert!((60..=75).contains(&left), "a third was lost: {left}%");
    // Those that were none are taken back.
    let before = rounds.swift.limit();
    rounds.swift.on_lost(before);
    let sample = AckSample { spurious: before, ..rounds.sample(BASE, before, 0) };
    rounds.swift.on_acked(&sample);
    assert!(rounds.swift.limit() >= before);
}

//= rud/spec.md section 7.4
#[test]
fn one_round_that_took_milliseconds_is_a_pause_and_two_are_a_queue() {
    let mut rounds = Rounds::open(100);
    rounds.round(BASE + 5_000, 0, 0);
    let before = rounds.swift.limit();
    rounds.round(5_000_000, 0, 0);
    assert_eq!(rounds.swift.limit(), before);
    assert!(rounds.swift.gap() < BASE, "nor does it slow the pace");
    rounds.round(BASE + 5_000, 0, 0);
    let before = rounds.swift.limit();
    rounds.round(5_000_000, 0, 0);
    assert_eq!(rounds.swift.limit(), before, "another one later");
    rounds.round(5_000_000, 0, 0);
    assert_eq!(rounds.swift.limit(), before / 2);
    // It does not end slow start either.
    let mut rounds = Rounds::new();
    rounds.round(BASE, 0, 0);
    rounds.round(5_000_000, 0, 0);
    rounds.round(BASE, 0, 0);
    assert!(rounds.swift.limit() >= 40, "{}", rounds.swift.limit());
}

//= rud/spec.md section 7.6, RUD-84
#[test]
fn a_time_out_that_was_none_is_undone() {
    let mut rounds = Rounds::open(100);
    let before = rounds.swift.limit();
    rounds.swift.on_timeout();
    rounds.swift.on_timeout();
    assert_eq!((rounds.swift.limit(), rounds.swift.gap()), (1, 0));
    let sample = AckSample { spurious: 50, delay: NEVER, ..rounds.sample(BASE, 50, 0) };
    rounds.swift.on_acked(&sample);
    assert!(rounds.swift.limit() >= before);
    rounds.swift.on_timeout();
    for _ in 0..5 {
        rounds.round(BASE, 0, 0);
    }
    assert_eq!(rounds.swift.limit(), 32, "slow start from one");
    let sample = AckSample { spurious: 1, ..rounds.sample(BASE, 1, 0) };
    rounds.swift.on_acked(&sample);
    assert!(rounds.swift.limit() < 40, "too late");
}

//= rud/spec.md section 7.4
#[test]
fn no_window_grows_slower_for_want_of_a_queue() {
    for (window, marks) in [(2, false), (2, true), (6, true), (30, true), (100, true)] {
        let [calm, queue] = [BASE, BASE + 5_000].map(|delay| {
            let mut rounds = Rounds { marks, ..Rounds::open(window) };
            (0..12).for_each(|_| rounds.round(delay, 0, 0));
            rounds.swift.limit()
        });
        assert!(calm >= queue, "window {window}, marks {marks}: {calm} without a queue, {queue} with one");
    }
}

//= rud/spec.md section 7.4
#[test]
fn a_mark_in_slow_start_halves_the_window_whatever_came_before() {
    let mut rounds = Rounds::open(100);
    for again in [Swift::on_timeout as fn(&mut Swift), |swift| swift.on_idle()] {
        again(&mut rounds.swift);
        while rounds.swift.limit() < 100 {
            rounds.round(BASE, 0, 0);
        }
        let before = rounds.swift.limit();
        rounds.round(BASE, 1, 0);
        assert!((before / 2..before / 2 + 6).contains(&rounds.swift.limit()), "{}", rounds.swift.limit());
    }
}

//= rud/spec.md section 7.6, RUD-84
#[test]
fn a_time_out_that_was_none_forgets_no_marks() {
    let mut rounds = Rounds::open(200);
    // Half is marked for some rounds: alpha is about a third.
    (0..16).for_each(|_| rounds.round(BASE + 5_000, rounds.swift.limit() / 2, 0));
    rounds.swift.on_timeout();
    rounds.swift.on_timeout();
    let sample = AckSample { spurious: 1, delay: NEVER, sent_at: NEVER, ..rounds.sample(BASE, 1, 0) };
    rounds.swift.on_acked(&sample);
    let before = rounds.swift.limit();
    rounds.round(BASE + 5_000, before / 2, 0);
    let left = f64::from(rounds.swift.limit()) / f64::from(before);
    assert!((0.6..0.9).contains(&left), "{left} of {before}");
}

//= rud/spec.md section 7.4
#[test]
fn small_windows_that_are_marked_alike_become_even() {
    let ratio = |marks| {
        let mut both =
            [(8, 0.0), (24, 0.0)].map(|(window, due)| (Rounds { marks, ..Rounds::open(window) }, due));
        for _ in 0..500 {
            // What is on the wire beyond 32 datagrams is marked, whoever sent it.
            let sum: u32 = both.iter().map(|(rounds, _)| rounds.swift.limit()).sum();
            let share = f64::from(sum.saturating_sub(32)) / f64::from(sum);
            for (rounds, due) in &mut both {
                let limit = rounds.swift.limit();
                let sample = AckSample { sent_at: NEVER, ..rounds.sample(BASE + 5_000, limit, 0) };
                rounds.swift.on_acked(&sample);
                *due += share * f64::from(2 * limit);
                rounds.round(BASE + 5_000, due.floor() as u32, 0);
                *due = due.fract();
            }
        }
        let [small, large] = both.map(|(rounds, _)| f64::from(rounds.swift.limit()));
        large / small
    };
    assert!(ratio(true) < 1.2, "{}", ratio(true));
    assert!(ratio(false) > 2.0, "the test could not tell: {}", ratio(false));
}

//= rud/spec.md section 7.3, RUD-80
#[test]
fn a_long_rest_ends_what_was_known() {
    let mut rounds = Rounds::open(100);
    rounds.swift.on_idle();
    assert_eq!(rounds.swift.limit(), 10);
    rounds.round(BASE, 0, 0);
    assert_eq!(rounds.swift.limit(), 20);
}

#[test]
fn an_empty_network_is_filled_faster() {
    let mut rounds = Rounds::open(40);
    let mut count = 0;
    while rounds.swift.limit() < 200 {
        rounds.round(BASE, 0, 0);
        count += 1;
    }
    assert!((10..25).contains(&count), "{count}");
}

//= rud/spec.md section 7.5, RUD-83
#[test]
fn datagrams_keep_their_distance_and_make_up_for_a_late_poll() {
    let mut pace = Pace::default();
    // Two at once after a time without any.
    let leave = |pace: &mut Pace, now: u64, interval: u64| {
        let mut count = 0;
        while pace.is_open(now) {
            pace.on_sent(now, 100, interval);
            count += 1;
        }
        count
    };
    assert_eq!(leave(&mut pace, 10_000, 0), 2);
    assert_eq!(pace.next_at(), 10_100);
    pace.on_wait(10_000);
    pace.on_wait(10_050);
    assert_eq!(leave(&mut pace, 10_099, 0), 0);
    assert_eq!(leave(&mut pace, 10_100, 0), 1);
    assert_eq!(pace.waited(), 100);
    // A poll 1 us after the one before also sends the datagrams whose time came in between.
    assert_eq!(leave(&mut pace, 11_100, 1_000), 10);
    assert_eq!(leave(&mut pace, 11_199, 99), 0);
    // No distance, no wait.
    pace.on_sent(20_000, 0, 0);
    assert!(pace.is_open(20_000));
}

//= rud/spec.md section 7.5, RUD-83
#[test]
fn what_a_turn_had_no_room_for_leaves_with_the_next_polls() {
    let mut pace = Pace::default();
    let mut leave = |now: u64, interval: u64, room: usize| {
        let interval = pace.interval(now, interval);
        for count in 0..room {
            if !pace.is_open(now) {
                return count;
            }
            pace.on_sent(now, 100, interval);
        }
        if pace.is_open(now) {
            pace.on_turn_over(now, interval);
        }
        room
    };
    assert_eq!(leave(10_000, 0, 15), 2);
    // The time of 50 has come in a pause, and a poll has room for 15.
    assert_eq!(leave(15_000, 5_000, 15), 15);
    assert_eq!(leave(15_100, 100, 15), 15);
    assert_eq!(leave(15_200, 100, 15), 15);
    // Those of the time between these polls, too.
    assert_eq!(leave(15_300, 100, 15), 8);
    assert_eq!(leave(15_400, 100, 15), 1);
    // Of what was left long ago, a millisecond is made up for.
    assert_eq!(leave(25_400, 10_000, 15), 15);
    assert_eq!(leave(5_000_000, 0, 100_000), 10_002);
}

//= rud/spec.md section 7.5
#[test]
fn single_datagrams_keep_no_distance_however_slow_the_last_full_round_was() {
    let mut rounds = Rounds::new();
    rounds.round(BASE + 90_000, 0, 0);
    assert!(rounds.swift.limit() > 2 && rounds.swift.gap() > 5_000, "{:?}", rounds.swift);
    rounds.now += BASE;
    let alone = AckSample { flight: 1, ..rounds.sample(BASE, 1, 0) };
    rounds.swift.on_acked(&alone);
    assert_eq!(rounds.swift.gap(), 0);
    rounds.round(BASE, 0, 0);
    assert_ne!(rounds.swift.gap(), 0, "full windows keep one again");
}

//= rud/spec.md section 7.5, RUD-83
#[test]
fn the_delay_of_a_pause_is_no_distance_once_a_datagram_came_in_time() {
    // An embedded link's: a host that is interrupted for 2 ms while it sends is believed to have met a queue.
    let config = Config { queue_delay: core::time::Duration::from_millis(1), ..Config::default() };
    let mut rounds = Rounds { swift: Swift::new(&config, 8900), marks: false, now: 0 };
    rounds.round(BASE, 0, 0);
    rounds.round(BASE, 0, 0);
    rounds.round(2_000_000, 0, 0);
    assert!(rounds.swift.gap() > 100_000, "believed: {}", rounds.swift.gap());
    // A datagram or two at a time, whose receiver mostly cannot tell how long it held them.
    for turn in 0..8 {
        rounds.now += 20_000;
        let delay = if turn % 4 == 0 { BASE } else { NEVER };
        let sample = AckSample { flight: 1, ..rounds.sample(delay, 1, 0) };
        rounds.swift.on_acked(&sample);
        assert!(rounds.swift.gap() <= BASE, "turn {turn}: {}", rounds.swift.gap());
    }
}

//= rud/spec.md section 7.5, RUD-83
#[test]
fn a_rest_ends_the_distance_too() {
    let mut rounds = Rounds::open(20);
    rounds.round(BASE + 60_000, 0, 0);
    rounds.swift.on_idle();
    rounds.now += BASE;
    let sample = AckSample { flight: 1, ..rounds.sample(NEVER, 1, 0) };
    rounds.swift.on_acked(&sample);
    assert_eq!(rounds.swift.gap(), 0);
}

fn header(marks: u16, held: Held) -> Header {
    Header {
        kind: DatagramKind::Ack,
        ack_request: false,
        body_len: 0,
        payload_len: 0,
        tag: 1,
        psn: Psn(0),
        base_lag: 0,
        cumulative: Psn(0),
        sack_word: 0,
        sack: 0,
        marks,
        network_marks: false,
        held,
    }
}

//= rud/spec.md section 7.2, RUD-77
#[test]
fn marks_wrap_and_an_acknowledgement_that_was_overtaken_says_nothing() {
    let mut signals = Signals::new();
    let none = Held::new(0, false);
    let mut marked = |marks: u16| signals.read(0, 0, &header(marks, none), NEVER).marked;
    assert_eq!([5, 7, 6, 7, 32_000, 60_000, 3].map(&mut marked), [5, 2, 0, 0, 31_993, 28_000, 5_539]);
}

//= rud/spec.md section 7.1
#[test]
fn a_delay_is_less_what_either_end_was_not_there_for() {
    let mut signals = Signals::new();
    // 12.8 us there.
    let signal = signals.read(50_000, 0, &header(0, Held::new(12_800, false)), 10_000);
    assert_eq!((signal.delay, signal.base), (27_200, 27_200));
    // It was late: a bound, and no base.
    let signal = signals.read(50_000, 0, &header(0, Held::new(25_600, true)), 10_000);
    assert_eq!((signal.delay, signal.base), (14_400, 27_200));
    let signal = signals.read(50_000, 30_000, &header(0, Held::new(0, false)), 10_000);
    assert_eq!((signal.delay, signal.base), (10_000, 27_200));
    // For longer than can be said.
    let signal = signals.read(9_000_000, 0, &header(0, Held::new(5_000_000, false)), 10_000);
    assert_eq!((signal.delay, signal.base), (NEVER, 27_200));
    // For longer than it was away; and an answer's is of its probe.
    let signal = signals.read(50_000, 0, &header(0, Held::new(51_200, false)), 10_000);
    assert_eq!((signal.delay, signal.base), (NEVER, 27_200));
    let answer = Header { kind: DatagramKind::Answer, ..header(0, Held::new(38_400, false)) };
    let signal = signals.read(50_000, 0, &answer, 10_000);
    assert_eq!((signal.delay, signal.base), (NEVER, 27_200));
    // An answer to a probe, and one that is no stamp of ours.
    signals.on_answer(100_000, 0, Held::new(1_280, false), 90_000);
    signals.on_answer(100_000, 0, Held::new(0, false), 200_000);
    signals.on_answer(100_000, 9_000, Held::new(0, false), 99_999);
    let none = header(0, Held::new(0, false));
    assert_eq!(signals.read(100_000, 0, &none, NEVER).base, 8_720);
    // Routes change.
    let mut now = 100_000;
    let mut base = 0;
    for _ in 0..4 {
        now += 20_000_000_000;
        base = signals.read(now, 0, &none, now - 40_000).base;
    }
    assert_eq!(base, 40_000);
}

#[test]
fn a_window_counts_in_fractions() {
    assert_eq!(ONE.isqrt().pow(2), ONE, "its root is exact");
}

//= rud/spec.md section 7.8, RUD-103
//= rud/spec.md section 7.8, RUD-104
#[test]
fn a_delay_that_a_small_window_does_not_shorten_is_noise() {
    let noisy = |swift: &Swift| swift.noise().amount();
    // With a window of less than a datagram, after five rounds above the target.
    let small = || {
        let mut rounds = Rounds::open(20);
        rounds.round(BASE, 0, 0);
        for _ in 0..6 {
            rounds.round(BASE + 90_000, 0, 0);
        }
        assert_eq!(rounds.swift.limit(), 1);
        rounds
    };
    let eight = |excess: [u64; 2], lost: u32| {
        let mut rounds = small();
        for i in 0..8 {
            assert_eq!(noisy(&rounds.swift), 0);
            rounds.round(BASE + excess[i % 2], 0, lost);
        }
        rounds
    };
    // A queue that others keep is none if it is no longer than any that is aimed at, if it hardly varies, or if something is lost.
    assert_eq!(noisy(&eight([30_000, 90_000], 0).swift), 0);
    assert_eq!(noisy(&eight([600_000, 1_000_000], 0).swift), 0);
    assert_eq!(noisy(&eight([300_000, 1_000_000], 1).swift), 0);
    let mut rounds = eight([300_000, 1_000_000], 0);
    assert_eq!(noisy(&rounds.swift), 1_000_000);
    for _ in 0..6 {
        rounds.round(BASE + 1_000_000, 0, 0);
    }
    assert!(rounds.swift.limit() > 16, "slow start begins anew: {}", rounds.swift.limit());
    rounds.round(BASE + 1_000_000, 1, 0);
    assert!(noisy(&rounds.swift) <= 500_000, "a mark halves it");
    for _ in 0..4_000 {
        rounds.round(BASE, 0, 0);
    }
    assert_eq!(noisy(&rounds.swift), 0, "it fades");
}
