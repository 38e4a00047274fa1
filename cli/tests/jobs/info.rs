//! `shouter info`, end to end: its output for people and for programs.

use std::process::{Command, Output};

use serde_json::Value;

/// Its output for a valid configuration.
fn info(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let output = tried(arguments, variables);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn tried(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shouter"));
    command.arg("info").args(arguments);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("SHOUTER_")
            || ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"].contains(&&*name)
        {
            command.env_remove(name);
        }
    }
    command.envs(variables.iter().copied()).output().unwrap()
}

/// The items, each a JSON object on a line of its own.
fn items(variables: &[(&str, &str)]) -> Vec<Value> {
    parsed(info(&["--json"], variables))
}

fn parsed(output: Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn named<'a>(items: &'a [Value], name: &str) -> &'a Value {
    items.iter().find(|item| item["item"] == name).unwrap_or_else(|| panic!("no item {name}: {items:?}"))
}

#[test]
fn every_item_is_complete_and_whatever_is_missing_has_a_remedy() {
    let items = items(&[]);
    for item in &items {
        let object = item.as_object().unwrap();
        assert_eq!(object.keys().collect::<Vec<_>>(), ["detail", "item", "remedy", "state"], "{item}");
        match item["state"].as_str().unwrap() {
            "ok" => assert!(item["remedy"].is_null(), "{item}"),
            "missing" | "not built in" | "wrong" => {
                assert!(item["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{item}");
            }
            other => panic!("a state {other}"),
        }
    }
    for name in
        ["shouter", "dpdk", "cores", "locked memory", "vfio", "rdma devices", "cuda driver", "key rank"]
    {
        named(&items, name);
    }
    for name in ["channel verbs", "channel rud", "channel kernel", "transport between hosts"] {
        named(&items, name);
    }
    let verbs = if cfg!(feature = "verbs") { "ok" } else { "not built in" };
    assert_eq!(named(&items, "verbs")["state"], verbs);
    let cuda = if cfg!(feature = "cuda") { "ok" } else { "not built in" };
    assert_eq!(named(&items, "cuda")["state"], cuda);
    named(&items, "cuda-aware");
}

#[cfg(feature = "dpdk")]
#[test]
fn dpdk_and_its_links_are_built_in() {
    let items = items(&[]);
    assert!(named(&items, "dpdk")["detail"].as_str().unwrap().starts_with("DPDK 2"));
    let drivers = named(&items, "dpdk drivers")["detail"].as_str().unwrap().to_owned();
    for driver in ["vhost", "virtio", "memif", "af_packet"] {
        assert!(drivers.split(' ').any(|name| name == driver), "{driver} in {drivers}");
    }
    assert_eq!(named(&items, "embedded links")["state"], "ok");
}

#[test]
fn values_come_with_their_source_and_the_key_stays_secret() {
    let secret = "4cb1e2a08d7f4cb1e2a08d7f4cb1e2a08d7f";
    let items = items(&[("SHOUTER_CHANNEL_NUM", "4"), ("SHOUTER_KEY", secret), ("SHOUTER_CORES", "[0, 1]")]);
    assert_eq!(
        named(&items, "key channel_num")["detail"],
        "\"4\" (environment variable SHOUTER_CHANNEL_NUM)"
    );
    assert_eq!(named(&items, "key cores")["detail"], "[0, 1] (environment variable SHOUTER_CORES)");
    assert_eq!(named(&items, "key key")["detail"], "hidden (environment variable SHOUTER_KEY)");
    assert_eq!(named(&items, "key mode")["detail"], "default: caller");
    assert!(items.iter().all(|item| !item.to_string().contains(secret)));
    let text = info(&[], &[("SHOUTER_KEY", secret)]).stdout;
    assert!(!String::from_utf8_lossy(&text).contains(secret));
}

#[test]
fn a_configuration_that_cannot_be_used_is_named_and_the_rest_still_shown() {
    let output = tried(&["--json"], &[("SHOUTER_CHANNEL_NUM", "many")]);
    assert_eq!(output.status.code(), Some(1));
    let items = parsed(output);
    let configuration = named(&items, "configuration");
    assert_eq!(configuration["state"], "wrong");
    assert!(configuration["detail"].as_str().unwrap().contains("SHOUTER_CHANNEL_NUM"), "{configuration}");
    named(&items, "cores");
}

/// All missing settings of a job of several ranks are listed at once, as an invalid configuration.
#[test]
fn all_that_is_missing_is_listed_at_once() {
    let output = tried(&["--json"], &[("SHOUTER_SIZE", "2"), ("SHOUTER_RANK", "0")]);
    assert_eq!(output.status.code(), Some(1));
    let items = parsed(output);
    let said = named(&items, "configuration")["detail"].as_str().unwrap();
    assert!(said.contains("`local_size`, `addr`, `port` and `key` are missing"), "{said}");
}

/// What every rank of a job would refuse is no good configuration.
#[test]
fn what_the_job_refuses_is_wrong() {
    let of_job = [
        ("SHOUTER_RANK", "0"),
        ("SHOUTER_SIZE", "4"),
        ("SHOUTER_LOCAL_SIZE", "2"),
        ("SHOUTER_ADDR", "127.0.0.1"),
        ("SHOUTER_PORT", "7000"),
        ("SHOUTER_KEY", "4cb1e2a08d7f4cb1e2a08d7f4cb1e2a08d7f"),
    ];
    for (value, says) in [
        (("SHOUTER_SHARDS", "2"), "shards = 2 needs threads"),
        (("SHOUTER_TRANSPORT", "rud"), "one rank on each host"),
        (("SHOUTER_TRANSPORT", "shm"), "serves one host"),
        (("SHOUTER_TRANSPORT", "tcp"), "no port to other hosts"),
        (("SHOUTER_METRICS", "/tmp/shouter.prom"), "%r"),
    ] {
        let output = tried(&["--json"], &[&of_job[..], &[value]].concat());
        assert_eq!(output.status.code(), Some(1), "{value:?}");
        let items = parsed(output);
        let configuration = named(&items, "configuration");
        assert_eq!(configuration["state"], "wrong", "{value:?}");
        assert!(configuration["detail"].as_str().unwrap().contains(says), "{configuration}");
    }
    info(&[], &of_job);
    // Without a job there are values that suit one, and values that suit none.
    info(&[], &[("SHOUTER_TRANSPORT", "rud")]);
    assert_eq!(tried(&[], &[("SHOUTER_SHARDS", "2")]).status.code(), Some(1));
}

#[test]
fn people_get_a_table_with_remedies() {
    let text = String::from_utf8(info(&[], &[]).stdout).unwrap();
    for title in ["Built in", "This host", "GPUs", "Configuration"] {
        assert!(text.lines().any(|line| line == title), "{text}");
    }
    assert!(text.contains("-> "), "verbs at least have a remedy: {text}");
}

#[test]
fn help_of_a_command_has_its_longer_text() {
    for (command, words) in [
        ("info", "It changes nothing and needs no root"),
        ("run", "go to every rank"),
        ("check", "All pairs of a round"),
        ("plan", "No rank is started"),
    ] {
        let help = Command::new(env!("CARGO_BIN_EXE_shouter")).args([command, "--help"]).output().unwrap();
        assert!(String::from_utf8_lossy(&help.stdout).contains(words), "{command}: {help:?}");
    }
    let all = Command::new(env!("CARGO_BIN_EXE_shouter")).arg("--help").output().unwrap();
    let all = String::from_utf8_lossy(&all.stdout);
    let has_text = |line: &&str| line.starts_with("  ") && line.split_whitespace().count() > 3;
    let commands =
        all.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    assert!(commands.filter(|line| !line.contains("  help ")).all(|line| has_text(&line)), "{all}");
}

#[test]
fn a_reader_that_closes_the_pipe_early_is_no_failure() {
    for arguments in
        [&["info"][..], &["info", "--json"], &["plan", "--ranks", "64", "--hosts", "64"], &["plan", "--json"]]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_shouter"));
        let ended = command.args(arguments).stdout(writer).output().unwrap();
        assert!(ended.status.success() && ended.stderr.is_empty(), "{arguments:?}: {ended:?}");
    }
}

#[test]
fn what_cannot_work_is_not_called_good() {
    let ports = |device: &str| format!("[{{ device = \"{device}\", address = \"1.2.3.4/24\" }}]");
    let wrong = tried(
        &["--json"],
        &[
            ("SHOUTER_PORTS", &ports("zork:foo")),
            ("SHOUTER_TRANSPORT", "kernle"),
            ("SHOUTER_MODE", "dedicated"),
        ],
    );
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    let items = parsed(wrong);
    for (key, state) in [("ports", "wrong"), ("transport", "wrong"), ("mode", "ok")] {
        assert_eq!(named(&items, &format!("key {key}"))["state"], state, "{items:?}");
    }
    if cfg!(feature = "dpdk") {
        let remedy = named(&items, "key ports")["remedy"].as_str().unwrap();
        assert!(remedy.contains("no such kind; write vhost:PATH"), "{remedy}");
    }
    // An address for documentation (RFC 5737), which is no host's.
    let elsewhere = self::items(&[("SHOUTER_KERNEL_ADDRESS", "192.0.2.9")]);
    assert_eq!(named(&elsewhere, "channel kernel")["state"], "wrong");
    let here = self::items(&[("SHOUTER_KERNEL_ADDRESS", "127.0.0.1")]);
    assert_eq!(named(&here, "channel kernel")["state"], "ok");
}
