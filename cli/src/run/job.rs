//! A running job: its processes, and its end after a failure or a signal.
//!
//! A job is over when every rank has ended. When one fails, or a signal asks for the end, the others get a grace period
//! to report their own errors, then SIGTERM, and five seconds later SIGKILL. A rank is a process group, which is killed
//! when the rank ends. A process that left its group (for a session of its own, say) becomes a child of this process
//! when its parent has ended, and is ended with the job.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::output::{self, LauncherEvent, Stream, Style};
use super::sys::{self, Signals};
use crate::status::Status;

/// The time between SIGTERM and SIGKILL.
const TERM_TO_KILL: Duration = Duration::from_secs(5);
/// The time limit for the last lines of all processes of a job, after the processes have ended.
const LAST_LINES: Duration = Duration::from_secs(2);

/// The time limit for the end of the ranks' leftover processes, after they are killed.
const LAST_PROCESSES: Duration = Duration::from_secs(2);

/// A look for them may miss a process whose parent ends meanwhile: so there is another one after this time.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The phase of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// The others may still report; SIGTERM follows.
    Grace(Instant),
    /// SIGTERM was sent; SIGKILL follows.
    Terminating(Instant),
    Killed,
}

struct Process {
    rank: u32,
    pid: u32,
    child: Child,
    ended: bool,
    /// Receives a message from each thread that copies its output, when the thread is done; the number of such threads.
    copied: Receiver<()>,
    copies: usize,
}

impl Process {
    /// Waits for the last lines, and subtracts the time from `patience`. A process that left its rank's group may hold
    /// the pipe open for ever.
    fn last_lines(&mut self, patience: &mut Duration) {
        let begin = Instant::now();
        while self.copies > 0 && self.copied.recv_timeout(patience.saturating_sub(begin.elapsed())).is_ok() {
            self.copies -= 1;
        }
        *patience = patience.saturating_sub(begin.elapsed());
    }
}

/// The processes of a job and its phase.
pub(super) struct Job {
    /// The launcher's first process.
    front: u32,
    signals: Signals,
    style: Style,
    grace: Duration,
    phase: Phase,
    processes: Vec<Process>,
    /// The exit status of the rank that failed first.
    failure: Option<Status>,
    patience: Duration,
}

impl Job {
    /// An empty job, which is killed when the process `front` dies. From here on the signals of [`Signals`]
    /// belong to the job.
    pub(super) fn new(front: u32, style: Style, grace: Duration) -> io::Result<Self> {
        Ok(Self {
            front,
            signals: Signals::new()?,
            style,
            grace,
            phase: Phase::Running,
            processes: Vec::new(),
            failure: None,
            patience: LAST_LINES,
        })
    }

    /// Starts one rank.
    pub(super) fn start(&mut self, rank: u32, host: u32, mut command: Command) -> io::Result<()> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        sys::tie_to_parent(&mut command);
        let mut child = command.spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let pid = child.id();
        let (done, copied) = channel();
        self.processes.push(Process { rank, pid, child, ended: false, copied, copies: 0 });
        self.style.event(&LauncherEvent::Started { rank, pid, host });
        let copies = [
            stdout.map(|from| output::forward(rank, Stream::Stdout, self.style, from, done.clone())),
            stderr.map(|from| output::forward(rank, Stream::Stderr, self.style, from, done)),
        ];
        for copy in copies.into_iter().flatten() {
            copy?;
            if let Some(process) = self.processes.last_mut() {
                process.copies += 1;
            }
        }
        Ok(())
    }

    /// Waits until every rank has ended and returns the job's exit status: 0, or that of the rank that failed first.
    pub(super) fn wait(mut self) -> io::Result<Status> {
        while self.processes.iter().any(|process| !process.ended) {
            // It may have died before this process was set to receive a signal for that.
            if self.phase != Phase::Killed && !sys::is_parent(self.front) {
                self.style.note("the launcher was killed: killing every rank");
                self.kill_ranks();
            }
            match self.signals.wait(self.time_to_next_phase())? {
                None | Some(libc::SIGCHLD | sys::FRONT_DIED) => {}
                Some(signal) if sys::FORWARDED.contains(&signal) => self.signal_all(signal),
                Some(signal) => self.asked_to_end(signal),
            }
            self.report_ended()?;
            self.advance();
        }
        end_children(&self.signals);
        if let Some(why) = output::lost() {
            self.style.note(&format!("output of the job could not be written: {why}"));
            self.failure.get_or_insert(Status::FAILED);
        }
        Ok(self.failure.unwrap_or(Status::OK))
    }

    /// Kills all ranks of a job that could not be started completely.
    pub(super) fn kill(&mut self) {
        self.signal_all(libc::SIGKILL);
        for process in &mut self.processes {
            let _ = process.child.wait();
            process.ended = true;
            process.last_lines(&mut self.patience);
        }
        end_children(&self.signals);
    }

    fn kill_ranks(&mut self) {
        self.signal_all(libc::SIGKILL);
        self.phase = Phase::Killed;
    }

    fn time_to_next_phase(&self) -> Option<Duration> {
        match self.phase {
            Phase::Running | Phase::Killed => None,
            Phase::Grace(until) | Phase::Terminating(until) => {
                Some(until.saturating_duration_since(Instant::now()))
            }
        }
    }

    /// Passes a signal from outside on to every rank; kills the job if it is ending already.
    fn asked_to_end(&mut self, signal: i32) {
        let name = sys::signal_name(signal);
        if self.phase == Phase::Running {
            self.style.note(&format!("{name}: passed on to every rank"));
            self.signal_all(signal);
            self.phase = Phase::Grace(Instant::now() + self.grace);
        } else {
            self.style.note(&format!("{name} again: killing what is left"));
            self.kill_ranks();
        }
    }

    fn signal_all(&self, signal: i32) {
        for process in self.processes.iter().filter(|process| !process.ended) {
            sys::signal_group(process.pid, signal);
        }
    }

    /// Reports the ranks that have ended.
    fn report_ended(&mut self) -> io::Result<()> {
        let mut ended = Vec::new();
        for process in self.processes.iter_mut().filter(|process| !process.ended) {
            if let Some(status) = sys::end_of(process.pid)? {
                // Not yet reaped, so the group's id is still valid: kill the processes that the rank left running.
                sys::signal_group(process.pid, libc::SIGKILL);
                ended.push((process.rank, process.pid, status));
                process.ended = true;
                // The rank's output is printed before its end.
                process.last_lines(&mut self.patience);
            }
        }
        // Several may have ended by now. One that a signal killed is the likelier cause of the others' end.
        ended.sort_by_key(|(_, _, status)| status.signal().is_none());
        let left = self.processes.iter().filter(|process| !process.ended).count();
        for (rank, pid, status) in ended {
            self.style.event(&LauncherEvent::Ended {
                rank,
                pid,
                code: status.code(),
                signal: status.signal(),
            });
            if !status.success() {
                self.failed(rank, pid, status, left);
            }
        }
        // Leftover processes that have ended. Ranks are reaped when all have ended, by `end_children`: on a machine whose cores
        // are busy the system can take seconds to reap a process, and the end of the next rank would be reported late.
        while let Some(pid) = sys::ended_child()
            && !self.processes.iter().any(|process| process.pid == pid)
        {
            sys::reap(pid)?;
        }
        Ok(())
    }

    fn failed(&mut self, rank: u32, pid: u32, status: ExitStatus, left: usize) {
        let how = match status.signal() {
            Some(signal) => format!("was killed by signal {signal} ({})", sys::signal_name(signal)),
            None => format!("exited with status {}", status.code().unwrap_or(1)),
        };
        let mut text = format!("rank {rank} (pid {pid}) {how}");
        if self.phase == Phase::Running {
            if left > 0 {
                text += &format!(
                    "; {} {} s to report before {} ended",
                    if left == 1 { "the other one has".into() } else { format!("the other {left} have") },
                    self.grace.as_secs_f64(),
                    if left == 1 { "it is" } else { "they are" },
                );
            }
            self.phase = Phase::Grace(Instant::now() + self.grace);
        }
        self.style.note(&text);
        self.failure.get_or_insert(exit_status(status));
    }

    fn advance(&mut self) {
        let now = Instant::now();
        match self.phase {
            Phase::Grace(until) if now >= until => {
                self.signal_all(libc::SIGTERM);
                self.phase = Phase::Terminating(now + TERM_TO_KILL);
            }
            Phase::Terminating(until) if now >= until => self.kill_ranks(),
            _ => {}
        }
    }
}

/// Kills all children of this process, and those that it adopts by that, until there are none.
pub(super) fn end_children(signals: &Signals) {
    let until = Instant::now() + LAST_PROCESSES;
    loop {
        while let Some(pid) = sys::ended_child() {
            let _ = sys::reap(pid);
        }
        let left = until.saturating_duration_since(Instant::now());
        if !sys::has_children() || left.is_zero() {
            return;
        }
        for child in children() {
            sys::signal(child, libc::SIGKILL);
        }
        // SIGCHLD reports the end of one. A process of another user cannot be killed and may stay.
        if signals.wait(Some(left.min(LOOK_AGAIN))).is_err() {
            return;
        }
    }
}

/// The children of this process, dead ones included, from /proc; without those that it has adopted since the look began.
fn children() -> Vec<u32> {
    let own = std::process::id().to_string();
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        // The name, in parentheses, may hold any character; state and parent follow it.
        stat.is_ok_and(|stat| {
            stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)) == Some(&own)
        })
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_child).collect()
}

/// A process's end as a shell reports it.
pub(super) fn exit_status(status: ExitStatus) -> Status {
    let number = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 1,
    };
    u8::try_from(number).map_or(Status::FAILED, Status)
}
