//! Tensors that an RDMA NIC reads and writes where they lie on the GPU: whether that can be, and which of the trainer's
//! allocations are registered with the NIC. **Not run on a GPU and a NIC that can do it yet**: with a simulated driver
//! and soft-RoCE only.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shouter_reducer::cuda::kernel::{CudaKernels, LaunchError};
use shouter_reducer::cuda::{Context, CudaCrcs, DeviceBuffer, Dmabuf, NicWrites, Pointer, PointerKind};
use shouter_reducer::memory::{MemoryKind, Span, TensorRegion};
use shouter_reducer::schedule::Access;
use shouter_reducer::transport::AcceleratorError;

use super::super::Group;
use crate::channel::verbs::{CrcTicket, Digest, Export, Reach, RegisterError};
use crate::engine::executor_time;
use crate::error::Error;
use crate::runtime::Clock;
use crate::runtime::lock;

/// Bytes of the slots on the device, for all operations under way.
const SLOTS: usize = 32 << 20;

/// Allocations of the trainer that are remembered, at most.
const MOST: usize = 256;

/// A copy between device and slot ends within this time, or the device hangs.
const COPY_ENDS: Duration = Duration::from_secs(2);

/// The GPU's CRCs: the channel requests them, and the engine checks whether they are done.
#[derive(Clone)]
pub(super) struct Crcs(Arc<Mutex<CudaCrcs>>);

impl Crcs {
    pub(super) fn is_idle(&self) -> Result<bool, AcceleratorError> {
        Ok(lock(&self.0).is_idle()?)
    }
}

fn launch_error(error: LaunchError) -> AcceleratorError {
    AcceleratorError(error.to_string().into())
}

impl Digest for Crcs {
    fn start(&mut self, span: Span) -> Result<Option<CrcTicket>, AcceleratorError> {
        Ok(lock(&self.0).ask(&span).map(CrcTicket))
    }

    fn poll(&mut self, ticket: CrcTicket) -> Result<Option<u32>, AcceleratorError> {
        lock(&self.0).answer(ticket.0).map_err(launch_error)
    }

    fn forget(&mut self, ticket: CrcTicket) {
        lock(&self.0).forget(ticket.0);
    }

    fn settle_writes(&mut self) -> Result<(), AcceleratorError> {
        Ok(lock(&self.0).settle_writes()?)
    }

    fn read(&mut self, from: Span, into: &mut [u8]) -> Result<(), AcceleratorError> {
        let until = executor_time(Clock.now() + COPY_ENDS);
        Ok(lock(&self.0).read(&from, into, until, || executor_time(Clock.now()))?)
    }

    fn write(&mut self, into: Span, from: &[u8]) -> Result<(), AcceleratorError> {
        let until = executor_time(Clock.now() + COPY_ENDS);
        Ok(lock(&self.0).write(&into, from, until, || executor_time(Clock.now()))?)
    }
}

/// Why memory is not registered with the NIC.
#[derive(Debug, thiserror::Error)]
enum NotRegistered {
    #[error(transparent)]
    Group(#[from] Error),
    #[error(transparent)]
    Device(#[from] RegisterError),
}

/// An allocation of the trainer's.
#[derive(Clone, Copy)]
struct KnownAllocation {
    /// Its number, which no other one ever has: it tells freed memory from a later allocation at the same address.
    allocation: u64,
    bytes: u64,
    /// Whether it is registered with the NIC.
    registered: bool,
}

/// The allocations that were seen, by address.
pub(super) struct Direct {
    context: Context,
    dmabuf: bool,
    known: Mutex<BTreeMap<u64, KnownAllocation>>,
    warned: AtomicBool,
}

/// The engine's parts for NICs that reach the GPU.
pub(super) struct DirectParts {
    pub(super) crcs: Crcs,
    /// The memory of the slots; the CRCs and these go after the channel.
    pub(super) slots: DeviceBuffer,
}

impl Group {
    /// Lets tensors go straight between GPU and NIC from now on, if that can be; else the log says why not.
    pub(super) fn go_direct(
        &self,
        context: &Context,
        kernels: Option<Arc<CudaKernels>>,
    ) -> Option<(Direct, DirectParts)> {
        match self.try_direct(context, kernels) {
            Ok((direct, parts, reach)) => {
                tracing::info!(
                    gpu = context.ordinal(),
                    by = reach.name(),
                    "the RDMA device reads and writes tensors where they lie on this GPU (those above eager_bytes)"
                );
                Some((direct, parts))
            }
            Err(why) => {
                tracing::info!(
                    gpu = context.ordinal(),
                    why,
                    "tensors on this GPU go to other hosts by way of its memory"
                );
                None
            }
        }
    }

    fn try_direct(
        &self,
        context: &Context,
        kernels: Option<Arc<CudaKernels>>,
    ) -> Result<(Direct, DirectParts, Reach), String> {
        if !self.gpu.direct {
            return Err("gpu_direct = \"off\"".into());
        }
        if self.nodes() == 1 {
            return Err("the group has one host".into());
        }
        if self.local_size() > 1 {
            return Err("other ranks of this host take part; their tensors meet first".into());
        }
        let text = |why: &dyn std::fmt::Display| why.to_string();
        if !self.drive.with(|engine| engine.device_registry().is_some()).map_err(|why| text(&why))? {
            return Err("not all channels to other hosts are RDMA queue pairs (transport = \"verbs\")".into());
        }
        if context.nic_writes() == NicWrites::Unknown {
            return Err(
                "the GPU's driver does not say when it sees what NICs write (no GPUDirect RDMA)".into()
            );
        }
        let kernels = kernels.ok_or("there are no kernels for this GPU, which would have to fold")?;
        let devices = context.cuda().devices().map_err(|why| text(&why))?;
        let dmabuf = devices.iter().any(|device| device.ordinal == context.ordinal() && device.dmabuf);
        let crcs = CudaCrcs::new(context, kernels).map_err(|why| text(&why))?;
        let crcs = Crcs(Arc::new(Mutex::new(crcs)));
        let slots = DeviceBuffer::new(context, SLOTS).map_err(|why| text(&why))?;
        let direct = Direct {
            context: context.clone(),
            dmabuf,
            known: Mutex::default(),
            warned: AtomicBool::new(false),
        };
        let (address, bytes) = (slots.address(), slots.len() as u64);
        let reach = self.register_with_nic(&direct, address, bytes).map_err(|why| text(&why))?;
        let region = device_region(address, bytes).ok_or("the slots have no address")?;
        let digest = Box::new(crcs.clone());
        self.drive.with(move |engine| engine.attach_device(digest, region)).map_err(|why| text(&why))?;
        Ok((direct, DirectParts { crcs, slots }, reach))
    }

    /// Registers device memory with the NIC: by its dma-buf if the driver gives one, else by its address.
    fn register_with_nic(&self, direct: &Direct, address: u64, bytes: u64) -> Result<Reach, NotRegistered> {
        let export = direct.dmabuf.then(|| Dmabuf::export(&direct.context, address, bytes, page_bytes()));
        let export = match export {
            Some(Ok(Dmabuf { fd, offset, .. })) => Some(Export { fd, offset }),
            Some(Err(why)) => {
                tracing::debug!(%why, "no dma-buf; the NIC is told the address");
                None
            }
            None => None,
        };
        let region = device_region(address, bytes).ok_or(RegisterError::Refused)?;
        // SAFETY: slots go after the channel. Memory that the trainer frees is not named again: each hand-over asks which allocation it is,
        // and freed memory is unregistered then.
        let registered = self.drive.with(move |engine| unsafe {
            engine.device_registry().ok_or(RegisterError::Refused)?.register_device(region, export)
        })?;
        Ok(registered?)
    }

    /// Registers the allocation that a tensor lies in with the NIC, if possible.
    pub(super) fn make_known(&self, direct: &Direct, pointer: &Pointer, bytes: u64) -> Result<(), Error> {
        let Pointer { base, size, allocation, .. } = *pointer;
        // Virtual mappings are several allocations; managed memory moves.
        let whole = pointer.kind == PointerKind::Device
            && allocation != 0
            && size > 0
            && pointer.offset().checked_add(bytes).is_some_and(|end| end <= size);
        if !whole || !self.tables.is_credited(bytes) {
            return Ok(());
        }
        let mut known = lock(&direct.known);
        if known.get(&base).is_some_and(|found| (found.allocation, found.bytes) == (allocation, size)) {
            return Ok(());
        }
        // Allocations that lay there before were freed.
        let end = base.saturating_add(size);
        let overlaps =
            |&(at, found): &(&u64, &KnownAllocation)| *at < end && at.saturating_add(found.bytes) > base;
        let mut gone: Vec<u64> = known.iter().filter(overlaps).map(|(at, _)| *at).collect();
        if gone.is_empty() && known.len() >= MOST {
            let cuda = direct.context.cuda();
            let lives = |at: u64, found: &KnownAllocation| {
                cuda.classify(at).is_ok_and(|now| now.allocation == found.allocation)
            };
            gone = known.iter().filter(|(at, found)| !lives(**at, found)).map(|(at, _)| *at).collect();
        }
        for at in gone {
            if known.remove(&at).is_some_and(|found| found.registered) {
                drop(self.drive.with(move |engine| engine.registry()?.unregister(at as usize))?);
            }
        }
        if known.len() >= MOST {
            self.warn_once(direct, "as many allocations are registered as are kept");
            return Ok(());
        }
        let registered = match self.register_with_nic(direct, base, size) {
            Ok(reach) => {
                tracing::debug!(
                    bytes = size,
                    by = reach.name(),
                    "the RDMA device knows an allocation of the GPU"
                );
                true
            }
            Err(NotRegistered::Device(why)) => {
                self.warn_once(direct, &why.to_string());
                false
            }
            Err(NotRegistered::Group(error)) => return Err(error),
        };
        known.insert(base, KnownAllocation { allocation, bytes: size, registered });
        Ok(())
    }

    fn warn_once(&self, direct: &Direct, why: &str) {
        if !direct.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(why, "some tensors on the GPU go by way of the host's memory; this is said once");
        }
    }
}

impl Direct {
    /// The access to a tensor.
    pub(super) fn access(&self, tensor: &TensorRegion) -> Access {
        let start = tensor.as_ptr() as u64;
        let known = lock(&self.known);
        let found = known.range(..=start).next_back();
        let inside = |(base, found): (&u64, &KnownAllocation)| {
            found.registered && (start - base).saturating_add(tensor.len() as u64) <= found.bytes
        };
        if found.is_some_and(inside) { Access::Direct } else { Access::Copies }
    }
}

fn device_region(address: u64, bytes: u64) -> Option<TensorRegion> {
    let base = NonNull::new(address as *mut u8)?;
    // SAFETY: operations that name it keep the memory; see `register_with_nic`.
    Some(unsafe { TensorRegion::from_raw_parts(MemoryKind::Device, base, usize::try_from(bytes).ok()?, 0) })
}

/// Bytes of a page of this host.
fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}
