//! Receive interrupts: descriptors of queues, and when they announce frames.

use core::sync::atomic::{Ordering, fence};
use std::os::fd::{BorrowedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Errno, Queue, StartedPort};

impl StartedPort {
    /// The descriptor of each queue's receive interrupt, if all queues have one. They announce nothing yet.
    pub(super) fn find_interrupts(&self) -> Vec<RawFd> {
        let port = self.number();
        let find = |queue: u16| {
            // SAFETY: the port exists, was configured with interrupts and is started; both calls look at queues that there are.
            let (descriptor, disabled) = unsafe {
                let descriptor = dpdk_sys::rte_eth_dev_rx_intr_ctl_q_get_fd(port, queue);
                (descriptor, dpdk_sys::rte_eth_dev_rx_intr_disable(port, queue))
            };
            (descriptor >= 0 && disabled == 0).then_some(descriptor)
        };
        (0u16..).take(self.queues()).map(find).collect::<Option<_>>().unwrap_or_default()
    }
}

impl Queue {
    /// Frames that arrive from now on are announced at the descriptor. `None`: they have to be polled.
    pub(in super::super) fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        let descriptor = *self.port().interrupts.get(usize::from(self.index))?;
        // SAFETY: the port is started, and `self` is borrowed by one thread.
        let armed = unsafe { dpdk_sys::rte_eth_dev_rx_intr_enable(self.number, self.index) };
        // A virtio device reads the flag behind the frames that it has put into the ring. So this side looks for frames behind the flag.
        fence(Ordering::SeqCst);
        Errno::check(armed).ok()?;
        // SAFETY: the driver keeps it open until the port is closed, which the queue keeps from being.
        Some(unsafe { BorrowedFd::borrow_raw(descriptor) })
    }

    /// Whether a frame was announced, ever. Nobody reads the descriptor, so it stays readable.
    pub(in super::super) fn has_announced(&self) -> bool {
        let Some(&descriptor) = self.port().interrupts.get(usize::from(self.index)) else { return false };
        // SAFETY: as in `arm`.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&at_once)) == Ok(1)
    }

    /// They are announced no more.
    pub(in super::super) fn disarm(&mut self) {
        if !self.port().interrupts.is_empty() {
            // SAFETY: as in `arm`. A queue that cannot be disabled announces what nobody waits for.
            let _ = unsafe { dpdk_sys::rte_eth_dev_rx_intr_disable(self.number, self.index) };
        }
    }
}
