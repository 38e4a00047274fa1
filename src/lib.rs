//! Shouter keeps the replicas of a training job in step: the shard-per-core runtime, channels, groups.
#![deny(unsafe_code)]

pub mod config;
pub mod error;
pub mod group;
pub mod observe;
pub mod runtime;
