//! Accesses whose time has come.

use super::Windows;
use super::api::AccessError;
use core::time::Duration;

impl Windows {
    /// Fails what is late, and finds the next deadline; whether anything was.
    pub(super) fn check_deadlines(&mut self, now: Duration) -> bool {
        let open = |access: &super::Access| access.failure.is_none();
        let late = self.accesses.iter().filter(|(_, access)| open(access) && access.deadline <= now);
        let late: Vec<_> = late.map(|(handle, _)| handle).collect();
        for handle in &late {
            self.fail(*handle, |subject| AccessError::Deadline { subject });
        }
        let open = self.accesses.iter().filter(|(_, access)| open(access));
        self.earliest = open.map(|(_, access)| access.deadline).min().unwrap_or(Duration::MAX);
        !late.is_empty()
    }
}
