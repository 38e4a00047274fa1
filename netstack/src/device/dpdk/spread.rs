//! How a NIC deals flows out to its receive queues (RSS), as far as its driver lets itself be told.

use super::sys::{Info, Spread};
use super::{DeviceSpec, DpdkPortConfig, PortError};
use crate::rss::{Rss, SYMMETRIC_KEY};

/// What a NIC of several queues is told: [`Rss::new`] of the symmetric key, by the ports of TCP and UDP over IPv4. All else arrives at
/// queue 0. `None` for one queue, and for devices whose queues lead to those of the other end.
///
/// # Errors
/// [`PortError::Spread`] names what the driver lacks.
pub(super) fn negotiate(config: &DpdkPortConfig, info: &Info) -> Result<Option<Spread>, PortError> {
    let &DpdkPortConfig { ref device, queues, .. } = config;
    if queues == 1 || !matches!(device, DeviceSpec::Pci(_)) {
        return Ok(None);
    }
    let lacks = |lacks: String| PortError::Spread { device: device.clone(), queues, lacks };
    if info.max_queues() < queues {
        let most = info.max_queues();
        return Err(lacks(format!("it has {most} queue{}", if most == 1 { "" } else { "s" })));
    }
    let Some(flows) = info.port_hashes() else {
        return Err(lacks("it does not hash the ports of TCP and UDP".into()));
    };
    let rss = Rss::new(&SYMMETRIC_KEY, queues);
    let entries = info.table_entries();
    if entries == 0 || !usize::from(entries).is_multiple_of(rss.table().len()) {
        return Err(lacks(format!("its table has {entries} entries, which is no multiple of 64")));
    }
    // A longer key, which the hash of more than addresses and ports would need, goes on as it began.
    let key_len = usize::from(info.key_len()).max(rss.key().len());
    Ok(Some(Spread {
        key: rss.key().iter().copied().cycle().take(key_len).collect(),
        flows,
        table: rss.table().iter().copied().cycle().take(entries.into()).collect(),
    }))
}
