use super::*;

#[test]
fn two_parts_are_as_good_as_one() {
    // RFC 3720 appendix B.4: 32 bytes of zeroes.
    assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc32c_behind(crc32c(&[0; 5]), &[0; 27]), 0x8a91_36aa);
    let bytes: Vec<u8> = (0..5000u32).map(|i| ((i * i) >> 3) as u8).collect();
    for cut in [0, 1, 67, 68, 4096, 5000] {
        let (first, second) = bytes.split_at(cut);
        assert_eq!(crc32c_behind(crc32c(first), second), crc32c(&bytes), "cut at {cut}");
    }
    assert_eq!(crc32c(&[]), 0);
}

/// The short ones are computed apart.
#[test]
fn every_length_and_alignment_gives_the_same() {
    let bytes: Vec<u8> = (0..700u32).map(|i| ((i * i) >> 3) as u8).collect();
    for start in 0..9 {
        for end in start..start + 300 {
            let bytes = &bytes[start..end];
            let reference = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
            assert_eq!(u64::from(crc32c(bytes)), reference, "{start}..{end}");
            let (first, second) = bytes.split_at(bytes.len() / 3);
            assert_eq!(crc32c_behind(crc32c(first), second), crc32c(bytes), "{start}..{end}");
        }
    }
}

/// What other processors compute, which take the parts one by one.
#[test]
fn what_lies_between_two_words_gives_the_same_at_every_length() {
    let bytes: Vec<u8> = (0..700u32).map(|i| ((i * i) >> 3) as u8).collect();
    let (front, back) = ([1, 2, 3, 0xf4], [0xf5, 6, 7, 8]);
    let fixed: [u8; 44] = core::array::from_fn(|i| (i * 37) as u8);
    for start in 0..9 {
        for end in start..start + 400 {
            let bytes = &bytes[start..end];
            let whole = [&front[..], &fixed, bytes, &back].concat();
            assert_eq!(crc32c_between(front, &fixed, bytes, back), crc32c(&whole), "{start}..{end}");
            assert_eq!(
                crc32c_between(front, &[9; 4], bytes, back),
                long_between(front, &[9; 4], bytes, back)
            );
            // The longest are computed apart.
            let (bytes, inner) = bytes.split_at(bytes.len() / 5);
            let back = crc32c(inner).to_be_bytes();
            let apart = crc32c_between(front, &fixed, bytes, back);
            assert_eq!(crc32c_nested(front, &fixed, bytes, inner), apart, "{start}..{end}");
        }
    }
}
