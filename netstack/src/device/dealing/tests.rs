use super::*;

#[test]
fn odd_frames_are_the_owners() {
    let mut state = 7u64;
    for len in 0..120 {
        let bytes: Vec<u8> = (0..len)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        assert_eq!(addressee(&bytes), Addressee::Owner);
    }
    // Cut anywhere, the headers of a flow are looked at within their bounds.
    let mut frame = vec![0; 12];
    frame.extend([0x81, 0, 0, 5, 8, 0]);
    frame.extend([0x45, 0, 0, 0, 0, 0, 0, 0, 64, Protocol::Tcp.into(), 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0, 5, 0, 80]);
    frame.extend([0; 16]);
    let whole = addressee(&frame);
    assert!(matches!(whole, Addressee::Flow { .. }));
    for len in 0..frame.len() {
        let found = addressee(&frame[..len]);
        assert!(found == Addressee::Owner || found == whole);
    }
}
