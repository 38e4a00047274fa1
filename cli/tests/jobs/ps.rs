//! The parameter server between real processes: against all-reduce, bad arguments, dead trainers and servers, checkpoints.

use std::time::{Duration, Instant};

use crate::ranks::{Plan as Job, State, job, join, parameter, play, run_all, tell};
use shouter::ps::{
    Actors, Array, Client, Error as PsError, Lost, Mode, Optimizer, Plan, Served, Server, Sharding,
};
use shouter::{Error, Group, ReduceOp};

/// The exit status of a rank that ends with an error of the parameter server.
const PS: i32 = 39;
/// A deadline for waits that are to end by it.
const SHORT: Duration = Duration::from_millis(500);

const SGD: Optimizer = Optimizer::Sgd { rate: 0.1 };

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    let plays: &[(&str, crate::ranks::Play)] = &[
        ("equal", |group| ended(equal(group))),
        ("names", |group| ended(names(group))),
        ("arguments", |group| ended(arguments(group))),
        ("apart", |group| ended(apart(group))),
        ("stale", |group| ended(stale(group))),
        ("trainer", |group| ended(trainer_dies(group))),
        ("server", |group| ended(server_dies(group))),
        ("save", |group| ended(save(group))),
        ("restore", |group| ended(restore(group))),
        ("control", |group| ended(control(group))),
        ("anew", |group| ended(anew(group))),
        ("large", |group| ended(large(group))),
        ("stopped", |group| ended(server_stops(group))),
        ("memory", |group| ended(no_memory(group))),
    ];
    play(plays, join);
}

/// Ends the rank with an error of the parameter server.
fn ended(result: Result<(), PsError>) -> Result<(), Error> {
    result.or_else(|error| match error {
        PsError::Group(error) => Err(error),
        error => {
            tell(format_args!("error {error}"));
            std::process::exit(PS)
        }
    })
}

/// The actors of a job: as many servers as the test wants, and trainers. The last rank is a trainer, and rank 0 a server.
fn actors(group: &Group) -> Result<(Actors, Plan), PsError> {
    let servers: u32 = parameter("SERVERS").map_or(1, |count| count.parse().unwrap());
    let name =
        |rank| if rank < servers { format!("server{rank}") } else { format!("trainer{}", rank - servers) };
    let all: Vec<_> = (0..group.size()).map(name).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let (serving, training) = all.split_at(servers as usize);
    let mut plan = Plan::new(serving, training);
    plan.deadline = Duration::from_secs(20);
    plan.mode = match parameter("MODE").as_deref() {
        Some("bounded") => Mode::Bounded(2),
        Some("asynchronous") => Mode::Asynchronous,
        _ => Mode::Synchronous,
    };
    if parameter("LOST").as_deref() == Some("drop") {
        plan.lost = Lost::Drop;
    }
    if parameter("SHARDING").as_deref() == Some("hashed") {
        plan.sharding = Sharding::Hashed;
    }
    Ok((Actors::meet(group, all[group.rank() as usize])?, plan))
}

/// A client of a trainer; a server serves, and has none.
fn client(group: &Group) -> Result<Option<Client>, PsError> {
    let (actors, plan) = actors(group)?;
    connect(&actors, plan)
}

fn connect(actors: &Actors, plan: Plan) -> Result<Option<Client>, PsError> {
    if !plan.servers.iter().any(|server| server == actors.name()) {
        return Client::connect(actors, plan).map(Some);
    }
    let Served { shut_down_by, dropped, .. } = Server::connect(actors, plan)?.serve()?;
    tell(format_args!("served, shut down by {shut_down_by:?}, without {dropped:?}"));
    Ok(None)
}

fn value(at: usize, salt: usize) -> f32 {
    ((at * 31 + salt * 17) % 1009) as f32 / 97.0 - 5.0
}

/// Steps of training with the server, and the same with an all-reduce among the trainers: the same bits.
fn equal(group: &Group) -> Result<(), PsError> {
    let (actors, plan) = actors(group)?;
    let is_server = plan.servers.iter().any(|server| server == actors.name());
    let trainers = group.split(Some(u32::from(is_server)), 0)?.expect("every rank has a color");
    let Some(mut client) = connect(&actors, plan)? else { return Ok(()) };
    let shape = [37u64, 5];
    let start: Vec<f32> = (0..185).map(|at| value(at, 0)).collect();
    if trainers.rank() == 0 {
        client.set("weights", Array::new(&start, &shape)?, SGD)?;
        client.set("bias", Array::new(&[1.5f32], &[])?, SGD)?;
    }
    client.wait_for_all()?;
    let (mut own, mut pulled) = (start, vec![0f32; 185]);
    let mut bias = [1.5f32];
    for step in 0..6 {
        client.set_step(step);
        let salt = step as usize * 7 + trainers.rank() as usize;
        let mut gradient: Vec<f32> = (0..185).map(|at| value(at, salt) / 3.0).collect();
        let mut of_bias = [value(3, salt)];
        client.push("weights", Array::new(&gradient, &shape)?)?;
        client.push("bias", Array::new(&of_bias, &[])?)?;
        trainers.all_reduce(&mut gradient, ReduceOp::Avg)?;
        trainers.all_reduce(&mut of_bias, ReduceOp::Avg)?;
        own.iter_mut().zip(&gradient).for_each(|(own, gradient)| *own -= 0.1 * gradient);
        bias[0] -= 0.1 * of_bias[0];
        assert_eq!(client.pull("weights", &mut pulled)?, step + 1);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&pulled), bits(&own), "step {step}");
        let mut of_server = [0f32];
        client.pull("bias", &mut of_server)?;
        assert_eq!(bits(&of_server), bits(&bias), "step {step}");
    }
    // Rows: of both trainers, with a repeated one.
    let rank = u64::from(trainers.rank());
    let rows = [rank, 7, 7, 36];
    let values: Vec<f32> = (0..20).map(|at| value(at, rank as usize)).collect();
    client.push_rows("weights", &rows, Array::new(&values, &[4, 5])?)?;
    let mut dense = vec![0f32; 185];
    for (row, values) in rows.iter().zip(values.chunks(5)) {
        dense[*row as usize * 5..][..5].iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    trainers.all_reduce(&mut dense, ReduceOp::Avg)?;
    own.iter_mut().zip(&dense).for_each(|(own, gradient)| *own -= 0.1 * gradient);
    client.pull("weights", &mut pulled)?;
    assert_eq!(pulled, own, "after rows");
    client.leave()
}

/// Messages between names, with what they are about.
fn names(group: &Group) -> Result<(), PsError> {
    let name = ["master", "pserver", "trainer"][group.rank() as usize];
    let actors = Actors::configured(group, &["master", "pserver", "trainer"])?;
    assert_eq!((actors.name(), actors.rank("trainer")?), (name, 2));
    let error = actors.isend("trainer9", "x", 0, Array::new(&[1u8], &[1])?).map(drop).unwrap_err();
    assert!(matches!(&error, PsError::UnknownActor { name, .. } if name == "trainer9"), "{error}");
    assert!(matches!(actors.irecv(Some("nobody")).map(drop), Err(PsError::UnknownActor { .. })));
    let (next, before) =
        [("pserver", "trainer"), ("trainer", "master"), ("master", "pserver")][group.rank() as usize];
    for count in [0usize, 3, 100_003] {
        let data: Vec<i64> = (0..count as i64).map(|at| at + i64::from(group.rank())).collect();
        let sent = actors.isend(next, "tensor", 40 + count as u64, Array::new(&data, &[count as u64, 1])?)?;
        let expected = actors.irecv(Some(before))?;
        let found = expected.wait(Duration::from_secs(20))?;
        let from = i64::from((group.rank() + 2) % 3);
        let data: Vec<i64> = (0..count as i64).map(|at| at + from).collect();
        assert_eq!(
            (found.from(), found.meta().name.as_str(), found.meta().step),
            (before, "tensor", 40 + count as u64)
        );
        assert_eq!(found.meta().shape, [count as u64, 1]);
        assert_eq!((found.elements::<i64>(), found.elements::<f64>()), (Some(&data[..]), None));
        sent.wait(None)?;
    }
    let late = actors.irecv(None)?.wait(SHORT).map(drop).unwrap_err();
    assert!(matches!(&late, PsError::NoMessage { .. }), "{late}");
    // Two ranks under one name, and lists that differ: the same error on all.
    for twice in [Actors::meet(group, "one").map(drop), Actors::meet(group, "").map(drop)] {
        assert!(matches!(&twice, Err(PsError::Plan(_))), "{twice:?}");
    }
    let list = ["master", "pserver", "trainer"];
    // One rank's differs: in its own name, in another one's, in length, in that alone.
    for (rank, other) in [
        (1, &["master", "trainer", "pserver"][..]),
        (2, &["other", "pserver", "trainer"]),
        (0, &["master", "pserver"]),
        (1, &["master", "pserver", "trainer", "more"]),
    ] {
        let differs = Actors::configured(group, if group.rank() == rank { other } else { &list }).map(drop);
        assert!(matches!(&differs, Err(PsError::Plan(text)) if text.contains("another list")), "{differs:?}");
    }
    let error =
        Client::connect(&actors, Plan::new(&["pserver"], &["trainer", "ghost"])).map(drop).unwrap_err();
    assert!(matches!(&error, PsError::UnknownActor { name, .. } if name == "ghost"), "{error}");
    let trainers: &[&str] = if group.rank() == 2 { &["trainer"] } else { &["trainer", "master"] };
    let error = Client::connect(&actors, Plan::new(&["pserver"], trainers)).map(drop).unwrap_err();
    assert!(matches!(&error, PsError::Plan(text) if text.contains("another plan")), "{error}");
    Ok(())
}

/// Every refused argument, after each of which the parameter is as it was.
fn arguments(group: &Group) -> Result<(), PsError> {
    let Some(mut client) = client(group)? else { return Ok(()) };
    let shape = [4u64, 3];
    let (start, ones) = (vec![2f32; 12], vec![1f32; 12]);
    client.set_step(5);
    let error = client.push("weights", Array::new(&ones, &shape)?).unwrap_err();
    assert!(
        matches!(&error, PsError::NotSet { parameter, step: 5, .. } if parameter == "weights"),
        "{error}"
    );
    let error = client.pull("weights", &mut [0f32; 12]).unwrap_err();
    assert!(matches!(&error, PsError::NotSet { .. }), "{error}");
    let error = client.set("weights", Array::new(&[1i32; 12], &shape)?, SGD).unwrap_err();
    assert!(matches!(&error, PsError::Type { .. }), "{error}");
    let nan = Optimizer::Sgd { rate: f64::NAN };
    let error = client.set("weights", Array::new(&start, &shape)?, nan).unwrap_err();
    assert!(matches!(&error, PsError::Plan(_)), "{error}");
    assert!(matches!(Array::new(&start, &[5, 3]).map(drop), Err(PsError::Plan(_))));
    client.set("weights", Array::new(&start, &shape)?, SGD)?;
    let mut pulled = vec![0f32; 12];
    let untouched = |client: &mut Client, error: PsError| {
        let mut pulled = vec![0f32; 12];
        assert_eq!(client.pull("weights", &mut pulled).unwrap(), 0, "{error}");
        assert_eq!(pulled, start, "{error}");
    };
    let error = client.push("weights", Array::new(&ones, &[3, 4])?).unwrap_err();
    assert!(
        matches!(&error, PsError::Shape { expected, found, .. } if expected == &[4, 3] && found == &[3, 4]),
        "{error}"
    );
    untouched(&mut client, error);
    let error = client.push("weights", Array::new(&[1f64; 12], &shape)?).unwrap_err();
    assert!(matches!(&error, PsError::Type { .. }), "{error}");
    untouched(&mut client, error);
    let error = client.set("weights", Array::new(&ones, &[12])?, SGD).unwrap_err();
    assert!(matches!(&error, PsError::Shape { .. }), "{error}");
    untouched(&mut client, error);
    for (rows, bad) in [([0u64, 4], 1u64), ([3, 1], 1), ([u64::MAX, 0], 0)] {
        let error = client.push_rows("weights", &rows, Array::new(&[1f32; 6], &[2, 3])?).unwrap_err();
        assert!(matches!(&error, PsError::Rows { at, step: 5, .. } if *at == bad), "{error}");
        untouched(&mut client, error);
    }
    for shape in [&[3u64, 2][..], &[6], &[1, 6]] {
        let error = client.push_rows("weights", &[0, 1], Array::new(&[1f32; 6], shape)?).unwrap_err();
        assert!(matches!(&error, PsError::Shape { .. }), "{error}");
    }
    let error = client.pull("weights", &mut [0f32; 11]).unwrap_err();
    assert!(matches!(&error, PsError::Shape { .. }), "{error}");
    let error = client.pull("weights", &mut [0f64; 12]).unwrap_err();
    assert!(matches!(&error, PsError::Type { .. }), "{error}");
    let error = client.restore("/nonexistent").unwrap_err();
    assert!(matches!(&error, PsError::Checkpoint { .. }), "{error}");
    // After all that it works.
    client.push_rows("weights", &[1, 1], Array::new(&[1f32; 6], &[2, 3])?)?;
    client.pull("weights", &mut pulled)?;
    assert_eq!(pulled[..3], [2.0; 3]);
    assert_eq!(pulled[3..6], [2.0 - 0.1 * 2.0; 3]);
    client.reset()?;
    let error = client.pull("weights", &mut pulled).unwrap_err();
    assert!(matches!(&error, PsError::NotSet { .. }), "{error}");
    client.leave()
}

/// One trainer sets and resets, and the other one goes on with what it finds.
fn anew(group: &Group) -> Result<(), PsError> {
    let Some(mut client) = client(group)? else { return Ok(()) };
    let sets = group.rank() + 1 < group.size();
    let sgd = Optimizer::Sgd { rate: 1.0 };
    for (round, len) in [(0u64, 6u64), (1, 6), (2, 9), (3, 9)] {
        client.set_step(round);
        if sets {
            // Another shape needs a reset.
            if round > 0 && round % 2 == 0 {
                client.reset()?;
            }
            client.set("w", Array::new(&vec![round as f32; len as usize], &[len])?, sgd)?;
        }
        client.wait_for_all()?;
        let mut pulled = vec![0f32; len as usize];
        for step in 1..=3 {
            client.push("w", Array::new(&vec![-1f32; len as usize], &[len])?)?;
            assert_eq!(client.pull("w", &mut pulled)?, step);
            assert_eq!(pulled, vec![(round + step) as f32; len as usize]);
        }
        client.push_rows("w", &[0, len - 1], Array::new(&[-1f32; 2], &[2])?)?;
        client.pull("w", &mut pulled)?;
        assert_eq!((pulled[0], pulled[1]), ((round + 4) as f32, (round + 3) as f32));
        // One push more, of the first trainer: it is dropped with the former parameter.
        if sets {
            client.push("w", Array::new(&vec![-50f32; len as usize], &[len])?)?;
        }
        client.wait_for_all()?;
        assert_eq!(client.describe("w")?.1, [len]);
        client.wait_for_all()?;
    }
    client.leave()
}

/// A trainer is ahead as far as the mode lets it, and no further.
fn apart(group: &Group) -> Result<(), PsError> {
    let (actors, plan) = actors(group)?;
    let Some(mut client) = connect(&actors, plan)? else { return Ok(()) };
    let first = group.rank() + 1 < group.size();
    if first {
        client.set("w", Array::new(&[0f32; 4], &[4])?, Optimizer::Sgd { rate: 1.0 })?;
    }
    client.wait_for_all()?;
    let push = |client: &mut Client| client.push("w", Array::new(&[-1f32; 4], &[4]).unwrap());
    let mut pulled = [0f32; 4];
    if first {
        for pushes in 1..=if parameter("MODE").as_deref() == Some("bounded") { 2 } else { 50 } {
            push(&mut client)?;
            client.pull("w", &mut pulled)?;
            assert_eq!(pulled, [pushes as f32; 4]);
        }
    }
    client.wait_for_all()?;
    let bounded = parameter("MODE").as_deref() == Some("bounded");
    if first && bounded {
        // The third pull waits for the other trainer's first push.
        push(&mut client)?;
        let begun = Instant::now();
        actors.isend("trainer1", "pulls", 0, Array::new(&[0u8; 0], &[0])?)?.wait(None)?;
        client.pull("w", &mut pulled)?;
        assert!(begun.elapsed() >= SHORT && pulled == [4.0; 4], "{:?} {pulled:?}", begun.elapsed());
    } else if !first {
        if bounded {
            actors.irecv(Some("trainer0"))?.wait(Duration::from_secs(20))?;
            std::thread::sleep(SHORT);
        }
        push(&mut client)?;
        client.pull("w", &mut pulled)?;
    }
    client.leave()
}

/// The slowest trainer does not come: the deadline ends the others' waits, and they go on when it has come.
fn stale(group: &Group) -> Result<(), PsError> {
    let (actors, mut plan) = actors(group)?;
    plan.deadline = SHORT;
    let limit = match plan.mode {
        Mode::Bounded(limit) => limit,
        _ => 0,
    };
    let trainers = plan.trainers.clone();
    let slowest = trainers.last().is_some_and(|last| last == actors.name());
    let Some(mut client) = connect(&actors, plan)? else { return Ok(()) };
    if slowest {
        client.set("w", Array::new(&[0f32], &[1])?, SGD)?;
        for word in ["set", "push"] {
            actors.isend("trainer0", word, 0, Array::new(&[0u8; 0], &[0])?)?.wait(None)?;
            actors.irecv(Some("trainer0"))?.wait(Duration::from_secs(20))?;
        }
        client.push("w", Array::new(&[1f32], &[1])?)?;
        actors.isend("trainer0", "pushed", 0, Array::new(&[0u8; 0], &[0])?)?.wait(None)?;
        return client.leave();
    }
    let hear = || actors.irecv(Some("trainer1"))?.wait(Duration::from_secs(20)).map(drop);
    let tell = || actors.isend("trainer1", "go on", 0, Array::new(&[0u8; 0], &[0])?)?.wait(None);
    hear()?;
    tell()?;
    hear()?;
    let error = client.wait_for_all().unwrap_err();
    assert!(matches!(&error, PsError::Stale { behind, .. } if behind == &["trainer1"]), "{error}");
    for pushes in 0..=limit {
        client.set_step(pushes);
        client.push("w", Array::new(&[1f32], &[1])?)?;
    }
    client.set_step(77);
    let pull = client.pull("w", &mut [0f32]).unwrap_err();
    let push = client.push("w", Array::new(&[1f32], &[1])?).unwrap_err();
    for error in [pull, push] {
        let text = error.to_string();
        let PsError::Stale { parameter, trainer, ahead, behind, step: 77, .. } = error else {
            panic!("{text}")
        };
        assert_eq!((parameter.as_str(), trainer.as_str(), ahead), ("w", "trainer0", limit + 1));
        assert_eq!(behind, ["trainer1"]);
    }
    tell()?;
    hear()?;
    client.pull("w", &mut [0f32])?;
    client.leave()
}

/// The last trainer is killed while the others wait for it.
fn trainer_dies(group: &Group) -> Result<(), PsError> {
    let dropped = parameter("LOST").as_deref() == Some("drop");
    let (actors, plan) = actors(group)?;
    let client = match connect(&actors, plan) {
        // The group of all has ended with the trainer.
        Ok(None) if dropped => std::process::exit(0),
        other => other?,
    };
    let Some(mut client) = client else { return Ok(()) };
    if group.rank() + 2 == group.size() {
        client.set("w", Array::new(&[0f32; 3], &[3])?, Optimizer::Sgd { rate: 1.0 })?;
    }
    client.wait_for_all()?;
    if group.rank() + 1 == group.size() {
        tell("dying");
        die();
    }
    let mut pulled = [0f32; 3];
    for step in 1..=4 {
        client.set_step(step);
        client.push("w", Array::new(&[-1f32; 3], &[3])?)?;
        client.pull("w", &mut pulled)?;
    }
    assert_eq!(pulled, [4.0; 3]);
    assert_eq!(client.members()?, ["trainer0"]);
    client.leave()?;
    tell("trained");
    std::process::exit(0)
}

/// The last server is killed while trainers use it.
fn server_dies(group: &Group) -> Result<(), PsError> {
    let (actors, plan) = actors(group)?;
    if actors.name() == "server1" {
        let server = Server::connect(&actors, plan)?;
        std::thread::spawn(move || server.serve());
        // Until a trainer has used it.
        actors.irecv(None)?.wait(Duration::from_secs(20))?;
        die();
    }
    let Some(mut client) = connect(&actors, plan)? else { return Ok(()) };
    client.set("w", Array::new(&[0f32; 4], &[4])?, SGD)?;
    client.wait_for_all()?;
    for step in 0.. {
        client.set_step(step);
        client.push("w", Array::new(&[1f32; 4], &[4])?)?;
        client.pull("w", &mut [0f32; 4])?;
        if step == 3 && group.rank() == 2 {
            actors.isend("server1", "die", 0, Array::new(&[0u8; 0], &[0])?)?;
        }
    }
    Ok(())
}

/// The last server is stopped while trainers use it: the deadline ends their calls, or the heartbeat where it was stopped with their elements
/// in its hands.
fn server_stops(group: &Group) -> Result<(), PsError> {
    let (actors, mut plan) = actors(group)?;
    plan.deadline = 2 * SHORT;
    let deadline = plan.deadline;
    let trainers = plan.trainers.clone();
    let (first, second) = (trainers[0].as_str(), trainers[1].as_str());
    if actors.name() == "server1" {
        let server = Server::connect(&actors, plan)?;
        std::thread::spawn(move || server.serve());
        let pid = rustix::process::getpid();
        let text = [pid.as_raw_pid()];
        actors.irecv(Some(first))?.wait(Duration::from_secs(20))?;
        actors.isend(first, "pid", 0, Array::new(&text, &[1])?)?.wait(None)?;
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::STOP);
        // The signal may reach another thread first; then all are killed.
        loop {
            std::thread::park();
        }
    }
    let Some(mut client) = connect(&actors, plan)? else { return Ok(()) };
    let count: usize = parameter("COUNT").unwrap().parse().unwrap();
    let (gradient, mut pulled) = (vec![1f32; count], vec![0f32; count]);
    let shape = [count as u64];
    // What is large may take longer to be set than the other trainer would wait for it in `wait_for_all`.
    if actors.name() == first {
        client.set("w", Array::new(&gradient, &shape)?, SGD)?;
        actors.isend(second, "set", 0, Array::new(&[0u8; 0], &[0])?)?.wait(None)?;
    } else {
        actors.irecv(Some(first))?.wait(Duration::from_secs(20))?;
    }
    client.wait_for_all()?;
    let mut pid = None;
    let (lost, took) = loop {
        let begun = Instant::now();
        let ended = client.push("w", Array::new(&gradient, &shape)?);
        if let Err(error) = ended.and_then(|()| client.pull("w", &mut pulled)) {
            break (error, begun.elapsed());
        }
        if actors.name() == first && pid.is_none() {
            actors.isend("server1", "stop", 0, Array::new(&[0u8; 0], &[0])?)?;
            let told = actors.irecv(Some("server1"))?.wait(Duration::from_secs(20))?;
            pid = Some(told.elements::<i32>().unwrap()[0]);
        }
    };
    // Twice the deadline, for which an answer or a message is waited for; a synchronous push may wait the deadline for the other trainer first.
    assert!((deadline..deadline * 10).contains(&took), "{took:?}: {lost}");
    let seen = if actors.name() == second {
        actors.isend(first, "seen", 0, Array::new(&[0u8; 0], &[0])?)?.wait(None)
    } else {
        actors.irecv(Some(second))?.wait(Duration::from_secs(20)).map(drop)
    };
    // A missed heartbeat, or the end of another one that has seen it, ends the actors' group, too.
    assert!(matches!(seen, Ok(()) | Err(PsError::Group(_))), "{seen:?}");
    if let Some(pid) = pid {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    Err(lost)
}

/// Elements that are messages of their own, from and into either kind of memory: as an all-reduce among the trainers has it.
fn large(group: &Group) -> Result<(), PsError> {
    let (actors, plan) = actors(group)?;
    let is_server = plan.servers.iter().any(|server| server == actors.name());
    let trainers = group.split(Some(u32::from(is_server)), 0)?.expect("every rank has a color");
    let Some(mut client) = connect(&actors, plan)? else { return Ok(()) };
    let (rows, row) = (601usize, 257usize);
    let (shape, count) = ([rows as u64, row as u64], rows * row);
    let mut own: Vec<f32> = (0..count).map(|at| value(at, 0)).collect();
    if trainers.rank() == 0 {
        client.set("w", Array::new(&own, &shape)?, SGD)?;
    }
    client.wait_for_all()?;
    let (mut of_group, mut into_group) = (group.alloc::<f32>(count)?, group.alloc::<f32>(count)?);
    let (mut of_process, mut into_process) = (vec![0f32; count], vec![0f32; count]);
    for step in 0..4u64 {
        client.set_step(step);
        let salt = step as usize * 7 + trainers.rank() as usize;
        let shared = step % 2 == 0;
        let (gradient, pulled) = match shared {
            true => (&mut of_group[..], &mut into_group[..]),
            false => (&mut of_process[..], &mut into_process[..]),
        };
        gradient.iter_mut().enumerate().for_each(|(at, given)| *given = value(at, salt));
        client.push("w", Array::new(gradient, &shape)?)?;
        trainers.all_reduce(gradient, ReduceOp::Avg)?;
        own.iter_mut().zip(&*gradient).for_each(|(own, gradient)| *own -= 0.1 * gradient);
        assert_eq!(client.pull("w", pulled)?, step + 1);
        assert!(
            pulled.iter().zip(&own).all(|(pulled, own)| pulled.to_bits() == own.to_bits()),
            "step {step}"
        );
    }
    // Many rows.
    let indices: Vec<u64> = (0..rows as u64).filter(|row| row % 3 != 2).collect();
    let values = vec![1f32; indices.len() * row];
    client.push_rows("w", &indices, Array::new(&values, &[indices.len() as u64, row as u64])?)?;
    for index in indices {
        own[index as usize * row..][..row].iter_mut().for_each(|own| *own -= 0.1 * 1.0);
    }
    client.pull("w", &mut into_process)?;
    assert_eq!(into_process, own, "after rows");
    client.leave()
}

/// A server finds no memory for the copy in which it would update a parameter while a master pulls it: the update waits for the pull.
fn no_memory(group: &Group) -> Result<(), PsError> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    const COUNT: usize = 16 << 20;

    let (actors, mut plan) = actors(group)?;
    let [trainer, master] = &plan.trainers.clone()[..] else { panic!("a trainer and a master") };
    plan.trainers.truncate(1);
    let nothing: [u8; 0] = [];
    let word = Array::new(&nothing, &[0])?;
    if actors.name() == "server0" {
        let server = Server::connect(&actors, plan)?;
        let served = std::thread::spawn(move || server.serve());
        actors.irecv(Some(trainer))?.wait(Duration::from_secs(20))?;
        // Room for what comes up, and not for a copy.
        let pages: u64 =
            std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap();
        let most = Some(pages * rustix::param::page_size() as u64 + (COUNT as u64 * 4) / 2);
        setrlimit(Resource::As, Rlimit { current: most, maximum: most }).unwrap();
        actors.isend(trainer, "limited", 0, word)?.wait(None)?;
        served.join().expect("the server does not panic")?;
        return Ok(());
    }
    let mut client = Client::connect(&actors, plan)?;
    let shape = [COUNT as u64];
    let (mut pulled, mut ends) = (vec![0f32; COUNT], false);
    if actors.name() == master {
        actors.irecv(Some(trainer))?.wait(Duration::from_secs(60))?;
        let end = actors.irecv(Some(trainer))?;
        while !ends {
            client.pull("w", &mut pulled)?;
            assert!(pulled.iter().all(|value| *value == pulled[0]), "a pull has parts of two updates");
            ends = end.is_there()?;
        }
        return client.leave();
    }
    let gradient = vec![-1f32; COUNT];
    client.set("w", Array::new(&pulled, &shape)?, Optimizer::Sgd { rate: 1.0 })?;
    // The server keeps the memory of the gradient.
    client.push("w", Array::new(&gradient, &shape)?)?;
    actors.isend("server0", "limit", 0, word)?.wait(None)?;
    actors.irecv(Some("server0"))?.wait(Duration::from_secs(20))?;
    actors.isend(master, "pull", 0, word)?.wait(None)?;
    for step in 2..=12u16 {
        client.push("w", Array::new(&gradient, &shape)?)?;
        client.pull("w", &mut pulled)?;
        assert!(pulled.iter().all(|value| *value == f32::from(step)), "{} after {step} pushes", pulled[0]);
    }
    actors.isend(master, "end", 0, word)?.wait(None)?;
    client.leave()
}

/// As kill -9 does.
fn die() -> ! {
    let pid = rustix::process::getpid();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    unreachable!("the process is killed")
}

const ADAM: Optimizer = Optimizer::Adam { rate: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };

/// Trains, saves half way, and tells the end.
fn save(group: &Group) -> Result<(), PsError> {
    let Some(mut client) = client(group)? else { return Ok(()) };
    let first = group.rank() + 2 == group.size();
    if first {
        client.set("w", Array::new(&[0f32; 40], &[20, 2])?, ADAM)?;
    }
    client.wait_for_all()?;
    train(&mut client, 0..3)?;
    client.wait_for_all()?;
    if first {
        client.save(&parameter("FOLDER").unwrap())?;
    }
    client.wait_for_all()?;
    tell(train(&mut client, 3..6)?);
    client.leave()
}

/// Goes on from there, and tells the end.
fn restore(group: &Group) -> Result<(), PsError> {
    let Some(mut client) = client(group)? else { return Ok(()) };
    let first = group.rank() + 2 == group.size();
    let folder = parameter("FOLDER").unwrap();
    if first && let Some(shape) = parameter("SHAPE") {
        let rows: usize = shape.parse().unwrap();
        client.set("w", Array::new(&vec![5f32; rows * 2], &[rows as u64, 2])?, ADAM)?;
        let error = client.restore(&folder).unwrap_err();
        assert!(
            matches!(&error, PsError::Checkpoint { .. }) && error.to_string().contains("[20, 2]"),
            "{error}"
        );
        let mut pulled = vec![0f32; rows * 2];
        client.pull("w", &mut pulled)?;
        assert!(pulled.iter().all(|value| *value == 5.0), "nothing is half restored");
        client.reset()?;
    }
    client.wait_for_all()?;
    if first {
        client.restore(&folder)?;
    }
    client.wait_for_all()?;
    tell(train(&mut client, 3..6)?);
    client.leave()
}

/// Steps of training, the same for all trainers, and the bits at the end.
fn train(client: &mut Client, steps: std::ops::Range<usize>) -> Result<String, PsError> {
    let mut pulled = vec![0f32; 40];
    for step in steps {
        client.set_step(step as u64);
        let gradient: Vec<f32> = (0..40).map(|at| value(at, step)).collect();
        client.push("w", Array::new(&gradient, &[20, 2])?)?;
        client.pull("w", &mut pulled)?;
    }
    Ok(format!("{:x?}", pulled.iter().map(|value| value.to_bits()).collect::<Vec<_>>()))
}

/// A trainer waits for another one when a master, which is no trainer, shuts the servers down.
fn control(group: &Group) -> Result<(), PsError> {
    let (actors, mut plan) = actors(group)?;
    let name = actors.name().to_owned();
    let trainers = plan.trainers.clone();
    let [waits, silent, master] = &trainers[..] else { panic!("three beside the server") };
    plan.trainers.truncate(2);
    let Some(mut client) = connect(&actors, plan)? else { return Ok(()) };
    if &name == waits {
        client.set("w", Array::new(&[0f32], &[1])?, SGD)?;
        client.push("w", Array::new(&[1f32], &[1])?)?;
        actors.isend(master, "waiting", 0, Array::new(&[0u8; 0], &[0])?)?.wait(None)?;
        let error = client.pull("w", &mut [0f32]).unwrap_err();
        assert!(matches!(&error, PsError::ShutDown { by, .. } if by == master), "{error}");
    } else if &name == master {
        actors.irecv(Some(waits))?.wait(Duration::from_secs(20))?;
        let error = client.push("w", Array::new(&[1f32], &[1])?).unwrap_err();
        assert!(matches!(&error, PsError::Plan(text) if text.contains("no trainer")), "{error}");
        assert_eq!(client.members()?, [waits.as_str(), silent.as_str()]);
        client.shut_down()?;
    } else {
        actors.irecv(Some(master)).map(drop)?;
        // Ends with the shut-down.
        let error = client.wait_for_all().unwrap_err();
        assert!(matches!(&error, PsError::ShutDown { .. }), "{error}");
    }
    client.leave()
}

/// Ranks, hosts and servers.
const PLACES: [(u32, u32, u32); 4] = [(3, 1, 1), (4, 1, 2), (3, 3, 1), (4, 2, 2)];

fn of(ranks: u32, hosts: u32, servers: u32, scenario: &str) -> Job {
    job!(ranks, hosts, scenario)
        .env("SHOUTER_TRANSPORT", if hosts > 1 { "kernel" } else { "auto" })
        .with("SERVERS", servers)
}

#[test]
fn synchronous_training_has_the_bits_of_an_all_reduce() {
    for (ranks, hosts, servers) in PLACES {
        of(ranks, hosts, servers, "equal").run().assert_success();
    }
    of(4, 1, 2, "equal").with("SHARDING", "hashed").run().assert_success();
    of(3, 1, 1, "equal").with("LOST", "drop").run().assert_success();
}

#[test]
fn messages_go_by_name_with_what_they_are_about() {
    for hosts in [1, 3] {
        of(3, hosts, 1, "names").run().assert_success();
    }
}

#[test]
fn refused_arguments_change_nothing() {
    for servers in [1, 2] {
        of(servers + 1, 1, servers, "arguments").run().assert_success();
    }
}

#[test]
fn trainers_go_on_with_a_parameter_that_another_one_has_set_anew() {
    for (servers, lost) in [(1, "end"), (2, "drop")] {
        of(servers + 2, 1, servers, "anew").with("LOST", lost).run().assert_success();
    }
}

#[test]
fn trainers_are_apart_as_far_as_the_mode_lets_them() {
    for mode in ["bounded", "asynchronous"] {
        of(3, 1, 1, "apart").with("MODE", mode).run().assert_success();
    }
}

#[test]
fn a_trainer_that_is_too_far_ahead_hears_of_the_slowest() {
    for state in run_all(["bounded", "synchronous"].map(|mode| of(3, 1, 1, "stale").with("MODE", mode))) {
        state.assert_success();
    }
}

fn ends_with(state: &State, rank: usize, what: &[&str]) {
    let error = state.ranks[rank].error();
    assert!(state.ranks[rank].code.is_some_and(|code| code != 0), "{state}");
    assert!(what.iter().all(|what| error.contains(what)), "rank {rank}: {error}\n{state}");
}

#[test]
fn the_job_ends_with_a_dead_trainer_that_all_name() {
    for (hosts, mode) in [(1, "synchronous"), (3, "synchronous"), (1, "bounded")] {
        let state = of(3, hosts, 1, "trainer").with("MODE", mode).run();
        assert_eq!(state.ranks[2].signal, Some(9), "{state}");
        for rank in [0, 1] {
            ends_with(&state, rank, &["trainer1 (rank 2) is lost"]);
        }
    }
}

#[test]
fn the_others_go_on_without_a_dead_trainer() {
    for hosts in [1, 3] {
        let state = of(3, hosts, 1, "trainer").with("LOST", "drop").run();
        assert_eq!(state.ranks[2].signal, Some(9), "{state}");
        assert!(state.ranks[0].told.iter().any(|line| line.contains("without [\"trainer1\"]")), "{state}");
        assert!(state.ranks[1].told.iter().any(|line| line == "trained"), "{state}");
        assert!(state.ranks[..2].iter().all(|rank| rank.code == Some(0)), "{state}");
    }
}

#[test]
fn a_dead_server_is_named_in_every_mode() {
    for mode in ["synchronous", "bounded", "asynchronous"] {
        for lost in ["end", "drop"] {
            let state = of(4, 1, 2, "server").with("MODE", mode).with("LOST", lost).run();
            assert_eq!(state.ranks[1].signal, Some(9), "{state}");
            for rank in [2, 3] {
                ends_with(&state, rank, &["server1 (rank 1) is lost", "step ", "'w'"]);
            }
        }
    }
    let state = of(4, 2, 2, "server").run();
    [2, 3].into_iter().for_each(|rank| ends_with(&state, rank, &["server1 (rank 1) is lost"]));
}

#[test]
fn a_stopped_server_is_named_at_the_deadline() {
    for lost in ["end", "drop"] {
        // A server may be stopped while it fetches large elements from where they lie: until its heartbeat is missed, they are its.
        for (count, heartbeat) in [(4, "60s"), (1 << 20, "4s")] {
            let job = of(4, 1, 2, "stopped").with("LOST", lost).with("COUNT", count);
            let state = job.env("SHOUTER_HEARTBEAT_TIMEOUT", heartbeat).run();
            assert_eq!(state.ranks[1].signal, Some(9), "{state}");
            let names = |rank: usize, what: &[&str]| {
                let error = state.ranks[rank].error();
                what.iter().all(|what| error.contains(what))
            };
            let server = ["server1 (rank 1) is lost", "'w'"];
            assert!(names(2, &server) || names(3, &server), "{state}");
            // Who ends first takes the group with it, and so does the server's heartbeat: the other may hear of that first.
            for (rank, other) in [(2, 3), (3, 2)] {
                let is_gone = |rank| format!("rank {rank}: the process is dead");
                let heard = [is_gone(other), is_gone(1)].iter().any(|gone| names(rank, &[gone]));
                assert!(names(rank, &server) || heard, "{state}");
            }
        }
    }
}

#[test]
fn large_elements_have_the_bits_of_an_all_reduce() {
    for (ranks, hosts, servers) in PLACES {
        of(ranks, hosts, servers, "large").run().assert_success();
    }
    of(4, 1, 2, "large").with("SHARDING", "hashed").run().assert_success();
    of(4, 1, 2, "large").with("LOST", "drop").run().assert_success();
}

#[test]
fn no_gradient_is_lost_where_an_update_finds_no_memory() {
    of(3, 1, 1, "memory").with("LOST", "drop").run().assert_success();
}

#[test]
fn training_goes_on_from_a_checkpoint_with_the_same_bits() {
    let folder = std::env::temp_dir().join(format!("shouter-ps-{}", std::process::id()));
    for sharding in ["contiguous", "hashed"] {
        let with = |job: Job| job.with("FOLDER", folder.display()).with("SHARDING", sharding);
        let saved = with(of(4, 1, 2, "save")).run();
        saved.assert_success();
        for shape in [None, Some(21)] {
            let job = with(of(4, 1, 2, "restore"));
            let restored = match shape {
                Some(rows) => job.with("SHAPE", rows),
                None => job,
            }
            .run();
            restored.assert_success();
            assert_eq!(restored.ranks[3].told, saved.ranks[3].told, "{restored}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn a_shut_down_ends_the_waits_of_all() {
    let state = of(4, 1, 1, "control").run();
    state.assert_success();
    assert!(
        state.ranks[0].told.iter().any(|line| line.contains("shut down by Some(\"trainer2\")")),
        "{state}"
    );
}
