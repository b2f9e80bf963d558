"""What is measured: the works, and for each the contenders, with the commands that a sensible user would type.

A contender is a server and a client, or for the limit one program of limits.c. All get the same files in the
page cache, and defaults otherwise. Servers are started anew for every run; only their start is not measured.

Under --before every contender with a part of ours runs a second time with the older binary.

Words in braces stand for: {disk} the work's file, {size} its size, {target} a new file, {empty} a new file of {size}
that is one hole, {kept} a new file on a real disk, {upstream} the URI of another server of {disk}, {socket} and {uri} the server's, {ours} and {limits} the binaries.
"""

import dataclasses
import json
import os
from collections.abc import Callable

from measuring import GIB, MIB, TIB, Cost, Failed, Lab, Program, busy_seconds, wait_for_quiet
from report import Result, Run, note

# The families of contenders, for --only. A pair of ours and a peer's is ours.
FAMILIES = ["ours", "nbdkit", "qemu", "limit"]
# The older binary, where one is measured beside.
BEFORE = "before"
# Families whose programs are in the peers' root.
PEERS = ["nbdkit", "qemu", "fio"]

COPY_SIZE = 2 * GIB
FIO_SIZE = 512 * MIB
NULL_SIZE = 32 * GIB
COMB_SIZE = 256 * MIB
# What one request carries by default in nbdcopy and in ours.
REQUEST = 256 << 10


@dataclasses.dataclass(frozen=True)
class Server:
    """`fill`: the device starts empty and takes the work's file before the clock runs."""

    name: str
    family: str
    argv: list[str]
    fill: bool = False


@dataclasses.dataclass(frozen=True)
class Client:
    name: str
    family: str
    argv: list[str]


@dataclasses.dataclass(frozen=True)
class Contender:
    """`aside`: measured for information; neither a peer nor us."""

    server: Server | None
    client: Client
    aside: bool = False
    before: bool = False

    @property
    def name(self) -> str:
        return f"{self.plain_name} (before)" if self.before else self.plain_name

    @property
    def plain_name(self) -> str:
        if self.server is None:
            return self.client.name
        return self.server.name if self.client.family == "fio" else f"{self.server.name} → {self.client.name}"

    @property
    def has_ours(self) -> bool:
        return self.client.family == "ours" or (self.server is not None and self.server.family == "ours")

    @property
    def family(self) -> str:
        if self.before:
            return BEFORE
        if self.server is None:
            return self.client.family
        return "ours" if self.client.family == "ours" else self.server.family


@dataclasses.dataclass(frozen=True)
class Work:
    """`prepare` makes the file that is served or sent. `size` is what is copied, in bytes (0: only time counts).
    `memory` is what a run allocates anew, in bytes. `cold`: the file's pages are let go before each run. `verify` looks at what arrived, in a run that is not measured."""

    name: str
    title: str
    contenders: list[Contender]
    prepare: Callable[[Lab], str] = lambda lab: ""
    size: int = 0
    memory: int = 0
    verify: Callable[[Lab, dict[str, str]], None] | None = None
    is_fio: bool = False
    cold: bool = False


# Servers


def ours(*device: str, fill: bool = False) -> Server:
    return Server(f"ours {device[0]}", "ours", ["{ours}", "serve", "--unix", "{socket}", *device], fill)


def nbdkit(*plugin: str, fill: bool = False) -> Server:
    return Server(f"nbdkit {plugin[0]}", "nbdkit", ["nbdkit", "--foreground", "--unix", "{socket}", *plugin], fill)


def qemu_nbd(name: str, *image: str) -> Server:
    options = ["--persistent", "--shared=0", "--cache=writeback", "--socket={socket}"]
    return Server(f"qemu-nbd {name}", "qemu", ["qemu-nbd", *options, *image])


OURS_FILE = ours("file", "{disk}")
OURS_EMPTY_FILE = ours("file", "{empty}")
NBDKIT_FILE = nbdkit("file", "{disk}")
NBDKIT_EMPTY_FILE = nbdkit("file", "{empty}")
QEMU_FILE = qemu_nbd("file", "--format=raw", "{disk}")
QEMU_EMPTY_FILE = qemu_nbd("file", "--format=raw", "{empty}")
QEMU_NULL = qemu_nbd("null-co", "--image-opts", f"driver=null-co,size={NULL_SIZE},read-zeroes=on")


# Clients


# In every comparison both sides make durable what they copied, or neither does. nbdcopy does not unless it is told to,
# nor does qemu-img convert, whose cache mode is `unsafe`; ours does unless it is told not to.


def ours_copy(*arguments: str) -> Client:
    return Client("ours", "ours", ["{ours}", "copy", "--no-flush", *arguments])


def ours_durable(*arguments: str) -> Client:
    return Client("ours, durable", "ours", ["{ours}", "copy", *arguments])


def nbdcopy_durable(*arguments: str) -> Client:
    return Client("nbdcopy --flush", "nbdkit", ["nbdcopy", "--flush", *arguments])


def qemu_img_durable(*arguments: str) -> Client:
    return Client("qemu-img -t writeback", "qemu", ["qemu-img", "convert", "-t", "writeback", *arguments])


def nbdcopy(*arguments: str) -> Client:
    return Client("nbdcopy", "nbdkit", ["nbdcopy", *arguments])


def qemu_img(*arguments: str) -> Client:
    return Client("qemu-img", "qemu", ["qemu-img", "convert", *arguments])


QEMU_IMG_NULL = qemu_img("-f", "raw", "{uri}", "-n", "--target-image-opts", "driver=null-co,size={size}")


def limit(*arguments: str) -> Contender:
    return Contender(None, Client("limit", "limit", ["{limits}", *arguments]))


# Checks of what arrived


def verify_target(lab: Lab, names: dict[str, str]) -> None:
    if not lab.same(names["disk"], names["target"]):
        raise Failed("the copy differs from what was served")


def verify_server(lab: Lab, names: dict[str, str]) -> None:
    if "uri" not in names:
        return
    lab.run_client(["nbdcopy", names["uri"], names["target"]], peer=True)
    if not lab.same(names["disk"], names["target"]):
        raise Failed("the server does not hold what was sent")


def verify_kept(lab: Lab, names: dict[str, str]) -> None:
    verify_target(lab, {**names, "target": names["kept"]})


# Copies


def plain_copies(source: str, target: str, cache: str = "") -> list[Contender]:
    """A file to a new file, without a server, and a bare loop; ours with this parameter for both. nbdcopy makes none of
    itself."""
    own = [f"file:{name}?{cache}" for name in (source, target)] if cache else [source, target]
    return [
        Contender(None, ours_copy(*own)),
        Contender(None, Client("nbdcopy", "nbdkit", ["sh", "-c", f"truncate -s {{size}} {target} && nbdcopy {source} {target}"])),
        Contender(None, qemu_img("-f", "raw", "-O", "raw", source, target)),
        Contender(None, Client("qemu-img -W", "qemu", ["qemu-img", "convert", "-W", "-f", "raw", "-O", "raw", source, target])),
        limit("copy", source, target),
    ]


# A served file, copied to a new file, by every pair.
SERVED_TO_FILE = [
    Contender(OURS_FILE, ours_copy("{uri}", "{target}")),
    Contender(NBDKIT_FILE, nbdcopy("{uri}", "{target}")),
    Contender(NBDKIT_FILE, qemu_img("-f", "raw", "-O", "raw", "{uri}", "{target}")),
    Contender(QEMU_FILE, nbdcopy("{uri}", "{target}")),
    Contender(QEMU_FILE, qemu_img("-f", "raw", "-O", "raw", "{uri}", "{target}")),
    Contender(OURS_FILE, nbdcopy("{uri}", "{target}"), aside=True),
    Contender(NBDKIT_FILE, ours_copy("{uri}", "{target}"), aside=True),
]

COPIES = [
    Work(
        "file-to-null",
        "2 GiB of random bytes in tmpfs, served and copied to nowhere",
        [
            Contender(OURS_FILE, ours_copy("{uri}", "null:")),
            Contender(NBDKIT_FILE, nbdcopy("{uri}", "null:")),
            Contender(NBDKIT_FILE, QEMU_IMG_NULL),
            Contender(QEMU_FILE, nbdcopy("{uri}", "null:")),
            Contender(QEMU_FILE, QEMU_IMG_NULL),
            Contender(OURS_FILE, nbdcopy("{uri}", "null:"), aside=True),
            Contender(NBDKIT_FILE, ours_copy("{uri}", "null:"), aside=True),
            limit("to-null", "{disk}"),
        ],
        lambda lab: lab.random_file(COPY_SIZE // lab.scale),
        COPY_SIZE,
    ),
    Work(
        "file-to-file",
        "the same, copied to a new file in tmpfs",
        [*SERVED_TO_FILE, limit("to-file", "{disk}", "{target}")],
        lambda lab: lab.random_file(COPY_SIZE // lab.scale),
        COPY_SIZE,
        memory=COPY_SIZE,
        verify=verify_target,
    ),
    Work(
        "to-file-durable",
        "the same, made durable before the client ends (in tmpfs that costs nothing: see --dir)",
        [
            Contender(OURS_FILE, ours_durable("{uri}", "{target}")),
            Contender(NBDKIT_FILE, nbdcopy_durable("{uri}", "{target}")),
            Contender(NBDKIT_FILE, qemu_img_durable("-f", "raw", "-O", "raw", "{uri}", "{target}")),
            Contender(QEMU_FILE, nbdcopy_durable("{uri}", "{target}")),
            Contender(QEMU_FILE, qemu_img_durable("-f", "raw", "-O", "raw", "{uri}", "{target}")),
        ],
        lambda lab: lab.random_file(COPY_SIZE // lab.scale),
        COPY_SIZE,
        memory=COPY_SIZE,
        verify=verify_target,
    ),
    Work(
        "to-server-durable",
        "the same sent to a server of an empty file, which is flushed before the client ends",
        [
            Contender(OURS_EMPTY_FILE, ours_durable("{disk}", "{uri}")),
            Contender(NBDKIT_EMPTY_FILE, nbdcopy_durable("{disk}", "{uri}")),
            Contender(NBDKIT_EMPTY_FILE, qemu_img_durable("-n", "-f", "raw", "-O", "raw", "{disk}", "{uri}")),
            Contender(QEMU_EMPTY_FILE, nbdcopy_durable("{disk}", "{uri}")),
            Contender(QEMU_EMPTY_FILE, qemu_img_durable("-n", "-f", "raw", "-O", "raw", "{disk}", "{uri}")),
        ],
        lambda lab: lab.random_file(COPY_SIZE // lab.scale),
        COPY_SIZE,
        memory=COPY_SIZE,
        verify=verify_server,
    ),
    Work(
        "file-to-memory",
        "2 GiB of random bytes in tmpfs, sent into served memory (qemu-nbd has none: into an empty file in tmpfs)",
        [
            Contender(ours("memory", "{size}"), ours_copy("{disk}", "{uri}")),
            Contender(nbdkit("memory", "{size}"), nbdcopy("{disk}", "{uri}")),
            Contender(nbdkit("memory", "{size}"), qemu_img("-n", "-f", "raw", "-O", "raw", "{disk}", "{uri}")),
            Contender(QEMU_EMPTY_FILE, nbdcopy("{disk}", "{uri}")),
            Contender(QEMU_EMPTY_FILE, qemu_img("-n", "-f", "raw", "-O", "raw", "{disk}", "{uri}")),
            Contender(ours("memory", "{size}"), nbdcopy("{disk}", "{uri}"), aside=True),
            Contender(nbdkit("memory", "{size}"), ours_copy("{disk}", "{uri}"), aside=True),
            limit("to-memory", "{disk}"),
        ],
        lambda lab: lab.random_file(COPY_SIZE // lab.scale),
        COPY_SIZE,
        memory=COPY_SIZE,
        verify=verify_server,
    ),
    Work(
        "comb",
        "256 MiB of 4 KiB of data and 4 KiB of hole in turn, from a file in tmpfs to a new one",
        plain_copies("{disk}", "{target}"),
        lambda lab: lab.comb("comb", COMB_SIZE // lab.scale),
        COMB_SIZE,
        memory=COMB_SIZE,
        verify=verify_target,
    ),
    Work(
        "comb-served",
        "the same file, copied into served memory",
        [
            Contender(ours("memory", "{size}"), ours_copy("{disk}", "{uri}")),
            Contender(nbdkit("memory", "{size}"), nbdcopy("{disk}", "{uri}")),
            Contender(nbdkit("memory", "{size}"), qemu_img("-n", "-f", "raw", "-O", "raw", "{disk}", "{uri}")),
        ],
        lambda lab: lab.comb("comb", COMB_SIZE // lab.scale),
        COMB_SIZE,
        memory=COMB_SIZE,
        verify=verify_server,
    ),
    Work(
        "teeth-served",
        "1 GiB with 100,000 extents of 4 KiB in tmpfs, served and copied to a new file there",
        SERVED_TO_FILE,
        lambda lab: lab.teeth("teeth", GIB // lab.scale, 100_000 // lab.scale),
        GIB,
        memory=GIB,
        verify=verify_target,
    ),
    Work(
        "raw-to-raw",
        "2 GiB of random bytes, from a file in tmpfs to a new one",
        plain_copies("{disk}", "{target}"),
        lambda lab: lab.random_file(COPY_SIZE // lab.scale),
        COPY_SIZE,
        memory=COPY_SIZE,
        verify=verify_target,
    ),
    Work(
        "null-to-null",
        "null 32G copied to nowhere",
        [
            Contender(ours("null", "32G"), ours_copy("{uri}", "null:")),
            Contender(nbdkit("null", "32G"), nbdcopy("{uri}", "null:")),
            Contender(QEMU_NULL, nbdcopy("{uri}", "null:")),
            limit("requests", "1"),
        ],
    ),
    Work(
        "null-read",
        "null 32G copied to nowhere without its map (--no-extents): 131072 reads of zeroes",
        [
            Contender(ours("null", "32G"), ours_copy("--no-extents", "{uri}", "null:")),
            Contender(nbdkit("null", "32G"), nbdcopy("--no-extents", "{uri}", "null:")),
            Contender(QEMU_NULL, nbdcopy("--no-extents", "{uri}", "null:")),
            limit("requests", str(NULL_SIZE // REQUEST)),
        ],
    ),
    Work(
        "empty-1T",
        "an empty export of 1 TiB copied to nowhere",
        [
            Contender(ours("memory", "1T"), ours_copy("{uri}", "null:")),
            Contender(OURS_FILE, ours_copy("{uri}", "null:")),
            Contender(nbdkit("memory", "1T"), nbdcopy("{uri}", "null:")),
            Contender(NBDKIT_FILE, nbdcopy("{uri}", "null:")),
            Contender(QEMU_FILE, nbdcopy("{uri}", "null:")),
            limit("requests", "1"),
        ],
        lambda lab: lab.sparse_file("sparse", TIB),
    ),
    Work(
        "start",
        "info of a raw file without data, from the program's start to its end",
        [
            Contender(None, Client("ours", "ours", ["{ours}", "info", "{disk}"])),
            Contender(None, Client("qemu-img", "qemu", ["qemu-img", "info", "-f", "raw", "{disk}"])),
            Contender(None, Client("limit", "limit", ["true"])),
        ],
        lambda lab: lab.sparse_file("sparse", GIB),
    ),
]


# fio, the same client for all servers


def fio_client(pattern: str, block: int, depth: int, jobs: int) -> Client:
    argv = [
        "fio",
        "--name=bench",
        "--ioengine=nbd",
        "--uri={uri}",
        f"--rw={pattern}",
        f"--bs={block}",
        f"--iodepth={depth}",
        f"--numjobs={jobs}",
        f"--size={FIO_SIZE}",
        "--io_size={fio_bytes}",
        "--norandommap",
        "--group_reporting",
        "--output-format=json",
    ]
    return Client("fio", "fio", argv)


def fio(name: str, title: str, pattern: str, block: int, depth: int, jobs: int, operations: int) -> Work:
    """`operations` of `block` bytes, in all jobs together: a fixed amount, so that CPU can be compared, too."""
    servers = [
        ours("memory", str(FIO_SIZE), fill=True),
        OURS_FILE,
        nbdkit("memory", str(FIO_SIZE), fill=True),
        NBDKIT_FILE,
        QEMU_FILE,
        Server("limit", "limit", ["{limits}", "serve", "{socket}", "{disk}"]),
    ]
    client = fio_client(pattern, block, depth, jobs)
    return Work(
        name,
        f"{title}, by fio",
        [Contender(server, client) for server in servers],
        # A copy, because the file of random bytes is shared, and here it may be written.
        lambda lab: lab.copy_of(lab.random_file(FIO_SIZE)),
        size=operations * block // jobs,
        is_fio=True,
    )


def fio_on_disk(
    name: str, title: str, block: int, depth: int, operations: int, servers: list[Server], cold: bool = False, pattern: str = "randread"
) -> Work:
    """Random reads, or writes, of a file on a real disk, so that the server may have to wait."""
    client = fio_client(pattern, block, depth, 1)
    writes = pattern != "randread"
    return Work(
        name,
        f"{title}, by fio",
        [Contender(server, client) for server in servers],
        # One of its own, where it may be written.
        lambda lab: lab.on_disk(lab.copy_of(lab.random_file(FIO_SIZE)) if writes else lab.random_file(FIO_SIZE)),
        size=operations * block,
        is_fio=True,
        cold=cold,
    )


def qcow2_of_random(lab: Lab) -> str:
    path = lab.path("random.qcow2")
    if not os.path.exists(path):
        lab.run_client(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", lab.random_file(FIO_SIZE), path], peer=True)
    return path


def fio_on_qcow2(name: str, title: str, block: int, depth: int, operations: int) -> Work:
    """Random reads of an uncompressed image; the limit serves its container as it is, which has as many bytes and no map."""
    servers = [
        ours("--format=qcow2", "--read-only", "file", "{disk}"),
        qemu_nbd("qcow2", "--format=qcow2", "--read-only", "{disk}"),
        Server("limit", "limit", ["{limits}", "serve", "{socket}", "{disk}"]),
    ]
    contenders = [Contender(dataclasses.replace(server, name=server.name.replace("--format=", "")), fio_client("randread", block, depth, 1)) for server in servers]
    return Work(name, f"{title}, by fio", contenders, qcow2_of_random, size=operations * block, is_fio=True)


def sandboxed(wish: str) -> Server:
    """A file, with so much of a sandbox."""
    server = ours(f"--sandbox={wish}", "file", "{disk}")
    return dataclasses.replace(server, name=f"ours file, sandbox {wish}")


def filtered(maker: Callable[..., Server], label: str, *filters: str) -> Server:
    """A file behind filters, by ours or by nbdkit."""
    server = maker("file", "{disk}", *filters)
    return dataclasses.replace(server, name=f"{server.name.split()[0]} {label}")


def filtered_memory(maker: Callable[..., Server], name: str) -> Server:
    """Memory behind a filter, by ours or by nbdkit."""
    server = maker("memory", str(FIO_SIZE), f"--filter={name}")
    return dataclasses.replace(server, name=f"{server.name.split()[0]} {name}")


FIO_WORKS = [
    fio("read-256k", "random reads of 256 KiB, depth 8", "randread", 256 << 10, 8, 1, 48_000),
    fio("write-256k", "random writes of 256 KiB, depth 8", "randwrite", 256 << 10, 8, 1, 24_000),
    fio("read-4k", "random reads of 4 KiB, depth 32, one job", "randread", 4 << 10, 32, 1, 400_000),
    fio("write-4k", "random writes of 4 KiB, depth 32, one job", "randwrite", 4 << 10, 32, 1, 400_000),
    fio("read-4k-two", "random reads of 4 KiB, depth 32, two jobs", "randread", 4 << 10, 32, 2, 600_000),
    fio("write-4k-two", "random writes of 4 KiB, depth 32, two jobs", "randwrite", 4 << 10, 32, 2, 600_000),
    fio_on_qcow2("qcow2-read-256k", "random reads of 256 KiB, depth 8, of a qcow2 image that is not compressed", 256 << 10, 8, 48_000),
    fio_on_qcow2("qcow2-read-4k", "random reads of 4 KiB, depth 32, of a qcow2 image that is not compressed", 4 << 10, 32, 400_000),
    fio("read-4k-depth-1", "random reads of 4 KiB, depth 1", "randread", 4 << 10, 1, 1, 64_000),
]

# Disks, filters, proxies

DISK_SERVERS = [OURS_FILE, NBDKIT_FILE, QEMU_FILE]
LIMIT_SERVERS = [
    OURS_FILE,
    filtered(ours, "limit", "--filter=limit", "limit=9"),
    filtered(ours, "log", "--filter=log", "logfile=/dev/null"),
    filtered(ours, "stats", "--filter=stats", "statsfile=/dev/null"),
    filtered(nbdkit, "limit", "--filter=limit", "limit=9"),
    filtered(nbdkit, "log", "--filter=log", "logfile=/dev/null"),
    filtered(nbdkit, "stats", "--filter=stats", "statsfile=/dev/null"),
]
PROXIES = [
    Server("ours nbd", "ours", ["{ours}", "serve", "--unix", "{socket}", "nbd", "{upstream}"]),
    Server("nbdkit nbd", "nbdkit", ["nbdkit", "--foreground", "--unix", "{socket}", "nbd", "{upstream}"]),
]

SANDBOXES = [sandboxed("off"), sandboxed("require"), NBDKIT_FILE]

DISK_WORKS = [
    fio_on_disk("sandbox-4k", "random reads of 4 KiB, depth 32, of a cached file on a disk, with and without a sandbox", 4 << 10, 32, 200_000, SANDBOXES),
    fio_on_disk("disk-4k", "random reads of 4 KiB, depth 32, of a cached file on a disk", 4 << 10, 32, 200_000, DISK_SERVERS),
    fio_on_disk("disk-256k", "random reads of 256 KiB, depth 8, of a cached file on a disk", 256 << 10, 8, 24_000, DISK_SERVERS),
    fio_on_disk("disk-4k-cold", "random reads of 4 KiB, depth 32, of a file that is not cached", 4 << 10, 32, 20_000, DISK_SERVERS, True),
    fio_on_disk("disk-256k-cold", "random reads of 256 KiB, depth 8, of a file that is not cached", 256 << 10, 8, 1_500, DISK_SERVERS, True),
    fio_on_disk("disk-write-4k", "random writes of 4 KiB, depth 32, into a file on a disk", 4 << 10, 32, 200_000, DISK_SERVERS, pattern="randwrite"),
    fio_on_disk("disk-write-4k-depth-1", "random writes of 4 KiB, depth 1, into a file on a disk", 4 << 10, 1, 60_000, DISK_SERVERS, pattern="randwrite"),
    fio_on_disk("disk-write-256k", "random writes of 256 KiB, depth 8, into a file on a disk", 256 << 10, 8, 12_000, DISK_SERVERS, pattern="randwrite"),
    fio_on_disk("filter-4k", "random reads of 4 KiB, depth 32, of a cached file on a disk, behind a filter", 4 << 10, 32, 200_000, LIMIT_SERVERS),
    fio_on_disk("filter-256k", "random reads of 256 KiB, depth 8, of a cached file on a disk, behind a filter", 256 << 10, 8, 24_000, LIMIT_SERVERS),
    fio_on_disk("proxy-4k", "random reads of 4 KiB, depth 32, through a proxy of nbdkit's file", 4 << 10, 32, 100_000, PROXIES),
    fio_on_disk("proxy-256k", "random reads of 256 KiB, depth 8, through a proxy of nbdkit's file", 256 << 10, 8, 12_000, PROXIES),
    Work(
        "cow-4k",
        "random writes of 4 KiB, depth 32, through cow over memory, by fio",
        [
            Contender(filtered_memory(maker, "cow"), fio_client("randwrite", 4 << 10, 32, 1))
            for maker in (ours, nbdkit)
        ],
        size=200_000 * (4 << 10),
        is_fio=True,
    ),
    Work(
        "raw-to-raw-disk",
        "2 GiB of random bytes, from a cached file on a disk to a new one there",
        plain_copies("{disk}", "{kept}"),
        lambda lab: lab.on_disk(lab.random_file(COPY_SIZE // lab.scale)),
        COPY_SIZE,
        memory=COPY_SIZE,
        verify=verify_kept,
    ),
    Work(
        "raw-to-raw-cached",
        "the same, with what is written left in the page cache (cache=default), as by the others",
        plain_copies("{disk}", "{kept}", "cache=default"),
        lambda lab: lab.on_disk(lab.random_file(COPY_SIZE // lab.scale)),
        COPY_SIZE,
        memory=COPY_SIZE,
        verify=verify_kept,
    ),
    Work(
        "sparse-raw",
        "a cached file of 2 GiB on a disk, 64 KiB of data in each MiB, to a new one in tmpfs",
        plain_copies("{disk}", "{target}"),
        lambda lab: lab.sparse_on_disk("sparse-raw", COPY_SIZE // lab.scale),
        COPY_SIZE,
        memory=COPY_SIZE // 16,
        verify=verify_target,
    ),
    Work(
        "disk-to-disk",
        "2 GiB of random bytes, from a file on a disk that is not cached to a new one there, made durable",
        [
            Contender(None, Client("ours, durable", "ours", ["{ours}", "copy", "{disk}", "{kept}"])),
            Contender(None, Client("cp, then sync", "qemu", ["sh", "-c", "cp {disk} {kept} && sync {kept}"])),
            Contender(None, Client("nbdcopy --flush", "nbdkit", ["nbdcopy", "--flush", "{disk}", "{kept}"])),
            Contender(
                None,
                Client("qemu-img -t none -T none", "qemu",
                       ["qemu-img", "convert", "-t", "none", "-T", "none", "-f", "raw", "-O", "raw", "{disk}", "{kept}"]),
            ),
            limit("copy-direct", "{disk}", "{kept}"),
        ],
        lambda lab: lab.on_disk(lab.random_file(COPY_SIZE // lab.scale)),
        COPY_SIZE,
        memory=COPY_SIZE,
        verify=verify_kept,
        cold=True,
    ),
]

# Plugins of nbdkit: ours loads those of the distribution, nbdkit its own newest ones


def plugin(name: str, title: str, jobs: int, operations: int, *words_of: str, block: int = 4 << 10, depth: int = 32) -> Work:
    fill = words_of[0] == "memory"
    servers = [ours(f"plugin:{words_of[0]}", *words_of[1:], fill=fill), nbdkit(*words_of, fill=fill)]
    client = fio_client("randread", block, depth, jobs)
    return Work(
        name,
        f"{title}, by fio",
        [Contender(server, client) for server in servers],
        lambda lab: lab.random_file(FIO_SIZE),
        size=operations * block // jobs,
        is_fio=True,
    )


PLUGIN_WORKS = [
    plugin("plugin-memory-4k", "random reads of 4 KiB, depth 32, of nbdkit's plugin memory", 1, 200_000, "memory", str(FIO_SIZE)),
    plugin("plugin-memory-4k-two", "the same by two jobs", 2, 300_000, "memory", str(FIO_SIZE)),
    plugin("plugin-file-4k", "random reads of 4 KiB, depth 32, two jobs, of nbdkit's plugin file", 2, 300_000, "file", "{disk}"),
    plugin("plugin-file-256k", "random reads of 256 KiB, depth 8, of nbdkit's plugin file", 1, 24_000, "file", "{disk}", block=256 << 10, depth=8),
    plugin("plugin-curl-4k", "random reads of 4 KiB, depth 32, two jobs, of nbdkit's plugin curl over file://", 2, 40_000, "curl", "file://{disk}"),
]

WORKS = [*COPIES, *FIO_WORKS, *DISK_WORKS, *PLUGIN_WORKS]


# Running them


def fio_rate(output: str) -> float:
    """Operations a second of all jobs together, without fio's own start."""
    # fio may say something before its JSON.
    job = json.loads(output[output.index("{") :])["jobs"][0]
    if job["error"] != 0:
        raise Failed(f"fio reports error {job['error']}")
    return job["read"]["iops"] + job["write"]["iops"]


def words(argv: list[str], names: dict[str, str]) -> list[str]:
    return [word.format_map(names) for word in argv]


def older(argv: list[str], lab: Lab) -> list[str]:
    """The same options for an older binary: one without --no-flush flushes only when it is told to."""
    if argv[:2] != ["{ours}", "copy"] or lab.before_flushes():
        return argv
    rest = argv[2:]
    flush = [] if "--no-flush" in rest else ["--flush"]
    return [*argv[:2], *flush, *(word for word in rest if word != "--no-flush")]


def start(lab: Lab, server: Server, names: dict[str, str]) -> tuple[Program, float]:
    """The server, up and filled, and the CPU that it has used so far."""
    names["socket"] = lab.new_socket()
    names["uri"] = f"nbd+unix:///?socket={names['socket']}"
    if "{empty}" in server.argv:
        names["empty"] = lab.sparse_file("empty", int(names["size"]))
    program = lab.start_server(words(server.argv, names), server.family in PEERS, names["socket"])
    if server.fill:
        lab.run_client(["nbdcopy", names["disk"], names["uri"]], peer=True)
    return program, program.cpu_so_far()


def start_upstream(lab: Lab, contender: Contender, names: dict[str, str]) -> Program | None:
    """The server behind a proxy: nbdkit's file, the same for all proxies."""
    if contender.server is None or not any("{upstream}" in word for word in contender.server.argv):
        return None
    program, _ = start(lab, NBDKIT_FILE, names)
    names["upstream"], names["upstream_socket"] = names["uri"], names["socket"]
    return program


def run_once(lab: Lab, work: Work, contender: Contender, disk: str, verify: bool = False) -> Run:
    """Server up, client to its end, server down. With `verify` the costs mean nothing."""
    size = work.size // lab.scale
    names = {
        "disk": disk,
        "size": str(size),
        "fio_bytes": str(size),
        "target": lab.path("target"),
        "ours": (lab.before if contender.before else lab.diskferry) or "",
        "limits": lab.limits,
        "kept": os.path.join(lab.disk or lab.dir, "kept"),
    }
    lab.remove("target", "empty")
    if os.path.lexists(names["kept"]):
        os.unlink(names["kept"])
        # What it took is discarded now, and not while the next one runs.
        os.sync()
    if disk:
        (lab.forget if work.cold else lab.warm)(disk)
    lab.warm_memory(work.memory // lab.scale, any("{kept}" in word for word in contender.client.argv))
    upstream = start_upstream(lab, contender, names)
    server, before, server_cost = None, 0.0, Cost(0, 0, 0)
    if contender.server is not None:
        server, before = start(lab, contender.server, names)
    argv = contender.client.argv
    argv = words(older(argv, lab) if contender.before else argv, names)
    busy = busy_seconds()
    client_cost, output = lab.run_client(argv, contender.client.family in PEERS, keep_output=work.is_fio)
    busy = busy_seconds() - busy
    others = busy - client_cost.cpu - (server.cpu_so_far() - before if server else 0.0)
    if verify and work.verify is not None:
        work.verify(lab, names)
    if server is not None:
        server_cost = server.stop()
    if upstream is not None:
        upstream.stop()
    return Run(
        wall=client_cost.wall,
        rate=fio_rate(output) if work.is_fio else None,
        cpu=client_cost.cpu + max(server_cost.cpu - before, 0.0),
        server_rss=server_cost.rss,
        client_rss=client_cost.rss,
        # Time that the host has taken away is accounted late, so that a run may seem to have lost more than there was.
        others=min(max(others, 0.0) / (client_cost.wall * (os.cpu_count() or 1)), 1.0),
    )


def run_work(lab: Lab, work: Work, families: list[str], runs: int, failures: list[str], patient: bool) -> Result:
    """All contenders in turn, `runs` times; first of all once to see that the bytes arrive, where that can be seen.
    A contender that fails is left out and reported. `patient`: wait for a quiet machine before each run."""
    disk = work.prepare(lab)
    result = Result(work.name, work.title, 0 if work.is_fio else work.size // lab.scale, work.is_fio)
    contenders = list(work.contenders)
    if BEFORE in families:
        contenders += [dataclasses.replace(c, before=True) for c in contenders if c.has_ours]
    taking_part = [contender for contender in contenders if contender.family in families]
    for contender in taking_part:
        result.add(contender.name, contender.family, contender.aside)
    rounds = ["verify"] * (work.verify is not None) + ["measure"] * runs
    for kind in rounds:
        for contender in list(taking_part):
            if patient and kind == "measure":
                wait_for_quiet()
            try:
                run = run_once(lab, work, contender, disk, verify=kind == "verify")
            except Failed as error:
                lab.kill_all()
                taking_part.remove(contender)
                failures.append(f"{work.name}: {contender.name}: {error}")
                note(failures[-1])
                continue
            if kind == "measure":
                result.record(contender.name, run)
    lab.remove("target", "empty", "copy", "sparse")
    return result
