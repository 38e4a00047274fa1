//! The configuration in force: every key, its value, and the source of the value.

use shouter::config::keys::KEYS;
use shouter::config::{Builder, ConfigError};

use super::{Item, ItemState};

/// The item that says whether the configuration can be used.
const ITEM: &str = "configuration";

/// Whether the configuration can be used, and all its keys.
pub(super) fn items() -> Vec<Item> {
    let builder = match Builder::from_process() {
        Ok(builder) => builder,
        Err(error) => return vec![wrong(&error)],
    };
    let mut items = vec![match usable(builder.clone()) {
        Ok(text) => Item::ok(ITEM, text),
        Err(error) => wrong(&error),
    }];
    let wrong_values = wrong_values(builder.clone());
    for key in KEYS {
        let detail = match builder.in_force(key.name) {
            Some((value, source)) => format!("{value} ({source})"),
            None => format!("default: {}", key.default),
        };
        let name = format!("key {}", key.name);
        items.push(match wrong_values.iter().find(|error| error.key_of_value() == Some(key.name)) {
            Some(error) => Item::not_ok(ItemState::Wrong, name, detail, error.to_string()),
            None => Item::ok(name, detail),
        });
    }
    items
}

/// The error of each key whose value cannot be used.
fn wrong_values(mut builder: Builder) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    // One error hides those behind it. A key without its value gives none.
    while let Err(error) = usable(builder.clone()) {
        let Some(key) = error.key_of_value().filter(|&key| builder.in_force(key).is_some()) else { break };
        builder = builder.without(&[key]);
        errors.push(error);
    }
    errors
}

/// Checks the configuration as a job's ranks do before they meet. Outside a job, where the rank is unknown, its values are checked as those of a
/// job of one rank, and whether any job of several could hold them.
fn usable(builder: Builder) -> Result<String, ConfigError> {
    match builder.clone().build() {
        Ok(config) => {
            config.check()?;
            Ok(format!("that of rank {} of {} in job {}", config.rank, config.size, config.job))
        }
        Err(ConfigError::Missing { keys, .. }) if keys.iter().any(|key| key == "size" || key == "rank") => {
            builder.set("size", "1")?.set("rank", "0")?.build()?.check_without_place()?;
            Ok("no job is described here; `shouter run` and torchrun describe one to each rank".into())
        }
        Err(error) => Err(error),
    }
}

/// Whether this item says that the configuration cannot be used.
pub(super) fn is_wrong(item: &Item) -> bool {
    item.item == ITEM && item.state == ItemState::Wrong
}

fn wrong(error: &ConfigError) -> Item {
    Item::not_ok(
        ItemState::Wrong,
        ITEM,
        error.to_string(),
        "correct it where the message says; docs/configuration.md lists the keys and what each may be",
    )
}
