//! Collectives and messages of elements that lie in blocks at equal distances.
#![allow(unsafe_code)]

use shouter_reducer::dtype::ReduceOp;
use shouter_reducer::header::Collective;
use shouter_reducer::layout::Layout;

use super::Group;
use super::element::Element;
use super::staging::Staging;
use crate::error::Error;

/// Elements of a slice that lie in blocks at equal distances, such as a column of a matrix; or all of a slice, which converts into it.
///
/// ```
/// use shouter::{Layout, Strided};
///
/// let matrix = [1f32, 2.0, 3.0, 4.0, 5.0, 6.0];
/// let second_column = Strided::new(&matrix[1..], Layout { count: 3, block: 1, stride: 2 })?;
/// assert_eq!(second_column.len(), 3);
/// assert!(Strided::new(&matrix, Layout { count: 4, block: 1, stride: 2 }).is_err());
/// # Ok::<(), shouter::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a, T: Element> {
    data: &'a [T],
    layout: Option<Layout>,
    count: usize,
}

/// As [`Strided`], to be written. The gaps between the blocks stay as they are.
#[derive(Debug)]
pub struct StridedMut<'a, T: Element> {
    data: &'a mut [T],
    layout: Option<Layout>,
    count: usize,
}

/// The number of elements, where the slice has all of them.
fn count_of(layout: &Layout, len: usize) -> Result<usize, Error> {
    let count = layout.check_within(len).and_then(|()| layout.elements());
    count.map_err(|why| Error::Argument(why.to_string()))
}

impl<'a, T: Element> Strided<'a, T> {
    /// The elements of `layout`, of which the first is the slice's first.
    ///
    /// # Errors
    /// [`Error::Argument`] for blocks of nothing, blocks that overlap, and a layout that goes beyond the slice.
    pub fn new(data: &'a [T], layout: Layout) -> Result<Self, Error> {
        Ok(Self { count: count_of(&layout, data.len())?, data, layout: Some(layout) })
    }

    /// Elements, without the gaps between them.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.count
    }

    /// The first one's address, and how they lie.
    pub(super) fn parts(&self) -> (*const u8, Layout) {
        (self.data.as_ptr().cast(), self.layout.unwrap_or(Layout::contiguous(self.count)))
    }
}

impl<'a, T: Element> StridedMut<'a, T> {
    /// As [`Strided::new`].
    ///
    /// # Errors
    /// As [`Strided::new`].
    pub fn new(data: &'a mut [T], layout: Layout) -> Result<Self, Error> {
        Ok(Self { count: count_of(&layout, data.len())?, data, layout: Some(layout) })
    }

    /// Elements, without the gaps between them.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.count
    }

    /// The first one's address, and how they lie.
    pub(super) fn parts(&mut self) -> (*mut u8, Layout) {
        (self.data.as_mut_ptr().cast(), self.layout.unwrap_or(Layout::contiguous(self.count)))
    }
}

impl<'a, T: Element> From<&'a [T]> for Strided<'a, T> {
    fn from(data: &'a [T]) -> Self {
        Self { count: data.len(), data, layout: None }
    }
}

impl<'a, T: Element> From<&'a mut [T]> for StridedMut<'a, T> {
    fn from(data: &'a mut [T]) -> Self {
        Self { count: data.len(), data, layout: None }
    }
}

impl Group {
    /// As [`broadcast`](Self::broadcast), of elements in blocks: ranks may have them in other blocks, or one behind the other, as long as
    /// they are as many of one type.
    ///
    /// This and the other collectives of elements in blocks stage these, which takes as much memory again; an operation
    /// that fails leaves such an output as it was.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// let group = shouter::init(config)?;
    /// use shouter::{Layout, StridedMut};
    ///
    /// let mut matrix = [1f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    /// let column = StridedMut::new(&mut matrix[1..], Layout { count: 3, block: 1, stride: 2 })?;
    /// group.broadcast_strided(column, 0)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    pub fn broadcast_strided<'a, T: Element>(
        &self,
        data: impl Into<StridedMut<'a, T>>,
        root: u32,
    ) -> Result<(), Error> {
        self.strided(Collective::Broadcast, None::<Strided<'_, T>>, data.into(), root)
    }

    /// As [`all_gather`](Self::all_gather), of elements in blocks: those of rank *r* are the *r*-th part of the output's.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// # let group = shouter::init(config)?;
    /// use shouter::{Layout, Strided, StridedMut};
    ///
    /// let column = Layout { count: 3, block: 1, stride: 2 };
    /// let matrix = [1f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    /// let (size, mut back) = (group.size() as usize, matrix);
    /// let mut rows = vec![0f32; 3 * size];
    /// group.all_gather_strided(Strided::new(&matrix, column)?, &mut rows[..])?;
    /// group.gather_strided(Strided::new(&matrix, column)?, &mut rows[..], 0)?;
    /// group.scatter_strided(&rows[..], StridedMut::new(&mut back, column)?, 0)?;
    /// let mut transposed = vec![0f32; 3 * size];
    /// group.all_to_all_strided(&rows[..], &mut transposed[..])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather).
    pub fn all_gather_strided<'a, T: Element>(
        &self,
        input: impl Into<Strided<'a, T>>,
        output: impl Into<StridedMut<'a, T>>,
    ) -> Result<(), Error> {
        self.strided(Collective::AllGather, Some(input.into()), output.into(), 0)
    }

    /// As [`gather`](Self::gather), of elements in blocks.
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    pub fn gather_strided<'a, T: Element>(
        &self,
        input: impl Into<Strided<'a, T>>,
        output: impl Into<StridedMut<'a, T>>,
        root: u32,
    ) -> Result<(), Error> {
        self.strided(Collective::Gather, Some(input.into()), output.into(), root)
    }

    /// As [`scatter`](Self::scatter), of elements in blocks.
    ///
    /// # Errors
    /// As [`scatter`](Self::scatter).
    pub fn scatter_strided<'a, T: Element>(
        &self,
        input: impl Into<Strided<'a, T>>,
        output: impl Into<StridedMut<'a, T>>,
        root: u32,
    ) -> Result<(), Error> {
        self.strided(Collective::Scatter, Some(input.into()), output.into(), root)
    }

    /// As [`all_to_all`](Self::all_to_all), of elements in blocks.
    ///
    /// # Errors
    /// As [`all_to_all`](Self::all_to_all).
    pub fn all_to_all_strided<'a, T: Element>(
        &self,
        input: impl Into<Strided<'a, T>>,
        output: impl Into<StridedMut<'a, T>>,
    ) -> Result<(), Error> {
        self.strided(Collective::AllToAll, Some(input.into()), output.into(), 0)
    }

    /// Runs a collective on memory that has as many elements as it needs, or where this rank has none of them any number.
    fn strided<T: Element>(
        &self,
        collective: Collective,
        input: Option<Strided<'_, T>>,
        output: StridedMut<'_, T>,
        root: u32,
    ) -> Result<(), Error> {
        let given = input.map_or(0, |input| input.count);
        let count = self.count_of(collective, root, (given, output.count))?;
        let staging = Staging {
            input: input.and_then(|input| input.layout),
            output: output.layout,
            ..Staging::default()
        };
        let from = input.map_or(std::ptr::null(), |input| input.data.as_ptr().cast());
        let into = output.data.as_mut_ptr().cast();
        // SAFETY: slices that are borrowed for the call and have what the layouts say; they are as long as the collective needs them.
        unsafe { self.typed_staged::<T>(collective, (from, into), count, root, &staging) }
    }

    /// Runs a collective of typed elements, sums where it reduces.
    ///
    /// # Safety
    /// As for [`run_staged`](Self::run_staged).
    pub(super) unsafe fn typed_staged<T: Element>(
        &self,
        collective: Collective,
        at: (*const u8, *mut u8),
        count: usize,
        root: u32,
        staging: &Staging,
    ) -> Result<(), Error> {
        let shape = self.shape(collective, count, T::DTYPE, ReduceOp::Sum)?;
        let problem = self.tables.problem(&shape, self.root(collective, root)?);
        // SAFETY: passed on to the caller.
        unsafe { self.run_problem_staged(problem, at, staging) }
    }
}
