//! Where TCP meets IP.

use super::receive::{Inbound, Receiver};
use crate::ip::IcmpError;
use crate::rud;

impl<S: rud::Sink> Receiver<'_, S> {
    /// Takes in a segment, whose checksum has not been looked at unless `packet.checksum` says so.
    pub(super) fn on_tcp(&mut self, _packet: &Inbound<'_>) {
        self.counters.rx_tcp_no_endpoint += 1;
    }

    /// Hears that a segment of ours did not get through. Anybody can send such a message: what it says about sequence
    /// numbers has to be checked before it is believed.
    pub(super) fn on_tcp_error(&mut self, _error: &IcmpError<'_>) {
        self.counters.rx_icmp_ignored += 1;
    }
}
