//! The errors of a wrong network when a job joins: two ranks, each in a network namespace of its own, with one
//! interface for the rendezvous and one for the data network, on two bridges between them. And a link that is lost later.

#![cfg(feature = "dpdk")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::ranks::{BODY, end, join, parameter, scenario, test_of};
use shouter::ReduceOp;

/// The variable that names the test for whose network this process was started.
const NETWORK: &str = "SHOUTER_TEST_NETWORK";

/// The time limit of a join in a wrong network: three seconds for the paths, and a margin for a busy machine.
const TOLD: Duration = Duration::from_secs(8);

/// The MTU of each rank's interface on the data network, in bytes.
const MTU: u32 = 9000;

/// The command line by which the switch drops some of the packets that it forwards.
macro_rules! filter {
    ($which:literal) => {
        concat!(
            "nft add table bridge filter && nft add chain bridge filter pass ",
            "'{ type filter hook forward priority 0; }' && nft add rule bridge filter pass '",
            $which,
            "' drop"
        )
    };
}

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).status().expect("the program ip is there");
    assert!(done.success(), "ip {arguments}: {done}");
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < TOLD, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    if scenario().is_none() {
        return;
    }
    let own = parameter("OWN").unwrap();
    let there = |name: &str| {
        let mut look = Command::new("ip");
        look.args(["link", "show", name]).stdout(Stdio::null()).stderr(Stdio::null());
        look.status().is_ok_and(|status| status.success())
    };
    wait_for("the interfaces come", || there("meet") && there("data"));
    ip("link set lo up");
    ip(&format!("address add 10.80.0.{own}/24 dev meet"));
    ip("link set meet up");
    ip(&format!("link set data mtu {} up", parameter("INTERFACE_MTU").unwrap()));
    if let Some(address) = parameter("KERNEL_ADDRESS") {
        ip(&format!("address add {address} dev data"));
    }
    let begun = Instant::now();
    let joined = join();
    println!("took {:?}", begun.elapsed());
    end(joined.and_then(|group| {
        for round in 0..parameter("ROUNDS").unwrap().parse().unwrap() {
            if round == 10 && own == "2" {
                cut(parameter("CUT").as_deref());
            }
            let mut values = vec![1f32; 100_000];
            group.all_reduce(&mut values, ReduceOp::Sum)?;
            assert!(values.iter().all(|value| *value == 2.0));
        }
        println!("resent {}", group.stats().resent);
        println!("links lost {}", group.stats().link_losses);
        group.finalize()
    }))
}

/// Sets the interface down, for a second or for good.
fn cut(how: Option<&str>) {
    let Some(how) = how else { return };
    ip("link set data down");
    if how == "for a moment" {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(1));
            ip("link set data up");
        });
    }
}

/// The network of a job, and its fault.
struct Network {
    transport: &'static str,
    /// The MTU of the ranks' interfaces, and of the switch between them.
    mtu: [u32; 2],
    /// The data network's addresses of the ranks.
    addresses: [&'static str; 2],
    /// An address of rank 1's kernel on the data network.
    kernel: Option<&'static str>,
    /// A command line for the namespace of the switch, after everything is set up.
    spoil: Option<&'static str>,
    /// All-reduces of 400 kB.
    rounds: u32,
    /// Rank 1's interface goes down before the eleventh: "for a moment", or "for good".
    cut: Option<&'static str>,
}

impl Default for Network {
    fn default() -> Self {
        let addresses = ["10.81.0.1/24", "10.81.0.2/24"];
        Self { transport: "rud", mtu: [MTU; 2], addresses, kernel: None, spoil: None, rounds: 1, cut: None }
    }
}

impl Network {
    /// The ranks' output when they run `test` in this network; `None` if it cannot be made.
    fn run(&self, test: &str) -> Option<[String; 2]> {
        let in_namespace = |program: &Path| {
            let mut command = Command::new("unshare");
            command.args(["--net", "--"]).arg(program);
            command
        };
        if std::env::var(NETWORK).is_ok_and(|name| name == test) {
            for (rank, said) in self.play().into_iter().enumerate() {
                said.lines().for_each(|line| println!("rank {rank}: {line}"));
            }
            return None;
        }
        if !in_namespace("true".as_ref()).status().is_ok_and(|status| status.success()) {
            println!("skipped: no network namespace here");
            return None;
        }
        let mut command = in_namespace(&std::env::current_exe().unwrap());
        let output = command
            .args(["--exact", &test_of(module_path!(), test), "--nocapture"])
            .env(NETWORK, test)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}\n{errors}");
        Some([0, 1].map(|rank| {
            let mark = format!("rank {rank}: ");
            text.lines().filter(|line| line.starts_with(&mark)).collect::<Vec<_>>().join("\n")
        }))
    }

    /// In the namespace of the switch: makes the network, and runs the ranks.
    fn play(&self) -> [String; 2] {
        for bridge in ["meets", "datas"] {
            ip(&format!("link add {bridge} type bridge"));
            ip(&format!("link set {bridge} up"));
        }
        let ranks = [0, 1].map(|rank| self.rank(rank));
        let here = std::fs::read_link("/proc/self/ns/net").unwrap();
        for (rank, child) in ranks.iter().enumerate() {
            let pid = child.id();
            let away = || std::fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|there| there != here);
            wait_for("the rank has a namespace", away);
            for name in ["meet", "data"] {
                ip(&format!("link add {name}{rank} type veth peer name {name} netns {pid}"));
                ip(&format!("link set {name}{rank} master {name}s up"));
            }
            ip(&format!("link set data{rank} mtu {}", self.mtu[1]));
            if let Some(spoil) = self.spoil {
                let done =
                    Command::new("sh").args(["-c", &spoil.replace("RANK", &rank.to_string())]).status();
                assert!(done.unwrap().success(), "{spoil}");
            }
        }
        ranks.map(|child| {
            let output = child.wait_with_output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
    }

    fn rank(&self, rank: usize) -> Child {
        let mut command = Command::new("unshare");
        command.args(["--net", "--"]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", &test_of(module_path!(), BODY), "--nocapture"]).stdout(Stdio::piped());
        let ports = format!("[{{device = \"af_packet:data\", address = \"{}\"}}]", self.addresses[rank]);
        let number = rank.to_string();
        for (key, value) in [
            ("RANK", number.as_str()),
            ("SIZE", "2"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_SIZE", "1"),
            ("ADDR", "10.80.0.1"),
            ("PORT", "29500"),
            ("KEY", "a key of this test"),
            ("TRANSPORT", self.transport),
            ("MTU", &MTU.to_string()),
            ("PORTS", &ports),
            ("RENDEZVOUS_DEADLINE", "20s"),
            ("TEST_SCENARIO", "join"),
            ("TEST_OWN", &(rank + 1).to_string()),
            ("TEST_INTERFACE_MTU", &self.mtu[0].to_string()),
            ("TEST_ROUNDS", &self.rounds.to_string()),
        ] {
            command.env(format!("SHOUTER_{key}"), value);
        }
        if let (Some(address), 1) = (self.kernel, rank) {
            command.env("SHOUTER_TEST_KERNEL_ADDRESS", address);
        }
        if let Some(how) = self.cut {
            // On a busy machine a moment is longer.
            let found = if how == "for good" { "3s" } else { "10s" };
            command.env("SHOUTER_TEST_CUT", how).env("SHOUTER_HEARTBEAT_TIMEOUT", found);
        }
        command.spawn().unwrap()
    }
}

/// Checks that every rank fails in time, with all of `words` in its error.
fn assert_told(said: Option<[String; 2]>, words: &[&str]) {
    for said in said.into_iter().flatten() {
        for word in words {
            assert!(said.contains(word), "'{word}' is missing:\n{said}");
        }
        let took = said.split("took ").nth(1).and_then(|rest| rest.split("s\n").next()).unwrap_or("");
        let seconds: f64 = took.parse().unwrap_or(0.0);
        assert!(seconds < TOLD.as_secs_f64(), "{said}");
    }
}

#[test]
fn an_interface_with_a_smaller_mtu_than_configured_is_used_with_its_own() {
    let network = Network { mtu: [1500; 2], ..Network::default() };
    let said = network.run("an_interface_with_a_smaller_mtu_than_configured_is_used_with_its_own");
    for said in said.into_iter().flatten() {
        assert!(said.contains("took") && !said.contains("error"), "{said}");
    }
}

/// The error where packets of 1500 bytes pass the switch, and longer ones do not.
const SHORT: &str = "MTU: packets of 9000 bytes do not get through, and those of 1500 do";

#[test]
fn a_switch_that_drops_jumbo_frames_is_told_with_what_passes_over_rud() {
    let network = Network { spoil: Some(filter!("meta length > 1500")), ..Network::default() };
    let said = network.run("a_switch_that_drops_jumbo_frames_is_told_with_what_passes_over_rud");
    assert_told(said, &[SHORT]);
}

#[test]
fn a_switch_that_drops_jumbo_frames_is_told_with_what_passes_over_tcp() {
    let spoil = Some(filter!("meta length > 1500"));
    let network = Network { transport: "tcp", spoil, ..Network::default() };
    let said = network.run("a_switch_that_drops_jumbo_frames_is_told_with_what_passes_over_tcp");
    assert_told(said, &[SHORT]);
}

/// The switch drops long packets once 10 MB of them have passed: the job goes on, over datagrams that are not so long.
#[test]
fn a_switch_that_drops_jumbo_frames_in_the_middle_of_a_job_does_not_end_it() {
    let spoil = Some(filter!("meta length > 1500 quota over 10 mbytes"));
    let network = Network { spoil, rounds: 100, ..Network::default() };
    let said = network.run("a_switch_that_drops_jumbo_frames_in_the_middle_of_a_job_does_not_end_it");
    for said in said.into_iter().flatten() {
        let resent = said.split("resent ").nth(1).and_then(|rest| rest.lines().next()).unwrap_or("0");
        assert!(resent.parse::<u64>().is_ok_and(|resent| resent > 0), "{said}");
        assert!(!said.contains("error"), "{said}");
    }
}

#[test]
fn an_interface_that_refuses_jumbo_frames_is_told_with_what_passes() {
    let network = Network { mtu: [MTU, 1500], ..Network::default() };
    let said = network.run("an_interface_that_refuses_jumbo_frames_is_told_with_what_passes");
    assert_told(said, &[SHORT]);
}

#[test]
fn an_address_that_the_kernel_has_is_refused_for_our_tcp() {
    let network = Network { transport: "tcp", kernel: Some("10.81.0.2/24"), ..Network::default() };
    let said = network.run("an_address_that_the_kernel_has_is_refused_for_our_tcp");
    let words = ["10.81.0.2 is an address of this host's kernel"];
    assert_told(said.map(|[_, one]| [one.clone(), one]), &words);
}

#[test]
fn one_address_given_to_two_hosts_is_named_with_both() {
    let network = Network { addresses: ["10.81.0.1/24"; 2], ..Network::default() };
    let said = network.run("one_address_given_to_two_hosts_is_named_with_both");
    assert_told(said, &["ports of rank 0 and rank 1 have the same address, 10.81.0.1"]);
}

#[test]
fn hosts_that_are_on_different_networks_hear_that_nobody_answers_arp() {
    let network = Network { spoil: Some("ip link set dataRANK nomaster"), ..Network::default() };
    let said = network.run("hosts_that_are_on_different_networks_hear_that_nobody_answers_arp");
    assert_told(said, &["ARP: nobody answers for 10.81.0."]);
}

#[test]
fn a_link_that_is_down_is_named() {
    let network = Network { spoil: Some("ip link set dataRANK down"), ..Network::default() };
    let said = network.run("a_link_that_is_down_is_named");
    assert_told(said, &["on port af_packet:data: link: it is down"]);
}

#[test]
fn a_link_that_goes_down_during_a_job_is_named() {
    let network = Network { rounds: 20, cut: Some("for good"), ..Network::default() };
    let Some([zero, one]) = network.run("a_link_that_goes_down_during_a_job_is_named") else { return };
    let down = "The link of port af_packet:data (10.81.0.2) of this host is down";
    assert!(one.contains(down), "{one}");
    // Who gives up the other first is a matter of chance.
    assert!(zero.contains("error") && !zero.contains("The link of port"), "{zero}");
}

#[test]
fn a_link_that_is_down_for_a_moment_is_counted_and_ends_no_job() {
    let network = Network { rounds: 20, cut: Some("for a moment"), ..Network::default() };
    let said = network.run("a_link_that_is_down_for_a_moment_is_counted_and_ends_no_job");
    for (said, losses) in said.into_iter().flatten().zip([0, 1]) {
        assert!(said.contains(&format!("links lost {losses}")) && !said.contains("error"), "{said}");
    }
}

#[test]
fn a_filtered_port_is_named_over_rud() {
    let network = Network { spoil: Some(filter!("th dport 61790")), ..Network::default() };
    let said = network.run("a_filtered_port_is_named_over_rud");
    assert_told(said, &["port: station", "nothing comes by rud", "filters UDP port 61790"]);
}

#[test]
fn a_filtered_port_is_named_over_tcp() {
    let network = Network { transport: "tcp", spoil: Some(filter!("th dport 61790")), ..Network::default() };
    let said = network.run("a_filtered_port_is_named_over_tcp");
    assert_told(said, &["port: station", "nothing comes by tcp", "filters TCP port 61790"]);
}
