//! Names of backing images that are no paths: `file:PATH`, `nbd:…` and `json:{…}`.

use device::{Error, Result};
use devices::Named;

use super::{Keys, NodeObjects, keys_of, protocols};

/// What a backing image is named.
pub(crate) enum NamedBase {
    /// A path, and the format, if the name says it.
    File(String, Option<&'static str>),
    /// An export of a server, say.
    Disk(Box<Named>),
}

/// Reads such a name. `None`: it is a path.
pub(crate) fn named_base(name: &str) -> Option<Result<NamedBase>> {
    name.split(['/', ':']).next().filter(|word| name[word.len()..].starts_with(':'))?;
    if let Some(path) = name.strip_prefix("file:") {
        return Some(Ok(NamedBase::File(path.to_owned(), None)));
    }
    Some(if name.starts_with("json:") {
        keys_of(name).and_then(|keys| of_node(&keys))
    } else {
        Named::parse(name).map(|disk| of_disk(disk, None))
    })
}

fn of_disk(disk: Named, format: Option<&'static str>) -> NamedBase {
    match disk.path() {
        Some(path) => NamedBase::File(path.to_owned(), format),
        None => NamedBase::Disk(Box::new(disk)),
    }
}

/// A driver for bytes, or a format over one.
fn of_node(keys: &Keys) -> Result<NamedBase> {
    let objects = NodeObjects::default();
    let driver = keys.need("driver")?;
    if protocols::is_one(driver) {
        return protocols::named(driver, keys, &objects).map(|disk| of_disk(disk, None));
    }
    let format = formats::format(driver)?;
    keys.check(&[], true).map_err(|e| {
        Error::invalid(format!(
            "the node of a backing image has a driver, and nothing beside it: {e}"
        ))
    })?;
    let below = keys.below("file");
    let disk = match below.get("driver") {
        Some(word) => protocols::named(word, &below, &objects)?,
        None => {
            below.check(&["filename"], false)?;
            protocols::of_filename(below.need("filename")?)?
        }
    };
    Ok(of_disk(disk, Some(format.word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backing_image_may_be_named_as_a_node() {
        let of = |name: &str| match named_base(name) {
            None => "path".to_owned(),
            Some(Ok(NamedBase::File(path, format))) => format!("{path} {format:?}"),
            Some(Ok(NamedBase::Disk(disk))) => disk.to_string(),
            Some(Err(e)) => e.to_string(),
        };
        for (name, wanted) in [
            ("base", "path"),
            ("./a:b", "path"),
            ("file:base", "base None"),
            (
                r#"json:{"driver":"qcow2","file":{"driver":"file","filename":"b"}}"#,
                r#"b Some("qcow2")"#,
            ),
            (r#"json:{"driver":"file","filename":"b"}"#, "b None"),
            ("nbd+unix:///x?socket=/s", "nbd+unix:///x?socket=/s"),
            ("nbd:unix:/s:exportname=x", "nbd:unix:/s:exportname=x"),
            (r#"json:{"driver":"nbd","host":"h"}"#, "nbd://h/"),
        ] {
            assert_eq!(of(name), wanted, "{name}");
        }
        assert!(
            of(r#"json:{"driver":"qcow2","backing":null,"file.filename":"b"}"#).contains("beside")
        );
    }
}
