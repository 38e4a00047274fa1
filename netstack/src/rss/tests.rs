use super::*;

/// The key of Microsoft's specification, under which its vectors are.
const MICROSOFT_KEY: [u8; KEY_LEN] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// The verification suite of Microsoft's "RSS hashing" specification: source, destination, hash.
const VECTORS: [(&str, &str, u32); 8] = [
    ("66.9.149.187:2794", "161.142.100.80:1766", 0x51cc_c178),
    ("199.92.111.2:14230", "65.69.140.83:4739", 0xc626_b0ea),
    ("24.19.198.95:12898", "12.22.207.184:38024", 0x5c2b_394a),
    ("38.27.205.30:48228", "209.142.163.6:2217", 0xafc7_327f),
    ("153.39.163.191:44251", "202.188.127.2:1303", 0x10e8_28a2),
    ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x4020_7d3d),
    ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0xdde5_1bbf),
    ("[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251", "[fe80::200:f8ff:fe21:67cf]:38024", 0x02d1_feef),
];

#[test]
fn the_published_vectors() {
    let toeplitz = Toeplitz::new(&MICROSOFT_KEY);
    for (source, destination, hash) in VECTORS {
        let found = toeplitz.hash(source.parse().unwrap(), destination.parse().unwrap());
        assert_eq!(found, hash, "{source} to {destination}: {found:#x}");
    }
}

#[test]
fn both_directions_have_one_hash_under_the_symmetric_key() {
    let toeplitz = Toeplitz::new(&SYMMETRIC_KEY);
    for (a, b, _) in VECTORS {
        let (a, b) = (a.parse().unwrap(), b.parse().unwrap());
        assert_eq!(toeplitz.hash(a, b), toeplitz.hash(b, a));
    }
}

#[test]
fn flows_spread_over_all_queues_and_a_port_is_found_for_each() {
    let rss = Rss::new(&MICROSOFT_KEY, 4);
    let remote: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let mut per_queue = [0; 4];
    for port in 49_152..=65_535u16 {
        let local = SocketAddr::new("10.0.0.1".parse().unwrap(), port);
        let queue = rss.queue(remote, local);
        assert!(rss.replies_to(queue, local, remote));
        per_queue[usize::from(queue)] += 1;
    }
    assert!(per_queue.iter().all(|count| *count > 3000), "{per_queue:?}");
}

#[test]
fn source_ports_lead_to_the_queue_of_the_other_end_and_answers_back() {
    let rss = Rss::new(&SYMMETRIC_KEY, 3);
    let (local, remote): (IpAddr, SocketAddr) =
        ("10.0.0.1".parse().unwrap(), "10.0.0.2:61790".parse().unwrap());
    for queue in 0..3 {
        let ports: Vec<_> = rss.source_ports(queue, local, remote, 50_000).take(16).collect();
        assert_eq!(ports.len(), 16);
        for port in ports {
            let from = SocketAddr::new(local, port);
            assert!(
                port >= 50_000 && rss.queue(from, remote) == queue && rss.replies_to(queue, from, remote)
            );
        }
    }
}
