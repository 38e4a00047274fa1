//! A server's checkpoint: a file of safetensors with its rows of all parameters, and the optimizers' state.
//!
//! The tensors are `value/NAME`, `state0/NAME` and `state1/NAME`. In the metadata, `shouter` says which shards these are, and
//! `parameter/NAME` has the shape of the whole, the optimizer and the updates so far, as JSON. `crc32c` is a checksum of the other metadata
//! and the tensors.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use safetensors::tensor::{SafeTensors, TensorView, serialize};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use shouter_netstack::crc::crc32c_behind;
use shouter_reducer::dtype::DType;

use super::Error;
use super::message::{Layout, Meta};
use super::optimizer::Optimizer;
use super::parameter::Parameter;
use super::plan::Plan;
use super::server::Own;
use super::shard::{Shard, Sharding};
use super::state::{Shards, check_new};
use crate::whole;

/// The version of the form.
const FORMAT: u32 = 2;
const SHOUTER: &str = "shouter";
const CHECKSUM: &str = "crc32c";

/// Which shards a file has.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct About {
    format: u32,
    server: usize,
    servers: usize,
    sharding: Sharding,
    /// The same in the files of all servers that belong together.
    number: u64,
}

/// What a file says of a parameter beside its tensors.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    dtype: DType,
    shape: Vec<u64>,
    optimizer: Optimizer,
    updates: u64,
}

/// The file of a server in a folder.
fn file(folder: &str, own: &Own) -> PathBuf {
    Path::new(folder).join(format!("{}.safetensors", own.name))
}

fn refused(path: &Path, text: impl ToString) -> Error {
    Error::Checkpoint { path: path.display().to_string(), text: text.to_string() }
}

fn type_of(dtype: DType) -> safetensors::Dtype {
    match dtype {
        DType::F64 => safetensors::Dtype::F64,
        _ => safetensors::Dtype::F32,
    }
}

/// The shape of a shard's tensors.
fn shape_of(shape: &[u64], shard: &Shard) -> Vec<usize> {
    let rows = (!shape.is_empty()).then_some(shard.len());
    // A parameter without dimensions is whole on one server, and has no element on the others.
    let alone = (shape.is_empty() && shard.len() == 0).then_some(0);
    rows.or(alone).into_iter().chain(shape.iter().skip(1).map(|length| *length as usize)).collect()
}

/// Writes the server's checkpoint; the former one stays until the new one is complete.
pub(super) fn save(shards: &Shards, plan: &Plan, own: &Own, folder: &str, number: u64) -> Result<(), Error> {
    let path = file(folder, own);
    let about =
        About { format: FORMAT, server: own.server, servers: own.servers, sharding: plan.sharding, number };
    let json = |value: serde_json::Result<String>| value.map_err(|why| refused(&path, why));
    let mut metadata = BTreeMap::from([(SHOUTER.to_owned(), json(serde_json::to_string(&about))?)]);
    let all = shards.all();
    // Nobody updates a parameter until all are written.
    let held: Vec<_> = all
        .iter()
        .map(|(name, parameter)| (name, parameter.read().unwrap_or_else(PoisonError::into_inner)))
        .collect();
    let mut tensors = vec![];
    for (name, parameter) in &held {
        let Meta { dtype, ref shape, .. } = *parameter.meta();
        let saved =
            Saved { dtype, shape: shape.clone(), optimizer: parameter.optimizer, updates: parameter.version };
        metadata.insert(format!("parameter/{name}"), json(serde_json::to_string(&saved))?);
        let view = |bytes| {
            let shape = shape_of(shape, &parameter.shard);
            TensorView::new(type_of(dtype), shape, bytes).map_err(|why| refused(&path, why))
        };
        tensors.push((format!("value/{name}"), view(parameter.value())?));
        for at in 0..parameter.states.len() {
            tensors.push((format!("state{at}/{name}"), view(parameter.state(at))?));
        }
    }
    metadata.insert(CHECKSUM.to_owned(), checksum(&metadata, &mut tensors));
    let metadata: HashMap<String, String> = metadata.into_iter().collect();
    let bytes = serialize(tensors, Some(metadata)).map_err(|why| refused(&path, why))?;
    drop(held);
    let written = || -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        whole::replace(&path, 0o666, |out| {
            std::io::Write::write_all(out, &bytes)?;
            out.sync_all()
        })?;
        fs::File::open(folder)?.sync_all()
    };
    written().map_err(|why| refused(&path, format!("{why}; give a folder that the servers can write to")))
}

/// The CRC32C of the metadata, but for itself, and of the tensors' names and data, each behind its length; in hexadecimal digits. The
/// tensors are sorted by name.
fn checksum(metadata: &BTreeMap<String, String>, tensors: &mut [(String, TensorView<'_>)]) -> String {
    tensors.sort_by(|(one, _), (other, _)| one.cmp(other));
    let described = metadata.iter().filter(|(key, _)| *key != CHECKSUM);
    let described = described.flat_map(|(key, text)| [key.as_bytes(), text.as_bytes()]);
    let data = tensors.iter().flat_map(|(name, tensor)| [name.as_bytes(), tensor.data()]);
    let crc = described
        .chain(data)
        .fold(0, |crc, part| crc32c_behind(crc32c_behind(crc, &(part.len() as u64).to_le_bytes()), part));
    format!("{crc:08x}")
}

/// A checkpoint that fits, not yet taken.
pub(super) struct Checkpoint {
    pub(super) number: u64,
    parameters: Vec<(Meta, Parameter)>,
}

/// Reads the server's checkpoint, and compares it with what is set.
pub(super) fn read(shards: &Shards, plan: &Plan, own: &Own, folder: &str) -> Result<Checkpoint, Error> {
    let path = file(folder, own);
    let bytes =
        fs::read(&path).map_err(|why| refused(&path, format!("{why}; give the folder of a checkpoint")))?;
    let wrong = |text: String| refused(&path, text);
    let tensors =
        SafeTensors::deserialize(&bytes).map_err(|why| wrong(format!("{why}; the file is damaged")))?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|why| refused(&path, why))?;
    let metadata: BTreeMap<String, String> =
        header.metadata().iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
    let about: About = parse(metadata.get(SHOUTER)).map_err(wrong)?;
    let due = About {
        format: FORMAT,
        server: own.server,
        servers: own.servers,
        sharding: plan.sharding,
        number: about.number,
    };
    if about != due {
        return Err(wrong(format!(
            "it is of server {} of {}, {:?}, form {}, and this is server {} of {}, {:?}, form {FORMAT}; restore with the servers, the \
             sharding and, for its form, the release that it was saved with",
            about.server, about.servers, about.sharding, about.format, own.server, own.servers, plan.sharding
        )));
    }
    if metadata.get(CHECKSUM) != Some(&checksum(&metadata, &mut tensors.tensors())) {
        return Err(wrong("its checksum is not that of its data; the file is damaged".into()));
    }
    let mut parameters = vec![];
    for (key, text) in &metadata {
        let Some(name) = key.strip_prefix("parameter/") else { continue };
        let saved: Saved = parse(Some(text)).map_err(|why| wrong(format!("'{name}': {why}")))?;
        let parameter = of_file(shards, plan, own, &tensors, name, &saved)
            .map_err(|why| wrong(format!("'{name}': {why}")))?;
        parameters.push(parameter);
    }
    for (name, set) in shards.all() {
        let set = set.read().unwrap_or_else(PoisonError::into_inner);
        let Some((meta, _)) = parameters.iter().find(|(meta, _)| meta.name == name) else {
            return Err(wrong(format!("'{name}' is set, and not in it; reset, or restore another one")));
        };
        let Meta { dtype, shape, .. } = set.meta();
        if (meta.dtype, &meta.shape) != (*dtype, shape) {
            return Err(wrong(format!(
                "'{name}' is {} {:?} in it, and was set as {dtype} {shape:?}; reset, or restore another one",
                meta.dtype, meta.shape
            )));
        }
    }
    Ok(Checkpoint { number: about.number, parameters })
}

fn parse<T: DeserializeOwned>(text: Option<&String>) -> Result<T, String> {
    let text = text.ok_or("it is no checkpoint of a parameter server")?;
    serde_json::from_str(text).map_err(|why| format!("its metadata has no meaning ({why})"))
}

/// A parameter of the file.
fn of_file(
    shards: &Shards,
    plan: &Plan,
    own: &Own,
    tensors: &SafeTensors<'_>,
    name: &str,
    saved: &Saved,
) -> Result<(Meta, Parameter), String> {
    let Saved { dtype, ref shape, optimizer, updates } = *saved;
    let meta = Meta { name: name.to_owned(), dtype, shape: shape.clone(), layout: Layout::Dense, step: 0 };
    check_new(&meta).map_err(|why| why.to_string())?;
    optimizer.check()?;
    let bytes = meta.data_bytes().ok_or("its shape does not fit in memory")?;
    let shard = Arc::new(plan.sharding.shard(meta.rows(), own.server, own.servers));
    let due = shape_of(shape, &shard);
    let tensor = |of: String| {
        let tensor = tensors.tensor(&format!("{of}/{name}")).map_err(|why| format!("{of}: {why}"))?;
        if tensor.dtype() != type_of(dtype) || tensor.shape() != due || tensor.data().len() > bytes {
            return Err(format!(
                "{of} is {:?} {:?}, and {dtype} {due:?} is due",
                tensor.dtype(),
                tensor.shape()
            ));
        }
        Ok(tensor.data().to_vec())
    };
    let value = tensor("value".into())?;
    let states =
        (0..optimizer.states()).map(|at| tensor(format!("state{at}"))).collect::<Result<Vec<_>, _>>()?;
    let mut parameter = Parameter::new(shards.home(), meta.clone(), optimizer, shard, &value)
        .map_err(|why| why.to_string())?;
    parameter.resume(&states, updates);
    Ok((meta, parameter))
}

impl Checkpoint {
    /// Puts its parameters in place of those that are set.
    pub(super) fn take(self, shards: &Shards) -> Result<(), Error> {
        self.parameters.into_iter().try_for_each(|(meta, parameter)| shards.put(&meta, parameter))
    }
}

#[cfg(test)]
mod tests;
