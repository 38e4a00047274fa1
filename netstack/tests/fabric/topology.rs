//! Which nodes a network has, which cables join them, and over which links a switch may forward to a host.

use std::collections::VecDeque;

/// A folded Clos network of three stages of switches (Al-Fares et al., SIGCOMM 2008): hosts at edge switches, which are joined
/// within a pod by aggregation switches, and those by core switches.
///
/// ```text
///              core 0 .. cores-1          cores of the second aggregation ...
///             /   |   |    \                of every pod
///   aggregation 0 of each pod     aggregation 1 ...
///       |      \  /      |
///    edge 0   edge 1 ...          every edge to every aggregation of its pod
///    | | |    | | |
///    hosts    hosts
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct FatTree {
    pub(crate) pods: usize,
    /// Edge switches of a pod.
    pub(crate) edges: usize,
    /// Hosts of an edge switch.
    pub(crate) hosts: usize,
    /// Aggregation switches of a pod.
    pub(crate) aggregations: usize,
    /// Core switches over each aggregation switch.
    pub(crate) cores: usize,
}

impl FatTree {
    /// 32 hosts, 8 routes between two pods.
    pub(crate) const SMALL: Self = Self { pods: 4, edges: 2, hosts: 4, aggregations: 4, cores: 2 };
    /// 128 hosts, 16 routes between two pods: the fat tree of switches with 8 ports.
    pub(crate) const LARGE: Self = Self { pods: 8, edges: 4, hosts: 4, aggregations: 4, cores: 4 };

    /// The hosts of all pods.
    pub(crate) fn size(&self) -> usize {
        self.pods * self.edges * self.hosts
    }

    /// The pod of a host.
    pub(crate) fn pod(&self, host: usize) -> usize {
        host / (self.edges * self.hosts)
    }

    fn edge(&self, pod: usize, edge: usize) -> usize {
        self.size() + pod * self.edges + edge
    }

    /// The node of an aggregation switch.
    pub(crate) fn aggregation(&self, pod: usize, aggregation: usize) -> usize {
        self.edge(self.pods, 0) + pod * self.aggregations + aggregation
    }

    /// The node of a core switch over aggregation switches of that number.
    pub(crate) fn core(&self, aggregation: usize, core: usize) -> usize {
        self.aggregation(self.pods, 0) + aggregation * self.cores + core
    }

    /// Hosts come first among nodes, and the cable of each host has its number.
    pub(crate) fn topology(&self) -> Topology {
        let mut cables: Vec<_> =
            (0..self.size()).map(|host| [host, self.size() + host / self.hosts]).collect();
        for pod in 0..self.pods {
            for aggregation in 0..self.aggregations {
                let above = self.aggregation(pod, aggregation);
                cables.extend((0..self.edges).map(|edge| [self.edge(pod, edge), above]));
                cables.extend((0..self.cores).map(|core| [above, self.core(aggregation, core)]));
            }
        }
        Topology { hosts: self.size(), nodes: self.core(self.aggregations, 0), cables }
    }
}

/// Nodes, of which the first are hosts, and cables between them. Cable c is two links: 2c from its first end to its second, 2c + 1
/// back.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    pub(crate) hosts: usize,
    pub(crate) nodes: usize,
    pub(crate) cables: Vec<[usize; 2]>,
}

impl Topology {
    /// The number of the cable between two nodes.
    pub(crate) fn cable(&self, a: usize, b: usize) -> usize {
        self.cables.iter().position(|ends| *ends == [a, b] || *ends == [b, a]).expect("a cable")
    }

    /// Links that leave a node, and where they lead.
    fn leaving(&self, node: usize) -> impl Iterator<Item = (usize, usize)> {
        self.cables.iter().enumerate().filter_map(move |(cable, ends)| match ends {
            [from, to] if *from == node => Some((2 * cable, *to)),
            [to, from] if *from == node => Some((2 * cable + 1, *to)),
            _ => None,
        })
    }

    /// For each node and host, the links on a shortest way.
    pub(crate) fn routes(&self) -> Vec<Vec<Vec<usize>>> {
        let neighbours: Vec<Vec<_>> = (0..self.nodes).map(|node| self.leaving(node).collect()).collect();
        let mut routes = vec![vec![Vec::new(); self.hosts]; self.nodes];
        for host in 0..self.hosts {
            let mut distance = vec![usize::MAX; self.nodes];
            distance[host] = 0;
            let mut waiting = VecDeque::from([host]);
            while let Some(node) = waiting.pop_front() {
                for &(_, next) in &neighbours[node] {
                    if distance[next] == usize::MAX {
                        distance[next] = distance[node] + 1;
                        waiting.push_back(next);
                    }
                }
            }
            for (node, routes) in routes.iter_mut().enumerate() {
                let nearer = neighbours[node].iter().filter(|(_, next)| distance[*next] < distance[node]);
                routes[host] = nearer.map(|(link, _)| *link).collect();
            }
        }
        routes
    }
}
