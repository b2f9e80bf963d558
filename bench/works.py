"""What is measured: the works, and for each the contenders, with the commands that a sensible user would type.

A contender is a server and a client, or for the limit one program of limits.c. Everybody gets the same files in the
page cache, and defaults otherwise. Servers are started anew for every run; only their start is not measured.

Words in braces stand for: {disk} the work's file, {size} its size, {target} a new file, {empty} a new file of {size}
that holds nothing, {socket} and {uri} the server's, {ours} and {limits} the binaries.
"""

import dataclasses
import json
import os
from collections.abc import Callable

from measuring import GIB, MIB, TIB, Cost, Failed, Lab, Program, busy_seconds, wait_for_quiet
from report import Result, Run, note

# Who a contender belongs to, for --only. A pair of ours and a peer's is ours.
FAMILIES = ["ours", "nbdkit", "qemu", "limit"]
# Families whose programs are in the peers' root.
PEERS = ["nbdkit", "qemu", "fio"]

COPY_SIZE = 2 * GIB
FIO_SIZE = 512 * MIB
NULL_SIZE = 32 * GIB
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

    @property
    def name(self) -> str:
        if self.server is None:
            return self.client.name
        return self.server.name if self.client.family == "fio" else f"{self.server.name} → {self.client.name}"

    @property
    def family(self) -> str:
        if self.server is None:
            return self.client.family
        return "ours" if self.client.family == "ours" else self.server.family


@dataclasses.dataclass(frozen=True)
class Work:
    """`prepare` makes the file that is served or sent. `size` is what is copied, in bytes (0: only time counts).
    `memory` is what a run allocates anew, in bytes. `verify` looks at what arrived, in a run that is not measured."""

    name: str
    title: str
    contenders: list[Contender]
    prepare: Callable[[Lab], str] = lambda lab: ""
    size: int = 0
    memory: int = 0
    verify: Callable[[Lab, dict[str, str]], None] | None = None
    is_fio: bool = False


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


# Looking at what arrived


def verify_target(lab: Lab, names: dict[str, str]) -> None:
    if not lab.same(names["disk"], names["target"]):
        raise Failed("the copy differs from what was served")


def verify_server(lab: Lab, names: dict[str, str]) -> None:
    if "uri" not in names:
        return
    lab.run_client(["nbdcopy", names["uri"], names["target"]], peer=True)
    if not lab.same(names["disk"], names["target"]):
        raise Failed("the server does not hold what was sent")


# Copies

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
        [
            Contender(OURS_FILE, ours_copy("{uri}", "{target}")),
            Contender(NBDKIT_FILE, nbdcopy("{uri}", "{target}")),
            Contender(NBDKIT_FILE, qemu_img("-f", "raw", "-O", "raw", "{uri}", "{target}")),
            Contender(QEMU_FILE, nbdcopy("{uri}", "{target}")),
            Contender(QEMU_FILE, qemu_img("-f", "raw", "-O", "raw", "{uri}", "{target}")),
            Contender(OURS_FILE, nbdcopy("{uri}", "{target}"), aside=True),
            Contender(NBDKIT_FILE, ours_copy("{uri}", "{target}"), aside=True),
            limit("to-file", "{disk}", "{target}"),
        ],
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
]


# fio, the same client for everybody


def fio(name: str, title: str, pattern: str, block: int, depth: int, jobs: int, operations: int) -> Work:
    """`operations` of `block` bytes, in all jobs together: a fixed amount, so that CPU can be compared too."""
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
    client = Client("fio", "fio", argv)
    servers = [
        ours("memory", str(FIO_SIZE), fill=True),
        OURS_FILE,
        nbdkit("memory", str(FIO_SIZE), fill=True),
        NBDKIT_FILE,
        QEMU_FILE,
        Server("limit", "limit", ["{limits}", "serve", "{socket}", "{disk}"]),
    ]
    return Work(
        name,
        f"{title}, by fio",
        [Contender(server, client) for server in servers],
        # A copy, because the file of random bytes is shared, and here it may be written.
        lambda lab: lab.copy_of(lab.random_file(FIO_SIZE)),
        size=operations * block // jobs,
        is_fio=True,
    )


FIO_WORKS = [
    fio("read-256k", "random reads of 256 KiB, depth 8", "randread", 256 << 10, 8, 1, 48_000),
    fio("write-256k", "random writes of 256 KiB, depth 8", "randwrite", 256 << 10, 8, 1, 24_000),
    fio("read-4k", "random reads of 4 KiB, depth 32, one job", "randread", 4 << 10, 32, 1, 400_000),
    fio("write-4k", "random writes of 4 KiB, depth 32, one job", "randwrite", 4 << 10, 32, 1, 400_000),
    fio("read-4k-two", "random reads of 4 KiB, depth 32, two jobs", "randread", 4 << 10, 32, 2, 600_000),
    fio("write-4k-two", "random writes of 4 KiB, depth 32, two jobs", "randwrite", 4 << 10, 32, 2, 600_000),
    fio("read-4k-depth-1", "random reads of 4 KiB, depth 1", "randread", 4 << 10, 1, 1, 64_000),
]

WORKS = [*COPIES, *FIO_WORKS]


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


def run_once(lab: Lab, work: Work, contender: Contender, disk: str, verify: bool = False) -> Run:
    """Server up, client to its end, server down. With `verify` the costs mean nothing."""
    size = work.size // lab.scale
    names = {
        "disk": disk,
        "size": str(size),
        "fio_bytes": str(size),
        "target": lab.path("target"),
        "ours": lab.diskferry or "",
        "limits": lab.limits,
    }
    lab.remove("target", "empty")
    lab.warm_memory(work.memory // lab.scale)
    server, before, server_cost = None, 0.0, Cost(0, 0, 0)
    if contender.server is not None:
        server, before = start(lab, contender.server, names)
    argv = words(contender.client.argv, names)
    busy = busy_seconds()
    client_cost, output = lab.run_client(argv, contender.client.family in PEERS, keep_output=work.is_fio)
    busy = busy_seconds() - busy
    others = busy - client_cost.cpu - (server.cpu_so_far() - before if server else 0.0)
    if verify and work.verify is not None:
        work.verify(lab, names)
    if server is not None:
        server_cost = server.stop()
    return Run(
        wall=client_cost.wall,
        rate=fio_rate(output) if work.is_fio else None,
        cpu=client_cost.cpu + max(server_cost.cpu - before, 0.0),
        server_rss=server_cost.rss,
        client_rss=client_cost.rss,
        # Time that the host has taken away is booked late, so that a run may seem to have lost more than there was.
        others=min(max(others, 0.0) / (client_cost.wall * (os.cpu_count() or 1)), 1.0),
    )


def run_work(lab: Lab, work: Work, families: list[str], runs: int, failures: list[str], patient: bool) -> Result:
    """Everybody in turn, `runs` times; first of all once to see that the bytes arrive, where that can be seen.
    A contender that fails is left out and reported. `patient`: wait for a quiet machine before each run."""
    disk = work.prepare(lab)
    result = Result(work.name, work.title, 0 if work.is_fio else work.size // lab.scale, work.is_fio)
    taking_part = [contender for contender in work.contenders if contender.family in families]
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
