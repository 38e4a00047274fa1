//! The kernels in whatever instructions the compiler may use on every machine of this architecture.

use super::fold::{divide, fold, scale};
use super::table::{Table, table};

pub(super) static TABLE: Table = table!(fold, divide, scale);
