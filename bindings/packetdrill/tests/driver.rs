//! Builds the C driver, which takes packetdrill's role, and runs its scenarios against the shared object.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The shared object, which cargo built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a path of this program");
    let folder = test.parent().expect("a folder");
    let places = [folder.join("libshouter_packetdrill.so"), folder.join("../libshouter_packetdrill.so")];
    places.iter().find(|place| place.exists()).unwrap_or_else(|| panic!("none of {places:?} exists")).clone()
}

fn driver() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packetdrill-driver");
    let built = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .args(["driver.c", "packet.c"].map(|file| source.join(file)))
        .arg("-ldl")
        .status()
        .expect("a C compiler: install gcc or clang");
    assert!(built.success(), "the driver does not compile");
    program
}

#[test]
fn every_scenario_of_the_driver() {
    let (library, driver) = (library(), driver());
    let list = Command::new(&driver).arg(&library).output().expect("the driver starts");
    let names = String::from_utf8(list.stdout).expect("names");
    assert!(names.lines().count() >= 27, "the driver lists only: {names}");
    let mut failed = Vec::new();
    for name in names.lines() {
        let output = Command::new(&driver).arg(&library).arg(name).output().expect("the driver starts");
        if !output.status.success() {
            failed.push(format!("{name}: {}, {}", output.status, String::from_utf8_lossy(&output.stderr)));
        }
    }
    assert!(failed.is_empty(), "{} of the scenarios failed:\n{}", failed.len(), failed.join("\n"));
}
