use super::*;

#[test]
fn a_line_names_its_rank() {
    let plain = Style { json: false, colour: [false, true] };
    assert_eq!(plain.format(3, Stream::Stdout, b"hello\n").unwrap(), b"[3] hello\n");
    assert_eq!(plain.format(3, Stream::Stdout, b"no newline").unwrap(), b"[3] no newline\n");
    assert_eq!(plain.format(12, Stream::Stderr, b"x\n").unwrap(), b"\x1b[31m[12]\x1b[0m x\n");
    let json = Style { json: true, colour: [false, false] };
    let line = json.format(1, Stream::Stderr, b"say \"hi\" \xff\n").unwrap();
    let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
    assert_eq!(value["rank"], 1);
    assert_eq!(value["stream"], "stderr");
    assert_eq!(value["line"], "say \"hi\" \u{fffd}");
}
