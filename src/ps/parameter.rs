//! A server's part of one parameter: its rows, the optimizer's state, and how gradients change them.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use shouter_reducer::dtype::DType;

use super::Error;
use super::message::{Arrived, Head, Home, Layout, Meta, Slab, zeroes};
use super::optimizer::{Optimizer, Real};
use super::protocol::{Reply, Request, memory};
use super::shard::Shard;

/// A gradient as it came: all rows of the shard, or some.
pub(super) type Gradient = Arrived<Request>;

/// Elements that are folded and applied at a time.
const RUN: usize = 4096;

/// How often an update that finds no memory for a copy looks whether pulls still send the rows.
const LOOK_FOR_PULLS: Duration = Duration::from_millis(1);

/// Rows, state, and updates so far.
pub(super) struct Parameter {
    pub(super) optimizer: Optimizer,
    pub(super) shard: Arc<Shard>,
    /// The rows. Where a pull still sends them, the next update is made in a copy.
    values: Arc<Slab>,
    home: Home,
    pub(super) states: Vec<Vec<u64>>,
    pub(super) version: u64,
    meta: Meta,
}

impl Parameter {
    /// `value` are the rows of the shard.
    pub(super) fn new(
        home: &Home,
        meta: Meta,
        optimizer: Optimizer,
        shard: Arc<Shard>,
        value: &[u8],
    ) -> Result<Self, Error> {
        let meta = Meta { layout: Layout::Shard(shard.len() as u64), step: 0, ..meta };
        let mut values = memory(home, || None, value.len())?;
        values.bytes_mut().copy_from_slice(value);
        let words = value.len().div_ceil(8);
        let states = (0..optimizer.states()).map(|_| zeroes(words)).collect::<Result<_, _>>()?;
        let (values, home) = (Arc::new(values), home.clone());
        Ok(Self { optimizer, shard, values, home, states, version: 0, meta })
    }

    pub(super) fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The answer to a pull: its header, and the rows.
    pub(super) fn message(&self) -> (Head<Reply>, Arc<Slab>) {
        let meta = Meta { step: self.version, ..self.meta.clone() };
        (Head { meta, body: Reply::Rows }, self.values.clone())
    }

    pub(super) fn value(&self) -> &[u8] {
        self.values.bytes()
    }

    /// The bytes of a tensor of state.
    pub(super) fn state(&self, at: usize) -> &[u8] {
        &bytemuck::cast_slice(&self.states[at])[..self.value().len()]
    }

    /// Goes on from this state, after so many updates.
    pub(super) fn resume(&mut self, states: &[Vec<u8>], version: u64) {
        for (state, bytes) in self.states.iter_mut().zip(states) {
            bytemuck::cast_slice_mut::<u64, u8>(state)[..bytes.len()].copy_from_slice(bytes);
        }
        self.version = version;
    }

    /// Sees to it that no pull sends the rows: in a copy, or, where there is no memory for one, when those that do have ended. No other one takes
    /// them meanwhile, for that has to lock the parameter.
    fn make_alone(&mut self, patience: Duration) -> Result<(), Error> {
        if Arc::get_mut(&mut self.values).is_some() {
            return Ok(());
        }
        let why = match self.values.copied(&self.home) {
            Ok(copy) => {
                self.values = Arc::new(copy);
                return Ok(());
            }
            Err(why) => why,
        };
        let end = Instant::now() + patience;
        while Arc::get_mut(&mut self.values).is_none() {
            if Instant::now() >= end {
                return Err(why.into());
            }
            thread::sleep(LOOK_FOR_PULLS);
        }
        Ok(())
    }

    /// The rows, to be changed: since the update has begun no pull has taken them, for that has to lock the parameter.
    fn own(&mut self) -> &mut Slab {
        Arc::get_mut(&mut self.values).expect("the rows are this parameter's alone during an update")
    }

    /// One update, by the fold of these in their order. They have been checked ([`check_rows`], shape and type).
    ///
    /// # Errors
    /// The group's, where pulls send the rows for longer than `patience` and there is no memory for a copy: nothing has changed.
    pub(super) fn update(
        &mut self,
        gradients: &[Gradient],
        average: bool,
        patience: Duration,
    ) -> Result<(), Error> {
        self.make_alone(patience)?;
        self.version += 1;
        match self.meta.dtype {
            DType::F64 => self.update_as::<f64>(gradients, average),
            _ => self.update_as::<f32>(gradients, average),
        }
        Ok(())
    }

    fn update_as<T: Real>(&mut self, gradients: &[Gradient], average: bool) {
        let divisor = (average && gradients.len() > 1).then(|| T::of(gradients.len() as f64));
        let dense = gradients.iter().any(|gradient| !matches!(gradient.head.meta.layout, Layout::Rows(_)));
        let rows = gradients.iter().any(|gradient| matches!(gradient.head.meta.layout, Layout::Rows(_)));
        let row = self.meta.row_bytes().unwrap_or(0) / size_of::<T>();
        if dense && !rows {
            self.update_whole(gradients, divisor);
        } else if dense {
            let sum = self.fold_mixed::<T>(gradients, row, divisor);
            self.apply(0, &sum);
        } else {
            for (place, sum) in fold_rows::<T>(gradients, &self.shard, row, divisor) {
                self.apply(place * row, &sum);
            }
        }
    }

    /// Whole gradients: folded and applied in runs that a core's cache holds.
    fn update_whole<T: Real>(&mut self, gradients: &[Gradient], divisor: Option<T>) {
        let all: Vec<&[T]> = gradients.iter().map(|gradient| bytemuck::cast_slice(gradient.data())).collect();
        let Some((first, others)) = all.split_first() else { return };
        if let ([], None) = (others, divisor) {
            return self.apply(0, first);
        }
        let mut sum = Vec::with_capacity(RUN.min(first.len()));
        for from in (0..first.len()).step_by(RUN) {
            let run = from..(from + RUN).min(first.len());
            sum.clear();
            sum.extend_from_slice(&first[run.clone()]);
            for other in others {
                sum.iter_mut().zip(&other[run.clone()]).for_each(|(sum, given)| *sum = sum.sum(*given));
            }
            if let Some(divisor) = divisor {
                sum.iter_mut().for_each(|sum| *sum = sum.divide(divisor));
            }
            self.apply(from, &sum);
        }
    }

    /// The fold over the whole shard of whole gradients and rows. An element that only some give is the fold of theirs.
    fn fold_mixed<T: Real>(&self, gradients: &[Gradient], row: usize, divisor: Option<T>) -> Vec<T> {
        let count = self.value().len() / size_of::<T>();
        let mut sum: Vec<T> = vec![];
        // Rows before the first dense gradient.
        let mut first = vec![];
        for gradient in gradients {
            let is_rows = matches!(gradient.head.meta.layout, Layout::Rows(_));
            match (is_rows, sum.is_empty()) {
                (true, true) => first.push(gradient),
                (true, false) => add_rows(&mut sum, gradient, &self.shard, row),
                (false, false) => {
                    let given: &[T] = bytemuck::cast_slice(gradient.data());
                    sum.iter_mut().zip(given).for_each(|(sum, given)| *sum = sum.sum(*given));
                }
                (false, true) => {
                    sum = bytemuck::cast_slice(gradient.data()).to_vec();
                    // In the order of the trainers: theirs are the left operands.
                    for (place, rows) in merged::<T>(&first, &self.shard, row) {
                        let own = &mut sum[place * row..][..row];
                        own.iter_mut().zip(rows).for_each(|(own, left)| *own = left.sum(*own));
                    }
                }
            }
        }
        sum.resize(count, T::of(0.0));
        if let Some(divisor) = divisor {
            sum.iter_mut().for_each(|sum| *sum = sum.divide(divisor));
        }
        sum
    }

    fn apply<T: Real>(&mut self, from: usize, gradient: &[T]) {
        let to = from + gradient.len();
        let (optimizer, version) = (self.optimizer, self.version);
        let mut states = std::mem::take(&mut self.states);
        let mut parts =
            states.iter_mut().map(|state| &mut bytemuck::cast_slice_mut::<u64, T>(state)[from..to]);
        let of_run = [parts.next().unwrap_or_default(), parts.next().unwrap_or_default()];
        let values = &mut bytemuck::cast_slice_mut::<u8, T>(self.own().bytes_mut())[from..to];
        T::update(optimizer, version, values, gradient, of_run);
        self.states = states;
    }
}

/// The fold of rows, by their places in the shard.
fn fold_rows<T: Real>(
    gradients: &[Gradient],
    shard: &Shard,
    row: usize,
    divisor: Option<T>,
) -> Vec<(usize, Vec<T>)> {
    let all: Vec<_> = gradients.iter().collect();
    let mut sums = merged::<T>(&all, shard, row);
    if let Some(divisor) = divisor {
        sums.iter_mut().flat_map(|(_, sum)| sum).for_each(|sum| *sum = sum.divide(divisor));
    }
    sums
}

/// The sums of rows by place, in ascending order: repeated rows of one gradient first, then over the gradients in their order.
fn merged<T: Real>(gradients: &[&Gradient], shard: &Shard, row: usize) -> Vec<(usize, Vec<T>)> {
    let mut sums = std::collections::BTreeMap::<usize, Vec<T>>::new();
    for gradient in gradients {
        for (place, own) in summed::<T>(gradient, shard, row) {
            match sums.entry(place) {
                std::collections::btree_map::Entry::Vacant(vacant) => drop(vacant.insert(own)),
                std::collections::btree_map::Entry::Occupied(sum) => {
                    sum.into_mut().iter_mut().zip(own).for_each(|(sum, own)| *sum = sum.sum(own));
                }
            }
        }
    }
    sums.into_iter().collect()
}

/// The rows of one gradient, repeated ones summed.
fn summed<T: Real>(gradient: &Gradient, shard: &Shard, row: usize) -> Vec<(usize, Vec<T>)> {
    let (indices, values) = gradient.rows();
    let values: &[T] = bytemuck::cast_slice(values);
    let mut sums: Vec<(usize, Vec<T>)> = Vec::with_capacity(indices.len());
    for (at, index) in indices.iter().enumerate() {
        let Some(place) = shard.place(*index) else { continue };
        let own = &values[at * row..][..row];
        match sums.last_mut() {
            Some((last, sum)) if *last == place => {
                sum.iter_mut().zip(own).for_each(|(sum, own)| *sum = sum.sum(*own))
            }
            _ => sums.push((place, own.to_vec())),
        }
    }
    sums
}

fn add_rows<T: Real>(sum: &mut [T], gradient: &Gradient, shard: &Shard, row: usize) {
    for (place, own) in summed::<T>(gradient, shard, row) {
        sum[place * row..][..row].iter_mut().zip(own).for_each(|(sum, own)| *sum = sum.sum(own));
    }
}

/// Refuses indices that are out of range or in descending order: the one and only rule for rows, of clients and servers.
pub(super) fn check_rows(meta: &Meta, indices: &[u64]) -> Result<(), Error> {
    let refused = |at: usize, why: String| {
        let (parameter, step) = (meta.name.clone(), meta.step);
        Err(Error::Rows { parameter, at: at as u64, row: indices[at], why, step })
    };
    for (at, row) in indices.iter().enumerate() {
        if *row >= meta.rows() {
            return refused(at, format!("the parameter has {} rows; give indices below that", meta.rows()));
        }
        if at > 0 && indices[at - 1] > *row {
            return refused(
                at,
                format!("the one before is {}; sort them (equal ones are summed)", indices[at - 1]),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
