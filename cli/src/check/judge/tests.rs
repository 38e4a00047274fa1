use super::*;

/// All pairs of ranks on these hosts: 1 us and 10 GB/s within a host, 10 us and 1 GB/s between, worse by `times`.
fn pairs(hosts: &[u32], times: impl Fn(u32, u32) -> f64) -> Vec<Pair> {
    let ranks = 0..hosts.len() as u32;
    let all = ranks.clone().flat_map(|a| ranks.clone().map(move |b| [a, b])).filter(|[a, b]| a < b);
    all.map(|[a, b]| {
        let same_host = hosts[a as usize] == hosts[b as usize];
        let (latency, gbytes) = if same_host { (1.0, 10.0) } else { (10.0, 1.0) };
        let times = times(a, b);
        Pair { ranks: [a, b], same_host, latency_us: latency * times, gbytes: [gbytes / times; 2] }
    })
    .collect()
}

fn found(hosts: &[u32], times: impl Fn(u32, u32) -> f64) -> Judgement {
    judge(hosts, &pairs(hosts, times), 3.0)
}

const TWO_HOSTS: [u32; 4] = [0, 0, 1, 1];

#[test]
fn pairs_are_compared_with_those_of_their_kind() {
    let judgement = found(&TWO_HOSTS, |_, _| 1.0);
    assert_eq!((judgement.slow.len(), judgement.culprit), (0, None));
    let of = |same_host, pairs, latency_us, gbytes| Medians { same_host, pairs, latency_us, gbytes };
    assert_eq!(judgement.medians, [of(true, 2, 1.0, 10.0), of(false, 4, 10.0, 1.0)]);
}

#[test]
fn one_slow_pair_is_named() {
    let judgement = found(&TWO_HOSTS, |a, b| if (a, b) == (1, 2) { 5.0 } else { 1.0 });
    assert_eq!(judgement.culprit, Some(Culprit::Pair([1, 2])));
    let slow =
        |figure, ranks, value, median| Slow { figure, ranks, same_host: false, value, median, times: 5.0 };
    let both = |ranks| slow(Figure::Bandwidth, ranks, 0.2, 1.0);
    assert_eq!(judgement.slow, [slow(Figure::Latency, [1, 2], 50.0, 10.0), both([1, 2]), both([2, 1])]);
    let other = found(&TWO_HOSTS, |a, b| if (a, b) == (2, 3) { 5.0 } else { 1.0 });
    assert!(other.culprit == Some(Culprit::Pair([2, 3])) && other.slow.iter().all(|slow| slow.same_host));
}

#[test]
fn a_figure_at_the_factor_is_not_slow() {
    assert_eq!(found(&TWO_HOSTS, |a, b| if (a, b) == (1, 2) { 2.9 } else { 1.0 }).slow, []);
    let judgement = judge(&TWO_HOSTS, &pairs(&TWO_HOSTS, |a, _| [1.0, 900.0][a as usize % 2]), 1000.0);
    assert_eq!(judgement.slow, []);
}

#[test]
fn one_slow_rank_is_named_also_where_half_of_the_pairs_are_its_own() {
    for hosts in [vec![0; 4], vec![0; 9], vec![0, 1, 2, 3], vec![0, 0, 0, 1, 1, 1]] {
        let judgement = found(&hosts, |a, b| if a == 2 || b == 2 { 8.0 } else { 1.0 });
        assert_eq!(judgement.culprit, Some(Culprit::Rank(2)), "{hosts:?}: {judgement:?}");
    }
}

#[test]
fn one_slow_host_is_named_also_where_hosts_have_different_sizes() {
    for hosts in [vec![0, 0, 1, 1, 2, 2, 3, 3], vec![0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4]] {
        let is_slow = |a: u32, b: u32| {
            let (a, b) = (hosts[a as usize], hosts[b as usize]);
            a != b && (a == 1 || b == 1)
        };
        let judgement = found(&hosts, |a, b| if is_slow(a, b) { 8.0 } else { 1.0 });
        assert_eq!(judgement.culprit, Some(Culprit::Host(1)), "{hosts:?}: {judgement:?}");
        let of_host_1 = |pair: &&Pair| is_slow(pair.ranks[0], pair.ranks[1]);
        let count = pairs(&hosts, |_, _| 1.0).iter().filter(of_host_1).count();
        assert_eq!(judgement.slow.len(), 3 * count);
    }
}

#[test]
fn the_path_between_two_hosts_is_named_and_unrelated_pairs_are_not_blamed_on_anybody() {
    let hosts = [0, 0, 1, 1, 2, 2, 3, 3];
    let between = |a: u32, b: u32| if (2..4).contains(&a) && (4..6).contains(&b) { 9.0 } else { 1.0 };
    assert_eq!(found(&hosts, between).culprit, Some(Culprit::Hosts([1, 2])));
    let apart = found(&hosts, |a, b| if [(0, 2), (4, 6)].contains(&(a, b)) { 9.0 } else { 1.0 });
    assert_eq!((apart.slow.len(), apart.culprit), (6, None));
}

#[test]
fn the_worst_is_first() {
    let judgement = found(&[0; 6], |a, b| match (a, b) {
        (0, 5) => 4.0,
        (1, 3) => 40.0,
        _ => 1.0,
    });
    assert!(judgement.slow[0].ranks == [1, 3] && judgement.slow.last().unwrap().times == 4.0);
}

#[test]
fn of_two_ranks_one_direction_can_be_slow_and_one_rank_has_no_pairs() {
    let mut both = pairs(&[0, 1], |_, _| 1.0);
    assert_eq!(judge(&[0, 1], &both, 3.0).slow, []);
    both[0].gbytes[1] = 0.1;
    let judgement = judge(&[0, 1], &both, 3.0);
    assert_eq!(judgement.culprit, Some(Culprit::Pair([0, 1])));
    assert!(judgement.slow.len() == 1 && judgement.slow[0].ranks == [1, 0], "{judgement:?}");
    let alone = judge(&[0], &[], 3.0);
    assert_eq!(alone, Judgement { medians: vec![], slow: vec![], culprit: None });
}
