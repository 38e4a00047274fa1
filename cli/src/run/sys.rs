//! The launcher's system calls that the standard library lacks. Signal masks, signalfd, fork and the id of a child
//! found by waitid go through libc, because rustix has no safe form of them.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    self, Pid, Signal, WaitId, WaitIdOptions, WaitOptions, set_child_subreaper,
    set_parent_process_death_signal,
};

/// The signal that the kernel sends to the process that runs the job when the process in front of it dies. Linux sends it for no cause of
/// its own (signal(7)), and no program is known to expect it.
pub(super) const FRONT_DIED: i32 = libc::SIGSTKFLT;

/// The signals that ask for the end of the job. SIGHUP does not where this program was started so that it ignores it, as by nohup(1).
const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The signals that are the ranks' matter alone.
pub(super) const FORWARDED: [i32; 5] =
    [libc::SIGUSR1, libc::SIGUSR2, libc::SIGQUIT, libc::SIGCONT, libc::SIGWINCH];

/// The name of the process that runs the job, for `ps` and `top`. It differs from the program's, so that `killall` by
/// that name spares the process that ends the ranks.
const KEEPER: &CStr = c"rank-keeper";

/// Signals that arrive as data on a descriptor.
pub(super) struct Signals(OwnedFd);

impl Signals {
    /// Blocks [`ENDING`], [`FORWARDED`], SIGCHLD and [`FRONT_DIED`] in this thread and in all threads and processes started
    /// after, and receives this process's here.
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: `set` is initialised by sigemptyset before it is read, and all pointers live through the calls.
        unsafe {
            let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            let ending = ENDING.into_iter().filter(|signal| *signal != libc::SIGHUP || !is_ignored(*signal));
            for signal in ending.chain(FORWARDED).chain([libc::SIGCHLD, FRONT_DIED]) {
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
        // A timeout that is too long for the system means none.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) => self.read(),
            Err(Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn read(&self) -> io::Result<Option<i32>> {
        // signalfd writes whole records, each of which begins with the signal's number as an u32 (signalfd(2)).
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.0, &mut record) {
            Ok(_) => Ok(record.first_chunk().map(|number| i32::from_ne_bytes(*number))),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether this process ignores a signal.
fn is_ignored(signal: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: `action` is a writable sigaction, zeroed, and nothing is set.
    unsafe {
        let asked = libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        asked == 0 && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// One of the launcher's two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Half {
    /// The process that was started.
    Front {
        /// The process that runs the job.
        keeper: u32,
    },
    /// The process that runs the job.
    Keeper {
        /// The process that was started.
        front: u32,
    },
}

/// Forks this process, which must have one thread. Both processes adopt the orphans among their descendants.
///
/// Signals of a terminal, or of a shell to the whole job, reach the keeper only through the front; the death of the
/// front is a signal to it ([`FRONT_DIED`]). With a controlling terminal the keeper gets a session of its own. Without
/// one a process group is enough, and the job stays in the launcher's scheduling autogroup: jobs that share cores from
/// sessions of their own can keep each other from running for seconds (docs/decisions.md).
pub(super) fn split() -> io::Result<Half> {
    let front = std::process::id();
    set_child_subreaper(Some(process::getpid()))?;
    // SAFETY: after fork the child is a copy with the same single thread, so that no lock is held in it by a thread that it
    // does not have.
    match unsafe { libc::fork() } {
        0 => {}
        keeper => {
            let keeper = u32::try_from(keeper).map_err(|_| io::Error::last_os_error())?;
            return Ok(Half::Front { keeper });
        }
    }
    if has_terminal() {
        process::setsid()?;
    } else {
        process::setpgid(None, None)?;
    }
    set_child_subreaper(Some(process::getpid()))?;
    set_parent_process_death_signal(Signal::from_named_raw(FRONT_DIED))?;
    // Only for tools that list processes: failure is ignored.
    let _ = rustix::thread::set_name(KEEPER);
    Ok(Half::Keeper { front })
}

/// Whether this process has a controlling terminal: `/dev/tty` can be opened only then.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Whether `pid` is this process's parent, and therefore alive.
pub(super) fn is_parent(pid: u32) -> bool {
    std::os::unix::process::parent_id() == pid
}

/// Waits for a child if it has ended.
pub(super) fn reap(pid: u32) -> io::Result<Option<ExitStatus>> {
    let pid = pid_of(pid).ok_or(Errno::CHILD)?;
    let ended = process::waitpid(Some(pid), WaitOptions::NOHANG)?;
    Ok(ended.map(|(_, status)| ExitStatus::from_raw(status.as_raw())))
}

/// The process with this number; `None` for 0, which has another meaning in system calls.
fn pid_of(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// A child that has ended and is not reaped yet.
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

/// Whether this process has children, dead ones included. The descendants of a child that has ended are its own before that one can be reaped.
pub(super) fn has_children() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(process::waitid(WaitId::All, options), Err(Errno::CHILD))
}

/// Sends a signal to a child. One that has ended and is not reaped yet is not affected.
pub(super) fn signal(child: u32, signal: i32) {
    if let (Some(pid), Some(signal)) =
        (pid_of(child).filter(|pid| !pid.is_init()), Signal::from_named_raw(signal))
    {
        // An error means that the child is gone.
        let _ = process::kill_process(pid, signal);
    }
}

/// Makes the child die with this process, and start in its own process group with no signal blocked.
///
/// The kernel ties the death signal to the *thread* that forks, so spawn from one that lives as long as the process.
pub(super) fn tie_to_parent(command: &mut Command) {
    let parent = process::getpid();
    let setup = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if process::getppid() != Some(parent) {
            // The launcher died before the line above took effect.
            return Err(Errno::CHILD.into());
        }
        // SAFETY: sigemptyset and sigprocmask are async-signal-safe and `set` is initialised before use.
        unsafe {
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

/// How the child has ended, if it has, without reaping it: its pid and its group's id stay valid until it is reaped.
pub(super) fn end_of(pid: u32) -> io::Result<Option<ExitStatus>> {
    let pid = pid_of(pid).ok_or(Errno::CHILD)?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let Some(ended) = process::waitid(WaitId::Pid(pid), options)? else { return Ok(None) };
    // As wait(2) encodes it: the status in the second byte, or the signal in the first.
    let status = match (ended.exit_status(), ended.terminating_signal()) {
        (Some(status), _) => (status & 0xff) << 8,
        (None, Some(signal)) => signal & 0x7f,
        (None, None) => return Ok(None),
    };
    Ok(Some(ExitStatus::from_raw(status)))
}

/// Sends a signal to a process group. A group that is gone is not an error.
pub(super) fn signal_group(leader: u32, signal: i32) {
    if let (Some(pid), Some(signal)) =
        (pid_of(leader).filter(|pid| !pid.is_init()), Signal::from_named_raw(signal))
    {
        let _ = process::kill_process_group(pid, signal);
    }
}

/// The effective user.
pub(super) fn user() -> u32 {
    process::geteuid().as_raw()
}

/// The signal's usual name.
pub(super) fn signal_name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("a signal")
}
