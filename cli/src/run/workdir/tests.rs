use super::*;

#[test]
fn a_directory_is_private_and_goes_with_its_value() {
    let parent = std::env::temp_dir().join(format!("shouter-workdir-test-{}", std::process::id()));
    fs::create_dir(&parent).unwrap();
    let dir = WorkDir::create(&parent).unwrap();
    assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);
    let key = dir.write_private("key", "secret").unwrap();
    assert_eq!(fs::metadata(&key).unwrap().mode() & 0o777, 0o600);

    // The directory of a dead launcher is removed by the next launcher; that of a live one stays.
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

/// A directory that is being made has no locked file yet, and looks like a leftover.
#[test]
fn launchers_that_start_together_leave_each_other_alone() {
    let parent = std::env::temp_dir().join(format!("shouter-workdir-race-{}", std::process::id()));
    fs::create_dir(&parent).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let dir = WorkDir::create(&parent).unwrap();
                    let key = dir.write_private("key", "secret").unwrap();
                    std::thread::yield_now();
                    assert_eq!(fs::read(key).unwrap(), b"secret");
                }
            });
        }
    });
    // The directory of a launcher that died before it had locked anything is removed, too.
    fs::create_dir(parent.join("shouter-run-unborn")).unwrap();
    drop(WorkDir::create(&parent).unwrap());
    assert_eq!(fs::read_dir(&parent).unwrap().count(), 0);
    fs::remove_dir(&parent).unwrap();
}
