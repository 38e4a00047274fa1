use std::fmt::Debug;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

/// Feeds a decoder with these messages, with each of them cut, changed and lengthened, and with random bytes: it may
/// refuse all of that and must not panic, and a message that it accepts must stay the same when it is encoded again.
pub(crate) fn fuzz<T: Serialize + for<'a> Deserialize<'a> + PartialEq + Debug>(messages: &[T]) {
    let stays = |bytes: &[u8], what: &str| {
        if let Ok(message) = decode::<T>(bytes) {
            assert_eq!(decode(&encode(&message).unwrap()), Ok(message), "{what}: {bytes:?}");
        }
    };
    let whole: Vec<Vec<u8>> = messages.iter().map(|message| encode(message).unwrap()).collect();
    for (message, bytes) in messages.iter().zip(&whole) {
        assert_eq!(decode::<T>(bytes).as_ref(), Ok(message));
        assert_eq!(
            decode::<T>(&[&bytes[..], &[0]].concat()),
            Err(Malformed),
            "{message:?} and one byte more"
        );
        for cut in 0..bytes.len() {
            assert_eq!(decode::<T>(&bytes[..cut]), Err(Malformed), "{message:?} cut at {cut}");
        }
    }
    for seed in 0..20_000 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut bytes = match whole.get(rng.random_range(0..=whole.len())) {
            Some(bytes) => bytes.clone(),
            None => (0..rng.random_range(1..64)).map(|_| rng.random()).collect(),
        };
        for _ in 0..rng.random_range(1..8) {
            let at = rng.random_range(0..bytes.len());
            // Large values are lengths beyond the end.
            bytes[at] = if rng.random() { rng.random() } else { 0xff };
        }
        bytes.truncate(rng.random_range(1..=bytes.len()));
        stays(&bytes, &format!("seed {seed}"));
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Short {
    #[serde(deserialize_with = "at_most::<3, _, _>")]
    list: Vec<u32>,
}

#[test]
fn a_list_beyond_its_bound_is_refused() {
    let of = |len: u32| Short { list: (0..len).collect() };
    fuzz(&[of(0), of(3)]);
    assert_eq!(decode::<Short>(&encode(&of(4)).unwrap()), Err(Malformed));
    // Only a length, of nearly 2^64.
    assert_eq!(
        decode::<Short>(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]),
        Err(Malformed)
    );
}

#[test]
fn what_has_no_encoding_is_an_error_and_no_empty_message() {
    struct Streamed;
    impl Serialize for Streamed {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            // A list whose length is not known before its end: postcard has no form for it.
            serializer.collect_seq(std::iter::repeat_n(1u8, 3).filter(|_| true))
        }
    }
    let error = encode(&Streamed).unwrap_err().to_string();
    assert!(error.starts_with("a message cannot be encoded"), "{error}");
}
