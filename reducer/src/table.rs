//! The tensor table: the tensors that will be reduced, in their order, known to every rank beforehand.
//!
//! It replaces a coordinator. Tensors come in append-only *generations* (a framework that regroups its buckets starts
//! a new one); a tensor's index within its generation is also its priority, 0 first. Ranks exchange the digest of a
//! generation when it begins (of all of it but counts that each rank has for itself); where digests differ, those of
//! prefixes lead to the first tensor on which they disagree, and [`compare`] shows two views of it.
//!
//! [`compare`]: TensorTable::compare

mod spec;

use crate::dtype::NoReduction;
use crate::grid::Rank;
use sha2::{Digest, Sha256};
pub use spec::{BlockCounts, TensorSpec, WrongCounts};
use thiserror::Error;

/// The longest tensor name, in bytes of UTF-8.
pub const MAX_NAME: usize = 1024;

/// The most tensors in one generation.
pub const MAX_TENSORS: usize = 1 << 20;

/// Why specifications cannot become a generation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TableError {
    /// Two tensors of one generation share a name.
    #[error(
        "tensors {first} and {second} are both named \"{name}\"; give each tensor of a generation its own name"
    )]
    Duplicate {
        /// The name.
        name: String,
        /// Index of the first.
        first: usize,
        /// Index of the second.
        second: usize,
    },
    /// A name or a count beyond what a message can carry.
    #[error(
        "tensor {index}: a name has at most {MAX_NAME} bytes and a tensor at most 2^48 - 1 elements; split it"
    )]
    TooLarge {
        /// Index of the tensor.
        index: usize,
    },
    /// A reduction that the element type does not have.
    #[error("tensor {index}: {why}")]
    NoReduction {
        /// Index of the tensor.
        index: usize,
        /// The type and the reduction.
        why: NoReduction,
    },
    /// Counts that the collective does not have.
    #[error("tensor {index}: {why}")]
    Counts {
        /// Index of the tensor.
        index: usize,
        /// The counts, and the remedy.
        why: WrongCounts,
    },
    /// More tensors than a generation can hold.
    #[error("{0} tensors are more than a generation's {MAX_TENSORS}; fuse small tensors")]
    TooMany(usize),
    /// Bytes that are no generation.
    #[error("the tensor table of a peer cannot be read; run the same version on all ranks")]
    Malformed,
    /// A tensor without an encoding.
    #[error("a tensor cannot be encoded ({0}); report it")]
    Unencodable(postcard::Error),
    /// A generation that this rank does not have.
    #[error("generation {0} of the tensor table does not exist here; register its tensors first")]
    NoGeneration(u32),
}

/// Two ranks disagree on a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "tensor {tensor}: {rank} has {}, this rank has {}; register the same tensors in the same order on every rank",
    view(.found, .expected), view(.expected, .found)
)]
pub struct Mismatch {
    /// The name of the tensor, as this rank knows it (as the peer does, where this rank has none).
    pub tensor: String,
    /// Index within the generation.
    pub index: usize,
    /// The rank that disagrees.
    pub rank: Rank,
    /// This rank's view; `None` if its table is shorter.
    pub expected: Option<TensorSpec>,
    /// The other rank's view; `None` if its table is shorter.
    pub found: Option<TensorSpec>,
}

impl Mismatch {
    /// This rank's view and the other rank's, where each has one, with the first counts in which they differ.
    pub fn views(&self) -> [Option<String>; 2] {
        let Self { expected, found, .. } = self;
        [(expected, found), (found, expected)].map(|(one, other)| Some(one.as_ref()?.beside(other.as_ref())))
    }
}

fn view(spec: &Option<TensorSpec>, other: &Option<TensorSpec>) -> String {
    spec.as_ref().map_or_else(|| "no such tensor".to_owned(), |spec| spec.beside(other.as_ref()))
}

#[derive(Clone, Debug)]
struct Generation {
    specs: Vec<TensorSpec>,
    digest: [u8; 32],
}

/// All generations of one rank.
#[derive(Clone, Debug, Default)]
pub struct TensorTable {
    generations: Vec<Generation>,
}

impl TensorTable {
    /// A table without generations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a generation and returns its number. The order of `specs` is the priority, most urgent first. Counts that only this rank has
    /// ([`BlockCounts::OfPairs`]) are not kept.
    ///
    /// # Errors
    /// Two tensors have one name, there are too many, one is too large, its type lacks the reduction, or its collective the counts; the
    /// table is as before.
    pub fn append(&mut self, mut specs: Vec<TensorSpec>) -> Result<u32, TableError> {
        if specs.len() > MAX_TENSORS {
            return Err(TableError::TooMany(specs.len()));
        }
        let mut names = std::collections::HashMap::with_capacity(specs.len());
        for (index, spec) in specs.iter().enumerate() {
            spec.check(index)?;
            if let Some(first) = names.insert(spec.name.as_str(), index) {
                return Err(TableError::Duplicate { name: spec.name.clone(), first, second: index });
            }
        }
        let number = u32::try_from(self.generations.len()).map_err(|_| TableError::TooMany(specs.len()))?;
        specs.iter_mut().for_each(TensorSpec::forget_pairs);
        let digest = Sha256::digest(encode(&specs)?).into();
        self.generations.push(Generation { specs, digest });
        Ok(number)
    }

    /// Generations so far.
    pub fn generations(&self) -> u32 {
        self.generations.len() as u32
    }

    /// The tensors of a generation, by priority.
    ///
    /// # Errors
    /// There is no such generation.
    pub fn specs(&self, generation: u32) -> Result<&[TensorSpec], TableError> {
        Ok(&self.generation(generation)?.specs)
    }

    /// One tensor.
    pub fn get(&self, generation: u32, tensor: u32) -> Option<&TensorSpec> {
        self.generations.get(generation as usize)?.specs.get(tensor as usize)
    }

    /// SHA-256 of a generation's encoding: equal exactly if the ranks agree on it.
    ///
    /// # Errors
    /// There is no such generation.
    pub fn digest(&self, generation: u32) -> Result<[u8; 32], TableError> {
        Ok(self.generation(generation)?.digest)
    }

    /// SHA-256 of the encoding of a generation's first `len` tensors (all of them, if there are fewer).
    ///
    /// # Errors
    /// There is no such generation.
    pub fn prefix_digest(&self, generation: u32, len: usize) -> Result<[u8; 32], TableError> {
        let specs = &self.generation(generation)?.specs;
        Ok(Sha256::digest(encode(&specs[..len.min(specs.len())])?).into())
    }

    /// One tensor as bytes, for the peers; that there is none, if the generation has none of this index.
    ///
    /// # Errors
    /// There is no such generation.
    pub fn to_bytes(&self, generation: u32, index: usize) -> Result<Vec<u8>, TableError> {
        postcard::to_stdvec(&self.generation(generation)?.specs.get(index)).map_err(TableError::Unencodable)
    }

    /// Compares one tensor with `rank`'s view of it; the error shows both.
    ///
    /// # Errors
    /// The views differ; where this rank has no such tensor, none is expected.
    pub fn compare(
        &self,
        generation: u32,
        index: usize,
        rank: Rank,
        found: Option<TensorSpec>,
    ) -> Result<(), Box<Mismatch>> {
        let expected = self.generations.get(generation as usize).and_then(|g| g.specs.get(index)).cloned();
        if expected == found {
            return Ok(());
        }
        let tensor = expected.as_ref().or(found.as_ref()).map_or_else(String::new, |spec| spec.name.clone());
        Err(Box::new(Mismatch { tensor, index, rank, expected, found }))
    }

    fn generation(&self, generation: u32) -> Result<&Generation, TableError> {
        self.generations.get(generation as usize).ok_or(TableError::NoGeneration(generation))
    }
}

/// Tensors as bytes, for digests and for the peers. Plain data always has an encoding.
fn encode(specs: &[TensorSpec]) -> Result<Vec<u8>, TableError> {
    postcard::to_stdvec(specs).map_err(TableError::Unencodable)
}

/// Parses the bytes of a peer's [`TensorTable::to_bytes`]. Never panics.
///
/// # Errors
/// The bytes are no tensor, or one that [`TensorTable::append`] would refuse.
pub fn from_bytes(bytes: &[u8]) -> Result<Option<TensorSpec>, TableError> {
    let (spec, rest) =
        postcard::take_from_bytes::<Option<TensorSpec>>(bytes).map_err(|_| TableError::Malformed)?;
    if !rest.is_empty() {
        return Err(TableError::Malformed);
    }
    spec.as_ref().map_or(Ok(()), |spec| spec.check(0))?;
    Ok(spec)
}

#[cfg(test)]
mod tests;
