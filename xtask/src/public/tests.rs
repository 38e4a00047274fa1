use super::*;

fn module(code: &str) -> Module {
    Module { path: vec![], file: "src/lib.rs".into(), items: syn::parse_file(code).unwrap().items }
}

#[test]
fn items_are_found_and_their_users() {
    let module = module(
        "pub struct A; pub struct B; impl B { pub fn f() {} fn g(_: *const C) {} } pub struct C; struct D; use x::A;
         #[unsafe(no_mangle)] pub extern \"C\" fn h() { B::g(0) } pub fn i() {} use x::i as j;",
    );
    let names: Vec<String> = public(&module).into_iter().map(|(path, _)| path).collect();
    assert_eq!(names, ["A", "B", "B::f", "C", "i"]);
    let mut used = BTreeSet::new();
    uses(&module, &mut used);
    let unused: Vec<&str> =
        ["A", "B", "f", "C", "i"].into_iter().filter(|name| !used.contains(*name)).collect();
    assert_eq!(unused, ["A", "f"]);
}

#[test]
fn examples_that_run_are_users() {
    let text = "
        //! ```
        //! # let hidden = 1;
        //! a(hidden);
        //! ```
        /// ```no_run
        /// b();
        /// ```
        ///
        /// ```text
        /// c -> d
        /// ```
        /// ```
        /// e();
        fn cut_off() {}
        /// ```rust
        /// f();
        /// ```
    ";
    assert_eq!(examples(text), ["let hidden = 1;\na(hidden);\n", "f();\n"]);
}
