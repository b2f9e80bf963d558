//! A disk that is named to be read, with what its name says of the bytes: here alone a name means a
//! file in an archive.
//!
//! | name | what |
//! |---|---|
//! | `vm.ova?entry=disk.vmdk` | a file in an archive, of a path or a URL that ends like one |
//! | `oci:DIR:TAG` | the disk of a container image, in a directory of that layout, or a tar of it |
//! | `file:vm.luks?passphrase=…` | parameters that a format has and the device has not |

use device::{Error, Name, Params, Result};
use devices::Named;
use formats::{Format, PackingKind};

use crate::{Content, External, Image};

/// The endings of archives whose files a name may name.
const ENDINGS: [&str; 8] =
    [".ova", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.zst", ".tar.bz2", ".ova.gz"];
/// The parameter that does.
const ENTRY: &str = "entry";

/// The disk of that name, and how its bytes are interpreted: as `image` says, unless the name says
/// more. What the image may name is known by then.
///
/// # Errors
/// It names no disk.
pub fn named(text: &str, image: Image) -> Result<(Named, Image)> {
    let mut params = image.params.clone();
    let (named, layout) = with_params(text, &mut params)?;
    let mut image = told(Image { params, ..image }, layout)?;
    if let (Some(_), Some(path), External::Nothing) = (layout, named.path(), &image.external) {
        // The user named the directory.
        let parent = device::text::path(path).parent().map(std::path::Path::to_owned);
        image.external = External::Beneath(parent.unwrap_or_default());
    }
    Ok((named, image))
}

/// Refuses a target that is a file in an archive.
pub(crate) fn refuse_entry(target: &Named) -> Result<()> {
    let path = target.path().map(|path| Name::Path(path.to_owned()));
    if path.as_ref().and_then(entry).is_none() {
        return Ok(());
    }
    let action =
        "create the disk: files in archives cannot be written; for a file of that name write file:";
    Err(Error::invalid(action).on(target.to_string()))
}

/// The image, where what was named is known to hold files: then it is one of those, and the format
/// is that of this file.
fn told(image: Image, layout: Option<&'static Format>) -> Result<Image> {
    let format = image.format();
    let is_archive = format.and_then(|known| known.packing).is_some_and(PackingKind::has_files);
    let is_guessed = matches!(image.content, Content::Guess);
    let archive = match layout {
        Some(layout) => layout,
        None if image.params.contains(ENTRY) && !is_archive => formats::format("tar")?,
        None => return Ok(image),
    };
    let mut image = image;
    // What is guessed is guessed inside, too.
    if !is_archive && !is_guessed {
        image.params.set("inside", format.map_or("raw", |format| format.word))?;
    }
    image.content = Content::Format(archive);
    image.is_told &= !is_guessed;
    Ok(image)
}

/// The disk, and the format in whose layout it is, where its name says so. Parameters that its
/// device does not have, and formats have, become the image's.
fn with_params(text: &str, image: &mut Params) -> Result<(Named, Option<&'static Format>)> {
    let mut name = Name::parse(text)?;
    if let Some((bare, entry)) = entry(&name) {
        image.set(ENTRY, &entry)?;
        return Ok((Named::of(&bare)?, None));
    }
    if let Some((layout, path)) = layout(&mut name, image)? {
        return Ok((Named::of(&Name::Path(path))?, Some(layout)));
    }
    let named = Named::of(&name);
    let Name::Device { params, .. } = &mut name else { return Ok((named?, None)) };
    if named.is_ok() {
        return Ok((named?, None));
    }
    for param in formats::formats().iter().flat_map(|format| format.params) {
        if let Some(value) = params.take(param.key) {
            image.set(param.key, &value)?;
        }
    }
    // Where it is wrong all the same, this is the error with the user's words.
    let rest = Named::of(&name);
    Ok((if rest.is_err() { named? } else { rest? }, None))
}

/// The archive, and the file in it that a name of a file or a URL names, if it names one.
fn entry(name: &Name) -> Option<(Name, String)> {
    let text = match name {
        Name::Path(text) | Name::Uri { text, .. } => text,
        Name::Device { .. } => return None,
    };
    let (archive, query) = text.split_once('?')?;
    let lower = archive.to_ascii_lowercase();
    if !ENDINGS.iter().any(|end| lower.ends_with(end)) {
        return None;
    }
    match name {
        Name::Uri { scheme, .. } => {
            let is_it = |word: &&str| word.split_once('=').is_some_and(|(key, _)| key == ENTRY);
            let (own, others): (Vec<&str>, Vec<&str>) = query.split('&').partition(is_it);
            let [own] = &*own else { return None };
            let entry = own.split_once('=')?.1.to_owned();
            let query = others.join("&");
            let mark = if query.is_empty() { "" } else { "?" };
            let uri = Name::Uri { scheme: scheme.clone(), text: format!("{archive}{mark}{query}") };
            (!entry.is_empty()).then_some((uri, entry))
        }
        _ => {
            let entry = query.strip_prefix(ENTRY)?.strip_prefix('=')?;
            (!entry.is_empty()).then(|| (Name::Path(archive.to_owned()), entry.to_owned()))
        }
    }
}

/// `FORMAT:PATH[:TAG]?key=value`, of a format whose images are directories: the format, and the
/// file by which the directory is known. Its parameters become the image's.
fn layout(name: &mut Name, image: &mut Params) -> Result<Option<(&'static Format, String)>> {
    let Name::Device { kind, arg, params } = name else { return Ok(None) };
    let Some((format, file)) = formats::formats().iter().find_map(|format| match format.packing {
        Some(PackingKind::Directory(file)) if format.word == kind => Some((format, file)),
        _ => None,
    }) else {
        return Ok(None);
    };
    let (path, tag) = arg.split_once(':').unwrap_or((arg, ""));
    if path.is_empty() {
        let word = format.word;
        return Err(Error::invalid(format!(
            "no directory is named; write {word}:DIR or {word}:DIR:TAG"
        )));
    }
    for (key, value) in params.iter() {
        image.set(key, value)?;
    }
    if !tag.is_empty() {
        image.set("tag", tag)?;
    }
    let is_packed = ENDINGS.iter().any(|end| path.to_ascii_lowercase().ends_with(end));
    let directory = path.trim_end_matches('/');
    let path = if is_packed { path.to_owned() } else { format!("{directory}/{file}") };
    Ok(Some((format, path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, image: Image) -> (String, String, String) {
        let (disk, image) = named(text, image).unwrap();
        let params: Vec<_> = image.params.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let content = match image.content {
            Content::Raw => "raw",
            Content::Guess => "guess",
            Content::Format(format) => format.word,
        };
        let url = disk.params().get("url").unwrap_or_default();
        let place = disk.path().unwrap_or(url).to_owned();
        (place, content.to_owned(), params.join(" "))
    }

    #[test]
    fn only_a_name_that_ends_like_an_archive_names_a_file_in_it() {
        for (text, place, content, params) in [
            ("a/vm.OVA?entry=b/c.vmdk", "a/vm.OVA", "tar", "entry=b/c.vmdk inside=raw"),
            ("vm.tar?entry=x?entry=y", "vm.tar", "tar", "entry=x?entry=y inside=raw"),
            ("vm.tar.gz?entry=x&y", "vm.tar.gz", "tar", "entry=x&y inside=raw"),
            ("https://h/vm.ova?entry=x", "https://h/vm.ova", "tar", "entry=x inside=raw"),
            ("https://h/a.tar?s=1&entry=x&t", "https://h/a.tar?s=1&t", "tar", "entry=x inside=raw"),
            ("https://h/vm.img?entry=x", "https://h/vm.img?entry=x", "raw", ""),
            ("https://h/a.tar?entry=x&entry=y", "https://h/a.tar?entry=x&entry=y", "raw", ""),
            ("http:https://h/vm?entry=x", "https://h/vm", "tar", "entry=x inside=raw"),
            ("vm.ova", "vm.ova", "raw", ""),
            ("vm.img?entry=a", "vm.img?entry=a", "raw", ""),
            ("vm.ova?entry=", "vm.ova?entry=", "raw", ""),
            ("\u{e9}a?entry=b", "\u{e9}a?entry=b", "raw", ""),
            ("file:disk?entry=x", "disk", "tar", "entry=x inside=raw"),
        ] {
            let (was_at, was, with) = found(text, Image::default());
            // A file that is named by its device is at no path.
            let place = if text.starts_with("file:") { "" } else { place };
            assert_eq!((&*was_at, &*was, &*with), (place, content, params), "{text}");
        }
    }

    #[test]
    fn the_format_that_is_named_is_that_of_the_file_in_the_archive() {
        let of = |word: &str| Image::of(word).unwrap();
        let text = "vm.ova?entry=x";
        assert_eq!(found(text, of("qcow2")).2, "entry=x inside=qcow2");
        assert_eq!(found(text, of("tar")).2, "entry=x");
        let (_, content, params) = found(text, Image::guessed());
        assert_eq!((&*content, &*params), ("tar", "entry=x"));
        let (place, content, params) = found("oci:a/b:v1.0?arch=arm64", of("qcow2"));
        assert_eq!((&*place, &*content), ("a/b/index.json", "oci"));
        assert_eq!(params, "arch=arm64 tag=v1.0 inside=qcow2");
        let (disk, image) = named("oci:/a/b.tar", Image::guessed()).unwrap();
        assert_eq!(disk.path(), Some("/a/b.tar"));
        assert!(image.params.is_empty() && !image.is_told);
        assert!(matches!(&image.external, External::Beneath(path) if path.ends_with("a")));
        for wrong in ["oci:", "oci::tag", "oci:a?tag=b&tag=c", "oci:a:b?tag=c"] {
            assert!(named(wrong, Image::default()).is_err(), "{wrong}");
        }
    }
}
