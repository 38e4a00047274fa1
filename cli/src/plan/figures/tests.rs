use super::*;
use crate::plan::tests::parsed;

#[test]
fn figures_come_from_the_first_file_that_has_them() {
    let folder = std::env::temp_dir().join(format!("shouter-figures-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let home = folder.join("shouter");
    std::fs::create_dir_all(&home).unwrap();
    let environment: Environment = [("XDG_CACHE_HOME", folder.to_str().unwrap())].into_iter().collect();
    let grid = Grid::of_hosts(&[1, 1]).unwrap();
    let usual = parsed(&[]).unwrap();
    let of = |args: &PlanArgs| of(args, &grid, "rud", &environment);
    assert_eq!(of(&usual).unwrap().source, Source::BuiltIn);

    let (jobs, tables) = (home.join("measured.toml"), home.join("costs.toml"));
    let with = |latency_ns| {
        let mut costs = Costs::of_transport("rud");
        costs.network.latency_ns = latency_ns;
        costs
    };
    let mut cache = CostCache::default();
    cache.put(MeasuredFor::here(&grid, "rud", "virtio, MTU 9000"), with(1_111));
    cache.write(&jobs).unwrap();
    assert_eq!(of(&usual).unwrap(), Figures { costs: with(1_111), source: Source::Jobs(jobs.clone()) });
    let mut table = CostTable::default();
    table.set("kernel", with(2_222));
    table.write(&tables).unwrap();
    assert_eq!(of(&usual).unwrap().costs, with(1_111));
    table.set("rud", with(2_222));
    table.write(&tables).unwrap();
    assert_eq!(of(&usual).unwrap(), Figures { costs: with(2_222), source: Source::Table(tables.clone()) });

    let named = parsed(&["--costs", jobs.to_str().unwrap()]).unwrap();
    assert_eq!(of(&named).unwrap().costs, with(1_111));
    let of_tables = parsed(&["--costs", tables.to_str().unwrap()]).unwrap();
    assert_eq!(of(&of_tables).unwrap().costs, with(2_222));
    let lacking = super::of(&of_tables, &grid, "tcp", &environment).unwrap_err();
    assert!(lacking.to_string().contains("costs.toml: it has no figures for tcp"), "{lacking}");
    let other = super::of(&named, &Grid::of_hosts(&[2, 2]).unwrap(), "rud", &environment).unwrap_err();
    assert!(other.to_string().contains("no job of 2x2 ranks over rud"), "{other}");
    std::fs::write(&jobs, "damaged").unwrap();
    assert!(of(&named).is_err());
    let missing = parsed(&["--costs", "/nowhere/costs.toml"]).unwrap();
    assert!(of(&missing).unwrap_err().to_string().contains("/nowhere/costs.toml"));
    std::fs::remove_dir_all(folder).unwrap();
}
