use super::*;

const KEY: &str = "0123456789012345678901234567890123456789";

fn build(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Builder::from_environment(pairs.iter().copied().collect())?.build()
}

fn two_ranks<'a>(more: &[(&'a str, &'a str)]) -> Result<Config, ConfigError> {
    let mut pairs = vec![
        ("SHOUTER_RANK", "1"),
        ("SHOUTER_SIZE", "2"),
        ("SHOUTER_LOCAL_SIZE", "2"),
        ("SHOUTER_KEY", KEY),
        ("SHOUTER_PORT", "7000"),
    ];
    pairs.retain(|(name, _)| !more.iter().any(|(other, _)| other == name));
    pairs.extend(more);
    build(&pairs)
}

fn says(result: Result<Config, ConfigError>, parts: &[&str]) {
    let text = result.expect_err("a configuration that cannot be used").to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

fn with_file<T>(name: &str, text: &str, body: impl FnOnce(&str) -> T) -> T {
    let path = std::env::temp_dir().join(format!("shouter-config-{name}-{}.toml", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let result = body(path.to_str().unwrap());
    std::fs::remove_file(&path).unwrap();
    result
}

#[test]
fn what_is_given_nowhere_has_a_default() {
    let config = two_ranks(&[]).unwrap();
    assert_eq!((config.rank, config.size, config.local_rank, config.local_size), (1, 2, 1, 2));
    assert_eq!((config.rendezvous.host.as_str(), config.rendezvous.port), ("127.0.0.1", 7000));
    assert_eq!(
        (config.channel_num, config.transport, config.mode),
        (None, TransportChoice::Auto, Mode::Caller)
    );
    assert_eq!(config.heartbeat_timeout, Duration::from_secs(10));
    assert_eq!(config.deadline, Duration::from_secs(1800));
    assert_eq!(config.rendezvous_deadline, Duration::from_secs(60));
    assert_eq!((config.job.as_str(), config.faults.any()), ("default", false));
    assert_eq!((config.dpdk_memory_mb, config.hugepages, config.mtu), (512, Hugepages::Auto, None));
}

/// A program that sets a key hides neither a mistake in a time nor keeps what it wants away.
#[test]
fn a_call_replaces_what_was_given() {
    let set = |given: &[(&str, &str)], key, value| {
        let builder = Builder::from_environment(given.iter().copied().collect()).unwrap().set(key, value)?;
        builder.set("rank", "0")?.set("size", "1")?.build()
    };
    says(
        set(&[("SHOUTER_DEADLINE", "-1")], "deadline", "9s"),
        &["environment variable SHOUTER_DEADLINE", "`deadline` cannot be", "-1", "above zero"],
    );
    assert_eq!(
        set(&[("SHOUTER_DEADLINE", "1s")], "deadline", "9s").unwrap().deadline,
        Duration::from_secs(9)
    );
    let metrics = [("SHOUTER_METRICS", "127.0.0.1:9400")];
    assert!(set(&metrics, "channel_num", "1").unwrap().metrics.is_some());
    assert!(set(&metrics, "metrics", "").unwrap().metrics.is_none());
    says(set(&[], "metric", ""), &["no key `metric`"]);
}

#[test]
fn torchrun_is_understood_and_its_port_is_left_alone() {
    let torchrun = [
        ("RANK", "5"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("MASTER_ADDR", "head-node"),
        ("MASTER_PORT", "29500"),
        ("SHOUTER_KEY", KEY),
    ];
    let config = build(&torchrun).unwrap();
    assert_eq!((config.rank, config.size, config.local_rank, config.local_size), (5, 8, 1, 4));
    assert_eq!((config.rendezvous.host.as_str(), config.rendezvous.port), ("head-node", 29501));

    let ours = [("SHOUTER_RANK", "6"), ("SHOUTER_LOCAL_RANK", "2"), ("SHOUTER_PORT", "7000")];
    let config = build(&[&torchrun[..], &ours[..]].concat()).unwrap();
    assert_eq!((config.rank, config.local_rank, config.rendezvous.port), (6, 2, 7000));
}

/// What rank 0's host cannot be is no reason to look for it elsewhere, such as on this host.
#[test]
fn a_launchers_address_that_cannot_be_one_is_refused_by_its_name() {
    for local in ["1", "2"] {
        let with = |addr, port| {
            let rank = [("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", local)];
            build(
                &[&rank[..], &[("MASTER_ADDR", addr), ("MASTER_PORT", port), ("SHOUTER_KEY", KEY)]].concat(),
            )
        };
        for addr in ["head:29500", "[::1]", "[::1]:29500", "tcp://head", "a b"] {
            let parts =
                ["environment variable MASTER_ADDR", "`addr` cannot be", addr, "without a port and brackets"];
            says(with(addr, "29500"), &parts);
        }
        for port in ["0", "65535", "-1", "29500x", "tcp"] {
            says(with("head", port), &["environment variable MASTER_PORT", "`port` cannot be", port]);
        }
        for addr in ["::1", "fe80::1%eth0", "10.0.0.1", "head", "head,10.0.0.1"] {
            assert_eq!(with(addr, "29500").unwrap().rendezvous.host, addr);
        }
    }
    // A job of one rank meets nobody.
    let alone = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "[::1]"), ("MASTER_PORT", "29500")];
    assert!(build(&alone).is_ok());
}

#[test]
fn a_single_rank_needs_neither_key_nor_meeting() {
    let config = build(&[("SHOUTER_RANK", "0"), ("SHOUTER_SIZE", "1")]).unwrap();
    assert_eq!((config.local_rank, config.local_size), (0, 1));
    assert!(config.key.is_none());
}

#[test]
fn the_environment_is_laid_over_the_file_and_the_call_over_both() {
    let text =
        "channel_num = 3\ntransport = \"rud\"\nmode = \"dedicated\"\nhugepages = false\ncores = [0, 2]\n";
    with_file("layers", text, |path| {
        let config = two_ranks(&[("SHOUTER_CONFIG", path), ("SHOUTER_CHANNEL_NUM", "4")]).unwrap();
        assert_eq!(
            (config.channel_num, config.transport, config.mode),
            (Some(4), TransportChoice::Rud, Mode::Dedicated)
        );
        assert_eq!((config.hugepages, config.cores), (Hugepages::Off, vec![0, 2]));
        let pairs =
            [("SHOUTER_CONFIG", path), ("SHOUTER_CHANNEL_NUM", "4"), ("RANK", "0"), ("WORLD_SIZE", "1")];
        let builder = Builder::from_environment(pairs.into_iter().collect()).unwrap();
        assert_eq!(builder.set("channel_num", "5").unwrap().build().unwrap().channel_num, Some(5));
    });
}

#[test]
fn a_channel_has_up_to_256_connections() {
    let of = |text: &str| two_ranks(&[("SHOUTER_CHANNEL_NUM", text)]).map(|config| config.channel_num);
    assert_eq!((of("1").unwrap(), of("256").unwrap(), of("").unwrap()), (Some(1), Some(256), None));
    for text in ["0", "257"] {
        assert!(of(text).unwrap_err().to_string().contains("from 1 to 256"), "{text}");
    }
}

#[test]
fn levels_are_lists_of_sizes() {
    let of = |text: &str| two_ranks(&[("SHOUTER_LEVELS", text)]).map(|config| config.levels.sizes().to_vec());
    for (text, sizes) in
        [("8,4", &[8, 4][..]), ("[8, 4]", &[8, 4]), ("16", &[16]), ("1", &[]), ("[]", &[]), ("", &[8])]
    {
        assert_eq!(of(text).unwrap(), sizes, "{text}");
    }
    for (text, sizes) in
        [("levels = [2, 3, 4]", &[2, 3, 4][..]), ("levels = \"2,3\"", &[2, 3]), ("levels = 5", &[5])]
    {
        with_file("levels", text, |path| {
            assert_eq!(two_ranks(&[("SHOUTER_CONFIG", path)]).unwrap().levels.sizes(), sizes, "{text}");
        });
    }
    for (text, why) in [
        ("8,0", "a group of level 1"),
        ("[0]", "a group of level 0"),
        ("2,2,2,2,2", "give 4 at most"),
        ("8;4", "\"8;4\" is no size of a group"),
        ("[8, -4]", "cannot be -4"),
        ("[8, \"x\"]", "cannot be \"x\""),
    ] {
        says(
            two_ranks(&[("SHOUTER_LEVELS", text)]),
            &["`levels`", "SHOUTER_LEVELS", "innermost first, such as 8,4", why],
        );
    }
    with_file("levels", "\n\nlevels = [8, 0]\n", |path| {
        says(two_ranks(&[("SHOUTER_CONFIG", path)]), &[path, ":3: `levels`", "a group of level 1"]);
    });
}

#[test]
fn ports_are_read_from_toml_and_from_json() {
    let toml = r#"[{device = "vhost:/a.sock", address = "10.77.0.1/24", peers = ["10.77.0.2"], mtu = 9000}]"#;
    let json = r#"[{"device":"vhost:/a.sock","address":"10.77.0.1/24","peers":["10.77.0.2"],"mtu":9000}]"#;
    let expected = PortConfig {
        device: "vhost:/a.sock".into(),
        address: Address { ip: Ipv4Addr::new(10, 77, 0, 1), prefix_len: 24 },
        gateway: None,
        peers: vec![Ipv4Addr::new(10, 77, 0, 2)],
        mtu: Some(9000),
    };
    for text in [toml, json] {
        assert_eq!(two_ranks(&[("SHOUTER_PORTS", text)]).unwrap().ports, std::slice::from_ref(&expected));
    }
    with_file(
        "ports",
        "[[ports]]\ndevice = \"pci:0000:3b:00.0\"\naddress = \"10.0.0.1/8\"\ngateway = \"10.9.9.9\"\n",
        |path| {
            let config = two_ranks(&[("SHOUTER_CONFIG", path)]).unwrap();
            assert_eq!((config.ports.len(), config.ports[0].gateway), (1, Some(Ipv4Addr::new(10, 9, 9, 9))));
        },
    );
}

#[test]
fn times_shares_and_cores_are_read() {
    let values = [
        ("SHOUTER_HEARTBEAT_TIMEOUT", "500ms"),
        ("SHOUTER_DEADLINE", "2h"),
        ("SHOUTER_RENDEZVOUS_DEADLINE", "1.5"),
        ("SHOUTER_LOSS", "1%"),
        ("SHOUTER_CORRUPT", "0.1 %"),
        ("SHOUTER_CORES", "0,4-6"),
    ];
    let config = two_ranks(&values).unwrap();
    assert_eq!(config.heartbeat_timeout, Duration::from_millis(500));
    assert_eq!(config.deadline, Duration::from_secs(7200));
    assert_eq!(config.rendezvous_deadline, Duration::from_millis(1500));
    assert!((config.faults.loss - 0.01).abs() < 1e-12 && (config.faults.corrupt - 0.001).abs() < 1e-12);
    assert_eq!(config.cores, [0, 4, 5, 6]);
}

#[test]
fn a_wrong_value_is_named_with_its_place_and_what_would_do() {
    let cases: [(&str, &str, &str); 26] = [
        ("SHOUTER_ADDR", "[::1]", "an IP address or a host name, without a port"),
        ("SHOUTER_ADDR", "node7:29500", "an IP address or a host name, without a port"),
        ("SHOUTER_ADDR", "10.0.0.1,tcp://node7", "an IP address or a host name, without a port"),
        ("SHOUTER_RANK", "one", "a rank, from 0"),
        ("SHOUTER_RANK", "-1", "a rank, from 0"),
        ("SHOUTER_SIZE", "0", "from 1 to 65536"),
        ("SHOUTER_SIZE", "99999999999999999999", "from 1 to 65536"),
        ("SHOUTER_PORT", "70000", "from 1 to 65535"),
        ("SHOUTER_CHANNEL_NUM", "0", "from 1 to 256"),
        ("SHOUTER_TRANSPORT", "carrier-pigeon", "auto, shm, rud, tcp, verbs, kernel"),
        ("SHOUTER_KERNEL_ADDRESS", "0.0.0.0", "an IPv4 address of this host"),
        ("SHOUTER_KERNEL_ADDRESS", "node7", "an IPv4 address of this host"),
        ("SHOUTER_CRC", "maybe", "on, off"),
        ("SHOUTER_MODE", "fast", "caller, dedicated"),
        ("SHOUTER_HEARTBEAT_TIMEOUT", "soon", "\"10s\""),
        ("SHOUTER_HEARTBEAT_TIMEOUT", "0", "above zero"),
        ("SHOUTER_DEADLINE", "10 parsecs", "\"30min\""),
        ("SHOUTER_DEADLINE", "1e300", "\"30min\""),
        ("SHOUTER_LOSS", "1", "\"0.1%\""),
        ("SHOUTER_LOSS", "100%", "below \"100%\""),
        ("SHOUTER_CORES", "0,0", "\"0,2-5\""),
        ("SHOUTER_HUGEPAGES", "maybe", "auto, on, off"),
        ("SHOUTER_MTU", "12", "from 576 to 9000"),
        ("SHOUTER_DPDK_MEMORY_MB", "1", "from 64"),
        ("SHOUTER_JOB", "a b", "letters, digits"),
        ("SHOUTER_PORTS", "vhost", "a list of tables"),
    ];
    for (name, value, allowed) in cases {
        says(two_ranks(&[(name, value)]), &[&format!("environment variable {name}"), value, allowed]);
    }
}

#[test]
fn a_wrong_port_is_named_down_to_its_field() {
    let cases = [
        (r#"[{address="10.0.0.1/8"}]"#, "`ports[0].device` is missing"),
        (r#"[{device="ring"}]"#, "`ports[0].address` is missing"),
        (r#"[{device="ring", address="10.0.0.1"}]"#, "`ports[0].address` cannot be \"10.0.0.1\""),
        (
            r#"[{device="ring", address="10.0.0.1/8"}, {device="null", address="10.0.0.1/33"}]"#,
            "ports[1].address",
        ),
        #[cfg(feature = "dpdk")]
        (
            r#"[{device="zork:foo", address="10.0.0.1/8"}]"#,
            "`ports[0].device` cannot be \"zork:foo\"; it is a driver",
        ),
        (r#"[{device="ring", address="10.0.0.1/8", mtu=1}]"#, "ports[0].mtu"),
        (r#"[{device="ring", address="10.0.0.1/8", peers="10.0.0.2"}]"#, "ports[0].peers"),
        (r#"[{device="ring", address="10.0.0.1/8", colour="red"}]"#, "ports[0].colour"),
        (r#"[7]"#, "`ports[0]` cannot be 7"),
        (r#"{}"#, "`ports` cannot be a table"),
    ];
    for (text, message) in cases {
        says(two_ranks(&[("SHOUTER_PORTS", text)]), &[message]);
    }
}

#[test]
fn a_file_is_blamed_with_its_line() {
    let cases = [
        ("\n\nchannel_num = \"ten\"\n", ":3: `channel_num` cannot be \"ten\""),
        ("transport = 4\n", ":1: `transport` cannot be 4"),
        ("# a\nchanel_num = 10\n", ":2: there is no key `chanel_num` (did you mean `channel_num`?)"),
        ("rank = 1\nrank = 2\n", ":2: not valid TOML"),
        ("size = [[[\n", "not valid TOML"),
        ("deadline = 1979-05-27\n", ":1: `deadline` cannot be 1979-05-27"),
        ("ports = [\n  { device = \"ring\", address = \"x\" },\n]\n", ":2: `ports[0].address`"),
    ];
    for (text, message) in cases {
        with_file("blame", text, |path| says(two_ranks(&[("SHOUTER_CONFIG", path)]), &[path, message]));
    }
    says(
        two_ranks(&[("SHOUTER_CONFIG", "/no/such.toml")]),
        &["/no/such.toml", "SHOUTER_CONFIG", "No such file"],
    );
}

#[test]
fn an_unknown_variable_is_an_error_and_a_foreign_one_is_not() {
    says(two_ranks(&[("SHOUTER_TRANSPROT", "rud")]), &["SHOUTER_TRANSPROT", "did you mean `transport`?"]);
    says(two_ranks(&[("SHOUTER_XYZZY", "1")]), &["no key `xyzzy`; the keys are rank, size"]);
    assert!(two_ranks(&[("SHOUTER_LOG", "debug"), ("SHOUTER_DEMO_EPOCHS", "3"), ("SHOUT", "x")]).is_ok());
    assert!(two_ranks(&[("SHOUTER_TRANSPORT", "")]).is_ok(), "empty counts as not set");
}

#[test]
fn what_is_missing_is_named_with_the_remedy() {
    says(
        build(&[]),
        &[
            "`size`, `rank`, `local_size`, `addr`, `port` and `key` are missing",
            "SHOUTER_SIZE (torchrun: WORLD_SIZE)",
            "SHOUTER_RANK",
            "SHOUTER_LOCAL_SIZE",
            "SHOUTER_ADDR",
            "SHOUTER_PORT",
            "SHOUTER_KEY_FILE",
            "shouter run",
            "SHOUTER_SIZE=1",
        ],
    );
    says(build(&[("SHOUTER_SIZE", "1")]), &["`rank` is missing", "SHOUTER_RANK"]);
    says(
        build(&[("SHOUTER_SIZE", "2"), ("SHOUTER_LOCAL_SIZE", "2"), ("SHOUTER_PORT", "7000")]),
        &["`rank` and `key` are missing", "SHOUTER_RANK", "SHOUTER_KEY"],
    );
    says(
        build(&[
            ("SHOUTER_SIZE", "2"),
            ("RANK", "0"),
            ("MASTER_ADDR", "a"),
            ("MASTER_PORT", "1"),
            ("SHOUTER_KEY", KEY),
        ]),
        &["`local_size` is missing", "LOCAL_WORLD_SIZE"],
    );
    says(
        two_ranks(&[("SHOUTER_KEY", "")]),
        &["`key` is missing", "SHOUTER_KEY_FILE", "openssl rand -hex 32"],
    );
    says(two_ranks(&[("SHOUTER_PORT", "")]), &["`port` is missing", "SHOUTER_PORT"]);
    says(
        two_ranks(&[("SHOUTER_LOCAL_SIZE", "1"), ("SHOUTER_LOCAL_RANK", "0")]),
        &["`addr` is missing", "SHOUTER_ADDR"],
    );
    says(two_ranks(&[("SHOUTER_KEY_FILE", "/k")]), &["both `key`", "SHOUTER_KEY_FILE", "give one of them"]);
    says(
        two_ranks(&[("SHOUTER_KEY", ""), ("SHOUTER_KEY_FILE", "/no/key")]),
        &["SHOUTER_KEY_FILE", "/no/key"],
    );
}

#[test]
fn what_cannot_be_sealed_is_refused_with_both_keys() {
    let with = |transport, seal| two_ranks(&[("SHOUTER_TRANSPORT", transport), ("SHOUTER_RUD_SEAL", seal)]);
    for transport in ["tcp", "verbs", "kernel"] {
        let parts = ["`rud_seal`", "SHOUTER_RUD_SEAL", transport, "SHOUTER_TRANSPORT", "transport = \"rud\""];
        says(with(transport, "on"), &parts);
        assert!(!with(transport, "off").unwrap().rud_seal);
    }
    for transport in ["auto", "shm", "rud"] {
        assert!(with(transport, "on").unwrap().rud_seal, "{transport}");
    }
    assert!(!two_ranks(&[]).unwrap().rud_seal);
    says(with("rud", "yes"), &["rud_seal", "one of on, off"]);
    let short = ("SHOUTER_KEY", "train1");
    says(
        two_ranks(&[short, ("SHOUTER_RUD_SEAL", "on")]),
        &["`rud_seal`", "SHOUTER_RUD_SEAL", "fewer than 32 characters", "openssl rand -hex 32"],
    );
    assert!(!two_ranks(&[short]).unwrap().rud_seal, "a short key alone is only warned of");
}

#[test]
fn ranks_that_cannot_be_are_refused() {
    says(two_ranks(&[("SHOUTER_RANK", "2")]), &["rank 2 (environment variable SHOUTER_RANK)", "size 2"]);
    says(two_ranks(&[("SHOUTER_LOCAL_SIZE", "3")]), &["local_size 3", "more ranks than the job"]);
    says(two_ranks(&[("SHOUTER_LOCAL_RANK", "5")]), &["local_rank 5", "local_size 2"]);
    says(two_ranks(&[("SHOUTER_LOCAL_RANK", "0")]), &["in blocks"]);
}

#[test]
fn a_wrong_secret_is_not_repeated() {
    with_file("secret", "key = 123456789\n", |path| {
        let text = two_ranks(&[("SHOUTER_KEY", ""), ("SHOUTER_CONFIG", path)]).unwrap_err().to_string();
        assert!(text.contains(":1: `key` cannot be") && !text.contains("123456789"), "{text}");
    });
}

fn ips(list: &[&str]) -> Vec<IpAddr> {
    list.iter().map(|ip| ip.parse().unwrap()).collect()
}

fn by_lists(pairs: &[(&str, &str)], iplist: &[&str], ports: &[u16]) -> Result<Config, ConfigError> {
    let pairs = pairs.iter().copied().chain([("SHOUTER_KEY", KEY)]);
    Builder::from_environment(pairs.collect())?.lists(&ips(iplist), ports).build()
}

#[test]
fn lists_give_rank_host_and_meeting() {
    let iplist = ["10.0.0.1", "10.0.0.1", "10.0.0.2"];
    let config = by_lists(&[("SHOUTER_RANK", "1")], &iplist, &[7000, 7001, 7000]).unwrap();
    assert_eq!((config.rank, config.size, config.local_rank, config.local_size), (1, 3, 1, 2));
    assert_eq!(
        (config.rendezvous.host.as_str(), config.rendezvous.port, config.node),
        ("10.0.0.1", 7000, Some(0))
    );
    let config = by_lists(&[("RANK", "2")], &iplist, &[7000, 7001, 7000]).unwrap();
    assert_eq!((config.local_rank, config.local_size, config.node), (0, 1, Some(1)));
}

#[test]
fn processes_that_were_not_told_claim_one_entry_each() {
    let free: Vec<TcpListener> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<u16> = free.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
    drop(free);
    let list = ["127.0.0.1", "127.0.0.1"];
    let first = by_lists(&[], &list, &ports).unwrap();
    let second = by_lists(&[], &list, &ports).unwrap();
    assert_eq!((first.rank, second.rank), (0, 1));
    assert_eq!(first.rendezvous.listener.as_ref().unwrap().local_addr().unwrap().port(), ports[0]);
    says(by_lists(&[], &list, &ports), &["every entry of this host is taken", "SHOUTER_RANK"]);
    // TEST-NET-1 (RFC 5737) is nobody's.
    says(by_lists(&[], &["192.0.2.1"], &[7000]), &["none of the addresses of iplist is this host's"]);
}

#[test]
fn lists_that_cannot_be_are_refused() {
    let told = [("SHOUTER_RANK", "0")];
    says(by_lists(&told, &[], &[]), &["`iplist` cannot be of 0 addresses"]);
    says(by_lists(&told, &["10.0.0.1"; 3], &[1, 2]), &["2 ports beside 3 addresses"]);
    says(by_lists(&told, &["10.0.0.1"; 2], &[7000]), &["ranks 0 and 1 both have 10.0.0.1:7000"]);
    says(by_lists(&told, &["10.0.0.1", "10.0.0.2", "10.0.0.1"], &[1, 1, 2]), &["rank 2", "in blocks"]);
    says(by_lists(&told, &["10.0.0.1"], &[0]), &["`ports` cannot be 0"]);
    says(by_lists(&[("SHOUTER_RANK", "3")], &["10.0.0.1"], &[1]), &["rank 3", "SHOUTER_RANK"]);
    says(by_lists(&[("RANK", "0"), ("WORLD_SIZE", "4")], &["10.0.0.1"], &[1]), &["WORLD_SIZE says 4"]);
}

#[test]
fn a_signal_is_one_that_can_be_caught() {
    let given = |name: &str| {
        let environment = [("SHOUTER_SIZE", "1"), ("SHOUTER_RANK", "0"), ("SHOUTER_DUMP_SIGNAL", name)];
        Builder::from_environment(environment.into_iter().collect()).unwrap().build()
    };
    assert_eq!(given("").unwrap().dump_signal, None);
    for name in ["USR2", "SIGUSR2", "usr2"] {
        assert_eq!(given(name).unwrap().dump_signal, Some((libc::SIGUSR2, "USR2")));
    }
    for name in ["KILL", "STOP", "SEGV", "TERM", "USR3", "12"] {
        let error = given(name).unwrap_err().to_string();
        assert!(error.contains("SHOUTER_DUMP_SIGNAL") && error.contains("USR1, USR2, HUP"), "{error}");
    }
}

#[test]
fn every_key_can_be_set_and_is_described() {
    for spec in keys::KEYS {
        assert!(
            !spec.allowed.is_empty() && !spec.default.is_empty() && !spec.about.is_empty(),
            "{}",
            spec.name
        );
        assert_eq!(keys::nearest(spec.name).as_deref(), Some(spec.name));
    }
}

/// docs/configuration.md ends with the table of the keys, as the code has them.
#[test]
fn the_configuration_reference_is_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap();
    let head = "| key | what it does | it is | default |\n|---|---|---|---|\n";
    let mut fresh = page[..page.find(head).expect("the page has the table")].to_owned() + head;
    for key in keys::KEYS {
        fresh += &format!("| `{}` | {} | {} | {} |\n", key.name, key.about, key.allowed, key.default);
    }
    if std::env::var_os("WRITE_CONFIGURATION").is_some() {
        std::fs::write(path, &fresh).unwrap();
    } else {
        assert!(
            page == fresh,
            "write it anew: WRITE_CONFIGURATION=1 cargo test -p shouter --lib configuration_reference"
        );
    }
}

#[test]
fn a_schedule_names_algorithms_of_collectives() {
    let given = |text: &str| {
        let environment = [("SHOUTER_SIZE", "1"), ("SHOUTER_RANK", "0"), ("SHOUTER_SCHEDULE", text)];
        Builder::from_environment(environment.into_iter().collect()).unwrap().build()
    };
    assert_eq!(given("").unwrap().schedule, Overrides::default());
    assert_eq!(
        given("all_reduce:ring, reduce:direct").unwrap().schedule.to_string(),
        "all_reduce:ring,reduce:direct"
    );
    for (text, known) in [
        ("all_reduce:rong", "direct, hierarchical, ring"),
        ("everything:ring", "all_reduce, broadcast, barrier"),
        ("ring", "all_reduce:ring"),
    ] {
        let error = given(text).unwrap_err().to_string();
        assert!(error.contains("SHOUTER_SCHEDULE") && error.contains(known), "{error}");
    }
}

#[test]
fn figures_of_costs_are_read_and_written() {
    let text = "[rud]\nlatency_ns = 700\n[shm]\nfold_mb_s = 12345\n";
    let table = CostTable::parse(text).unwrap();
    assert_eq!((table.of("rud").network.latency_ns, table.of("shm").host.fold_mb_s), (700, 12345));
    assert!(table.has("rud") && !table.has("verbs"));
    assert_eq!(CostTable::parse(&table.text()), Ok(table));
    for (text, why) in [
        ("[pigeon]\n", "use shm, rud, tcp, verbs, kernel"),
        ("[rud]\nlatency = 1\n", "use call_ns, step_ns"),
        ("[rud]\ncore_mb_s = 0\n", "from 10 to"),
        ("[rud]\nlatency_ns = 2000000000\n", "from 0 to"),
        ("[rud]\nlatency_ns = -1\n", ""),
        ("rud = 1\n", ""),
    ] {
        let refused = CostTable::parse(text).unwrap_err();
        assert!(refused.contains(why), "{text}: {refused}");
    }
}

/// A file of costs that is named must be there on rank 0; on other ranks it does not matter.
#[test]
fn rank_0_reads_the_figures_of_costs() {
    let given = |rank: &str| {
        let environment = [
            ("SHOUTER_SIZE", "2"),
            ("SHOUTER_LOCAL_SIZE", "2"),
            ("SHOUTER_RANK", rank),
            ("SHOUTER_PORT", "4000"),
            ("SHOUTER_KEY", "a key that is long enough for a test"),
            ("SHOUTER_COSTS", "/nowhere/costs.toml"),
        ];
        Builder::from_environment(environment.into_iter().collect()).unwrap().build()
    };
    let refused = given("0").unwrap_err().to_string();
    assert!(refused.contains("/nowhere/costs.toml"), "{refused}");
    assert_eq!(given("1").unwrap().costs, CostTable::default());
}

#[test]
fn a_host_comes_before_its_ranks() {
    let alone = |node| build(&[("SHOUTER_SIZE", "1"), ("SHOUTER_RANK", "0"), ("SHOUTER_NODE", node)]);
    assert_eq!(alone("0").unwrap().node, Some(0));
    says(alone("5"), &["node 5 (environment variable SHOUTER_NODE)", "rank 0", "leave node out"]);
    // Rank 1 of 2 on one host is on the first.
    assert_eq!(two_ranks(&[("SHOUTER_NODE", "0")]).unwrap().node, Some(0));
    says(two_ranks(&[("SHOUTER_NODE", "1")]), &["node 1", "SHOUTER_NODE", "rank 1"]);
    // Alone on its host it may be on the second.
    assert_eq!(
        two_ranks(&[("SHOUTER_NODE", "1"), ("SHOUTER_LOCAL_SIZE", "1"), ("SHOUTER_ADDR", "h")]).unwrap().node,
        Some(1)
    );
    let third = [("SHOUTER_NODE", "2"), ("SHOUTER_LOCAL_SIZE", "1"), ("SHOUTER_ADDR", "h")];
    says(two_ranks(&third), &["node 2", "rank 1"]);
    // Lists give each host's number.
    let iplist = ["10.0.0.1", "10.0.0.2"];
    let second = [("SHOUTER_RANK", "1"), ("SHOUTER_NODE", "1")];
    assert_eq!(by_lists(&second, &iplist, &[7000]).unwrap().node, Some(1));
    says(
        by_lists(&[("SHOUTER_RANK", "1"), ("SHOUTER_NODE", "0")], &iplist, &[7000]),
        &["node 0", "iplist", "1"],
    );
}

/// What needs neither a device nor the other ranks is found before they meet.
#[test]
fn values_that_cannot_hold_together_are_refused_before_the_join() {
    let of_four = |more: &[(&str, &str)]| {
        let place = [("SHOUTER_SIZE", "4"), ("SHOUTER_ADDR", "10.0.0.1")];
        let config = two_ranks(&[&place[..], &[("SHOUTER_RANK", "0")], more].concat()).unwrap();
        config.check().map(|()| config)
    };
    let sharded = ("SHOUTER_SHARDS", "2");
    let (dedicated, one) = (("SHOUTER_MODE", "dedicated"), ("SHOUTER_LOCAL_SIZE", "1"));
    let port = |device| format!(r#"[{{"device": "{device}", "address": "10.0.0.1/24"}}]"#);
    let (vhost, packets) = (port("vhost:/a"), port("af_packet:eth1"));
    let [vhost, packets] = [&vhost, &packets].map(|ports| ("SHOUTER_PORTS", ports.as_str()));
    let [shm, rud, tcp, kernel] = ["shm", "rud", "tcp", "kernel"].map(|name| ("SHOUTER_TRANSPORT", name));
    says(of_four(&[shm]), &["transport = \"shm\" serves one host, and 2 of the job's 4", "auto"]);
    says(of_four(&[rud, vhost]), &["serves one rank on each host", "auto"]);
    says(of_four(&[sharded]), &["shards = 2 needs threads", "mode = \"dedicated\""]);
    let all = ("SHOUTER_LOCAL_SIZE", "4");
    says(
        of_four(&[sharded, dedicated, all]),
        &["between hosts, and all 4 ranks are on this one", "shards = 1"],
    );
    says(of_four(&[sharded, dedicated, one, kernel]), &["not transport = \"kernel\""]);
    says(of_four(&[sharded, dedicated, one, packets]), &["several queues", "af_packet:eth1 has one"]);
    says(
        of_four(&[sharded, dedicated, one, vhost, ("SHOUTER_SCHEDULE", "all_reduce:ring")]),
        &["order of all-reduces by ring"],
    );
    says(of_four(&[tcp]), &["transport = \"tcp\" sends over ports, and rank 0 has no port"]);
    says(of_four(&[("SHOUTER_RUD_SEAL", "on")]), &["RUD alone, and rank 0 has no port"]);
    of_four(&[sharded, dedicated, one, rud, vhost]).unwrap();
    of_four(&[sharded, dedicated, vhost]).expect("hosts of two ranks");
    of_four(&[tcp, ("SHOUTER_RANK", "1")]).expect("only a leader has ports");
    of_four(&[]).unwrap();
}

#[test]
fn limits_are_named_where_a_value_is_beyond_them() {
    says(
        two_ranks(&[("SHOUTER_DEADLINE", "1000000000h")]),
        &["`deadline` cannot be", "at most 366 days (8784h)"],
    );
    assert_eq!(two_ranks(&[("SHOUTER_DEADLINE", "8784h")]).unwrap().deadline, LONGEST_WAIT);
    says(two_ranks(&[("SHOUTER_CORES", "0-99999")]), &["`cores` cannot be", "from 0 to 4095"]);
    assert_eq!(two_ranks(&[("SHOUTER_CORES", "4095")]).unwrap().cores, [4095]);
}

/// One file holds the counters of one rank.
#[test]
fn ranks_of_one_machine_write_their_counters_to_files_of_their_own() {
    let file = ("SHOUTER_METRICS", "m/x.prom");
    let checked = |more: &[(&str, &str)]| {
        let config = two_ranks(more).unwrap();
        config.check().map(|()| config)
    };
    says(checked(&[file]), &["metrics = \"m/x.prom\" is one file for 2 ranks", "%r"]);
    checked(&[("SHOUTER_METRICS", "m/%r.prom")]).unwrap();
    checked(&[("SHOUTER_METRICS", "127.0.0.1:9400")]).unwrap();
    // Hosts have files of their own, unless `shouter run` emulates them.
    let two_hosts = [file, ("SHOUTER_LOCAL_SIZE", "1"), ("SHOUTER_ADDR", "10.0.0.1")];
    checked(&two_hosts).unwrap();
    says(checked(&[&two_hosts[..], &[(OF_RUN, "1")]].concat()), &["one file for 2 ranks"]);
}
