//! The job file of a plan (TOML): `[[disk]]` for each disk or pattern of disks, and `[limits]`.
//! Errors name the line. Relative paths are those of the job file's directory.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use device::{Name, nearest, parse_size, text};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};
use transfer::DigestKind;
use transfer::fleet::{FleetJob, FleetLimits, FleetState, WantedDisk};

use crate::failure::Failure;

/// Bytes of a file, at most.
const LARGEST: u64 = 64 << 20;
/// Files that a pattern may lead to.
const MATCHES: usize = 100_000;
/// What stands for the name of a file, without its ending, in the target of a pattern.
const NAME: &str = "{name}";
/// What the name of the state directory ends with, behind that of the plan.
const STATE: &str = ".state";
const KEYS: &[&str] = &["disk", "limits", "state", "digest"];
const OF_DISK: &[&str] = &["source", "target", "source-format", "target-format", "host", "exists"];
const OF_LIMITS: &[&str] = &["shard-size", "readers", "rate"];

type Wrong = String;

/// A file that is read.
struct JobFile<'a> {
    path: &'a Path,
    text: &'a str,
    /// Where relative paths begin.
    directory: PathBuf,
}

/// Reads a job file whose plan goes to `plan`.
pub(super) fn read(path: &Path, plan: &Path) -> Result<FleetJob, Failure> {
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(|e| Failure::new(format!("{}: {e}", path.display())))
    };
    let (whole, plan) = (absolute(path)?, absolute(plan)?);
    let text = contents(path)?;
    let directory = whole.parent().map_or_else(|| "/".into(), Path::to_owned);
    let file = JobFile { path, text: &text, directory };
    let table = DeTable::parse(&text)
        .map_err(|e| file.wrong(e.span().map_or(0, |span| span.start), e.message()))?;
    let mut state = plan.clone().into_os_string();
    state.push(STATE);
    let mut job = FleetJob {
        disks: Vec::new(),
        limits: FleetLimits::default(),
        digest: DigestKind::default(),
        plan,
        state: FleetState::Directory(state.into()),
    };
    for (key, at, value) in entries(table.get_ref()) {
        match key {
            "disk" => job.disks = file.disks(at, value)?,
            "limits" => job.limits = file.limits(at, value)?,
            "state" => {
                let word = word(key, value).map_err(|why| file.wrong(at, why))?;
                job.state = FleetState::named(word, &file.directory);
            }
            "digest" => {
                let kind = word(key, value)
                    .and_then(|word| DigestKind::parse(word).map_err(|e| e.to_string()));
                job.digest = kind.map_err(|why| file.wrong(at, why))?;
            }
            _ => return Err(file.wrong(at, unknown(key, KEYS))),
        }
    }
    Ok(job)
}

fn contents(path: &Path) -> Result<String, Failure> {
    let say = |e: &dyn fmt::Display| Failure::new(format!("{}: {e}", path.display()));
    let file = std::fs::File::open(path).map_err(|e| say(&e))?;
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|e| say(&e))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > LARGEST {
        return Err(say(&format!("has more than {LARGEST} bytes")));
    }
    String::from_utf8(bytes)
        .map_err(|_| Failure::usage(format!("{}: is not UTF-8", path.display())))
}

/// A table's entries in the order of the file, each with the offset of its key.
fn entries<'a, 'i>(table: &'a DeTable<'i>) -> Vec<(&'a str, usize, &'a DeValue<'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let entry = |(key, value): (&'a Spanned<DeString<'i>>, &'a Spanned<DeValue<'i>>)| {
        (&**key.get_ref(), key.span().start, value.get_ref())
    };
    entries.into_iter().map(entry).collect()
}

fn unknown(key: &str, known: &[&str]) -> Wrong {
    let hint = nearest(key, known).map(|near| format!("; did you mean `{near}`?"));
    format!("there is no key `{key}`{}", hint.unwrap_or_default())
}

fn word<'a>(key: &str, value: &'a DeValue<'_>) -> Result<&'a str, Wrong> {
    match value {
        DeValue::String(text) if !text.contains('\0') => Ok(text),
        _ => Err(format!("`{key}` is a string")),
    }
}

/// A number of bytes: `"16G"`, or a number.
fn bytes(key: &str, value: &DeValue<'_>) -> Result<u64, Wrong> {
    let text = match value {
        DeValue::String(text) => text.strip_suffix("/s").unwrap_or(text).to_owned(),
        DeValue::Integer(number) => number.to_string(),
        _ => return Err(format!("`{key}` is a size, for example \"16G\"")),
    };
    parse_size(&text).map_err(|e| format!("`{key}`: {e}"))
}

impl JobFile<'_> {
    fn wrong(&self, offset: usize, why: impl fmt::Display) -> Failure {
        let before = self.text.as_bytes().iter().take(offset);
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        Failure::usage(format!("{}:{line}: {why}", self.path.display()))
    }

    fn limits(&self, at: usize, value: &DeValue<'_>) -> Result<FleetLimits, Failure> {
        let DeValue::Table(table) = value else {
            return Err(self.wrong(at, "limits are a table: write [limits]"));
        };
        let mut limits = FleetLimits::default();
        for (key, at, value) in entries(table) {
            let size = || bytes(key, value).map_err(|why| self.wrong(at, why));
            match key {
                "shard-size" => limits.shard = size()?,
                "rate" => limits.rate = Some(size()?),
                "readers" => {
                    let readers = size()?;
                    let readers = u16::try_from(readers)
                        .map_err(|_| self.wrong(at, format!("readers: {readers} are too many")))?;
                    limits.readers = Some(readers);
                }
                _ => return Err(self.wrong(at, unknown(key, OF_LIMITS))),
            }
        }
        Ok(limits)
    }

    fn disks(&self, at: usize, value: &DeValue<'_>) -> Result<Vec<WantedDisk>, Failure> {
        let wrong = |at| self.wrong(at, "disks are tables: write [[disk]]");
        let DeValue::Array(list) = value else { return Err(wrong(at)) };
        let mut disks = Vec::new();
        for one in list.iter() {
            let at = one.span().start;
            let DeValue::Table(table) = one.get_ref() else { return Err(wrong(at)) };
            let found =
                self.disk(table).map_err(|(offset, why)| self.wrong(offset.unwrap_or(at), why))?;
            disks.extend(found);
        }
        Ok(disks)
    }

    /// A disk, or all that a pattern leads to.
    fn disk(&self, table: &DeTable<'_>) -> Result<Vec<WantedDisk>, (Option<usize>, Wrong)> {
        let mut disk = WantedDisk::default();
        for (key, at, value) in entries(table) {
            let failed = |why| (Some(at), why);
            let text = || word(key, value).map(str::to_owned).map_err(failed);
            match key {
                "source" => disk.source = text()?,
                "target" => disk.target = text()?,
                "source-format" => disk.source_format = Some(text()?),
                "target-format" => disk.target_format = Some(text()?),
                "host" => disk.host = Some(text()?),
                "exists" => match value {
                    DeValue::Boolean(exists) => disk.exists = *exists,
                    _ => return Err(failed("`exists` is true or false".into())),
                },
                _ => return Err(failed(unknown(key, OF_DISK))),
            }
        }
        for (key, text) in [("source", &disk.source), ("target", &disk.target)] {
            if text.is_empty() {
                return Err((None, format!("this disk has no `{key}`")));
            }
        }
        let all = self.expand(disk).map_err(|why| (None, why))?;
        let whole = |disk: WantedDisk| {
            let (source, target) = (self.absolute(&disk.source)?, self.absolute(&disk.target)?);
            Ok(WantedDisk { source, target, ..disk })
        };
        all.into_iter().map(whole).collect::<Result<_, _>>().map_err(|why| (None, why))
    }

    /// The same from any directory.
    fn absolute(&self, text: &str) -> Result<String, Wrong> {
        match Name::parse(text).map_err(|e| e.to_string())? {
            Name::Path(path) => Ok(text::carry(self.directory.join(text::path(&path)).as_os_str())),
            _ => Ok(text.to_owned()),
        }
    }

    /// The files of a pattern, each with its target.
    fn expand(&self, disk: WantedDisk) -> Result<Vec<WantedDisk>, Wrong> {
        let is_path = matches!(Name::parse(&disk.source), Ok(Name::Path(_)));
        if !is_path || !disk.target.contains(NAME) {
            return Ok(vec![disk]);
        }
        let source = self.directory.join(text::path(&disk.source));
        let pattern = text::carry(source.file_name().unwrap_or_default());
        let directory = source.parent().unwrap_or(Path::new("/")).to_owned();
        let (before, after) = pattern
            .split_once('*')
            .ok_or_else(|| format!("`source` has no * for what {NAME} stands for in `target`"))?;
        let say = |e: std::io::Error| format!("{}: {e}", directory.display());
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&directory).map_err(say)? {
            let entry = entry.map_err(say)?;
            let name = text::carry(&entry.file_name());
            let rest = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
            let Some(_) = rest.filter(|_| !name.starts_with('.')) else { continue };
            if found.len() == MATCHES {
                return Err(format!("{pattern} leads to more than {MATCHES} files"));
            }
            let stem = Path::new(&name).file_stem().map(text::carry).unwrap_or_default();
            let target = disk.target.replace(NAME, &stem);
            let source = text::carry(entry.path().as_os_str());
            found.push(WantedDisk { source, target, ..disk.clone() });
        }
        if found.is_empty() {
            return Err(format!("{pattern} leads to no file"));
        }
        found.sort_by(|one, other| one.source.cmp(&other.source));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(directory: &Path, text: &str) -> Result<FleetJob, Failure> {
        let path = directory.join("job.toml");
        std::fs::write(&path, text).unwrap();
        read(&path, &directory.join("plan.json"))
    }

    fn job_of(directory: &Path, text: &str) -> FleetJob {
        job(directory, text).unwrap()
    }

    #[test]
    fn disks_patterns_and_limits_are_read() {
        let scratch = trial::Scratch::new(std::env::temp_dir());
        let here = scratch.path("x").parent().unwrap().to_owned();
        for name in ["b.raw", "a 'q\".raw", "other", ".c.raw"] {
            std::fs::write(here.join(name), "").unwrap();
        }
        let text = "digest = \"blake3\"\n[limits]\nshard-size = \"8G\"\nrate = \"100M/s\"\nreaders = 3\n\
             [[disk]]\nsource = \"*.raw\"\ntarget = \"out/{name}.img\"\n\
             [[disk]]\nsource = \"nbd://h/e\"\ntarget = \"/e\"\ntarget-format = \"qcow2\"\nhost = \"h\"\n";
        let job = job(&here, text).unwrap();
        assert_eq!((job.limits.shard, job.limits.readers), (8 << 30, Some(3)));
        assert_eq!(job.limits.rate, Some(100 << 20));
        let here = here.display();
        let all: Vec<_> = job.disks.iter().map(|disk| (&*disk.source, &*disk.target)).collect();
        let (a, b) = (format!("{here}/a 'q\".raw"), format!("{here}/b.raw"));
        let (c, d) = (format!("{here}/out/a 'q\".img"), format!("{here}/out/b.img"));
        assert_eq!(all, [(&*a, &*c), (&*b, &*d), ("nbd://h/e", "/e")]);
        let state = |job: &FleetJob| format!("{:?}", job.state);
        let directory =
            |name| format!("{:?}", FleetState::Directory(format!("{here}/{name}").into()));
        assert_eq!(state(&job), directory("plan.json.state"));
        let named = |name: &str| state(&job_of(&scratch.path(""), &format!("state = {name:?}")));
        assert_eq!(named("shared"), directory("shared"));
        assert!(named("s3://b/p?endpoint=http://h:9").contains("Store"));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let scratch = trial::Scratch::new(std::env::temp_dir());
        for (text, line, why) in [
            ("disks = 1", 1, "did you mean `disk`"),
            ("disk = 1", 1, "write [[disk]]"),
            ("[[disk]]\nsource = \"a\"", 1, "has no `target`"),
            ("[[disk]]\nsource = 1", 2, "is a string"),
            ("[[disk]]\nsource = \"a\"\ntarget = \"b\"\nexists = 1", 4, "true or false"),
            ("[[disk]]\nsource = \"a\"\ntarget = \"b{name}\"", 1, "has no *"),
            ("[[disk]]\nsource = \"a*\"\ntarget = \"b{name}\"", 1, "leads to no file"),
            ("[limits]\nreaders = 70000", 2, "too many"),
            ("[limits]\nshard-size = \"many\"", 2, "`shard-size`"),
            ("digest = \"sha3\"", 1, "sha3"),
            ("\n=", 2, ""),
        ] {
            let failure = job(&scratch.path(""), text).unwrap_err();
            let said = failure.line();
            assert!(said.contains(&format!("job.toml:{line}: ")) && said.contains(why), "{said}");
            assert_eq!(failure.code(), 2);
        }
    }
}
