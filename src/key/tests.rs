use std::fs;

use super::*;

#[test]
fn the_tag_is_hmac_sha256() {
    // The parts are framed, so RFC 4231's vectors do not apply as they stand; this computes HMAC by its definition
    // (RFC 2104 section 2) from SHA-256 alone.
    let key = Key::from_secret([7; 32]);
    let mut message = Vec::new();
    for part in [&b"purpose"[..], b"one", b""] {
        message.extend((part.len() as u64).to_be_bytes());
        message.extend(part);
    }
    let pad = |byte: u8| -> Vec<u8> { (0..64).map(|i| if i < 32 { 7 ^ byte } else { byte }).collect() };
    let inner = Sha256::digest([pad(0x36), message].concat());
    let outer = Sha256::digest([pad(0x5c), inner.to_vec()].concat());
    assert_eq!(key.tag("purpose", &[b"one", b""])[..], outer[..]);
}

#[test]
fn tags_differ_by_key_purpose_and_part() {
    let key = Key::from_text("a line of text that is long enough").unwrap();
    let tag = key.tag("hello", &[b"ab", b"c"]);
    assert!(key.verify("hello", &[b"ab", b"c"], &tag));
    assert!(!key.verify("hello", &[b"a", b"bc"], &tag));
    assert!(!key.verify("other", &[b"ab", b"c"], &tag));
    assert!(!key.verify("hello", &[b"ab", b"c"], &tag[..31]));
    assert!(!Key::from_text("another line of text, long enough").unwrap().verify(
        "hello",
        &[b"ab", b"c"],
        &tag
    ));
    assert!(!key.derive("x", &[]).verify("hello", &[b"ab", b"c"], &tag));
    assert_eq!(key.tag_prefix::<5>("hello", &[b"ab", b"c"]), tag[..5]);
}

#[test]
fn a_key_is_read_from_hex_and_from_any_text() {
    let hex = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";
    assert_eq!(Key::from_text(hex), Key::from_text(&format!("  {}\n", hex.to_lowercase())));
    assert_ne!(Key::from_text("password"), Key::from_text("Password"));
    assert_eq!(Key::from_text(" \n"), Err(KeyError::Empty));
    assert_ne!(Key::generate().unwrap(), Key::generate().unwrap());
}

#[test]
fn a_key_never_shows_in_debug_output() {
    assert_eq!(format!("{:?}", Key::from_text("password").unwrap()), "Key(secret)");
}

#[test]
fn a_key_file_that_cannot_be_used_is_named() {
    let dir = std::env::temp_dir().join(format!("shouter-key-test-{}", std::process::id()));
    fs::create_dir(&dir).unwrap();
    let path = dir.join("key");
    let says = |path: &Path| Key::from_file(path).unwrap_err().to_string();
    assert!(says(&path).contains("cannot read the key file") && says(&path).contains("key: No such file"));
    fs::write(&path, "the line\n").unwrap();
    assert_eq!(Key::from_file(&path), Key::from_text("the line"));
    fs::write(&path, [0xff; 32]).unwrap();
    assert!(says(&path).contains("not text"));
    fs::write(&path, [b'a'; 5000]).unwrap();
    assert!(says(&path).contains("larger than 4096"));
    fs::remove_dir_all(&dir).unwrap();
}
