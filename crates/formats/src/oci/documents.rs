//! The documents of an image: indexes and manifests, as JSON. What they say is untrusted: a digest
//! is 64 digits before it becomes a name, and lists have limits.

use std::fmt::{self, Display};

use device::{Error, Result, text};
use serde_json::Value;

use super::{broken, short, too_much};

/// Manifests of an index, at most.
const MANIFESTS: usize = 1024;
/// Layers of an image, at most.
const LAYERS: usize = 256;
/// Images that a message names.
const NAMED: usize = 8;
/// Where an index has the tag of an image.
const TAGS: [&str; 2] = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];

/// What is said of a blob.
#[derive(Clone, Debug)]
pub(super) struct Blob {
    /// 64 hexadecimal digits, in lower case.
    pub(super) sha256: String,
    pub(super) size: u64,
}

impl Display for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}…", short(&self.sha256))
    }
}

impl Blob {
    fn of(value: &Value) -> Result<Self> {
        let digest = value.get("digest").and_then(Value::as_str);
        let digest = digest.ok_or_else(|| broken("a blob has no digest"))?;
        let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        let sha256 = digest.strip_prefix("sha256:");
        let sha256 = sha256.filter(|hex| hex.len() == 64 && hex.bytes().all(is_hex));
        let sha256 = sha256.ok_or_else(|| broken("a blob has a digest that is not SHA-256"))?;
        let size = value.get("size").and_then(Value::as_u64);
        let size = size.filter(|size| i64::try_from(*size).is_ok());
        let size = size.ok_or_else(|| broken("a blob has no size"))?;
        Ok(Self { sha256: sha256.to_owned(), size })
    }
}

/// Which of an index is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next<'a> {
    pub(super) tag: Option<&'a str>,
    pub(super) arch: &'a str,
}

/// The word of OCI for the processor that this program is made for.
pub(super) fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// What leads to manifests.
#[derive(Debug)]
pub(super) struct Index(Vec<Value>);

impl Index {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        match json(bytes)?.get_mut("manifests").map(Value::take) {
            Some(Value::Array(all)) if all.len() > MANIFESTS => {
                Err(too_much(&format!("{} manifests", all.len())))
            }
            Some(Value::Array(all)) => Ok(Self(all)),
            _ => Err(broken("its index names no manifests")),
        }
    }

    /// The manifest, or the deeper index, that is wanted: of one name, and then for this processor.
    pub(super) fn choose(&self, wanted: &Next<'_>) -> Result<Blob> {
        let tags = |one: &Value| -> Vec<String> {
            let notes = one.get("annotations");
            let tag = |key| notes?.get(key)?.as_str().map(str::to_owned);
            TAGS.into_iter().filter_map(tag).collect()
        };
        let platform =
            |one: &Value, key: &str| Some(one.get("platform")?.get(key)?.as_str()?.to_owned());
        // What only describes the others (attestations) is for no processor.
        let all = self.0.iter().filter(|one| platform(one, "os").as_deref() != Some("unknown"));
        let all: Vec<&Value> = all.collect();
        let named = match wanted.tag {
            None => all.clone(),
            Some(tag) => {
                let is_it = |one: &&&Value| tags(one).iter().any(|known| known == tag);
                all.iter().filter(is_it).copied().collect()
            }
        };
        let fits =
            |one: &&&Value| platform(one, "architecture").is_none_or(|arch| arch == wanted.arch);
        let fitting: Vec<&Value> = named.iter().filter(fits).copied().collect();
        match (&*fitting, wanted.tag) {
            ([one], _) => Blob::of(one),
            ([], Some(tag)) if named.is_empty() => {
                let tag = text::shown(tag);
                Err(Error::unfit(format!("the OCI image: there is none of the tag `{tag}`")))
            }
            ([], _) => Err(Error::unfit(format!(
                "the OCI image: there is none for {}; arch= names another processor",
                text::shown(wanted.arch)
            ))),
            _ => {
                let known: Vec<String> = all.iter().flat_map(|one| tags(one)).take(NAMED).collect();
                let known: Vec<_> =
                    known.iter().map(|tag| format!("`{}`", text::shown(tag))).collect();
                let known = if known.is_empty() { "them".into() } else { known.join(", ") };
                Err(Error::invalid(format!(
                    "the layout has several images; tag= names one of {known}"
                )))
            }
        }
    }
}

/// What an image consists of.
#[derive(Debug)]
pub(super) struct ImageManifest {
    pub(super) config: Blob,
    /// From the lowest to the uppermost.
    pub(super) layers: Vec<Blob>,
}

impl ImageManifest {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let value = json(bytes)?;
        let config = value.get("config").ok_or_else(|| broken("its manifest has no config"))?;
        let layers = value.get("layers").and_then(Value::as_array);
        let layers = layers.ok_or_else(|| broken("its manifest has no layers"))?;
        if layers.len() > LAYERS {
            return Err(too_much(&format!("{} layers", layers.len())));
        }
        let layers = layers.iter().map(Blob::of).collect::<Result<_>>()?;
        Ok(Self { config: Blob::of(config)?, layers })
    }
}

fn json(bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).map_err(|_| broken("a document of it is not JSON"))
}
