use super::*;

#[test]
fn a_flood_is_counted_and_not_remembered() {
    let mut rejections = Rejections::default();
    assert_eq!(rejections.summary(), "");
    for i in 0..1000u16 {
        let address = SocketAddr::from(([10, 0, (i >> 8) as u8, i as u8], 1));
        rejections.refuse(address, "it has another key");
        rejections.refuse(address, "it has another key");
    }
    assert_eq!(rejections.counts(), (REMEMBERED, 2000));
    assert!(rejections.summary().contains("2000, the last from 10.0.3.231:1: it has another key"));
}
