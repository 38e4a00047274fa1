//! PMI-1: lines over a socket that the launcher has opened (MPICH's Hydra, and Slurm's pmi2 plugin).
//!
//! ```text
//!   cmd=init pmi_version=1 pmi_subversion=1         cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0
//!   cmd=get_maxes                                   cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024
//!   cmd=get_my_kvsname                              cmd=my_kvsname kvsname=NAME
//!   cmd=put kvsname=NAME key=KEY value=VALUE        cmd=put_result rc=0 msg=success
//!   cmd=barrier_in                                  cmd=barrier_out
//!   cmd=get kvsname=NAME key=KEY                    cmd=get_result rc=0 msg=success value=VALUE
//!   cmd=finalize                                    cmd=finalize_ack
//! ```
//!
//! Values are words of limited length: bytes travel as hexadecimal digits, in parts.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::StoreError;

/// The longest line that an answer may be, in bytes.
const LONGEST_LINE: u64 = 64 << 10;
/// Digits of a value that are put at once; the count of the parts and a point come on top.
const LEAST_ROOM: usize = 64;
/// The most parts of a value.
const MAX_PARTS: usize = 1 << 16;
/// The time for an answer that needs no other rank.
const ANSWER: Duration = Duration::from_secs(10);

/// The conversation with the launcher.
pub(super) struct Client {
    socket: BufReader<UnixStream>,
    space: String,
    /// The longest value, in characters.
    room: usize,
}

impl Client {
    /// Begins the conversation.
    pub(super) fn open(socket: UnixStream) -> Result<Self, StoreError> {
        let mut client = Self { socket: BufReader::new(socket), space: String::new(), room: 0 };
        let begun = client.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init", ANSWER)?;
        succeeded(&begun)?;
        let maxes = client.ask("cmd=get_maxes", "maxes", ANSWER)?;
        let room: usize = field(&maxes, "vallen_max").ok_or("it names no longest value")?.parse()?;
        client.room = room.saturating_sub(16).max(LEAST_ROOM) & !1;
        let named = client.ask("cmd=get_my_kvsname", "my_kvsname", ANSWER)?;
        client.space = field(&named, "kvsname").ok_or("it names no space")?.to_owned();
        Ok(client)
    }

    pub(super) fn put(&mut self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let digits = hex::encode(value);
        let parts = digits.len().div_ceil(self.room).max(1);
        for part in 0..parts {
            let (from, to) = (part * self.room, digits.len().min((part + 1) * self.room));
            let line = format!(
                "cmd=put kvsname={} key={key}.{part} value={parts}.{}",
                self.space,
                &digits[from..to]
            );
            succeeded(&self.ask(&line, "put_result", ANSWER)?)?;
        }
        Ok(())
    }

    pub(super) fn get(&mut self, key: &str) -> Result<Vec<u8>, StoreError> {
        let mut bytes = Vec::new();
        let (mut part, mut parts) = (0, 1);
        while part < parts {
            let line = format!("cmd=get kvsname={} key={key}.{part}", self.space);
            let answer = self.ask(&line, "get_result", ANSWER)?;
            succeeded(&answer)?;
            let (count, digits) = field(&answer, "value")
                .and_then(|value| value.split_once('.'))
                .ok_or("the value has no form")?;
            parts = count.parse()?;
            let decoded = hex::decode(digits).ok().filter(|_| parts <= MAX_PARTS);
            bytes.extend(decoded.ok_or("the value has no form")?);
            part += 1;
        }
        Ok(bytes)
    }

    pub(super) fn fence(&mut self, timeout: Duration) -> Result<(), StoreError> {
        self.ask("cmd=barrier_in", "barrier_out", timeout).map(drop)
    }

    /// Says that this process ends well. The launcher ends the job else.
    pub(super) fn finish(mut self) -> Result<(), StoreError> {
        self.ask("cmd=finalize", "finalize_ack", ANSWER).map(drop)
    }

    fn ask(&mut self, line: &str, expected: &str, timeout: Duration) -> Result<String, StoreError> {
        let until = Instant::now() + timeout;
        let socket = self.socket.get_mut();
        socket.set_write_timeout(Some(ANSWER))?;
        socket.write_all(format!("{line}\n").as_bytes())?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\n") {
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            self.socket.get_mut().set_read_timeout(Some(left))?;
            let room = LONGEST_LINE.saturating_sub(answer.len() as u64);
            match self.socket.by_ref().take(room).read_until(b'\n', &mut answer) {
                Ok(0) => return Err("the launcher has closed its connection, or says too much".into()),
                Ok(_) => {}
                Err(why) if why.kind() == std::io::ErrorKind::Interrupted => {}
                Err(why)
                    if matches!(
                        why.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) =>
                {
                    if Instant::now() >= until {
                        return Err(format!("no answer to {line:?} within {timeout:?}").into());
                    }
                }
                Err(why) => return Err(why.into()),
            }
        }
        let answer = String::from_utf8(answer)?;
        match field(&answer, "cmd") {
            Some(cmd) if cmd == expected => Ok(answer),
            _ => Err(format!("the launcher answers {:?} to {line:?}", answer.trim()).into()),
        }
    }
}

fn succeeded(answer: &str) -> Result<(), StoreError> {
    match field(answer, "rc") {
        Some("0") => Ok(()),
        _ => Err(format!("the launcher says {:?}", answer.trim()).into()),
    }
}

/// The value of `name=value` among words.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests;
