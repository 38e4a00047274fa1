//! Groups of some ranks: made from a group by its members, used like any group, ended by `shouter_finalize`.
#![allow(unsafe_code, reason = "pointers from C, checked for NULL; the rest is the caller's promise")]

use std::time::Duration;

use shouter::{Error, Group};

use crate::error::{Status, guard, not_null, null};
use crate::handle::{Shouter, group, hand_out};

/// The color of a rank that is in none of the groups that shouter_group_split makes.
pub const SHOUTER_NO_COLOR: i64 = -1;

/// Makes groups of the ranks with the same `color`, from 0 to 2^32 - 1, or SHOUTER_NO_COLOR for a rank that is in none: its `*out` is
/// NULL. Every rank of `shouter` calls it, as it would a collective. In a new group ranks are numbered by `key`, and by their
/// number in `shouter` where keys are the same.
///
/// This and the following functions: a new group is used with every function that takes a shouter_t and ends with its own
/// shouter_finalize. It has its own order of operations, deadlines and end: an error in it leaves the others as they were; a rank that dies
/// ends all. Errors name ranks by their numbers in the group that was called; shouter_job_rank says which those are. A process
/// leaves the job with the last of its groups.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_group_split(
    shouter: *const Shouter,
    color: i64,
    key: i64,
    out: *mut *mut Shouter,
) -> Status {
    // SAFETY: passed on to the caller.
    guard(|| unsafe { split(shouter, color, out, |group, color| group.split(color, key)) })
}

/// The same with a deadline of its own for each of the new groups' operations, in milliseconds and above 0, in place of that of `shouter`. Ranks
/// may have different ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_group_split_within(
    shouter: *const Shouter,
    color: i64,
    key: i64,
    deadline_ms: i64,
    out: *mut *mut Shouter,
) -> Status {
    guard(|| {
        let deadline = deadline_of(deadline_ms, "shouter_group_split")?;
        // SAFETY: passed on to the caller.
        unsafe { split(shouter, color, out, |group, color| group.split_within(color, key, deadline)) }
    })
}

/// Makes a group of the `n` ranks of `shouter` at `ranks`, which are numbered in this order there. Only they call it, each with the same
/// list, and it returns when all have. Groups of the same ranks are made in the same order by all of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_group_create(
    shouter: *const Shouter,
    ranks: *const u32,
    n: usize,
    out: *mut *mut Shouter,
) -> Status {
    // SAFETY: passed on to the caller.
    guard(|| unsafe { make(shouter, (ranks, n), out, Group::group) })
}

/// The same with a deadline of its own for each of the new group's operations, in milliseconds and above 0, in place of that of `shouter`; its
/// making may take the longer of both. Members may have different ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_group_create_within(
    shouter: *const Shouter,
    ranks: *const u32,
    n: usize,
    deadline_ms: i64,
    out: *mut *mut Shouter,
) -> Status {
    guard(|| {
        let deadline = deadline_of(deadline_ms, "shouter_group_create")?;
        let made = |group: &Group, ranks: &[u32]| group.group_within(ranks, deadline);
        // SAFETY: passed on to the caller.
        unsafe { make(shouter, (ranks, n), out, made) }
    })
}

/// A deadline in milliseconds; `other` is the function that takes none.
fn deadline_of(milliseconds: i64, other: &str) -> Result<Duration, Error> {
    let deadline = u64::try_from(milliseconds).ok().filter(|deadline| *deadline > 0);
    deadline.map(Duration::from_millis).ok_or_else(|| {
        Error::Argument(format!("deadline_ms is {milliseconds}; give one above 0, or call {other}"))
    })
}

/// Makes groups of the ranks with the same color.
///
/// # Safety
/// No other thread finalises `shouter` meanwhile; `out` is NULL or valid for a write.
unsafe fn split(
    shouter: *const Shouter,
    color: i64,
    out: *mut *mut Shouter,
    made: impl FnOnce(&Group, Option<u32>) -> Result<Option<Group>, Error>,
) -> Result<(), Error> {
    not_null(out, "out")?;
    // SAFETY: no other thread finalises it meanwhile, as the module `handle` demands of its callers.
    let group = unsafe { group(shouter) }?;
    let color = match color {
        SHOUTER_NO_COLOR => None,
        color => Some(u32::try_from(color).map_err(|_| {
            Error::Argument(format!("color is {color}; use SHOUTER_NO_COLOR, or 0 to {}", u32::MAX))
        })?),
    };
    match made(group, color)? {
        // SAFETY: not NULL; the caller promises room for a pointer.
        Some(made) => unsafe { hand_out(made, out)? },
        // SAFETY: as above.
        None => unsafe { out.write(std::ptr::null_mut()) },
    }
    Ok(())
}

/// Makes a group of the listed ranks.
///
/// # Safety
/// No other thread finalises `shouter` meanwhile; `ranks` is NULL or valid for so many numbers, and `out` NULL or valid for a write.
unsafe fn make(
    shouter: *const Shouter,
    (ranks, n): (*const u32, usize),
    out: *mut *mut Shouter,
    made: impl FnOnce(&Group, &[u32]) -> Result<Group, Error>,
) -> Result<(), Error> {
    if out.is_null() || ranks.is_null() {
        return Err(null("ranks or out"));
    }
    // SAFETY: no other thread finalises it meanwhile, as the module `handle` demands of its callers.
    let group = unsafe { group(shouter) }?;
    if n > group.size() as usize {
        return Err(Error::Argument(format!("n is {n}, and the group has {} ranks", group.size())));
    }
    // SAFETY: not NULL; the caller promises n numbers.
    let made = made(group, unsafe { std::slice::from_raw_parts(ranks, n) })?;
    // SAFETY: not NULL; the caller promises room for a pointer.
    unsafe { hand_out(made, out) }
}

/// Makes a group of the same ranks with the same numbers, whose operations have an order of their own. Every rank calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_group_duplicate(shouter: *const Shouter, out: *mut *mut Shouter) -> Status {
    guard(|| {
        not_null(out, "out")?;
        // SAFETY: no other thread finalises it meanwhile, as the module `handle` demands of its callers.
        let made = unsafe { group(shouter) }?.duplicate()?;
        // SAFETY: not NULL; the caller promises room for a pointer.
        unsafe { hand_out(made, out) }
    })
}

/// Writes to `*out` the number that rank `rank` of this group has in the group of shouter_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_job_rank(shouter: *const Shouter, rank: u32, out: *mut u32) -> Status {
    guard(|| {
        not_null(out, "out")?;
        // SAFETY: no other thread finalises it meanwhile, as the module `handle` demands of its callers.
        let group = unsafe { group(shouter) }?;
        let found = group.job_rank(rank).ok_or_else(|| {
            Error::Argument(format!(
                "rank {rank} is no rank of this group; they are 0 to {}",
                group.size() - 1
            ))
        })?;
        // SAFETY: not NULL; the caller promises room for a number.
        unsafe { out.write(found) };
        Ok(())
    })
}
