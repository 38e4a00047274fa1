use super::*;

fn filled(hosts: &str, ranks: Option<u32>) -> Result<Vec<u32>, String> {
    hosts.parse::<Hosts>()?.fill(ranks)
}

#[test]
fn ranks_fill_hosts_in_blocks_or_as_listed() {
    assert_eq!(filled("2", Some(4)), Ok(vec![2, 2]));
    assert_eq!(filled("2", Some(5)), Ok(vec![3, 2]));
    assert_eq!(filled("3", Some(5)), Ok(vec![2, 2, 1]));
    assert_eq!(filled("4,2", None), Ok(vec![4, 2]));
    assert_eq!(filled("1, 3", Some(4)), Ok(vec![1, 3]));
}

#[test]
fn what_does_not_go_together_is_refused() {
    for (hosts, ranks, says) in [
        ("4,2", Some(7), "lists 6 ranks"),
        ("3", None, "-n"),
        ("3", Some(2), "cannot fill"),
        ("2,0", None, "`0`"),
        ("2,", None, "``"),
        ("two", Some(2), "`two`"),
        ("65536,1", None, "at most 65536"),
    ] {
        let refused = filled(hosts, ranks).unwrap_err();
        assert!(refused.contains(says), "{hosts}: {refused}");
    }
}
