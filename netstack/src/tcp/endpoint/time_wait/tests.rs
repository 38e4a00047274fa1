use super::*;
use crate::wire::tcp::Options;

fn record(ts_recent: Option<u32>) -> TimeWaitRecord {
    TimeWaitRecord {
        local: "10.0.0.1:80".parse().unwrap(),
        remote: "[2001:db8::1]:50000".parse().unwrap(),
        snd_nxt: SeqNumber(1000),
        rcv_nxt: SeqNumber(5000),
        window: 77,
        ts_recent,
        timestamp_offset: 10,
        duration: Duration::from_secs(60),
    }
}

fn segment(flags: Flags, seq: u32, stamp: Option<u32>) -> Header {
    let timestamps = stamp.map(|value| Timestamps { value, echo: 0 });
    let options = Options { timestamps, ..Options::default() };
    Header { flags, seq: SeqNumber(seq), options, ..Header::default() }
}

#[test]
fn a_record_is_small() {
    assert!(size_of::<TimeWaitEntry>() <= 64, "{}", size_of::<TimeWaitEntry>());
}

#[test]
fn verdicts_follow_the_rfcs() {
    let mut records = TimeWaitTable::new();
    let (index, _) = records.insert(Instant::ZERO, &record(Some(100)));
    let with = *records.get(index).unwrap();
    let (index, _) = records.insert(Instant::ZERO, &record(None));
    let without = *records.get(index).unwrap();
    let ack = Flags::ACK;
    let cases = [
        ("RFC 1337: reset", Flags::RST, 5000, Some(101), TimeWaitAction::Drop, TimeWaitAction::Drop),
        (
            "FIN again",
            Flags::FIN.with(ack),
            4999,
            Some(100),
            TimeWaitAction::Restart,
            TimeWaitAction::Restart,
        ),
        (
            "old timestamp",
            Flags::FIN.with(ack),
            4999,
            Some(99),
            TimeWaitAction::Acknowledge,
            TimeWaitAction::Restart,
        ),
        ("plain ACK", ack, 5000, Some(100), TimeWaitAction::Drop, TimeWaitAction::Drop),
        ("old data", ack, 4000, Some(100), TimeWaitAction::Acknowledge, TimeWaitAction::Acknowledge),
        ("SYN, later in both", Flags::SYN, 5001, Some(101), TimeWaitAction::Reopen, TimeWaitAction::Reopen),
        (
            "SYN, later in time",
            Flags::SYN,
            4000,
            Some(101),
            TimeWaitAction::Reopen,
            TimeWaitAction::Acknowledge,
        ),
        (
            "SYN, earlier in time",
            Flags::SYN,
            5001,
            Some(99),
            TimeWaitAction::Acknowledge,
            TimeWaitAction::Reopen,
        ),
        ("SYN, same time", Flags::SYN, 5001, Some(100), TimeWaitAction::Reopen, TimeWaitAction::Reopen),
        ("SYN again", Flags::SYN, 5000, Some(100), TimeWaitAction::Acknowledge, TimeWaitAction::Acknowledge),
        (
            "SYN with FIN",
            Flags::SYN.with(Flags::FIN),
            5001,
            Some(101),
            TimeWaitAction::Acknowledge,
            TimeWaitAction::Acknowledge,
        ),
        (
            "SYN-ACK",
            Flags::SYN.with(ack),
            6000,
            Some(101),
            TimeWaitAction::Acknowledge,
            TimeWaitAction::Acknowledge,
        ),
        ("no flags", Flags(0), 5000, Some(101), TimeWaitAction::Drop, TimeWaitAction::Drop),
    ];
    for (name, flags, seq, stamp, expected, expected_without) in cases {
        assert_eq!(with.judge(&segment(flags, seq, stamp), 0), expected, "{name}");
        assert_eq!(without.judge(&segment(flags, seq, stamp), 0), expected_without, "{name}, no timestamps");
    }
    let answer = with.acknowledgement(7);
    assert_eq!((answer.seq, answer.ack, answer.window), (SeqNumber(1000), SeqNumber(5000), 77));
    assert_eq!(answer.options.timestamps, Some(Timestamps { value: 17, echo: 100 }));
    assert_eq!(without.acknowledgement(7).options.timestamps, None);
}

#[test]
fn the_oldest_goes_first_and_slots_are_used_again() {
    let mut records = TimeWaitTable::new();
    let mut live = VecDeque::new();
    for round in 0..1000u64 {
        let now = Instant::from_nanos(round * 1_000_000);
        live.push_back(records.insert(now, &record(Some(1))).0);
        if live.len() > 10 {
            if round % 3 == 0 {
                let index = live.remove(5).unwrap();
                assert!(records.remove(index).is_some() && records.remove(index).is_none());
            } else {
                let oldest = records.oldest();
                assert_eq!(oldest, live.pop_front(), "round {round}");
                records.remove(oldest.unwrap());
            }
        }
        assert_eq!(records.len(), live.len());
    }
    assert!(records.records.len() <= 12 && records.order.len() <= 100);
}

#[test]
fn time_passes() {
    let mut records = TimeWaitTable::new();
    // Near the end of the 32-bit milliseconds.
    let start = Instant::from_nanos(u64::from(u32::MAX - 5000) * 1_000_000);
    let (index, generation) = records.insert(start, &record(Some(1)));
    assert!(!records.get(index).unwrap().reusable(start));
    assert!(records.get(index).unwrap().reusable(start + Duration::from_millis(2)));
    let half = start + Duration::from_secs(30);
    assert_eq!(records.expired(half, index, generation), Some(Some(Duration::from_secs(30))));
    records.restart(half, index);
    let full = start + Duration::from_secs(60);
    assert_eq!(records.expired(full, index, generation), Some(Some(Duration::from_secs(30))));
    assert_eq!(records.expired(half + Duration::from_secs(60), index, generation), Some(None));
    assert_eq!(records.expired(full, index, generation.wrapping_add(1)), None);
    assert_eq!(records.lasts(index), Duration::from_secs(60));
}
