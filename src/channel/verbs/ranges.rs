//! The ranges of this process's memory that the device may read: found by address.

/// A registered range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    base: usize,
    len: usize,
    key: usize,
}

impl Range {
    /// Where `len` bytes at `address` lie in it.
    #[inline]
    fn offset(&self, address: usize, len: usize) -> Option<usize> {
        let offset = address.checked_sub(self.base)?;
        (offset.checked_add(len)? <= self.len).then_some(offset)
    }
}

/// Ranges that do not overlap, sorted by address. The one that was found last is looked at first.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    all: Vec<Range>,
    last: usize,
}

impl Ranges {
    /// The key of the range that holds `len` bytes at `address`, and where in it they are.
    #[inline]
    pub(super) fn find(&mut self, address: usize, len: usize) -> Option<(usize, usize)> {
        if let Some(range) = self.all.get(self.last)
            && let Some(offset) = range.offset(address, len)
        {
            return Some((range.key, offset));
        }
        let at = self.all.partition_point(|range| range.base <= address).checked_sub(1)?;
        let range = self.all.get(at)?;
        let offset = range.offset(address, len)?;
        self.last = at;
        Some((range.key, offset))
    }

    /// Whether a range of `len` bytes at `base` would overlap none.
    pub(super) fn is_free(&self, base: usize, len: usize) -> bool {
        let at = self.all.partition_point(|range| range.base < base);
        let before = at.checked_sub(1).and_then(|before| self.all.get(before));
        before.is_none_or(|range| base - range.base >= range.len)
            && self.all.get(at).is_none_or(|range| range.base - base >= len)
    }

    /// Adds a range that overlaps none.
    pub(super) fn insert(&mut self, base: usize, len: usize, key: usize) {
        let at = self.all.partition_point(|range| range.base < base);
        self.all.insert(at, Range { base, len, key });
    }

    /// Takes the range that begins at `base` out; returns its key.
    pub(super) fn remove(&mut self, base: usize) -> Option<usize> {
        let at = self.all.binary_search_by_key(&base, |range| range.base).ok()?;
        Some(self.all.remove(at).key)
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests;
