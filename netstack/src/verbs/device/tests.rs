use super::*;

#[test]
fn mtu_numbers_are_powers_of_two_from_256_to_4096() {
    for (number, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
        assert_eq!(mtu_bytes(number), bytes);
        assert_eq!(mtu_number(bytes), Some(number));
    }
    assert_eq!(mtu_bytes(0), 0);
    assert_eq!(mtu_bytes(6), 0);
    for bytes in [0, 1, 1500, 8192] {
        assert_eq!(mtu_number(bytes), None);
    }
}

#[test]
fn having_no_device_is_distinguished_from_not_reaching_one() {
    let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    assert_eq!(why_none(&[], &[]), VerbsError::NoDevice);
    let device = "mlx5_0".to_owned();
    let kernel = names(&["mlx5_0", "mlx5_1"]);
    assert_eq!(why_none(&kernel, &[]), VerbsError::NoUverbs { device: device.clone() });
    assert_eq!(why_none(&kernel, &names(&["mlx5_0"])), VerbsError::NoProvider { device });
}

#[test]
fn states_and_link_layers_have_the_numbers_of_the_interface() {
    use rdma_sys::ibv_port_state as raw;
    assert_eq!(PortState::of(raw::IBV_PORT_DOWN), PortState::Down);
    assert_eq!(PortState::of(raw::IBV_PORT_INIT), PortState::Init);
    assert_eq!(PortState::of(raw::IBV_PORT_ARMED), PortState::Armed);
    assert_eq!(PortState::of(raw::IBV_PORT_ACTIVE), PortState::Active);
    assert_eq!(PortState::of(raw::IBV_PORT_ACTIVE_DEFER), PortState::ActiveDefer);
    assert_eq!(PortState::of(raw::IBV_PORT_NOP), PortState::Unknown);
    assert_eq!(LinkLayer::of(0), LinkLayer::InfiniBand);
    assert_eq!(LinkLayer::of(1), LinkLayer::InfiniBand);
    assert_eq!(LinkLayer::of(2), LinkLayer::Ethernet);
}
