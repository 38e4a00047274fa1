//! Started collectives with a count for each rank, and started messages.
#![allow(unsafe_code, reason = "pointers from C, checked for NULL; the rest is the caller's promise")]

use std::ffi::c_int;

use shouter::{CollectiveCall, Error, Exchange, Group, Staging, UnevenCall};

use super::{Operation, SHOUTER_OPERATION_SENDRECV, Work, live};
use crate::error::{SHOUTER_OPERATION_RECV, SHOUTER_OPERATION_SEND, Status, guard, not_null};
use crate::p2p::{Message, number_of_send, source, wanted};
use crate::types;
use crate::uneven::Counts;

/// A collective with its counts.
pub(crate) struct Counted {
    call: CollectiveCall,
    given: Counts,
    taken: Counts,
}

impl Counted {
    /// The collective of a descriptor.
    pub(crate) fn of(operation: &Operation, call: &CollectiveCall) -> Self {
        let Operation { input_counts, output_counts, count, .. } = *operation;
        let side = |is_of_all: bool, own, other| match (is_of_all, call.collective.has_root()) {
            (true, false) => Counts::Each(own),
            (true, true) => Counts::OnRoot(own),
            (false, false) => Counts::Mine(other),
            (false, true) => Counts::Own(count),
        };
        let (given, taken) = call.collective.sides_of_all();
        Self {
            call: *call,
            given: side(given, input_counts, output_counts),
            taken: side(taken, output_counts, input_counts),
        }
    }

    /// # Safety
    /// The arrays at the counts' addresses have a count for each rank.
    unsafe fn call(&self, group: &Group) -> Result<UnevenCall<'_>, Error> {
        let CollectiveCall { collective, input, output, dtype, op, root, .. } = self.call;
        // SAFETY: passed on to the caller.
        let (given, taken) =
            unsafe { (self.given.as_slice(group, root)?, self.taken.as_slice(group, root)?) };
        Ok(UnevenCall { collective, input, output, given, taken, dtype, op, root })
    }

    /// # Safety
    /// As [`Group::start_uneven`] demands, and there is a count for each rank.
    pub(crate) unsafe fn start(&self, group: &Group, staging: &Staging) -> Result<shouter::Work, Error> {
        // SAFETY: passed on to the caller.
        unsafe { group.start_uneven_staged(&self.call(group)?, staging) }
    }

    /// # Safety
    /// As [`Group::run_uneven`] demands, and there is a count for each rank.
    pub(crate) unsafe fn run(&self, group: &Group, staging: &Staging) -> Result<(), Error> {
        // SAFETY: passed on to the caller.
        unsafe { group.run_uneven(&self.call(group)?, staging) }
    }
}

/// Whether the operation is a message.
pub(crate) fn is_message(kind: i32) -> bool {
    matches!(kind, SHOUTER_OPERATION_SEND | SHOUTER_OPERATION_RECV | SHOUTER_OPERATION_SENDRECV)
}

/// Starts the message or messages of a descriptor, also of GPU memory with a stream.
///
/// # Safety
/// As [`Group::start_message`] demands.
pub(crate) unsafe fn start_message(
    group: &Group,
    operation: &Operation,
    stream: Option<u64>,
) -> Result<shouter::Work, Error> {
    let Operation { kind, input, output, count, room, to, from, tag, factor, .. } = *operation;
    if !factor.is_null() {
        return Err(Error::Argument("a message has no factor; sums have one".into()));
    }
    let dtype = types::dtype(operation.dtype)?;
    // SAFETY: the caller's promise, of as many elements; NULL and alignment are checked there.
    unsafe {
        let placed = |exchange: Exchange<'static>, layout| {
            let exchange = match stream {
                Some(stream) => exchange.on_cuda(stream),
                None => exchange,
            };
            match types::layout(layout)? {
                Some(layout) => exchange.strided_raw(layout),
                None => Ok(exchange),
            }
        };
        let receive = |room| {
            let receive = Exchange::receive_raw(output.cast(), room, dtype, source(from)?, wanted(tag)?)?;
            placed(receive, operation.output_layout)
        };
        let send = || {
            let send = Exchange::send_raw(input.cast(), count, dtype, to, number_of_send(tag, "tag")?)?;
            placed(send, operation.input_layout)
        };
        match kind {
            SHOUTER_OPERATION_SEND => group.start_message(send()?),
            SHOUTER_OPERATION_RECV => group.start_message(receive(count)?),
            _ => group.start_messages(&[receive(room)?, send()?]),
        }
    }
}

/// What a started SHOUTER_OPERATION_RECV or SENDRECV has received, from whom and with which tag, once it has ended well; of a SEND, what has been
/// sent to whom. SHOUTER_ERROR_ARGUMENT before that, and for other kinds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_work_message(work: *const Work, message: *mut Message) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        let work = unsafe { live(work) }?;
        not_null(message, "message")?;
        let Some(first) = work.statuses().first().copied() else {
            return Err(Error::Argument(
                "there is no message: it has not ended well, or is a collective".into(),
            ));
        };
        // SAFETY: not NULL; the caller promises room for a message.
        unsafe { message.write(first.into()) };
        Ok(())
    })
}

/// Cancels a started receive that no message was matched with: it ends with SHOUTER_ERROR_ARGUMENT. `*cancelled` is 1 then, and 0 where it
/// was too late, and for other kinds, which go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_cancel(work: *const Work, cancelled: *mut c_int) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        let work = unsafe { live(work) }?;
        not_null(cancelled, "cancelled")?;
        let done = work.cancel()?;
        // SAFETY: not NULL; the caller promises room for a number.
        unsafe { cancelled.write(done.into()) };
        Ok(())
    })
}
