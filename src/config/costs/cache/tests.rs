use std::fs;

use super::*;

fn of(host: &str, transport: &str, link: &str) -> MeasuredFor {
    let (host, transport, link) = (host.into(), transport.into(), link.into());
    MeasuredFor { host, hosts: "2x1".into(), transport, link }
}

fn costs(latency_ns: u32) -> Costs {
    let mut costs = Costs::of_transport("rud");
    costs.network.latency_ns = latency_ns;
    costs
}

/// A folder of the test's own.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("shouter-cache-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

#[test]
fn what_is_written_is_found_again() {
    let path = folder("again").join("below").join("measured.toml");
    assert_eq!(CostCache::read(&path).unwrap(), CostCache::default());
    let mut cache = CostCache::default();
    cache.put(of("a", "rud", "MTU 9000"), costs(1));
    cache.put(of("a", "rud", "MTU 1500"), costs(2));
    cache.put(of("b", "rud", "MTU 9000"), costs(3));
    cache.put(of("a", "rud", "MTU 9000"), costs(4));
    cache.write(&path).unwrap();
    cache.write(&path).unwrap();
    let read = CostCache::read(&path).unwrap();
    assert_eq!(read, cache);
    assert_eq!(read.find(&of("a", "rud", "MTU 9000")), Some(costs(4)));
    assert_eq!(read.find(&of("a", "rud", "MTU 1500")), Some(costs(2)));
    assert_eq!(read.find(&of("b", "rud", "MTU 1500")), None);
    assert_eq!(read.like(&of("b", "rud", "")), Some(costs(3)));
    assert_eq!(read.like(&of("c", "rud", "")), Some(costs(4)));
    assert_eq!(read.like(&of("a", "kernel", "")), None);
    let names: Vec<_> =
        fs::read_dir(path.parent().unwrap()).unwrap().map(|at| at.unwrap().file_name()).collect();
    assert_eq!(names, ["measured.toml"]);
    fs::remove_dir_all(folder("again")).unwrap_or_default();
}

#[test]
fn the_oldest_go_first() {
    let mut cache = CostCache::default();
    for number in 0..=MOST as u32 {
        cache.put(of(&number.to_string(), "rud", ""), costs(number));
    }
    assert_eq!(cache.find(&of("0", "rud", "")), None);
    assert_eq!(cache.find(&of("1", "rud", "")), Some(costs(1)));
    assert_eq!(CostCache::parse(&cache.text().unwrap()), Ok(cache));
}

#[test]
fn what_is_no_cache_is_refused() {
    let entry = "[[measured]]\nhost = \"a\"\nhosts = \"2x1\"\ntransport = \"rud\"\nlink = \"\"\n";
    assert!(CostCache::parse(&format!("{entry}[measured.figures]\nlatency_ns = 7\n")).is_ok());
    for (text, why) in [
        ("", "measured"),
        ("[rud]\nlatency_ns = 700\n", "unknown field"),
        (entry, "figures"),
        ("[[measured]]\nhost", ""),
    ] {
        let refused = CostCache::parse(text).unwrap_err();
        assert!(refused.contains(why), "{text}: {refused}");
    }
    let folder = folder("none");
    fs::create_dir(&folder).unwrap();
    assert!(CostCache::read(&folder).is_err());
    assert!(CostCache::default().write(&folder).is_err());
    assert!(crate::config::CostTable::default().write(&folder).is_err());
    fs::remove_dir_all(folder).unwrap();
}

/// Another release, whose figures have other names or ranges, loses nothing but its own entries.
#[test]
fn entries_that_cannot_be_used_are_left_out() {
    let entry = |host: &str, figure: &str| {
        format!(
            "[[measured]]\nhost = \"{host}\"\nhosts = \"2x1\"\ntransport = \"rud\"\nlink = \"\"\n\
             [measured.figures]\n{figure}\n"
        )
    };
    let text = [
        entry("a", "latency = 7"),
        entry("b", "latency_ns = 7"),
        entry("c", "core_mb_s = 1"),
        entry("d", "latency_ns = 8").replace("\"rud\"", "\"pigeon\""),
    ];
    let cache = CostCache::parse(&text.concat()).unwrap();
    let mut expected = CostCache::default();
    expected.put(of("b", "rud", ""), costs(7));
    assert_eq!(cache, expected);
}

#[test]
fn hosts_are_counted_by_runs() {
    let text = |locals: &[u32]| MeasuredFor::here(&Grid::of_hosts(locals).unwrap(), "rud", "").hosts;
    assert_eq!(text(&[1, 1]), "2x1");
    assert_eq!(text(&[4, 4, 2, 4]), "2x4+1x2+1x4");
}
