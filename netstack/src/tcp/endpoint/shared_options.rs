//! Options in memory that connections with the same options share.

use std::sync::Arc;

use super::super::options::Options;

/// The default options, and those that were given last: most connections of a program have the same.
#[derive(Debug)]
pub(super) struct SharedOptions {
    common: Arc<Options>,
    recent: Arc<Options>,
}

impl SharedOptions {
    /// `common` are the defaults.
    pub(super) fn new(common: Options) -> Self {
        let common = Arc::new(common);
        Self { recent: Arc::clone(&common), common }
    }

    /// The shared copy of the given options.
    pub(super) fn get(&mut self, given: Option<Options>) -> Arc<Options> {
        let Some(options) = given else { return Arc::clone(&self.common) };
        if *self.recent != options {
            self.recent = Arc::new(options);
        }
        Arc::clone(&self.recent)
    }
}
