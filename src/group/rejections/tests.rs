use super::*;

#[test]
fn a_flood_is_counted_and_not_remembered() {
    let mut strangers = Strangers::default();
    assert_eq!(strangers.summary(), "");
    for i in 0..1000u16 {
        let address = SocketAddr::from(([10, 0, (i >> 8) as u8, i as u8], 1));
        strangers.refuse(address, "it has another key");
        strangers.refuse(address, "it has another key");
    }
    assert_eq!(strangers.counts(), (REMEMBERED, 2000));
    assert!(strangers.summary().contains("2000, the last from 10.0.3.231:1: it has another key"));
}
