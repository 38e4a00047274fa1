use super::*;

fn texts(table: &Table) -> Vec<String> {
    table.text().lines().map(String::from).collect()
}

#[test]
fn aims_judge_from_both_sides() {
    let verdict = |aim, measured, ceiling| Row::new("x", aim).figure(measured, "GB/s", ceiling).verdict;
    assert_eq!(verdict(">= 0.90", 9.0, 10.0), Some(RowVerdict::Met));
    assert_eq!(verdict(">= 0.90", 8.9, 10.0), Some(RowVerdict::Missed));
    assert_eq!(verdict("<= 1.00", 50.0, 50.0), Some(RowVerdict::Met));
    assert_eq!(verdict("<= 1.00", 51.0, 50.0), Some(RowVerdict::Missed));
    assert_eq!(verdict(">= 0.90", f64::NAN, 1.0), Some(RowVerdict::Missed));
}

#[test]
fn reasons_run_on_and_notes_stand_below() {
    let mut table = Table::new(false);
    table.describe("GPU 0: a device", true);
    let skipped = Row {
        verdict: Some(RowVerdict::Skipped),
        note: Some("no CUDA device".into()),
        ..Row::new("min", "")
    };
    for row in [
        Row::new("sum", "the host's bits").cases(12, Some("element 3".into())),
        skipped,
        Row::new("sum f32", ">= 0.90").figure(90.0, "GB/s", 100.0),
    ] {
        table.push(row).unwrap();
    }
    let lines = texts(&table);
    assert_eq!(lines[0], "GPU 0: a device");
    assert!(lines[1].contains("simulated"), "{lines:?}");
    assert_eq!(lines[2], "row      measured   ceiling     fraction  aim              verdict");
    assert_eq!(lines[3], "sum      12 cases   -           -         the host's bits  failed (simulated)");
    assert_eq!(lines[4], "min      skipped: no CUDA device");
    assert_eq!(lines[5], "sum f32  90.0 GB/s  100.0 GB/s  0.90      >= 0.90          simulated");
    assert_eq!(lines[6], "sum: element 3");
    let error = table.finish().unwrap_err().to_string();
    assert!(error.contains("sum failed"), "{error}");
}

#[test]
fn json_has_every_field() {
    let row = Row::new("crc32c", "").failed(&"out of memory");
    let value = serde_json::to_value(&row).unwrap();
    assert_eq!(value["verdict"], "failed");
    assert_eq!(value["note"], "out of memory");
    for field in ["row", "measured", "unit", "ceiling", "fraction", "aim", "simulated"] {
        assert!(value.get(field).is_some(), "{field}");
    }
}
