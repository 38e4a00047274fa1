use super::numbers::{exact, expected, input};
use super::*;

fn usage(result: Result<(), BenchError>) -> String {
    match result {
        Err(BenchError::Usage(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn sizes_are_whole_numbers_of_elements() {
    let sizes = |text: &str| text.parse::<Sizes>().unwrap();
    assert!(whole(&sizes("1..4Mi"), "u8").is_ok());
    assert!(whole(&sizes("4..4Mi"), "f32").is_ok());
    assert!(usage(whole(&sizes("1..4Mi"), "f32")).contains("--dtype u8"));
    assert!(usage(whole(&sizes("4,12"), "f64")).contains("--bytes 4 "));
}

#[test]
fn sums_of_inputs_are_what_the_library_is_to_return() {
    fn exactly<T: Number + std::ops::Add<Output = T> + std::fmt::Debug>(ranks: u32) {
        for index in 0..3000 {
            // In any order, and by parts: no partial sum is rounded.
            let sum = |ranks_of: std::ops::Range<u32>| {
                ranks_of
                    .map(|rank| input::<T>((rank, ranks), 5, index))
                    .fold(T::default(), |sum, one| sum + one)
            };
            assert_eq!(sum(0..ranks), expected::<T>(ranks, 5, index));
            assert_eq!(sum(ranks / 2..ranks) + sum(0..ranks / 2), expected::<T>(ranks, 5, index));
        }
        assert!((0..3000).any(|index| input::<T>((1, ranks), 5, index) != T::default()));
    }
    exactly::<shouter::f16>(2);
    exactly::<shouter::f16>(1024);
    exactly::<shouter::bf16>(2);
    exactly::<shouter::bf16>(128);
    exactly::<f32>(4096);
    for index in 0..3000 {
        let bytes = (0..40).fold(0u8, |sum, rank| sum.wrapping_add(input((rank, 40), 5, index)));
        assert_eq!(bytes, expected::<u8>(40, 5, index));
    }
    assert!(exact(128, "bf16").is_ok() && exact(4096, "f32").is_ok() && exact(4096, "u8").is_ok());
    assert!(usage(exact(129, "bf16")).contains("128"));
}

#[test]
fn peers_are_measured_with_their_own_type_only() {
    let args = |dtype: &str, against: Vec<Peer>| AllreduceArgs {
        ranks: 2,
        hosts: 1,
        threads: false,
        transport: "auto".into(),
        rdma_device: None,
        bytes: Sizes(vec![8]),
        dtype: dtype.into(),
        memory: vec!["shared".into()],
        device: "virtio".into(),
        mtu: 9000,
        seconds: 0.1,
        against,
        json: true,
    };
    assert!(check(&args("u8", vec![])).is_ok());
    assert!(check(&args("f32", vec![Peer::Gloo])).is_ok());
    assert!(usage(check(&args("u8", vec![Peer::Gloo]))).contains("--dtype"));
    assert!(check(&AllreduceArgs { threads: true, ..args("u8", vec![]) }).is_ok());
    let apart = AllreduceArgs { threads: true, hosts: 2, ..args("u8", vec![]) };
    assert!(usage(check(&apart)).contains("--threads"));
}
