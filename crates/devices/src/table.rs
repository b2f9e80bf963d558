//! The table of devices: what there is, how it is named, what it takes, and how it is opened.
//!
//! One line a device. Opening, `--help DEVICE`, the manual and shell completion all read it.

use std::sync::Arc;

use device::{Device, Error, Name, NameError, Param, Params, Result, nearest, param, repeated};

use crate::storage::Storage;
use crate::{
    OpenOptions, data, file, full, memory, nbd, null, ones, pattern, random, sparse_random,
};

/// A kind of device.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The word that names it: `memory` in `memory:1G`.
    pub word: &'static str,
    /// One line on what it is.
    pub summary: &'static str,
    /// The parameter whose key may be left out (`size` in `memory:1G`), if there is one.
    pub magic: Option<&'static str>,
    /// All parameters.
    pub params: &'static [Param],
    /// Whether it takes parameters beyond those, with names of the user's choice.
    pub any_param: bool,
    /// A name that can be opened as it stands, or nearly.
    pub example: &'static str,
    /// Opens it. The argument is already among the parameters, and their keys are known ones.
    pub open: fn(&Params, &OpenOptions) -> Result<Arc<dyn Device>>,
    /// Where the bytes are that the parameters name. Nothing of the disk is opened for it.
    pub storage: fn(&Params) -> Storage,
}

impl Kind {
    /// Refuses parameters that this kind does not have, and those given too often.
    ///
    /// # Errors
    /// The first one that is wrong.
    pub fn check(&self, params: &Params) -> std::result::Result<(), NameError> {
        params.check_declared(self.params, self.any_param)
    }
}

const SIZE: Param = param("size", "SIZE", "size of the disk (default 0)");
/// Of what is made or computed when it is opened.
const OWN: fn(&Params) -> Storage = |_| Storage::Own;
const SEED: &str = "number that decides the content (default: taken from the clock)";

static KINDS: &[Kind] = &[
    Kind {
        word: "file",
        summary: "a file or block device, byte for byte",
        magic: Some("file"),
        params: &[
            param("file", "PATH", "the file or block device"),
            param("fadvise", "normal|random|sequential", "how it will be read (default normal)"),
            param(
                "lock",
                "on|off|auto",
                "exclude other programs, as QEMU does (default auto: where the filesystem can)",
            ),
        ],
        any_param: false,
        example: "file:/var/tmp/disk.img",
        open: |params, options| Ok(file::open(params, options)?),
        storage: file::storage,
    },
    Kind {
        word: "memory",
        summary: "a sparse disk in memory, empty at first",
        magic: Some("size"),
        params: &[param("size", "SIZE", "size of the disk, up to 2^63-1 bytes")],
        any_param: false,
        example: "memory:1G",
        open: memory::open,
        storage: OWN,
    },
    Kind {
        word: "null",
        summary: "reads as zeroes and forgets what is written",
        magic: Some("size"),
        params: &[SIZE],
        any_param: false,
        example: "null:1T",
        open: null::open,
        storage: OWN,
    },
    Kind {
        word: "zero",
        summary: "a disk of no bytes, or of zeroes that forgets what is written",
        magic: Some("size"),
        params: &[SIZE],
        any_param: false,
        example: "zero:",
        open: null::open_zero,
        storage: OWN,
    },
    Kind {
        word: "ones",
        summary: "reads as one byte repeated and forgets what is written",
        magic: Some("size"),
        params: &[SIZE, param("byte", "N", "the byte (default 0xff)")],
        any_param: false,
        example: "ones:1G?byte=0x55",
        open: ones::open,
        storage: OWN,
    },
    Kind {
        word: "full",
        summary: "a full disk: reads as zeroes, and no write finds room",
        magic: Some("size"),
        params: &[SIZE],
        any_param: false,
        example: "full:1G",
        open: full::open,
        storage: OWN,
    },
    Kind {
        word: "pattern",
        summary: "every 8 bytes hold their own offset, big-endian; read-only",
        magic: Some("size"),
        params: &[SIZE],
        any_param: false,
        example: "pattern:1G",
        open: pattern::open,
        storage: OWN,
    },
    Kind {
        word: "random",
        summary: "random bytes, the same for the same seed; accepts only writes that match",
        magic: Some("size"),
        params: &[SIZE, param("seed", "N", SEED)],
        any_param: false,
        example: "random:1G?seed=7",
        open: random::open,
        storage: OWN,
    },
    Kind {
        word: "sparse-random",
        summary: "a sparse disk of random runs, the same for the same seed; accepts only writes that match",
        magic: Some("size"),
        params: &[
            SIZE,
            param("seed", "N", SEED),
            param("percent", "P", "how much of the disk is data (default 10)"),
            param("runlength", "SIZE", "mean length of a run of data (default 16M)"),
            param(
                "random-content",
                "true|false",
                "random bytes, or (false, default) one random byte repeated in each 4096",
            ),
        ],
        any_param: false,
        example: "sparse-random:1T?seed=7&percent=5",
        open: sparse_random::open,
        storage: OWN,
    },
    Kind {
        word: "data",
        summary: "a small disk written out on the command line; writes go to memory",
        magic: Some("data"),
        params: &[
            param(
                "data",
                "TEXT",
                "the content: bytes, \"strings\", (groups)*N, @OFFSET, as in nbdkit-data-plugin(1)",
            ),
            param("base64", "TEXT", "the content in base64"),
            param("raw", "TEXT", "the content as it stands"),
            param(
                "size",
                "SIZE",
                "cut or fill with zeroes to this size (default: as long as the content)",
            ),
        ],
        any_param: true,
        example: "data:0x55*512 @1M",
        open: data::open,
        storage: OWN,
    },
    Kind {
        word: "nbd",
        summary: "an export of an NBD server",
        magic: Some("uri"),
        params: &[
            param("uri", "URI", "nbd://host/export, nbd+unix:///export?socket=PATH, nbd+vsock://…"),
            param("socket", "PATH", "the server's Unix socket, or @NAME for an abstract one"),
            param("host", "HOST", "the server's name or address (also: hostname)"),
            param("hostname", "HOST", "the same as host"),
            param("vsock", "CID", "the virtual machine that the server runs in (2: our host)"),
            param("port", "N", "the server's TCP or vsock port (default 10809)"),
            param("socket-fd", "N", "a descriptor that is connected to the server already"),
            param(
                "command",
                "CMD",
                "a server to be run, with socket activation, and ended with us",
            ),
            repeated("arg", "ARG", "an argument for the command; may be repeated"),
            param("export", "NAME", "the export (default: the server's default one)"),
            param("connections", "N", "connections, if the server allows several (default 1)"),
            param("retry", "N", "how often to try again, a second apart, to connect at first (0)"),
            param(
                "timeout",
                "TIME",
                "how long a server that owes an answer may be silent (default: for ever)",
            ),
            param(
                "shared",
                "true|false",
                "all clients use the same connections, or (false) have their own (default true)",
            ),
        ],
        any_param: false,
        example: "nbd://localhost/",
        open: nbd::open,
        storage: nbd::storage,
    },
];

/// The schemes of the URIs that name a disk.
const SCHEMES: &[&str] = &["nbd", "nbd+unix", "nbd+vsock"];

/// All kinds, in the order in which to show them.
#[must_use]
pub fn kinds() -> &'static [Kind] {
    KINDS
}

/// The kind that `word` names.
///
/// # Errors
/// There is none; the error has the nearest word.
pub fn kind(word: &str) -> Result<&'static Kind> {
    KINDS.iter().find(|k| k.word == word).ok_or_else(|| {
        let words: Vec<_> = KINDS.iter().map(|k| k.word).collect();
        let hint = match nearest(word, &words) {
            Some(near) => format!("did you mean `{near}`? (a file with such a name is `./{word}`)"),
            None => {
                format!("there are {}; a file with such a name is `./{word}`", words.join(", "))
            }
        };
        Error::invalid(format!("there is no device `{word}`; {hint}"))
    })
}

/// Opens what `name` names.
///
/// # Errors
/// The name means nothing here, or the device cannot be opened.
pub fn open(name: &Name, options: &OpenOptions) -> Result<Arc<dyn Device>> {
    match name {
        Name::Path(path) => open_kind("file", Some(path), &Params::default(), options),
        Name::Device { kind, arg, params } => {
            let arg = Some(arg.as_str()).filter(|a| !a.is_empty());
            open_kind(kind, arg, params, options)
        }
        Name::Uri { scheme, text } if scheme.starts_with("nbd") => {
            open_kind("nbd", Some(text), &Params::default(), options)
        }
        Name::Uri { scheme, text } => {
            let hint = match nearest(scheme, SCHEMES) {
                Some(near) => format!("did you mean {near}://?"),
                None => format!("there are {}", SCHEMES.join(", ")),
            };
            Err(Error::invalid(format!("no device opens {scheme}:// ({hint})")).on(text))
        }
    }
}

/// Where the bytes are that `name` names. Nothing of the disk is opened.
#[must_use]
pub fn storage(name: &Name) -> Storage {
    let of = |word: &str, arg: &str, params: &Params| -> Option<Storage> {
        let kind = kind(word).ok()?;
        let mut params = params.clone();
        if let Some(key) = kind.magic.filter(|_| !arg.is_empty()) {
            params.set(key, arg).ok()?;
        }
        Some((kind.storage)(&params))
    };
    match name {
        Name::Path(path) => of("file", path, &Params::default()),
        Name::Device { kind, arg, params } => of(kind, arg, params),
        Name::Uri { scheme, text } if scheme.starts_with("nbd") => {
            of("nbd", text, &Params::default())
        }
        Name::Uri { .. } => None,
    }
    .unwrap_or(Storage::Unknown)
}

/// Opens a device of the kind `word` with an argument (the value of its magic parameter) and
/// parameters: nbdkit's form.
///
/// # Errors
/// There is no such kind or parameter, or the device cannot be opened.
pub fn open_kind(
    word: &str,
    arg: Option<&str>,
    params: &Params,
    options: &OpenOptions,
) -> Result<Arc<dyn Device>> {
    let kind = kind(word)?;
    let named = |e: &dyn std::fmt::Display| Error::invalid(e.to_string()).on(word);
    let mut params = params.clone();
    if let Some(arg) = arg {
        let key = kind.magic.ok_or_else(|| named(&format_args!("takes no argument")))?;
        params.set(key, arg).map_err(|e| named(&e))?;
    }
    kind.check(&params).map_err(|e| named(&e))?;
    (kind.open)(&params, options).map_err(|e| e.on(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(name: &str) -> String {
        let name = Name::parse(name).unwrap();
        open(&name, &OpenOptions::default()).err().unwrap().to_string()
    }

    #[test]
    fn an_unknown_device_or_parameter_is_refused_with_the_nearest_word() {
        assert!(error("memroy:1G").contains("did you mean `memory`?"));
        assert!(
            error("memory:1G?sise=3")
                .contains("there is no parameter `sise`; did you mean `size`?")
        );
        assert!(error("memory:1G?size=3").contains("`size` is given twice"));
        assert!(error("memory:?size=3&size=4").contains("`size` is given twice"));
        assert!(error("data:x?x=1&x=2").contains("`x` is given twice"));
        assert!(error("gopher://x/").contains("no device opens gopher://"));
    }

    #[test]
    fn examples_open_as_they_stand() {
        for kind in kinds().iter().filter(|k| !["file", "nbd"].contains(&k.word)) {
            let name = Name::parse(kind.example).unwrap();
            let options = OpenOptions { or_read_only: true, ..OpenOptions::read_write() };
            let disk = open(&name, &options).unwrap();
            assert!(disk.info().name.starts_with(kind.word), "{}", kind.example);
            assert!(disk.info().size > 0 || kind.word == "zero", "{}", kind.example);
        }
    }

    #[test]
    fn every_magic_key_is_a_parameter_and_every_word_is_unique() {
        for (i, kind) in kinds().iter().enumerate() {
            assert!(
                kind.magic.is_none_or(|m| kind.params.iter().any(|p| p.key == m)),
                "{}",
                kind.word
            );
            assert!(kinds()[..i].iter().all(|k| k.word != kind.word), "{}", kind.word);
        }
    }
}
