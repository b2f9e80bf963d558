//! Parameters that no filter accepts, over a disk of 4096 bytes.

use device::Params;
use device::model::Model;
use runtime::{Context, WorkPool};

/// Filters, and what is wrong usage of them: `|` stands between the tries, a space between the
/// parameters of one.
const WRONG: &[(&str, &str)] = &[
    ("blocksize", "minblock=513|minblock=128K|minblock=0|maxdata=0|maxlen=0"),
    ("blocksize", "minblock=512 maxdata=1000|minblock=4K maxlen=5K"),
    ("blocksize-policy", "blocksize-minimum=513|blocksize-minimum=128K"),
    ("blocksize-policy", "blocksize-preferred=100|blocksize-preferred=256|blocksize-preferred=64M"),
    ("blocksize-policy", "blocksize-maximum=4G|blocksize-maximum=256"),
    ("blocksize-policy", "blocksize-minimum=512 blocksize-maximum=1000"),
    ("blocksize-policy", "blocksize-minimum=4096 blocksize-preferred=512"),
    ("blocksize-policy", "blocksize-preferred=8192 blocksize-maximum=4096"),
    ("cache", "cache-low-threshold=0|cache-low-threshold=95|cache-high-threshold=101"),
    ("cache", "cache-min-block-size=4097|cache-min-block-size=64K cache-max-size=63K"),
    ("error", "error-rate=101%|error-rate=-1|error-rate=1:0|error-rate=x|error-rate=nan"),
    ("error", "error-zero-rate=2|error=ENOENT|error-seed=x"),
    ("exitwhen", "exit-when-pipe-closed=x|exit-when-process-exits=0|exit-when-poll=0"),
    ("ext2", "|ext2file=disk|ext2file=exportname"),
    ("indexed-gzip", "gzip-index-span=0"),
    ("ip", "deny=foo|deny=1.2.3.0/33|deny=::1/129|deny=1.2.3|deny=127.1|deny=,|deny=a,,b"),
    ("ip", "deny=uid:root|deny=pid:0|deny=uid:|deny=1.2.3.4-1.2.3.9|deny=dn:|deny=issuer-dn:"),
    ("ip", "deny=psk-user:|deny=uid:1,dn:|deny=security:label"),
    ("lzip", "lzip-max-depth=0"),
    ("map", "map=5-4:0|map=0-4|map=a-4:0|map=0-9223372036854775807:9223372036854775807"),
    ("retry-request", "retry-request-retries=1001|retry-request-delay=0|retry-request-open=2"),
    ("rotational", "rotational=7200"),
    ("scan", "scan-size=256|scan-size=3000|scan-size=64M|scan-ahead=2"),
    ("spinning", "heads=0|heads=65|max-seek-time=x|separate-heads=4"),
    ("swab", "swab-bits=12"),
    ("time-limit", "time-limit=soon"),
    ("truncate", "round-up=0|round-down=0|truncate=9223372036854775807 round-up=2"),
    ("xor", "|xor=1|xorlen=1|xor=1 xorlen=0|xor=1 xorlen=9|xor=zz xorlen=2"),
    ("xz", "xz-max-depth=0"),
];

/// The same of what does not fit this disk, or is not there.
const UNFIT: &[(&str, &str)] = &[
    ("exitwhen", "exit-when-pipe-closed=999999|exit-when-process-exits=999999999"),
    ("map", "map=0-511:4000|map-size=5000|map-size=5000 map=4096-4999:4000"),
    ("offset", "offset=4097|offset=100 range=3997|offset=100 range=9223372036854775807"),
];

#[test]
fn what_makes_no_sense_is_refused() {
    for (table, is_usage) in [(WRONG, true), (UNFIT, false)] {
        for (filter, tries) in table {
            for words in tries.split('|') {
                let context = Context::new(WorkPool::new(1));
                let disk = device::Simple::edge(Model::new(4096), &context.pool);
                let params = Params::parse(words.split_whitespace()).unwrap();
                let e = filters::open(filter, &params, disk, &context).unwrap_err();
                assert_eq!(e.is_usage(), is_usage, "{filter} {words}: {e}");
            }
        }
    }
}
