//! The interface's functions: they convert arguments and results; `machine` has the semantics.
//!
//! Each is unsafe for one reason: it trusts its pointers, as documented in the module above.

use core::ffi::{c_int, c_long, c_longlong, c_uint, c_ulong, c_void};
use core::time::Duration;

use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval,
    useconds_t,
};

use super::{address, control, memory, run};
use crate::errno::{Errno, Result};
use crate::host::Host;
use crate::machine::Arrived;

type User = *mut c_void;

/// The largest number of descriptors in one `poll`.
const MAX_POLLED: usize = 4096;

fn signed(count: usize) -> Result<ssize_t> {
    ssize_t::try_from(count).map_err(|_| Errno(libc::EINVAL))
}

fn unsigned(count: usize) -> Result<c_int> {
    c_int::try_from(count).map_err(|_| Errno(libc::EINVAL))
}

/// The timeout of `poll`, in milliseconds; `None` for a negative one.
fn timeout(millis: c_int) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// Receives at most `limit` bytes. `deliver` puts bytes into the caller's buffer, from an offset on.
fn receive(
    host: &Host,
    fd: c_int,
    limit: usize,
    flags: c_int,
    deliver: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
) -> Result<Arrived> {
    let mut arrived = Arrived::default();
    host.call(|machine, patience| machine.read(fd, limit, flags, deliver, &mut arrived, patience))
}

/// The return value of a receiving call.
fn length(arrived: &Arrived, flags: c_int) -> Result<ssize_t> {
    let whole = flags & libc::MSG_TRUNC != 0;
    signed(if whole { arrived.full_len } else { arrived.count })
}

fn transmit(
    host: &Host,
    fd: c_int,
    bytes: &[u8],
    to: Option<core::net::SocketAddr>,
    flags: c_int,
) -> Result<ssize_t> {
    let mut written = 0;
    host.call(|machine, patience| machine.write(fd, bytes, to, flags, &mut written, patience))
        .and_then(signed)
}

pub(super) unsafe extern "C" fn socket(user: User, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    run(user, |host| host.at_once(|machine| machine.socket(domain, kind, protocol)))
}

pub(super) unsafe extern "C" fn bind(user: User, fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    run(user, |host| {
        // SAFETY: see the module.
        let local = unsafe { address::read(to, len) }?.ok_or(Errno(libc::EAFNOSUPPORT))?;
        host.at_once(|machine| machine.bind(fd, local)).map(|()| 0)
    })
}

pub(super) unsafe extern "C" fn listen(user: User, fd: c_int, backlog: c_int) -> c_int {
    run(user, |host| host.at_once(|machine| machine.listen(fd, backlog)).map(|()| 0))
}

pub(super) unsafe extern "C" fn accept(
    user: User,
    fd: c_int,
    from: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    run(user, |host| {
        let (fd, remote) = host.call(|machine, patience| machine.accept(fd, patience))?;
        // SAFETY: see the module.
        unsafe { address::write(remote, from, len) }?;
        Ok(fd)
    })
}

pub(super) unsafe extern "C" fn connect(user: User, fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    run(user, |host| {
        // SAFETY: see the module.
        let remote = unsafe { address::read(to, len) }?;
        let mut begun = false;
        host.call(|machine, patience| machine.connect(fd, remote, &mut begun, patience)).map(|()| 0)
    })
}

pub(super) unsafe extern "C" fn read(user: User, fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: see the module.
    unsafe { recv(user, fd, into, len, 0) }
}

pub(super) unsafe extern "C" fn readv(user: User, fd: c_int, into: *const iovec, count: c_int) -> ssize_t {
    run(user, |host| {
        // SAFETY: see the module.
        let pieces = unsafe { memory::pieces(into, count) }?;
        // SAFETY: see the module.
        let mut deliver = |at, bytes: &[u8]| unsafe { memory::scatter(bytes, &pieces, at) };
        length(&receive(host, fd, memory::room(&pieces), 0, &mut deliver)?, 0)
    })
}

pub(super) unsafe extern "C" fn recv(
    user: User,
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: see the module.
    unsafe { recvfrom(user, fd, into, len, flags, core::ptr::null_mut(), core::ptr::null_mut()) }
}

pub(super) unsafe extern "C" fn recvfrom(
    user: User,
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    run(user, |host| {
        // SAFETY: see the module.
        let mut deliver = |at, bytes: &[u8]| unsafe { memory::copy_out(bytes, into, at, len) };
        let arrived = receive(host, fd, memory::limit(len), flags, &mut deliver)?;
        // SAFETY: see the module.
        unsafe {
            match arrived.from {
                Some(remote) => address::write(remote, from, from_len)?,
                // A stream has no source address.
                None => memory::put(from_len, 0)?,
            }
        }
        length(&arrived, flags)
    })
}

pub(super) unsafe extern "C" fn recvmsg(
    user: User,
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    run(user, |host| {
        // SAFETY: see the module.
        let mut header = unsafe { memory::get(message) }?;
        let count = c_int::try_from(header.msg_iovlen).map_err(|_| Errno(libc::EMSGSIZE))?;
        // SAFETY: see the module.
        let pieces = unsafe { memory::pieces(header.msg_iov, count) }?;
        // SAFETY: see the module.
        let mut deliver = |at, bytes: &[u8]| unsafe { memory::scatter(bytes, &pieces, at) };
        let arrived = receive(host, fd, memory::room(&pieces), flags, &mut deliver)?;
        // SAFETY: see the module; the lengths that are written lie in the caller's structure or in our copy of it.
        unsafe {
            match arrived.from {
                Some(remote) => {
                    address::write(remote, header.msg_name.cast(), &raw mut header.msg_namelen)?;
                }
                None => header.msg_namelen = 0,
            }
            header.msg_flags = if arrived.full_len > arrived.count { libc::MSG_TRUNC } else { 0 };
            let room = header.msg_controllen;
            header.msg_controllen = 0;
            if let Some(unread) = arrived.unread {
                let (control, whole) = control::message(libc::IPPROTO_TCP, libc::TCP_CM_INQ, unread, room);
                memory::copy_out(&control, header.msg_control, 0, room)?;
                header.msg_controllen = control.len();
                header.msg_flags |= if whole { 0 } else { libc::MSG_CTRUNC };
            }
            memory::put(message, header)?;
        }
        length(&arrived, flags)
    })
}

pub(super) unsafe extern "C" fn write(user: User, fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: see the module.
    unsafe { send(user, fd, from, len, 0) }
}

pub(super) unsafe extern "C" fn writev(user: User, fd: c_int, from: *const iovec, count: c_int) -> ssize_t {
    run(user, |host| {
        // SAFETY: see the module.
        let bytes = unsafe { memory::gather(&memory::pieces(from, count)?) }?;
        transmit(host, fd, &bytes, None, 0)
    })
}

pub(super) unsafe extern "C" fn send(
    user: User,
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: see the module.
    unsafe { sendto(user, fd, from, len, flags, core::ptr::null(), 0) }
}

pub(super) unsafe extern "C" fn sendto(
    user: User,
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    run(user, |host| {
        // SAFETY: see the module.
        let bytes = unsafe { memory::copy_in(from, len) }?;
        // SAFETY: see the module.
        let to = if to.is_null() { None } else { unsafe { address::read(to, to_len) }? };
        transmit(host, fd, &bytes, to, flags)
    })
}

pub(super) unsafe extern "C" fn sendmsg(
    user: User,
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    run(user, |host| {
        // SAFETY: see the module.
        let header = unsafe { memory::get(message) }?;
        let count = c_int::try_from(header.msg_iovlen).map_err(|_| Errno(libc::EMSGSIZE))?;
        // SAFETY: see the module.
        let bytes = unsafe { memory::gather(&memory::pieces(header.msg_iov, count)?) }?;
        let to = if header.msg_name.is_null() {
            None
        } else {
            // SAFETY: see the module.
            unsafe { address::read(header.msg_name.cast(), header.msg_namelen) }?
        };
        transmit(host, fd, &bytes, to, flags)
    })
}

pub(super) unsafe extern "C" fn fcntl(user: User, fd: c_int, command: c_int, argument: c_long) -> c_int {
    run(user, |host| {
        // The argument is an int: its upper half is undefined.
        let argument = argument as c_int;
        host.at_once(|machine| machine.fcntl(fd, command, argument))
    })
}

pub(super) unsafe extern "C" fn ioctl(
    user: User,
    fd: c_int,
    request: c_ulong,
    argument: *mut c_int,
) -> c_int {
    run(user, |host| {
        let given = if request == libc::FIONBIO {
            // SAFETY: see the module.
            unsafe { memory::get(argument) }?
        } else {
            0
        };
        if let Some(value) = host.at_once(|machine| machine.ioctl(fd, request, given))? {
            if argument.is_null() {
                return Err(Errno(libc::EFAULT));
            }
            // SAFETY: see the module.
            unsafe { memory::put(argument, value) }?;
        }
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn close(user: User, fd: c_int) -> c_int {
    run(user, |host| host.call(|machine, patience| machine.close(fd, patience)).map(|()| 0))
}

pub(super) unsafe extern "C" fn shutdown(user: User, fd: c_int, how: c_int) -> c_int {
    run(user, |host| host.at_once(|machine| machine.shutdown(fd, how)).map(|()| 0))
}

pub(super) unsafe extern "C" fn getsockopt(
    user: User,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    run(user, |host| {
        // SAFETY: see the module.
        let room = usize::try_from(unsafe { memory::get(len) }?).unwrap_or_default();
        let bytes = host.at_once(|machine| machine.option(fd, level, name))?;
        let count = socklen_t::try_from(bytes.len().min(room)).unwrap_or_default();
        // SAFETY: see the module.
        unsafe {
            memory::copy_out(&bytes, value, 0, room)?;
            memory::put(len, count)?;
        }
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn setsockopt(
    user: User,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    run(user, |host| {
        // SAFETY: see the module.
        let bytes = unsafe { memory::copy_in(value, usize::try_from(len).unwrap_or_default()) }?;
        host.at_once(|machine| machine.set_option(fd, level, name, &bytes)).map(|()| 0)
    })
}

pub(super) unsafe extern "C" fn poll(user: User, fds: *mut pollfd, count: nfds_t, millis: c_int) -> c_int {
    run(user, |host| {
        let count = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
        // SAFETY: see the module.
        let asked = unsafe { memory::all(fds.cast_const(), count, MAX_POLLED) }?;
        let wanted: Vec<(i32, i16)> = asked.iter().map(|entry| (entry.fd, entry.events)).collect();
        let bits = host.call(|machine, patience| machine.poll(&wanted, timeout(millis), patience))?;
        for (index, (entry, revents)) in asked.iter().zip(&bits).enumerate() {
            // SAFETY: within the caller's array, whose elements were read above.
            unsafe { memory::put(fds.add(index), pollfd { revents: *revents, ..*entry }) }?;
        }
        unsigned(bits.iter().filter(|bits| **bits != 0).count())
    })
}

pub(super) unsafe extern "C" fn netdev_send(user: User, packet: *const c_void, len: size_t) -> c_int {
    run(user, |host| {
        // SAFETY: see the module.
        let packet = unsafe { memory::copy_in(packet, len) }?;
        host.inject(&packet).map(|()| 0)
    })
}

pub(super) unsafe extern "C" fn netdev_receive(
    user: User,
    into: *mut c_void,
    len: *mut size_t,
    at: *mut c_longlong,
) -> c_int {
    run(user, |host| {
        // SAFETY: see the module.
        let room = unsafe { memory::get(len) }?;
        let (packet, time) = host.next_packet().unwrap_or_else(|| (Vec::new(), host.clock()));
        // SAFETY: see the module.
        unsafe {
            memory::copy_out(&packet, into, 0, room)?;
            memory::put(len, packet.len().min(room))?;
            memory::put(at, time)?;
        }
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn usleep(user: User, micros: useconds_t) -> c_int {
    run(user, |host| {
        host.sleep(Duration::from_micros(u64::from(micros)));
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn gettimeofday(user: User, time: *mut timeval, _zone: *mut c_void) -> c_int {
    run(user, |host| {
        let micros = host.clock();
        let value = timeval { tv_sec: micros.div_euclid(1_000_000), tv_usec: micros.rem_euclid(1_000_000) };
        // SAFETY: see the module.
        unsafe { memory::put(time, value) }?;
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn epoll_create(user: User, size: c_int) -> c_int {
    run(user, |host| {
        if size <= 0 {
            return Err(Errno(libc::EINVAL));
        }
        host.at_once(|machine| machine.epoll_create())
    })
}

pub(super) unsafe extern "C" fn epoll_ctl(
    user: User,
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    run(user, |host| {
        // SAFETY: see the module.
        let event = unsafe { memory::get(event.cast_const()) }.ok().map(|event| (event.events, event.u64));
        host.at_once(|machine| machine.epoll_control(epoll, operation, fd, event)).map(|()| 0)
    })
}

pub(super) unsafe extern "C" fn epoll_wait(
    user: User,
    epoll: c_int,
    events: *mut epoll_event,
    limit: c_int,
    millis: c_int,
) -> c_int {
    run(user, |host| {
        let limit = usize::try_from(limit).ok().filter(|limit| *limit > 0).ok_or(Errno(libc::EINVAL))?;
        if events.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        let ready =
            host.call(|machine, patience| machine.epoll_wait(epoll, limit, timeout(millis), patience))?;
        for (index, event) in ready.iter().enumerate() {
            // SAFETY: `ready` has at most as many as the caller has room for.
            unsafe { memory::put(events.add(index), epoll_event { events: event.events, u64: event.data }) }?;
        }
        unsigned(ready.len())
    })
}

pub(super) unsafe extern "C" fn pipe(user: User, ends: *mut c_int) -> c_int {
    run(user, |host| {
        if ends.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        let (reader, writer) = host.at_once(|machine| machine.pipe())?;
        // SAFETY: the caller's array of two.
        unsafe {
            memory::put(ends, reader)?;
            memory::put(ends.add(1), writer)?;
        }
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn splice(
    user: User,
    from: c_int,
    from_offset: *mut loff_t,
    to: c_int,
    to_offset: *mut loff_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    run(user, |host| {
        if !from_offset.is_null() || !to_offset.is_null() {
            return Err(Errno(libc::ESPIPE));
        }
        let moved =
            host.call(|machine, patience| machine.splice(from, to, memory::limit(len), flags, patience))?;
        signed(moved)
    })
}
