//! Devices: listed, opened, queried.

use core::ffi::{CStr, c_int};
use core::mem::{MaybeUninit, size_of};
use core::ptr::NonNull;
use std::os::fd::BorrowedFd;

use super::super::{Gid, GidKind};
use super::{Errno, ffi, interface_name};

/// A device that libibverbs has a driver for.
#[derive(Clone, Debug)]
pub(in super::super) struct ListedDevice {
    pub(in super::super) name: String,
    /// The character device's name, such as `uverbs0`.
    pub(in super::super) uverbs: String,
}

/// The list that `ibv_get_device_list` returns, freed when dropped.
struct List {
    base: NonNull<*mut rdma_sys::ibv_device>,
    len: usize,
}

impl List {
    fn new() -> Result<Self, Errno> {
        let mut len: c_int = 0;
        // SAFETY: room for the length.
        let base = unsafe { rdma_sys::ibv_get_device_list(&mut len) };
        let base = NonNull::new(base).ok_or_else(Errno::last)?;
        Ok(Self { base, len: usize::try_from(len).unwrap_or(0) })
    }

    fn devices(&self) -> &[*mut rdma_sys::ibv_device] {
        // SAFETY: an array of `len` pointers, each to a device that lives until the list is freed.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: from ibv_get_device_list, freed once; opened devices keep a reference of their own.
        unsafe { rdma_sys::ibv_free_device_list(self.base.as_ptr()) };
    }
}

fn found(device: *mut rdma_sys::ibv_device) -> ListedDevice {
    // SAFETY: a device of a list that is still held; both names are terminated strings inside it.
    let (name, uverbs) =
        unsafe { (CStr::from_ptr((*device).name.as_ptr()), CStr::from_ptr((*device).dev_name.as_ptr())) };
    ListedDevice { name: name.to_string_lossy().into_owned(), uverbs: uverbs.to_string_lossy().into_owned() }
}

/// The devices that libibverbs can drive. Where the kernel has no RDMA at all, an error.
pub(in super::super) fn list() -> Result<Vec<ListedDevice>, Errno> {
    Ok(List::new()?.devices().iter().map(|&device| found(device)).collect())
}

/// An asynchronous event: its type, and the port or queue pair that it is about.
pub(in super::super) struct DeviceEvent {
    pub(in super::super) kind: u32,
    pub(in super::super) port: u8,
    pub(in super::super) qp: u32,
}

/// An opened device and its protection domain. Closed when dropped.
#[derive(Debug)]
pub(in super::super) struct Domain {
    context: NonNull<rdma_sys::ibv_context>,
    pd: NonNull<rdma_sys::ibv_pd>,
}

// SAFETY: libibverbs lets any thread use a context and a protection domain, several at a time too.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// Opens device `name`; `None` if there is none of that name.
    pub(in super::super) fn open(name: &str) -> Result<Option<Self>, Errno> {
        // Pages that a device writes must not be copied to or from a forked child. Where another library registered
        // memory first, this fails, and that library's choice holds.
        // SAFETY: no arguments.
        unsafe { rdma_sys::ibv_fork_init() };
        let list = List::new()?;
        let Some(&device) = list.devices().iter().find(|&&d| found(d).name == name) else {
            return Ok(None);
        };
        // SAFETY: a device of the list above.
        let context = NonNull::new(unsafe { rdma_sys::ibv_open_device(device) }).ok_or_else(Errno::last)?;
        // SAFETY: the context was opened just now.
        let Some(pd) = NonNull::new(unsafe { rdma_sys::ibv_alloc_pd(context.as_ptr()) }) else {
            let errno = Errno::last();
            // SAFETY: opened above, nothing was made on it.
            unsafe { rdma_sys::ibv_close_device(context.as_ptr()) };
            return Err(errno);
        };
        let domain = Self { context, pd };
        domain.make_events_nonblocking()?;
        Ok(Some(domain))
    }

    fn make_events_nonblocking(&self) -> Result<(), Errno> {
        // SAFETY: the context is open, so its descriptor is.
        let fd = unsafe { BorrowedFd::borrow_raw((*self.context.as_ptr()).async_fd) };
        Ok(rustix::io::ioctl_fionbio(fd, true)?)
    }

    pub(super) fn context(&self) -> *mut rdma_sys::ibv_context {
        self.context.as_ptr()
    }

    pub(super) fn pd(&self) -> *mut rdma_sys::ibv_pd {
        self.pd.as_ptr()
    }

    /// The device's limits.
    pub(in super::super) fn limits(&self) -> Result<rdma_sys::ibv_device_attr, Errno> {
        let mut attributes = MaybeUninit::<rdma_sys::ibv_device_attr>::zeroed();
        // SAFETY: an open context, and room for the answer.
        Errno::check(unsafe { rdma_sys::ibv_query_device(self.context(), attributes.as_mut_ptr()) })?;
        // SAFETY: plain numbers, for which all zero was valid before they were filled in.
        Ok(unsafe { attributes.assume_init() })
    }

    /// A port's attributes; ports are counted from 1.
    pub(in super::super) fn port(&self, number: u8) -> Result<rdma_sys::ibv_port_attr, Errno> {
        let mut attributes = MaybeUninit::<rdma_sys::ibv_port_attr>::zeroed();
        // The exported function fills the structure's first fields, up to its flags; none that follow are read here.
        // SAFETY: an open context, and a zeroed structure that is at least as large as what is written.
        Errno::check(unsafe {
            rdma_sys::ibv_query_port(self.context(), number, attributes.as_mut_ptr().cast())
        })?;
        // SAFETY: plain numbers, for which all zero was valid before they were filled in.
        Ok(unsafe { attributes.assume_init() })
    }

    /// The valid entries of all ports' GID tables, `max` at most, with their ports: those whose index a connection can name.
    pub(in super::super) fn gids(&self, max: usize) -> Result<Vec<(u32, Gid)>, Errno> {
        let mut entries: Vec<rdma_sys::ibv_gid_entry> = Vec::with_capacity(max);
        // SAFETY: an open context, and room for `max` entries of the size that is given.
        let count = unsafe {
            ffi::_ibv_query_gid_table(
                self.context(),
                entries.as_mut_ptr(),
                max,
                0,
                size_of::<rdma_sys::ibv_gid_entry>(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            return Err(Errno(i32::try_from(count.saturating_neg()).unwrap_or(0)));
        };
        // SAFETY: that many entries, no more than asked for, were filled in.
        unsafe { entries.set_len(count.min(max)) };
        let gid = |entry: &rdma_sys::ibv_gid_entry| {
            let gid = Gid {
                index: u8::try_from(entry.gid_index).ok()?,
                // SAFETY: both variants of the union are sixteen plain bytes.
                raw: unsafe { entry.gid.raw },
                kind: GidKind::of(entry.gid_type),
                netdev: Some(entry.ndev_ifindex).filter(|index| *index != 0).and_then(interface_name),
            };
            Some((entry.port_num, gid))
        };
        Ok(entries.iter().filter_map(gid).collect())
    }

    /// The next asynchronous event, if there is one: read and acknowledged.
    pub(in super::super) fn next_event(&self) -> Option<DeviceEvent> {
        use rdma_sys::ibv_event_type as kind;
        let mut event = MaybeUninit::<ffi::AsyncEvent>::zeroed();
        // SAFETY: an open context, and room for the event. The descriptor does not block.
        if unsafe { ffi::ibv_get_async_event(self.context(), event.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: filled in, and all zero was valid before.
        let mut event = unsafe { event.assume_init() };
        let about_qp = [
            kind::IBV_EVENT_QP_FATAL,
            kind::IBV_EVENT_QP_REQ_ERR,
            kind::IBV_EVENT_QP_ACCESS_ERR,
            kind::IBV_EVENT_COMM_EST,
            kind::IBV_EVENT_SQ_DRAINED,
            kind::IBV_EVENT_QP_LAST_WQE_REACHED,
        ];
        let qp = if about_qp.iter().any(|&k| k as c_int == event.event_type) {
            // SAFETY: an event about a queue pair carries it, and destroying one waits until its events that were
            // read are acknowledged, which happens below.
            unsafe { (*event.element.cast::<rdma_sys::ibv_qp>()).qp_num }
        } else {
            0
        };
        // The union's port number is an int in its first four bytes, of which a port takes one.
        let port = (event.element as usize).to_ne_bytes()[if cfg!(target_endian = "big") { 3 } else { 0 }];
        // SAFETY: the event that was read above, once.
        unsafe { ffi::ibv_ack_async_event(&mut event) };
        Some(DeviceEvent { kind: u32::try_from(event.event_type).unwrap_or(u32::MAX), port, qp })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // A failure leaves the kernel to clean up when the process ends: there is nothing else to do about it.
        // SAFETY: all that was made on the domain held it, so nothing is left; each is given back once.
        unsafe {
            rdma_sys::ibv_dealloc_pd(self.pd.as_ptr());
            rdma_sys::ibv_close_device(self.context.as_ptr());
        }
    }
}
