//! The outputs for programs: which verb prints JSON, in whose format, with which keys. The
//! reference is made from it, and tests compare what is printed with it.
//!
//! Output in our own format has a version number. Keys may be added under the same number; it grows
//! when a key changes its meaning or is removed.

/// The version of our own formats.
pub(crate) const VERSION: u32 = 1;

/// An output.
pub(crate) struct Output {
    /// Its word: the anchor on the page.
    pub(crate) name: &'static str,
    /// The commands that print it.
    pub(crate) commands: &'static str,
    /// What is printed, and where.
    pub(crate) what: &'static str,
    pub(crate) form: Form,
    /// Keys, the types of their values, and what they say.
    pub(crate) keys: &'static [(&'static str, &'static str, &'static str)],
}

/// The program whose format it has.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Form {
    /// Ours: it has `version`.
    Ours,
    /// That of another program, for its readers, which does not have the key `version`.
    Of(&'static str),
}

pub(crate) static OUTPUTS: &[Output] = &[
    Output {
        name: "progress",
        commands: "`copy`, `prealloc`, `zero`, `trim` with `--progress=json`",
        what: "An object a line on standard error: `{\"version\": 1, \"type\": T, \"data\": {…}}`. The last one is \
               of type `summary`, or `error` when the work failed.",
        form: Form::Ours,
        keys: &[
            ("version", "integer", "1"),
            (
                "type",
                "string",
                "`progress` (twice a second), `warning`, `summary` (at the end) or `error` (instead)",
            ),
            ("data.done", "integer", "bytes: the sum of the next three"),
            ("data.total", "integer", "bytes in all"),
            ("data.copied", "integer", "bytes written as data"),
            ("data.zeroed", "integer", "bytes zeroed"),
            ("data.skipped", "integer", "bytes that were zero in the target already"),
            (
                "data.data-done, data.data-total",
                "integer or null",
                "`progress`: bytes of data that are done, and bytes of data in the source; null while its map is not known",
            ),
            (
                "data.confirmed",
                "integer",
                "`summary`, `error`: bytes of the source that were read before its server was lost and came back, and are the \
                 same there now (all that were, after a success)",
            ),
            ("data.rate", "number", "`progress`: bytes of data a second"),
            ("data.eta", "number or null", "`progress`: seconds to go, if known"),
            ("data.seconds", "number", "`summary`, `error`: how long it took"),
            ("data.message", "string", "`warning`, `error`: the line for people"),
            (
                "data.left",
                "array",
                "`error`: up to 100 ranges that are not known to be copied, each `[offset, length]`",
            ),
        ],
    },
    Output {
        name: "zero-and-trim",
        commands: "`zero --json`, `trim --json`",
        what: "An object on standard output, when all is done.",
        form: Form::Ours,
        keys: &[
            ("version", "integer", "1"),
            ("offset", "integer", "the first byte of the range"),
            ("length", "integer", "bytes of the range"),
            ("requests", "integer", "requests that it took"),
        ],
    },
    Output {
        name: "prealloc",
        commands: "`prealloc --json`",
        what: "An object on standard output, when all is done.",
        form: Form::Ours,
        keys: &[
            ("version", "integer", "1"),
            ("filename", "string", "the file or block device"),
            ("size", "integer", "its length now"),
            ("offset", "integer", "the first byte of the range"),
            ("length", "integer", "bytes of the range"),
            ("mode", "string", "`sparse`, `unwritten` or `written`"),
            ("way", "string", "how most of it was zeroed"),
            ("ways", "object", "bytes by way"),
            ("zeroed", "integer", "bytes that were zeroed"),
            ("kept", "integer", "bytes that were allocated already"),
            ("why", "string or null", "why no better way was taken"),
            ("checked", "boolean", "whether samples were read back"),
        ],
    },
    Output {
        name: "inspect",
        commands: "`inspect`",
        what: "An object on standard output. Keys about the image are missing if it could not be examined.",
        form: Form::Ours,
        keys: &[
            ("version", "integer", "1"),
            ("filename", "string", "the name that was given"),
            ("format", "string or null", "the format by the image's header"),
            ("declared-format", "string", "what `-f` says"),
            ("safe", "boolean", "the verdict"),
            ("reasons", "array of strings", "why it is not safe"),
            ("notes", "array of strings", "what else is worth knowing"),
            ("sandbox", "object", "`files` and `calls`: `confined`, `partly` or `free`"),
            ("virtual-size", "integer", "bytes of the disk in it"),
            ("actual-size", "integer", "bytes of the image"),
            ("cluster-size", "integer or null", "bytes of a cluster"),
            ("backing-filename", "string or null", "the backing image that it names"),
            ("data-files", "array of strings", "other files that it names"),
            ("snapshots", "integer", "internal snapshots"),
            ("encrypted", "boolean", "whether it is encrypted"),
            ("dirty-flag", "boolean", "whether it was not closed properly"),
            ("unknown-features", "array of strings", "features that are not known here"),
        ],
    },
    Output {
        name: "cache",
        commands: "`cache stat|evict|warm --json`",
        what: "An array on standard output, with an object for each file. Numbers of pages are null where the system \
               does not report them.",
        form: Form::Ours,
        keys: &[
            ("version", "integer", "1"),
            ("filename", "string", "the file"),
            ("filesize", "integer", "its bytes"),
            ("pagesize", "integer", "bytes of a page"),
            ("offset", "integer", "the first byte of the range"),
            ("length", "integer", "bytes of the range"),
            ("pages", "integer", "pages that the range touches"),
            ("cached", "integer", "those in memory"),
            ("dirty", "integer or null", "those that are to be written back"),
            ("writeback", "integer or null", "those being written back"),
            ("evicted", "integer or null", "those that the system reclaimed"),
            ("recently-evicted", "integer or null", "those that it reclaimed recently"),
            ("cached-before", "integer", "`evict`: those in memory before"),
            (
                "made-durable-first",
                "integer or null",
                "`evict`: those that were written back for it",
            ),
        ],
    },
    Output {
        name: "stats",
        commands: "`--filter=stats` with `statsformat=json`",
        what: "An object in the file that `statsfile=` names: [stats](../filters/stats.md).",
        form: Form::Ours,
        keys: &[
            ("version", "integer", "1"),
            ("seconds", "number", "since the start"),
            ("total", "object", "`ops` and `bytes` of all operations"),
            (
                "operations",
                "object",
                "by kind of operation: `ops`, `failed`, `bytes`, `seconds`, `latency_ns`, `sizes`",
            ),
        ],
    },
    Output {
        name: "info",
        commands: "`info --json`, `list --json`",
        what: "An object on standard output with an array `exports`. For a disk that is not an export, `device` and `name` \
               replace `protocol` and `export-name`. Flags that are not known are missing.",
        form: Form::Of("nbdinfo --json"),
        keys: &[
            ("protocol", "string", "`newstyle-fixed`, `newstyle` or `oldstyle`"),
            ("TLS", "boolean", "whether the connection is encrypted"),
            ("structured", "boolean", "structured replies were negotiated"),
            ("extended", "boolean", "extended headers were negotiated"),
            ("exports", "array of objects", "with the following keys"),
            ("export-name", "string", "its name"),
            ("description", "string", "the server's description of it"),
            ("export-size", "integer", "bytes"),
            ("export-size-str", "string", "the same in the largest unit that fits: `10G`"),
            ("uri", "string", "its URI"),
            ("contexts", "array of strings", "status contexts"),
            ("is_read_only, is_rotational", "boolean", "of the disk"),
            (
                "can_block_status_payload, can_cache, can_df, can_fast_zero, can_flush, can_fua, \
                 can_multi_conn, can_trim, can_zero",
                "boolean",
                "what it can do",
            ),
            ("block_size_minimum, block_size_preferred, block_size_maximum", "integer", "bytes"),
        ],
    },
    Output {
        name: "info-of-an-image",
        commands: "`info --output=json`",
        what: "An object on standard output; with `--backing-chain` an array. The keys are QEMU's, in its schema \
               (`ImageInfo`).",
        form: Form::Of("qemu-img info --output=json"),
        keys: &[],
    },
    Output {
        name: "map",
        commands: "`map --json`, `map --json --totals`",
        what: "An array on standard output.",
        form: Form::Of("nbdinfo --map --json"),
        keys: &[
            ("offset, length", "integer", "the run, in bytes; without `--totals`"),
            (
                "size, percent",
                "integer, number",
                "bytes of that type, and their share; with `--totals`",
            ),
            (
                "type",
                "integer",
                "bit 0: hole, bit 1: reads as zeroes; or what a context says (`--context`)",
            ),
            ("description", "string", "the same in words, where they are known"),
        ],
    },
    Output {
        name: "map-of-an-image",
        commands: "`map --output=json`",
        what: "An array on standard output. The keys are QEMU's (`MapEntry`).",
        form: Form::Of("qemu-img map --output=json"),
        keys: &[],
    },
    Output {
        name: "check",
        commands: "`check --output=json`",
        what: "An object on standard output. The keys are QEMU's (`ImageCheck`).",
        form: Form::Of("qemu-img check --output=json"),
        keys: &[],
    },
    Output {
        name: "measure",
        commands: "`measure --output=json`",
        what: "An object on standard output. The keys are QEMU's (`BlockMeasureInfo`).",
        form: Form::Of("qemu-img measure --output=json"),
        keys: &[
            ("required", "integer", "bytes of the image"),
            ("fully-allocated", "integer", "the same with data everywhere"),
            ("bitmaps", "integer", "bytes that the bitmaps of the source would take besides"),
        ],
    },
];
