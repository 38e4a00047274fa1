use super::*;

#[test]
fn every_refusal_can_be_told() {
    let long = "é".repeat(100_000);
    let behind = (0..60_000).map(|trainer| format!("trainer{trainer}")).collect();
    let (trainer, after) = ("trainer".to_owned(), Duration::from_secs(1));
    let errors = [
        Error::Group(crate::Error::Argument("there is no memory for 8 bytes".into())),
        Error::Checkpoint { path: long.clone(), text: long },
        Error::Stale { parameter: "w".into(), trainer, ahead: 2, limit: 1, behind, after, step: 3 },
    ];
    let told = errors.map(|error| error.told("server1"));
    for error in &told {
        let bytes = wire::encode(error).unwrap();
        assert!(bytes.len() <= LONGEST_TOLD, "{error}");
        assert_eq!(wire::decode::<Error>(&bytes).unwrap().to_string(), error.to_string());
    }
    assert!(
        told[0].to_string().contains("server1: ") && told[0].to_string().contains("no memory"),
        "{}",
        told[0]
    );
    assert!(matches!(&told[2], Error::Stale { step: 3, behind, .. } if behind.len() == MOST_BEHIND));
}
