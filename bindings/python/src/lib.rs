//! The extension module `shouter._core`: the library as the Python package `shouter` calls it.
//!
//! The package's classes and functions, with their documentation and types, are Python (`python/shouter`). Here are the objects that
//! own what is the library's: groups, operations under way, shared memory. Every call that waits gives the interpreter's lock away, and
//! looks for signals ([`wait`]).
#![deny(unsafe_code)]

mod buffer;
mod call;
mod dlpack;
mod element;
mod error;
mod group;
mod join;
mod memory;
mod store;
mod sys;
mod wait;
mod work;

use pyo3::prelude::*;

/// What the package `shouter` is made of. Use that.
#[pymodule(name = "_core")]
mod core_module {
    #[pymodule_export]
    use super::group::Group;
    #[pymodule_export]
    use super::join::join;
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    use super::work::Work;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
