//! The hot path: frames into mbufs and out of them, a burst at a time.

use core::ffi::{c_int, c_uint};
use core::mem::MaybeUninit;
use core::ptr;
use std::ffi::CString;
use std::sync::Arc;

use dpdk_sys::{rte_mbuf, rte_mbuf_ext_shared_info, rte_mempool};

use super::external::attach;
use super::lcore::BorrowedLcore;
use super::offload::{PIECES, Unfit, describe};
use super::{Errno, StartedPort};
use crate::device::{Frame, RxFrame};
use crate::region::Extent;

/// Frames handed to a driver at a time.
pub(in super::super) const BURST: usize = 32;

/// Bytes that a buffer takes besides its room: headroom, `rte_mbuf`, and the pool's header in front, in cache lines.
pub(in super::super) const BUFFER_OVERHEAD: u64 =
    dpdk_sys::RTE_PKTMBUF_HEADROOM as u64 + size_of::<rte_mbuf>() as u64 + 64;

/// A pool of buffers of one size. Freed when dropped.
#[derive(Debug)]
pub(in super::super) struct Pool {
    /// Null once abandoned.
    pool: *mut rte_mempool,
    /// Bytes of frame that a buffer holds.
    pub(super) room: u16,
}

// SAFETY: DPDK's pools are used from many threads.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// A pool of `count` buffers that hold `room` bytes each, in memory of NUMA node `node`, or of any; a queue keeps up to `cache` of
    /// them at hand.
    pub(in super::super) fn new(
        name: &str,
        count: u32,
        cache: u32,
        room: u16,
        node: Option<u32>,
    ) -> Result<Self, Errno> {
        let name = CString::new(name).map_err(|_| Errno(22))?;
        let data = u32::from(room) + dpdk_sys::RTE_PKTMBUF_HEADROOM;
        let data = u16::try_from(data).map_err(|_| Errno(22))?;
        // SOCKET_ID_ANY.
        let node = node.and_then(|node| c_int::try_from(node).ok()).unwrap_or(-1);
        // SAFETY: a terminated name, copied.
        let pool = unsafe {
            dpdk_sys::rte_pktmbuf_pool_create(name.as_ptr(), count as c_uint, cache as c_uint, 0, data, node)
        };
        if pool.is_null() { Err(Errno::last()) } else { Ok(Self { pool, room }) }
    }

    pub(super) fn as_ptr(&self) -> *mut rte_mempool {
        self.pool
    }

    pub(super) fn abandon(&mut self) {
        self.pool = ptr::null_mut();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: made by rte_pktmbuf_pool_create and freed once; a null pointer is allowed.
        unsafe { dpdk_sys::rte_mempool_free(self.pool) }
    }
}

/// The longest frame that is received: an IP packet of the greatest length, behind Ethernet and VLAN headers.
const LONGEST_FRAME: usize = u16::MAX as usize + 22;

/// Tasks of a queue besides moving frames.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Duties {
    /// Request the IPv4 header checksum.
    pub(in super::super) ipv4_checksum: bool,
    /// Frames may leave work to the port, and arrive in pieces with the port's checksum result.
    pub(in super::super) offloads: bool,
    /// Show offloaded frames to the driver before they are sent.
    pub(in super::super) prepares: bool,
}

/// One queue pair of a started port.
#[derive(Debug)]
pub(in super::super) struct Queue {
    port: Arc<StartedPort>,
    pub(super) number: u16,
    pub(super) index: u16,
    /// The id under which buffers are taken and given back.
    pub(super) lcore: u32,
    /// Sets the flags for the IPv4 header checksum.
    pub(super) ipv4_checksum: bool,
    /// Frames may leave work to the port, and arrive in pieces with the port's checksum result.
    offloads: bool,
    /// The driver has to prepare offloaded frames before they are sent (`rte_eth_tx_prepare`).
    pub(super) prepares: bool,
    /// Frames that were copied and that the ring had no room for: sent first next time.
    /// Twice a burst long, since chained frames take two buffers each.
    pub(super) staged: [*mut rte_mbuf; 2 * BURST],
    pub(super) staged_from: usize,
    pub(super) staged_to: usize,
    /// Frames that wait to be handed over.
    received: Received,
    /// The count of chained payload: the port's.
    pub(super) external: *mut rte_mbuf_ext_shared_info,
    /// Buffer in which a frame of several segments is put together.
    scratch: Box<[u8]>,
    /// Frames longer than a buffer, or than the scratch.
    pub(in super::super) oversized: u64,
    /// Frames that came with a transport checksum that the port found wrong.
    pub(in super::super) damaged: u64,
    /// Frames sent whose payload was not copied.
    pub(in super::super) uncopied: u64,
}

// SAFETY: the pointers are to buffers that the queue owns, and to the count of them, which the port keeps; to nothing of the thread.
unsafe impl Send for Queue {}

impl Queue {
    /// Queue pair `index`; `None` if there is none such, or it was handed out before.
    pub(in super::super) fn new(port: &Arc<StartedPort>, index: u16, duties: Duties) -> Option<Self> {
        let Duties { ipv4_checksum, offloads, prepares } = duties;
        let lcore = port.take_queue(index)?;
        let external = port.external(index)?;
        Some(Self {
            port: port.clone(),
            number: port.number(),
            index,
            lcore,
            ipv4_checksum,
            offloads,
            prepares,
            staged: [ptr::null_mut(); 2 * BURST],
            staged_from: 0,
            staged_to: 0,
            received: Received::NONE,
            external,
            scratch: vec![0; LONGEST_FRAME].into_boxed_slice(),
            oversized: 0,
            damaged: 0,
            uncopied: 0,
        })
    }

    pub(in super::super) fn port(&self) -> &StartedPort {
        &self.port
    }

    /// Whether copied frames wait for room in the ring.
    #[inline]
    pub(in super::super) fn has_staged(&self) -> bool {
        self.staged_from != self.staged_to
    }

    /// Sends staged frames; true when none is left.
    #[inline]
    pub(in super::super) fn flush(&mut self) -> bool {
        if !self.has_staged() {
            return true;
        }
        // SAFETY: the queue's own id, and `self` is borrowed by one thread.
        let _lcore = unsafe { BorrowedLcore::new(self.lcore) };
        self.push()
    }

    /// The same, on a thread that has the queue's id.
    #[inline]
    pub(super) fn push(&mut self) -> bool {
        if self.has_staged() {
            let waiting = &mut self.staged[self.staged_from..self.staged_to];
            // SAFETY: `waiting` are buffers that we own; those that the driver takes are its own from now on.
            let sent = unsafe {
                dpdk_sys::rte_eth_tx_burst(
                    self.number,
                    self.index,
                    waiting.as_mut_ptr(),
                    waiting.len() as u16,
                )
            };
            self.staged_from += usize::from(sent);
            if self.staged_from == self.staged_to {
                (self.staged_from, self.staged_to) = (0, 0);
            }
        }
        !self.has_staged()
    }

    /// Copies up to [`BURST`] frames and sends them; returns how many were taken. Those for which the ring had no
    /// room are kept, and no more are taken until they went.
    #[inline]
    pub(in super::super) fn send_copied(&mut self, frames: &[Frame]) -> usize {
        // SAFETY: the queue's own id, and `self` is borrowed by one thread.
        let _lcore = unsafe { BorrowedLcore::new(self.lcore) };
        if !self.push() {
            return 0;
        }
        let count = frames.len().min(BURST);
        if !self.allocate(count) {
            return 0;
        }
        let room = usize::from(self.port.pool().room);
        let mut filled = 0;
        for frame in &frames[..count] {
            let length = frame.len();
            if length > room || length == 0 {
                self.oversized += 1;
                continue;
            }
            let mbuf = self.staged[filled];
            filled += 1;
            let header = frame.header();
            // SAFETY: `mbuf` is ours, fresh from the pool: it has `room` bytes from its headroom on, and `length`,
            // which is at most `room`, is the sum of the parts.
            unsafe {
                let data = data_of(mbuf);
                ptr::copy_nonoverlapping(header.as_ptr(), data, header.len());
                let mut at = header.len();
                for extent in frame.extents() {
                    ptr::copy_nonoverlapping(extent.as_ptr(), data.add(at), extent.len());
                    at += extent.len();
                }
                (*mbuf).data_len = length as u16;
                (*mbuf).pkt_len = length as u32;
                if self.ipv4_checksum {
                    ask_for_ipv4_checksum(mbuf, header);
                }
            }
        }
        self.free(filled, count);
        (self.staged_from, self.staged_to) = (0, filled);
        self.push();
        count
    }

    /// Sends up to [`BURST`] frames, the payloads that `chained` names chained behind the header and not copied; returns how many were taken. The
    /// ring has to take them: what it has no room for stays with the caller.
    ///
    /// # Safety
    /// The driver has read what is chained when `rte_eth_tx_burst` returns; or it is lent, and mapped for the device.
    #[inline]
    pub(in super::super) unsafe fn send_chained(
        &mut self,
        frames: &[Frame],
        chained: impl Fn(&Frame) -> Option<Extent>,
    ) -> usize {
        // SAFETY: the queue's own id, and `self` is borrowed by one thread.
        let _lcore = unsafe { BorrowedLcore::new(self.lcore) };
        if !self.push() {
            return 0;
        }
        let count = frames.len().min(BURST);
        let tails = frames[..count].iter().filter(|f| chained(f).is_some()).count();
        // The staging array serves as scratch: headers in front, payloads behind them. Nothing stays in it.
        if !self.allocate(count + tails) {
            return 0;
        }
        let room = usize::from(self.port.pool().room);
        let (mut filled, mut spare, mut uncopied) = (0, count, 0_u32);
        for frame in &frames[..count] {
            let (length, header) = (frame.len(), frame.header());
            if length > room || length == 0 {
                self.oversized += 1;
                continue;
            }
            let mbuf = self.staged[filled];
            // SAFETY: both buffers are ours, fresh from the pool. The header fits (it is part of `length`). The
            // extent stays readable as the caller says, or the buffers are freed below.
            unsafe {
                ptr::copy_nonoverlapping(header.as_ptr(), data_of(mbuf), header.len());
                (*mbuf).data_len = header.len() as u16;
                (*mbuf).pkt_len = length as u32;
                if self.ipv4_checksum {
                    ask_for_ipv4_checksum(mbuf, header);
                }
                if let Some(extent) = chained(frame) {
                    let tail = self.staged[spare];
                    spare += 1;
                    attach(tail, self.external, &extent, 0, extent.len() as u16);
                    (*mbuf).next = tail;
                    (*mbuf).nb_segs = 2;
                    uncopied |= 1 << filled;
                } else {
                    let mut at = header.len();
                    for extent in frame.extents() {
                        ptr::copy_nonoverlapping(extent.as_ptr(), data_of(mbuf).add(at), extent.len());
                        at += extent.len();
                    }
                    (*mbuf).data_len = length as u16;
                }
            }
            filled += 1;
        }
        // SAFETY: the first `filled` are frames that we own.
        let sent = unsafe { self.transmit_staged(filled) };
        self.free(filled, count);
        self.free(spare, count + tails);
        let of_sent = uncopied & (((1_u64 << sent) - 1) as u32);
        self.uncopied += u64::from(of_sent.count_ones());
        // Frames that were skipped count as taken; with a full ring the rest stays with the caller.
        if sent == filled {
            count
        } else {
            taken(&frames[..count], sent, |frame| (1..=room).contains(&frame.len()))
        }
    }

    /// Hands up to `budget` received frames to `sink`; returns frames, bytes, and whether there may be more.
    ///
    /// Each call of the driver is for a full burst (vectorised ones give nothing to less than 4 or 8); frames above the
    /// budget wait for the next call.
    #[inline]
    pub(in super::super) fn receive(
        &mut self,
        budget: usize,
        sink: &mut impl FnMut(RxFrame<'_>),
    ) -> (usize, usize, bool) {
        // SAFETY: the queue's own id, and `self` is borrowed by one thread.
        let _lcore = unsafe { BorrowedLcore::new(self.lcore) };
        let received = &mut self.received;
        if received.from == received.to {
            // SAFETY: room for as many pointers; the buffers that come back are ours.
            let count = unsafe {
                dpdk_sys::rte_eth_rx_burst(self.number, self.index, received.mbufs.as_mut_ptr(), BURST as u16)
            };
            (received.from, received.to) = (0, usize::from(count));
        }
        let full = received.to == BURST;
        let handed = received.take(budget);
        let mut bytes = 0;
        for (index, &mbuf) in handed.mbufs.iter().enumerate() {
            if let Some(&next) = handed.mbufs.get(index + 1) {
                // SAFETY: a received buffer.
                prefetch(unsafe { data_of(next) }, unsafe { usize::from((*next).data_len) });
            }
            // SAFETY: a received buffer that is ours until `handed` is dropped; its `data_len` bytes are filled.
            let (buffers, head) = unsafe {
                let length = usize::from((*mbuf).data_len);
                ((*mbuf).nb_segs, core::slice::from_raw_parts(data_of(mbuf), length))
            };
            let mut pieces = [const { MaybeUninit::uninit() }; PIECES];
            let frame = if buffers == 1 && !self.offloads {
                RxFrame::new(head)
            } else {
                // SAFETY: a received frame that is ours until `handed` is dropped.
                match unsafe { describe(mbuf, &mut self.scratch, &mut pieces) } {
                    Ok(frame) => frame,
                    Err(Unfit::TooLong) => {
                        self.oversized += 1;
                        continue;
                    }
                    Err(Unfit::Damaged) => {
                        self.damaged += 1;
                        continue;
                    }
                }
            };
            // SAFETY: a received buffer.
            bytes += unsafe { (*mbuf).pkt_len as usize };
            sink(frame);
        }
        (handed.mbufs.len(), bytes, full)
    }

    /// Puts `count` fresh buffers at the front of the staging array.
    #[inline]
    fn allocate(&mut self, count: usize) -> bool {
        debug_assert!(count <= self.staged.len() && !self.has_staged());
        // SAFETY: the pool lives as long as the port; room for `count` pointers.
        let result = unsafe {
            dpdk_sys::rte_pktmbuf_alloc_bulk(
                self.port.pool().as_ptr(),
                self.staged.as_mut_ptr(),
                count as c_uint,
            )
        };
        result == 0
    }

    /// Hands the first `filled` staged frames to the driver, and frees those that it does not take, with what is chained to them;
    /// returns how many it takes.
    ///
    /// # Safety
    /// They are frames that the queue owns; those that the driver takes are its own from then on.
    #[inline]
    pub(super) unsafe fn transmit_staged(&mut self, filled: usize) -> usize {
        // SAFETY: the caller's promise.
        let sent = unsafe {
            dpdk_sys::rte_eth_tx_burst(self.number, self.index, self.staged.as_mut_ptr(), filled as u16)
        };
        let sent = usize::from(sent);
        self.free(sent, filled);
        sent
    }

    /// Gives staged buffers back to their pool.
    #[inline]
    pub(super) fn free(&mut self, from: usize, to: usize) {
        if from < to {
            let unused = &mut self.staged[from..to];
            // SAFETY: buffers that we own, and forget.
            unsafe { dpdk_sys::rte_pktmbuf_free_bulk(unused.as_mut_ptr(), unused.len() as c_uint) };
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.free(self.staged_from, self.staged_to);
    }
}

/// How many frames from the front were taken, when the driver took `sent` of those that fit. Those that do not fit count as
/// taken, up to the first that the ring had no room for.
#[cold]
pub(super) fn taken(frames: &[Frame], sent: usize, fits: impl Fn(&Frame) -> bool) -> usize {
    let mut fitting = frames.iter().enumerate().filter(|(_, frame)| fits(frame));
    fitting.nth(sent).map_or(frames.len(), |(index, _)| index)
}

/// Frames that were received and are not handed over yet; freed when dropped.
#[derive(Debug)]
struct Received {
    mbufs: [*mut rte_mbuf; BURST],
    from: usize,
    to: usize,
}

impl Received {
    const NONE: Self = Self { mbufs: [ptr::null_mut(); BURST], from: 0, to: 0 };

    /// The first `count` of them (all, if there are fewer), for good.
    #[inline]
    fn take(&mut self, count: usize) -> Handed<'_> {
        let end = self.to.min(self.from.saturating_add(count));
        let mbufs = &mut self.mbufs[self.from..end];
        self.from = end;
        Handed { mbufs }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        drop(self.take(BURST));
    }
}

/// Frames that are being handed over; freed when dropped, also when the sink panics.
struct Handed<'a> {
    mbufs: &'a mut [*mut rte_mbuf],
}

impl Drop for Handed<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.mbufs.is_empty() {
            // SAFETY: received buffers that we own, and forget.
            unsafe { dpdk_sys::rte_pktmbuf_free_bulk(self.mbufs.as_mut_ptr(), self.mbufs.len() as c_uint) };
        }
    }
}

/// The first byte of a buffer's frame.
///
/// # Safety
/// `mbuf` is a live buffer.
#[inline]
pub(super) unsafe fn data_of(mbuf: *mut rte_mbuf) -> *mut u8 {
    // SAFETY: by contract; `data_off` lies within the buffer.
    unsafe { (*mbuf).buf_addr.cast::<u8>().add(usize::from((*mbuf).data_off)) }
}

/// Copies the segments of a frame into `scratch`; its length, or `None` if it does not fit.
///
/// # Safety
/// `mbuf` is the head of a received frame.
#[cold]
pub(super) unsafe fn linearise(mut mbuf: *mut rte_mbuf, scratch: &mut [u8]) -> Option<usize> {
    let mut length = 0;
    while !mbuf.is_null() {
        // SAFETY: by contract, each segment has `data_len` bytes.
        let part = unsafe { core::slice::from_raw_parts(data_of(mbuf), usize::from((*mbuf).data_len)) };
        scratch.get_mut(length..length + part.len())?.copy_from_slice(part);
        length += part.len();
        // SAFETY: by contract.
        mbuf = unsafe { (*mbuf).next };
    }
    Some(length)
}

/// Requests the header checksum from the port if the frame is IPv4, bare or behind one VLAN tag. The field is cleared:
/// a NIC includes it in its sum, and the stack has filled it in.
///
/// # Safety
/// `mbuf` is a live buffer that we own, which begins with `header`.
#[inline]
unsafe fn ask_for_ipv4_checksum(mbuf: *mut rte_mbuf, header: &[u8]) {
    let ethertype = |at: usize| header.get(at..at + 2);
    let network = match ethertype(12) {
        Some([0x08, 0x00]) => 14,
        Some([0x81, 0x00]) if ethertype(16) == Some(&[0x08, 0x00]) => 18,
        _ => return,
    };
    let Some(words) = header.get(network).map(|b| u64::from(b & 0x0f)) else { return };
    if header.len() < network + 20 {
        return;
    }
    // SAFETY: by contract; the header has 20 bytes at least. `tx_offload` holds l2_len in 7 bits, then l3_len in 9.
    unsafe {
        clear_ipv4_checksum(mbuf, network);
        (*mbuf).ol_flags |= dpdk_sys::RTE_MBUF_F_TX_IPV4 | dpdk_sys::RTE_MBUF_F_TX_IP_CKSUM;
        (*mbuf).__bindgen_anon_3.tx_offload = network as u64 | (words * 4) << 7;
    }
}

/// Clears the checksum of the IPv4 header at `network`, for the port to fill in.
///
/// # Safety
/// `mbuf` is a live buffer that we own, with 20 bytes at least behind `network` in its first segment.
#[inline]
pub(super) unsafe fn clear_ipv4_checksum(mbuf: *mut rte_mbuf, network: usize) {
    // RFC 791 section 3.1: the checksum stands at byte 10.
    // SAFETY: by contract.
    unsafe { ptr::write_bytes(data_of(mbuf).add(network + 10), 0, 2) };
}

/// Prefetches the cache lines of a frame: they come from the core that wrote them while the one before is worked on.
#[inline]
fn prefetch(address: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching is no access; any address is allowed.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for line in (0..len).step_by(64) {
            _mm_prefetch::<_MM_HINT_T0>(address.wrapping_add(line).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
