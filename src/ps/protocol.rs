//! What clients ask of servers, and what those answer.
//!
//! Requests and answers are the data plane: one of each at a time between a client and a server. Membership and the end are the control
//! plane: messages in a group of their own, which a server hears of while requests wait.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use shouter_reducer::dtype::DType;

use super::Error;
use super::message::{Arrived, Home, INLINE, LONGEST_INLINE, Layout, Meta, Slab};
use super::optimizer::Optimizer;
use crate::communicator::Group;
use crate::wire;

/// The tags of requests and of answers in the group of the data plane.
pub(super) const REQUEST: u32 = 0;
pub(super) const ANSWER: u32 = 1;
/// What the tag of elements has more than that of the header before them.
pub(super) const ELEMENTS: u32 = 2;
/// The tag in the group of the control plane.
pub(super) const CONTROL: u32 = 0;

/// How often a server that waits for a message looks whether it has to end.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// The most bytes of a message of the control plane.
const LONGEST_CONTROL: u64 = 64 << 10;

/// What a client asks of a server. The header's meta has the parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Request {
    /// Sets the parameter to the message's elements.
    Set(Optimizer),
    /// Gives a gradient.
    Push(Seen),
    /// Asks for the parameter of this generation.
    Pull(u64),
    /// Asks for its type and shape, its generation, and the number of the trainer's pushes.
    Describe,
    /// Waits for all trainers.
    Wait,
    /// Forgets all parameters.
    Reset,
    /// Writes a checkpoint to a folder, under a number.
    Save(String, u64),
    /// Reads one without taking it.
    Check(String),
    /// Takes the one that was read.
    Restore(String),
}

/// A parameter as a client knows it on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Another one each time that it is set or restored.
    pub(super) generation: u64,
    /// The trainer's pushes to it so far.
    pub(super) pushes: u64,
}

/// What a server answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Done,
    /// The parameter's rows are the message's elements.
    Rows,
    /// The parameter's type and shape are in the meta.
    Described(Seen),
    /// The number of a checkpoint.
    Checked(u64),
    Refused(Error),
}

/// Messages of the control plane.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Control {
    /// The client leaves, in order; the server answers with the same.
    Leave,
    /// The client is there no more, and has not left in order.
    GiveUp,
    /// All servers end.
    ShutDown,
    /// Asks which trainers take part.
    Members,
    /// Those by their places in the plan.
    MembersAre(#[serde(deserialize_with = "wire::at_most::<65536, _, _>")] Vec<bool>),
}

/// The meta of a message without elements.
pub(super) fn bare(name: &str, step: u64) -> Meta {
    Meta { name: name.to_owned(), dtype: DType::U8, shape: vec![0], layout: Layout::Dense, step }
}

/// The time until then.
pub(super) fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// The next message of a rank, with a text of what is wrong with it if it has no meaning; `None` if none comes within `timeout`. It is there
/// until `end` at the latest. Elements that are missing come next ([`elements`]).
pub(super) fn next<B: for<'a> Deserialize<'a>>(
    group: &Group,
    (from, tag): (u32, u32),
    timeout: Duration,
    end: Instant,
) -> Result<Option<Result<Arrived<B>, String>>, crate::Error> {
    let Some(status) = group.probe(from, tag, timeout)? else { return Ok(None) };
    if status.bytes() > LONGEST_INLINE as u64 {
        return Ok(Some(Err(format!("a message of {} bytes; {LONGEST_INLINE} can be", status.bytes()))));
    }
    let mut slab = Slab::new(&None, status.bytes() as usize)?;
    group.receive_within(slab.bytes_mut(), from, tag, left(end))?;
    Ok(Some(Arrived::of_client_or_server(slab)))
}

/// Receives the elements behind a message with this tag, as many as its header says, until `end` at the latest; the text is of what is wrong
/// with them.
pub(super) fn elements(
    group: &Group,
    (from, tag): (u32, u32),
    into: &mut [u8],
    end: Instant,
) -> Result<Result<(), String>, crate::Error> {
    let status = group.receive_within(into, from, tag + ELEMENTS, left(end))?;
    Ok(match status.bytes() == into.len() as u64 {
        true => Ok(()),
        false => Err(format!("{} bytes of elements where the header says {}", status.bytes(), into.len())),
    })
}

/// Memory for a message, or for its elements: that of `spare`, if there is a use for it. Few bytes have memory of their own, which costs less
/// than to keep some.
pub(super) fn memory(
    home: &Home,
    spare: impl FnOnce() -> Option<Slab>,
    len: usize,
) -> Result<Slab, crate::Error> {
    if len <= INLINE {
        return Slab::new(&None, len);
    }
    match spare() {
        Some(spare) => spare.resized(home, len),
        None => Slab::new(home, len),
    }
}

pub(super) fn send_control(
    group: &Group,
    to: u32,
    control: &Control,
    end: Instant,
) -> Result<(), crate::Error> {
    let bytes = wire::encode(control).map_err(|why| crate::Error::Internal(why.to_string()))?;
    group.send_within(&bytes, to, CONTROL, left(end))
}

/// The next message of the control plane from a rank, if one comes within `timeout`, and is there until `end`; `Err` in it is one without
/// meaning.
pub(super) fn next_control(
    group: &Group,
    from: u32,
    timeout: Duration,
    end: Instant,
) -> Result<Option<Result<Control, String>>, crate::Error> {
    let Some(status) = group.probe(from, CONTROL, timeout)? else { return Ok(None) };
    if status.bytes() > LONGEST_CONTROL {
        return Ok(Some(Err(format!("{} bytes of control", status.bytes()))));
    }
    let mut bytes = vec![0u8; status.bytes() as usize];
    group.receive_within(&mut bytes, from, CONTROL, left(end))?;
    Ok(Some(wire::decode(&bytes).map_err(|why| why.to_string())))
}
