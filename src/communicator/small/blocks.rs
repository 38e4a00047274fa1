//! Small collectives whose counts not every rank has: ranks tell each other their counts, and send their blocks with them where a cell has
//! room for both. Where all could, that is the whole operation.

use shouter_reducer::grid::Rank;

use super::{Cells, Part, SmallCall};
use crate::channel::shm::fits_cell;
use crate::communicator::Group;
use crate::communicator::element::{Buffer, from_slice};
use crate::communicator::uneven::Told;
use crate::error::Error;
use crate::runtime::Instant;

/// In a rank's first count: its blocks come with its counts.
const CARRIED: u64 = 1 << 63;

/// One rank's part.
pub(in crate::communicator) struct Telling<'a> {
    /// The collective without its counts. The input has this rank's blocks.
    pub(in crate::communicator) part: Part<'a>,
    /// What this rank tells.
    pub(in crate::communicator) words: Vec<u64>,
    /// The blocks are in the host's memory.
    pub(in crate::communicator) on_host: bool,
}

impl Cells {
    /// Tells the counts. `true` if the blocks have been exchanged, too: all ranks see the same.
    pub(in crate::communicator) fn tell(
        &self,
        group: &Group,
        begin: Option<Instant>,
        telling: Telling<'_>,
        step: u64,
    ) -> Result<(Told, bool), Error> {
        let Telling { part, mut words, on_host } = telling;
        let carries = on_host && fits_cell(size_of_val(&*words), part.input.len());
        if let (Some(first), true) = (words.first_mut(), carries) {
            *first |= CARRIED;
        }
        self.run_as(group, begin, &part, step, |call| self.exchange_counts(call, &part, &words, carries))
    }

    #[allow(unsafe_code)]
    fn exchange_counts(
        &self,
        call: &SmallCall<'_>,
        part: &Part<'_>,
        words: &[u64],
        carries: bool,
    ) -> Result<(Told, bool), Error> {
        let Part { problem, input, output, .. } = part;
        let (ranks, bytes) = (self.segment.ranks(), size_of_val(words));
        let mine = self.segment.cell(self.segment.local(), call.number);
        let carried = if carries { *input } else { Buffer::empty() };
        // The output may lie where the input does: its slice is made when this one is of no more use.
        if !mine.publish_both(call.tag, from_slice(words).as_slice(), carried.as_slice()) {
            return Err(Error::Internal(format!("{bytes} and {} bytes do not fit a cell", carried.len())));
        }
        call.note_start();
        let (mut all, mut are_carried) = (Vec::with_capacity(words.len() * ranks as usize), true);
        for local in 0..ranks {
            // SAFETY: used within this call, and the next operation begins after that: the state is locked.
            let told = unsafe { self.input(call, local, bytes) }?.as_chunks().0;
            let first = all.len();
            all.extend(told.iter().map(|word| u64::from_ne_bytes(*word)));
            are_carried &= all[first] & CARRIED != 0;
            all[first] &= !CARRIED;
        }
        self.waited_for(call, &(0..ranks));
        let told = Told::new(problem.shape.collective, problem.root, words.len(), all);
        if !are_carried || !told.agree() {
            return Ok((told, false));
        }
        let (me, end) = (problem.rank, Rank(ranks));
        let (output, mut at) = (output.as_mut_slice(), 0);
        for from in (0..ranks).map(Rank).filter(|&from| told.given(from, me) > 0) {
            let len =
                |count: u64| usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(problem.elem());
            let cell = self.segment.cell(from.0, call.number);
            // SAFETY: as above.
            let blocks = unsafe { cell.read_behind(bytes, len(told.given_before(from, end))) };
            let (start, block) = (len(told.given_before(from, me)), len(told.given(from, me)));
            let block = blocks.and_then(|blocks| blocks.get(start..)?.get(..block));
            let into = block.and_then(|block| output.get_mut(at..)?.get_mut(..block.len()));
            let (Some(block), Some(into)) = (block, into) else {
                return Err(Error::Internal(format!("a block of {from} is not where its counts say")));
            };
            into.copy_from_slice(block);
            at += block.len();
        }
        Ok((told, true))
    }
}
