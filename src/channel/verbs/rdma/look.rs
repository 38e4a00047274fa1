//! The device's asynchronous events, and whether the port still has the addresses that connections go from.

use shouter_netstack::verbs::{AsyncEvent, Gid, VerbsError};

use super::super::fabric::{FabricEvent, Fault};
use super::Rdma;
use super::fault::setup;

impl Rdma {
    /// Handles the device's asynchronous events; they are rare.
    #[cold]
    pub(super) fn look(&mut self, events: &mut Vec<FabricEvent>) {
        while let Some(event) = self.context.poll_event() {
            tracing::warn!(?event, device = self.context.name(), "the RDMA device says");
            match event {
                AsyncEvent::PortError(number) if number == self.port.number => self.port_is_down = true,
                AsyncEvent::PortActive(number) if number == self.port.number => self.port_is_down = false,
                AsyncEvent::GidChange(number) if number == self.port.number => self.look_at_gids(events),
                AsyncEvent::DeviceFatal => {
                    self.gone = true;
                    self.all_broken(Fault::DeviceGone, events);
                }
                _ => {}
            }
        }
    }

    /// Ends the queue pairs that go from a GID which is not where it was.
    fn look_at_gids(&mut self, events: &mut Vec<FabricEvent>) {
        let present = self.present_gids().unwrap_or_default();
        for connection in 0..self.pairs.connections() {
            if self.gid(connection).is_some_and(|gid| !present.contains(gid)) {
                self.break_pair(connection, Fault::AddressChanged, events);
            }
        }
    }

    /// Finds a connection's GID again: an address that was taken away and given back has another place in the port's table.
    pub(super) fn find_gid(&mut self, connection: usize) -> Result<(), Fault> {
        let Some(gid) = self.gid(connection).filter(|_| self.port.ethernet) else { return Ok(()) };
        let present = self.present_gids().map_err(|error| setup(&error))?;
        let same = present.into_iter().find(|other| (other.raw, other.kind) == (gid.raw, gid.kind));
        match (same, self.port.gids.get_mut(connection / self.connections_per_peer)) {
            (Some(same), Some(gid)) => {
                *gid = same;
                Ok(())
            }
            _ if self.port_is_down => Err(Fault::PortDown),
            _ => Err(Fault::AddressChanged),
        }
    }

    /// The GIDs that the port has now.
    fn present_gids(&self) -> Result<Vec<Gid>, VerbsError> {
        let mut ports = self.context.info()?.ports.into_iter();
        Ok(ports.find(|port| port.number == self.port.number).map(|port| port.gids).unwrap_or_default())
    }

    /// Reports all queue pairs as broken.
    pub(super) fn all_broken(&mut self, why: Fault, events: &mut Vec<FabricEvent>) {
        for connection in 0..self.pairs.connections() {
            self.break_pair(connection, why, events);
        }
    }

    /// Reports a connection's queue pair as broken, once.
    pub(super) fn break_pair(&mut self, connection: usize, why: Fault, events: &mut Vec<FabricEvent>) {
        if let Some(pair) = self.pairs.get_mut(connection)
            && !pair.broken
        {
            pair.broken = true;
            events.push(FabricEvent::Broken { connection, why });
        }
    }
}
