//! Messages between two ranks.

use std::sync::Arc;

use pyo3::prelude::*;
use shouter::{DType, Source, Status, Tag, Transfer};

use crate::buffer::Buffer;
use crate::error::raised;
use crate::sys;
use crate::wait::SLICE;

/// Who has sent, the tag, and the number of elements.
pub(crate) type Received = (u32, u32, u64);

/// A send or a receive of an array's elements.
pub(crate) struct Message {
    pub(crate) buffer: Buffer,
    pub(crate) way: Way,
}

/// Where a message goes, or where it may come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    To { rank: u32, tag: u32, synchronous: bool },
    From { source: Source, tag: Tag },
}

impl Message {
    pub(crate) fn send(
        array: &Bound<'_, PyAny>,
        rank: u32,
        tag: u32,
        dtype: Option<DType>,
        synchronous: bool,
    ) -> PyResult<Self> {
        Ok(Self { buffer: Buffer::of(array, "the array", dtype)?, way: Way::To { rank, tag, synchronous } })
    }

    pub(crate) fn receive(
        array: &Bound<'_, PyAny>,
        source: Option<u32>,
        tag: Option<u32>,
        dtype: Option<DType>,
    ) -> PyResult<Self> {
        let buffer = Buffer::of(array, "the array", dtype)?.writable(array.py(), "the array")?;
        let (source, tag) = (source.map_or(Source::Any, Source::Rank), tag.map_or(Tag::Any, Tag::Is));
        Ok(Self { buffer, way: Way::From { source, tag } })
    }
}

/// Starts these in their order, and waits for all; returns what the first says.
pub(crate) fn exchange(
    py: Python<'_>,
    group: &Arc<shouter::Group>,
    messages: Vec<Message>,
) -> PyResult<Received> {
    let started: Result<Vec<_>, _> =
        py.detach(|| messages.iter().map(|message| sys::start_message(group, message)).collect());
    let mut transfers: Vec<Transfer<'_>> = started.map_err(|error| raised(py, &error))?;
    let mut ended = Vec::with_capacity(transfers.len());
    for at in 0..transfers.len() {
        match finish(py, &mut transfers[at]) {
            Ok(outcome) => ended.push(outcome),
            Err(interrupt) => {
                // What cannot be cancelled goes on, and its memory stays for ever.
                for transfer in transfers.drain(at..) {
                    if !transfer.cancel().unwrap_or(false) {
                        std::mem::forget(transfer);
                    }
                }
                std::mem::forget(messages);
                return Err(interrupt);
            }
        }
    }
    let mut first = None;
    for outcome in ended {
        let status = outcome.map_err(|error| raised(py, &error))?;
        first.get_or_insert((status.rank, status.tag, status.count));
    }
    Ok(first.unwrap_or_default())
}

/// Waits for the end of one; an error is what a signal's handler has raised.
fn finish(py: Python<'_>, transfer: &mut Transfer<'_>) -> PyResult<Result<Status, shouter::Error>> {
    loop {
        match py.detach(|| transfer.wait(Some(SLICE))) {
            Ok(Some(status)) => return Ok(Ok(status)),
            Ok(None) => py.check_signals()?,
            Err(error) => return Ok(Err(error)),
        }
    }
}
