use super::*;
use crate::device::Frame;
use crate::region::Region;

#[test]
fn specs_are_read_and_written_alike() {
    for text in [
        "vhost:/tmp/a.sock",
        "virtio:/tmp/a.sock",
        "memif-server:/tmp/a.sock",
        "memif-client:relative.sock",
        "af_packet:eth0",
        "af_xdp:veth-1",
        "tap:tap0",
        "ring",
        "null",
        "pci:0000:03:00.1",
    ] {
        let spec: DeviceSpec = text.parse().unwrap();
        assert_eq!(spec.to_string(), text);
    }
}

#[test]
fn bad_specs_say_what_to_write() {
    let long = format!("vhost:/{}", "x".repeat(107));
    for (text, expected) in [
        ("vhost", "write `vhost:PATH`"),
        ("vhost:", "1 to 107 bytes"),
        (long.as_str(), "1 to 107 bytes"),
        ("virtio:/tmp/a,mac=00:11", "without comma"),
        ("af_packet:a-name-that-is-too-long", "1 to 15"),
        ("tap:a/b", "letters, digits"),
        ("pci:03:00.0", "0000:03:00.0"),
        ("pci:0000:03:00.8", "0000:03:00.0"),
        ("ring:1", "write `ring`"),
        ("dpdk:0", "no such kind"),
        ("", "no such kind"),
    ] {
        let message = text.parse::<DeviceSpec>().unwrap_err().to_string();
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn bad_configurations_are_refused_before_dpdk_starts() {
    for (config, expected) in [
        (EalConfig { memory_mb: 8, ..EalConfig::default() }, "32 or more"),
        (EalConfig { file_prefix: "a/b".into(), ..EalConfig::default() }, "letters, digits"),
        (EalConfig { pci: vec!["eth0".into()], ..EalConfig::default() }, "lspci"),
        (EalConfig { hugepages: true, memory_mb: u32::MAX, ..EalConfig::default() }, "vm.nr_hugepages"),
    ] {
        let message = eal::arguments(&config, &[]).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

/// A static library that is merely linked loses its constructors, and with them its drivers.
#[test]
fn every_driver_has_been_constructed() {
    let description = Eal::describe();
    assert!(description.version.starts_with("DPDK "), "{description:?}");
    let types = sys::log_types();
    for driver in description.drivers {
        // Two drivers register with their bus but have a log type of a shared or another name.
        let name = match *driver {
            "pcap" => "pmd.net.pcap".to_owned(),
            "mlx5" => "pmd.net.mlx5".to_owned(),
            other => format!("pmd.net.{other}"),
        };
        assert!(types.contains(&name), "no log type {name} in\n{types}");
    }
    assert!(description.drivers.len() >= 16);
}

/// Jumbo frames are copied for a while, so the peer should not wait for many of them; short ones are not worth a burst of their own.
#[test]
fn bursts_begin_with_few_bytes_and_grow() {
    static BYTES: [u8; 9000] = [0; 9000];
    let region = Region::from_static(&BYTES);
    for (len, expected) in
        [(9000, &[2, 4, 8, 15, 30, 32, 32][..]), (1500, &[11, 22, 32, 32, 26]), (64, &[32, 32, 32, 27])]
    {
        let frame = Frame::new(&[&[0; 14]], region.extent(0, len)).unwrap();
        let frames = vec![frame; 123];
        let (mut left, mut limit, mut bursts) = (&frames[..], queue::FIRST_BURST, vec![]);
        while !left.is_empty() {
            let burst = queue::burst(left, limit).len();
            bursts.push(burst);
            left = &left[burst..];
            limit *= 2;
        }
        assert_eq!(bursts, expected, "{len}");
    }
}
