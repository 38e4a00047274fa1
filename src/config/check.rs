//! Values that cannot hold together, as far as one rank can say: before the ranks meet, and in a program that starts none.

use shouter_reducer::header::Collective;

use super::error::ConfigError;
use super::{Config, Mode, PortConfig, StorePlacement, TransportChoice};

impl Config {
    /// Checks whether the job can run with it: all that needs neither a device nor the other ranks.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] with the values and the remedy.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_before_join()?;
        if self.size == 1 || self.store == Some(StorePlacement::Found) {
            return Ok(());
        }
        self.check_locals(self.local_size)?;
        let leads = self.local_rank == 0 && self.local_size < self.size;
        let needs_ports =
            matches!(self.transport, TransportChoice::Rud | TransportChoice::Tcp) || self.rud_seal;
        if leads && needs_ports && self.ports.is_empty() {
            return Err(self.without_port("other hosts"));
        }
        Ok(())
    }

    /// What of it ends a rank before it meets the others. The rest shows when they have met: then they hear of it, or of what differs.
    pub(crate) fn check_before_join(&self) -> Result<(), ConfigError> {
        if self.size == 1 {
            return Ok(());
        }
        self.check_without_place()?;
        if self.store == Some(StorePlacement::Found) {
            // The ranks of this host are not known yet.
            return Ok(());
        }
        if self.transport == TransportChoice::Shm && self.local_size < self.size {
            return conflict(
                format!(
                    "transport = \"shm\" serves one host, and {} of the job's {} ranks are on this one",
                    self.local_size, self.size
                ),
                "use transport = \"auto\"",
            );
        }
        if self.shards > 1 && self.local_size == self.size {
            let why = format!("spreads what goes between hosts, and all {} ranks are on this one", self.size);
            return self.shards_refused(&why, "run the job on several hosts");
        }
        let writers = if self.on_one_machine { self.size } else { self.local_size };
        match &self.metrics {
            Some(target) if writers > 1 && !target.tells_ranks_apart() => conflict(
                format!(
                    "metrics = \"{target}\" is one file for {writers} ranks, each of which would replace it"
                ),
                "put %r into its name, which stands for the rank",
            ),
            _ => Ok(()),
        }
    }

    /// Why a rank without ports cannot reach another rank, or `other hosts`.
    pub(crate) fn without_port(&self, to: &str) -> ConfigError {
        let what = match self.rud_seal {
            true => "rud_seal = \"on\" sends over RUD alone".to_owned(),
            false => format!("transport = \"{}\" sends over ports", self.transport.name()),
        };
        ConfigError::Conflict {
            what: format!("{what}, and rank {} has no port to {to}", self.rank),
            remedy: "name its ports in the configuration (ports = [{ device = \"...\", address = \"...\" }]), or start the job with \
                     `shouter run --hosts`"
                .into(),
        }
    }

    /// Checks only what no job of several ranks can run with, whichever ranks there are.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_without_place(&self) -> Result<(), ConfigError> {
        if self.shards == 1 {
            return Ok(());
        }
        if self.mode != Mode::Dedicated {
            return self.shards_refused("needs threads that drive the network", "set mode = \"dedicated\"");
        }
        if !matches!(self.transport, TransportChoice::Auto | TransportChoice::Rud | TransportChoice::Tcp) {
            let why =
                format!("spreads rud and tcp over shards, and not transport = \"{}\"", self.transport.name());
            return self.shards_refused(&why, "set transport = \"rud\" or \"tcp\"");
        }
        if let Some(port) = self.ports.iter().find(|port| !port.has_queues()) {
            let why = format!(
                "needs ports of several queues (vhost, virtio, memif, and NICs by pci), and {} has one",
                port.device
            );
            return self.shards_refused(&why, "name such ports");
        }
        match self.schedule.of(Collective::AllReduce) {
            Some(named) if !named.keeps_order() => {
                let why = format!(
                    "cuts tensors, on whose size the order of all-reduces by {} depends",
                    named.name()
                );
                self.shards_refused(&why, "leave it out of the key schedule")
            }
            _ => Ok(()),
        }
    }

    /// RUD alone reaches no second rank of a host. `most`: the ranks of the host that has most.
    pub(crate) fn check_locals(&self, most: u32) -> Result<(), ConfigError> {
        if self.transport == TransportChoice::Rud && most > 1 {
            return conflict(
                format!(
                    "transport = \"rud\" alone serves one rank on each host, and the job has {most} on one"
                ),
                "use transport = \"auto\"",
            );
        }
        Ok(())
    }

    fn shards_refused(&self, why: &str, remedy: &str) -> Result<(), ConfigError> {
        let what = format!("shards = {} {why}", self.shards);
        conflict(what, &format!("{remedy}, or set shards = 1 on all ranks"))
    }
}

impl PortConfig {
    /// Whether a port can have several queues: each leads to the same one of the other end, or a NIC deals out what arrives.
    fn has_queues(&self) -> bool {
        self.device.split_once(':').is_some_and(|(driver, _)| {
            ["vhost", "virtio", "pci", "memif-server", "memif-client"].contains(&driver)
        })
    }
}

fn conflict(what: String, remedy: &str) -> Result<(), ConfigError> {
    Err(ConfigError::Conflict { what, remedy: remedy.into() })
}
