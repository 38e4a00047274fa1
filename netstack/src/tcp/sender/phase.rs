//! Which repair is going on.

use super::prr::Prr;
use crate::wire::tcp::SeqNumber;

/// The repair that is going on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// Nothing.
    Open,
    /// Fast recovery until `point` is acknowledged.
    Recovery { point: SeqNumber, prr: Prr },
    /// After a retransmission time-out, until `point` is acknowledged. `frto`: it may have been spurious; `new`: new
    /// data is sent to find out; `timeouts`: how many there were without progress.
    Loss { point: SeqNumber, frto: bool, new: bool, timeouts: u8 },
}
