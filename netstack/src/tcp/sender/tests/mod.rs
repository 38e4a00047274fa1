//! The sender against a scripted peer (`script`) and against a small simulation (`network`).

mod network;
mod script;
