//! The system calls of the launcher that the standard library does not offer.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// What the kernel sends to the process that runs the job when the one in front of it has died.
pub(super) const FRONT_DIED: i32 = libc::SIGUSR1;

/// The name of the process that runs the job, for `ps` and `top`: other than the program's, so that who kills by that
/// (`killall`) leaves a process that ends the ranks.
const KEEPER: &CStr = c"rank-keeper";

/// Signals that arrive as data on a descriptor.
pub(super) struct Signals(OwnedFd);

impl Signals {
    /// Blocks SIGINT, SIGTERM, SIGHUP, SIGCHLD and [`FRONT_DIED`] in this thread and in all threads and processes started
    /// after, and receives this process's here.
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: `set` is initialised by sigemptyset before it is read, and all pointers live through the calls.
        unsafe {
            let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGCHLD, FRONT_DIED] {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            let fd = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// Waits for the next signal, for at most `timeout` (for ever with `None`). `None`: the time passed.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<i32>> {
        if let Some(signal) = self.read()? {
            return Ok(Some(signal));
        }
        let millis = timeout.map_or(-1, |t| t.as_millis().saturating_add(1).try_into().unwrap_or(i32::MAX));
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` is one valid pollfd that lives through the call.
        if unsafe { libc::poll(&mut poll, 1, millis) } < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(None) } else { Err(error) };
        }
        self.read()
    }

    fn read(&self) -> io::Result<Option<i32>> {
        let mut info = std::mem::MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is `size` bytes long and writable; signalfd writes whole records only.
        let read = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if read == size as isize {
            // SAFETY: a whole record was written.
            return Ok(Some(unsafe { info.assume_init() }.ssi_signo as i32));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        }
    }
}

/// Which of the launcher's two processes this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Half {
    /// The one that was started.
    Front {
        /// The process that runs the job.
        keeper: u32,
    },
    /// The one that runs the job.
    Keeper {
        /// The process that was started.
        front: u32,
    },
}

/// Makes two processes of this one, which must have one thread. Both take in the orphans among their descendants.
///
/// The keeper has a session of its own, so that neither a terminal's signals nor a shell's to the whole job reach it but
/// through the front; the death of the front is a signal to it ([`FRONT_DIED`]).
pub(super) fn split() -> io::Result<Half> {
    let front = std::process::id();
    // SAFETY: prctl with these arguments touches no memory. After fork the child is a copy with the same single thread,
    // so that no lock is held in it by a thread that it does not have. The name is a terminated string.
    unsafe {
        let one: libc::c_ulong = 1;
        if libc::prctl(libc::PR_SET_CHILD_SUBREAPER, one) != 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::fork() {
            0 => {}
            keeper => {
                return match u32::try_from(keeper) {
                    Ok(keeper) => Ok(Half::Front { keeper }),
                    Err(_) => Err(io::Error::last_os_error()),
                };
            }
        }
        if libc::setsid() < 0
            || libc::prctl(libc::PR_SET_CHILD_SUBREAPER, one) != 0
            || libc::prctl(libc::PR_SET_PDEATHSIG, FRONT_DIED) != 0
        {
            return Err(io::Error::last_os_error());
        }
        // A wish: only tools look at it.
        libc::prctl(libc::PR_SET_NAME, KEEPER.as_ptr());
    }
    Ok(Half::Keeper { front })
}

/// Whether a process is this one's parent, and therefore alive.
pub(super) fn is_parent(pid: u32) -> bool {
    std::os::unix::process::parent_id() == pid
}

/// Waits for a child if it has ended.
pub(super) fn reap(pid: u32) -> io::Result<Option<ExitStatus>> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let mut status = 0;
    // SAFETY: `status` is valid for the write.
    match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
        0 => Ok(None),
        ended if ended == pid => Ok(Some(ExitStatus::from_raw(status))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A child that has ended and is not waited for yet.
pub(super) fn ended_child() -> Option<u32> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is a writable siginfo_t; zeroed, so that si_pid is 0 when no child has ended.
    unsafe {
        let asked = libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), flags);
        let pid = info.assume_init().si_pid();
        u32::try_from(pid).ok().filter(|pid| asked == 0 && *pid != 0)
    }
}

/// Sends a signal to a child. One that has ended and is not waited for yet is not harmed.
pub(super) fn signal(child: u32, signal: i32) {
    if let Ok(pid) = libc::pid_t::try_from(child)
        && pid > 1
    {
        // SAFETY: kill touches no memory of ours.
        unsafe { libc::kill(pid, signal) };
    }
}

/// Makes the child die with this process and start with no signal blocked, in a process group of its own.
///
/// The kernel ties the death signal to the *thread* that forks, so spawn from one that lives as long as the process.
pub(super) fn tie_to_parent(command: &mut Command) {
    let parent = std::process::id() as libc::pid_t;
    let setup = move || {
        // SAFETY: prctl, getppid, sigemptyset and sigprocmask are async-signal-safe and `set` is initialised before use.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            if libc::getppid() != parent {
                // The launcher died before the line above took effect.
                return Err(io::Error::from_raw_os_error(libc::ECHILD));
            }
            let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut());
        }
        Ok(())
    };
    command.process_group(0);
    // SAFETY: the closure runs between fork and exec; it allocates nothing, takes no lock and only makes
    // async-signal-safe calls.
    unsafe { command.pre_exec(setup) };
}

/// Whether the child has ended, without reaping it: its pid and its group's id stay taken until it is.
pub(super) fn has_ended(pid: u32) -> io::Result<bool> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is a writable siginfo_t; zeroed, so that si_pid is 0 when no child changed state.
    unsafe {
        if libc::waitid(libc::P_PID, pid, info.as_mut_ptr(), flags) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(info.assume_init().si_pid() != 0)
    }
}

/// Sends a signal to a process group. A group that is gone is not an error.
pub(super) fn signal_group(leader: u32, signal: i32) {
    if let Ok(pid) = libc::pid_t::try_from(leader)
        && pid > 1
    {
        // SAFETY: kill touches no memory of ours; a negative pid names the group that the child leads.
        unsafe { libc::kill(-pid, signal) };
    }
}

/// The effective user.
pub(super) fn user() -> u32 {
    // SAFETY: geteuid always succeeds and touches no memory.
    unsafe { libc::geteuid() }
}

/// The signal's usual name.
pub(super) fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGSYS => "SIGSYS",
        _ => "a signal",
    }
}
