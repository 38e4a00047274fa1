use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use super::*;
use crate::channel::shm::SegmentShape;

/// The memory of a host as two of its ranks map it.
fn host() -> [NodeSegment; 2] {
    let shape = SegmentShape { ranks: 2, lanes: 1, lane_bytes: 4096, arena_bytes: 0, parts: 0 };
    let first = NodeSegment::create(shape).unwrap();
    let second = NodeSegment::attach(first.fd().try_clone_to_owned().unwrap(), shape, 1).unwrap();
    [first, second]
}

/// The bytes of message `number`: its length and its contents depend on it.
fn payload(number: u32) -> Vec<u8> {
    let mut rng = SmallRng::seed_from_u64(number.into());
    let most = [0, 8, 64, 1000, MAX_PAYLOAD][rng.random_range(0..5)];
    let mut bytes = vec![0; rng.random_range(0..=most)];
    rng.fill_bytes(&mut bytes);
    bytes
}

fn header(number: u32) -> [u8; HEADER_BYTES] {
    std::array::from_fn(|index| (number >> (index % 4 * 8)) as u8)
}

fn number(message: &RingMessage<'_>) -> u32 {
    u32::from_le_bytes(*message.header.first_chunk().unwrap())
}

fn push(writer: &mut Writer, segment: &NodeSegment, index: u32) -> Result<(), PushError> {
    let payload = payload(index);
    if is_short(index, payload.len()) {
        return writer.push_short(segment, header(index).first_chunk().unwrap(), &payload);
    }
    writer.push(segment, index % 5, &header(index), &payload)
}

/// Half of the messages that may have a short header have one.
fn is_short(index: u32, len: usize) -> bool {
    index.is_multiple_of(2) && len <= SHORT_PAYLOAD
}

fn check(message: &RingMessage<'_>) {
    let number = number(message);
    assert!(message.payload == payload(number), "message {number}");
    if is_short(number, message.payload.len()) {
        assert!(message.is_short() && message.whole().is_none(), "message {number}");
        assert_eq!((message.to, message.header), (0, &header(number)[..SHORT_HEADER_BYTES]));
        return;
    }
    assert_eq!((message.to, message.header), (number % 5, &header(number)[..]));
    let whole = message.whole().unwrap();
    assert_eq!(whole.len(), HEADER_BYTES + message.payload.len());
    assert_eq!(whole.as_ptr(), message.header.as_ptr());
}

#[test]
fn two_threads_pass_messages_of_all_sizes_in_order() {
    const MESSAGES: u32 = 20_000;
    let [ours, theirs] = host();
    let ring = ours.ring_between(0, 1);
    let writer = std::thread::spawn(move || {
        let mut writer = Writer::new(ring);
        for index in 0..MESSAGES {
            while push(&mut writer, &ours, index) == Err(PushError::Full) {
                std::thread::yield_now();
            }
        }
    });
    let (mut reader, mut next, begin) = (Reader::new(ring), 0, Instant::now());
    while next < MESSAGES {
        assert!(begin.elapsed() < Duration::from_secs(60), "{next} messages have come");
        let looked = reader.look(&theirs, |message| {
            check(message);
            assert_eq!(number(message), next);
            next += 1;
            Offered::Taken
        });
        if !looked.unwrap().any {
            std::thread::yield_now();
        }
    }
    writer.join().unwrap();
    assert!(reader.is_settled());
}

/// Messages are put off, lent and released in any order; each is taken once.
#[test]
fn what_is_put_off_or_sent_from_its_place_holds_up_nothing_until_the_ring_is_full() {
    const MESSAGES: u32 = 5_000;
    let [ours, theirs] = host();
    let ring = ours.ring_between(0, 1);
    let (mut writer, mut reader) = (Writer::new(ring), Reader::new(ring));
    let mut rng = SmallRng::seed_from_u64(7);
    let (mut written, mut settled, mut lent) = (0, vec![0u8; MESSAGES as usize], vec![]);
    let (mut was_full, mut overtook, mut last) = (false, false, 0);
    for _ in 0..1_000_000 {
        while written < MESSAGES && push(&mut writer, &ours, written).is_ok() {
            written += 1;
        }
        was_full |= written < MESSAGES;
        reader
            .look(&theirs, |message| {
                check(message);
                let index = number(message);
                match rng.random_range(0..3) {
                    0 => return Offered::Later,
                    1 => lent.push((message.number, index)),
                    _ => settled[index as usize] += 1,
                }
                overtook |= index < last;
                last = index;
                if lent.last().is_some_and(|(_, lent)| *lent == index) {
                    Offered::Sending
                } else {
                    Offered::Taken
                }
            })
            .unwrap();
        while !lent.is_empty() && rng.random_bool(0.7) {
            let (number, index) = lent.swap_remove(rng.random_range(0..lent.len()));
            let to = if is_short(index, payload(index).len()) { 0 } else { index % 5 };
            assert_eq!(reader.release(&theirs, number), Some(to));
            assert_eq!(reader.release(&theirs, number), None);
            settled[index as usize] += 1;
        }
        if settled.iter().all(|times| *times == 1) {
            break;
        }
    }
    assert!(settled.iter().all(|times| *times == 1) && was_full && overtook && reader.is_settled());
}

#[test]
fn a_ring_that_nobody_reads_is_full_and_takes_more_once_it_was_read() {
    let [ours, theirs] = host();
    let ring = ours.ring_between(0, 1);
    let (mut writer, mut reader) = (Writer::new(ring), Reader::new(ring));
    let bytes = vec![3; MAX_PAYLOAD];
    for _ in 0..20 {
        let mut taken = 0;
        while writer.push(&ours, 0, &header(1), &bytes).is_ok() {
            taken += 1;
        }
        assert!((6..=7).contains(&taken), "{taken}");
        assert_eq!(writer.push(&ours, 0, &header(1), &bytes), Err(PushError::Full));
        let mut read = 0;
        let count = |_: &RingMessage<'_>| {
            read += 1;
            Offered::Taken
        };
        reader.look(&theirs, count).unwrap();
        assert_eq!(read, taken);
    }
    assert_eq!(
        writer.push(&ours, 0, &header(1), &vec![0; MAX_PAYLOAD + 1]),
        Err(PushError::TooLarge),
        "it would not fit into every gap"
    );
}

#[test]
fn nonsense_in_a_word_is_found_and_read_no_further() {
    let cases = [
        ("not complete", 5),
        ("too long", COMPLETE | (MAX_PAYLOAD as u64 + 1)),
        ("very long", COMPLETE | u64::from(u32::MAX)),
        ("a skip at the beginning", COMPLETE | SKIP),
    ];
    for (what, word) in cases {
        let [ours, theirs] = host();
        let ring = ours.ring_between(0, 1);
        ours.ring_word(ring, 0).store(word, Ordering::Release);
        let mut reader = Reader::new(ring);
        assert_eq!(reader.look(&theirs, |_| Offered::Taken), Err(Garbled), "{what}");
        assert_eq!(reader.look(&theirs, |_| Offered::Taken), Ok(Looked::default()), "{what}: again");
    }
    let [ours, theirs] = host();
    let ring = ours.ring_between(0, 1);
    let (mut writer, mut reader) = (Writer::new(ring), Reader::new(ring));
    // An entry that would reach beyond the end.
    while writer.push(&ours, 0, &header(1), &[0; 8000]).is_ok() {
        reader.look(&theirs, |_| Offered::Taken).unwrap();
        let at = (writer.tail % RING as u64) as usize;
        if RING - at < MAX_PAYLOAD {
            ours.ring_word(ring, at).store(COMPLETE | MAX_PAYLOAD as u64, Ordering::Release);
            break;
        }
    }
    assert_eq!(reader.look(&theirs, |_| Offered::Taken), Err(Garbled));
    // A writer that goes on where the reader has yet to read.
    let ring = ours.ring_between(1, 0);
    for at in (0..RING).step_by(LINE) {
        ours.ring_word(ring, at).store(COMPLETE, Ordering::Release);
    }
    let mut reader = Reader::new(ring);
    let mut offered = 0;
    let ends = (0..100).find_map(|_| {
        let keep = |_: &RingMessage<'_>| {
            offered += 1;
            Offered::Sending
        };
        reader.look(&theirs, keep).err()
    });
    assert_eq!((ends, offered), (Some(Garbled), RING / LINE));
}

#[test]
fn a_reader_that_writes_nonsense_is_found() {
    for head in [1 << 40, u64::MAX] {
        let [ours, theirs] = host();
        let ring = ours.ring_between(0, 1);
        let mut writer = Writer::new(ring);
        theirs.ring_head(ring).store(head, Ordering::Release);
        let failed = (0..10).find_map(|_| writer.push(&ours, 0, &header(1), &[0; MAX_PAYLOAD]).err());
        assert_eq!(failed, Some(PushError::Garbled));
    }
}

/// Whatever lies in a ring: no access leaves it, and every look ends.
#[test]
fn random_memory_is_survived() {
    let [ours, theirs] = host();
    let ring = ours.ring_between(0, 1);
    let mut rng = SmallRng::seed_from_u64(11);
    for round in 0..300 {
        for at in (0..RING).step_by(LINE) {
            let word = match rng.random_range(0..8) {
                0 => rng.next_u64(),
                1 => COMPLETE | SKIP,
                2 => 0,
                _ => COMPLETE | rng.random_range(0..MAX_PAYLOAD as u64),
            };
            ours.ring_word(ring, at).store(word, Ordering::Release);
        }
        let mut reader = Reader::new(ring);
        reader.cursor = rng.random_range(0..RING as u64 / 64) * 64;
        reader.head = reader.cursor;
        for _ in 0..50 {
            let offer = |message: &RingMessage<'_>| {
                assert!(message.payload.len() <= MAX_PAYLOAD);
                std::hint::black_box(message.payload.iter().map(|byte| u64::from(*byte)).sum::<u64>());
                [Offered::Taken, Offered::Later, Offered::Sending][round % 3]
            };
            if reader.look(&theirs, offer).is_err() {
                break;
            }
        }
    }
}
