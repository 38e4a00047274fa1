use super::*;
use crate::config::LONGEST_WAIT;

#[test]
fn a_pair_has_the_deadline_of_the_plan() {
    for (deadline, due) in [(Duration::from_millis(250), 500), (LONGEST_WAIT, LONGEST_WAIT.as_millis())] {
        let mut plan = Plan::new(&["server"], &["trainer"]);
        plan.deadline = deadline;
        let place = Place { is_server: true, with_peer: true };
        let builder = place.builder(plan.patience()).unwrap();
        // What the store gives.
        let given = builder.set("port", "29500").unwrap().set("key", &"5a".repeat(32)).unwrap();
        let config = given.build().unwrap();
        assert_eq!(config.deadline.as_millis(), due);
    }
}
