//! A build without verbs: no RDMA port leads anywhere.

use std::fmt;

use serde::{Deserialize, Serialize};
use shouter_reducer::grid::{Grid, Rank};

use crate::channel::stream::KernelChannel;
use crate::config::Config;
use crate::error::Error;

/// The advertisement of the RDMA ports, of which this build has none. A build with verbs sends the same fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Reachable {
    gids: Vec<[u8; 16]>,
    lids: Vec<u16>,
}

impl fmt::Display for Reachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not built in")
    }
}

/// No ports.
#[derive(Debug, Default)]
pub(super) struct PortSurvey {
    pub(super) ports: Vec<()>,
    pub(super) problems: Vec<String>,
}

/// Says why there are none.
pub(super) fn survey(_: &str) -> PortSurvey {
    PortSurvey {
        ports: vec![],
        problems: vec!["this build has no verbs; build with the feature 'verbs'".into()],
    }
}

impl PortSurvey {
    pub(super) fn reachable(&self) -> Reachable {
        Reachable::default()
    }

    pub(super) fn way(&self, _: &Reachable) -> Option<()> {
        None
    }
}

/// Never made.
pub(in crate::communicator) enum Prepared {}

impl Prepared {
    pub(super) fn new(_: &Config, _: &Grid, _: &PortSurvey, _: &[&Reachable]) -> Result<Self, Error> {
        Err(Error::Internal("verbs were chosen in a build that has none".into()))
    }

    pub(super) fn connect(self, _: &Config, _: KernelChannel, _: &[Rank]) -> KernelChannel {
        match self {}
    }
}
