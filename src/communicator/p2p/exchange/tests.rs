use super::*;

/// Of bytes of `memory`: where they begin, how many, and whether they are received.
fn refused(memory: &mut [u8], messages: &[(usize, usize, bool)]) -> bool {
    let at = |offset: usize| memory.as_ptr().wrapping_add(offset).cast_mut();
    let made: Vec<_> = messages
        .iter()
        .map(|&(offset, count, is_received)| {
            // SAFETY: nobody accesses what the messages are about.
            unsafe {
                match is_received {
                    true => Exchange::receive_raw(at(offset), count, DType::U8, 0, 0),
                    false => Exchange::send_raw(at(offset), count, DType::U8, 0, 0),
                }
            }
            .unwrap()
        })
        .collect();
    check_apart(&made).is_err()
}

#[test]
fn a_receive_into_memory_of_another_message_is_refused() {
    let (send, receive) = (false, true);
    let memory = &mut [0; 32];
    for (messages, expected) in [
        (vec![(0, 8, receive)], false),
        (vec![(0, 8, receive), (8, 8, send)], false),
        (vec![(0, 8, send), (0, 8, send), (4, 8, send), (12, 4, receive)], false),
        (vec![(0, 8, receive), (4, 0, send), (4, 0, receive)], false),
        (vec![(0, 8, receive), (7, 8, send)], true),
        (vec![(0, 8, send), (7, 8, receive)], true),
        (vec![(0, 8, send), (0, 8, receive)], true),
        (vec![(4, 1, send), (0, 8, receive)], true),
        (vec![(0, 8, receive), (7, 8, receive)], true),
        (vec![(0, 16, send), (0, 2, send), (12, 8, receive)], true),
        (vec![(0, 16, receive), (2, 2, send), (20, 8, send)], true),
    ] {
        assert_eq!(refused(memory, &messages), expected, "{messages:?}");
        let turned: Vec<_> = messages.into_iter().rev().collect();
        assert_eq!(refused(memory, &turned), expected, "{turned:?}");
    }
}
