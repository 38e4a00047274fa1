//! Small collectives whose counts not every rank has: ranks tell each other their counts, and send their blocks with them where a cell has
//! room for both. Where all could, that is the whole operation.

use shouter_reducer::grid::Rank;

use super::{Cells, Part, SmallCall};
use crate::channel::shm::fits_cell;
use crate::communicator::Group;
use crate::communicator::element::from_slice;
use crate::communicator::uneven::Told;
use crate::error::Error;
use crate::runtime::Instant;

/// In a rank's first count: its blocks come with its counts.
const CARRIED: u64 = 1 << 63;

/// One rank's part.
pub(in crate::communicator) struct Telling {
    /// The collective without its counts. The input has this rank's blocks.
    pub(in crate::communicator) part: Part,
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
        begin: Instant,
        telling: Telling,
        step: u64,
    ) -> Result<(Told, bool), Error> {
        let Telling { part, mut words, on_host } = telling;
        let input = if on_host { part.input.as_slice() } else { &[] };
        let carried = if fits_cell(size_of_val(&*words), input.len()) { input } else { &[] };
        if on_host && carried.len() == input.len() {
            words[0] |= CARRIED;
        }
        self.run_as(group, begin, &part, step, |call| self.exchange_counts(call, &words, carried))
    }

    #[allow(unsafe_code)]
    fn exchange_counts(
        &self,
        call: &SmallCall<'_>,
        words: &[u64],
        carried: &[u8],
    ) -> Result<(Told, bool), Error> {
        let Part { problem, output, .. } = call.part;
        let (ranks, bytes) = (self.segment.ranks(), size_of_val(words));
        let mine = self.segment.cell(self.segment.local(), call.number);
        if !mine.publish_both(call.tag, from_slice(words).as_slice(), carried) {
            return Err(Error::Internal(format!("{bytes} and {} bytes do not fit a cell", carried.len())));
        }
        let (mut all, mut are_carried) = (Vec::with_capacity(words.len() * ranks as usize), true);
        for local in 0..ranks {
            // SAFETY: used within this call, and the next operation begins after that: the state is locked.
            let told = unsafe { self.wait(call, local, bytes) }?.as_chunks().0;
            let first = all.len();
            all.extend(told.iter().map(|word| u64::from_ne_bytes(*word)));
            are_carried &= all[first] & CARRIED != 0;
            all[first] &= !CARRIED;
        }
        let told = Told::new(problem.shape.collective, problem.root, all);
        if !are_carried || !told.agree() {
            return Ok((told, false));
        }
        let (output, mut at) = (output.as_mut_slice(), 0);
        for from in (0..ranks).map(Rank) {
            let len =
                |count: u64| usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(problem.elem());
            let cell = self.segment.cell(from.0, call.number);
            // SAFETY: as above.
            let blocks = unsafe { cell.read_behind(bytes, len(told.given_by(from))) };
            let (start, block) =
                (len(told.given_before(from, problem.rank)), len(told.given(from, problem.rank)));
            let block = blocks.and_then(|blocks| blocks.get(start..)?.get(..block));
            let (Some(block), Some(into)) =
                (block, block.and_then(|block| output.get_mut(at..)?.get_mut(..block.len())))
            else {
                return Err(Error::Internal(format!("a block of {from} is not where its counts say")));
            };
            into.copy_from_slice(block);
            at += block.len();
        }
        Ok((told, true))
    }
}
