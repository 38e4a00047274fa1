use super::*;
use crate::communicator::costs::tests::offer;

/// Other ranks' messages may hold anything.
#[test]
fn decoders_survive_what_comes() {
    let ports = |channels: &str, costs| PortsOpen { channels: channels.to_owned(), costs };
    wire::tests::fuzz(&[ports("", None), ports("rud+tcp", Some(offer()))]);
    let connected =
        |unreached: Option<&str>| Connected { unreached: unreached.map(str::to_owned), plan: [7; 32] };
    wire::tests::fuzz(&[connected(None), connected(Some("no path to 10.0.0.2"))]);
}

#[test]
fn a_rank_with_another_plan_or_without_its_peers_is_named() {
    let encoded = |unreached: Option<&str>, plan| {
        wire::encode(&Connected { unreached: unreached.map(str::to_owned), plan }).unwrap()
    };
    let own = || Connected { unreached: None, plan: [7; 32] };
    let good = encoded(None, [7; 32]);
    own().compare(&[good.clone(), good.clone()]).unwrap();
    for (bytes, says) in [
        (encoded(None, [8; 32]), "another plan"),
        (encoded(Some("no path"), [7; 32]), "does not reach its peers: no path"),
        (good[1..].to_vec(), "what rank 1 says"),
    ] {
        let error = own().compare(&[good.clone(), bytes]).unwrap_err();
        assert_eq!(error.rank(), Some(1));
        assert!(error.to_string().contains(says), "{error}");
    }
}
