use super::*;

/// The modules that code in `a::b` leads to, in a crate with modules `a`, `c` and `d` whose root re-exports `d::Thing`.
fn leads(code: &str) -> Vec<String> {
    let mut names = Names { top: ["a", "c", "d"].map(str::to_owned).into(), ..Names::default() };
    names.note("Thing".to_owned(), Some("d"));
    let mut to = BTreeSet::new();
    names.paths(code.parse().unwrap(), &["a".to_owned(), "b".to_owned()], &mut to);
    to.into_iter().collect()
}

#[test]
fn every_kind_of_path_is_seen() {
    assert_eq!(leads("use crate::c::X;"), ["c"]);
    assert_eq!(leads("use crate::{a::Y, c::{X, Z}, Thing};"), ["a", "c", "d"]);
    assert_eq!(leads("use super::super::{c, d::X};"), ["c", "d"]);
    assert_eq!(leads("use super::X; use self::Y; pub(in super::super) fn f() {}"), ["a"]);
    assert_eq!(leads("fn f(x: crate::c::X) -> u32 { println!(\"{}\", crate::Thing::new()) }"), ["c", "d"]);
    assert_eq!(leads("fn f() { std::a::f(); self.c.g(); crate::h() }"), ["crate"]);
}

#[test]
fn cycles_are_found() {
    let graph = |edges: &[(&str, &str)]| {
        let mut graph = Graph::new();
        for (from, to) in edges {
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned(), String::new());
        }
        graph
    };
    assert!(cycles(&graph(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
    assert_eq!(cycles(&graph(&[("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")])), [["a", "b", "c"]]);
}
