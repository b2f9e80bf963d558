//! Lines as people paste them, run by nbdkit and by us.

use blackbox::eventually;
use blackbox::peers::{diskferry, peer, skip_environment};
use blackbox::temp::TempDir;

use super::{filters, free_port, has_peers, line};

/// Lines as people paste them; what both print and how both exit must be the same.
const LINES: &[&str] = &[
    "SERVER -U - memory 1M --run 'nbdinfo --size $uri'",
    "SERVER -U - memory size=1M --run 'nbdinfo --size $nbd'",
    "SERVER -f -U - memory 1M --run 'qemu-img info $uri | grep -c \"1 MiB\"'",
    "SERVER --foreground -U - memory 3M --run 'test -S $unixsocket && nbdinfo --size $uri'",
    "SERVER --no-fork --unix - memory 10M --run 'nbdinfo --size \"$uri\"'",
    "SERVER -v -U - memory 1M --run 'nbdinfo --size \"$uri\"'",
    "SERVER -U - -r memory 1M --run 'nbdinfo --is read-only $uri; echo $?'",
    "SERVER -U - --readonly memory 1M --run 'nbdinfo --can write $uri; echo $?'",
    "SERVER -U - --read-only memory 1M --run 'NBDSH -u $uri -c \"print(h.is_read_only())\"'",
    "SERVER -U - memory 1M -r --run 'nbdinfo --is read-only $uri; echo $?'",
    "SERVER -U - pattern 1M --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - pattern size=12345 --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - ones 1M byte=0x41 --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - ones byte=65 1M --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - data '@0x1fe 0x55 0xaa' --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - data ' @32768 1 ' size=64K --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - data size=64K ' @32768 1 ' --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - data raw=hello=world size=512 --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - data '\"a=b\"*4' size=512 --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - null 1G --run 'nbdinfo --size $uri; nbdinfo --can zero $uri; echo $?'",
    "SERVER -U - full 1M --run 'NBDSH -u $uri -c \"
try:
    h.pwrite(bytes(512), 0)
except nbd.Error as e:
    print(e.errno)
\"'",
    "SERVER -U - zero --run 'nbdinfo --size $uri'",
    "printf '%1000s' x > disk; SERVER -U - file disk --run 'nbdcopy $uri - | sha256sum'",
    "printf '%1000s' x > disk; SERVER -U - file file=./disk --run 'nbdcopy $uri - | sha256sum'",
    "printf '%512s' x > a=b; SERVER -U - file ./a=b --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - random 1M seed=1 --run 'nbdcopy $uri $uri && echo same'",
    "SERVER -U - sparse-random 64M seed=1 --run 'nbdcopy $uri $uri && echo same'",
    "SERVER -U - -e foo memory 1M --run 'echo $exportname; nbdinfo --size $uri'",
    "SERVER -U - --export=foo memory 1M --run 'echo $exportname; nbdinfo --size $uri'",
    "SERVER -U - --export-name foo memory 1M --run 'echo $exportname; nbdinfo --size $uri'",
    "SERVER -U - --exportname 'a b' memory 1M --run 'echo $exportname; nbdinfo --size \"$uri\"'",
    "SERVER -p PORT -i 127.0.0.1 memory 1M --run 'echo $port; nbdinfo --size nbd://127.0.0.1:$port'",
    "SERVER --port=PORT --ipaddr=127.0.0.1 memory 1M --run 'nbdinfo --size nbd://127.0.0.1:PORT'",
    "SERVER --port PORT --ip-addr 127.0.0.1 memory 1M --run 'nbdinfo --size nbd://127.0.0.1:PORT'",
    "SERVER -4 -p PORT memory 1M --run 'nbdinfo --size nbd://127.0.0.1:PORT'",
    "SERVER -6 -4 -p PORT memory 1M --run 'nbdinfo --size nbd://127.0.0.1:PORT'",
    "SERVER --ipv4-only -i localhost -p PORT memory 1M --run 'nbdinfo --size nbd://127.0.0.1:PORT'",
    "SERVER -n -U - memory 1M --run 'NBDSH -u $uri -c \"print(h.get_protocol())\"'",
    "SERVER --newstyle -U - memory 1M --run 'NBDSH -u $uri -c \"print(h.get_protocol())\"'",
    "SERVER -o --new-style -U - memory 1M --run 'NBDSH -u $uri -c \"print(h.get_protocol())\"'",
    "SERVER -o -U - memory 1M --run 'NBDSH -u $uri -c \"print(h.get_protocol())\"'",
    "SERVER --oldstyle -U - memory 1M --run 'NBDSH -u $uri -c \"print(h.get_size())\"'",
    "SERVER --old-style -U - pattern 1M --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -o -U - pattern 1M --run 'qemu-img convert -O raw $uri out; sha256sum out'",
    "SERVER --no-sr -U - memory 1M --run \
     'NBDSH -u $uri -c \"print(h.get_structured_replies_negotiated())\"'",
    "SERVER --mask-handshake=0 -U - memory 1M --run 'NBDSH -u $uri -c \"print(h.get_protocol())\"'",
    "SERVER --mask-handshake=1 -U - memory 1M --run 'NBDSH -u $uri -c \"print(h.get_protocol())\"'",
    "SERVER --mask-handshake=0x2 -U - memory 1M --run 'NBDSH -u $uri -c \"print(h.get_size())\"'",
    "SERVER -t 1 -U - pattern 8M --run 'nbdcopy $uri - | sha256sum'",
    "SERVER --threads=4 -U - pattern 8M --run 'nbdcopy $uri - | sha256sum'",
    "SERVER --exit-with-parent -U - memory 1M --run 'nbdinfo --size $uri'",
    "SERVER -P pid -U - memory 1M --run 'nbdinfo --size $uri; test -s pid; echo $?'",
    "SERVER --pid-file=pid -U - memory 1M --run 'nbdinfo --size $uri; test -s pid; echo $?'",
    "SERVER --log=stderr -U - memory 1M --run 'nbdinfo --size $uri'",
    "SERVER --log=null -U - memory 1M --run 'nbdinfo --size $uri'",
    "SERVER --tls=off -U - memory 1M --run 'nbdinfo --size $uri'",
    "SERVER -D nbdkit.backend.datapath=0 -U - memory 1M --run 'nbdinfo --size $uri'",
    "SERVER -U - memory 1M --run 'exit 7'",
    "SERVER -U - memory 1M --run 'kill -TERM $$'",
    "SERVER -U - memory 1M --run 'echo \"$uri\" | grep -c socket=$unixsocket; echo \"$port\"'",
    "SERVER -U - --filter=delay memory 1M rdelay=1ms wdelay=1ms --run 'nbdinfo --size $uri'",
    "SERVER -U - --filter=delay memory rdelay=1ms size=1M --run 'nbdinfo --size $uri'",
    "SERVER -U - --filter delay pattern delay-read=1ms 64K --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - --filter=nozero memory 1M --run 'nbdinfo --can zero $uri; echo $?'",
    "SERVER -U - --filter=nozero memory 1M zeromode=emulate --run \
     'nbdinfo --can zero $uri; echo $?; nbdinfo --can fast-zero $uri; echo $?'",
    "SERVER -U - --filter=nozero memory 1M zeromode=plugin fastzeromode=slow --run 'NBDSH -u $uri -c \"
try:
    h.zero(65536, 0, nbd.CMD_FLAG_FAST_ZERO)
except nbd.Error as e:
    print(e.errno)
\"'",
    "SERVER -U - --filter=nozero --filter=delay memory 1M zeromode=emulate wdelay=1ms --run \
     'nbdinfo --can fast-zero $uri; echo $?'",
    "SERVER -U - --filter=log --filter=nozero --filter=stats --filter=delay memory 1M \
     logfile=log statsfile=stats delay-write=20ms zeromode=plugin --run \
     'nbdinfo --size $uri; NBDSH -u $uri -c \"h.pwrite(bytes(512), 0)\"'; \
     test -s log && test -s stats && echo written",
    "SERVER -U - --filter=error --filter=delay memory 1M error-rate=100% rdelay=1ms --run 'NBDSH -u $uri -c \"
try:
    h.pread(512, 0)
except nbd.Error as e:
    print(e.errno)
\"'",
    "NBDSH -c 'h.connect_command([*\"SERVER -s memory 1M\".split()]); print(h.get_size())'",
    "NBDSH -c 'h.connect_command([*\"SERVER --single -r memory 1M\".split()]); print(h.is_read_only())'",
    "NBDSH -c 'h.connect_command([*\"SERVER --stdin -o memory 1M\".split()]); print(h.get_protocol())'",
    "NBDSH -c 'h.connect_command([*\"SERVER -s --exit-with-parent pattern 1M\".split()]); print(h.pread(8, 8000))'",
    "nbdinfo --size [ SERVER memory 1M ]",
    "nbdcopy [ SERVER pattern 1M ] - | sha256sum",
];

#[test]
fn lines_for_nbdkit_do_the_same_here() {
    if !has_peers() {
        return;
    }
    let nbdkit = peer("nbdkit").unwrap();
    let ours = format!("{} serve", diskferry().display());
    let filters = filters();
    let mut wrong = Vec::new();
    for text in LINES {
        let named = text.split("--filter=").skip(1).filter_map(|rest| rest.split(' ').next());
        if let Some(missing) = named.into_iter().find(|f| !filters.iter().any(|known| known == f)) {
            skip_environment(&format!("there is no filter `{missing}` yet: {text}"));
            continue;
        }
        let results = [nbdkit.to_str().unwrap(), &ours].map(|server| {
            // A port that was just free may be taken by the time the server wants it.
            let on_a_port = || {
                let (temp, port) = (TempDir::new(), free_port().to_string());
                let outcome = line(&text.replace("PORT", &port), server, temp.path());
                let is_taken = ["already in use", "another program has the port"];
                if text.contains("PORT") && is_taken.iter().any(|t| outcome.stderr.contains(t)) {
                    return None;
                }
                let printed = outcome.stdout.replace(&port, "PORT");
                Some((outcome, printed))
            };
            eventually("a free port", on_a_port)
        });
        let [(theirs, they_print), (mine, we_print)] = &results;
        // Not every nbdkit has every plugin, filter and option.
        let lacks = ["cannot open plugin", "cannot open filter", "unrecognized option"];
        if lacks.iter().any(|lack| theirs.stderr.contains(lack)) {
            skip_environment(&format!("this nbdkit cannot: {text}"));
            mine.succeeded();
        } else if we_print != they_print || mine.status.code() != theirs.status.code() {
            wrong.push(format!("{text}\ntheirs: {theirs:#?}\nours: {mine:#?}"));
        }
        assert!(!mine.stderr.contains("panicked"), "{mine:#?}");
    }
    assert!(wrong.is_empty(), "{} lines differ:\n{}", wrong.len(), wrong.join("\n"));
}
