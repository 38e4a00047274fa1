//! Counts the instructions of a piece of code: a forked child steps this thread through it, one at a time (ptrace(2)).

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};

/// How many instructions of this thread `act` takes, without the kernel's; `None` where the system lets no process trace another.
pub(super) fn count(act: impl FnOnce()) -> Option<u64> {
    let with = steps(act)?;
    Some(with - steps(|| ())?)
}

fn steps(act: impl FnOnce()) -> Option<u64> {
    let (wait_until_allowed, mut allow) = pipe().unwrap();
    let (mut says, say) = pipe().unwrap();
    // SAFETY: no arguments.
    let thread = unsafe { libc::gettid() };
    // SAFETY: the child makes system calls only, whatever other threads of this process may have been doing.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let _ = trace(thread, wait_until_allowed, say);
        // SAFETY: nothing of the parent's is flushed or dropped.
        unsafe { libc::_exit(0) };
    }
    drop((wait_until_allowed, say));
    // Refused where the system has no such restriction.
    // SAFETY: the arguments are numbers.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, child as libc::c_ulong) };
    allow.write_all(&[1]).unwrap();
    let mut number = [0; 8];
    let is_traced = says.read_exact(&mut number).is_ok();
    if is_traced {
        mark();
        act();
        mark();
        says.read_exact(&mut number).unwrap();
    }
    // SAFETY: the child is this thread's, and nothing is written to.
    assert_eq!(unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) }, child);
    is_traced.then(|| u64::from_ne_bytes(number))
}

/// Where the tracer begins, and where it ends.
fn mark() {
    // SAFETY: the tracer takes the signal.
    unsafe { libc::raise(libc::SIGTRAP) };
}

/// Traces a thread from one [`mark`] to the next: says once that it is there, and then the count.
fn trace(thread: i32, mut allowed: PipeReader, mut say: PipeWriter) -> std::io::Result<()> {
    allowed.read_exact(&mut [0])?;
    ptrace(libc::PTRACE_SEIZE, thread, 0)?;
    say.write_all(&[0; 8])?;
    let (mut counted, mut marks) = (0u64, 0);
    loop {
        let mut status = 0;
        // SAFETY: the status is written to.
        if unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) } != thread {
            return Err(std::io::Error::last_os_error());
        }
        if !libc::WIFSTOPPED(status) {
            return Ok(());
        }
        let mut pass_on = 0;
        if libc::WSTOPSIG(status) != libc::SIGTRAP {
            pass_on = libc::WSTOPSIG(status);
        } else if is_mark(thread)? {
            marks += 1;
        } else {
            counted += 1;
        }
        if marks == 2 {
            ptrace(libc::PTRACE_DETACH, thread, 0)?;
            return say.write_all(&counted.to_ne_bytes());
        }
        let go_on = if marks == 0 { libc::PTRACE_CONT } else { libc::PTRACE_SINGLESTEP };
        ptrace(go_on, thread, pass_on)?;
    }
}

/// Whether the thread has sent itself the signal for which it stands still.
fn is_mark(thread: i32) -> std::io::Result<bool> {
    let mut info = core::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let address = info.as_mut_ptr() as usize;
    ptrace_at(libc::PTRACE_GETSIGINFO, thread, address)?;
    // SAFETY: all zeros are a value of it, and the kernel has written another.
    Ok(unsafe { info.assume_init() }.si_code == libc::SI_TKILL)
}

fn ptrace(request: libc::c_uint, thread: i32, data: i32) -> std::io::Result<()> {
    ptrace_at(request, thread, data as usize)
}

fn ptrace_at(request: libc::c_uint, thread: i32, data: usize) -> std::io::Result<()> {
    // SAFETY: the requests that are made here write to a `siginfo_t` at `data`, or nowhere.
    match unsafe { libc::ptrace(request, thread, 0usize, data) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn what_is_done_twice_takes_twice_the_instructions() {
    let add = |times: u64| {
        count(|| {
            for value in 0..times {
                std::hint::black_box(value);
            }
        })
    };
    let (Some(once), Some(twice)) = (add(1000), add(2000)) else {
        println!("skipped: this system lets no process trace another");
        return;
    };
    assert!(once >= 1000 && (once * 19 / 10..once * 21 / 10).contains(&twice), "{once}, then {twice}");
}
