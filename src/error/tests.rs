use super::*;

fn call() -> Call {
    let tensor = NamedTensor { id: TensorId(3), name: "layer.1".into() };
    Call { operation: Operation::AllReduce, tensor: Some(Arc::new(tensor)), step: 7 }
}

/// Programs in C and exit codes of jobs depend on them.
#[test]
fn codes_are_stable() {
    let errors = [
        Error::Config(String::new()),
        Error::join(""),
        Error::Device(String::new()),
        Error::Argument(String::new()),
        Error::mismatch(call(), None, Views::default(), ""),
        Error::peer_failed(call(), 1, Reason::Lost, ""),
        Error::deadline(call(), vec![1], Duration::ZERO, ""),
        Error::closed(""),
        Error::Internal(String::new()),
        Error::timeout(Duration::ZERO),
        Error::accelerator(""),
    ];
    assert!(errors.iter().map(Error::code).eq(1..=11));
}

/// The reason of an error is the one on the wire, with its number and its text.
#[test]
fn reasons_are_those_of_the_wire() {
    for code in 1..=9 {
        let why = AbortReason::from_code(code);
        let reason = Reason::from(&why);
        assert_eq!((reason as u32, reason.to_string()), (code, why.to_string()));
    }
}

#[test]
fn fields_are_found_whatever_the_variant() {
    let error = Error::peer_failed(call(), 2, Reason::Stopped, "text").with_memory_in_use(5);
    assert_eq!((error.rank(), error.reason(), error.step()), (Some(2), Some(Reason::Stopped), Some(7)));
    assert_eq!((error.operation(), error.in_use_by()), (Some(Operation::AllReduce), Some(5)));
    assert_eq!(error.tensor().map(|tensor| (tensor.id, &*tensor.name)), Some((TensorId(3), "layer.1")));
    let error = Error::deadline(call(), vec![1, 4], Duration::from_secs(9), "text");
    assert_eq!((error.missing(), error.after()), (&[1, 4][..], Some(Duration::from_secs(9))));
    assert_eq!(error.to_string(), "deadline: text");
    let [goes_on, ended] = [Error::mismatch, Error::diverged]
        .map(|new| new(call(), Some(1), Views::default(), "text".to_owned()));
    assert_eq!((goes_on.rank(), goes_on.reason()), (Some(1), None));
    assert_eq!((ended.rank(), ended.reason()), (Some(1), Some(Reason::Diverged)));
    let error = Error::closed("text").within(Collective::AllGatherV);
    assert_eq!(error.to_string(), "the group is closed: all-gather-v: text");
    let error = Error::accelerator_under(call(), "text");
    assert_eq!((error.rank(), error.step(), error.in_use_by()), (None, Some(7), None));
}

/// An error is moved on every return of a small operation.
#[test]
fn an_error_is_small() {
    assert!(size_of::<Error>() <= 88, "{}", size_of::<Error>());
}
