//! The files that AWS' own tools keep settings and keys in: `~/.aws/config` and
//! `~/.aws/credentials`, or those that `AWS_CONFIG_FILE` and `AWS_SHARED_CREDENTIALS_FILE` name.
//!
//! Sections in brackets, and `key = value` in them. What is indented belongs to the line before it,
//! and nothing here needs that.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use device::{Error, Result};

/// Bytes of such a file, at most.
const LONGEST: u64 = 1 << 20;

/// Reads a variable of the environment.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The settings of one profile: those of the file of keys first.
#[derive(Default)]
pub(super) struct Profile(Vec<(String, String)>);

runtime::debug_as!(Profile);

impl Profile {
    /// The one of that name, from files that are there.
    ///
    /// # Errors
    /// A file cannot be read, or the profile was `named` and is in none.
    pub(super) fn read(name: &str, named: bool, environment: Environment<'_>) -> Result<Self> {
        let mut all = Vec::new();
        let mut found = false;
        for (path, is_config) in files(environment).iter().zip([false, true]) {
            let Some(text) = read(path)? else { continue };
            if let Some(mut settings) = section(&text, name, is_config) {
                found = true;
                all.append(&mut settings);
            }
        }
        if named && !found {
            let action =
                format!("there is no profile {name} in ~/.aws/config or ~/.aws/credentials");
            return Err(Error::invalid(action));
        }
        Ok(Self(all))
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.iter().find(|(name, value)| name == key && !value.is_empty());
        found.map(|(_, value)| value.as_str())
    }
}

/// The file of keys, and that of settings.
pub(super) fn files(environment: Environment<'_>) -> Vec<PathBuf> {
    let home = environment("HOME").filter(|home| !home.is_empty());
    [("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config")]
        .into_iter()
        .map(|(variable, name)| {
            let set = environment(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
            let usual = || home.as_ref().map(|home| Path::new(home).join(".aws").join(name));
            set.or_else(usual).unwrap_or_default()
        })
        .collect()
}

fn read(path: &Path) -> Result<Option<String>> {
    let failed = |e: std::io::Error| Error::os("read", e).on(path.display());
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).map_err(failed)?;
    Ok(Some(text))
}

/// The settings of a section, if it is there.
fn section(text: &str, name: &str, is_config: bool) -> Option<Vec<(String, String)>> {
    let mut settings = None;
    let mut inside = false;
    for line in text.lines() {
        let bare = line.split(['#', ';']).next().unwrap_or_default().trim();
        if let Some(header) = bare.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let header = header.trim();
            let own = header.strip_prefix("profile ").filter(|_| is_config).map(str::trim);
            inside = own.unwrap_or(header) == name;
            if inside {
                settings.get_or_insert_with(Vec::new);
            }
        } else if inside
            && !line.starts_with([' ', '\t', '#', ';'])
            && let (Some((key, value)), Some(all)) = (line.split_once('='), &mut settings)
        {
            // A comment begins with a space before it: keys may have these characters.
            let value = value.split(" #").next().unwrap_or_default();
            let value = value.split(" ;").next().unwrap_or_default();
            all.push((key.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_read_from_both_files_and_keys_come_from_that_of_keys_first() {
        let scratch = trial::Scratch::new("/tmp");
        let keys =
            scratch.file("keys", b"[default]\naws_access_key_id = A\n[b]\naws_access_key_id=B#1\n");
        let config = b"# one\n[default]\nregion = eu-1 # here\ns3 =\n  region = no\n[profile b]\n\
                       Region=eu-2\naws_access_key_id=other\n[b]\nx=1\n";
        let config = scratch.file("config", config);
        let environment = |name: &str| match name {
            "AWS_SHARED_CREDENTIALS_FILE" => Some(keys.display().to_string()),
            "AWS_CONFIG_FILE" => Some(config.display().to_string()),
            _ => None,
        };
        let profile = |name| Profile::read(name, true, &environment).unwrap();
        assert_eq!(profile("default").get("region"), Some("eu-1"));
        assert_eq!(profile("default").get("aws_access_key_id"), Some("A"));
        assert_eq!(profile("b").get("region"), Some("eu-2"));
        assert_eq!(profile("b").get("aws_access_key_id"), Some("B#1"));
        assert!(Profile::read("c", true, &environment).is_err());
        assert!(Profile::read("c", false, &environment).unwrap().get("region").is_none());
        assert!(!format!("{:?}", profile("b")).contains("B#1"));
    }

    #[test]
    fn files_are_where_the_environment_says_or_below_the_home() {
        let home = |name: &str| (name == "HOME").then(|| "/h".to_owned());
        assert_eq!(files(&home), [Path::new("/h/.aws/credentials"), Path::new("/h/.aws/config")]);
        let none = |_: &str| None;
        assert_eq!(files(&none), [Path::new(""), Path::new("")]);
        assert!(Profile::read("default", false, &none).unwrap().get("region").is_none());
    }
}
