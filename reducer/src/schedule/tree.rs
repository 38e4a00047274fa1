//! Trees over the nodes, numbered from the root's.

use super::builder::Builder;
use super::{Algorithm, binomial, chain, double_tree};

/// A node's place in a tree. Numbers are relative to the root, which is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tree {
    /// `None` at the root.
    pub(super) parent: Option<u32>,
    /// In the order in which they are sent to.
    pub(super) children: Vec<u32>,
}

impl Tree {
    /// The root has all others as children.
    fn flat(me: u32, nodes: u32) -> Self {
        if me == 0 {
            return Self { parent: None, children: (1..nodes).collect() };
        }
        Self { parent: Some(0), children: Vec::new() }
    }
}

/// The trees that a broadcast goes down, an equal part of each chunk in each.
pub(super) fn trees(algorithm: Algorithm, me: u32, nodes: u32) -> Vec<Tree> {
    match algorithm {
        Algorithm::Direct => vec![Tree::flat(me, nodes)],
        Algorithm::Chain => vec![chain::tree(me, nodes)],
        Algorithm::DoubleTree => double_tree::below_root(me, nodes).into(),
        _ => vec![binomial::tree(me, nodes)],
    }
}

/// This node's number, counted from the root's node.
pub(super) fn relative(b: &Builder) -> u32 {
    let (grid, nodes) = (b.problem.grid, b.problem.grid.nodes());
    (b.problem.node() + nodes - grid.node_of(b.problem.root)) % nodes
}

/// The node with this number, counted from the root's.
pub(super) fn node(b: &Builder, relative: u32) -> u32 {
    let grid = b.problem.grid;
    (relative + grid.node_of(b.problem.root)) % grid.nodes()
}
