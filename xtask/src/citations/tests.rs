use super::*;

#[test]
fn requirements_are_read_with_their_sections() {
    let named = |text: &str| -> Vec<String> {
        citations(text).into_iter().map(|(line, section, id)| format!("{line} {section} {id}")).collect()
    };
    assert_eq!(
        named("    //= RFC 9293 section 3.8.6.1, MUST-36: a closed window is probed"),
        ["1 3.8.6.1 MUST-36"]
    );
    assert_eq!(
        named("//= RFC 9293 section 3.1, MUST-5 to MUST-7: of options"),
        ["1 3.1 MUST-5", "1 3.1 MUST-6", "1 3.1 MUST-7"]
    );
    assert_eq!(
        named("//= RFC 9293 section 3.10.7.4, eighth; section 3.6.1, MUST-13: so"),
        ["1 3.6.1 MUST-13"]
    );
    assert_eq!(named("//= RFC 9293 section 3.7.1,\n//= MUST-14: so"), ["2 3.7.1 MUST-14"]);
    assert!(named("//= RFC 1122 section 4.2, MUST-1\n// RFC 9293 section 3.1, MUST-1").is_empty());
}

#[test]
fn the_index_says_what_is_supported() {
    let index = "| requirement | what | scenarios |\n|---|---|---|\n| MUST-1 | a | b, c |\n| SHLD-2 | a | not supported: b |\n";
    assert_eq!(indexed(index), BTreeMap::from([("MUST-1", true), ("SHLD-2", false)]));
}
