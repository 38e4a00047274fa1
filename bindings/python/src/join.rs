//! Joining a job.

use std::net::IpAddr;

use pyo3::prelude::*;
use shouter::Error;
use shouter::config::Builder;
use shouter::log;

use crate::error::raised;
use crate::group::Group;
use crate::number::Port;
use crate::store::Store;
use crate::wait::aside;

/// Joins the job of the environment and `settings`, or of the lists of addresses and ports; through a store, if there
/// is one.
#[pyfunction]
#[pyo3(signature = (settings, lists=None, store=None))]
pub(crate) fn join(
    py: Python<'_>,
    settings: Vec<(String, String)>,
    lists: Option<(Vec<String>, Vec<Port>)>,
    store: Option<Py<PyAny>>,
) -> PyResult<Group> {
    log::start();
    let configured = || -> Result<Builder, Error> {
        let mut builder = Builder::from_process()?;
        if let Some((addresses, ports)) = &lists {
            let ports: Vec<u16> = ports.iter().map(|port| port.0).collect();
            builder = builder
                .lists(&addresses.iter().map(|text| address(text)).collect::<Result<Vec<_>, _>>()?, &ports);
        }
        for (key, value) in &settings {
            builder = builder.set(key, value)?;
        }
        Ok(builder)
    };
    let builder = configured().map_err(|error| raised(py, &error))?;
    let joined = aside(py, move || match store {
        Some(store) => shouter::init_through(builder, &mut Store(store)),
        None => shouter::init(builder.build()?),
    });
    joined.map(Group::new)
}

fn address(text: &str) -> Result<IpAddr, Error> {
    text.parse().map_err(|_| {
        Error::Argument(format!("\"{text}\" in iplist is no IP address; use one such as \"192.0.2.1\""))
    })
}
