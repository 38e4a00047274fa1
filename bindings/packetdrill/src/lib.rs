//! Shouter's stack behind packetdrill's shared-object interface, for tests alone.
//!
//! ```text
//! packetdrill --so_filename=libshouter_packetdrill.so [--so_flags="--mtu=1500 --ecn=on"] script.pkt
//! ```
//!
//! The library exports `packetdrill_interface_init(flags, interface)`, which makes a stack with a clock of its own and
//! fills the interface with functions. The clock is virtual: it moves by the time of `usleep`, by 1 µs whenever it is
//! read, and to the next timers while `netdev_receive` looks for the next packet. A blocking call waits until another
//! thread's calls have changed its condition. The thread that called `packetdrill_interface_init` drives the script:
//! its own wait moves the clock, and fails with EDEADLK if it could end only by another packet.
//!
//! ```text
//!   packetdrill's threads --> sys: the interface's functions, pointers, errno
//!                              |
//!                            host: one lock, one condition, virtual time
//!                              |
//!                            machine: the files, the calls              -- socket, epoll, pipe, progress
//!                              |
//!                            net: the stack   -- wire: IP packets in and out
//! ```
//!
//! Flags are words `--name=value`: `local_ip` (once for each IP version), `mtu`, `congestion`, the switches `nagle`, `ecn`,
//! `sack`, `timestamps`, `window_scaling`, `pacing`, `mtu_probing`, the numbers `initial_window`, `syn_retries`, `send_buffer`,
//! `receive_buffer`, and in microseconds `min_rto_us`, `max_rto_us`, `initial_rto_us`, `max_ack_delay_us`, `time_wait_us`.
//! `ip_version`, `remote_ip`, `gateway_ip` and `netmask_ip` are accepted and change nothing: the stack has both
//! versions, and all other hosts are behind one router.
//!
//! Differences from Linux: bytes that were not read before a reset are lost (RFC 9293 section 3.10.7.4), MSG_OOB is
//! refused, TCP_INFO is zero where the stack keeps nothing, SO_SNDBUF counts only the bytes, instances of epoll are not
//! nested. Options that are not in `socket::option` are refused with ENOPROTOOPT. TCP fast open (RFC 7413), MD5
//! signatures (RFC 2385), zero-copy sends and TCP over UDP are not supported: scripts that need them cannot pass.
#![deny(unsafe_code)]

mod epoll;
mod errno;
mod files;
mod flags;
mod host;
mod machine;
mod net;
mod pipe;
mod progress;
mod socket;
mod sys;
mod wire;

pub use sys::{PacketdrillInterface, packetdrill_interface_init};
