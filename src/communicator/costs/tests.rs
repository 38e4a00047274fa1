use super::*;

fn figures(from: CostsFrom) -> CostFigures {
    CostFigures { costs: Costs::of_transport("kernel"), from }
}

#[test]
fn figures_arrive_as_they_were_sent() {
    for from in [
        CostsFrom::File,
        CostsFrom::Cache,
        CostsFrom::Measured(Duration::from_micros(8_100)),
        CostsFrom::BuiltIn("no time".into()),
    ] {
        let sent = wire::encode(&Sent::from(&figures(from.clone()))).unwrap();
        let received: Sent = wire::decode(&sent).unwrap();
        assert_eq!(CostFigures::try_from(received).unwrap(), figures(from));
    }
    let mut short = Sent::from(&figures(CostsFrom::File));
    short.values.pop();
    let refused = CostFigures::try_from(short).unwrap_err();
    assert_eq!(refused.rank(), Some(0));
}

#[test]
fn figures_are_written_with_their_origin() {
    let text = figures(CostsFrom::Measured(Duration::from_micros(8_100))).to_string();
    assert!(text.starts_with("measured at the join in 8.1 ms: call_ns 500, step_ns 60, "), "{text}");
    assert!(text.ends_with(", wire_mb_s 1000000"), "{text}");
}

/// Other ranks' messages may hold anything.
#[test]
fn decoders_survive_what_comes() {
    let sent = |from| Sent::from(&figures(from));
    wire::tests::fuzz(&[sent(CostsFrom::Cache), sent(CostsFrom::Measured(Duration::from_millis(3)))]);
    wire::tests::fuzz(&[Offer { figures: sent(CostsFrom::File), measures: None }, offer()]);
}

/// Rank 0's figures, where rank 7 is measured too.
pub(in crate::communicator) fn offer() -> Offer {
    let figures = Sent::from(&figures(CostsFrom::BuiltIn("why".into())));
    Offer { figures, measures: Some(Partner(Some(7))) }
}
