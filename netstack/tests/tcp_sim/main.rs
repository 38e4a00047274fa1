//! TCP endpoints over a simulated bottleneck, in virtual time: goodput, fairness, recovery, and an independent peer.
//!
//! The endpoints are whole, the network is the test's own: a queue, a rate and a delay each way, packets that are
//! lost, held up, doubled or marked, and links that are cut. The same seed gives the same run.

mod bounds;
mod controllers;
mod goodput;
mod network;
mod peer;
mod recovery;
#[path = "../support/stream.rs"]
mod stream;
mod transfer;
mod world;
