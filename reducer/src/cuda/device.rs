//! The devices that this process sees, and their properties.
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int};

use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute, CUuuid};

use super::{Cuda, CudaError};

/// The processes that may have contexts on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any number of processes.
    Default,
    /// No process.
    Prohibited,
    /// One process at a time.
    ExclusiveProcess,
}

/// A device that this process sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number in this process, after `CUDA_VISIBLE_DEVICES`.
    pub ordinal: i32,
    /// The product's name.
    pub name: String,
    /// The same for all processes; that of the instance where the device is one of several that share a GPU (MIG).
    pub uuid: [u8; 16],
    /// Compute capability (major, minor).
    pub capability: (u32, u32),
    /// Memory in bytes.
    pub memory: u64,
    /// Where it sits, as `0000:3b:00.0`; empty where the driver does not say.
    pub pci: String,
    /// The processes that may have contexts on it.
    pub compute_mode: ComputeMode,
    /// Whether it is a slice of a GPU (MIG), judged by its name.
    pub mig: bool,
    /// Whether its memory can be handed out as a dmabuf.
    pub dmabuf: bool,
    /// Whether NICs may access its memory (GPUDirect RDMA).
    pub gpu_direct_rdma: bool,
    /// Whether other processes of the host can open its memory (CUDA IPC).
    pub ipc: bool,
    /// Whether streams can wait for a value in memory.
    pub wait_value: bool,
    /// Whether it has managed memory.
    pub managed: bool,
    /// Whether it uses the host's memory as its own.
    pub integrated: bool,
}

impl DeviceInfo {
    /// The UUID as `nvidia-smi -L` and `CUDA_VISIBLE_DEVICES` have it: `GPU-` or `MIG-`, then five groups of digits.
    pub fn uuid_text(&self) -> String {
        let mut text = String::from(if self.mig { "MIG" } else { "GPU" });
        for (index, byte) in self.uuid.iter().enumerate() {
            if [0, 4, 6, 8, 10].contains(&index) {
                text.push('-');
            }
            text += &format!("{byte:02x}");
        }
        text
    }
}

impl Cuda {
    /// How many devices this process sees.
    pub(super) fn device_count(&self) -> Result<i32, CudaError> {
        let mut count = 0;
        // SAFETY: `count` is writable.
        unsafe { self.api.cuDeviceGetCount(&mut count) }.ok()?;
        Ok(count)
    }

    /// The handle of a device.
    pub(super) fn device(&self, ordinal: i32) -> Result<CUdevice, CudaError> {
        let mut device = 0;
        // SAFETY: `device` is writable.
        unsafe { self.api.cuDeviceGet(&mut device, ordinal) }.ok()?;
        Ok(device)
    }

    /// An attribute of a device; zero where the driver does not know it.
    pub(super) fn attribute(&self, device: CUdevice, attribute: Attribute) -> i32 {
        let mut value = 0;
        // SAFETY: `value` is writable.
        match unsafe { self.api.cuDeviceGetAttribute(&mut value, attribute as c_int, device) }.ok() {
            Ok(()) => value,
            Err(_) => 0,
        }
    }

    /// The processes that may have contexts on a device.
    pub(super) fn compute_mode(&self, device: CUdevice) -> ComputeMode {
        match self.attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) {
            2 => ComputeMode::Prohibited,
            1 | 3 => ComputeMode::ExclusiveProcess,
            _ => ComputeMode::Default,
        }
    }

    /// All devices that this process sees, by ordinal.
    ///
    /// # Errors
    /// The driver's.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, CudaError> {
        (0..self.device_count()?).map(|ordinal| self.device_info(ordinal)).collect()
    }

    fn device_info(&self, ordinal: i32) -> Result<DeviceInfo, CudaError> {
        let device = self.device(ordinal)?;
        let has = |attribute| self.attribute(device, attribute) != 0;
        let number = |attribute| self.attribute(device, attribute).unsigned_abs();
        // SAFETY: the text is writable for the length that the driver is given.
        let name = text(|at, len| unsafe { self.api.cuDeviceGetName(at, len, device) }.ok())?;
        // SAFETY: as for the name.
        let pci = text(|at, len| unsafe { self.api.cuDeviceGetPCIBusId(at, len, device) }.ok());
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: `uuid` is writable.
        unsafe { self.api.cuDeviceGetUuid_v2(&mut uuid, device) }.ok()?;
        let mut memory = 0;
        // SAFETY: `memory` is writable.
        unsafe { self.api.cuDeviceTotalMem_v2(&mut memory, device) }.ok()?;
        Ok(DeviceInfo {
            ordinal,
            uuid: uuid.bytes.map(|byte| byte.cast_unsigned()),
            capability: (
                number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            ),
            memory: memory as u64,
            pci: pci.unwrap_or_default(),
            compute_mode: self.compute_mode(device),
            mig: name.contains(" MIG "),
            dmabuf: has(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
            gpu_direct_rdma: has(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED),
            // The attribute came with CUDA 12; before, events could be shared wherever memory could.
            ipc: has(Attribute::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED)
                || (has(Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)
                    && !has(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)),
            // Of the operations in force since CUDA 12 only the additions have attributes of their own; the first attribute
            // is that of the deprecated operations.
            wait_value: has(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1)
                || has(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)
                || has(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR),
            managed: has(Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY),
            integrated: has(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED),
            name,
        })
    }

    /// Whether device `a` can access the memory of device `b` directly (by ordinal).
    ///
    /// # Errors
    /// One of the devices does not exist, or the driver's.
    pub fn peer_access(&self, a: i32, b: i32) -> Result<bool, CudaError> {
        if a == b {
            return Ok(true);
        }
        let (a, b) = (self.device(a)?, self.device(b)?);
        let mut can = 0;
        // SAFETY: `can` is writable.
        unsafe { self.api.cuDeviceCanAccessPeer(&mut can, a, b) }.ok()?;
        Ok(can != 0)
    }
}

/// A text that the driver writes.
fn text(write: impl FnOnce(*mut c_char, c_int) -> Result<(), CudaError>) -> Result<String, CudaError> {
    let mut bytes = [0u8; 256];
    write(bytes.as_mut_ptr().cast(), 256)?;
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
}
