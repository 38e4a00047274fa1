//! An external key/value store, through which a job can come together: a launcher's (PMI), or torch's.

use std::time::Duration;

pub(crate) use launcher::OfLauncher;

mod launcher;
mod pmi1;
mod sys;

/// The error of a store.
pub type StoreError = Box<dyn std::error::Error + Send + Sync>;

/// A key/value store for all ranks of a job and nobody else: any process that can read it gets the job's key from it.
///
/// [`init_through`](crate::init_through) puts at most a few values a rank there, and needs it no more when the group
/// has come together. Keys are of at most 48 characters: letters, digits and `/`; the keys that rank 5 puts end in
/// `/5`, all others are rank 0's. Values are bytes: 64 or so of each rank, and of rank 0 about 200 and 8 for each rank
/// of the job.
pub trait Store: Send {
    /// Stores a value, in place of the key's former one.
    ///
    /// # Errors
    /// The store's error.
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), StoreError>;

    /// The value of a key. Waits for at most `timeout` until the key is there.
    ///
    /// # Errors
    /// The store's error, or that the key is not there in time.
    fn get(&mut self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError>;

    /// Every rank calls it between putting values and getting those of others, so many times on all. A store that shows values to
    /// other ranks only after a step that all take (PMI) takes it here; one whose `get` waits for the key does nothing.
    ///
    /// # Errors
    /// The store's error, or that ranks did not come within `timeout`.
    fn fence(&mut self, timeout: Duration) -> Result<(), StoreError> {
        let _ = timeout;
        Ok(())
    }
}
