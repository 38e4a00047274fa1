//! Frames that leave work to the port: super-segments, checksums, and frames in several buffers, in both directions.
//!
//! A queue takes this path if its port was opened with offloads; the others keep to the one in `mbuf`.

use core::mem::MaybeUninit;
use core::ptr;

use dpdk_sys::rte_mbuf;

use super::external::attach;
use super::lcore::BorrowedLcore;
use super::mbuf::{self, BURST, Queue, clear_ipv4_checksum, data_of, linearise};
use crate::device::{Frame, HEAD_MIN, Offload, RxChecksum, RxFrame, Transport, segment};

/// Pieces behind the first that a received frame is handed over in; one of more buffers is put together first.
pub(super) const PIECES: usize = 64;

/// Bytes of frames after which a burst is handed over: copied bytes are still in the cache when the peer reads them,
/// and little was built in vain when the ring is full.
const BURST_BYTES: usize = 128 << 10;

/// Why a frame cannot be sent or handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// It is too long, or its offload request is invalid.
    TooLong,
    /// Its transport checksum is wrong.
    Damaged,
}

/// Why no mbufs were made for a frame.
enum NotBuilt {
    NoBuffers,
    Unfit,
}

impl Queue {
    /// Sends up to [`BURST`] frames with their offloads, copied into as many buffers as it takes; returns how many were
    /// taken. Those for which the ring had no room are kept, and no more are taken until they went.
    pub(in super::super) fn send_offloaded_copied(&mut self, frames: &[Frame]) -> usize {
        // SAFETY: the queue's own id, and `self` is borrowed by one thread.
        let _lcore = unsafe { BorrowedLcore::new(self.lcore) };
        if !self.push() {
            return 0;
        }
        let (taken, mut filled) = self.build(frames, None);
        if self.prepares {
            filled = self.prepare(filled);
        }
        (self.staged_from, self.staged_to) = (0, filled);
        self.push();
        taken
    }

    /// Sends up to [`BURST`] frames with their offloads, payload of `chain_from` bytes or more chained behind the
    /// header and not copied; returns how many were taken. Only for drivers that have read the payload when
    /// `rte_eth_tx_burst` returns.
    pub(in super::super) fn send_offloaded_chained(&mut self, frames: &[Frame], chain_from: usize) -> usize {
        // SAFETY: the queue's own id, and `self` is borrowed by one thread.
        let _lcore = unsafe { BorrowedLcore::new(self.lcore) };
        let (taken, filled) = self.build(frames, Some(chain_from));
        // SAFETY: the first `filled` are frames that we own.
        let sent = unsafe { self.transmit_staged(filled) };
        if sent == filled { taken } else { mbuf::taken(&frames[..taken], sent, fits) }
    }

    /// Makes mbufs of frames, in the staging array; returns how many frames that took care of, and how many are staged.
    fn build(&mut self, frames: &[Frame], chain_from: Option<usize>) -> (usize, usize) {
        let (mut filled, mut bytes) = (0, 0);
        for (index, frame) in frames.iter().take(BURST).enumerate() {
            if bytes >= BURST_BYTES {
                return (index, filled);
            }
            bytes += frame.len();
            match self.build_one(frame, chain_from) {
                Ok(mbuf) => {
                    self.staged[filled] = mbuf;
                    filled += 1;
                }
                Err(NotBuilt::NoBuffers) => return (index, filled),
                Err(NotBuilt::Unfit) => self.oversized += 1,
            }
        }
        (frames.len().min(BURST), filled)
    }

    fn build_one(&mut self, frame: &Frame, chain_from: Option<usize>) -> Result<*mut rte_mbuf, NotBuilt> {
        if !fits(frame) {
            return Err(NotBuilt::Unfit);
        }
        let room = usize::from(self.port().pool().room);
        let header = frame.header();
        let mut chain = Chain::new(self.fresh()?);
        // SAFETY: a fresh buffer holds `room` bytes, and a header always fits.
        unsafe { chain.append(header.as_ptr(), header.len()) };
        let payload = frame.len() - header.len();
        let copies = chain_from.is_none_or(|least| payload < least && frame.len() <= room);
        for extent in frame.extents() {
            let mut at = 0;
            while at < extent.len() {
                if copies {
                    if chain.len_of_last() == room {
                        chain.link(self.fresh()?);
                    }
                    let part = (extent.len() - at).min(room - chain.len_of_last());
                    // SAFETY: `part` bytes are left in the last buffer and in the extent, which is readable.
                    unsafe { chain.append(extent.as_ptr().add(at), part) };
                    at += part;
                } else {
                    let tail = self.fresh()?;
                    let bytes = u16::try_from(extent.len()).unwrap_or(u16::MAX);
                    // SAFETY: a fresh buffer; the extent stays readable until the frame is released, and the driver has
                    // let go of it before `rte_eth_tx_burst` returns or when the chain is freed.
                    unsafe { attach(tail, self.external, extent, at, bytes) };
                    chain.link_filled(tail);
                    at += usize::from(bytes);
                }
            }
        }
        if !frame.offload().is_none() {
            // SAFETY: the header was copied to the head's first bytes.
            unsafe { ask(chain.head, frame, self.ipv4_checksum) };
        }
        Ok(chain.finish(frame.len()))
    }

    /// A buffer from the pool.
    fn fresh(&mut self) -> Result<*mut rte_mbuf, NotBuilt> {
        // SAFETY: the pool lives as long as the port.
        let mbuf = unsafe { dpdk_sys::rte_pktmbuf_alloc(self.port().pool().as_ptr()) };
        if mbuf.is_null() { Err(NotBuilt::NoBuffers) } else { Ok(mbuf) }
    }

    /// Shows the first `filled` staged frames to the driver, drops those that it refuses, and returns how many are left.
    fn prepare(&mut self, mut filled: usize) -> usize {
        let mut ready = 0;
        while ready < filled {
            let rest = &mut self.staged[ready..filled];
            // SAFETY: frames that we own.
            let passed = unsafe {
                dpdk_sys::rte_eth_tx_prepare(self.number, self.index, rest.as_mut_ptr(), rest.len() as u16)
            };
            ready += usize::from(passed);
            if ready < filled {
                self.free(ready, ready + 1);
                self.staged.copy_within(ready + 1..filled, ready);
                filled -= 1;
                self.oversized += 1;
            }
        }
        filled
    }
}

/// Whether a frame has bytes, and no more than an IP packet may have.
fn fits(frame: &Frame) -> bool {
    let l3 = usize::from(frame.offload().l3_offset);
    (1..=usize::from(u16::MAX) + l3.max(18)).contains(&frame.len())
}

/// Buffers of one frame, being filled. Freed if it is dropped before it is finished.
struct Chain {
    head: *mut rte_mbuf,
    last: *mut rte_mbuf,
    buffers: u16,
}

impl Chain {
    fn new(head: *mut rte_mbuf) -> Self {
        Self { head, last: head, buffers: 1 }
    }

    fn len_of_last(&self) -> usize {
        // SAFETY: a live buffer that is ours.
        usize::from(unsafe { (*self.last).data_len })
    }

    /// Copies bytes behind those of the last buffer.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes, for which there is room.
    unsafe fn append(&mut self, from: *const u8, len: usize) {
        // SAFETY: by contract; the buffer is ours.
        unsafe {
            let to = data_of(self.last).add(self.len_of_last());
            ptr::copy_nonoverlapping(from, to, len);
            (*self.last).data_len += len as u16;
        }
    }

    /// Adds an empty buffer.
    fn link(&mut self, mbuf: *mut rte_mbuf) {
        self.link_filled(mbuf);
    }

    /// Adds a buffer with its bytes.
    fn link_filled(&mut self, mbuf: *mut rte_mbuf) {
        // SAFETY: both are ours.
        unsafe { (*self.last).next = mbuf };
        self.last = mbuf;
        self.buffers += 1;
    }

    fn finish(self, len: usize) -> *mut rte_mbuf {
        // SAFETY: ours.
        unsafe {
            (*self.head).pkt_len = len as u32;
            (*self.head).nb_segs = self.buffers;
        }
        let head = self.head;
        core::mem::forget(self);
        head
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // SAFETY: a chain of buffers that are ours; its count is put right first.
        unsafe {
            (*self.head).nb_segs = self.buffers;
            dpdk_sys::rte_pktmbuf_free(self.head);
        }
    }
}

/// Sets the mbuf's flags for the work left to the port, and puts the pseudo header's sum into the frame's checksum
/// field.
///
/// # Safety
/// `mbuf` is a live buffer of ours that begins with the frame's header bytes.
unsafe fn ask(mbuf: *mut rte_mbuf, frame: &Frame, ipv4_checksum: bool) {
    let Offload { transport, l3_offset, l4_offset, segment_size } = frame.offload();
    let (l3, l4) = (usize::from(l3_offset), usize::from(l4_offset));
    let header = frame.header();
    let mut flags = match header.get(l3).map(|byte| byte >> 4) {
        Some(4) if ipv4_checksum => dpdk_sys::RTE_MBUF_F_TX_IPV4 | dpdk_sys::RTE_MBUF_F_TX_IP_CKSUM,
        Some(4) => dpdk_sys::RTE_MBUF_F_TX_IPV4,
        _ => dpdk_sys::RTE_MBUF_F_TX_IPV6,
    };
    let (place, l4_len) = match transport {
        Transport::Tcp => (16, header.get(l4 + 12).map_or(0, |byte| u64::from(byte >> 4) * 4)),
        _ => (6, 8),
    };
    flags |= match transport {
        Transport::Tcp if segment_size > 0 => {
            dpdk_sys::RTE_MBUF_F_TX_TCP_SEG | dpdk_sys::RTE_MBUF_F_TX_TCP_CKSUM
        }
        Transport::Tcp => dpdk_sys::RTE_MBUF_F_TX_TCP_CKSUM,
        _ => dpdk_sys::RTE_MBUF_F_TX_UDP_CKSUM,
    };
    // virtio 1.2 section 5.1.6.2: the field holds the sum of the pseudo header, its length included. A NIC's driver
    // puts the NIC's value there when it prepares the frame.
    let sum = segment::pseudo_header(frame, frame.offload(), frame.len().saturating_sub(l4))
        .map_or(0, |sum| !sum.finish());
    let clears = flags & dpdk_sys::RTE_MBUF_F_TX_IP_CKSUM != 0 && l3 + 20 <= header.len();
    // SAFETY: by contract; the offsets were checked when the frame was made. `tx_offload` holds l2_len in 7 bits, l3_len
    // in 9, l4_len in 8, tso_segsz in 16 (rte_mbuf_core.h).
    unsafe {
        if clears {
            clear_ipv4_checksum(mbuf, l3);
        }
        if l4 + place + 2 <= header.len() {
            ptr::copy_nonoverlapping(sum.to_be_bytes().as_ptr(), data_of(mbuf).add(l4 + place), 2);
        }
        (*mbuf).ol_flags |= flags;
        (*mbuf).__bindgen_anon_3.tx_offload =
            (l3 as u64) | ((l4 - l3.min(l4)) as u64) << 7 | l4_len << 16 | u64::from(segment_size) << 24;
    }
}

/// Room for the pieces of a received frame.
pub(super) type Pieces<'a> = [MaybeUninit<&'a [u8]>; PIECES];

/// A received frame, in pieces if it lies in several buffers, with the port's checksum result and segment size. It is
/// put together in `scratch` if it begins with less than [`HEAD_MIN`] bytes, or has more than [`PIECES`] pieces.
///
/// # Safety
/// `mbuf` is the head of a received frame, which is ours for `'a`.
pub(super) unsafe fn describe<'a>(
    mbuf: *mut rte_mbuf,
    scratch: &'a mut [u8],
    pieces: &'a mut Pieces<'a>,
) -> Result<RxFrame<'a>, Unfit> {
    const L4: u64 = dpdk_sys::RTE_MBUF_F_RX_L4_CKSUM_MASK as u64;
    const GOOD: u64 = dpdk_sys::RTE_MBUF_F_RX_L4_CKSUM_GOOD as u64;
    const NONE: u64 = dpdk_sys::RTE_MBUF_F_RX_L4_CKSUM_NONE as u64;
    const BAD: u64 = dpdk_sys::RTE_MBUF_F_RX_L4_CKSUM_BAD as u64;
    const MERGED: u64 = dpdk_sys::RTE_MBUF_F_RX_LRO as u64;
    // SAFETY: by contract.
    let (flags, buffers) = unsafe { ((*mbuf).ol_flags, (*mbuf).nb_segs) };
    let checksum = match flags & L4 {
        // The sum was checked; or it was left out by a sender that shares memory with us.
        GOOD | NONE => RxChecksum::Verified,
        BAD => return Err(Unfit::Damaged),
        _ => RxChecksum::Unknown,
    };
    let segment_size = if flags & MERGED == 0 {
        0
    } else {
        // SAFETY: by contract; the bits of tso_segsz.
        unsafe { ((*mbuf).__bindgen_anon_3.tx_offload >> 24) as u16 }
    };
    // SAFETY: a buffer of the frame has `data_len` bytes, which stay for 'a.
    let part = |mbuf: *mut rte_mbuf| unsafe {
        core::slice::from_raw_parts::<'a>(data_of(mbuf), usize::from((*mbuf).data_len))
    };
    let head = part(mbuf);
    if buffers == 1 {
        return Ok(RxFrame::new(head).described(checksum, segment_size));
    }
    if head.len() < HEAD_MIN || usize::from(buffers) > 1 + PIECES {
        // SAFETY: by contract.
        let length = unsafe { linearise(mbuf, scratch) }.ok_or(Unfit::TooLong)?;
        let whole = scratch.get(..length).ok_or(Unfit::TooLong)?;
        return Ok(RxFrame::new(whole).described(checksum, segment_size));
    }
    let mut count = 0;
    // SAFETY: by contract.
    let mut next = unsafe { (*mbuf).next };
    while !next.is_null() {
        pieces.get_mut(count).ok_or(Unfit::TooLong)?.write(part(next));
        count += 1;
        // SAFETY: a buffer of the frame.
        next = unsafe { (*next).next };
    }
    let rest = pieces.get(..count).unwrap_or_default();
    // SAFETY: the first `count` were written; MaybeUninit has the layout of what it may hold.
    let rest = unsafe { &*(ptr::from_ref(rest) as *const [&'a [u8]]) };
    Ok(RxFrame::with_rest(head, rest).described(checksum, segment_size))
}
