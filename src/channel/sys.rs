//! The one place where the reducer's memory becomes the stack's.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use shouter_netstack::region::{Extent, Region, RegionId};
use shouter_reducer::transport::PayloadRange;

/// The range as the stack sees it; `None` if it holds no bytes.
#[inline]
pub(crate) fn extent_of(range: &PayloadRange) -> Option<Extent> {
    if range.is_empty() {
        return None;
    }
    let base = NonNull::new(range.as_ptr().cast_mut())?;
    // SAFETY: the reducer promises with `Transport::send` that the range stays readable and unwritten until its token
    // is released, which is what the stack asks of an extent.
    let region = unsafe { Region::from_raw_parts(RegionId(0), base, range.len()) };
    region.extent(0, u32::try_from(range.len()).ok()?)
}
