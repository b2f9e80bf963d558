//! The copies of tests/copies.json by the binary; crates/python/tests/test_copies.py makes the same
//! by Python's functions.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use blackbox::run::{Outcome, ferry, json, text};
use blackbox::temp::TempDir;
use serde_json::Value;

const TABLE: &str = include_str!("../../../copies.json");

/// The bytes of a file in the table.
fn contents(file: &Value) -> Vec<u8> {
    if let Some(text) = file["text"].as_str() {
        return text.into();
    }
    let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    let mut held = vec![0; number(&file["size"])];
    for range in file["data"].as_array().unwrap() {
        let byte = u8::try_from(number(&range[2])).unwrap();
        held[number(&range[0])..][..number(&range[1])].fill(byte);
    }
    held
}

struct Case<'a> {
    case: &'a Value,
    temp: TempDir,
}

impl Case<'_> {
    fn word(&self, key: &str) -> Option<&str> {
        self.case[key].as_str()
    }

    /// A file in the directory, or what is no file.
    fn name(&self, name: &str) -> String {
        if name.contains(':') { name.into() } else { text(&self.temp.join(name)).into() }
    }

    fn target(&self) -> String {
        self.name(self.word("target").unwrap_or("target"))
    }

    /// The options, which have Python's names.
    fn options(&self) -> Vec<String> {
        let none = serde_json::Map::new();
        let all = self.case["options"].as_object().unwrap_or(&none);
        let mut words = Vec::new();
        for (key, value) in all {
            let option = format!("--{}", key.replace('_', "-"));
            match value {
                Value::Object(of_format) => {
                    for (key, value) in of_format {
                        words.extend(["-o".into(), format!("{key}={}", value.as_str().unwrap())]);
                    }
                }
                Value::Array(filters) => {
                    let option = option.trim_end_matches('s');
                    let filter = |word: &Value| format!("{option}={}", word.as_str().unwrap());
                    words.extend(filters.iter().map(filter));
                }
                Value::Bool(true) => words.push(option),
                Value::String(file) if key == "journal" || key == "changes" => {
                    words.extend([option, self.name(file)]);
                }
                Value::String(word) => words.push(format!("{option}={word}")),
                other => words.push(format!("{option}={other}")),
            }
        }
        words
    }

    fn run(&self) -> Outcome {
        let format = self.word("source_format").unwrap_or("raw");
        let mut words: Vec<String> = ["copy", "-f", format].map(Into::into).into();
        words.extend(self.word("format").iter().flat_map(|to| ["-O".into(), (*to).into()]));
        words.extend(self.options());
        words.extend([self.name(self.word("source").unwrap()), self.target()]);
        ferry(words)
    }

    /// The bytes of the disk in the target.
    fn shown(&self) -> Vec<u8> {
        let target = self.target();
        let Some(format) = self.word("format") else { return fs::read(target).unwrap() };
        let (shown, directory) = (self.name("shown"), self.name("."));
        let words = ["copy", "-f", format, "--allow-external", &directory, &target, &shown];
        ferry(words).succeeded();
        fs::read(shown).unwrap()
    }

    fn check(&self, files: &BTreeMap<&str, Vec<u8>>) {
        let what = self.case["name"].as_str().unwrap();
        let runs = self.case["runs"].as_u64().unwrap_or(1);
        let last = (0..runs).map(|_| self.run()).reduce(|_, next| next).unwrap();
        match self.word("errno") {
            None => drop(last.succeeded()),
            Some(_) => {
                let says = self.word("says").unwrap_or_default();
                assert!(!last.status.success() && last.stderr.contains(says), "{what}: {last:#?}");
            }
        }
        let target = self.target();
        let Some(wanted) = self.word("wanted") else {
            assert!(!fs::exists(&target).unwrap(), "{what}: the target is there");
            return;
        };
        assert!(self.shown() == files[wanted], "{what}: other bytes");
        if let Some(kind) = self.word("digest") {
            let source = self.name(self.word("source").unwrap());
            let digest = ferry(["copy", &format!("--blkhash={kind}"), &source, "null:"]);
            let digest = digest.succeeded().trim_end();
            assert!(!digest.is_empty() && last.stdout.contains(digest), "{what}: {last:#?}");
        }
        if let Some(bytes) = self.case["allocated"].as_u64() {
            assert!(fs::metadata(&target).unwrap().blocks() * 512 >= bytes, "{what}");
        }
    }
}

#[test]
fn each_copy_of_the_table() {
    let table = json(TABLE);
    let files: BTreeMap<_, _> = table["files"].as_object().unwrap().iter().collect();
    let files = files.into_iter().map(|(name, file)| (name.as_str(), contents(file))).collect();
    let cases = table["cases"].as_array().unwrap();
    assert!(cases.len() >= 30);
    for case in cases {
        let case = Case { case, temp: TempDir::new() };
        let begin = case.case["begin"].as_array().unwrap().iter().filter_map(Value::as_str);
        for name in begin.chain(case.word("target")) {
            if let Some(held) = BTreeMap::get(&files, name) {
                case.temp.file(name, held);
            }
        }
        case.check(&files);
    }
}
