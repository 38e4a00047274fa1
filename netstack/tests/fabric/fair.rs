//! What the hashes of the switches allow: the rates that ideal congestion control would give to flows of which each spreads its
//! datagrams evenly over those of its paths that work.

use super::network::Network;

/// The max-min fair rates of flows between pairs of hosts, in bits per second (Bertsekas and Gallager, Data Networks, section
/// 6.5.2). `paths` are source and destination ports.
pub(crate) fn rates(network: &Network, pairs: &[(usize, usize)], paths: &[(u16, u16)]) -> Vec<f64> {
    let capacity: Vec<f64> = (0..network.links()).map(|link| network.capacity(link) as f64).collect();
    let works = |way: &Vec<usize>| way.iter().all(|link| capacity[*link] > 0.0);
    // The share of each flow that crosses each link.
    let crossing: Vec<Vec<f64>> = pairs
        .iter()
        .map(|&hosts| {
            let ways: Vec<_> = paths.iter().map(|&ports| network.way(hosts, ports)).filter(works).collect();
            assert!(!ways.is_empty(), "no path of {hosts:?} works");
            let mut shares = vec![0.0; network.links()];
            ways.iter().flatten().for_each(|link| shares[*link] += 1.0 / ways.len() as f64);
            shares
        })
        .collect();
    let mut rates: Vec<Option<f64>> = vec![None; pairs.len()];
    // All rates grow until a link is full; those over it are fixed then.
    while rates.contains(&None) {
        let full_at = |link: usize| {
            let flows = rates.iter().zip(&crossing).map(|(rate, shares)| (rate, shares[link]));
            let (used, growing) = flows.fold((0.0, 0.0), |(used, growing), (rate, share)| match rate {
                Some(rate) => (used + rate * share, growing),
                None => (used, growing + share),
            });
            (capacity[link] - used) / growing
        };
        let full_at: Vec<f64> = (0..network.links()).map(full_at).collect();
        let level = full_at.iter().copied().filter(|level| level.is_finite()).fold(f64::INFINITY, f64::min);
        let fixed: Vec<bool> = crossing
            .iter()
            .map(|shares| shares.iter().zip(&full_at).any(|(share, at)| *share > 0.0 && *at <= level + 1.0))
            .collect();
        for (rate, fixed) in rates.iter_mut().zip(fixed) {
            if rate.is_none() && fixed {
                *rate = Some(level);
            }
        }
    }
    rates.into_iter().flatten().collect()
}
