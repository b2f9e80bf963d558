//! The words after a device: `key=value`, a value alone, or `@PATH`, a file of such words.

use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// How deep files of words may be nested.
const DEPTH: usize = 8;
/// Most words in all.
const WORDS: usize = 10_000;
/// Most bytes of a file of words.
const FILE: u64 = 1 << 20;

/// One word.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Word {
    Pair {
        key: String,
        value: String,
    },
    /// The value of the device's magic parameter.
    Value(String),
}

/// Reads words. A word is a pair only if what is before `=` could be a key, as in nbdkit.
///
/// # Errors
/// A file of words cannot be read, or there are too many.
pub(super) fn read<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Vec<Word>, Failure> {
    let mut all = Vec::new();
    for word in words {
        read_word(word, Path::new(""), DEPTH, &mut all)?;
    }
    Ok(all)
}

fn read_word(word: &str, base: &Path, depth: usize, all: &mut Vec<Word>) -> Result<(), Failure> {
    // Without a slash it may be a value: `@1M` is an offset for the device `data`.
    if let Some(path) = word.strip_prefix('@').filter(|path| path.contains('/')) {
        return read_file(&base.join(path), depth, all);
    }
    if all.len() >= WORDS {
        return Err(Failure::usage(format!("more than {WORDS} parameters")));
    }
    all.push(match word.split_once('=') {
        Some((key, value)) if is_key(key) => Word::Pair { key: key.into(), value: value.into() },
        _ => Word::Value(word.into()),
    });
    Ok(())
}

fn read_file(path: &PathBuf, depth: usize, all: &mut Vec<Word>) -> Result<(), Failure> {
    let say = |why: &dyn std::fmt::Display| Failure::new(format!("@{}: {why}", path.display()));
    let Some(depth) = depth.checked_sub(1) else {
        return Err(say(&"parameter files are nested too deeply"));
    };
    let size = std::fs::metadata(path).map_err(|e| say(&e))?.len();
    if size > FILE {
        return Err(say(&format_args!("{size} bytes are too long")));
    }
    let text = std::fs::read_to_string(path).map_err(|e| say(&e))?;
    let base = path.parent().unwrap_or(Path::new(""));
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        read_word(line, base, depth, all)?;
    }
    Ok(())
}

fn is_key(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(key: &str, value: &str) -> Word {
        Word::Pair { key: key.into(), value: value.into() }
    }

    #[test]
    fn a_pair_needs_a_key() {
        let read = |word| read([word]).unwrap().remove(0);
        assert_eq!(read("size=1M"), pair("size", "1M"));
        assert_eq!(read("data=1=2"), pair("data", "1=2"));
        assert_eq!(read("a.b-c_1="), pair("a.b-c_1", ""));
        for value in ["1M", "=", "1=2", "\"a=b\"", "./a=b", "@1M", "", "-x=1"] {
            assert_eq!(read(value), Word::Value(value.into()));
        }
    }

    #[test]
    fn files_of_words_name_others_relative_to_themselves_and_never_without_end() {
        let dir = std::env::temp_dir().join(format!("diskferry-words-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("more")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
        write("first", "# comment\n\nsize=1M\n@more/./second\nseed=1\n");
        write("more/second", "percent=5 6\n");
        write("loop", "@./loop\n");
        let at = |name: &str| format!("@{}/{name}", dir.display());
        let words = read([at("first").as_str()]).unwrap();
        assert_eq!(words, [pair("size", "1M"), pair("percent", "5 6"), pair("seed", "1")]);
        assert!(read([at("loop").as_str()]).unwrap_err().line().contains("too deep"));
        assert!(read([at("none").as_str()]).unwrap_err().line().contains("No such file"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
