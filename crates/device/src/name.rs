//! How things are named: a path, a URI, or `DEVICE:ARG?key=value&key=value`.
//!
//! Nothing is opened or looked up here. In a parameter `\&` stands for `&`. A word before a colon
//! is always a device; a file whose name has a colon is named `./a:b` or `file:a:b`.

use crate::{Error, Result};

/// The name of something that can be opened.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Name {
    /// `DEVICE:ARG?key=value`.
    Device {
        /// The device's word in the table.
        kind: String,
        /// What is between the colon and the question mark; may be empty.
        arg: String,
        /// The parameters.
        params: Params,
    },
    /// A file or block device.
    Path(String),
    /// A URI with its scheme in lower case; the text as it was given.
    Uri {
        /// The scheme, in lower case.
        scheme: String,
        /// The whole URI.
        text: String,
    },
}

impl Name {
    /// Reads a name.
    ///
    /// # Errors
    /// It is empty, or a parameter has no value.
    pub fn parse(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::invalid("the name is empty"));
        }
        let word = text.bytes().take_while(|b| is_word(*b)).count();
        let (head, rest) = text.split_at(word);
        if word > 0 && rest.starts_with("://") {
            return Ok(Self::Uri { scheme: head.to_ascii_lowercase(), text: text.into() });
        }
        // `nbd+unix:///...` has no `//` only when mistyped; leave the error to the URI parser.
        if let Some(rest) = rest.strip_prefix(':').filter(|_| word > 0) {
            let (arg, query) = rest.split_once('?').unwrap_or((rest, ""));
            let params = Params::parse_query(query)?;
            return Ok(Self::Device { kind: head.into(), arg: arg.into(), params });
        }
        Ok(Self::Path(text.into()))
    }
}

fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'+' | b'_')
}

/// `key=value` parameters, in the order given. A key may occur more than once; whether that makes
/// sense is for the code that knows the keys: see [`Params::check_once`].
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Params(Vec<(String, String)>);

impl Params {
    /// Reads `key=value` words.
    ///
    /// # Errors
    /// A word without `=`.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let mut params = Self::default();
        for word in words {
            let no_value = || Error::invalid(format!("`{word}` has no value; write {word}=VALUE"));
            let (key, value) = word.split_once('=').ok_or_else(no_value)?;
            params.add(key, value);
        }
        Ok(params)
    }

    /// Reads `key=value&key=value`, where `\&` stands for `&`.
    ///
    /// # Errors
    /// A word without `=`.
    pub fn parse_query(query: &str) -> Result<Self> {
        let mut words = vec![String::new()];
        let mut rest = query;
        while let Some(at) = rest.find('&') {
            let (before, after) = rest.split_at(at);
            rest = after.get(1..).unwrap_or_default();
            let Some(word) = words.last_mut() else { break };
            if let Some(escaped) = before.strip_suffix('\\') {
                word.push_str(escaped);
                word.push('&');
            } else {
                word.push_str(before);
                words.push(String::new());
            }
        }
        if let Some(word) = words.last_mut() {
            word.push_str(rest);
        }
        Self::parse(words.iter().map(String::as_str).filter(|word| !word.is_empty()))
    }

    /// Adds a parameter, after those of the same key.
    pub fn add(&mut self, key: &str, value: &str) {
        self.0.push((key.into(), value.into()));
    }

    /// Adds a parameter that is given once.
    ///
    /// # Errors
    /// The key is there already.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        if self.contains(key) {
            return Err(given_twice(key));
        }
        self.add(key, value);
        Ok(())
    }

    /// Takes the value of `key` out; the first, if it was given more than once.
    pub fn take(&mut self, key: &str) -> Option<String> {
        let at = self.0.iter().position(|(k, _)| k == key)?;
        Some(self.0.remove(at).1)
    }

    /// Whether `key` was given.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The value of `key`; the first, if it may be given more than once.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// All values of `key`, in the order given.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.iter().filter(move |(k, _)| *k == key).map(|(_, v)| v)
    }

    /// The pairs, in the order given.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// Whether nothing was given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Refuses a key that is not among `known`, naming the nearest that is. For keys that occur
    /// twice see [`Params::check_once`].
    ///
    /// # Errors
    /// The first unknown key.
    pub fn check(&self, known: &[&str]) -> Result<()> {
        match self.0.iter().find(|(k, _)| !known.contains(&k.as_str())) {
            None => Ok(()),
            Some((key, _)) => {
                let meant = nearest(key, known).map(|near| format!("; did you mean `{near}`?"));
                let meant = meant.unwrap_or_default();
                Err(Error::invalid(format!("there is no parameter `{key}`{meant}")))
            }
        }
    }

    /// Refuses a key that occurs more than once and is not among `repeatable`.
    ///
    /// # Errors
    /// The first such key.
    pub fn check_once(&self, repeatable: &[&str]) -> Result<()> {
        let repeated = self.0.iter().enumerate().find(|(i, (key, _))| {
            !repeatable.contains(&key.as_str()) && self.0.iter().take(*i).any(|(k, _)| k == key)
        });
        match repeated {
            None => Ok(()),
            Some((_, (key, _))) => Err(given_twice(key)),
        }
    }
}

/// The words of QEMU's option strings: those between single commas. `,,` is a comma in a word.
#[must_use]
pub fn between_commas(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let Some(word) = words.last_mut() else { break };
        match letter {
            ',' if letters.next_if_eq(&',').is_some() => word.push(','),
            ',' => words.push(String::new()),
            other => word.push(other),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn given_twice(key: &str) -> Error {
    Error::invalid(format!("`{key}` is given twice"))
}

/// The word of `known` nearest to `word`, if one is near enough to be meant.
#[must_use]
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|k| (distance(word, k), *k))
        .filter(|(d, k)| *d <= (k.len().min(word.len()) / 3).max(1))
        .min_by_key(|(d, k)| (*d, k.len().abs_diff(word.len())))
        .map(|(_, k)| k)
}

/// A hint for a `word` that is none of `known`.
#[must_use]
pub fn suggestion(word: &str, known: &[&str]) -> String {
    match nearest(word, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are {}", known.join(", ")),
    }
}

/// Edits (insert, delete, replace, swap of neighbours) between two words.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(64).collect();
    let b: Vec<char> = b.chars().take(64).collect();
    let mut rows = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut best = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(rows[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_uris_and_devices_are_told_apart() {
        assert_eq!(Name::parse("disk.raw").unwrap(), Name::Path("disk.raw".into()));
        assert_eq!(Name::parse("/a/b:c").unwrap(), Name::Path("/a/b:c".into()));
        assert_eq!(Name::parse("./a:b").unwrap(), Name::Path("./a:b".into()));
        assert!(
            matches!(Name::parse("NBD://host"), Ok(Name::Uri { scheme, .. }) if scheme == "nbd")
        );
        let Ok(Name::Device { kind, arg, params }) =
            Name::parse("sparse-random:1T?seed=7&percent=5")
        else {
            panic!("not a device")
        };
        assert_eq!((kind.as_str(), arg.as_str()), ("sparse-random", "1T"));
        assert_eq!(params.get("percent"), Some("5"));
    }

    #[test]
    fn an_escaped_ampersand_belongs_to_the_value() {
        let pairs = |query: &str| -> Vec<(String, String)> {
            let params = Params::parse_query(query).unwrap();
            params.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
        };
        let is = |query: &str, wanted: &[(&str, &str)]| {
            let wanted: Vec<_> =
                wanted.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            assert_eq!(pairs(query), wanted, "{query}");
        };
        is("a=1&b=2", &[("a", "1"), ("b", "2")]);
        is(r"a=x \&\& y&b=2", &[("a", "x && y"), ("b", "2")]);
        is(r"a=\&", &[("a", "&")]);
        is(r"a=\n&&b=\", &[("a", r"\n"), ("b", r"\")]);
        is("", &[]);
    }

    #[test]
    fn a_misspelt_parameter_is_refused_with_the_nearest_right_one() {
        let params = Params::parse(["sede=7"]).unwrap();
        let refusal = params.check(&["size", "seed", "percent"]).unwrap_err().to_string();
        assert_eq!(refusal, "there is no parameter `sede`; did you mean `seed`?");
        let refusal = params.check(&["data"]).unwrap_err().to_string();
        assert_eq!(refusal, "there is no parameter `sede`");
    }

    #[test]
    fn a_parameter_without_value_is_refused() {
        let refusal = Params::parse(["a"]).unwrap_err().to_string();
        assert_eq!(refusal, "`a` has no value; write a=VALUE");
    }

    #[test]
    fn a_parameter_given_twice_is_refused_unless_it_may_be() {
        let params = Params::parse(["a=1", "b=x", "a=2"]).unwrap();
        let twice = |checked: Result<()>| checked.unwrap_err().to_string();
        assert_eq!(twice(params.check_once(&[])), "`a` is given twice");
        assert_eq!(twice(params.check_once(&["b"])), "`a` is given twice");
        params.check_once(&["a"]).unwrap();
        assert_eq!(params.all("a").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(params.get("a"), Some("1"));
        assert_eq!(twice(params.clone().set("b", "y")), "`b` is given twice");
    }
}
