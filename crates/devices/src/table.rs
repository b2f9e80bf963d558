//! The table of devices: how each is named, what it takes, and what it can do by name.
//!
//! One entry a device. Opening, `--help DEVICE`, the manual and shell completion all read it.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use device::{
    Blocking, Device, Error, Name, Param, Result, Simple, nearest, param, repeated, suggestion,
};

use runtime::Context;

use crate::creation::Created;
use crate::kind::{Beside, DeviceKind, Foreign, KindNames, KindTarget, Unopened};
use crate::storage::Storage;
use crate::{
    data, file, foreign, full, http, memory, nbd, null, pattern, plugin, random, sparse_random,
};

/// A device of a [`Blocking`] disk.
fn simple<B: Blocking>(disk: Result<B>, context: &Context) -> Result<Arc<dyn Device>> {
    disk.map(|disk| Simple::device(disk, &context.pool))
}

/// What most kinds have in common: they are made or computed when they are opened, so no other
/// program can name them.
const OWN: DeviceKind = DeviceKind {
    word: "",
    summary: "",
    magic: Some("size"),
    params: &[SIZE],
    any_param: false,
    example: "",
    names: KindNames::WORD,
    open: |params, options, context| simple(null::open("null", params, options), context),
    unopened: Unopened::OWN,
    stream: None,
    target: None,
    beside: None,
    records: None,
};

const SIZE: Param = param("size", "SIZE", "size of the disk (default 0)");
const SEED: &str = "number that decides the content (default: taken from the clock)";

#[rustfmt::skip] // a parameter a line
const FILE: &[Param] = &[
    param("file", "PATH", "the file or block device"),
    param("dir", "DIR", "instead: the files of a directory, which clients choose by the export's name"),
    param("fd", "N", "instead: a file that is already open, by the number of its descriptor"),
    param("dirfd", "N", "the same for a directory"),
    param("fadvise", "normal|random|sequential", "how the file will be read (default normal)"),
    param("cache", "default|none|direct|auto",
        "what stays in the page cache: what the system keeps, little, nothing (direct I/O), or an eighth of \
         the free memory and 64M at most (default: auto for a copy, else default)"),
    param("lock", "on|off|auto", "exclude other programs, as QEMU does (default auto: where the filesystem can)"),
    param("no-hole", "allocated|written",
        "what zeroes become that must not be a hole (default allocated: nothing is written)"),
];

#[rustfmt::skip] // a parameter a line
const SPARSE_RANDOM: &[Param] = &[
    SIZE,
    param("seed", "N", SEED),
    param("percent", "P", "how much of the disk is data (default 10)"),
    param("runlength", "SIZE", "mean length of a run of data (default 16M)"),
    param("random-content", "true|false", "random bytes, or (false, default) one random byte repeated in each 4096"),
];

#[rustfmt::skip] // a parameter a line
const DATA: &[Param] = &[
    param("data", "TEXT", "the content: bytes, \"strings\", (groups)*N, @OFFSET, as in nbdkit-data-plugin(1)"),
    param("base64", "TEXT", "the content in base64"),
    param("raw", "TEXT", "the content as it stands"),
    param("size", "SIZE", "cut or fill with zeroes to this size (default: as long as the content)"),
    memory::ALLOCATOR,
];

#[rustfmt::skip] // a parameter a line
const NBD: &[Param] = &[
    param("uri", "URI", "nbd://host/export, nbd+unix:///export?socket=PATH, nbd+vsock://…"),
    param("socket", "PATH", "the server's Unix socket, or @NAME for an abstract one"),
    param("host", "HOST", "the server's name or address (also: hostname)"),
    param("hostname", "HOST", "the same as host"),
    param("vsock", "CID", "the virtual machine that the server runs in (2: the host)"),
    param("port", "N", "the server's TCP or vsock port (default 10809)"),
    param("socket-fd", "N", "a descriptor that is already connected to the server"),
    param("command", "CMD", "a server to run, with socket activation; it ends with this program"),
    repeated("arg", "ARG", "an argument for the command"),
    param("export", "NAME", "the export (default: the server's default one)"),
    param("connections", "N", "connections to a server that allows several, made at once (default: as many as help)"),
    param("retry", "N", "how often to try again to connect at the start, a second apart (0)"),
    param("open-timeout", "TIME", "how long to keep trying to connect at the start (0)"),
    param("reconnect-delay", "TIME", "how long requests wait for a lost server to come back (0)"),
    param("request-timeout", "TIME", "how long a server that owes a reply may be silent (default: for ever)"),
    param("timeout", "TIME", "the same, and how long an attempt to connect may take (30)"),
    param("shared", "true|false", "all clients use the same connections, or (false) have their own (default true)"),
    param("tls", "WHEN", "require: encrypt (as nbds:// says); off: do not (the default)"),
    param("tls-certificates", "DIR", "where ca-cert.pem, client-cert.pem, client-key.pem are"),
    param("tls-hostname", "NAME", "the name that the server's certificate must be for"),
    param("tls-psk", "FILE", "keys instead of certificates: lines USER:HEXADECIMAL (or -env:NAME)"),
    param("tls-username", "USER", "the user whose key of that file to use"),
    param("tls-verify", "true|false", "trust only a server whose certificate ca-cert.pem signed"),
];

#[rustfmt::skip] // a parameter a line
const HTTP: &[Param] = &[
    param("url", "URL", "https://HOST/PATH or http://HOST/PATH"),
    param("bearer", "TOKEN", "a token to log in with: TOKEN, +FILE, -FD, -env:NAME, or - to be asked"),
    param("cainfo", "FILE", "certificates to trust instead of the system's (empty: none)"),
    param("capath", "DIR", "a directory of certificates to trust"),
    param("connections", "N", "connections at most (default 8)"),
    param("cookie", "COOKIE", "a cookie to send: COOKIE, +FILE, -FD, -env:NAME, or - to be asked"),
    param("cookie-script", "COMMAND", "a command that prints the cookie"),
    param("cookie-script-renew", "TIME", "when to run it again (default: when refused)"),
    param("cookiefile", "FILE", "refused: cookies that servers set are not kept"),
    param("cookiejar", "FILE", "refused: cookies that servers set are not kept"),
    param("followlocation", "true|false", "follow redirects (default true)"),
    repeated("header", "HEADER", "a header to send (`Name:` leaves it out), or +FILE, -FD, -env:NAME"),
    param("header-script", "COMMAND", "a command that prints headers"),
    param("header-script-renew", "TIME", "when to run it again (default: when refused)"),
    param("http-version", "1.1", "the only version; others are refused"),
    param("ipresolve", "WORD", "refused: resolve= fixes an address"),
    param("netrc", "FILE", "take the login from this file (empty: ~/.netrc)"),
    param("noproxy", "HOSTS", "comma-separated hosts that need no proxy="),
    param("password", "PASSWORD", "PASSWORD, +FILE, -FD, -env:NAME, or - to be asked"),
    param("protocols", "PROTO,…", "schemes that a redirect may lead to (default: the URL's)"),
    param("proxy", "PROXY", "http://HOST:PORT (default: the environment's; empty: none)"),
    param("proxy-cainfo", "FILE", "refused: connections to proxies use plain HTTP"),
    param("proxy-capath", "DIR", "refused: connections to proxies use plain HTTP"),
    param("proxy-password", "PASSWORD", "for the proxy; in the forms of password="),
    param("proxy-user", "USER", "the login at the proxy"),
    repeated("resolve", "HOST:PORT:ADDRESS", "an address to use instead of looking it up"),
    param("retry", "N", "failures in a row before a read fails (default 5)"),
    param("ssl-cipher-list", "CIPHERS", "refused: all supported ciphers are secure"),
    param("ssl-version", "tlsv1.2|tlsv1.3", "the oldest TLS to speak (default tlsv1.2)"),
    param("sslcert", "FILE", "our own certificate"),
    param("sslkey", "FILE", "its key (default: in the same file)"),
    param("sslverify", "true|false", "whether to verify the server's certificate (default true)"),
    param("tcp-keepalive", "true", "always on"),
    param("tcp-nodelay", "true", "always on"),
    param("timeout", "TIME", "how long a server that owes a reply may be silent (default 30)"),
    param("tls13-ciphers", "CIPHERS", "refused: all supported ciphers are secure"),
    param("unix-socket-path", "PATH", "the server's Unix socket, instead of TCP"),
    param("user", "USER", "the login"),
    param("user-agent", "TEXT", "the name of this program (default diskferry/VERSION)"),
];

#[rustfmt::skip] // a parameter a line
const PLUGIN: &[Param] = &[
    param("plugin", "NAME", "its name (nbdkit-NAME-plugin.so), or the path of its file"),
    param("export-name", "NAME", "the export to open, whatever clients ask for (default: what they ask for)"),
    param("isolate", "true|false", "run it in a process of its own (default false)"),
    param("restart", "true|false",
        "when that process has ended, start a new one for the next client (default false)"),
];

/// The word of the kind that plain paths lead to.
const PATHS: &str = "file";

static KINDS: &[DeviceKind] = &[
    DeviceKind {
        word: "file",
        summary: "a file or block device, byte for byte",
        magic: Some("file"),
        params: FILE,
        example: "file:/var/tmp/disk.img",
        open: file::open_any,
        stream: Some(file::stream),
        target: Some(KindTarget {
            create: file::create_named,
            resize: Some(file::resizing::resize),
            preallocate: Some(file::prealloc::preallocate),
        }),
        beside: Some(Beside {
            open: file::beside::open,
            create: file::beside::create,
            named: file::beside::named,
            from_here: file::beside::from_here,
            own_name: file::beside::own_name,
        }),
        unopened: Unopened {
            storage: file::storage,
            reaches: file::reaches,
            users: file::in_use::users,
            facts: file::in_use::facts,
            ..Unopened::OWN
        },
        names: KindNames { schemes: &["file"], of_uri: file::of_uri, ..KindNames::WORD },
        ..OWN
    },
    DeviceKind {
        word: "memory",
        summary: "a sparse disk in memory, empty at first",
        params: &[param("size", "SIZE", "size of the disk, up to 2^63-1 bytes"), memory::ALLOCATOR],
        example: "memory:1G",
        open: |params, options, context| simple(memory::open(params, options), context),
        ..OWN
    },
    DeviceKind {
        word: "null",
        summary: "reads as zeroes and discards writes",
        example: "null:1T",
        target: Some(KindTarget {
            create: |params, creation, context| {
                let disk = simple(null::create(params, creation), context)?;
                Ok(Created::as_it_is(disk, context))
            },
            resize: None,
            preallocate: None,
        }),
        ..OWN
    },
    DeviceKind {
        word: "zero",
        summary: "an empty disk, or one of zeroes that discards writes",
        example: "zero:",
        open: |params, options, context| simple(null::open("zero", params, options), context),
        ..OWN
    },
    DeviceKind {
        word: "ones",
        summary: "reads as one repeated byte and discards writes",
        params: &[SIZE, param("byte", "N", "the byte (default 0xff)")],
        example: "ones:1G?byte=0x55",
        open: |params, options, context| simple(null::open_ones(params, options), context),
        ..OWN
    },
    DeviceKind {
        word: "full",
        summary: "a full disk: reads as zeroes, writes fail with ENOSPC",
        example: "full:1G",
        open: |params, options, context| simple(full::open(params, options), context),
        ..OWN
    },
    DeviceKind {
        word: "pattern",
        summary: "every 8 bytes hold their own offset, big-endian; read-only",
        example: "pattern:1G",
        open: |params, options, context| simple(pattern::open(params, options), context),
        ..OWN
    },
    DeviceKind {
        word: "random",
        summary: "random bytes, the same for the same seed; accepts only writes that match",
        params: &[SIZE, param("seed", "N", SEED)],
        example: "random:1G?seed=7",
        open: |params, options, context| simple(random::open(params, options), context),
        ..OWN
    },
    DeviceKind {
        word: "sparse-random",
        summary: "a sparse disk of random runs, the same for the same seed; accepts only writes that match",
        params: SPARSE_RANDOM,
        example: "sparse-random:1T?seed=7&percent=5",
        open: |params, options, context| simple(sparse_random::open(params, options), context),
        ..OWN
    },
    DeviceKind {
        word: "data",
        summary: "a small disk defined on the command line; writes go to memory",
        magic: Some("data"),
        params: DATA,
        any_param: true,
        example: "data:0x55*512 @1M",
        unopened: Unopened { reaches: |params, _| data::reaches(params), ..Unopened::OWN },
        open: |params, options, context| simple(data::open(params, options), context),
        ..OWN
    },
    DeviceKind {
        word: "nbd",
        summary: "an export of an NBD server",
        magic: Some("uri"),
        params: NBD,
        example: "nbd://localhost/",
        open: nbd::open,
        names: KindNames {
            schemes: &[
                "nbd",
                "nbd+tcp",
                "nbd+unix",
                "nbd+vsock",
                "nbds",
                "nbds+unix",
                "nbds+vsock",
            ],
            runs: Some(("command", "arg")),
            shown: nbd::shown,
            ..KindNames::WORD
        },
        unopened: Unopened {
            storage: nbd::storage,
            reaches: |params, _| nbd::reaches(params),
            inspect: Some(nbd::facts::inspect),
            ..Unopened::OWN
        },
        ..OWN
    },
    DeviceKind {
        word: "http",
        summary: "a file on an HTTP or HTTPS server; written by one PUT",
        magic: Some("url"),
        params: HTTP,
        example: "https://example.com/disk.img",
        open: |params, options, _| http::open(params, options),
        target: Some(KindTarget { create: http::create, resize: None, preallocate: None }),
        names: KindNames { schemes: &["http", "https"], shown: http::shown, ..KindNames::WORD },
        unopened: Unopened {
            storage: |_| Storage::Unknown,
            reaches: |params, _| http::reaches(params),
            ..Unopened::OWN
        },
        ..OWN
    },
    DeviceKind {
        word: "s3",
        summary: "an object in S3 or a compatible store; written as a whole",
        magic: Some("uri"),
        params: http::s3::S3,
        example: "s3://bucket/disk.img?endpoint=https://store.example.com",
        open: |params, options, _| http::s3::open(params, options),
        target: Some(KindTarget { create: http::s3::create, resize: None, preallocate: None }),
        names: KindNames { schemes: &["s3"], shown: http::s3::shown, ..KindNames::WORD },
        unopened: Unopened {
            storage: |_| Storage::Unknown,
            reaches: |params, _| http::s3::reaches(params),
            ..Unopened::OWN
        },
        records: Some(http::s3::records),
        ..OWN
    },
    DeviceKind {
        word: "plugin",
        summary: "an nbdkit plugin, in this process or a separate one",
        magic: Some("plugin"),
        params: PLUGIN,
        any_param: true,
        names: KindNames {
            foreign: Some(Foreign { means: plugins::is_plugin, about: plugin::about }),
            ..KindNames::WORD
        },
        example: "plugin:data?data=1 2 3 @512",
        open: plugin::open,
        unopened: Unopened {
            storage: |_| Storage::Unknown,
            reaches: |params, _| plugin::reaches(params),
            ..Unopened::OWN
        },
        ..OWN
    },
];

/// All kinds, in the order in which to show them.
#[must_use]
pub fn kinds() -> &'static [DeviceKind] {
    KINDS
}

/// The kind that `word` names.
///
/// # Errors
/// There is none; the error has the nearest word.
pub fn kind(word: &str) -> Result<&'static DeviceKind> {
    KINDS.iter().find(|k| k.word == word).ok_or_else(|| {
        let words: Vec<_> = KINDS.iter().map(|k| k.word).collect();
        let hint = foreign::device(word).map(str::to_owned);
        let hint = hint.unwrap_or_else(|| suggestion(word, &words));
        let action = format!("there is no device `{word}`; {hint}");
        Error::invalid(format!("{action} (a file with such a name is `./{word}`)"))
    })
}

/// The name of a disk that a server serves which is started for it: a command and its arguments,
/// without shell quotes.
///
/// # Errors
/// There is no command, or a word cannot be part of a name.
pub fn of_command(words: &[OsString]) -> Result<OsString> {
    let found = KINDS.iter().find_map(|kind| kind.names.runs.map(|keys| (kind.word, keys)));
    let none = || Error::unsupported("run a server");
    let (kind, (command, argument)) = found.ok_or_else(none)?;
    if words.is_empty() {
        return Err(Error::invalid("[ ]: which command? write [ CMD ARGS ]"));
    }
    let mut name = format!("{kind}:?").into_bytes();
    for (i, word) in words.iter().enumerate() {
        let word = word.as_bytes();
        if word.ends_with(b"\\") {
            let action = "[ ]: a word that ends with a backslash cannot be passed on; put the command into a script";
            return Err(Error::invalid(action));
        }
        let key = if i == 0 { command } else { argument };
        let joint = if i == 0 { "" } else { "&" };
        name.extend_from_slice(format!("{joint}{key}=").as_bytes());
        for byte in word {
            if *byte == b'&' {
                name.push(b'\\');
            }
            name.push(*byte);
        }
    }
    Ok(OsString::from_vec(name))
}

/// The kind of a first word in nbdkit's form that is not in the table.
#[must_use]
pub fn meant(word: &str) -> Option<&'static DeviceKind> {
    let is_own = KINDS.iter().any(|kind| kind.word == word);
    let is_meant = |kind: &DeviceKind| kind.names.foreign.is_some_and(|it| (it.means)(word));
    KINDS.iter().find(|kind| !is_own && is_meant(kind))
}

/// The kind that `name` leads to.
///
/// # Errors
/// There is none.
pub fn kind_of(name: &Name) -> Result<&'static DeviceKind> {
    match name {
        Name::Path(_) => kind(PATHS),
        Name::Device { kind: word, .. } => kind(word),
        Name::Uri { scheme, text } => {
            let found = KINDS.iter().find(|kind| kind.names.schemes.contains(&scheme.as_str()));
            found.ok_or_else(|| {
                let schemes: Vec<_> =
                    KINDS.iter().flat_map(|kind| kind.names.schemes).copied().collect();
                let hint = match (foreign::scheme(scheme), nearest(scheme, &schemes)) {
                    (Some(cure), _) => cure.to_owned(),
                    (None, Some(near)) => format!("did you mean {near}://?"),
                    (None, None) => format!("there are {}", schemes.join(", ")),
                };
                Error::invalid(format!("no device opens {scheme}:// ({hint})")).on(text)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Named, OpenOptions};

    fn error(name: &str) -> String {
        Named::parse(name).err().unwrap().to_string()
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
        assert!(error("rbd:pool/img").contains("rbd device map"));
        assert!(error("gs://bucket/key").contains("storage.googleapis.com"));
        assert!(error("curl:x").contains("`http`"));
        for word in KINDS.iter().flat_map(|kind| kind.names.schemes.iter().chain([&kind.word])) {
            assert!(foreign::device(word).is_none() && foreign::scheme(word).is_none(), "{word}");
        }
    }

    #[test]
    fn a_command_in_brackets_keeps_its_words() {
        let words = ["nbdkit", "a b", "x=1&y=2", r"\&", "", "?q", "100%"].map(OsString::from);
        let name = of_command(&words).unwrap();
        let named = Named::parse(&device::text::carry(&name)).unwrap();
        assert_eq!(named.params().get("command"), Some("nbdkit"));
        let arguments: Vec<_> = named.params().all("arg").collect();
        assert_eq!(arguments, ["a b", "x=1&y=2", r"\&", "", "?q", "100%"]);
        assert!(of_command(&[]).is_err());
        assert!(of_command(&["a", r"b\"].map(OsString::from)).is_err());
    }

    #[test]
    fn examples_open_as_they_stand() {
        for kind in
            kinds().iter().filter(|k| !["file", "http", "nbd", "plugin", "s3"].contains(&k.word))
        {
            let options = OpenOptions { or_read_only: true, ..OpenOptions::read_write() };
            let disk = Named::example(kind)
                .and_then(|disk| disk.open(&options, &Context::default()))
                .unwrap();
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
