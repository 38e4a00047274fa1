//! Sums with a factor applied first.
#![allow(unsafe_code)]

use shouter_reducer::header::Collective;

use super::Group;
use super::element::{Buffer, Element, from_slice, with_bytes};
use super::staging::Staging;
use super::uneven::RankBlocks;
use crate::error::Error;

/// Sums in which this rank's contribution is multiplied by a factor first, from [`Group::premul`].
#[derive(Clone, Copy, Debug)]
#[must_use = "its methods run the collectives"]
pub struct Premul<'g> {
    group: &'g Group,
    factor: f64,
}

impl Group {
    /// Sums in which this rank's contribution is multiplied by `factor` first; each rank gives its own, or none.
    ///
    /// [`Staging::factor`](field@Staging::factor) says how products are rounded. The contribution is copied: that takes as much memory again.
    /// To start such sums without waiting there are [`start_staged`](Self::start_staged) and [`push_staged`](Self::push_staged).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// let group = shouter::init(config)?;
    /// // A mean over samples, of which each rank has another number.
    /// let (mine, all) = (32.0, 32.0);
    /// let mut gradient = [1f32, 2.0, 3.0];
    /// group.premul(mine / all).all_reduce(&mut gradient)?;
    /// assert_eq!(gradient, [1.0, 2.0, 3.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn premul(&self, factor: f64) -> Premul<'_> {
        Premul { group: self, factor }
    }
}

impl Premul<'_> {
    /// As [`Group::all_reduce`], of the sum.
    ///
    /// # Errors
    /// [`Error::Argument`] for integers and truth values, which have no factors; else as [`Group::all_reduce`].
    pub fn all_reduce<T: Element>(&self, data: &mut [T]) -> Result<(), Error> {
        let count = data.len();
        let data = with_bytes(data, |data| data);
        self.run::<T>(Collective::AllReduce, (data, data), count, 0)
    }

    /// As [`Group::all_reduce_into`], of the sum.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce) and [`Group::all_reduce_into`].
    pub fn all_reduce_into<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.slices(Collective::AllReduce, input, output)
    }

    /// As [`Group::reduce`], of the sum.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce) and [`Group::reduce`].
    pub fn reduce<T: Element>(&self, data: &mut [T], root: u32) -> Result<(), Error> {
        let count = data.len();
        let data = with_bytes(data, |data| data);
        let output = if root == self.group.rank() { data } else { Buffer::empty() };
        self.run::<T>(Collective::Reduce, (data, output), count, root)
    }

    /// As [`Group::reduce_scatter`], of the sum.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce) and [`Group::reduce_scatter`].
    pub fn reduce_scatter<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.slices(Collective::ReduceScatter, input, output)
    }

    /// As [`Group::reduce_scatter_v`], of the sum.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce) and [`Group::reduce_scatter_v`].
    pub fn reduce_scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
    ) -> Result<(), Error> {
        let taken = [output.len()];
        let blocks = RankBlocks::new(Collective::ReduceScatterV, counts, &taken, T::DTYPE);
        let buffers = (from_slice(input), with_bytes(output, |data| data));
        self.group.uneven_staged(&blocks, buffers, &Staging::factor(self.factor))
    }

    /// As [`Group::scan`], of the sum.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce) and [`Group::scan`].
    pub fn scan<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.slices(Collective::Scan, input, output)
    }

    /// As [`Group::exscan`], of the sum.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce) and [`Group::exscan`].
    pub fn exscan<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.slices(Collective::ExScan, input, output)
    }

    fn slices<T: Element>(&self, collective: Collective, input: &[T], output: &mut [T]) -> Result<(), Error> {
        let count = self.group.count_of(collective, 0, (input.len(), output.len()))?;
        self.run::<T>(collective, (from_slice(input), with_bytes(output, |data| data)), count, 0)
    }

    /// Runs a collective on buffers that are as long as it needs, or longer where this rank has no output.
    fn run<T: Element>(
        &self,
        collective: Collective,
        (input, output): (Buffer, Buffer),
        count: usize,
        root: u32,
    ) -> Result<(), Error> {
        let at = (input.as_ptr(), output.as_ptr().cast_mut());
        let staging = Staging::factor(self.factor);
        // SAFETY: slices that are borrowed for the call, as long as the collective needs them; an output was borrowed to be written.
        unsafe { self.group.typed_staged::<T>(collective, at, count, root, &staging) }
    }
}
