//! The user timeout where this host itself was not running.

use super::*;

const TIMEOUT: Duration = Duration::from_secs(2);

/// With a user timeout, and 100 bytes that wait for their acknowledgement.
fn waiting() -> Rig {
    let mut rig = Rig::established(true);
    rig.connection.options = Arc::new(Options { user_timeout: Some(TIMEOUT), ..Options::internet() });
    assert_eq!(rig.write(&[7; 100]), Ok(100));
    rig.sent_one();
    rig
}

impl Rig {
    fn on_timer(&mut self) -> Disposition {
        self.with(|connection, now, cx| connection.on_timer(now, cx))
    }
}

#[test]
fn a_pause_of_this_host_is_not_taken_for_the_peers() {
    let mut rig = waiting();
    rig.pass(10 * TIMEOUT);
    // Timers run before the segments that came meanwhile are read.
    assert!(matches!(rig.on_timer(), Disposition::Keep));
    assert_eq!(rig.sent_one().parsed().seq, ISS + 1, "it is sent again");
    rig.pass(Duration::from_millis(1));
    assert!(matches!(rig.data(0, 100, &[]), Disposition::Keep));
    for _ in 0..10 {
        rig.pass(TIMEOUT);
        assert!(matches!(rig.on_timer(), Disposition::Keep));
    }
    assert_eq!((rig.connection.state(), rig.events()), (StateName::Established, vec![]));
}

#[test]
fn who_stays_silent_after_a_pause_of_this_host_is_given_up_soon() {
    let mut rig = waiting();
    rig.pass(10 * TIMEOUT);
    assert!(matches!(rig.on_timer(), Disposition::Keep));
    let resumed = rig.now;
    while rig.connection.state() == StateName::Established {
        let next = rig.connection.next_deadline().expect("a deadline");
        rig.pass(next.saturating_since(rig.now).max(Duration::from_nanos(1)));
        let _ = rig.on_timer();
        rig.sent();
    }
    assert_eq!(rig.now.saturating_since(resumed), TIMEOUT / 8);
}
