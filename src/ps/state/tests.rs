use std::thread;
use std::time::Duration;

use super::*;
use crate::ps::message::{Envelope, Head, Slab};
use crate::ps::plan::Lost;
use crate::ps::protocol::Request;

const SGD: Optimizer = Optimizer::Sgd { rate: 1.0 };

fn shards(mode: Mode, trainers: &[&str], deadline: Duration) -> Shards {
    let mut plan = Plan::new(&["server"], trainers);
    (plan.mode, plan.deadline, plan.average, plan.lost) = (mode, deadline, false, Lost::Drop);
    Shards::new(Arc::new(plan), Own { name: "server".into(), server: 0, servers: 1 }, None)
}

fn meta(layout: Layout) -> Meta {
    Meta { name: "w".into(), dtype: DType::F32, shape: vec![2], layout, step: 5 }
}

fn gradient(value: f32) -> Gradient {
    come(meta(Layout::Shard(2)), bytemuck::cast_slice(&[value; 2]))
}

/// A message as it comes.
fn come(meta: Meta, data: &[u8]) -> Gradient {
    let envelope = Envelope::about(&Head { meta, body: Request::Describe }, data).unwrap();
    let mut slab = Slab::new(&None, envelope.bytes().len()).unwrap();
    slab.bytes_mut().copy_from_slice(envelope.bytes());
    Gradient::open(slab).unwrap()
}

fn trainer(name: &'static str, place: usize) -> Sender<'static> {
    Sender { name, trainer: Some(place) }
}

fn set(shards: &Shards) {
    shards.set(&meta(Layout::Shard(2)), SGD, bytemuck::cast_slice(&[0f32; 2])).unwrap();
}

fn pulled(shards: &Shards, sender: Sender<'_>) -> Result<f32, Error> {
    let (parameter, _) = shards.pulled(sender, &meta(Layout::Dense), generation(shards))?;
    let value = parameter.read().unwrap();
    Ok(bytemuck::cast_slice::<u8, f32>(value.value())[0])
}

/// The parameter's generation; 0, that none has, if it is not set.
fn generation(shards: &Shards) -> u64 {
    let nobody = Sender { name: "nobody", trainer: None };
    shards.describe(nobody, &meta(Layout::Dense)).map_or(0, |(_, seen)| seen.generation)
}

fn push(
    shards: &Shards,
    sender: Sender<'_>,
    pushes: u64,
    gradient: Gradient,
) -> Result<Vec<Gradient>, Error> {
    shards.push(sender, Seen { generation: generation(shards), pushes }, gradient)
}

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(20);

#[test]
fn a_synchronous_update_waits_for_all_and_is_in_the_order_of_trainers() {
    let shards = shards(Mode::Synchronous, &["a", "b"], LONG);
    set(&shards);
    // b's comes first, and is folded second.
    assert!(push(&shards, trainer("b", 1), 0, gradient(1.0)).unwrap().is_empty());
    thread::scope(|scope| {
        let waits = scope.spawn(|| pulled(&shards, trainer("b", 1)).unwrap());
        assert_eq!(
            pulled(&shards, Sender { name: "master", trainer: None }).unwrap(),
            0.0,
            "others see no half update"
        );
        assert_eq!(push(&shards, trainer("a", 0), 0, gradient(-1e8)).unwrap().len(), 2);
        assert_eq!(waits.join().unwrap(), -(-1e8 + 1.0));
    });
}

#[test]
fn a_push_that_is_repeated_counts_once_and_one_too_many_is_refused() {
    let shards = shards(Mode::Asynchronous, &["a", "b"], SHORT);
    set(&shards);
    push(&shards, trainer("a", 0), 0, gradient(1.0)).unwrap();
    push(&shards, trainer("a", 0), 0, gradient(1.0)).unwrap();
    assert_eq!(pulled(&shards, trainer("a", 0)).unwrap(), -1.0);
    assert!(matches!(push(&shards, trainer("a", 0), 2, gradient(1.0)), Err(Error::Plan(_))));
    assert!(matches!(
        push(&shards, Sender { name: "m", trainer: None }, 0, gradient(1.0)),
        Err(Error::Plan(_))
    ));
    assert_eq!(pulled(&shards, trainer("a", 0)).unwrap(), -1.0);
}

#[test]
fn a_trainer_may_be_so_many_pushes_ahead() {
    let shards = shards(Mode::Bounded(2), &["a", "b"], SHORT);
    set(&shards);
    for pushes in 0..3 {
        push(&shards, trainer("a", 0), pushes, gradient(1.0)).unwrap();
    }
    for error in [
        push(&shards, trainer("a", 0), 3, gradient(1.0)).map(drop),
        pulled(&shards, trainer("a", 0)).map(drop),
    ] {
        let Err(Error::Stale { ahead: 3, limit: 2, behind, step: 5, .. }) = error else {
            panic!("{error:?}")
        };
        assert_eq!(behind, ["b"]);
    }
    assert_eq!(pulled(&shards, trainer("b", 1)).unwrap(), -3.0, "what was refused has not taken effect");
    push(&shards, trainer("b", 1), 0, gradient(1.0)).unwrap();
    push(&shards, trainer("a", 0), 3, gradient(1.0)).unwrap();
    // Whoever leaves is waited for no more.
    shards.leave(Some(1), false);
    assert_eq!(pulled(&shards, trainer("a", 0)).unwrap(), -5.0);
}

#[test]
fn a_dropped_trainer_takes_its_gradient_with_it_and_one_that_leaves_does_not() {
    for (is_dropped, due) in [(true, -1.0), (false, -11.0)] {
        let shards = shards(Mode::Synchronous, &["a", "b", "c"], LONG);
        set(&shards);
        push(&shards, trainer("a", 0), 0, gradient(1.0)).unwrap();
        push(&shards, trainer("b", 1), 0, gradient(10.0)).unwrap();
        shards.leave(Some(1), is_dropped);
        assert_eq!(pulled(&shards, Sender { name: "m", trainer: None }).unwrap(), 0.0);
        shards.leave(Some(2), true);
        assert_eq!(pulled(&shards, trainer("a", 0)).unwrap(), due);
        assert_eq!(shards.members(), [true, false, false]);
        assert_eq!(shards.served().unwrap().dropped.len(), 1 + usize::from(is_dropped));
    }
}

#[test]
fn waits_end_with_a_reset_and_a_shut_down() {
    let shards = shards(Mode::Synchronous, &["a", "b"], LONG);
    set(&shards);
    push(&shards, trainer("a", 0), 0, gradient(1.0)).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| pulled(&shards, trainer("a", 0)));
        shards.reset(6).unwrap();
        assert!(matches!(waits.join().unwrap(), Err(Error::NotSet { .. })));
        let waits = scope.spawn(|| shards.wait(trainer("a", 0), 8));
        shards.shut_down("master");
        assert!(matches!(waits.join().unwrap(), Err(Error::ShutDown { step: 8, .. })));
    });
    assert!(matches!(shards.set(&meta(Layout::Shard(2)), SGD, &[0; 8]), Err(Error::ShutDown { .. })));
}

#[test]
fn what_does_not_fit_the_parameter_is_refused() {
    let shards = shards(Mode::Synchronous, &["a"], SHORT);
    let a = trainer("a", 0);
    assert!(matches!(push(&shards, a, 0, gradient(1.0)), Err(Error::NotSet { step: 5, .. })));
    assert!(matches!(pulled(&shards, a), Err(Error::NotSet { .. })));
    assert!(matches!(shards.set(&meta(Layout::Shard(1)), SGD, &[0; 4]), Err(Error::Plan(_))));
    let integers = Meta { dtype: DType::I32, ..meta(Layout::Shard(2)) };
    assert!(matches!(shards.set(&integers, SGD, &[0; 8]), Err(Error::Type { .. })));
    set(&shards);
    let of = |about: Meta, data: &[u8]| push(&shards, a, 0, come(about, data)).map(drop);
    let shape = Meta { shape: vec![3], ..meta(Layout::Shard(2)) };
    assert!(matches!(of(shape, &[0; 8]), Err(Error::Shape { .. })));
    let dtype = Meta { dtype: DType::F64, ..meta(Layout::Shard(2)) };
    assert!(matches!(of(dtype, &[0; 16]), Err(Error::Type { .. })));
    assert!(matches!(of(meta(Layout::Shard(1)), &[0; 4]), Err(Error::Plan(_))));
    let mut rows = [0; 12];
    rows[..8].copy_from_slice(&2u64.to_ne_bytes());
    assert!(matches!(of(meta(Layout::Rows(1)), &rows), Err(Error::Rows { at: 0, row: 2, .. })));
    assert_eq!(pulled(&shards, a).unwrap(), 0.0);
}

#[test]
fn a_parameter_that_is_set_anew_forgets_gradients_and_counts() {
    let shards = shards(Mode::Synchronous, &["a", "b"], LONG);
    let (a, b) = (trainer("a", 0), trainer("b", 1));
    set(&shards);
    let former = Seen { generation: generation(&shards), pushes: 0 };
    push(&shards, a, 0, gradient(10.0)).unwrap();
    thread::scope(|scope| {
        // Whether it waits already or not.
        let waits = scope.spawn(|| shards.pulled(a, &meta(Layout::Dense), former.generation).map(drop));
        set(&shards);
        assert!(matches!(waits.join().unwrap(), Err(Error::NotSet { .. })));
    });
    assert!(matches!(shards.push(b, former, gradient(1.0)), Err(Error::NotSet { .. })));
    assert_eq!(pulled(&shards, a).unwrap(), 0.0, "a waits for no update");
    push(&shards, b, 0, gradient(1.0)).unwrap();
    push(&shards, a, 0, gradient(2.0)).unwrap();
    assert_eq!(pulled(&shards, b).unwrap(), -3.0);
    let (meta, parameter) = (meta(Layout::Dense), shards.all().remove(0).1);
    let restored = {
        let parameter = parameter.read().unwrap();
        Parameter::new(&None, meta.clone(), SGD, parameter.shard.clone(), parameter.value()).unwrap()
    };
    push(&shards, b, 1, gradient(1.0)).unwrap();
    shards.put(&meta, restored).unwrap();
    assert_eq!(shards.describe(b, &meta).unwrap().1.pushes, 0);
    assert_eq!(pulled(&shards, b).unwrap(), -3.0);
}

#[test]
fn the_gradient_of_a_trainer_that_was_dropped_is_not_taken() {
    for mode in [Mode::Synchronous, Mode::Bounded(0)] {
        let shards = shards(mode, &["a", "b"], LONG);
        let a = trainer("a", 0);
        set(&shards);
        push(&shards, a, 0, gradient(1.0)).unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| push(&shards, a, 1, gradient(10.0)).map(drop));
            shards.leave(Some(0), true);
            assert!(matches!(waits.join().unwrap(), Err(Error::Plan(text)) if text.contains("dropped")));
        });
        assert!(matches!(push(&shards, a, 1, gradient(10.0)), Err(Error::Plan(_))));
        push(&shards, trainer("b", 1), 0, gradient(100.0)).unwrap();
        // A bounded push has taken effect before.
        let due = if mode == Mode::Synchronous { -100.0 } else { -101.0 };
        assert_eq!(pulled(&shards, trainer("b", 1)).unwrap(), due);
    }
}

#[test]
fn waits_end_with_the_failure_of_the_service() {
    let shards = shards(Mode::Synchronous, &["a", "b"], LONG);
    thread::scope(|scope| {
        let waits = scope.spawn(|| shards.wait(trainer("a", 0), 8));
        shards.fail(Error::TrainerLost { trainer: "b".into(), rank: 2, text: "it is gone".into() });
        assert!(matches!(waits.join().unwrap(), Err(Error::TrainerLost { rank: 2, .. })));
    });
    assert!(matches!(shards.served(), Err(Error::TrainerLost { .. })));
}

#[test]
fn rows_without_bytes_are_limited() {
    let empty = |rows| Meta { shape: vec![rows, 0], ..meta(Layout::Shard(rows)) };
    let shards = shards(Mode::Synchronous, &["a"], SHORT);
    assert!(matches!(shards.set(&empty(1 << 40), SGD, &[]), Err(Error::Plan(_))));
    shards.set(&empty(8), SGD, &[]).unwrap();
}
