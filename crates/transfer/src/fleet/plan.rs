//! The plan: a file of JSON, written once and read by every process.
//!
//! `{"plan":1,"id":"…","state":"…","digest":"…","limits":{…},"disks":[…]}`; `id` is the digest of
//! all else, so a plan that was cut off or changed is refused, and a journal is of one plan. A disk
//! has its words of the job, its size, the length of its stretches, by what its source is
//! recognised, and its shards: `[first byte, bytes, bytes of data, sample of what it holds]`.
//!
//! It has no secret in it: a name that has one is refused when the plan is made.

use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use device::{Error, ErrorKind, Fault, Result};
use disk::{Image, Named, Stack};
use serde_json::{Value, json};

use super::check;
use super::place::FleetState;
use crate::digest::{DigestAlgorithm, DigestKind, digest_of};

/// The version of the form.
pub(super) const VERSION: u64 = 1;
/// Bytes in a plan.
const LONGEST: u64 = 256 << 20;
/// Bytes of data in a shard, where nothing is said.
const SHARD: u64 = 16 << 30;

/// What is to be copied: a job file, read.
#[derive(Clone, Debug)]
pub struct FleetJob {
    /// Its disks.
    pub disks: Vec<WantedDisk>,
    /// Limits on its sources.
    pub limits: FleetLimits,
    /// The digest by which all is proved.
    pub digest: DigestKind,
    /// Where the plan goes. An absolute path.
    pub plan: PathBuf,
    /// Where its journals lie.
    pub state: FleetState,
}

/// A disk, in the user's words.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct WantedDisk {
    /// The name of the source.
    pub source: String,
    /// The format of the image in it; `None`: raw.
    pub source_format: Option<String>,
    /// The name of the target.
    pub target: String,
    /// The format of the image in it; `None`: raw.
    pub target_format: Option<String>,
    /// Where the source is, for limits; `None`: by its name.
    pub host: Option<String>,
    /// The target exists, and is written over.
    pub exists: bool,
}

/// Limits on a plan, and on what reads its sources.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FleetLimits {
    /// Bytes of data in a shard, about.
    pub shard: u64,
    /// Shards of one source host that are read at the same time, at most.
    pub readers: Option<u16>,
    /// Bytes read a second from one source host, at most, by all together.
    pub rate: Option<u64>,
}

impl Default for FleetLimits {
    fn default() -> Self {
        Self { shard: SHARD, readers: None, rate: None }
    }
}

/// A plan.
#[derive(Clone, Debug)]
pub struct FleetPlan {
    /// By which it is known.
    pub id: String,
    /// Where its journals lie.
    pub state: FleetState,
    /// The digest by which all is proved.
    pub digest: DigestKind,
    /// Limits on its sources.
    pub limits: FleetLimits,
    /// Its disks.
    pub disks: Vec<FleetDisk>,
}

/// A disk of a plan.
#[derive(Clone, Debug)]
pub struct FleetDisk {
    /// The user's words.
    pub wanted: WantedDisk,
    /// Where the source is.
    pub host: String,
    /// In bytes.
    pub size: u64,
    /// Bytes in a stretch, which has a digest.
    pub stretch: u64,
    /// By what the source is recognised, beside samples.
    pub(super) identity: Value,
    /// In order; together they are all of the disk.
    pub shards: Vec<FleetShard>,
}

/// A range of a disk, which is copied by one process at a time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FleetShard {
    /// In bytes.
    pub range: Range<u64>,
    /// Bytes of data in it, by the map of the source.
    pub data: u64,
    /// A digest of places of the source in it.
    pub(super) sample: String,
}

impl FleetPlan {
    /// Reads a plan.
    ///
    /// # Errors
    /// It cannot be read; it is of another version; or it is not as it was written.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let opened = std::fs::File::open(path)
            .map_err(|e| Error::os("open the plan", e).on(name.to_string()))?;
        let mut bytes = Vec::new();
        let read = opened.take(LONGEST + 1).read_to_end(&mut bytes);
        read.map_err(|e| Error::os("read the plan", e).on(name.to_string()))?;
        if bytes.len() as u64 > LONGEST {
            return Err(wrong(format!("has more than {LONGEST} bytes")).on(name));
        }
        Self::parse(&bytes).map_err(|e| e.on(name))
    }

    /// Reads the bytes of a plan.
    ///
    /// # Errors
    /// They are not one, or not all of it.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let none = || wrong("is not a whole plan of `diskferry plan`");
        let mut value: Value = serde_json::from_slice(bytes).map_err(|_| none())?;
        match value.get("plan") {
            None => return Err(none()),
            Some(version) if version.as_u64() == Some(VERSION) => {}
            Some(version) => {
                let action = format!(
                    "has version {version}, and this program knows {VERSION}; make the plan again"
                );
                return Err(wrong(action));
            }
        }
        let id = value.get("id").and_then(Value::as_str).ok_or_else(none)?.to_owned();
        value["id"] = "".into();
        if id != id_of(&value) {
            return Err(wrong("was changed since it was written, or is incomplete"));
        }
        let plan = Self::of_json(&value, id).ok_or_else(|| wrong("lacks what a plan has"))?;
        check::plan(&plan)?;
        Ok(plan)
    }

    /// As it is written.
    pub(super) fn text(&self) -> String {
        format!("{}\n", self.json())
    }

    /// The same with the id that belongs to it.
    pub(super) fn identified(self) -> Self {
        let id = id_of(&Self { id: String::new(), ..self.clone() }.json());
        Self { id, ..self }
    }

    fn json(&self) -> Value {
        let FleetLimits { shard, readers, rate } = self.limits;
        json!({
            "plan": VERSION,
            "id": self.id,
            "state": self.state.carried(),
            "digest": self.digest.to_string(),
            "limits": {"shard-size": shard, "readers": readers, "rate": rate},
            "disks": self.disks.iter().map(FleetDisk::json).collect::<Vec<_>>(),
        })
    }

    fn of_json(value: &Value, id: String) -> Option<Self> {
        let limits = value.get("limits")?;
        let readers = match limits.get("readers")? {
            Value::Null => None,
            number => Some(u16::try_from(number.as_u64()?).ok()?),
        };
        let rate = match limits.get("rate")? {
            Value::Null => None,
            number => Some(number.as_u64()?),
        };
        let limits = FleetLimits { shard: limits.get("shard-size")?.as_u64()?, readers, rate };
        let disks = value.get("disks")?.as_array()?.iter().map(FleetDisk::of_json);
        Some(Self {
            id,
            state: FleetState::named(value.get("state")?.as_str()?, Path::new("")),
            digest: DigestKind::parse(value.get("digest")?.as_str()?).ok()?,
            limits,
            disks: disks.collect::<Option<_>>()?,
        })
    }
}

fn id_of(value: &Value) -> String {
    digest_of(DigestAlgorithm::Blake3, value.to_string().as_bytes()).to_string()
}

fn wrong(action: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, Fault::User, format!("read the plan: it {action}"))
}

impl FleetDisk {
    fn json(&self) -> Value {
        let WantedDisk { source, source_format, target, target_format, exists, .. } = &self.wanted;
        let shard = |shard: &FleetShard| {
            let Range { start, end } = shard.range;
            json!([start, end - start, shard.data, shard.sample])
        };
        json!({
            "source": source,
            "source-format": source_format,
            "target": target,
            "target-format": target_format,
            "exists": exists,
            "host": self.host,
            "size": self.size,
            "stretch": self.stretch,
            "identity": self.identity,
            "shards": self.shards.iter().map(shard).collect::<Vec<_>>(),
        })
    }

    fn of_json(value: &Value) -> Option<Self> {
        let word = |key| Some(value.get(key)?.as_str()?.to_owned());
        let format = |key| match value.get(key)? {
            Value::Null => Some(None),
            word => Some(Some(word.as_str()?.to_owned())),
        };
        let shard = |shard: &Value| {
            let [start, len, data, sample] = shard.as_array()?.as_slice() else { return None };
            let start = start.as_u64()?;
            let range = start..start.checked_add(len.as_u64()?)?;
            Some(FleetShard { range, data: data.as_u64()?, sample: sample.as_str()?.to_owned() })
        };
        let shards = value.get("shards")?.as_array()?.iter().map(shard);
        let host = word("host")?;
        Some(Self {
            wanted: WantedDisk {
                source: word("source")?,
                source_format: format("source-format")?,
                target: word("target")?,
                target_format: format("target-format")?,
                host: Some(host.clone()),
                exists: value.get("exists")?.as_bool()?,
            },
            host,
            size: value.get("size")?.as_u64()?,
            stretch: value.get("stretch")?.as_u64()?,
            identity: value.get("identity")?.clone(),
            shards: shards.collect::<Option<_>>()?,
        })
    }
}

impl WantedDisk {
    /// The source: its name, and the format of what it holds.
    pub(super) fn source(&self) -> Result<(Named, Stack)> {
        named(&self.source, self.source_format.as_deref())
    }

    /// The target in the same way, as it is opened.
    pub(super) fn target(&self) -> Result<(Named, Stack)> {
        named(&self.target, self.target_format.as_deref())
    }

    /// Whether only one process at a time may write the target: it has metadata of its own.
    pub(super) fn has_one_writer(&self) -> Result<bool> {
        let (_, stack) = self.target()?;
        Ok(stack.image().format().is_some())
    }
}

fn named(name: &str, format: Option<&str>) -> Result<(Named, Stack)> {
    let image = format.map_or_else(|| Ok(Image::default()), Image::of)?;
    let (disk, image) = disk::named(name, image)?;
    image.check()?;
    Ok((disk, Stack::default().over_image(image)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::manifest::stretch_for;

    /// A plan with a disk of one shard for each number of bytes of data.
    pub(in super::super) fn plan(data: &[u64]) -> FleetPlan {
        let disk = |(n, data): (usize, &u64)| FleetDisk {
            wanted: WantedDisk {
                source: format!("/source/{n}"),
                target: format!("/target/{n}"),
                host: Some("files".into()),
                ..WantedDisk::default()
            },
            host: "files".into(),
            size: 1 << 30,
            stretch: stretch_for(1 << 30),
            identity: json!({"name": "it"}),
            shards: vec![FleetShard { range: 0..1 << 30, data: *data, sample: "00".into() }],
        };
        let plan = FleetPlan {
            id: String::new(),
            state: FleetState::Directory("/state".into()),
            digest: DigestKind::default(),
            limits: FleetLimits { shard: 5, readers: Some(2), rate: None },
            disks: data.iter().enumerate().map(disk).collect(),
        };
        plan.identified()
    }

    #[test]
    fn a_plan_is_read_as_it_is_written() {
        let plan = plan(&[1, 2, 3]);
        let text = plan.text();
        let read = FleetPlan::parse(text.as_bytes()).unwrap();
        assert_eq!(read.text(), text);
        assert_eq!(read.id, plan.id);
        assert_eq!(read.disks[1].shards, plan.disks[1].shards);
    }

    #[test]
    fn a_plan_that_was_cut_off_changed_or_is_of_another_version_is_refused() {
        let text = plan(&[1, 2]).text();
        for len in 0..text.len() - 1 {
            assert!(FleetPlan::parse(&text.as_bytes()[..len]).is_err(), "{len}");
        }
        let changed = text.replace("/target/1", "/target/7");
        let why = FleetPlan::parse(changed.as_bytes()).unwrap_err().to_string();
        assert!(why.contains("was changed since it was written"), "{why}");
        let newer = text.replace("\"plan\":1", "\"plan\":2");
        let why = FleetPlan::parse(newer.as_bytes()).unwrap_err().to_string();
        assert!(why.contains("has version 2, and this program knows 1"), "{why}");
        let deep = format!("{{\"plan\":1,\"id\":{}", "[".repeat(1 << 20));
        assert!(FleetPlan::parse(deep.as_bytes()).is_err());
    }

    /// A plan whose id is right although its content is not: someone made it on purpose.
    #[test]
    fn a_hostile_plan_is_refused() {
        type Harm = fn(&mut FleetPlan);
        let harms: &[(&str, Harm)] = &[
            ("size", |plan| plan.disks[0].size = u64::MAX),
            ("gap", |plan| plan.disks[0].shards[0].range.start = 4 << 20),
            ("beyond", |plan| plan.disks[0].shards[0].range.end = 2 << 30),
            ("data", |plan| plan.disks[0].shards[0].data = 2 << 30),
            ("overlap", |plan| {
                let shard = plan.disks[0].shards[0].clone();
                plan.disks[0].shards.push(shard);
            }),
            ("empty", |plan| plan.disks[0].shards.clear()),
            ("stretch", |plan| plan.disks[0].stretch = 1),
            ("stretch 0", |plan| plan.disks[0].stretch = 0),
            ("two of one target", |plan| plan.disks[1].wanted.target = "/target/0".into()),
            ("a target that is a source", |plan| plan.disks[1].wanted.target = "/source/0".into()),
            ("format", |plan| plan.disks[1].wanted.target_format = Some("streams".into())),
            ("relative", |plan| plan.state = FleetState::Directory("state".into())),
            ("a secret", |plan| {
                let state = "s3://b/p?access-key=a&secret-key=hidden";
                plan.state = FleetState::named(state, Path::new("/"));
            }),
            ("readers", |plan| plan.limits.readers = Some(0)),
            ("rate", |plan| plan.limits.rate = Some(0)),
            ("long", |plan| plan.disks[1].wanted.source = "x".repeat(1 << 17)),
            ("two writers of one image", |plan| {
                let disk = &mut plan.disks[0];
                disk.wanted.target_format = Some("qcow2".into());
                let whole = disk.shards[0].clone();
                disk.shards = vec![
                    FleetShard { range: 0..4 << 20, ..whole.clone() },
                    FleetShard { range: 4 << 20..1 << 30, ..whole },
                ];
            }),
        ];
        for (what, harm) in harms {
            let mut plan = plan(&[1, 2]);
            harm(&mut plan);
            let text = plan.identified().text();
            assert!(FleetPlan::parse(text.as_bytes()).is_err(), "{what}");
        }
        let text = plan(&[1, 2]).text();
        for at in (0..text.len()).step_by(7) {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(FleetPlan::parse(&bytes).is_err(), "{at}");
        }
    }
}
