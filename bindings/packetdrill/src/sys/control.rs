//! Control messages of `recvmsg`, as Linux lays them out (`cmsg(3)`).

use core::mem::size_of;

use libc::{c_int, cmsghdr};

/// The bytes of one message with an int, as many as there is `room` for, and whether that is all of it.
pub(super) fn message(level: c_int, kind: c_int, value: c_int, room: usize) -> (Vec<u8>, bool) {
    const HEADER: usize = size_of::<cmsghdr>();
    let whole = HEADER + size_of::<c_int>();
    if room < HEADER {
        return (Vec::new(), false);
    }
    let len = whole.min(room);
    let mut bytes =
        [&len.to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes(), &value.to_ne_bytes()].concat();
    // What follows would begin where a header may.
    bytes.resize(whole.next_multiple_of(size_of::<usize>()).min(room), 0);
    (bytes, len == whole)
}
