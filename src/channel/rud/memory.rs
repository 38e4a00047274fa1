//! Memory that NICs read where it lies, as the registry of the channel over their ports.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use shouter_netstack::device::dpdk::{MemoryError, PortMemory, PortRegistration};
use shouter_reducer::memory::{MemoryKind, TensorRegion};

use crate::channel::up::Registry;
use crate::channel::verbs::{RegisterError, Registered, Registering};

/// The ports of NICs, and the memory that is registered with them.
pub(crate) struct NicMemory {
    ports: Vec<PortMemory>,
    known: Vec<(usize, Registered)>,
    /// A failed registration was logged.
    warned: bool,
}

/// A registration with the ports that take it, and why one does not.
struct WithPorts {
    _ports: Vec<PortRegistration>,
    refused: Option<MemoryError>,
}

impl NicMemory {
    /// The registry of these ports; `None` if there are none.
    pub(crate) fn new(ports: Vec<PortMemory>) -> Option<Self> {
        (!ports.is_empty()).then_some(Self { ports, known: vec![], warned: false })
    }

    #[cold]
    fn warn_once(&mut self, why: &dyn std::fmt::Display) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(%why, "some memory is copied before a NIC sends it; this is logged once");
        }
    }
}

impl Registry for NicMemory {
    fn is_remote(&self) -> bool {
        false
    }

    unsafe fn registering(&mut self, memory: TensorRegion) -> Option<Registering> {
        if memory.is_empty() || memory.kind() == MemoryKind::Device {
            return None;
        }
        let ports = self.ports.clone();
        Some(Box::new(move || {
            let base = NonNull::new(memory.as_ptr()).ok_or(RegisterError::Refused)?;
            let (mut registered, mut refused) = (vec![], None);
            for port in &ports {
                // SAFETY: mapped for as long as the caller says.
                match unsafe { port.register(base, memory.len()) } {
                    Ok(one) => registered.push(one),
                    Err(why) => refused = Some(why),
                }
            }
            match refused {
                // A few bytes are copied anyway.
                Some(MemoryError::Small { .. }) => Err(RegisterError::Refused),
                Some(why) if registered.is_empty() => Err(RegisterError::Nic(why.to_string())),
                refused => Ok(Box::new(WithPorts { _ports: registered, refused }) as Registered),
            }
        }))
    }

    fn adopt(&mut self, memory: TensorRegion, registered: Result<Registered, RegisterError>) -> bool {
        match registered {
            Ok(registered) => {
                if let Some(why) =
                    registered.downcast_ref::<WithPorts>().and_then(|with| with.refused.clone())
                {
                    self.warn_once(&why);
                }
                tracing::debug!(
                    bytes = memory.len(),
                    "memory is registered; a NIC sends what it holds without a copy"
                );
                self.known.push((memory.as_ptr().addr(), registered));
                true
            }
            Err(RegisterError::Refused) => false,
            Err(why) => {
                self.warn_once(&why);
                false
            }
        }
    }

    fn unregister(&mut self, address: usize) -> Option<Registered> {
        let at = self.known.iter().position(|(known, _)| *known == address)?;
        Some(self.known.swap_remove(at).1)
    }
}
