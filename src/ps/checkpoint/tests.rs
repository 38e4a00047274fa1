use super::*;
use crate::ps::plan::Plan;

const ADAGRAD: Optimizer = Optimizer::Adagrad { rate: 0.5, epsilon: 1e-8 };

fn own(server: usize, servers: usize) -> Own {
    Own { name: "server".into(), server, servers }
}

fn plan() -> Plan {
    Plan::new(&["server"], &["trainer"])
}

/// A server with a parameter of this shape, if any.
fn shards(own: &Own, shape: Option<&[u64]>) -> Shards {
    let shards = Shards::new(Arc::new(plan()), own.clone(), None);
    if let Some(shape) = shape {
        let whole = Meta {
            name: "w".into(),
            dtype: DType::F64,
            shape: shape.to_vec(),
            layout: Layout::Dense,
            step: 0,
        };
        let rows = Sharding::Contiguous.shard(whole.rows(), own.server, own.servers).len();
        let meta = Meta { layout: Layout::Shard(rows as u64), ..whole };
        let value: Vec<u8> = (0..meta.data_bytes().unwrap()).map(|at| at as u8).collect();
        shards.set(&meta, ADAGRAD, &value).unwrap();
    }
    shards
}

fn value(shards: &Shards) -> Vec<u8> {
    let all = shards.all();
    all.first().map_or(vec![], |(_, parameter)| parameter.read().unwrap().value().to_vec())
}

/// A folder of the test's own.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("shouter-checkpoint-{name}-{}", std::process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_was_saved_is_taken_by_a_server_with_nothing_set() {
    let folder = Folder::new("whole");
    for shape in [&[5u64, 3][..], &[7], &[], &[0, 2]] {
        let own = own(0, 1);
        let saved = shards(&own, Some(shape));
        save(&saved, &plan(), &own, folder.path(), 42).unwrap();
        let restored = shards(&own, None);
        let read = read(&restored, &plan(), &own, folder.path()).unwrap();
        assert_eq!((read.number, restored.all().len()), (42, 0), "reading takes nothing");
        read.take(&restored).unwrap();
        assert_eq!((restored.all().len(), value(&restored)), (1, value(&saved)), "{shape:?}");
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let folder = Folder::new("other");
    let first = own(0, 2);
    save(&shards(&first, Some(&[6, 2])), &plan(), &first, folder.path(), 1).unwrap();
    let mut hashed = plan();
    hashed.sharding = Sharding::Hashed;
    let nothing = shards(&first, None);
    for (plan, own, says) in [
        (&plan(), own(1, 2), "server 0 of 2"),
        (&plan(), own(0, 3), "this is server 0 of 3"),
        (&hashed, own(0, 2), "Hashed"),
    ] {
        let error = read(&nothing, plan, &own, folder.path()).map(drop).unwrap_err();
        assert!(matches!(error, Error::Checkpoint { .. }) && error.to_string().contains(says), "{error}");
    }
    let set = shards(&first, Some(&[6, 3]));
    let before = value(&set);
    let error = read(&set, &plan(), &first, folder.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains("[6, 2]") && error.contains("[6, 3]"), "{error}");
    assert_eq!(value(&set), before);
    let none = read(&nothing, &plan(), &first, "/nonexistent").map(drop).unwrap_err();
    assert!(matches!(none, Error::Checkpoint { .. }), "{none}");
}

#[test]
fn a_damaged_file_is_refused() {
    let folder = Folder::new("damaged");
    let own = own(0, 1);
    save(&shards(&own, Some(&[4, 2])), &plan(), &own, folder.path(), 1).unwrap();
    let (path, nothing) = (file(folder.path(), &own), shards(&own, None));
    let whole = fs::read(&path).unwrap();
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        assert!(read(&nothing, &plan(), &own, folder.path()).is_err(), "{len} bytes of {}", whole.len());
    }
    for at in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[at / 8] ^= 1 << (at % 8);
        fs::write(&path, flipped).unwrap();
        let error = read(&nothing, &plan(), &own, folder.path()).map(drop).unwrap_err();
        assert!(matches!(error, Error::Checkpoint { .. }), "bit {at}: {error}");
    }
    // Another optimizer has other tensors of state.
    let tensors = SafeTensors::deserialize(&whole).unwrap();
    let (_, header) = SafeTensors::read_metadata(&whole).unwrap();
    let mut metadata: BTreeMap<_, _> = header.metadata().clone().unwrap().into_iter().collect();
    let renamed = |(name, tensor): (String, _)| (name.replace("state0", "state7"), tensor);
    let mut tensors: Vec<_> = tensors.tensors().into_iter().map(renamed).collect();
    metadata.insert(CHECKSUM.into(), checksum(&metadata, &mut tensors));
    let metadata: HashMap<_, _> = metadata.into_iter().collect();
    fs::write(&path, serialize(tensors, Some(metadata)).unwrap()).unwrap();
    let error = read(&nothing, &plan(), &own, folder.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains("state0"), "{error}");
    let stranger = serialize(Vec::<(String, TensorView<'_>)>::new(), None).unwrap();
    fs::write(&path, stranger).unwrap();
    let error = read(&nothing, &plan(), &own, folder.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains("no checkpoint of a parameter server"), "{error}");
}

#[test]
fn checkpoints_that_are_saved_at_once_are_each_whole() {
    let folder = Folder::new("at-once");
    let own = own(0, 1);
    let saved = shards(&own, Some(&[500, 3]));
    std::thread::scope(|scope| {
        for number in 1..=4 {
            let (saved, own, folder) = (&saved, &own, folder.path());
            scope.spawn(move || {
                for _ in 0..5 {
                    save(saved, &plan(), own, folder, number).unwrap();
                }
            });
        }
    });
    let nothing = shards(&own, None);
    assert!((1..=4).contains(&read(&nothing, &plan(), &own, folder.path()).unwrap().number));
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "nothing is left over");
}
