//! The line that `qemu-img create` prints: all options of a format in its order, those that have a
//! default whether they are given or not.

use device::{Params, parse_size, values};

/// An option, and its default.
type Printed = (&'static str, Option<&'static str>);

/// Where the size is among them.
const SIZE: Printed = ("size", None);

const QCOW2: &[Printed] = &[
    ("encrypt.format", None),
    ("encrypt.key-secret", None),
    ("encrypt.cipher-alg", None),
    ("encrypt.cipher-mode", None),
    ("encrypt.ivgen-alg", None),
    ("encrypt.ivgen-hash-alg", None),
    ("encrypt.hash-alg", None),
    ("encrypt.iter-time", None),
    ("cluster_size", Some("65536")),
    ("extended_l2", Some("off")),
    ("preallocation", None),
    ("compression_type", Some("zlib")),
    SIZE,
    ("compat", None),
    ("backing_file", None),
    ("backing_fmt", None),
    ("data_file", None),
    ("data_file_raw", None),
    ("lazy_refcounts", Some("off")),
    ("refcount_bits", Some("16")),
];

const VMDK: &[Printed] = &[
    SIZE,
    ("adapter_type", None),
    ("backing_file", None),
    ("backing_fmt", None),
    ("compat6", Some("off")),
    ("hwversion", Some("undefined")),
    ("toolsversion", None),
    ("subformat", None),
    ("zeroed_grain", None),
];

/// Options of QEMU for the file below, which change no byte: taken, and not followed.
const OF_THE_FILE: [Printed; 2] = [("nocow", None), ("extent_size_hint", None)];

/// Takes them out of what was given.
///
/// # Errors
/// One has a value that is none.
pub(crate) fn take_of_the_file(options: &mut Params) -> device::Result<Params> {
    values::on_off(options, "nocow")?;
    values::size(options, "extent_size_hint")?;
    let mut taken = Params::default();
    for (key, _) in OF_THE_FILE {
        options.take(key).iter().for_each(|value| taken.add(key, value));
    }
    Ok(taken)
}

/// The formats whose options have an order of their own, or defaults.
const FORMATS: &[(&str, &[Printed])] = &[
    ("qcow2", QCOW2),
    ("vmdk", VMDK),
    ("vdi", &[SIZE, ("static", Some("off"))]),
    (
        "vhdx",
        &[SIZE, ("log_size", Some("1048576")), ("block_size", Some("0")), ("subformat", None)],
    ),
];

/// Options that are numbers of bytes.
const BYTES: [&str; 4] = ["block_size", "cluster_size", "extent_size_hint", "log_size"];

/// The options, each behind a space. Those that QEMU does not have are not shown.
pub(crate) fn options(format: &str, given: &Params, size: u64) -> String {
    let known = FORMATS.iter().find(|(word, _)| *word == format).map(|(_, known)| *known);
    let own: Vec<_> = given.iter().map(|(key, _)| (key, None)).collect();
    let known: Vec<_> = match known {
        Some(known) => [known, &OF_THE_FILE].concat(),
        None => [SIZE].into_iter().chain(own).collect(),
    };
    let shown = |(key, default): (&str, Option<&str>)| {
        let value = match (key, given.get(key).or(default)) {
            ("size", _) => size.to_string(),
            (_, None) => return String::new(),
            (key, Some(text)) if BYTES.contains(&key) => {
                parse_size(text).map_or_else(|_| text.to_owned(), |bytes| bytes.to_string())
            }
            (_, Some("true" | "yes")) => "on".to_owned(),
            (_, Some("false" | "no")) => "off".to_owned(),
            (_, Some(text)) => text.to_owned(),
        };
        format!(" {key}={value}")
    };
    known.into_iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_that_of_qemu_img() {
        let shown = |format: &str, given: &[&str]| {
            options(format, &Params::parse(given.iter().copied()).unwrap(), 1 << 20)
        };
        let qcow2 = " cluster_size=65536 extended_l2=off compression_type=zlib size=1048576 \
                     lazy_refcounts=off refcount_bits=16";
        assert_eq!(shown("qcow2", &[]), qcow2);
        let given =
            ["backing_fmt=raw", "cluster_size=128k", "backing_file=b", "lazy_refcounts=yes"];
        let wanted = " cluster_size=131072 extended_l2=off compression_type=zlib size=1048576 \
                      backing_file=b backing_fmt=raw lazy_refcounts=on refcount_bits=16";
        assert_eq!(shown("qcow2", &given), wanted);
        assert_eq!(shown("raw", &["preallocation=full"]), " size=1048576 preallocation=full");
        assert_eq!(shown("vdi", &[]), " size=1048576 static=off");
    }
}
