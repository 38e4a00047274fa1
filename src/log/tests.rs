use std::time::Duration;

use super::*;

#[test]
fn filters_are_levels_and_levels_by_module() {
    let takes =
        |filter: &str, target: &str, level: Level| parse(filter).unwrap().would_enable(target, &level);
    assert!(takes("info", "shouter::group", Level::INFO));
    assert!(!takes("info", "shouter::group", Level::DEBUG));
    assert!(takes(
        " WARN , shouter::channel = debug ".replace(' ', "").as_str(),
        "shouter::channel::rud",
        Level::DEBUG
    ));
    assert!(!takes("warn,shouter::channel=debug", "shouter::group", Level::INFO));
    assert!(!takes("off", "shouter::group", Level::ERROR));
    for wrong in ["loud", "info,verbose", "shouter::channel=loud"] {
        let why = parse(wrong).unwrap_err().to_string();
        assert!(why.contains(wrong) && why.contains("trace"), "{why}");
    }
}

#[test]
fn times_are_those_of_the_calendar() {
    let at = |seconds: u64, micros: u64| {
        Timestamp(UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros)).to_string()
    };
    // As `date -u -d @SECONDS +%FT%T` says.
    for (seconds, day) in [
        (0, "1970-01-01T00:00:00"),
        (951_782_399, "2000-02-28T23:59:59"),
        (951_782_400, "2000-02-29T00:00:00"),
        (951_868_800, "2000-03-01T00:00:00"),
        (1_767_225_599, "2025-12-31T23:59:59"),
        (4_107_542_400, "2100-03-01T00:00:00"),
    ] {
        assert_eq!(at(seconds, 7), format!("{day}.000007Z"));
    }
}

#[test]
fn a_line_is_one_line_with_its_rank() {
    let mut text = String::new();
    write!(OneLine(&mut text), "a\nb\u{1b}[31m\tü").unwrap();
    assert_eq!(text, "a\\nb\\u{1b}[31m\\tü");
    let line = Line { level: Level::INFO, rank: Some(3), text: &text };
    assert_eq!(line.to_string(), " INFO rank 3 a\\nb\\u{1b}[31m\\tü");
    assert_eq!(Line { rank: None, level: Level::ERROR, ..line }.to_string(), format!("ERROR {text}"));
}

#[test]
fn threads_speak_for_their_own_rank_and_others_for_the_process() {
    speak_for(4);
    assert_eq!(spoken_for(), Some(4));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(spoken_for(), Some(4));
            take_over(Some(9));
            assert_eq!(spoken_for(), Some(9));
        });
    });
    assert_eq!(spoken_for(), Some(4));
}
