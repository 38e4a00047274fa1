//! Control messages of `recvmsg`, as Linux lays them out (`cmsg(3)`).

use core::mem::size_of;

use libc::{c_int, cmsghdr};

/// The bytes of one message with an int, truncated to `room`, and whether it is complete.
pub(super) fn message(level: c_int, kind: c_int, value: c_int, room: usize) -> (Vec<u8>, bool) {
    const HEADER: usize = size_of::<cmsghdr>();
    let whole = HEADER + size_of::<c_int>();
    if room < HEADER {
        return (Vec::new(), false);
    }
    let len = whole.min(room);
    let mut bytes =
        [&len.to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes(), &value.to_ne_bytes()].concat();
    // The next message would begin at an aligned offset.
    bytes.resize(whole.next_multiple_of(size_of::<usize>()).min(room), 0);
    (bytes, len == whole)
}
