//! The sender against a scripted peer. Whole transfers over bad links are in tests/tcp_sim.

mod script;
