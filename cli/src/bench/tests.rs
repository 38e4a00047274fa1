use super::*;

#[test]
fn what_takes_too_long_is_ended_and_what_does_not_is_read() {
    let begin = Instant::now();
    let error = output_within(Command::new("sleep").arg("60"), Duration::from_millis(50)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(begin.elapsed() < Duration::from_secs(30));
    let output = output_within(Command::new("echo").arg("a line"), Duration::from_secs(60)).unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, b"a line\n");
}

/// `shouter plan` writes all collectives with underscores.
#[test]
fn collectives_are_known_by_both_spellings() {
    use clap::Subcommand;
    let command = Bench::augment_subcommands(clap::Command::new("bench"));
    let named = |name: &str| command.find_subcommand(name).map(clap::Command::get_name);
    for collective in shouter::Collective::ALL {
        let word = shouter_reducer::plan::word(collective);
        assert!(named(&word).is_some(), "no benchmark {word}");
    }
    assert_eq!(named("all_to_all_v"), Some("alltoall_v"));
}

/// The help lists the options that a bench takes, and its defaults go together.
#[test]
fn no_bench_lists_an_option_that_it_refuses() {
    use clap::Subcommand;
    let mut command = Bench::augment_subcommands(clap::Command::new("bench"));
    for (bench, lists, refuses) in [
        ("allreduce", &["--ranks", "--threads", "--against", "--rounds"][..], &[][..]),
        ("sendrecv", &["--against", "--rounds"], &["--ranks", "--threads"]),
        ("window", &["--against", "--rounds"], &["--ranks", "--threads"]),
        ("group", &["--against", "--rounds"], &["--ranks", "--threads"]),
        ("incast", &["--ranks", "--against", "--rounds"], &["--threads"]),
        ("callback", &["--hosts"], &["--ranks", "--threads", "--against", "--rounds"]),
        ("beside", &["--ranks"], &["--threads", "--against", "--rounds"]),
        ("step", &["--ranks"], &["--threads", "--against", "--rounds"]),
    ] {
        let help = command.find_subcommand_mut(bench).unwrap().render_long_help().to_string();
        for option in lists {
            assert!(
                help.contains(&format!("{option} <")) || help.contains(&format!("{option}\n")),
                "{bench}: {help}"
            );
        }
        for option in refuses {
            assert!(
                !help.contains(&format!("{option} <")) && !help.contains(&format!("{option}\n")),
                "{bench}: {help}"
            );
        }
    }
    let incast = command.find_subcommand("incast").unwrap();
    let ranks = incast.get_arguments().find(|argument| argument.get_id() == "ranks").unwrap();
    assert_eq!(ranks.get_default_values(), ["3"]);
}

#[test]
fn seconds_are_positive_and_bounded() {
    assert_eq!(seconds("0.5"), Ok(0.5));
    for wrong in ["0", "-1", "nan", "1e9", "x"] {
        assert!(seconds(wrong).is_err(), "{wrong}");
    }
}
