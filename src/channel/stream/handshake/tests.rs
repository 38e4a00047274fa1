use super::*;

fn secrets(secret: u8, salt: u8) -> Secrets {
    Secrets::new(Key::from_secret([secret; 32]), Key::from_secret([salt; 32]))
}

fn claim() -> Claim {
    Claim { from: Rank(7), to: Rank(3), connection: 9, crc: true, nonce: [5; 16] }
}

#[test]
fn both_sides_prove_themselves() {
    let secrets = secrets(1, 2);
    let nonce = [4; 16];
    assert_eq!(check_challenge(&challenge(&nonce)), Some(nonce));
    let hello = secrets.hello(&nonce, &claim());
    assert_eq!(secrets.check_hello(&nonce, &hello), Some(claim()));
    for answer in [Answer::Welcome, Answer::CrcDiffers] {
        let bytes = secrets.answer(answer, &nonce, &claim());
        assert_eq!(secrets.check_answer(&nonce, &claim(), &bytes), Some(answer));
    }
}

#[test]
fn what_was_changed_anywhere_proves_nothing() {
    let secrets = secrets(1, 2);
    let nonce = [4; 16];
    let hello = secrets.hello(&nonce, &claim());
    for at in 0..HELLO * 8 {
        let mut changed = hello;
        changed[at / 8] ^= 1 << (at % 8);
        assert_eq!(secrets.check_hello(&nonce, &changed), None, "bit {at}");
    }
    let welcome = secrets.answer(Answer::Welcome, &nonce, &claim());
    for at in 0..WELCOME * 8 {
        let mut changed = welcome;
        changed[at / 8] ^= 1 << (at % 8);
        assert_eq!(secrets.check_answer(&nonce, &claim(), &changed), None, "bit {at}");
    }
    assert_eq!(secrets.check_answer(&nonce, &claim(), &welcome[1..]), None, "too short");
}

#[test]
fn neither_another_secret_nor_another_challenge_nor_the_other_sides_proof_will_do() {
    let (secrets, other) = (secrets(1, 2), secrets(3, 2));
    let nonce = [4; 16];
    let hello = secrets.hello(&nonce, &claim());
    assert_eq!(other.check_hello(&nonce, &hello), None);
    assert_eq!(secrets.check_hello(&[6; 16], &hello), None, "a hello that was heard is of no use later");
    assert_eq!(secrets.check_answer(&nonce, &claim(), &hello[CLAIM..]), None, "a proof sent back");
    let welcome = secrets.answer(Answer::Welcome, &nonce, &claim());
    for other in [Claim { connection: 8, ..claim() }, Claim { crc: false, ..claim() }] {
        assert_eq!(secrets.check_answer(&nonce, &other, &welcome), None, "{other:?}");
    }
}

#[test]
fn nonces_differ() {
    let mut own = secrets(1, 2);
    let first = own.nonce();
    assert_ne!(first, own.nonce());
    assert_ne!(first, secrets(1, 3).nonce());
}
