use super::*;

/// Looks so far apart, each of which leaves something behind; for how many of them a pause counts as being read.
fn read(looks: &mut Looks, now: &mut u64, interval: u64, count: usize) -> usize {
    let mut reads = 0;
    for _ in 0..count {
        *now += interval;
        looks.on_look(*now, true);
        reads += usize::from(looks.reads_a_pause(*now));
    }
    reads
}

//= rud/spec.md section 6.3, RUD-100
#[test]
fn what_a_pause_has_left_is_read_for_as_long_as_the_pause() {
    let (mut looks, mut now) = (Looks::default(), 1_000_000);
    looks.on_look(now, false);
    now += 200_000;
    looks.on_look(now, false);
    assert!(looks.reads_a_pause(now));
    assert_eq!(read(&mut looks, &mut now, 10_000, 20), 20);
    // Then a host that always leaves something behind is too slow, and its timers fire.
    assert_eq!(read(&mut looks, &mut now, 10_000, 1_000), 0);
    // A pause of its own is another matter, also one right after another.
    for pause in [200_000, 300_000, 300_000, 100_000] {
        now += pause;
        looks.on_look(now, true);
        assert!(looks.reads_a_pause(now), "{pause}");
        assert!(read(&mut looks, &mut now, 1_000, 50) == 50, "{pause}");
    }
}

//= rud/spec.md section 6.3, RUD-100
#[test]
fn timers_fire_while_every_look_leaves_something_behind() {
    let (mut looks, mut now) = (Looks::default(), 1_000_000);
    looks.on_look(now, false);
    now += 100;
    looks.on_look(now, false);
    // Intervals vary a little.
    for _ in 0..100 {
        let reads: usize = (0..10).map(|step| read(&mut looks, &mut now, 15_000 + 900 * (step % 4), 1)).sum();
        assert!(reads <= 3, "{reads} of 10");
    }
}
