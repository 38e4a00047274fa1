use super::*;

/// Frame lengths that drivers report: e1000, i40e, vmxnet3, mlx5.
const DRIVERS: [u32; 4] = [0x3f00, 9728, 16384, 65536];

fn config(spec: &str, mtu: u16, offload: bool) -> DpdkPortConfig {
    DpdkPortConfig { mtu, offload, ..DpdkPortConfig::new(spec.parse().unwrap()) }
}

fn pci(mtu: u16, offload: bool) -> DpdkPortConfig {
    config("pci:0000:03:00.0", mtu, offload)
}

#[test]
fn rings_of_nics_are_long_and_those_of_embedded_links_short() {
    for (mtu, offload, nic, link) in
        [(9000, false, 1024, 64), (4096, false, 2048, 128), (1500, false, 4096, 256), (9000, true, 1024, 128)]
    {
        assert_eq!(ring(&pci(mtu, offload)), nic, "MTU {mtu}");
        for spec in ["vhost:/tmp/a", "virtio:/tmp/a"] {
            assert_eq!(ring(&config(spec, mtu, offload)), link, "{spec} with MTU {mtu}");
        }
    }
    assert_eq!(ring(&DpdkPortConfig { ring_size: 100, ..pci(1500, false) }), 128);
}

#[test]
fn buffers_of_nics_are_no_longer_than_a_frame_nor_than_drivers_take() {
    for max_frame in DRIVERS {
        for mtu in [576, 1500, 4096, 9000] {
            let whole = u32::from(mtu + LINK_HEADER) + 4;
            let plain = u32::from(frame_room(&pci(mtu, false), max_frame));
            assert!(plain >= whole && plain < whole + 1024 && plain % 1024 == 0, "MTU {mtu}: {plain}");
            let offloaded = u32::from(frame_room(&pci(mtu, true), max_frame));
            let most = NIC_ROOM_MAX.min(max_frame.max(plain));
            assert!((plain..=most).contains(&offloaded), "MTU {mtu}, {max_frame}: {offloaded}");
        }
        // Longer frames than any buffer: in several.
        for mtu in [16000, 65535 - LINK_HEADER] {
            assert_eq!(u32::from(frame_room(&pci(mtu, false), max_frame)), NIC_ROOM_MAX);
        }
    }
    assert_eq!(frame_room(&pci(1500, true), 9728), 9 << 10);
    assert_eq!(frame_room(&pci(1500, true), 65536), 15 << 10);
    // What embedded links have had.
    assert_eq!(frame_room(&config("vhost:/tmp/a", 9000, false), u32::MAX), 9024);
    assert_eq!(frame_room(&config("virtio:/tmp/a", 9000, false), u32::MAX), 9088);
    assert_eq!(frame_room(&config("vhost:/tmp/a", 1500, true), u32::MAX), 16384);
}

/// The default of the configuration's `dpdk_memory_mb` is 512, and the simplest host with two ports a rank has four.
#[test]
fn four_nics_fit_into_the_default_memory_with_any_mtu() {
    for max_frame in DRIVERS {
        for (mtu, offload) in [
            (576, false),
            (1500, false),
            (2048, false),
            (4096, false),
            (9000, false),
            (1500, true),
            (9000, true),
        ] {
            let config = pci(mtu, offload);
            let room = frame_room(&config, max_frame);
            let ring = ring(&config);
            let buffers = pool_size(&config, (ring, ring), room, !offload);
            let used = pool_mb(buffers, room);
            assert!(
                4 * used <= 480,
                "MTU {mtu}, offload {offload}, {max_frame}: {buffers} of {room} take {used} MiB"
            );
        }
    }
}

/// Sent buffers come back when the driver is called, which it is only when there is a fresh buffer.
#[test]
fn a_pool_outlasts_full_rings_of_super_segments() {
    let config = pci(9000, true);
    for room in [9 << 10, 15 << 10] {
        let in_rings = 1000 + 500 * u32::from(u16::MAX).div_ceil(u32::from(room));
        assert!(pool_size(&config, (1000, 500), room, false) > in_rings + 2 * sys::BURST as u32 + CACHE);
    }
}
