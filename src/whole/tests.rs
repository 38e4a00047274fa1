use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};

use super::*;

/// A folder for one test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shouter-whole-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// What is there, in order.
    fn names(&self) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<_> = fs::read_dir(&self.0).unwrap().map(name).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    replace(path, 0o600, |file| file.write_all(text.as_bytes()))
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn a_file_keeps_its_permissions_and_a_new_one_gets_those_that_are_asked_for() {
    let folder = Folder::new("mode");
    let path = folder.file("f");
    write(&path, "one").unwrap();
    assert_eq!((fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("one", 0o600));
    // More than most masks leave, and less than was asked for.
    for kept in [0o666, 0o640, 0o400] {
        fs::set_permissions(&path, fs::Permissions::from_mode(kept)).unwrap();
        write(&path, &format!("{kept:o}")).unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap(), mode(&path)), (format!("{kept:o}"), kept));
    }
    assert_eq!(folder.names(), ["f"]);
}

#[test]
fn links_stay_and_lead_to_the_new_file() {
    let folder = Folder::new("links");
    let (below, first, second) = (folder.file("below"), folder.file("first"), folder.file("second"));
    fs::create_dir(&below).unwrap();
    // A link to another one, relative to their own folder, and from there to a file that is not there at first.
    symlink("second", &first).unwrap();
    symlink(below.join("f"), &second).unwrap();
    for text in ["new", "again"] {
        write(&first, text).unwrap();
        assert!(first.is_symlink() && second.is_symlink());
        assert_eq!(fs::read_to_string(below.join("f")).unwrap(), text);
    }
    assert_eq!(folder.names(), ["below", "first", "second"]);
    assert_eq!(fs::read_dir(&below).unwrap().count(), 1);
    symlink("loop", folder.file("loop")).unwrap();
    assert!(write(&folder.file("loop"), "").is_err());
}

#[test]
fn after_an_error_the_file_is_as_it_was_and_nothing_is_beside_it() {
    let folder = Folder::new("error");
    let path = folder.file("f");
    write(&path, "whole").unwrap();
    let failed = replace(&path, 0o600, |file| {
        file.write_all(b"a part")?;
        Err(io::Error::other("the disk is full"))
    });
    assert_eq!(failed.unwrap_err().to_string(), "the disk is full");
    assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
    assert_eq!(write(&folder.0, "").unwrap_err().to_string(), NO_FILE);
    assert_eq!(folder.names(), ["f"]);
}
