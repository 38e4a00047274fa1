//! The numbers that C has for operations under way. None is given twice, and none is another operation's, such as that of a call that
//! blocks: who waits takes the operation out.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use shouter::{Error, Pending};

/// The operations that shouter_push has started and no shouter_wait has ended.
#[derive(Default)]
pub(crate) struct UnderWay {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// Numbers given so far; 0 is none.
    given: u64,
    operations: HashMap<u64, Pending>,
}

impl UnderWay {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for an operation.
    pub(crate) fn add(&self, operation: Pending) -> u64 {
        let mut table = self.table();
        table.given += 1;
        let number = table.given;
        table.operations.insert(number, operation);
        number
    }

    /// The operation of a number, for the one who waits.
    pub(crate) fn take(&self, number: u64) -> Result<Pending, Error> {
        self.table().operations.remove(&number).ok_or_else(|| {
            Error::Argument(format!(
                "{number} is no operation under way: shouter_push did not give it, it was waited for before, or another thread \
                 waits for it"
            ))
        })
    }

    /// An operation that may be waited for again, with the number that it had.
    pub(crate) fn put_back(&self, number: u64, operation: Pending) {
        self.table().operations.insert(number, operation);
    }
}
