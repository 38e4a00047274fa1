use shouter_reducer::cost::Costs;

use super::*;

/// The times that a network of these figures would show.
fn found(network: &NetworkCosts, bytes: u64) -> Found {
    let NetworkCosts { latency_ns, message_ns, core_mb_s, wire_mb_s } = *network;
    let [latency, message, core, wire] = [latency_ns, message_ns, core_mb_s, wire_mb_s].map(u64::from);
    let (echo, slower) = (2 * (latency + 2 * message), core.min(wire));
    Found {
        echo: Some(echo),
        burst: Some(echo + u64::from(BURST - 1) * message),
        bytes,
        take: Some(2 * echo + bytes * 1000 / slower),
        swap: Some(2 * echo + (2 * bytes * 1000 / core).max(bytes * 1000 / wire)),
    }
}

#[test]
fn figures_come_out_as_they_went_in() {
    let built_in = Costs::of_transport("rud").network;
    for (latency_ns, message_ns, rates, expected) in [
        (500, 350, (9_000, 1_000_000), (9_000, 1_000_000)),
        // The wire is the limit: the core was seen to do twice as much, or is as fast as is usual.
        (1_500, 400, (40_000, 12_000), (24_000, 12_000)),
        (40_000, 2_500, (3_600, 1_250), (9_000, 1_250)),
        (900, 240, (700, 2_000_000), (700, 1_000_000)),
    ] {
        let (core_mb_s, wire_mb_s) = rates;
        let network = NetworkCosts { latency_ns, message_ns, core_mb_s, wire_mb_s };
        let costs = found(&network, 512 << 10).costs(&built_in).unwrap();
        assert_eq!((costs.latency_ns, costs.message_ns), (latency_ns, message_ns));
        let near = |found: u32, real: u32| found.abs_diff(real) <= real / 100;
        assert!(
            near(costs.core_mb_s, expected.0) && near(costs.wire_mb_s, expected.1),
            "{costs:?} of {network:?}"
        );
    }
}

#[test]
fn what_cannot_be_is_no_figure() {
    let network = Costs::of_transport("rud").network;
    let good = found(&network, 512 << 10);
    assert!(good.costs(&network).is_ok());
    for (wrong, what) in [
        (Found { echo: None, ..good }, "no time for an answer's time"),
        (Found { echo: Some(3), ..good }, "an answer's time came out as 3 ns"),
        (Found { burst: Some(1), ..good }, "the time of several messages"),
        (Found { burst: None, ..good }, "the time of several messages"),
        (Found { take: None, ..good }, "the rate of a large message"),
        (Found { take: Some(10_000_000_000), ..good }, "the rate of a large message came out as 0 MB/s"),
        (Found { swap: None, ..good }, "the rate of two large messages"),
    ] {
        let why = wrong.costs(&network).unwrap_err();
        assert!(why.contains(what), "{why}");
    }
}

#[test]
fn tasks_are_read_as_they_were_written() {
    for task in [Task::Echo, Task::Burst(BURST), Task::Take(LARGEST as u32), Task::Swap(1), Task::End] {
        assert_eq!(Task::of(task.bytes()), task);
    }
    // What would allocate or wait for more than is meant.
    for task in [Task::Burst(0), Task::Burst(BURST + 1), Task::Take(u32::MAX), Task::Swap(LARGEST as u32 + 1)]
    {
        assert_eq!(Task::of(task.bytes()), Task::End);
    }
    assert_eq!(Task::of([0xff; 8]), Task::End);
}
