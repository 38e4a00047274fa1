use super::*;

#[test]
fn lists_of_cores_are_read() {
    assert_eq!(core_list("0,2-4"), Ok(Cores::List(vec![0, 2, 3, 4])));
    assert_eq!(core_list("none"), Ok(Cores::None));
    for wrong in ["", "a", "3-1", "0,0", "1-", "0-99999999999"] {
        assert!(core_list(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn percentages_need_their_sign() {
    assert_eq!(percent("1%"), Ok("1%".into()));
    assert_eq!(percent("0.1%"), Ok("0.1%".into()));
    for wrong in ["1", "100%", "-1%", "x%", "%", "NaN%", "inf%"] {
        assert!(percent(wrong).is_err(), "{wrong:?}");
    }
}
