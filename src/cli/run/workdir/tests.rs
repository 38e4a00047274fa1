use super::*;

#[test]
fn a_directory_is_private_and_goes_with_its_value() {
    let parent = std::env::temp_dir().join(format!("shouter-workdir-test-{}", std::process::id()));
    fs::create_dir(&parent).unwrap();
    let dir = WorkDir::create(&parent).unwrap();
    assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);
    let key = dir.write_private("key", "secret").unwrap();
    assert_eq!(fs::metadata(&key).unwrap().mode() & 0o777, 0o600);

    // What a dead launcher left is removed by the next; what a live one holds is not.
    let left = parent.join("shouter-run-dead");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("lock"), "").unwrap();
    let second = WorkDir::create(&parent).unwrap();
    assert!(!left.exists());
    assert!(dir.path().exists() && key.exists());

    drop(dir);
    drop(second);
    assert_eq!(fs::read_dir(&parent).unwrap().count(), 0);
    fs::remove_dir(&parent).unwrap();
}
