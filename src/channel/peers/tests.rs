use super::*;
use crate::channel::verbs::Fault;

#[test]
fn a_peer_is_lost_once_and_keeps_its_index() {
    let mut peers: Peers<char> = [(Rank(7), 'a'), (Rank(2), 'b')].into_iter().collect();
    assert_eq!((peers.index(Rank(2)), peers.index(Rank(3)), peers.of(Rank(7))), (Some(1), None, Some(&'a')));
    assert_eq!(peers.lose(0, Loss::Verbs(Fault::Remote)), Some(&mut 'a'));
    assert_eq!(peers.lose(0, Loss::Verbs(Fault::Local)), None);
    let lost = peers.take_lost().map(|lost| (lost.rank, lost.why));
    assert_eq!(lost, Some((Rank(7), Loss::Verbs(Fault::Remote))));
    assert!(peers.take_lost().is_none());
    assert_eq!(
        (peers.present(Rank(7)), peers.present(Rank(2)), peers.index(Rank(7))),
        (None, Some(1), Some(0))
    );
    assert!(peers.is_lost(2), "there is no such peer");
    peers.forget(1);
    assert!(peers.take_lost().is_none() && peers.all_present().next().is_none());
}
