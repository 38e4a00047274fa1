//! The life of a group in C: made by `shouter_init`, queried for its shape, ended by `shouter_finalize`.
//!
//! C's promise about a `shouter_t *`: several threads may use it at once, and none is in a call when `shouter_finalize` is called.
//! One that is NULL, that came from elsewhere, or that has been finalised is refused.
#![allow(unsafe_code, reason = "pointers from C, checked for NULL; the rest is the caller's promise")]

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use shouter::config::{Builder, Environment, MAX_RANKS};
use shouter::log;
use shouter::{Config, Error, Group, Tensor};

use crate::error::{Status, guard, guard_value, not_null, null};
use crate::live::Table;
use crate::sigpipe::SigpipeBlocked;
use crate::types::Stats;

static GROUPS: Table<Shouter> = Table::new(
    0xA5,
    "the shouter_t is none that shouter_init or a shouter_group_ function gave, or shouter_finalize has been called with it; use each \
     up to its shouter_finalize",
);

/// A rank's membership in a group, and all that serves it: threads, links, memory.
pub struct Shouter {
    pub(crate) group: Group,
    /// The memory of shouter_alloc, by address.
    pub(crate) memory: Mutex<HashMap<usize, Tensor<u8>>>,
    /// The text of shouter_transport.
    transport: CString,
}

/// The group behind a pointer from C.
///
/// # Safety
/// No other thread finalises `shouter` during `'a`.
pub(crate) unsafe fn group<'a>(shouter: *const Shouter) -> Result<&'a Group, Error> {
    // SAFETY: the caller's promise.
    unsafe { live(shouter) }.map(|shouter| &shouter.group)
}

/// The `Shouter` behind a pointer from C.
///
/// # Safety
/// As for [`group`].
pub(crate) unsafe fn live<'a>(shouter: *const Shouter) -> Result<&'a Shouter, Error> {
    not_null(shouter, "the shouter_t")?;
    // SAFETY: the caller's promise.
    unsafe { GROUPS.get(shouter) }
}

/// A string from C.
///
/// # Safety
/// `text` is NULL or a string that ends in a zero byte and does not change during `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Error> {
    not_null(text, what)?;
    // SAFETY: not NULL, and the caller promises the terminating zero.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|e| Error::Argument(format!("{what} is not UTF-8 ({e})")))
}

/// Stores a new group at the address from C.
///
/// # Safety
/// `out` is valid for a write.
pub(crate) unsafe fn hand_out(group: Group, out: *mut *mut Shouter) -> Result<(), Error> {
    let said: Vec<u8> = group.transport().to_string().bytes().filter(|&byte| byte != 0).collect();
    let transport = CString::new(said).unwrap_or_default();
    let handle = GROUPS.vacancy()?.fill(Shouter { group, memory: Mutex::default(), transport });
    // SAFETY: the caller's promise.
    unsafe { out.write(handle) };
    Ok(())
}

/// Joins a group, and stores it at the address from C.
///
/// # Safety
/// As for [`hand_out`].
unsafe fn join(config: Config, out: *mut *mut Shouter) -> Result<(), Error> {
    let _quiet = SigpipeBlocked::new();
    let group = shouter::init(config)?;
    // SAFETY: the caller's promise.
    unsafe { hand_out(group, out) }
}

/// The configuration of this process, with `path` in place of the file that SHOUTER_CONFIG names.
fn from_file(path: &str) -> Result<Config, Error> {
    if path.is_empty() {
        return Err(Error::Argument(
            "config_file is empty; give a path, or NULL for the file that SHOUTER_CONFIG names".into(),
        ));
    }
    Ok(Builder::from_environment(Environment::of_process().with("SHOUTER_CONFIG", path))?.build()?)
}

/// Joins the group that the environment and a file describe, and waits until all its ranks are there.
///
/// The environment is that of `shouter run` (SHOUTER_RANK, SHOUTER_SIZE...) or of torchrun (RANK, WORLD_SIZE, LOCAL_RANK,
/// MASTER_ADDR, MASTER_PORT); each key of the configuration can also be given as SHOUTER_ and its name in capitals. `config_file`
/// is the path of a TOML file, or NULL for the one that SHOUTER_CONFIG names, if any. On success `*out` is the new group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_init(config_file: *const c_char, out: *mut *mut Shouter) -> Status {
    guard(|| {
        log::start();
        not_null(out, "out")?;
        let config = if config_file.is_null() {
            Config::from_env()?
        } else {
            // SAFETY: not NULL; the caller promises a string.
            from_file(unsafe { text(config_file, "config_file") }?)?
        };
        // SAFETY: not NULL; the caller promises room for a pointer.
        unsafe { join(config, out) }
    })
}

/// The configuration of a rank in lists, with as many connections as the environment or the transport says where `channel_num` is 0.
pub(crate) fn listed(addresses: &[IpAddr], ports: &[u16], channel_num: u32) -> Result<Config, Error> {
    Ok(Config::from_lists(addresses, ports, (channel_num != 0).then_some(channel_num))?)
}

/// Joins a group given as lists: rank i of `n` is at `addresses[i]`, an IP address, and `ports[i]`, a TCP port.
///
/// Which of them this process is, SHOUTER_RANK or RANK says; else it is the first entry whose address is this host's and whose
/// port is free. The ranks meet at rank 0's entry. `channel_num` is the number of connections in the channel to each peer; 0 leaves it
/// to the key of that name, and where that is not set to the transport. The rest comes from the environment, as in shouter_init. On
/// success `*out` is the new group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_init_list(
    addresses: *const *const c_char,
    ports: *const u16,
    n: usize,
    channel_num: u32,
    out: *mut *mut Shouter,
) -> Status {
    guard(|| {
        log::start();
        if addresses.is_null() || ports.is_null() || out.is_null() {
            return Err(null("addresses, ports or out"));
        }
        if n == 0 || n > MAX_RANKS as usize {
            return Err(Error::Argument(format!("n is {n}; a group has 1 to {MAX_RANKS} ranks")));
        }
        // SAFETY: not NULL; the caller promises n entries in each list.
        let (addresses, ports) =
            unsafe { (std::slice::from_raw_parts(addresses, n), std::slice::from_raw_parts(ports, n)) };
        let mut names = Vec::with_capacity(n);
        for (i, &address) in addresses.iter().enumerate() {
            // SAFETY: the caller promises that each entry is a string.
            let address = unsafe { text(address, &format!("addresses[{i}]")) }?;
            names.push(address.parse::<IpAddr>().map_err(|_| {
                Error::Argument(format!(
                    "addresses[{i}] is \"{address}\"; use an IP address such as \"192.0.2.1\""
                ))
            })?);
        }
        let config = listed(&names, ports, channel_num)?;
        // SAFETY: not NULL; the caller promises room for a pointer.
        unsafe { join(config, out) }
    })
}

/// Leaves the group together with all its other ranks, and frees everything of it. NULL is allowed and does nothing.
///
/// Must be the last call on `shouter`: no other may be under way, and each later one gets SHOUTER_ERROR_ARGUMENT, a second
/// shouter_finalize too. It ends also when this returns an error (a rank that is gone cannot leave in order).
/// Waits for this rank's operations under way, then for all ranks. Buffers of operations that were started and not waited for hold their
/// results after it, and may be used again. Handles stay until shouter_work_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_finalize(shouter: *mut Shouter) -> Status {
    guard(|| {
        if shouter.is_null() {
            return Ok(());
        }
        let _quiet = SigpipeBlocked::new();
        let Shouter { group, memory, .. } = *GROUPS.take(shouter)?;
        let left = group.finalize();
        drop(memory);
        left
    })
}

/// Makes `bytes` of zeroed memory for tensors, aligned to a page; `*out` is its address.
///
/// The other ranks of the host see it too: large tensors that lie in such memory on every rank are reduced in place where all
/// ranks are on one host, which is several times faster where its cores are far apart. Results do not depend on it, and ranks need not agree on who uses it. RDMA devices
/// send large tensors from it and write to it without a copy, and NICs that DPDK drives (`pci:`) send them by RUD without one; there all of it takes memory at
/// once, elsewhere only what is touched. A forked child does not have it. It goes back with shouter_free, at the latest with shouter_finalize.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_alloc(
    shouter: *const Shouter,
    bytes: usize,
    out: *mut *mut c_void,
) -> Status {
    guard(|| {
        not_null(out, "out")?;
        // SAFETY: no other thread finalises it meanwhile, as the module demands of its callers.
        let shouter = unsafe { live(shouter) }?;
        let mut tensor = shouter.group.alloc::<u8>(bytes.max(1))?;
        let address = tensor.as_mut_ptr();
        shouter.memory.lock().unwrap_or_else(PoisonError::into_inner).insert(address.addr(), tensor);
        // SAFETY: not NULL; the caller promises room for a pointer.
        unsafe { out.write(address.cast()) };
        Ok(())
    })
}

/// Gives memory from shouter_alloc back; NULL is allowed and does nothing. No operation may be under way in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_free(shouter: *const Shouter, memory: *mut c_void) -> Status {
    guard(|| {
        if memory.is_null() {
            return Ok(());
        }
        // SAFETY: no other thread finalises it meanwhile, as the module demands of its callers.
        let shouter = unsafe { live(shouter) }?;
        let freed = shouter.memory.lock().unwrap_or_else(PoisonError::into_inner).remove(&memory.addr());
        freed.map(drop).ok_or_else(|| {
            Error::Argument("the address is not one that shouter_alloc gave, or it was freed already".into())
        })
    })
}

/// Promises that `bytes` of the caller's own memory at `memory` stay where they are until shouter_unpin or shouter_finalize has
/// returned, so that RDMA devices can send tensors of it, and write what peers send to it, and NICs that DPDK drives (`pci:`)
/// can send them by RUD, without a copy.
///
/// Worth it for memory that is pushed again and again; what shouter_alloc gave needs no promise. It takes a while, and the
/// pages stay in memory from then on; a forked child does not have them. Where it is of no use (another transport, or more than
/// rdma_memory_mb or the limit of locked memory allows, which the log says once) nothing changes, and that is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_pin(shouter: *const Shouter, memory: *mut c_void, bytes: usize) -> Status {
    // SAFETY: no other thread finalises it meanwhile, as the module demands of its callers; the memory's promise is the caller's.
    guard(|| unsafe { group(shouter)?.pin(memory.cast(), bytes) })
}

/// Takes the promise of shouter_pin back for memory that begins at `memory`; for any other nothing happens. No operation may be
/// under way in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_unpin(shouter: *const Shouter, memory: *mut c_void) -> Status {
    // SAFETY: no other thread finalises it meanwhile, as the module demands of its callers.
    guard(|| unsafe { group(shouter) }?.unpin(memory.cast()))
}

/// This process's number in the group, from 0; 0 if `shouter` is NULL or finalized.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_rank(shouter: *const Shouter) -> u32 {
    // SAFETY: no other thread finalises it meanwhile, as the module demands of its callers.
    guard_value(0, || unsafe { group(shouter) }.map_or(0, Group::rank))
}

/// How many ranks the group has; 0 if `shouter` is NULL or finalized.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_size(shouter: *const Shouter) -> u32 {
    // SAFETY: no other thread finalises it meanwhile, as the module demands of its callers.
    guard_value(0, || unsafe { group(shouter) }.map_or(0, Group::size))
}

/// This process's number among the ranks of its host, from 0; 0 if `shouter` is NULL or finalized.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_local_rank(shouter: *const Shouter) -> u32 {
    // SAFETY: no other thread finalises it meanwhile, as the module demands of its callers.
    guard_value(0, || unsafe { group(shouter) }.map_or(0, Group::local_rank))
}

/// How many ranks this host has; 0 if `shouter` is NULL or finalized.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_local_size(shouter: *const Shouter) -> u32 {
    // SAFETY: no other thread finalises it meanwhile, as the module demands of its callers.
    guard_value(0, || unsafe { group(shouter) }.map_or(0, Group::local_size))
}

/// This host's number in the group, from 0; 0 if `shouter` is NULL or finalized.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_node(shouter: *const Shouter) -> u32 {
    // SAFETY: no other thread finalises it meanwhile, as the module demands of its callers.
    guard_value(0, || unsafe { group(shouter) }.map_or(0, Group::node))
}

/// How many hosts the group has; 0 if `shouter` is NULL or finalized.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_nodes(shouter: *const Shouter) -> u32 {
    // SAFETY: no other thread finalises it meanwhile, as the module demands of its callers.
    guard_value(0, || unsafe { group(shouter) }.map_or(0, Group::nodes))
}

/// Which channels carry the group's data on this host, and why: the first line names them, `local`, `shm`, or such as `shm+rud`;
/// each other line is a choice, with what was passed over for which reason. Between hosts the first rank of each host knows why;
/// SHOUTER_LOG=info says the same. The text is valid until shouter_finalize; it is empty if `shouter` is NULL or finalized.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_transport(shouter: *const Shouter) -> *const c_char {
    guard_value(c"".as_ptr(), || {
        // SAFETY: no other thread finalises it meanwhile, as the module demands of its callers.
        unsafe { live(shouter) }.map_or(c"".as_ptr(), |shouter| shouter.transport.as_ptr())
    })
}

/// Copies what this process has done so far to `*out`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_stats(shouter: *const Shouter, out: *mut Stats) -> Status {
    guard(|| {
        not_null(out, "out")?;
        // SAFETY: no other thread finalises it meanwhile, as the module demands of its callers.
        let stats = unsafe { group(shouter) }?.stats();
        // SAFETY: not NULL; the caller promises room for a shouter_stats_t.
        unsafe { out.write(stats.into()) };
        Ok(())
    })
}

/// Writes what this rank has done so far as a trace to the file `path`; <https://ui.perfetto.dev> opens it. Needs the key timeline from
/// shouter_init on: nothing is recorded otherwise. shouter_finalize writes one to the folder that the key names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_timeline(shouter: *const Shouter, path: *const c_char) -> Status {
    guard(|| {
        // SAFETY: no other thread finalises it meanwhile, as the module demands of its callers; the caller promises a string.
        let (group, path) = unsafe { (group(shouter)?, text(path, "path")?) };
        group.write_timeline(path.as_ref())
    })
}

/// Gives up: ends the job for all its ranks, as where this one's program has met an error that it cannot go on with. Their calls fail from
/// then on with SHOUTER_ERROR_PEER_FAILED, or, where none was under way, with SHOUTER_ERROR_CLOSED: both name this rank, and their texts have
/// `why`, a string of which 1,024 bytes are kept. It waits for nobody; shouter_finalize frees the group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_abort(shouter: *const Shouter, why: *const c_char) -> Status {
    guard(|| {
        // SAFETY: no other thread finalises it meanwhile, as the module demands of its callers; the caller promises a string.
        let (group, why) = unsafe { (group(shouter)?, text(why, "why")?) };
        group.abort(why)
    })
}

/// Writes the last 4,096 events of this rank to a new file, and the file's path, which ends in a zero byte, to the `len` bytes at `path`;
/// a NULL `path` takes none. <https://ui.perfetto.dev> opens the file; it is in the folder that the key dump_folder names. If the path does not
/// fit, the status is SHOUTER_ERROR_ARGUMENT, and the file is there. When a group ends in error, the same has been done already: the
/// error's text names the file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_dump(shouter: *const Shouter, path: *mut c_char, len: usize) -> Status {
    guard(|| {
        // SAFETY: no other thread finalises it meanwhile, as the module demands of its callers.
        let written = unsafe { group(shouter) }?.dump()?;
        if path.is_null() {
            return Ok(());
        }
        let name = written.as_os_str().as_bytes();
        if name.len() >= len {
            let needed = name.len() + 1;
            let written = written.display();
            return Err(Error::Argument(format!(
                "len is {len}, and the path of {written} needs {needed} bytes"
            )));
        }
        // SAFETY: the caller promises room for `len` bytes, which are more than those of the path.
        unsafe {
            path.cast::<u8>().copy_from_nonoverlapping(name.as_ptr(), name.len());
            path.add(name.len()).write(0);
        }
        Ok(())
    })
}

/// This library's version, such as "0.1.0". The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn shouter_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
