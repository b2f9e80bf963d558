//! The engine's files form layers: a file uses only files of layers below. The layers are the
//! paragraphs of `mod` lines in `lib.rs`, and of those in a folder's `mod.rs`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The floor of each module, as a file declares them.
fn floors(text: &str) -> HashMap<String, usize> {
    let module = |line: &str| {
        let name = line.trim_start_matches("pub(crate) ").strip_prefix("mod ")?;
        Some(name.strip_suffix(';')?.to_owned())
    };
    let paragraphs = text.split("\n\n").enumerate();
    paragraphs.flat_map(|(i, p)| p.lines().filter_map(module).map(move |m| (m, i))).collect()
}

/// The names that follow `prefix` in a text, those in braces too.
fn named(text: &str, prefix: &str) -> Vec<String> {
    let word = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut names = Vec::new();
    for (at, _) in text.match_indices(prefix) {
        let rest = &text[at + prefix.len()..];
        match rest.strip_prefix('{').and_then(|r| r.split('}').next()) {
            Some(list) => names.extend(list.split(',').map(word)),
            None => names.push(word(rest)),
        }
    }
    names
}

fn text(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    text.split("#[cfg(test)]").next().unwrap_or_default().to_owned()
}

/// The files of a module.
fn files(folder: &Path, module: &str) -> Vec<PathBuf> {
    let file = folder.join(format!("{module}.rs"));
    if file.exists() {
        return vec![file];
    }
    let list = std::fs::read_dir(folder.join(module)).unwrap();
    list.map(|entry| entry.unwrap().path()).collect()
}

fn check(folder: &Path, list: &str, prefix: &str) -> usize {
    let floors = floors(&text(&folder.join(list)));
    let mut arrows = 0;
    for (module, floor) in &floors {
        for file in files(folder, module) {
            for name in named(&text(&file), prefix) {
                let Some(other) = floors.get(&name).filter(|_| name != *module) else { continue };
                assert!(other < floor, "{module} ({}) knows {name}", file.display());
                arrows += 1;
            }
        }
    }
    arrows
}

#[test]
fn no_file_knows_one_on_its_own_floor_or_above() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert!(check(&folder, "lib.rs", "crate::") > 40);
    assert!(check(&folder.join("zero"), "mod.rs", "super::") > 8);
}
