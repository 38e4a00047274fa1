//! The structure of functions for packetdrill; their order is the interface.

use core::ffi::{c_int, c_long, c_longlong, c_uint, c_ulong, c_void};

use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval,
    useconds_t,
};

use super::{calls, free};

type User = *mut c_void;

/// Makes the structure of functions, in this order, and the one value that it has.
macro_rules! interface {
    ($(#[$about:meta])* $($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        $(#[$about])*
        #[repr(C)]
        #[allow(missing_docs, reason = "the functions are those of POSIX and Linux")]
        #[derive(Debug)]
        pub struct PacketdrillInterface {
            pub userdata: User,
            pub free: unsafe extern "C" fn(User),
            $(pub $name: unsafe extern "C" fn(User, $($argument),*) -> $result,)*
        }

        /// The interface of one stack.
        pub(super) fn filled(userdata: User) -> PacketdrillInterface {
            PacketdrillInterface { userdata, free, $($name: calls::$name,)* }
        }
    };
}

interface! {
    /// `struct packetdrill_interface`.
    ///
    /// `fcntl` and `ioctl` are variadic in C. They are called with one further argument at most, an int or a pointer, which
    /// the calling conventions of Linux on x86-64 and AArch64 pass as they do to a function with three fixed arguments of
    /// that width. packetdrill's header has `splice` return an int: that is the lower half of the value returned here.
    socket(c_int, c_int, c_int) -> c_int;
    bind(c_int, *const sockaddr, socklen_t) -> c_int;
    listen(c_int, c_int) -> c_int;
    accept(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    connect(c_int, *const sockaddr, socklen_t) -> c_int;
    read(c_int, *mut c_void, size_t) -> ssize_t;
    readv(c_int, *const iovec, c_int) -> ssize_t;
    recv(c_int, *mut c_void, size_t, c_int) -> ssize_t;
    recvfrom(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    recvmsg(c_int, *mut msghdr, c_int) -> ssize_t;
    write(c_int, *const c_void, size_t) -> ssize_t;
    writev(c_int, *const iovec, c_int) -> ssize_t;
    send(c_int, *const c_void, size_t, c_int) -> ssize_t;
    sendto(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;
    sendmsg(c_int, *const msghdr, c_int) -> ssize_t;
    fcntl(c_int, c_int, c_long) -> c_int;
    ioctl(c_int, c_ulong, *mut c_int) -> c_int;
    close(c_int) -> c_int;
    shutdown(c_int, c_int) -> c_int;
    getsockopt(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
    setsockopt(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    poll(*mut pollfd, nfds_t, c_int) -> c_int;
    netdev_send(*const c_void, size_t) -> c_int;
    netdev_receive(*mut c_void, *mut size_t, *mut c_longlong) -> c_int;
    usleep(useconds_t) -> c_int;
    gettimeofday(*mut timeval, *mut c_void) -> c_int;
    epoll_create(c_int) -> c_int;
    epoll_ctl(c_int, c_int, c_int, *mut epoll_event) -> c_int;
    epoll_wait(c_int, *mut epoll_event, c_int, c_int) -> c_int;
    pipe(*mut c_int) -> c_int;
    splice(c_int, *mut loff_t, c_int, *mut loff_t, size_t, c_uint) -> ssize_t;
}
