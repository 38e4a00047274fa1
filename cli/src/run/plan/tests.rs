use super::*;

#[test]
fn ranks_fill_hosts_in_blocks() {
    let placements = placements(&[3, 2]);
    let hosts: Vec<u32> = placements.iter().map(|p| p.host).collect();
    assert_eq!(hosts, [0, 0, 0, 1, 1]);
    let locals: Vec<(u32, u32)> = placements.iter().map(|p| (p.local_rank, p.local_size)).collect();
    assert_eq!(locals, [(0, 3), (1, 3), (2, 3), (0, 2), (1, 2)]);
    assert!(placements.iter().enumerate().all(|(i, p)| p.rank == i as u32));
}

#[test]
fn every_pair_of_hosts_has_one_link_with_two_ends() {
    let dir = Path::new("/tmp/job");
    for hosts in [1, 2, 3, 32] {
        let mut ends = std::collections::BTreeMap::<String, Vec<String>>::new();
        for host in 0..hosts {
            let ports = ports(dir, Link::Virtio, hosts, host, 9000);
            assert_eq!(ports.len() as u32, hosts - 1);
            for port in ports {
                let (kind, path) = port.device.split_once(':').unwrap();
                ends.entry(path.to_owned()).or_default().push(kind.to_owned());
                assert_eq!(port.peers.len(), 1);
            }
        }
        assert_eq!(ends.len() as u32, hosts * (hosts - 1) / 2);
        assert!(ends.values().all(|kinds| kinds == &["vhost", "virtio"]), "{ends:?}");
    }
}

#[test]
fn an_address_belongs_to_one_port_of_one_link() {
    let dir = Path::new("/tmp/job");
    for hosts in [2, 3, 4, MAX_HOSTS] {
        let mut leads_to = std::collections::BTreeMap::<Ipv4Addr, Ipv4Addr>::new();
        for port in (0..hosts).flat_map(|host| ports(dir, Link::Virtio, hosts, host, 9000)) {
            let (own, bits) = port.address.split_once('/').unwrap();
            let (own, peer): (Ipv4Addr, Ipv4Addr) = (own.parse().unwrap(), port.peers[0].parse().unwrap());
            assert_eq!(bits, "30");
            // Both ends are in one network, and neither has its first address or its last.
            assert_eq!(own.to_bits() & !3, peer.to_bits() & !3);
            assert!(matches!(own.to_bits() & 3, 1 | 2), "{own}");
            assert_eq!(leads_to.insert(own, peer), None, "{own} is given twice");
        }
        assert_eq!(leads_to.len() as u32, hosts * (hosts - 1));
        assert!(leads_to.iter().all(|(own, peer)| own != peer && leads_to.get(peer) == Some(own)));
    }
}

#[test]
fn memif_names_its_two_sides() {
    let dir = Path::new("/tmp/job");
    assert_eq!(ports(dir, Link::Memif, 2, 0, 1500)[0].device, "memif-server:/tmp/job/0-1.sock");
    assert_eq!(ports(dir, Link::Memif, 2, 1, 1500)[0].device, "memif-client:/tmp/job/0-1.sock");
    assert_eq!(ports(dir, Link::Memif, 2, 1, 1500)[0].address, "10.77.0.2/30");
}

#[test]
fn more_ranks_than_cores_are_not_pinned() {
    assert_eq!(cores_of_ranks(2, &[4, 6]), Some(vec![4, 6]));
    assert_eq!(cores_of_ranks(1, &[4, 6]), Some(vec![4]));
    assert_eq!(cores_of_ranks(3, &[4, 6]), None);
}
