//! Open files for sockets. Connections of the kernel's are made at their first use, long after the join, and one that cannot be opened then looks
//! like a peer that does not answer. So the limit is looked at before, while all ranks can be told.

use std::fmt;
use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that the program and this library may open besides, at least: dumps, timelines, a socket that gives way to another one.
const SPARE: u64 = 32;

/// A process may not open as many files as it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooFew {
    wanted: u64,
    open: u64,
    limit: u64,
}

impl fmt::Display for TooFew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wanted, open, limit } = self;
        write!(
            f,
            "{wanted} sockets are needed for the connections with the other leaders, {open} files are open, {SPARE} are to be left over, and \
             this process may open {limit}: raise RLIMIT_NOFILE (ulimit -n, and its hard limit) to {} at least, or lower channel_num, the \
             connections to each other leader",
            open.saturating_add(wanted + SPARE)
        )
    }
}

/// Makes sure that this process may open `wanted` files more, by raising its soft limit where the hard one lets it.
///
/// # Errors
/// [`TooFew`] where that is not enough.
pub(crate) fn reserve(wanted: u64) -> Result<(), TooFew> {
    if wanted == 0 {
        return Ok(());
    }
    let limit = getrlimit(Resource::Nofile);
    let open = match fs::read_dir("/proc/self/fd") {
        Ok(open) => open.count().saturating_sub(1) as u64,
        // The limit is reached.
        Err(why) if why.raw_os_error() == Some(libc::EMFILE) => limit.current.unwrap_or(u64::MAX),
        // Where /proc is not mounted, nothing but the standard streams is known of.
        Err(_) => 3,
    };
    let Some(raised) = raised(wanted, open, limit)? else { return Ok(()) };
    match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit }) {
        Ok(()) => {
            tracing::info!(
                before = limit.current,
                now = raised,
                "the limit of open files (ulimit -n) was raised for sockets"
            );
            Ok(())
        }
        Err(_) => Err(TooFew { wanted, open, limit: limit.current.unwrap_or(u64::MAX) }),
    }
}

/// The soft limit that is needed, where the present one is too low: what the program had for files of its own stays its own.
fn raised(wanted: u64, open: u64, limit: Rlimit) -> Result<Option<u64>, TooFew> {
    let needed = open.saturating_add(wanted + SPARE);
    let Some(current) = limit.current.filter(|current| *current < needed) else { return Ok(None) };
    let most = limit.maximum.unwrap_or(u64::MAX);
    if most < needed {
        return Err(TooFew { wanted, open, limit: most });
    }
    Ok(Some(most.min(needed.max(current.saturating_add(wanted)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_as_far_as_is_needed_and_never_lowered() {
        let of = |current, maximum| raised(100, 10, Rlimit { current, maximum });
        let refused = |limit| Err(TooFew { wanted: 100, open: 10, limit });
        assert_eq!(of(Some(142), Some(142)), Ok(None));
        assert_eq!(of(None, None), Ok(None));
        // The program keeps the 131 that it had, where that can be.
        assert_eq!(of(Some(141), Some(1000)), Ok(Some(241)));
        assert_eq!(of(Some(141), None), Ok(Some(241)));
        assert_eq!(of(Some(141), Some(200)), Ok(Some(200)));
        assert_eq!(of(Some(20), Some(200)), Ok(Some(142)));
        assert_eq!(of(Some(20), Some(142)), Ok(Some(142)));
        assert_eq!(of(Some(20), Some(141)), refused(141));
        assert_eq!(of(Some(141), Some(141)), refused(141));
        let text = refused(141).map(|_: Option<u64>| ()).unwrap_err().to_string();
        for part in ["100 sockets", "10 files are open", "may open 141", "to 142 at least", "channel_num"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
