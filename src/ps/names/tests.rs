use super::*;

fn names(names: &[&str], size: u32) -> Result<Names, Error> {
    Names::new(names.iter().map(|name| (*name).to_owned()).collect(), size)
}

#[test]
fn a_name_is_that_of_one_rank() {
    let known = names(&["master", "pserver", "trainer"], 3).unwrap();
    assert_eq!((known.rank("trainer").unwrap(), known.of(1)), (2, "pserver"));
    let Err(Error::UnknownActor { name, known }) = known.rank("Trainer") else { panic!("letters count") };
    assert_eq!((name.as_str(), known.len()), ("Trainer", 3));
}

#[test]
fn what_is_no_name_is_refused() {
    let long = "x".repeat(LONGEST + 1);
    for (given, says) in [
        (&["a"][..], "1 names for 2 ranks"),
        (&["a", "a"], "both called 'a'"),
        (&["a", ""], "rank 1 is called"),
        (&["a", "b\n"], "rank 1 is called"),
        (&["a/b", "c"], "rank 0 is called"),
        (&["a", &long], "rank 1 is called"),
    ] {
        let error = names(given, 2).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}
