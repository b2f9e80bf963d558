//! What tests there are: for lists, in the documentation and elsewhere, that name them.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// The top of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The numbers of a conformance list that neither a check in `src/conformance` nor a test
/// `SIDE_check_NN_…` in these folders of `tests/tests` has.
pub fn missing(side: &str, numbers: RangeInclusive<u32>, folders: &[&str]) -> Vec<u32> {
    let folders = folders.iter().map(|folder| repository().join("tests/tests").join(folder));
    let names: Vec<String> = folders
        .chain([repository().join("tests/src/conformance")])
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
