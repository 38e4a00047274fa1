use super::*;

#[test]
fn two_parts_are_as_good_as_one() {
    // RFC 3720 appendix B.4: 32 bytes of zeroes.
    assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc32c_of_two(&[0; 5], &[0; 27]), 0x8a91_36aa);
    assert_eq!(crc32c(&[]), 0);
}
