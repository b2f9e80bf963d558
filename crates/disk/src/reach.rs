//! What a disk needs of the system, with its filters and the format of its image, before anything
//! is opened.

use std::path::{Path, PathBuf};

use device::{Params, Reach, Use, secret, text};
use devices::Named;
use formats::Format;

use crate::qemu::{NamedBase, named_base};
use crate::{External, Image, Stack};

/// How tables mark an option whose value is the name of a file.
const FILE: &str = "FILE";
/// The one of them whose file is there already, and is only read.
const BASE: &str = "backing_file";

/// What the named disk and its filters need. Files that an image names are included as far as they
/// are allowed: a chain may lead anywhere.
#[must_use]
pub fn reach(disk: &Named, stack: &Stack, how: Use) -> Reach {
    let image = stack.image();
    let found = disk.reaches(how).and(stack.reaches()).and(named_inside(disk, image, how));
    let found = found.and(secrets(image));
    if how == Use::Make { found.and(made_beside(disk, image)) } else { found }
}

/// What the image may name. Its data file is written with it: beneath the directory that is
/// allowed, or else where the image is.
fn named_inside(disk: &Named, image: &Image, how: Use) -> Reach {
    let is_written = how == Use::Write && image.format().is_some_and(|f| f.write.is_some());
    match &image.external {
        External::Nothing => Reach::default(),
        External::Beneath(directory) => beneath(directory, is_written),
        External::Beside => match image.beside(disk) {
            Some(directory) => beneath(&directory, is_written),
            None => Reach::default(),
        },
        External::Chain => {
            let path = disk.path().filter(|_| is_written).map(text::path);
            let beside = path.map(|path| Reach::path(directory(&path), Use::Write));
            Reach::path("/", Use::Read).and(beside.unwrap_or_default())
        }
    }
}

fn beneath(directory: &Path, is_written: bool) -> Reach {
    Reach::path(directory, if is_written { Use::Write } else { Use::Read })
}

/// The files of the secrets that open an image, or are to open a new one. A format that is guessed
/// may be any.
fn secrets(image: &Image) -> Reach {
    let formats = formats::formats().iter();
    let (mut params, mut options) = (Vec::new(), Vec::new());
    for format in formats.filter(|format| image.format().is_none_or(|own| own.word == format.word))
    {
        params.extend(format.params);
        options.extend(format.create.map_or(&[][..], |create| create.options));
    }
    secret::reaches(&image.params, params).and(secret::reaches(&image.options, options))
}

/// The files, besides its own, that a new image has.
#[must_use]
pub fn files_beside(disk: &Named, image: &Image) -> Vec<PathBuf> {
    made_beside(disk, image).makes
}

/// The files of a new image: those that its options name, and its other parts, which are in its
/// directory. Its base is read, all others are made.
fn made_beside(disk: &Named, image: &Image) -> Reach {
    let (Some(format), Some(path)) = (image.format(), disk.path()) else {
        return Reach::default();
    };
    let path = text::path(path);
    let directory = directory(&path);
    let others = keyed(format, &image.options).filter(|(key, _)| *key != BASE);
    let others = others.map(|(_, name)| directory.join(text::path(name)));
    // The base may be on a server.
    let base = keyed(format, &image.options).filter(|(key, _)| *key == BASE).map(|(_, name)| {
        match named_base(name) {
            None | Some(Err(_)) => Reach::path(directory.join(text::path(name)), Use::Read),
            Some(Ok(NamedBase::File(path, _))) => {
                Reach::path(directory.join(text::path(&path)), Use::Read)
            }
            Some(Ok(NamedBase::Disk(disk))) => disk.reaches(Use::Read),
        }
    });
    let base = base.fold(Reach::default(), Reach::and);
    let parts = format.create.and_then(|creator| creator.beside).zip(disk.own_name());
    let parts = parts.map(|(beside, own)| beside(&own, &image.options)).unwrap_or_default();
    let parts = parts.iter().map(|name| directory.join(text::path(name)));
    Reach { makes: others.chain(parts).collect(), ..base }
}

/// The files that these options of a new image of this format name.
pub(crate) fn files<'a>(format: &Format, options: &'a Params) -> impl Iterator<Item = &'a str> {
    keyed(format, options).map(|(_, name)| name)
}

/// The same, each with the key of its option.
fn keyed<'a>(
    format: &Format,
    options: &'a Params,
) -> impl Iterator<Item = (&'static str, &'a str)> {
    let known = format.create.map_or(&[][..], |creator| creator.options);
    let files = known.iter().filter(|option| option.value == FILE);
    let named = files.filter_map(|option| Some((option.key, options.get(option.key)?)));
    named.filter(|(_, name)| !name.is_empty())
}

/// The directory of a file.
fn directory(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reached(name: &str, stack: &[&str], how: Use) -> Reach {
        reach(&Named::parse(name).unwrap(), &Stack::parse(stack.iter().copied()).unwrap(), how)
    }

    #[test]
    fn a_disk_in_memory_reaches_nothing() {
        assert_eq!(reached("memory:1M", &["offset?offset=512"], Use::Write), Reach::default());
    }

    #[test]
    fn a_file_reaches_itself_and_a_server_the_network() {
        assert_eq!(reached("/a/b", &[], Use::Read), Reach::path("/a/b", Use::Read));
        let server = Reach::to(device::Endpoint::Tcp(10809));
        assert_eq!(reached("nbd://localhost", &[], Use::Read), server);
        let with_program = reached("nbd:?command=nbdkit&arg=-s", &[], Use::Read);
        assert_eq!(with_program.programs.len(), 1);
    }

    #[test]
    fn a_filter_adds_what_it_opens() {
        let reach =
            reached("null:1M", &["log?logfile=/tmp/l", "stats?statsfile=/tmp/s"], Use::Read);
        assert_eq!(reach.makes, [PathBuf::from("/tmp/l"), PathBuf::from("/tmp/s")]);
        assert!(reached("null:1M", &["log?logscript=true"], Use::Read).programs.len() == 1);
    }

    #[test]
    fn what_an_image_names_is_reached_only_where_that_is_allowed() {
        let disk = Named::parse("/a/b").unwrap();
        let with = |external| {
            Stack::default().over_image(Image { external, ..Image::of("qcow2").unwrap() })
        };
        let reads = |external| reach(&disk, &with(external), Use::Read).reads;
        assert_eq!(reads(External::Nothing), [PathBuf::from("/a/b")]);
        assert_eq!(reads(External::Beneath("/c".into())), ["/a/b", "/c"].map(PathBuf::from));
        assert_eq!(reads(External::Chain), ["/a/b", "/"].map(PathBuf::from));
    }

    #[test]
    fn the_secret_of_an_image_is_read_of_a_guessed_one_too() {
        let secret = |mut image: Image| {
            image.params.add("key-file", "/key");
            let stack = Stack::default().over_image(image);
            super::reach(&Named::parse("/a/b").unwrap(), &stack, Use::Read).reads
        };
        let both = ["/a/b", "/key"].map(PathBuf::from);
        assert_eq!(secret(Image::of("luks").unwrap()), both);
        assert_eq!(secret(Image::guessed()), both);
        let mut image = Image::of("luks").unwrap();
        image.options.add("passphrase", "+/new");
        let stack = Stack::default().over_image(image);
        let made = super::reach(&Named::parse("/a/b").unwrap(), &stack, Use::Make);
        assert_eq!((made.reads, made.makes), (vec!["/new".into()], vec!["/a/b".into()]));
    }

    #[test]
    fn a_new_image_makes_its_files_and_reads_its_base() {
        let mut image = Image::of("qcow2").unwrap();
        image.options.add("backing_file", "../base.qcow2");
        image.options.add("data_file", "data");
        image.options.add("cluster_size", "64k");
        let stack = Stack::default().over_image(image);
        let reach = reach(&Named::parse("/a/b").unwrap(), &stack, Use::Make);
        assert_eq!(reach.reads, [PathBuf::from("/a/../base.qcow2")]);
        assert_eq!(reach.makes, ["/a/b", "/a/data"].map(PathBuf::from));
        let mut image = Image::of("vmdk").unwrap();
        image.options.add("subformat", "monolithicFlat");
        let stack = Stack::default().over_image(image);
        let reach = super::reach(&Named::parse("/a/b.vmdk").unwrap(), &stack, Use::Make);
        assert_eq!(reach.makes, ["/a/b.vmdk", "/a/b-flat.vmdk"].map(PathBuf::from));
    }
}
