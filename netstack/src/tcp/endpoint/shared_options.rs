//! Options in memory that connections with the same options share.

use std::sync::Arc;

use super::super::options::Options;

/// The options of who gives none, and those that were given last: most connections of a program have the same.
#[derive(Debug)]
pub(super) struct SharedOptions {
    common: Arc<Options>,
    recent: Arc<Options>,
}

impl SharedOptions {
    /// `common` are those of who gives none.
    pub(super) fn new(common: Options) -> Self {
        let common = Arc::new(common);
        Self { recent: Arc::clone(&common), common }
    }

    /// What stands for the options that were given.
    pub(super) fn get(&mut self, given: Option<Options>) -> Arc<Options> {
        let Some(options) = given else { return Arc::clone(&self.common) };
        if *self.recent != options {
            self.recent = Arc::new(options);
        }
        Arc::clone(&self.recent)
    }
}
