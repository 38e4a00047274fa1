//! Placeholder.

pub mod dtype;
pub mod kernel;
