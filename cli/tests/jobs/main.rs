//! Tests of the program and of jobs of real processes, in one executable: each links the whole library.

mod ranks;

mod benches;
mod check;
mod collectives;
mod costs;
mod divergence;
mod every_collective;
mod failures;
mod first_use;
mod fusion;
mod gpu;
mod gpu_check;
mod gpu_staged;
mod groups;
mod groups_beside;
mod hosts;
mod info;
mod launchers;
mod levels;
mod meeting;
mod observe;
mod p2p;
mod preflight;
mod ps;
mod registered;
mod run;
mod shards;
mod staged;
mod uneven;
mod windows;
mod works;
