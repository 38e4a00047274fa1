//! The progress of an operation's steps: the edges that each waits for, which can run, and which fragments have arrived.

use crate::header::Header;

/// One step's counters.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::executor) struct StepState {
    /// Edges (and a credit) that it still waits for.
    pub(in crate::executor) pending: u32,
    /// Bytes sent or received.
    pub(in crate::executor) progress: u32,
    /// Bytes of a fragment; 0 before the first.
    pub(in crate::executor) granule: u32,
    /// A send's fragments that are not released; a receive's first word in `bits`.
    pub(in crate::executor) aux: u32,
    /// A send needs no credit, or it has come.
    pub(in crate::executor) credited: bool,
    /// A send is posted, or any other step done.
    pub(in crate::executor) done: bool,
}

/// How a receiving step classifies a fragment.
pub(in crate::executor) enum FragmentState {
    /// It has been used already.
    Duplicate,
    /// The step is not ready.
    Early,
    /// It is not cut as the message's other fragments are.
    Malformed,
    /// It is to be used, and noted then with [`Steps::received`].
    New(NewFragment),
}

/// A fragment that has not been used yet.
#[derive(Clone, Copy)]
pub(in crate::executor) struct NewFragment {
    /// It is the message's first.
    pub(in crate::executor) is_first: bool,
    /// Its word and bit, if the message has several.
    bit: Option<(usize, u64)>,
}

/// All steps of an operation. Its memory goes from one operation to another ([`Steps::take`]).
#[derive(Debug, Default)]
pub(in crate::executor) struct Steps {
    states: Vec<StepState>,
    /// Steps that can run, as a bit per step.
    ready: Vec<u64>,
    /// All these bits lie in `ready[first..=last]`.
    first: usize,
    last: usize,
    /// A bit per fragment of the messages that have several.
    bits: Vec<u64>,
    /// Steps to do before the operation is complete.
    left: u32,
}

impl Steps {
    /// No steps are chosen yet: that is the one thing to do.
    pub(super) fn start(&mut self) {
        self.reset(&[]);
        self.left = 1;
    }

    /// Resets to as many steps as there are counts, each with the number of edges that it waits for.
    pub(super) fn reset(&mut self, indegree: &[u32]) {
        self.states.clear();
        self.states.extend(indegree.iter().map(|&pending| StepState { pending, ..StepState::default() }));
        self.ready.clear();
        self.ready.resize(indegree.len().div_ceil(64), 0);
        (self.first, self.last) = (usize::MAX, 0);
        self.bits.clear();
        self.left = indegree.len() as u32;
    }

    /// The memory of all of it, for another operation.
    pub(super) fn take(&mut self) -> Self {
        core::mem::take(self)
    }

    /// Whether all steps are done.
    #[inline]
    pub(in crate::executor) fn are_done(&self) -> bool {
        self.left == 0
    }

    /// Of all steps, in their order.
    pub(in crate::executor) fn iter(&self) -> impl Iterator<Item = &StepState> {
        self.states.iter()
    }

    /// Of one step.
    #[inline]
    pub(in crate::executor) fn of(&self, step: u32) -> Option<&StepState> {
        self.states.get(step as usize)
    }

    /// A send goes without credit, or waits for it; returns for how much it waits.
    pub(super) fn set_credit(&mut self, step: u32, credited: bool) -> u32 {
        let state = &mut self.states[step as usize];
        state.credited = credited;
        state.pending += u32::from(!credited);
        state.pending
    }

    /// A send's credit has come; whether it can run, `None` if it was not missing.
    pub(super) fn credit(&mut self, step: u32) -> Option<bool> {
        let state = self.states.get_mut(step as usize).filter(|state| !state.credited)?;
        state.credited = true;
        state.pending = state.pending.saturating_sub(1);
        let ready = state.pending == 0;
        if ready {
            self.make_ready(step);
        }
        Some(ready)
    }

    /// One edge less to wait for; how many are left.
    #[inline]
    pub(super) fn count_down(&mut self, step: u32) -> u32 {
        let state = &mut self.states[step as usize];
        state.pending = state.pending.saturating_sub(1);
        state.pending
    }

    /// The step can run.
    #[inline]
    pub(super) fn make_ready(&mut self, step: u32) {
        let word = step as usize / 64;
        self.ready[word] |= 1 << (step % 64);
        self.first = self.first.min(word);
        self.last = self.last.max(word);
    }

    /// Whether a step may be able to run.
    #[inline]
    pub(in crate::executor) fn are_ready(&self) -> bool {
        self.first != usize::MAX
    }

    /// The words of `ready` to scan, first and last. A word with steps that cannot run yet is [put back](Self::put_back); steps that
    /// become ready meanwhile widen the range again.
    #[inline]
    pub(in crate::executor) fn take_range(&mut self) -> (usize, usize) {
        let range = (self.first, self.last);
        (self.first, self.last) = (usize::MAX, 0);
        range
    }

    /// The next step of a word that can run and was not tried.
    #[inline]
    pub(in crate::executor) fn next_ready(&self, word: usize, tried: &mut u64) -> Option<u32> {
        let bits = self.ready.get(word)? & !*tried;
        if bits == 0 {
            return None;
        }
        let bit = bits.trailing_zeros();
        *tried |= 1 << bit;
        Some(word as u32 * 64 + bit)
    }

    /// A word of `ready` was scanned; returns the last one to scan, which may have grown.
    #[inline]
    pub(in crate::executor) fn put_back(&mut self, word: usize, last: usize) -> usize {
        if self.ready.get(word).is_some_and(|bits| *bits != 0) {
            self.first = self.first.min(word);
            self.last = self.last.max(word);
        }
        last.max(self.last)
    }

    /// The step has run, or waits for something that makes it ready again.
    #[inline]
    pub(in crate::executor) fn unready(&mut self, step: u32) {
        self.ready[step as usize / 64] &= !(1 << (step % 64));
    }

    /// A step other than a send is done.
    #[inline]
    pub(super) fn done(&mut self, step: u32) {
        self.states[step as usize].done = true;
        self.left -= 1;
    }

    /// Of a send in fragments of `granule` bytes, so many more and their bytes are posted.
    #[inline]
    pub(super) fn sent(&mut self, step: u32, granule: u32, (bytes, fragments): (u32, u32)) {
        let state = &mut self.states[step as usize];
        state.granule = granule;
        state.progress += bytes;
        state.aux += fragments;
    }

    /// A send is posted completely. It is done if its release is not awaited.
    #[inline]
    pub(super) fn posted(&mut self, step: u32, waits: bool) {
        self.states[step as usize].done = true;
        self.left -= u32::from(!waits);
    }

    /// One fragment of a send is released; whether it was the last, `None` if none is awaited.
    #[inline]
    pub(super) fn released(&mut self, step: u32) -> Option<bool> {
        let state = self.states.get_mut(step as usize).filter(|state| state.aux > 0)?;
        state.aux -= 1;
        Some(state.done && state.aux == 0)
    }

    /// A send that had to be released is.
    #[inline]
    pub(super) fn is_released(&mut self) {
        self.left -= 1;
    }

    /// Looks at a fragment of a message of `total` bytes, which lies inside it.
    #[inline(always)]
    pub(in crate::executor) fn expects(&mut self, step: u32, total: usize, header: &Header) -> FragmentState {
        let state = &mut self.states[step as usize];
        if state.done {
            return FragmentState::Duplicate;
        }
        if state.pending > 0 {
            return FragmentState::Early;
        }
        let is_first = state.granule == 0;
        if is_first {
            state.granule = header.granule;
            if (header.granule as usize) < total {
                state.aux = self.bits.len() as u32;
                make_room(&mut self.bits, total.div_ceil(header.granule as usize));
            }
        } else if state.granule != header.granule {
            return FragmentState::Malformed;
        }
        if header.granule as usize >= total {
            return FragmentState::New(NewFragment { is_first, bit: None });
        }
        let index = (header.offset / u64::from(header.granule)) as usize;
        let (word, bit) = (state.aux as usize + index / 64, 1 << (index % 64));
        if self.bits[word] & bit != 0 {
            return FragmentState::Duplicate;
        }
        FragmentState::New(NewFragment { is_first, bit: Some((word, bit)) })
    }

    /// A fragment of `len` bytes was used; whether its message of `total` bytes is complete.
    #[inline]
    pub(in crate::executor) fn received(
        &mut self,
        step: u32,
        new: NewFragment,
        len: u32,
        total: usize,
    ) -> bool {
        if let Some((word, bit)) = new.bit {
            self.bits[word] |= bit;
        }
        let state = &mut self.states[step as usize];
        state.progress += len;
        state.progress as usize == total
    }
}

/// A bit more for each fragment.
#[cold]
fn make_room(bits: &mut Vec<u64>, fragments: usize) {
    bits.resize(bits.len() + fragments.div_ceil(64), 0);
}
