//! What tests there are: for lists, in the documentation and elsewhere, that name them.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// The top of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Where the checks are that need no socket: those over bytes alone, and the rows of both drivers.
pub const OF_BYTES: [&str; 2] = ["crates/wire/tests/checks", "tests/src/conformance"];

/// The numbers of a conformance list that neither a row nor a test `SIDE_check_NN_…` in these
/// folders of the repository has.
pub fn missing(side: &str, numbers: RangeInclusive<u32>, folders: &[&str]) -> Vec<u32> {
    let names: Vec<String> = folders
        .iter()
        .map(|folder| repository().join(folder))
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .flat_map(|file| tests_of(&file.unwrap().path()))
        .collect();
    let has = |number: &u32| {
        let begin = format!("{side}_check_{number:02}_");
        names.iter().any(|name| name.starts_with(&begin))
    };
    numbers.filter(|number| !has(number)).collect()
}

/// The names of the tests in a file that are not ignored, and of the checks that it lists.
pub fn tests_of(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let mut names = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        let check = line.split('"').find(|word| word.contains("_check_") && !word.contains(' '));
        names.extend(check.map(str::to_owned));
        if line == "#[test]" {
            is_test = true;
        } else if line.starts_with("#[ignore") {
            is_test = false;
        } else if let Some(rest) = line.strip_prefix("fn ").filter(|_| is_test) {
            names.extend(rest.split('(').next().map(str::to_owned));
            is_test = false;
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            is_test = false;
        }
    }
    names
}
