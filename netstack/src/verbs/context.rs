//! An opened device.

use std::sync::Arc;

use super::{VerbsError, device, sys};

/// An opened device with a protection domain: objects made from one context can be used together. Cheap to clone; the
/// device stays open until the last clone, region and queue is dropped.
#[derive(Clone, Debug)]
pub struct Context {
    domain: Arc<sys::Domain>,
    name: Arc<str>,
}

impl Context {
    /// Opens device `name`, one of [`devices`](super::devices).
    ///
    /// # Errors
    /// [`VerbsError::UnknownDevice`], and the reasons why it cannot be opened, as for [`devices`](super::devices).
    pub fn open(name: &str) -> Result<Self, VerbsError> {
        let list = device::list()?;
        let Some(found) = list.iter().find(|found| found.name == name) else {
            let known: Vec<&str> = list.iter().map(|found| found.name.as_str()).collect();
            return Err(VerbsError::UnknownDevice { name: name.to_owned(), known: known.join(" ") });
        };
        match sys::Domain::open(name) {
            Ok(Some(domain)) => Ok(Self { domain: Arc::new(domain), name: name.into() }),
            // It went away since it was listed.
            Ok(None) => Err(VerbsError::UnknownDevice { name: name.to_owned(), known: String::new() }),
            Err(errno) => Err(why_not_opened(found, errno)),
        }
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next asynchronous event of the device, if one waits. Never blocks.
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.domain.next_event().map(|event| AsyncEvent::of(&event))
    }

    pub(super) fn domain(&self) -> &Arc<sys::Domain> {
        &self.domain
    }

    pub(super) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }
}

/// libibverbs tries several methods and returns the last one's error number, so the character device itself is tried.
fn why_not_opened(found: &sys::ListedDevice, errno: sys::Errno) -> VerbsError {
    let path = format!("/dev/infiniband/{}", found.uverbs);
    match std::fs::OpenOptions::new().read(true).write(true).open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => VerbsError::Permission { path },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            VerbsError::NoUverbs { device: found.name.clone() }
        }
        _ => VerbsError::call(&found.name, "ibv_open_device", errno),
    }
}

/// An event of a device, a port or a queue besides completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncEvent {
    /// This port can be used again.
    PortActive(u8),
    /// This port lost its link.
    PortError(u8),
    /// This port's GID table changed: addresses came or went.
    GidChange(u8),
    /// This port has another LID.
    LidChange(u8),
    /// This port's partition keys changed.
    PkeyChange(u8),
    /// The device is lost; close it.
    DeviceFatal,
    /// The queue pair of this number is in the error state, with or without completions that say so.
    QpFatal(u32),
    /// A completion queue broke: it overflowed.
    CqError,
    /// Another, by its number in `enum ibv_event_type`.
    Other(u32),
}

impl AsyncEvent {
    fn of(event: &sys::DeviceEvent) -> Self {
        match event.kind {
            0 => Self::CqError,
            // QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR.
            1..=3 => Self::QpFatal(event.qp),
            8 => Self::DeviceFatal,
            9 => Self::PortActive(event.port),
            10 => Self::PortError(event.port),
            11 => Self::LidChange(event.port),
            12 => Self::PkeyChange(event.port),
            18 => Self::GidChange(event.port),
            other => Self::Other(other),
        }
    }
}

#[cfg(test)]
mod tests;
