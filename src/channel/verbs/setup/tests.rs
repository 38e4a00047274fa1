use super::*;

#[test]
fn damaged_messages_are_refused_and_do_not_panic() {
    let address = QueuePairAddress {
        queue_pair: 7,
        psn: 0xff_ffff,
        gid: "fe80::1".parse().unwrap(),
        lid: 3,
        mtu: 4096,
        slots: u64::MAX,
        rkey: 9,
    };
    let sizes = Sizes { window: 32, slot_bytes: 1 << 16 };
    let offer = Offer {
        connection: 1,
        epoch: 2,
        connections: 3,
        crc: true,
        sizes,
        address,
        taken: 1 << 40,
        refused: 0,
    };
    wire::tests::fuzz(&[SetupMessage::Offer(offer), SetupMessage::Ready { connection: 1, epoch: u32::MAX }]);
}
