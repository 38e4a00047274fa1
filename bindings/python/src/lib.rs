//! The extension module `shouter._core`: the library for the Python package `shouter`.
//!
//! The package's classes and functions, with their documentation and types, are Python (`python/shouter`). This module
//! has the objects that own the library's resources: groups, started operations, shared memory. Every call that waits
//! releases the interpreter's lock and checks for signals ([`wait`]).
#![deny(unsafe_code)]

mod buffer;
mod call;
mod dlpack;
mod element;
mod error;
mod group;
mod join;
mod memory;
mod named;
mod number;
mod ps;
mod store;
mod sys;
mod wait;
mod work;
mod xla;

use pyo3::prelude::*;

/// The base of the package `shouter`, which is the public interface.
#[pymodule(name = "_core")]
mod core_module {
    #[pymodule_export]
    use super::group::Group;
    #[pymodule_export]
    use super::join::join;
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    use super::named::{named_declare, named_join, named_refuse};
    #[pymodule_export]
    use super::ps::{PsActors, PsClient, PsSending, ps_serve};
    #[pymodule_export]
    use super::work::Work;
    #[pymodule_export]
    use super::xla::check_type;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("xla_run", super::xla::address())?;
        module.add("named_submit", super::named::address())?;
        module.add("named_refusal", super::named::address_of_refusal())
    }
}
