//! Which fragments of a message have come.

use crate::header::Header;

/// A bit for each fragment.
#[derive(Debug, Default)]
pub(crate) struct Fragments {
    /// Bytes of each but the last; 0 before the first has come.
    granule: u32,
    /// Fragments that have come.
    came: u64,
    /// Those of the first 64...
    first: u64,
    /// ...and of all behind them.
    rest: Vec<u64>,
}

/// The result of noting a fragment of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FragmentIs {
    New,
    Repeated,
    Malformed,
}

impl Fragments {
    /// Notes a fragment of a message of `total` bytes.
    pub(crate) fn note(&mut self, header: &Header, payload: &[u8], total: usize) -> FragmentIs {
        let (granule, total) = (u64::from(header.granule), total as u64);
        let differs = self.granule != 0 && self.granule != header.granule;
        let rest = total.checked_sub(header.offset).filter(|rest| *rest > 0 || total == 0);
        let fits = rest.is_some_and(|rest| rest.min(granule) == u64::from(header.len));
        if granule == 0 || differs || !fits || payload.len() != header.len as usize {
            return FragmentIs::Malformed;
        }
        self.granule = header.granule;
        let index = header.offset / granule;
        let (word, bit) = ((index / 64) as usize, 1 << (index % 64));
        if word > self.rest.len() {
            self.rest.resize(word, 0);
        }
        let bits = if word == 0 { &mut self.first } else { &mut self.rest[word - 1] };
        if *bits & bit != 0 {
            return FragmentIs::Repeated;
        }
        *bits |= bit;
        self.came += 1;
        FragmentIs::New
    }

    /// Whether all of a message of `total` bytes have come.
    pub(crate) fn are_complete(&self, total: usize) -> bool {
        self.granule != 0 && self.came == (total as u64).div_ceil(self.granule.into()).max(1)
    }
}
