use proptest::prelude::*;

use super::*;
use crate::region::Region;

fn content(queue: &Queue, position: u64, len: u32) -> Vec<u8> {
    let mut extents = Vec::new();
    queue.extents(position, len, &mut extents);
    extents.iter().flat_map(|extent| extent.as_bytes().to_vec()).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<u8>),
    Push(u8, u16),
    Acknowledge(u16),
    Other(u16),
    Read(u16, u16, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..600).prop_map(Step::Write),
        (any::<u8>(), 1..3000u16).prop_map(|(at, len)| Step::Push(at, len)),
        any::<u16>().prop_map(Step::Acknowledge),
        (1..200u16).prop_map(Step::Other),
        (any::<u16>(), any::<u16>(), 1..5u8).prop_map(|(at, len, extents)| Step::Read(at, len, extents)),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    /// After any writes, pushes and acknowledgements the queue is a string of bytes.
    #[test]
    fn it_is_a_string_of_bytes(steps in steps()) {
        let shared: &'static [u8] = Box::leak((0..4000u32).map(|i| (i * 7) as u8).collect::<Vec<_>>().into_boxed_slice());
        let region = Region::from_static(shared);
        let mut memory = Memory::new(usize::MAX);
        let (mut queue, mut other) = (Queue::default(), Queue::default());
        let (mut all, mut released, mut pushed) = (Vec::new(), Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Write(bytes) => {
                    prop_assert_eq!(queue.write(&mut memory, &bytes, usize::MAX), bytes.len());
                    all.extend_from_slice(&bytes);
                }
                Step::Push(at, len) => {
                    let extent = region.extent(usize::from(at), u32::from(len)).unwrap();
                    queue.push(extent, ReleaseToken(all.len() as u64));
                    all.extend_from_slice(extent.as_bytes());
                    pushed.push((ReleaseToken(all.len() as u64 - u64::from(len)), all.len() as u64));
                }
                Step::Acknowledge(part) => {
                    let position = queue.head() + queue.len() * u64::from(part) / u64::from(u16::MAX);
                    queue.acknowledge(position, &mut memory, &mut released);
                    let expected: Vec<_> =
                        pushed.iter().filter(|(_, end)| *end <= position).map(|(token, _)| *token).collect();
                    prop_assert_eq!(&released, &expected);
                    memory.on_frames_released();
                }
                Step::Other(len) => {
                    other.write(&mut memory, &vec![0xee; usize::from(len)], usize::MAX);
                }
                Step::Read(at, len, extents) => {
                    let position = queue.head() + queue.len() * u64::from(at) / u64::from(u16::MAX);
                    let len = u64::from(len).min(queue.tail() - position) as u32;
                    let span = queue.span(position, len, usize::from(extents));
                    prop_assert!(span > 0 || len == 0);
                    let mut into = Vec::new();
                    queue.extents(position, span, &mut into);
                    prop_assert!(into.len() <= usize::from(extents));
                    let (from, to) = (position as usize, position as usize + len as usize);
                    prop_assert_eq!(content(&queue, position, len), &all[from..to]);
                }
            }
            prop_assert_eq!(queue.tail(), all.len() as u64);
        }
        queue.clear(&mut memory, &mut released);
        prop_assert_eq!(released.len(), pushed.len());
    }
}

#[test]
fn no_more_is_taken_than_there_is_room() {
    let mut memory = Memory::new(usize::MAX);
    let mut queue = Queue::default();
    assert_eq!(queue.write(&mut memory, &[1; 100], 30), 30);
    assert_eq!(queue.len(), 30);
}
