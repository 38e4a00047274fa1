//! The driver's attributes of an address: it knows every address of its own, and of host memory that was registered with it.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::{CUcontext, CUpointer_attribute as Attribute};

use super::{Cuda, CudaError};

/// The kind of memory that an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerKind {
    /// Unknown to the driver: ordinary host memory, freed memory, or an address of another process.
    Unknown,
    /// Host memory that is page-locked: allocated so, or registered.
    Pinned,
    /// Memory of a device.
    Device,
    /// Managed memory, which moves between host and device.
    Managed,
}

/// The driver's attributes of an address.
#[derive(Clone, Copy, Debug)]
pub struct Pointer {
    /// The address asked about.
    pub address: u64,
    /// The kind of memory that it is in.
    pub kind: PointerKind,
    /// The ordinal of the device that it belongs to, or that it was registered with.
    pub device: Option<i32>,
    /// Where its allocation begins; zero where the driver does not say.
    pub base: u64,
    /// Length of its allocation in bytes; zero where the driver does not say.
    pub size: u64,
    /// Whether it can be shared with other processes by a legacy IPC handle: memory of cudaMalloc can, that of
    /// cudaMallocAsync and of virtual mappings (expandable segments) cannot.
    pub legacy_ipc: bool,
    /// The number of its allocation, which no other of this process ever has; zero where there is none.
    pub allocation: u64,
    /// Whether NICs may access it (GPUDirect RDMA).
    pub gpu_direct_rdma: bool,
    /// Null where it belongs to a device rather than a context.
    pub(super) context: CUcontext,
}

// SAFETY: the context is a handle, which the driver lets every thread use; it is not dereferenced.
unsafe impl Send for Pointer {}
// SAFETY: as for Send.
unsafe impl Sync for Pointer {}

impl Cuda {
    /// The driver's attributes of `address`. An address that it does not know is no error, but [`PointerKind::Unknown`].
    ///
    /// # Errors
    /// The driver's.
    pub fn classify(&self, address: u64) -> Result<Pointer, CudaError> {
        const COUNT: usize = 9;
        let mut attributes: [c_int; COUNT] = [
            Attribute::CU_POINTER_ATTRIBUTE_CONTEXT as c_int,
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as c_int,
            Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED as c_int,
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_int,
            Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE as c_int,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as c_int,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE as c_int,
            Attribute::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE as c_int,
            Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID as c_int,
        ];
        // Values are of 1, 4 or 8 bytes; the low ones of each word are written.
        let mut values = [0u64; COUNT];
        let mut places: [*mut c_void; COUNT] =
            values.each_mut().map(|value| core::ptr::from_mut(value).cast());
        // SAFETY: both arrays have `COUNT` entries, and each place has room for the widest value. The address is
        // looked up, not accessed.
        unsafe {
            self.api.cuPointerGetAttributes(
                COUNT as c_uint,
                attributes.as_mut_ptr(),
                places.as_mut_ptr(),
                address,
            )
        }
        .ok()?;
        let [context, kind, managed, ordinal, legacy_ipc, base, size, rdma, allocation] = values;
        let kind = match (kind as u32, managed as u8 != 0) {
            (0, _) => PointerKind::Unknown,
            (_, true) => PointerKind::Managed,
            (1, false) => PointerKind::Pinned,
            _ => PointerKind::Device,
        };
        let known = kind != PointerKind::Unknown;
        let ordinal = (ordinal as u32).cast_signed();
        Ok(Pointer {
            address,
            kind,
            device: (known && ordinal >= 0).then_some(ordinal),
            base: if known { base } else { 0 },
            size: if known { size } else { 0 },
            legacy_ipc: known && legacy_ipc as u8 != 0,
            allocation: if known { allocation } else { 0 },
            gpu_direct_rdma: known && rdma as u8 != 0,
            context: if known { context as CUcontext } else { core::ptr::null_mut() },
        })
    }

    /// The driver's attributes of `bytes` bytes at `address`, which must be memory that a device can access, within one
    /// allocation. Virtual mappings count as one allocation with those that follow without a gap: that is how
    /// expandable segments grow.
    ///
    /// # Errors
    /// The memory is no device's, the range goes beyond its allocation, or the driver's.
    pub fn classify_range(&self, address: u64, bytes: u64) -> Result<Pointer, CudaError> {
        let pointer = self.classify(address)?;
        if pointer.kind == PointerKind::Unknown {
            return Err(CudaError::NotDevice { address });
        }
        let refused = CudaError::Range { address, bytes, base: pointer.base, size: pointer.size };
        let Some(end) = address.checked_add(bytes) else { return Err(refused) };
        let mut at = pointer;
        loop {
            let covered = at.base.saturating_add(at.size);
            if at.size == 0 || covered <= at.address {
                // The driver does not say how long it is: then the last byte must at least be of the same kind.
                let last = self.classify(end.saturating_sub(1).max(address))?;
                let same = (last.kind, last.device) == (pointer.kind, pointer.device);
                return if same { Ok(pointer) } else { Err(refused) };
            }
            if end <= covered {
                return Ok(pointer);
            }
            if at.kind != PointerKind::Device || at.legacy_ipc {
                return Err(refused);
            }
            at = self.classify(covered)?;
            if (at.kind, at.device) != (pointer.kind, pointer.device) {
                return Err(refused);
            }
        }
    }
}

impl Pointer {
    /// Bytes from the allocation's start to the address.
    pub fn offset(&self) -> u64 {
        self.address.saturating_sub(self.base)
    }
}
