use super::*;

/// A header and a payload.
type Frame = (Vec<u8>, Vec<u8>);

/// Frames of these payload lengths, and what they should come out as.
fn stream(lens: &[usize]) -> (Vec<u8>, Vec<Frame>) {
    let (mut bytes, mut frames) = (vec![], vec![]);
    for (index, &len) in lens.iter().enumerate() {
        let head = vec![index as u8; HEADER_BYTES];
        let payload: Vec<u8> = (0..len).map(|at| (at * 7 + index) as u8).collect();
        bytes.extend_from_slice(&(len as u32).to_le_bytes());
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(&payload);
        frames.push((head, payload));
    }
    (bytes, frames)
}

#[test]
fn frames_come_out_whole_however_the_stream_is_cut() {
    let (bytes, due) = stream(&[0, 1, MAX_FRAGMENT, 64, 0, 0, 1000, 3]);
    for cut in (1..200).chain([HEAD - 1, HEAD, HEAD + 1, 1460, 4096, 65_536, bytes.len()]) {
        let (mut frames, mut found) = (Frames::default(), vec![]);
        for piece in bytes.chunks(cut) {
            frames.feed(piece, |head, payload| found.push((head.to_vec(), payload.to_vec()))).unwrap();
        }
        assert!(found == due, "pieces of {cut} bytes");
    }
}

#[test]
fn a_frame_that_lies_in_one_piece_is_not_copied() {
    let (bytes, _) = stream(&[5000, 5000]);
    let mut inside = 0;
    let count = |_: &[u8], payload: &[u8]| {
        inside += usize::from(bytes.as_ptr_range().contains(&payload.as_ptr()));
    };
    Frames::default().feed(&bytes, count).unwrap();
    assert_eq!(inside, 2);
}

#[test]
fn a_length_that_no_frame_has_is_an_error_wherever_it_is_cut() {
    let mut bytes = (MAX_FRAGMENT as u32 + 1).to_le_bytes().to_vec();
    bytes.resize(HEAD, 0);
    for cut in 1..=HEAD {
        let mut frames = Frames::default();
        let mut results = bytes.chunks(cut).map(|piece| frames.feed(piece, |_, _| panic!("no frame")));
        assert!(results.any(|result| result == Err(TooLong)), "pieces of {cut} bytes");
    }
}
