//! Device memory of other processes of the host, by the driver's legacy IPC handles. A handle names a whole allocation, so it
//! travels with the offset.
#![allow(unsafe_code)]

use std::collections::HashMap;

use cudarc::driver::sys::{CUipcMem_flags, CUipcMemHandle};

use super::sys::code;
use super::{Context, CudaError, Pointer, PointerKind};

/// Bytes of the driver's handles.
const HANDLE: usize = 64;

/// Device memory as another process of the host can open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryHandle {
    allocation: [u8; HANDLE],
    /// Bytes from the allocation's start.
    offset: u64,
    /// Length of the allocation in bytes.
    size: u64,
    /// Distinguishes it from one that was freed and had the same handle.
    number: u64,
}

impl MemoryHandle {
    /// Bytes of the message form.
    pub const LEN: usize = HANDLE + 24;

    /// A handle of the allocation that `pointer` lies in. Memory that was not allocated by cudaMalloc has none.
    ///
    /// # Errors
    /// The memory has no handle.
    pub fn export(context: &Context, pointer: &Pointer) -> Result<Self, CudaError> {
        if pointer.kind != PointerKind::Device
            || !pointer.legacy_ipc
            || pointer.size == 0
            || pointer.allocation == 0
        {
            return Err(CudaError::NoIpcHandle { address: pointer.address });
        }
        let entered = context.enter()?;
        let mut handle = CUipcMemHandle { reserved: [0; HANDLE] };
        // SAFETY: `handle` is writable; the address is only looked up.
        let outcome = unsafe { entered.cuda().api.cuIpcGetMemHandle(&mut handle, pointer.base) };
        if matches!(outcome.code, code::INVALID_VALUE | code::NOT_SUPPORTED) {
            return Err(CudaError::NoIpcHandle { address: pointer.address });
        }
        outcome.ok()?;
        Ok(Self {
            allocation: handle.reserved.map(|byte| byte as u8),
            offset: pointer.offset(),
            size: pointer.size,
            number: pointer.allocation,
        })
    }

    /// The same allocation at another address of it.
    pub(super) fn at(self, pointer: &Pointer) -> Option<Self> {
        let same = (pointer.allocation, pointer.size) == (self.number, self.size);
        (same && pointer.offset() < self.size).then_some(Self { offset: pointer.offset(), ..self })
    }

    /// As a message: the handle, then offset, size and number in little-endian order.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..HANDLE].copy_from_slice(&self.allocation);
        bytes[HANDLE..HANDLE + 8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[HANDLE + 8..HANDLE + 16].copy_from_slice(&self.size.to_le_bytes());
        bytes[HANDLE + 16..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// From a message; `None` if its length or its offset cannot be.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (allocation, rest) = bytes.split_first_chunk::<HANDLE>()?;
        let (offset, rest) = rest.split_first_chunk::<8>()?;
        let (size, number) = rest.split_first_chunk::<8>()?;
        let [offset, size] = [offset, size].map(|bytes| u64::from_le_bytes(*bytes));
        let number = u64::from_le_bytes(number.try_into().ok()?);
        (offset < size).then_some(Self { allocation: *allocation, offset, size, number })
    }

    /// Bytes from the address to the end of its allocation.
    pub fn len(&self) -> u64 {
        self.size - self.offset
    }

    /// Never: the address lies inside its allocation.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Memory of other processes, opened once per allocation and closed when the value is dropped, or when it has not been asked for
/// for long: the driver keeps what its owner has freed as long as it is open elsewhere.
#[derive(Debug)]
pub struct PeerMemory {
    context: Context,
    open: HashMap<[u8; HANDLE], Opened>,
    /// Allocations that could not be opened, with their numbers and the reasons: they are not tried again.
    refused: HashMap<[u8; HANDLE], (u64, CudaError)>,
    /// Questions so far.
    asked: u64,
}

/// An allocation that is open.
#[derive(Debug)]
struct Opened {
    base: u64,
    /// In bytes.
    size: u64,
    number: u64,
    /// The last question for it.
    asked: u64,
}

/// An allocation that was not asked for in so many questions is in no operation that runs, and is closed.
const STALE: u64 = 1 << 16;
/// The time between two searches for such allocations, in questions.
const SWEEP: u64 = 1 << 12;
/// So many refusals are remembered.
const MOST_REFUSED: usize = 1 << 12;

impl PeerMemory {
    /// Nothing is open yet.
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), open: HashMap::new(), refused: HashMap::new(), asked: 0 }
    }

    /// The address of another process's memory in this one. It is valid until the value is dropped, the allocation
    /// forgotten, or 65,536 others were asked for; the other process frees the memory after that.
    ///
    /// # Errors
    /// The driver's: the memory is gone, or of a device that this one cannot access.
    pub fn open(&mut self, handle: &MemoryHandle) -> Result<u64, CudaError> {
        self.asked += 1;
        if self.asked.is_multiple_of(SWEEP) {
            self.sweep()?;
        }
        if let Some(opened) = self.open.get_mut(&handle.allocation) {
            if opened.number == handle.number {
                opened.asked = self.asked;
                return within(opened.base, opened.size, handle);
            }
            self.forget(handle)?;
        }
        if let Some((number, why)) = self.refused.get(&handle.allocation)
            && *number == handle.number
        {
            return Err(why.clone());
        }
        let entered = self.context.enter()?;
        let raw = CUipcMemHandle { reserved: handle.allocation.map(u8::cast_signed) };
        let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut base = 0;
        // SAFETY: `base` is writable; a handle that is none is refused by the driver.
        let opened = unsafe { entered.cuda().api.cuIpcOpenMemHandle_v2(&mut base, raw, flags) }.ok();
        if let Err(why) = opened {
            if self.refused.len() >= MOST_REFUSED {
                self.refused.clear();
            }
            self.refused.insert(handle.allocation, (handle.number, why.clone()));
            return Err(why);
        }
        // The driver's length counts, where it gives one.
        let size = match entered.cuda().classify(base)?.size {
            0 => handle.size,
            size => size,
        };
        let (number, asked) = (handle.number, self.asked);
        self.open.insert(handle.allocation, Opened { base, size, number, asked });
        within(base, size, handle)
    }

    /// Closes allocations that were not asked for for long.
    fn sweep(&mut self) -> Result<(), CudaError> {
        let entered = self.context.enter()?;
        let asked = self.asked;
        for (_, Opened { base, .. }) in self.open.extract_if(|_, opened| opened.asked + STALE < asked) {
            // SAFETY: opened here, and closed once.
            unsafe { entered.cuda().api.cuIpcCloseMemHandle(base) }.ok()?;
        }
        Ok(())
    }

    /// Closes an allocation whose owner is about to free it. No stream may be using it any more.
    ///
    /// # Errors
    /// The driver's.
    pub fn forget(&mut self, handle: &MemoryHandle) -> Result<(), CudaError> {
        let Some(Opened { base, .. }) = self.open.remove(&handle.allocation) else { return Ok(()) };
        let entered = self.context.enter()?;
        // SAFETY: opened here, and closed once.
        unsafe { entered.cuda().api.cuIpcCloseMemHandle(base) }.ok()
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        let Ok(entered) = self.context.enter() else { return };
        for &Opened { base, .. } in self.open.values() {
            // SAFETY: opened here, and closed once.
            let _ = unsafe { entered.cuda().api.cuIpcCloseMemHandle(base) }.ok();
        }
    }
}

/// The address that `handle` names in an allocation that was opened.
fn within(base: u64, size: u64, handle: &MemoryHandle) -> Result<u64, CudaError> {
    if handle.size > size {
        let (address, bytes) = (base.saturating_add(handle.offset), handle.len());
        return Err(CudaError::Range { address, bytes, base, size });
    }
    Ok(base + handle.offset)
}
