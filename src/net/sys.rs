//! Shared memory as a region that a device may read: the invariant here that the compiler cannot check.

use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use shouter_netstack::region::{Extent, Region};

/// Bytes that are kept, and never written, as long as this lives.
#[derive(Debug)]
pub(super) struct SharedRegion {
    /// Held, not looked at: the extent is.
    _bytes: Arc<[u8]>,
    extent: Extent,
}

impl SharedRegion {
    /// Up to 4 GiB of shared bytes; `None` above.
    pub(super) fn new(bytes: Arc<[u8]>) -> Option<Rc<Self>> {
        let len = u32::try_from(bytes.len()).ok()?;
        let base = NonNull::from(&*bytes).cast::<u8>();
        // SAFETY: the bytes are behind an Arc that the SharedRegion holds: they do not move and are not freed while it
        // lives, and nobody can write them, since there is no `&mut` to what a shared Arc holds. `Shared::sent_from` keeps it
        // until the extent was released and no frame refers to it.
        let region = unsafe { Region::from_raw_parts(base, bytes.len()) };
        let extent = region.extent(0, len)?;
        Some(Rc::new(Self { _bytes: bytes, extent }))
    }

    /// All of them. The owner of the extent keeps the `SharedRegion` until nothing refers to it any more.
    pub(super) fn extent(&self) -> Extent {
        self.extent
    }
}
