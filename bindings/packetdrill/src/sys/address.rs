//! Socket addresses.

use core::mem::size_of;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use super::memory;
use crate::errno::{Errno, Result};

/// The places of port and address in the structures (`struct sockaddr_in`, `sockaddr_in6`).
const PORT: core::ops::Range<usize> = 2..4;
const ADDRESS_V4: core::ops::Range<usize> = 4..8;
const ADDRESS_V6: core::ops::Range<usize> = 8..24;

/// The address in a call, of any family.
///
/// # Safety
/// `address` is null or has `len` bytes.
pub(super) unsafe fn read(address: *const sockaddr, len: socklen_t) -> Result<Option<SocketAddr>> {
    if address.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    let len = usize::try_from(len).unwrap_or_default().min(size_of::<libc::sockaddr_storage>());
    // SAFETY: as the caller says.
    let bytes = unsafe { memory::copy_in(address.cast(), len) }?;
    let short = Errno(libc::EINVAL);
    let family = sa_family_t::from_ne_bytes(*bytes.first_chunk().ok_or(short)?);
    let port = |bytes: &[u8]| Some(u16::from_be_bytes(*bytes.get(PORT)?.first_chunk()?));
    match i32::from(family) {
        libc::AF_UNSPEC => Ok(None),
        libc::AF_INET if bytes.len() >= size_of::<sockaddr_in>() => {
            let ip: [u8; 4] = *bytes.get(ADDRESS_V4).and_then(|ip| ip.first_chunk()).ok_or(short)?;
            Ok(Some(SocketAddr::new(Ipv4Addr::from(ip).into(), port(&bytes).ok_or(short)?)))
        }
        libc::AF_INET6 if bytes.len() >= size_of::<sockaddr_in6>() => {
            let ip: [u8; 16] = *bytes.get(ADDRESS_V6).and_then(|ip| ip.first_chunk()).ok_or(short)?;
            Ok(Some(SocketAddr::new(Ipv6Addr::from(ip).into(), port(&bytes).ok_or(short)?)))
        }
        libc::AF_INET | libc::AF_INET6 => Err(short),
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Writes an address if the caller wants one, truncated to its room; `len` becomes the full length.
///
/// # Safety
/// `to` is null or has `*len` bytes; `len` is null or valid.
pub(super) unsafe fn write(address: SocketAddr, to: *mut sockaddr, len: *mut socklen_t) -> Result<()> {
    if to.is_null() {
        return Ok(());
    }
    let bytes = match address {
        SocketAddr::V4(address) => {
            let family = sa_family_t::try_from(libc::AF_INET).unwrap_or_default();
            let port = address.port().to_be_bytes();
            [&family.to_ne_bytes(), port.as_slice(), &address.ip().octets(), &[0; 8]].concat()
        }
        SocketAddr::V6(address) => {
            let family = sa_family_t::try_from(libc::AF_INET6).unwrap_or_default();
            let port = address.port().to_be_bytes();
            [&family.to_ne_bytes(), port.as_slice(), &[0; 4], &address.ip().octets(), &[0; 4]].concat()
        }
    };
    // SAFETY: as the caller says.
    unsafe {
        let room = usize::try_from(memory::get(len)?).unwrap_or_default();
        memory::copy_out(&bytes, to.cast(), 0, room)?;
        memory::put(len, socklen_t::try_from(bytes.len()).unwrap_or_default())
    }
}
