use super::*;

const TEXT: &str = "# A protocol

The words MUST and SHOULD are used as in RFC 2119.

## 1. First
- **RUD-1** An end MUST do this,
  and so on.
- **RUD-2** It SHOULD NOT do that. **RUD-4** It MUST
  do both.

### 1.1. More
Some text. **RUD-3** Here it MUST, as RUD-2 says.

```text
MUST NOT be read
```
";

const CODE: &str = "fn f() {
    //= rud/spec.md section 1, RUD-1, RUD-2: so
    // Why.
    g();
    //= rud/spec.md section 1,
    //= RUD-4
    //= rud/spec.md section 1.1, RUD-3
}
";

/// What is wrong with these files.
fn wrong(spec: &str, files: &[(&str, &str)]) -> Vec<String> {
    Spec::read(spec).compare(files.iter().map(|(file, text)| (Path::new(*file), *text)))
}

/// All that is wrong with a specification that is cited nowhere, but for that.
fn wrong_in(spec: &str) -> Vec<String> {
    wrong(spec, &[]).into_iter().filter(|line| !line.ends_with(" cites it")).collect()
}

#[test]
fn requirements_are_read_with_their_sections() {
    let spec = Spec::read(TEXT);
    let sections: Vec<(u32, &str)> =
        spec.requirements.iter().map(|(n, section)| (*n, section.as_str())).collect();
    assert_eq!(sections, [(1, "1"), (2, "1"), (3, "1.1"), (4, "1")]);
    assert_eq!(wrong_in(TEXT), [""; 0]);
}

#[test]
fn each_requirement_is_cited_by_code_and_by_a_test() {
    assert_eq!(wrong(TEXT, &[("src/a.rs", CODE), ("src/a/tests.rs", CODE)]), [""; 0]);
    assert_eq!(wrong(TEXT, &[("src/a.rs", CODE), ("src/tests/a.rs", CODE)]), [""; 0]);
    let but_three = CODE.replace(", RUD-3", "");
    assert_eq!(
        wrong(TEXT, &[("src/a.rs", CODE), ("src/a/tests.rs", &but_three)]),
        ["RUD-3: no test cites it"]
    );
    assert_eq!(
        wrong(TEXT, &[("src/a.rs", &but_three), ("src/a/tests.rs", CODE)]),
        ["RUD-3: no code cites it"]
    );
}

#[test]
fn what_is_cited_exists_where_it_is_said_to() {
    let with = |line: &str| {
        let text = format!("{CODE}{line}\n");
        wrong(TEXT, &[("src/a.rs", &text), ("src/a/tests.rs", CODE)])
    };
    assert_eq!(with("//= rud/spec.md section 1.1"), [""; 0]);
    assert_eq!(with("// RUD-77 is no citation"), [""; 0]);
    assert_eq!(with("//= rud/spec.md section 1, RUD-77"), [format!("src/a.rs:9: {SPEC} has no RUD-77")]);
    assert_eq!(with("//= rud/spec.md section 1, RUD-3"), ["src/a.rs:9: RUD-3 is in section 1.1, not 1"]);
    assert_eq!(with("//= rud/spec.md section 2"), [format!("src/a.rs:9: {SPEC} has no section 2")]);
    assert_eq!(with("//= rud/spec.md"), [format!("src/a.rs:9: {SPEC} has no section ")]);
}

#[test]
fn a_number_belongs_to_one_requirement_and_each_has_one() {
    let with = |text: &str| wrong_in(&format!("{TEXT}\n{text}\n"));
    assert_eq!(with("**RUD-3** It MUST."), [format!("{SPEC}: RUD-3 is in section 1.1 and in section 1.1")]);
    assert_eq!(
        with("**RUD-5** It does."),
        [format!("{SPEC}: RUD-5 requires nothing: it has neither MUST nor SHOULD")]
    );
    assert_eq!(
        with("- It SHOULD."),
        [format!("{SPEC}: a requirement of section 1.1 has no number: - It SHOULD. ")]
    );
    assert_eq!(with("**RUD-x** It MUST."), [format!("{SPEC}: RUD-x is no number of a requirement")]);
}
