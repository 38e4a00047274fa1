use std::path::PathBuf;

use super::*;

/// A host with a NIC on each of nodes 0 and 1, one of which the system knows no node, and free hugepages per node.
fn host(name: &str, free: [u32; 2]) -> PathBuf {
    let root = std::env::temp_dir().join(format!("shouter-numa-{name}-{}", std::process::id()));
    let write = |path: String, text: String| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for (address, node) in [("0000:0a:00.0", 0), ("0000:8a:00.0", 1), ("0000:8b:00.0", -1)] {
        write(format!("sys/bus/pci/devices/{address}/numa_node"), format!("{node}\n"));
    }
    for (node, free) in free.iter().enumerate() {
        let folder = format!("sys/devices/system/node/node{node}/hugepages/hugepages-2048kB");
        write(format!("{folder}/free_hugepages"), format!("{free}\n"));
    }
    root
}

#[test]
fn memory_is_taken_from_the_nodes_of_the_nics() {
    let root = host("shares", [100, 300]);
    let known =
        |pci: &[&str]| nodes(&root, &pci.iter().map(|&address| address.to_owned()).collect::<Vec<_>>());
    assert_eq!(known(&["0000:8A:00.0", "0000:8b:00.0", "0000:ff:00.0"]), [1]);
    assert_eq!(known(&["0000:0a:00.0", "0000:8a:00.0"]), [0, 1]);
    for (memory_mb, nodes, expected) in [
        (512, &[1][..], Some(&[0, 512][..])),
        (200, &[0], Some(&[200])),
        (101, &[0, 1], Some(&[52, 52])),
        (300, &[0, 1, 1], Some(&[100, 200])),
        // Node 0 has 100 pages free.
        (202, &[0], None),
        (602, &[1], None),
        (512, &[], None),
    ] {
        assert_eq!(
            shares(&root, memory_mb, nodes).as_deref(),
            expected,
            "{memory_mb} MiB, NICs at {nodes:?}"
        );
    }
    for (list, expected) in [("0", [true, false]), ("0-1", [true, true]), ("1-3,7", [false, true])] {
        fs::create_dir_all(root.join("proc/self")).unwrap();
        let status = format!("Name:\tshouter\nMems_allowed_list:\t{list}\n");
        fs::write(root.join("proc/self/status"), status).unwrap();
        let found = [0, 1].map(|node| shares(&root, 64, &[node]).is_some());
        assert_eq!(found, expected, "memory of nodes {list} is allowed");
    }
    fs::remove_dir_all(root).unwrap();
}
