//! What this program and its devices can do, in lines for scripts, with nbdkit's keys where they
//! mean the same.

use std::fmt::Write as _;

use clap::ArgMatches;
use device::{Abilities, Info, Params};
use disk::{DeviceKind, Named, Stack, StackRole, Storage, kinds_of};
use runtime::Context;

use super::about::{self, version};
use super::disks::{self, positional};
use super::exports;
use crate::failure::Failure;
use crate::{arguments, names};

/// What a script that was written for nbdkit looks for, beside what it can do, where a built-in
/// device is in the place of a plugin.
const OF_PLUGINS: &[(&str, &[&str])] = &[
    (
        "file",
        &[
            "has_list_exports=1",
            "file_blksszget=yes",
            "file_blkzeroout=yes",
            "file_extents=yes",
            "file_falloc_fl_punch_hole=yes",
            "file_falloc_fl_zero_range=yes",
        ],
    ),
    ("memory", &["mlock=no", "zstd=no"]),
    ("data", &["mlock=no", "zstd=no", "data_base64=yes"]),
];

fn lines<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> String {
    pairs.into_iter().fold(String::new(), |mut text, (key, value)| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{key}={value}");
        text
    })
}

fn binary() -> String {
    std::env::current_exe().map(|path| path.display().to_string()).unwrap_or_default()
}

/// Of the program: `--dump-config`.
pub(super) fn configuration() -> String {
    let binary = binary();
    let directory = binary.rsplit_once('/').map_or("", |(directory, _)| directory).to_owned();
    let mut numbers = version().split('.');
    let mut number = || numbers.next().unwrap_or("0").to_owned();
    let (major, minor) = (number(), number());
    let yes = || "yes".to_owned();
    let words = |role| kinds_of(role).map(|kind| kind.word).collect::<Vec<_>>().join(",");
    let mut pairs = vec![
        ("binary", binary),
        ("bindir", directory.clone()),
        ("devices", words(StackRole::Device)),
        ("exit_with_parent", yes()),
        ("extended_headers", yes()),
        ("filters", words(StackRole::Filter)),
        ("host_cpu", std::env::consts::ARCH.to_owned()),
        ("host_os", std::env::consts::OS.to_owned()),
        ("name", if names::is_nbdkit() { "nbdkit" } else { "diskferry" }.to_owned()),
        ("run_default_socket", "Unix".to_owned()),
        ("selinux", yes()),
        ("timeout_option", yes()),
        ("tls", if cfg!(feature = "tls") { "yes" } else { "no" }.to_owned()),
        ("version", version().to_owned()),
        ("version_major", major),
        ("version_minor", minor),
        ("vsock_option", yes()),
    ];
    if names::is_nbdkit() {
        pairs.extend(places(directory));
        pairs.sort();
    }
    lines(pairs)
}

/// Where nbdkit has its files. All filters are in the program: their directory is that beside the
/// plugins, and may not be there.
fn places(programs: String) -> [(&'static str, String); 8] {
    let plugins = disk::plugin_directory();
    let shown = |path: Option<&std::path::Path>| {
        path.map(|path| path.display().to_string()).unwrap_or_default()
    };
    let around = plugins.parent();
    [
        ("filterdir", shown(around.map(|around| around.join("filters")).as_deref())),
        ("libdir", shown(around.and_then(std::path::Path::parent))),
        ("mandir", "/usr/share/man".to_owned()),
        ("plugindir", shown(Some(&plugins))),
        ("root_tls_certificates_dir", "/etc/pki/nbdkit".to_owned()),
        ("sbindir", programs),
        ("sysconfdir", "/etc".to_owned()),
        ("zstd", "no".to_owned()),
    ]
}

/// Of a device, and of the filters that are named with it: `--dump-plugin`.
pub(super) fn device(matches: &ArgMatches) -> Result<String, Failure> {
    if about::named(matches)?.is_some() {
        // What it can do depends on its parameters.
        let disks = disks::resolve(matches, None)?;
        let about = disks.first().and_then(|disk| disk.disk.about()).transpose()?;
        return Ok(about.map(|about| about.dump).unwrap_or_default() + &filters(matches)?);
    }
    let Some(kind) = about::device(matches)? else {
        return Err(Failure::usage("--dump-plugin: which device? for example memory"));
    };
    let mut text = lines([
        ("path", binary()),
        ("name", kind.word.to_owned()),
        ("version", version().to_owned()),
        ("description", kind.summary.to_owned()),
    ]);
    if names::is_nbdkit() {
        // The interface that the plugin of this name has.
        text += &lines([("api_version", "2".to_owned()), ("errno_is_preserved", "1".to_owned())]);
    }
    text += &lines(kind.magic.map(|magic| ("magic_config_key", magic.to_owned())));
    let model = || "parallel".to_owned();
    text += &lines([("max_thread_model", model()), ("thread_model", model())]);
    match example(matches, kind)? {
        Some(disk) => {
            let (stack, context) = (Stack::default(), Context::default());
            let opened = exports::open_disk(&disk, &stack, "", true, &context);
            text += &opened.map(|edge| abilities(edge.info()))?;
        }
        // What it is depends on the disk; nbdkit says which calls there are.
        None if names::is_nbdkit() => text += &abilities(&any()),
        None => {}
    }
    if names::is_nbdkit() {
        let of_plugin = OF_PLUGINS.iter().find(|(word, _)| *word == kind.word);
        for line in of_plugin.into_iter().flat_map(|(_, lines)| *lines) {
            text += &format!("{line}\n");
        }
    }
    Ok(text + &filters(matches)?)
}

/// What can be done with some disk or other.
fn any() -> Info {
    let all = Abilities {
        write: true,
        flush: true,
        trim: true,
        zero: true,
        fast_zero: true,
        fua: true,
        multi_conn: true,
        prefetch: true,
        extents: true,
        rotational: true,
        ..Abilities::READ
    };
    Info { abilities: all, ..Info::new("", 0) }
}

/// Of the filters.
fn filters(matches: &ArgMatches) -> Result<String, Failure> {
    let mut text = String::new();
    for filter in arguments::filters(matches, "filter")?.kinds() {
        let key = |end: &str| format!("{}_{end}", filter.word);
        let (path, name, summary) = (key("path"), key("name"), key("description"));
        text += &lines([
            (path.as_str(), binary()),
            (&name, filter.word.to_owned()),
            (&summary, filter.summary.to_owned()),
        ]);
    }
    Ok(text)
}

/// The disk that was named, or one like the device's example, to see what it can do. Without a
/// name nothing outside of this process is opened: no file, no server.
fn example(matches: &ArgMatches, kind: &'static DeviceKind) -> Result<Option<Named>, Failure> {
    if positional(matches).is_some_and(|(first, rest)| first != kind.word || !rest.is_empty()) {
        return Ok(disks::resolve(matches, None)?.into_iter().next().map(|disk| disk.disk));
    }
    let is_own = (kind.unopened.storage)(&Params::default()) == Storage::Own;
    Ok(is_own.then(|| Named::example(kind)).transpose()?)
}

/// What a device does itself; the server derives the rest from that.
fn abilities(info: &Info) -> String {
    let can = info.abilities;
    let all = [
        ("has_get_size", true),
        ("has_block_size", true),
        ("has_pread", true),
        ("has_pwrite", can.write),
        ("has_flush", can.flush),
        ("has_trim", can.trim),
        ("has_zero", can.zero),
        ("has_can_fast_zero", can.fast_zero),
        ("has_can_fua", can.fua),
        ("has_can_multi_conn", can.multi_conn),
        ("has_cache", can.prefetch),
        ("has_extents", can.extents),
        ("has_is_rotational", can.rotational),
    ];
    let has = all.into_iter().filter(|(_, yes)| *yes).map(|(key, _)| (key, "1".to_owned()));
    lines(has)
}
