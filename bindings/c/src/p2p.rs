//! Messages from one rank to another.
//!
//! [`shouter_send`] documents the common rules, for readers of the C header.
#![allow(unsafe_code, reason = "pointers from C, checked for NULL; the rest is the caller's promise")]

use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

use shouter::config::LONGEST_WAIT;
use shouter::{Error, Exchange, Source, Tag};

use crate::error::{Status, guard, null};
use crate::handle::{Shouter, group};
use crate::types::{self, Dtype, Layout};

/// In the place of a rank that a receive or a probe names: any.
pub const SHOUTER_ANY_RANK: i64 = -1;

/// In the place of a tag that a receive or a probe names: any.
pub const SHOUTER_ANY_TAG: i64 = -1;

/// A send, which only reads its data.
pub const SHOUTER_SEND: i32 = 0;
/// A receive.
pub const SHOUTER_RECV: i32 = 1;
/// A send that ends only when a receive has taken its message: what goes wrong with that is its own error.
pub const SHOUTER_SYNCHRONOUS_SEND: i32 = 2;

/// A message, as a receive or a probe finds it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The rank that has sent it; for a send, the one that it went to.
    pub rank: u32,
    /// Its tag.
    pub tag: u32,
    /// Its elements.
    pub count: u64,
    /// Their type: SHOUTER_F32 and its like.
    pub dtype: Dtype,
}

/// One message of shouter_exchange.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExchangeEntry {
    /// The elements of a send, or the room of a receive.
    pub data: *mut c_void,
    /// How many.
    pub count: usize,
    /// Their type: SHOUTER_F32 and its like.
    pub dtype: Dtype,
    /// What it is: SHOUTER_SEND, SHOUTER_SYNCHRONOUS_SEND or SHOUTER_RECV.
    pub kind: i32,
    /// The other rank. For a receive it may be SHOUTER_ANY_RANK.
    pub rank: i64,
    /// The tag. For a receive it may be SHOUTER_ANY_TAG.
    pub tag: i64,
    /// NULL, or how the `count` elements lie. What is sent is copied at first; what is received is written, the first elements of the layout
    /// if the message is shorter, when it has come, and stays as it is where it does not.
    pub layout: *const Layout,
    /// Written: how it has ended.
    pub status: Status,
    /// Written: the message, where the status is SHOUTER_OK.
    pub message: Message,
}

/// Sends `count` elements at `data` to rank `to`, and returns when they may be changed. A small message may wait there for its receive
/// then; what becomes of it later (a receive too short for it, none before the deadline) is the error of the next send to that rank, which
/// its text says; that next one has sent nothing then.
///
/// This and the following functions: only sender and receiver take part, and collectives are not disturbed. Messages from one rank to
/// another with one tag are received in the order in which they were sent. A rank may send to itself. A message of more than 16 KiB, or more
/// than there is room for, stays with its sender until it is received: two ranks that send each other such ones before they receive wait
/// for each other; shouter_exchange does not. Data must be aligned to its elements. The group goes on after SHOUTER_ERROR_ARGUMENT,
/// SHOUTER_ERROR_MISMATCH (the receive is too short, or of another type: an error on both ranks, and the message is gone) and
/// SHOUTER_ERROR_DEADLINE (nobody has received it, or sent it, within the group's own deadline). A rank that is stopped while it fetches
/// the data is waited for until the key heartbeat_timeout has found it, whatever the deadline.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_send(
    shouter: *const Shouter,
    data: *const c_void,
    count: usize,
    dtype: Dtype,
    to: u32,
    tag: u32,
) -> Status {
    guard(|| {
        let (to, tag) = (to.into(), tag.into());
        let mut entry = ExchangeEntry { rank: to, tag, ..ExchangeEntry::of(data.cast_mut(), count, dtype) };
        // SAFETY: the caller's promise.
        unsafe { exchange(shouter, std::slice::from_mut(&mut entry)) }
    })
}

/// Receives the first message from rank `from` (or SHOUTER_ANY_RANK) with this `tag` (or SHOUTER_ANY_TAG) into `data`, which has room for
/// `count` elements; the message may be shorter. What it is is written to `message`, unless that is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_recv(
    shouter: *const Shouter,
    data: *mut c_void,
    count: usize,
    dtype: Dtype,
    from: i64,
    tag: i64,
    message: *mut Message,
) -> Status {
    guard(|| {
        let mut entry =
            ExchangeEntry { kind: SHOUTER_RECV, rank: from, tag, ..ExchangeEntry::of(data, count, dtype) };
        // SAFETY: the caller's promise.
        unsafe { exchange(shouter, std::slice::from_mut(&mut entry)) }?;
        // SAFETY: NULL, or room for a message.
        if let Some(message) = unsafe { message.as_mut() } {
            *message = entry.message;
        }
        Ok(())
    })
}

/// Runs `n` sends and receives at once, started in this order, and returns when all have ended; each has its status written. However
/// ranks order theirs, they cannot wait for each other for ever. Returns the first status that is not SHOUTER_OK. Nothing is started, and
/// nothing written, where an argument of one cannot be used. A receive into memory that another entry sends or receives is
/// SHOUTER_ERROR_ARGUMENT of each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_exchange(
    shouter: *const Shouter,
    exchanges: *mut ExchangeEntry,
    n: usize,
) -> Status {
    guard(|| {
        if exchanges.is_null() && n > 0 {
            return Err(null("exchanges"));
        }
        // SAFETY: not NULL; the caller promises n entries that are his alone to touch.
        let entries = if n == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(exchanges, n) } };
        // SAFETY: the caller's promise.
        unsafe { exchange(shouter, entries) }
    })
}

/// Looks for a message from rank `from` (or SHOUTER_ANY_RANK) with this `tag` (or SHOUTER_ANY_TAG) that has come, and that no receive has
/// taken; waits for one for `timeout_ms` milliseconds at most. Writes 1 to `*found` and the message to `*message`, or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_probe(
    shouter: *const Shouter,
    from: i64,
    tag: i64,
    timeout_ms: i64,
    found: *mut i32,
    message: *mut Message,
) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        let group = unsafe { group(shouter) }?;
        if found.is_null() || message.is_null() {
            return Err(null("found, or message,"));
        }
        let timeout = u64::try_from(timeout_ms)
            .map_err(|_| Error::Argument(format!("timeout_ms is {timeout_ms}; use 0 or more")))?;
        let timeout = Duration::from_millis(timeout).min(LONGEST_WAIT);
        let status = group.probe(source(from)?, wanted(tag)?, timeout)?;
        // SAFETY: neither is NULL; the caller promises room.
        unsafe {
            found.write(status.is_some().into());
            if let Some(status) = status {
                message.write(status.into());
            }
        }
        Ok(())
    })
}

impl ExchangeEntry {
    fn of(data: *mut c_void, count: usize, dtype: Dtype) -> Self {
        let message = Message::default();
        Self {
            data,
            count,
            dtype,
            kind: SHOUTER_SEND,
            rank: 0,
            tag: 0,
            layout: ptr::null(),
            status: 0,
            message,
        }
    }
}

impl From<shouter::Status> for Message {
    fn from(status: shouter::Status) -> Self {
        let dtype = u8::from(status.dtype).into();
        Self { rank: status.rank, tag: status.tag, count: status.count, dtype }
    }
}

/// Runs all entries.
///
/// # Safety
/// `shouter` as the module demands; the buffers of the entries are valid for what they are used for.
unsafe fn exchange(shouter: *const Shouter, entries: &mut [ExchangeEntry]) -> Result<(), Error> {
    // SAFETY: the caller's promise.
    let group = unsafe { group(shouter) }?;
    let mut exchanges = Vec::with_capacity(entries.len());
    for &ExchangeEntry { data, count, dtype, kind, rank, tag, layout, .. } in entries.iter() {
        let dtype = types::dtype(dtype)?;
        let exchange = match kind {
            SHOUTER_SEND | SHOUTER_SYNCHRONOUS_SEND => {
                let (to, tag) = (number_of_send(rank, "rank")?, number_of_send(tag, "tag")?);
                // SAFETY: the caller's promise; NULL and alignment are checked there.
                let send = unsafe { Exchange::send_raw(data.cast(), count, dtype, to, tag) }?;
                if kind == SHOUTER_SYNCHRONOUS_SEND { send.synchronous() } else { send }
            }
            SHOUTER_RECV => {
                // SAFETY: as above.
                unsafe { Exchange::receive_raw(data.cast(), count, dtype, source(rank)?, wanted(tag)?) }?
            }
            other => {
                return Err(Error::Argument(format!(
                    "kind is {other}; use 0 for a send, 1 for a receive, 2 for a synchronous send"
                )));
            }
        };
        // SAFETY: the caller's promise.
        exchanges.push(match unsafe { types::layout(layout) }? {
            // SAFETY: as above, of the blocks.
            Some(layout) => unsafe { exchange.strided_raw(layout) }?,
            None => exchange,
        });
    }
    let mut first = Ok(());
    for (entry, ended) in entries.iter_mut().zip(group.batch(&mut exchanges)) {
        match ended {
            Ok(status) => (entry.status, entry.message) = (0, status.into()),
            Err(error) => {
                entry.status = error.code();
                first = first.and(Err(error));
            }
        }
    }
    first
}

/// The receiver of a send, or its tag.
pub(crate) fn number_of_send(number: i64, what: &str) -> Result<u32, Error> {
    u32::try_from(number).map_err(|_| Error::Argument(format!("{number} is no {what} of a send")))
}

pub(crate) fn source(rank: i64) -> Result<Source, Error> {
    match u32::try_from(rank) {
        Ok(rank) => Ok(Source::Rank(rank)),
        Err(_) if rank == SHOUTER_ANY_RANK => Ok(Source::Any),
        Err(_) => Err(Error::Argument(format!("{rank} is no rank; use SHOUTER_ANY_RANK for any"))),
    }
}

pub(crate) fn wanted(tag: i64) -> Result<Tag, Error> {
    match u32::try_from(tag) {
        Ok(tag) => Ok(Tag::Is(tag)),
        Err(_) if tag == SHOUTER_ANY_TAG => Ok(Tag::Any),
        Err(_) => Err(Error::Argument(format!("{tag} is no tag; use SHOUTER_ANY_TAG for any"))),
    }
}
