//! Tensors that are registered once and pushed in each step: checked here, and their counts learnt where blocks differ.

use std::sync::Arc;

use shouter_reducer::counts::Counts;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Collective, Shape};

use super::Group;
use super::table::{BlockCounts, TableExchange, TensorSpec};
use super::uneven::RankBlocks;
use crate::error::{Error, NamedTensor, Operation, TensorId};
use crate::runtime::Clock;

/// Ranks whose operations an error names, at most.
const NAMED: usize = 4;

impl Group {
    /// Agrees with all ranks on the tensors that each step reduces, gathers or moves otherwise, and gives each a number.
    ///
    /// Every rank calls it with the same tensors in the same order. The order is the priority: tensors that are needed
    /// first come first. Registering again (a framework has changed its buckets) is a new generation of the table.
    ///
    /// All-reduces of the same type and reduction below `fuse_below` bytes are fused, in the order of the table, up to `fuse_bytes` in all:
    /// their operation starts when the last of them is pushed. Their results are those of single ones, bit by bit. See [`Work::wait`](super::Work::wait)
    /// for what happens where some are not pushed.
    ///
    /// A collective whose blocks differ has its counts here ([`BlockCounts`]), and no push exchanges any: a list with a count for each rank,
    /// which is the same on every rank, also where [`gather_v`](Self::gather_v) and [`scatter_v`](Self::scatter_v) need it on the root
    /// only; or, of an all-to-all-v, what this rank gives to each and takes from each.
    ///
    /// In a group of some ranks it is one of the group's operations, and comes in their order. So it is in every group where there is an
    /// all-to-all-v among the tensors, whose counts ranks tell each other.
    ///
    /// # Errors
    /// [`Error::Argument`] for a tensor that cannot be, such as one without the counts that its collective has, on the rank that gives it;
    /// [`Error::Mismatch`] names the tensor and both views, on every rank, if one differs, or the two ranks of which one gives another
    /// number of elements than the other takes: then nothing is registered, and the group goes on; [`Error::Deadline`] the ranks that did not
    /// register before the deadline, and the operations that they are in instead, as far as those are known: then the group goes on, but
    /// registers nothing more; [`Error::PeerFailed`] says why the group ended meanwhile, or that this rank comes after the others' deadline;
    /// [`Error::Closed`] in a forked child.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// use shouter::{DType, ReduceOp, TensorSpec};
    ///
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// # let group = shouter::init(config)?;
    /// let spec = |name: &str, count| TensorSpec::all_reduce(name, DType::F32, count, ReduceOp::Avg);
    /// let ids = group.register(&[spec("embedding", 50_000), spec("head", 1_000)])?;
    /// assert_eq!(ids.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Shards of different lengths, gathered in each step:
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// use shouter::{DType, TensorSpec};
    ///
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// # let group = shouter::init(config)?;
    /// // Of 1,000 parameters the last rank has what is left over.
    /// let (size, rank) = (u64::from(group.size()), group.rank() as usize);
    /// let mut counts = vec![1000 / size; size as usize];
    /// counts[size as usize - 1] += 1000 % size;
    /// let mine = counts[rank] as usize;
    /// let ids = group.register(&[TensorSpec::all_gather_v("parameters", DType::F32, counts)])?;
    /// for step in 0..3 {
    ///     let shard = vec![step as f32; mine]; // The update makes it.
    ///     let (_, parameters) = group.lend(ids[0], (shard, vec![0f32; 1000]))?.wait()?;
    ///     assert_eq!(parameters, [step as f32; 1000]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn register(&self, tensors: &[TensorSpec]) -> Result<Vec<TensorId>, Error> {
        self.drive.check_process()?;
        let step = self.annotations.step();
        let tensors = tensors.iter().map(|spec| self.checked(spec)).collect::<Result<Vec<_>, _>>()?;
        let gather = |bytes: &[u8]| self.gather_bytes(bytes);
        let exchange = match &self.subset {
            Some(_) => Some(TableExchange::Members(&gather)),
            None => self.job.control.as_ref().map(TableExchange::Control),
        };
        let learn = |spec: &TensorSpec, id| self.learn_pairs(spec, id);
        let by_control = matches!(exchange, Some(TableExchange::Control(_)));
        if by_control {
            self.drive.with(|engine| engine.begin_exchange(Clock.now()))?;
        }
        let registered = self.tables.register(&tensors, exchange, &learn, self.deadline, step);
        if by_control {
            self.drive.with(|engine| engine.end_exchange())?;
        }
        registered.map_err(|error| {
            let waited = matches!(error, Error::Deadline { .. } | Error::PeerFailed { .. });
            let more = if by_control && waited { self.begun_elsewhere() } else { String::new() };
            self.outcomes.recorded(error.with_more(&more))
        })
    }

    /// The operations that other ranks have begun instead of coming here, as far as this rank knows, as the end of an error's text.
    #[cold]
    fn begun_elsewhere(&self) -> String {
        let mut text = String::new();
        let others = (0..self.size()).map(Rank).filter(|rank| *rank != self.rank);
        let begun = others.filter_map(|rank| {
            let in_cell = self.cells.as_ref().and_then(|cells| cells.begun_by(rank));
            let view =
                in_cell.or_else(|| self.drive.with(move |engine| engine.begun_by(rank)).ok().flatten());
            Some((rank, view?))
        });
        for (rank, view) in begun.take(NAMED) {
            text += &format!("; {rank} has begun {}, which this rank has not", self.tables.describe(&view));
        }
        text
    }

    /// A tensor to be registered, without parameters that its collective does not have.
    fn checked(&self, spec: &TensorSpec) -> Result<TensorSpec, Error> {
        let TensorSpec { name, collective, dtype, count, op, root, counts } = spec;
        let named = |error| match error {
            Error::Argument(why) => Error::Argument(format!("tensor \"{name}\": {why}")),
            other => other,
        };
        let counted = spec.check_counts(self.size()).map_err(|why| Error::Argument(why.to_string()));
        counted.map_err(named)?;
        let count = usize::try_from(*count).unwrap_or(usize::MAX);
        let Shape { collective, dtype, op, count } =
            self.shape(*collective, count, *dtype, *op).map_err(named)?;
        let root = if collective.has_root() { self.root(collective, *root).map_err(named)?.0 } else { 0 };
        Ok(TensorSpec { name: name.clone(), collective, dtype, count, op, root, counts: counts.clone() })
    }

    /// The counts of an all-to-all-v of which every rank has its own: every rank finds the same ones right or wrong.
    fn learn_pairs(&self, spec: &TensorSpec, id: TensorId) -> Result<Counts, Error> {
        let BlockCounts::OfPairs { given, taken } = &spec.counts else {
            let why = format!("tensor \"{}\" has no counts of pairs to be learnt", spec.name);
            return Err(Error::Internal(why));
        };
        // They are no more than an operation can have.
        let [given, taken] =
            [given, taken].map(|counts| counts.iter().map(|count| *count as usize).collect::<Vec<_>>());
        let blocks = RankBlocks::new(Collective::AllToAllV, &given, &taken, spec.dtype);
        self.learn(Clock.now(), &blocks, Rank(0)).map_err(|mut error| {
            if let Error::Mismatch { tensor, operation, .. } = &mut error {
                *tensor = Some(Arc::new(NamedTensor { id, name: spec.name.clone() }));
                *operation = Operation::Register;
            }
            error.with_more(&format!("; tensor \"{}\" was not registered", spec.name))
        })
    }
}

#[cfg(test)]
mod tests;
