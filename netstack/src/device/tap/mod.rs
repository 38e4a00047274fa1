//! A TAP interface of Linux: the program is the other end of a link to the kernel. No DPDK, no hugepages, no NIC.
//!
//! The kernel's end gets its address from the administrator:
//!
//! ```text
//! ip tuntap add dev tap0 mode tap user alice
//! ip addr add 10.0.0.1/24 dev tap0
//! ip link set dev tap0 up
//! ```
//!
//! Afterwards a program of alice's opens `tap0` without any privilege. Checksums are left out in both directions, and segments of TCP
//! pass in super-segments of up to 64 KiB: what the kernel passes on to a NIC is cut and summed there.

mod offload;
mod sys;
#[cfg(test)]
mod tests;

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::interface::{self, Interface, Name};
use super::{Announce, Capabilities, Device, DeviceCounters, MAX_EXTENTS, RxFrame, TxBatch, Wakes};
use crate::time::Instant;
use crate::wire::{ethernet, vlan};

/// The longest wait for a frame.
const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

/// The program's end of a TAP interface.
///
/// ```no_run
/// use shouter_netstack::device::{Device, Tap};
/// use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
///
/// let tap = Tap::open("tap0")?;
/// let mtu = tap.capabilities().mtu;
/// let mut stack = Stack::new(StackConfig::new(1));
/// stack.add_port(tap, PortConfig::new([10, 0, 0, 2].into(), 24, mtu))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tap {
    name: Name,
    capabilities: Capabilities,
    mac: [u8; 6],
    frames: OwnedFd,
    /// The kernel's end.
    interface: Interface,
    /// Room for a super-segment behind all headers.
    buffer: Box<[u8]>,
    counters: DeviceCounters,
}

/// Why a TAP interface could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TapError {
    /// Linux has no interfaces of that name.
    #[error(
        "'{name}' names no interface: a name has 1 to 15 bytes, without '/', ':', '%', NUL and white space, and is not '.' or '..'"
    )]
    Name {
        /// As given.
        name: String,
    },
    /// There are no TAP interfaces.
    #[error(
        "/dev/net/tun cannot be opened ({why}); load the module tun, and see that the user may write to the file"
    )]
    NoTun {
        /// The system's answer.
        why: io::Error,
    },
    /// The interface is not ours to take.
    #[error(
        "the TAP interface {name} cannot be opened ({why}); create it for this user by `ip tuntap add dev {name} mode tap user USER`, and \
         end other programs that have it open"
    )]
    Attach {
        /// The interface.
        name: String,
        /// The system's answer.
        why: io::Error,
    },
    /// It cannot be set up, or its state cannot be read.
    #[error(
        "the TAP interface {name} cannot be set up ({why}); Linux 4.14 and later can, see also `ip link show {name}`"
    )]
    SetUp {
        /// The interface.
        name: String,
        /// The system's answer.
        why: io::Error,
    },
}

impl Tap {
    /// Opens the interface `name`, or makes it, which takes CAP_NET_ADMIN; one made so goes with the `Tap`. The MTU is the interface's at this time,
    /// and the MAC address is the kernel's but for the last bit.
    ///
    /// # Errors
    /// [`TapError`] names what is missing.
    pub fn open(name: &str) -> Result<Self, TapError> {
        let bytes = interface::name(name).ok_or_else(|| TapError::Name { name: name.to_owned() })?;
        let state = |why: Errno| TapError::SetUp { name: name.to_owned(), why: why.into() };
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let frames = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
            .map_err(|why| TapError::NoTun { why: why.into() })?;
        sys::attach(&frames, bytes)
            .map_err(|why| TapError::Attach { name: name.to_owned(), why: why.into() })?;
        sys::set_up(&frames, offload::LEN as i32).map_err(state)?;
        let interface = Interface::named(bytes).map_err(state)?;
        let mtu = sys::mtu(&interface, bytes).map_err(state)?;
        let mut mac = sys::mac(&frames).map_err(state)?;
        mac[5] ^= 1;
        let capabilities = Capabilities::offloading("tap", u16::try_from(mtu).unwrap_or(u16::MAX), 32);
        let longest = offload::LEN + ethernet::HEADER_LEN + vlan::TAG_LEN + usize::from(u16::MAX);
        let buffer = vec![0; longest].into_boxed_slice();
        Ok(Self {
            name: bytes,
            capabilities,
            mac,
            frames,
            interface,
            buffer,
            counters: DeviceCounters::default(),
        })
    }

    /// Waits until a frame can be received, for `timeout` at most: for a program that has nothing else to do.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] if the interface was deleted: nothing will come any more. Else the system's; a signal ends the wait
    /// without one.
    pub fn wait(&self, timeout: Duration) -> io::Result<()> {
        let timeout = timeout.min(LONGEST_WAIT);
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let mut frames = [PollFd::new(&self.frames, PollFlags::IN)];
        match poll(&mut frames, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(why) => return Err(why.into()),
        }
        let [frames] = frames;
        if frames.revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            let name = String::from_utf8_lossy(&self.name);
            let says = format!("the TAP interface {} was deleted; open it anew", name.trim_end_matches('\0'));
            return Err(io::Error::new(io::ErrorKind::NotConnected, says));
        }
        Ok(())
    }
}

/// The descriptor that frames are read from: readable when one waits.
impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.frames.as_fd()
    }
}

// SAFETY: the kernel copies a frame within the system call that `transmit` makes.
#[allow(unsafe_code)]
unsafe impl Device for Tap {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn link_up(&mut self) -> bool {
        self.interface.is_up()
    }

    fn transmit(&mut self, _now: Instant, batch: &mut TxBatch) -> usize {
        let mut taken = 0;
        for frame in batch.frames() {
            let mut frame = *frame;
            let Some(header) = offload::describe(&mut frame) else {
                self.counters.dropped += 1;
                taken += 1;
                continue;
            };
            let mut pieces = [IoSlice::new(&[]); 2 + MAX_EXTENTS];
            pieces[0] = IoSlice::new(&header);
            let mut count = 1;
            for piece in frame.pieces() {
                pieces[count] = IoSlice::new(piece);
                count += 1;
            }
            match rustix::io::writev(&self.frames, &pieces[..count]) {
                Ok(_) => {
                    self.counters.tx_frames += 1;
                    self.counters.tx_bytes += frame.len() as u64;
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => break,
                // The interface is down, or refuses the frame.
                Err(_) => self.counters.dropped += 1,
            }
            taken += 1;
        }
        batch.consume(taken);
        taken
    }

    fn receive(&mut self, _now: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        for count in 0..budget {
            // An error other than "nothing there" is the interface's: it is down, or gone.
            let Ok(len) = rustix::io::read(&self.frames, &mut self.buffer[..]) else { return count };
            let Some((header, frame)) = self.buffer.get(..len).and_then(|bytes| bytes.split_first_chunk())
            else {
                self.counters.dropped += 1;
                continue;
            };
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += frame.len() as u64;
            let (checksum, segment_size) = offload::read(*header);
            sink(RxFrame::new(frame).described(checksum, segment_size));
        }
        budget
    }

    /// The kernel announces every frame.
    fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        announce(self.frames.as_fd());
        Wakes::Always
    }

    fn counters(&self) -> DeviceCounters {
        self.counters
    }
}
