//! Statements that come before anything happens: options of connections, limits of the endpoint, where it starts.

use shouter_netstack::cc::Algorithm;
use shouter_netstack::tcp::{KeepAlive, Options};

use super::run::{Outcome, Run, duration, number_of};

/// `option`, `config`, `family`, `peer-isn`, `isn-before-wrap`.
pub(crate) fn set(run: &mut Run, verb: &str, words: &[&str]) -> Outcome {
    if verb != "peer-isn" && run.started() {
        return Err(format!("{verb} comes before anything happens"));
    }
    match (verb, words) {
        ("option", words) => option(&mut run.options, words),
        ("config", [name, value]) => {
            let config = &mut run.config;
            match *name {
                "max-connections" => config.max_connections = number_of(value)?,
                "max-time-wait" => config.max_time_wait = number_of(value)?,
                "max-orphans" => config.max_orphans = number_of(value)?,
                "max-half-open" => config.max_half_open = number_of(value)?,
                "max-receive-memory" => config.max_receive_memory = number_of(value)?,
                "challenge-acks" => config.challenge_acks_per_second = number_of(value)? as u32,
                "resets" => config.resets_per_second = number_of(value)? as u32,
                "key" => config.key = [number_of(value)? as u8; 32],
                other => return Err(format!("there is no limit {other}")),
            }
            Ok(())
        }
        ("family", ["ipv4"]) => Ok(()),
        ("family", ["ipv6"]) => {
            run.ipv6 = true;
            Ok(())
        }
        ("peer-isn", [isn]) => {
            run.peer_isn = isn.parse().map_err(|_| "peer-isn NUMBER")?;
            Ok(())
        }
        ("start", [at]) => {
            run.start = duration(at)?.as_nanos() as u64;
            Ok(())
        }
        ("isn-before-wrap", [before]) => {
            let before = before.parse().map_err(|_| "isn-before-wrap NUMBER")?;
            run.start_before_wrap(before)
        }
        _ => Err(format!("{verb}: see the language in README.md")),
    }
}

/// An option of connections.
pub(crate) fn option(options: &mut Options, words: &[&str]) -> Outcome {
    let flag = |value: &str| match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{value}: on or off")),
    };
    match *words {
        ["nagle", value] => options.nagle = flag(value)?,
        ["window-scaling", value] => options.window_scaling = flag(value)?,
        ["timestamps", value] => options.timestamps = flag(value)?,
        ["sack", value] => options.sack = flag(value)?,
        ["ecn", value] => options.ecn = flag(value)?,
        ["pacing", value] => options.pacing = flag(value)?,
        ["mtu-probing", value] => options.mtu_probing = flag(value)?,
        ["repeat-tail-probes", value] => options.repeat_tail_probes = flag(value)?,
        ["min-rto", value] => options.min_rto = duration(value)?,
        ["max-rto", value] => options.max_rto = duration(value)?,
        ["initial-rto", value] => options.initial_rto = duration(value)?,
        ["max-ack-delay", value] => options.max_ack_delay = duration(value)?,
        ["time-wait", value] => options.time_wait = duration(value)?,
        ["fin-wait-2", value] => options.fin_wait_2 = duration(value)?,
        ["orphan-timeout", value] => options.orphan_timeout = duration(value)?,
        ["send-buffer", value] => options.send_buffer = number_of(value)?,
        ["receive-buffer", value] => options.receive_buffer = number_of(value)?,
        ["min-path-mtu", value] => options.min_path_mtu = number_of(value)? as u16,
        ["max-segment", value] => options.max_segment = Some(number_of(value)? as u16),
        ["initial-window", value] => options.initial_window = number_of(value)? as u32,
        ["syn-retries", value] => options.syn_retries = number_of(value)? as u8,
        ["user-timeout", "none"] => options.user_timeout = None,
        ["user-timeout", value] => options.user_timeout = Some(duration(value)?),
        ["keep-alive", "off"] => options.keep_alive = None,
        ["keep-alive", "default"] => options.keep_alive = Some(KeepAlive::default()),
        ["keep-alive", idle, interval, probes] => {
            options.keep_alive = Some(KeepAlive {
                idle: duration(idle)?,
                interval: duration(interval)?,
                probes: number_of(probes)? as u8,
            });
        }
        ["congestion", name] => {
            options.congestion = match name {
                "newreno" => Algorithm::NewReno,
                "cubic" => Algorithm::Cubic,
                "dctcp" => Algorithm::Dctcp,
                "bbr" => Algorithm::Bbr,
                _ => return Err(format!("there is no congestion control {name}")),
            };
        }
        _ => return Err(format!("there is no option {}", words.join(" "))),
    }
    Ok(())
}
