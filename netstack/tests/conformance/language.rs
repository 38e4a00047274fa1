//! Reads script files: scenarios, macros, and `for` lines that multiply a scenario.

use std::collections::BTreeMap;

/// A line of a script, split into words.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// The file's name.
    pub(crate) file: String,
    /// The line's number, from 1.
    pub(crate) number: usize,
    /// The words.
    pub(crate) words: Vec<String>,
}

impl Line {
    pub(crate) fn text(&self) -> String {
        self.words.join(" ")
    }
}

/// A scenario, its macros and variables not yet replaced.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    /// RFC number and sections.
    pub(crate) citations: Vec<(u32, Vec<String>)>,
    /// Requirements of RFC 9293 that it covers.
    pub(crate) requirements: Vec<String>,
    pub(crate) lines: Vec<Line>,
}

/// Everything in the script files.
#[derive(Debug, Default)]
pub(crate) struct Scripts {
    pub(crate) scenarios: Vec<(String, Vec<Scenario>)>,
    macros: BTreeMap<String, Vec<Line>>,
}

impl Scripts {
    /// Reads a file.
    ///
    /// # Panics
    /// If the file is not in the language: with its name and line.
    pub(crate) fn read(&mut self, file: &str, text: &str) {
        let mut open: Option<Block> = None;
        let mut found = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let words: Vec<String> =
                line.split('#').next().unwrap_or("").split_whitespace().map(str::to_owned).collect();
            let bad = |why: &str| -> ! { panic!("{file}:{number}: {why}: {line}") };
            let Some(first) = words.first() else { continue };
            match (first.as_str(), &mut open) {
                ("scenario" | "macro", None) => {
                    let Some(name) = words.get(1) else { bad("a name is missing") };
                    open = Some(Block::new(name, first == "macro"));
                }
                ("scenario" | "macro", Some(_)) => bad("the block before has no end"),
                (_, None) => bad("outside of a block"),
                ("end", Some(_)) => match open.take() {
                    Some(block) if block.is_macro => {
                        assert!(
                            self.macros.insert(block.name.clone(), block.lines).is_none(),
                            "{file}:{number}: macro {} is there twice",
                            block.name
                        );
                    }
                    Some(block) => {
                        assert!(!block.citations.is_empty(), "{file}:{number}: {} cites no RFC", block.name);
                        found.extend(block.multiply());
                    }
                    None => {}
                },
                ("for", Some(block)) => {
                    let (Some(variable), Some("in")) = (words.get(1), words.get(2).map(String::as_str))
                    else {
                        bad("for VARIABLE in VALUE...");
                    };
                    block.loops.push((variable.clone(), words[3..].to_vec()));
                }
                ("rfc", Some(block)) => {
                    let Some(Ok(rfc)) = words.get(1).map(|w| w.parse()) else { bad("rfc NUMBER SECTION...") };
                    block.citations.push((rfc, words[2..].to_vec()));
                }
                ("req", Some(block)) => block.requirements.extend_from_slice(&words[1..]),
                (_, Some(block)) => block.lines.push(Line { file: file.to_owned(), number, words }),
            }
        }
        assert!(open.is_none(), "{file}: the last block has no end");
        self.scenarios.push((file.to_owned(), found));
    }

    /// The statements of a scenario, with macros expanded.
    pub(crate) fn statements(&self, scenario: &Scenario) -> Vec<Line> {
        let mut out = Vec::new();
        self.expand(&scenario.lines, &mut out, 0);
        out
    }

    fn expand(&self, lines: &[Line], out: &mut Vec<Line>, depth: usize) {
        assert!(depth < 10, "macros call each other without end");
        for line in lines {
            let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
            let (times, name) = match words.as_slice() {
                ["do", name] => (Ok(1), name),
                ["repeat", times, name] => (times.parse::<usize>(), name),
                _ => {
                    out.push(line.clone());
                    continue;
                }
            };
            let (Ok(times), Some(lines)) = (times, self.macros.get(*name)) else {
                panic!("{}:{}: there is no macro {name}, or no number", line.file, line.number);
            };
            for _ in 0..times {
                self.expand(lines, out, depth + 1);
            }
        }
    }
}

struct Block {
    name: String,
    is_macro: bool,
    citations: Vec<(u32, Vec<String>)>,
    requirements: Vec<String>,
    loops: Vec<(String, Vec<String>)>,
    lines: Vec<Line>,
}

impl Block {
    fn new(name: &str, is_macro: bool) -> Self {
        Self {
            name: name.to_owned(),
            is_macro,
            citations: Vec::new(),
            requirements: Vec::new(),
            loops: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// A scenario for every combination of the loops' values; each value is part of the name.
    fn multiply(self) -> Vec<Scenario> {
        let mut all = vec![Scenario {
            name: self.name,
            citations: self.citations,
            requirements: self.requirements,
            lines: self.lines,
        }];
        for (variable, values) in self.loops {
            let variable = format!("${variable}");
            all =
                all.iter().flat_map(|scenario| values.iter().map(|v| scenario.with(&variable, v))).collect();
        }
        all
    }
}

impl Scenario {
    fn with(&self, variable: &str, value: &str) -> Self {
        let mut scenario = self.clone();
        scenario.name = format!("{}-{value}", self.name);
        for line in &mut scenario.lines {
            for word in &mut line.words {
                *word = word.replace(variable, value);
            }
        }
        scenario
    }
}
