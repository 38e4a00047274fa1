//! Elements that do not lie one behind the other: blocks at equal distances, as in a vector type of MPI.
//!
//! Nothing is sent so. A strided buffer is packed into contiguous memory before an operation, and unpacked after it, so schedules,
//! transports and folds know contiguous tensors only, and elements that one side gives in blocks the other may take in other blocks.

use thiserror::Error;

mod sys;

pub use sys::{pack, unpack};

/// `count` blocks of `block` elements each, the first elements of which are `stride` elements apart.
///
/// ```
/// use shouter_reducer::layout::Layout;
///
/// // A column of a matrix of 10 rows and 7 columns.
/// let column = Layout { count: 10, block: 1, stride: 7 };
/// assert_eq!((column.elements(), column.span()), (Ok(10), Ok(64)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Blocks; none is allowed.
    pub count: usize,
    /// Elements of a block, at least 1.
    pub block: usize,
    /// Elements from the beginning of a block to that of the next, at least as many as a block has.
    pub stride: usize,
}

/// Why a [`Layout`] cannot be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// Blocks of nothing.
    #[error("{0} has blocks of no elements; give a block of 1 at least, or no blocks")]
    Block(Layout),
    /// Blocks that overlap.
    #[error("blocks of {0} overlap: its stride is less than its block; give a stride of {block} at least", block = .0.block)]
    Stride(Layout),
    /// More than memory can hold.
    #[error("{0} does not fit in memory")]
    Size(Layout),
    /// More than a buffer has.
    #[error("{layout} ends after {span} elements, and the buffer has {len}")]
    Beyond {
        /// The layout.
        layout: Layout,
        /// Elements from its first to its last.
        span: usize,
        /// Elements of the buffer.
        len: usize,
    },
    /// Another number of elements than the operation has.
    #[error("{layout} has {found} elements, and the operation has {needed} there")]
    Elements {
        /// The layout.
        layout: Layout,
        /// Its elements.
        found: usize,
        /// The elements of the operation.
        needed: usize,
    },
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { count, block, stride } = self;
        write!(f, "a layout of {count} blocks of {block} every {stride} elements")
    }
}

impl Layout {
    /// The layout of so many elements one behind the other.
    pub const fn contiguous(elements: usize) -> Self {
        match elements {
            0 => Self { count: 0, block: 1, stride: 1 },
            _ => Self { count: 1, block: elements, stride: elements },
        }
    }

    /// Elements in all blocks.
    ///
    /// # Errors
    /// [`LayoutError`] for blocks of nothing, blocks that overlap, and more than memory can hold.
    pub fn elements(&self) -> Result<usize, LayoutError> {
        self.span()?;
        Ok(self.count * self.block)
    }

    /// Elements from the first to the last, those between the blocks among them.
    ///
    /// # Errors
    /// As [`elements`](Self::elements).
    pub fn span(&self) -> Result<usize, LayoutError> {
        let Self { count, block, stride } = *self;
        if block == 0 {
            return Err(LayoutError::Block(*self));
        }
        if stride < block {
            return Err(LayoutError::Stride(*self));
        }
        if count == 0 {
            return Ok(0);
        }
        let span = (count - 1).checked_mul(stride).and_then(|before| before.checked_add(block));
        span.filter(|span| isize::try_from(*span).is_ok()).ok_or(LayoutError::Size(*self))
    }

    /// Elements in all blocks, where they are as many as needed, and elements of `size` bytes fit in memory.
    ///
    /// # Errors
    /// As [`elements`](Self::elements), and [`LayoutError::Elements`].
    pub fn check(&self, needed: usize, size: usize) -> Result<(), LayoutError> {
        let bytes = self.span()?.checked_mul(size);
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(LayoutError::Size(*self));
        }
        let found = self.elements()?;
        match found == needed {
            true => Ok(()),
            false => Err(LayoutError::Elements { layout: *self, found, needed }),
        }
    }

    /// Whether a buffer of `len` elements has all of them.
    ///
    /// # Errors
    /// As [`elements`](Self::elements), and [`LayoutError::Beyond`].
    pub fn check_within(&self, len: usize) -> Result<(), LayoutError> {
        let span = self.span()?;
        match span <= len {
            true => Ok(()),
            false => Err(LayoutError::Beyond { layout: *self, span, len }),
        }
    }
}

#[cfg(test)]
mod tests;
