use super::*;

fn leader(transport: &str, crc: bool, ip: [u8; 4]) -> Reachable {
    Reachable {
        ports: vec![],
        mtu: 9000,
        transport: transport.into(),
        crc,
        listens: (transport == "kernel").then_some((ip.into(), 4000)),
    }
}

#[test]
fn leaders_that_do_not_go_together_are_named() {
    let check =
        |a: &Reachable, b: &Reachable| check_same((Rank(0), a), (Rank(4), b)).map_err(|why| why.to_string());
    let near = [10, 0, 0, 1];
    let cases = [
        (
            leader("kernel", true, near),
            leader("rud", true, near),
            "rank 0 has kernel between hosts and rank 4 has rud",
        ),
        (leader("tcp", true, near), leader("kernel", true, near), "rank 4 has kernel"),
        (
            leader("tcp", false, near),
            leader("tcp", true, near),
            "rank 0 has crc = \"off\" and rank 4 has \"on\"",
        ),
        (leader("kernel", true, [127, 0, 1, 1]), leader("kernel", true, near), "set kernel_address"),
    ];
    for (a, b, says) in cases {
        let said = check(&a, &b).unwrap_err();
        assert!(said.contains(says), "{said}");
    }
    assert_eq!(
        check(&leader("rud", true, near), &leader("rud", false, near)),
        Ok(()),
        "RUD always has a CRC"
    );
    assert_eq!(check(&leader("kernel", true, near), &leader("kernel", true, [10, 0, 0, 2])), Ok(()));
}
