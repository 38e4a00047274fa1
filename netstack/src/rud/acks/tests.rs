use super::*;
use core::time::Duration;

fn acks() -> Acks {
    Acks::new(&Config { ack_every: 4, ack_delay: Duration::from_nanos(100), ..Config::default() })
}

//= rud/spec.md section 5.5, RUD-28
#[test]
fn one_is_due_after_so_many_datagrams_or_so_long_after_the_first() {
    let mut acks = acks();
    acks.on_data(10, 0, false);
    acks.on_data(50, 0, false);
    assert!(acks.unacked != 0 && !acks.is_due());
    assert_eq!(acks.deadline(), 110, "from the first on");
    acks.on_timeout(109);
    assert!(!acks.is_due());
    acks.on_timeout(110);
    assert!(acks.is_due());
    assert_eq!(acks.deadline(), NEVER);
    acks.on_reported();
    assert!(acks.unacked == 0 && !acks.is_due());
    for now in 200..203 {
        acks.on_data(now, 0, false);
        assert!(!acks.is_due());
    }
    acks.on_data(203, 0, false);
    assert!(acks.is_due());
    acks.on_reported();
    assert_eq!(acks.deadline(), NEVER);
}

#[test]
fn what_is_due_does_not_wait() {
    let mut acks = acks();
    acks.set_due(false);
    assert!(!acks.is_due());
    acks.set_due(true);
    acks.set_due(false);
    assert!(acks.is_due());
}

//= rud/spec.md section 6.1, RUD-37
#[test]
fn one_request_in_a_quarter_of_the_window_is_enough() {
    let mut acks = acks();
    let mut requests = |limit: u32| {
        let asks = |acks: &mut Acks| {
            let asked = acks.asks(limit);
            acks.on_data_sent(asked);
            asked
        };
        acks.on_data_sent(true);
        (0..12).filter(|_| asks(&mut acks)).count()
    };
    assert_eq!(requests(8), 6);
    assert_eq!(requests(12), 4);
    assert_eq!(requests(1000), 3, "`ack_every` at the most");
    assert_eq!(requests(1), 12);
}

//= rud/spec.md section 4.3, RUD-13
#[test]
fn a_probe_on_each_of_256_paths_is_answered_and_of_more_the_latest() {
    let mut acks = acks();
    (0..300).for_each(|stamp| acks.on_probe(10, 0, stamp));
    let mut answered = vec![];
    while acks.is_due() {
        answered.push(acks.probe().unwrap().stamp);
        acks.on_answered();
        acks.on_reported();
    }
    assert_eq!(answered, (44..300).collect::<Vec<_>>());
}
