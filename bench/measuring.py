"""Starting programs, waiting for their sockets, counting what they cost, and leaving nothing behind.

Every program runs under bench/measure.c, which reports its wall time, CPU and peak memory. Peers run in the root that
bench/peers makes, without its wrapper scripts, so that no tool is charged for a shell.
"""

import atexit
import dataclasses
import filecmp
import mmap
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PEERS_ROOT = os.environ.get("DISKFERRY_PEERS", "/opt/peers")
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40
PREFIX = "diskferry-bench-"
# Nothing here takes minutes; a program that does hangs.
DEADLOCK_GUARD = 300.0


class Failed(Exception):
    """A program could not be started, failed, or moved wrong bytes."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one program cost: seconds, seconds of CPU in user and kernel, and its peak of resident memory in KiB."""

    wall: float
    cpu: float
    rss: int


class Program:
    """A program that runs until it ends or is told to. It is killed when the tool ends, however that happens."""

    def __init__(self, lab: "Lab", argv: list[str], peer: bool, keep_output: bool = False):
        report, child_end = os.pipe()
        self.argv = argv
        self._errors = tempfile.TemporaryFile()
        self._output = tempfile.TemporaryFile() if keep_output else None
        environment = {**os.environ, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
        self._measure = subprocess.Popen(
            [lab.measure, str(child_end), PEERS_ROOT if peer else "/", *argv],
            stdin=subprocess.DEVNULL,
            stdout=self._output or subprocess.DEVNULL,
            stderr=self._errors,
            pass_fds=(child_end,),
            cwd=lab.dir,
            env=environment,
        )
        os.close(child_end)
        self._report = os.fdopen(report, encoding="ascii")
        first = self._report.readline().split()
        if len(first) != 2:
            raise Failed(f"{argv[0]} could not be started: {self.errors()}")
        self.pid = int(first[1])
        lab.running.append(self)
        self._lab = lab

    def errors(self) -> str:
        """The end of what it wrote to its standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()[-500:]

    def output(self) -> str:
        assert self._output is not None
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def cpu_so_far(self) -> float:
        """Seconds of CPU of all its threads up to now, from the kernel's per-process clock."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def finish(self) -> tuple[Cost, int]:
        """Waits for its end; its cost and exit status (128 + n for a signal)."""
        try:
            self._measure.wait(DEADLOCK_GUARD)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(f"{' '.join(self.argv)} did not end within {DEADLOCK_GUARD:.0f} s") from None
        line = self._report.readline().split()
        self._lab.running.remove(self)
        self._report.close()
        if len(line) != 6:
            raise Failed(f"{self.argv[0]} was not measured: {self.errors()}")
        wall, user, system, rss, status = (int(word) for word in line[1:])
        return Cost(wall / 1e9, (user + system) / 1e6, rss), status

    def stop(self) -> Cost:
        """Asks a server to end, and what it cost in all."""
        self._measure.send_signal(signal.SIGTERM)
        cost, _ = self.finish()
        return cost

    def alive(self) -> bool:
        return self._measure.poll() is None

    def kill(self) -> None:
        """Ends it and everything it started."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._measure.kill()
        self._measure.wait()


def busy_seconds() -> float:
    """Seconds that all processors of the machine have been busy since it started, for any program; in steps of 10 ms."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(word) for word in file.readline().split()[1:9]]
    user, nice, system, _idle, _iowait, interrupts, soft_interrupts, stolen = fields
    return (user + nice + system + interrupts + soft_interrupts + stolen) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(limit: float = 60.0) -> None:
    """Waits until other programs use less than a tenth of the processors, but no longer than `limit` seconds."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        busy, begin = busy_seconds(), time.monotonic()
        time.sleep(0.3)
        if (busy_seconds() - busy) / (time.monotonic() - begin) < 0.1 * (os.cpu_count() or 1):
            return


def end_cleanly_by_signals() -> None:
    """A signal that ends the tool becomes SystemExit: what was started is ended, and what was made is removed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))


def leftovers(parent: str) -> list[str]:
    """Files that killed runs have left in a directory."""
    names = os.listdir(parent) if os.path.isdir(parent) else []
    return [
        os.path.join(parent, name)
        for name in names
        if (process := name.removeprefix(PREFIX).partition("-")[0]).isdigit()
        and name.startswith(PREFIX)
        and not os.path.exists(f"/proc/{process}")
    ]


def remove_directory(path: str) -> None:
    """Removes a directory of the tool with all that is in it, also gigabytes of memory where it is in tmpfs. Loop devices over
    files there are detached first, and what is mounted there is unmounted."""

    def is_inside(other: str) -> bool:
        return other.startswith(path + "/")

    for name in os.listdir("/sys/block"):
        try:
            with open(f"/sys/block/{name}/loop/backing_file", encoding="utf-8") as file:
                if is_inside(file.read()):
                    subprocess.run(["losetup", "-d", f"/dev/{name}"], check=False)
        except OSError:
            pass
    with open("/proc/self/mounts", encoding="utf-8") as file:
        points = [line.split(" ")[1] for line in file]
    for point in reversed([point for point in points if is_inside(point)]):
        # A process that still uses it keeps it, but nothing here reaches it any more.
        subprocess.run(["umount", "--lazy", point], check=False)
    shutil.rmtree(path, ignore_errors=True)


class Lab:
    """The directory, the files and the programs of one run of the tool. `scale` divides the amounts of work."""

    def __init__(self, parent: str, diskferry: str | None, scale: int, before: str | None = None, disk: str | None = None):
        self.running: list[Program] = []
        self.diskferry = diskferry
        self.before = before
        self._before_flushes: bool | None = None
        self.scale = scale
        self.dir = self._directory(parent)
        self.disk = None
        if disk is not None:
            os.makedirs(disk, exist_ok=True)
            self.disk = self._directory(disk)
        atexit.register(self.close)
        self._sockets = 0

    @staticmethod
    def _directory(parent: str) -> str:
        for leftover in leftovers(parent):
            remove_directory(leftover)
        try:
            return tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent)
        except OSError as error:
            raise Failed(f"no directory can be made in {parent}: {error.strerror}") from None

    def __enter__(self) -> "Lab":
        try:
            self.peers = subprocess.run(
                [os.path.join(HERE, "peers")], stdout=subprocess.PIPE, check=True, text=True
            ).stdout.splitlines()
        except subprocess.CalledProcessError:
            raise Failed("the peers could not be prepared (bench/peers)") from None
        self.measure = self._compile("measure")
        self.limits = self._compile("limits")
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def kill_all(self) -> None:
        for program in self.running:
            program.kill()
        self.running.clear()

    def close(self) -> None:
        self.kill_all()
        remove_directory(self.dir)
        if self.disk:
            remove_directory(self.disk)

    def _compile(self, name: str) -> str:
        binary = os.path.join(self.dir, name)
        command = ["cc", "-O2", "-Wall", "-pthread", "-o", binary, os.path.join(HERE, f"{name}.c")]
        if subprocess.run(command, check=False).returncode != 0:
            raise Failed(f"{name}.c does not compile (is there a C compiler?)")
        return binary

    # Files

    def path(self, name: str) -> str:
        return os.path.join(self.dir, name)

    def need_free(self, size: int) -> None:
        status = os.statvfs(self.dir)
        if status.f_bavail * status.f_frsize < size:
            raise Failed(f"{self.dir} has less than {size // MIB} MiB free")
        with open("/proc/meminfo", encoding="ascii") as file:
            available = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable")) * 1024
        if available < size:
            raise Failed(f"this machine has less than {size // MIB} MiB of free memory")

    def random_file(self, size: int) -> str:
        """A file of random bytes; made once, shared by all works, never written by any of them."""
        path = self.path(f"random-{size}")
        if not os.path.exists(path):
            self.need_free(size)
            with open(path, "wb") as file:
                for _ in range(0, size, MIB):
                    file.write(os.urandom(MIB))
        return path

    def sparse_file(self, name: str, size: int) -> str:
        """A new file of zeroes that occupies nothing."""
        path = self.path(name)
        with open(path, "wb") as file:
            file.truncate(size)
        return path

    def comb(self, name: str, size: int) -> str:
        """A file in which 4 KiB of data and 4 KiB of hole take turns; made once."""
        path = self.path(name)
        if not os.path.exists(path):
            self.sparse_file(name, size)
            with open(path, "rb+") as file:
                for offset in range(0, size, 8 << 10):
                    file.seek(offset)
                    file.write(os.urandom(4 << 10))
        return path

    def teeth(self, name: str, size: int, count: int) -> str:
        """A file with so many extents of 4 KiB, apart from each other; made once."""
        path = self.path(name)
        if not os.path.exists(path):
            self.sparse_file(name, size)
            with open(path, "rb+") as file:
                for place in range(count):
                    file.seek(place * (size // count) // 8192 * 8192)
                    file.write(b"x" * 4096)
        return path

    def sparse_on_disk(self, name: str, size: int) -> str:
        """64 KiB of random bytes in each MiB, on a real disk, its pages cached; made once."""
        assert self.disk is not None
        path = os.path.join(self.disk, name)
        if not os.path.exists(path):
            with open(path, "wb") as file:
                file.truncate(size)
                for offset in range(0, size, MIB):
                    file.seek(offset)
                    file.write(os.urandom(64 << 10))
                file.flush()
                os.fsync(file.fileno())
        return path

    def on_disk(self, path: str) -> str:
        """A copy on a real disk, written back, its pages cached; made once."""
        assert self.disk is not None
        copy = os.path.join(self.disk, os.path.basename(path))
        if not os.path.exists(copy):
            shutil.copyfile(path, copy)
            with open(copy, "rb+") as file:
                os.fsync(file.fileno())
        return copy

    @staticmethod
    def forget(path: str) -> None:
        """Lets a file's pages go, so that it must be read from its disk."""
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    @staticmethod
    def warm(path: str) -> None:
        """Reads a file, so that its pages are cached. One without data has none."""
        if os.stat(path).st_blocks == 0:
            return
        with open(path, "rb") as file:
            while file.read(MIB):
                pass

    def copy_of(self, path: str) -> str:
        copy = self.path("copy")
        shutil.copyfile(path, copy)
        return copy

    def remove(self, *names: str) -> None:
        for name in names:
            if os.path.lexists(self.path(name)):
                os.unlink(self.path(name))

    def same(self, left: str, right: str) -> bool:
        filecmp.clear_cache()
        return filecmp.cmp(left, right, shallow=False)

    def warm_memory(self, size: int, on_disk: bool) -> None:
        """Makes `size` bytes of memory ready to be allocated quickly.

        A virtual machine may give freed memory back to its host, and then the first touch costs several times the copy
        itself, for the first process that comes. So memory is touched and freed just before it is needed: as a file in
        tmpfs takes it, or in huge pages, as the page cache of a file on a disk does.
        """
        if size == 0:
            return
        self.need_free(size)
        if on_disk:
            # More than is needed, since other free memory may be taken first. Shared memory would have no huge pages.
            with mmap.mmap(-1, size + size // 2, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
                memory.madvise(mmap.MADV_HUGEPAGE)
                for offset in range(0, len(memory), mmap.PAGESIZE):
                    memory[offset] = 1
            return
        block = bytes(MIB)
        with open(self.path("warm"), "wb") as file:
            for _ in range(0, size, MIB):
                file.write(block)
        self.remove("warm")

    # Programs

    def new_socket(self) -> str:
        self._sockets += 1
        return self.path(f"socket-{self._sockets}")

    def start_server(self, argv: list[str], peer: bool, path: str) -> Program:
        """Starts a server and waits until it greets."""
        server = Program(self, argv, peer)
        deadline = time.monotonic() + DEADLOCK_GUARD
        while True:
            if not server.alive():
                server.finish()
                raise Failed(f"{' '.join(argv)} ended at once: {server.errors()}")
            try:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(10)
                    connection.connect(path)
                    if connection.recv(8) == b"NBDMAGIC":
                        return server
            except OSError:
                pass
            if time.monotonic() > deadline:
                server.kill()
                raise Failed(f"{' '.join(argv)} does not answer on {path}")
            time.sleep(0.01)

    def run_client(self, argv: list[str], peer: bool, keep_output: bool = False) -> tuple[Cost, str]:
        """Runs a client to its end; its cost and output."""
        client = Program(self, argv, peer, keep_output)
        cost, status = client.finish()
        if status != 0:
            raise Failed(f"{' '.join(argv)} ended with status {status}: {client.errors()}")
        return cost, client.output() if keep_output else ""

    def before_flushes(self) -> bool:
        """Whether the older binary makes durable what it copies unless it is told not to."""
        if self._before_flushes is None:
            text = subprocess.run([self.before or "false", "copy", "--help"], capture_output=True, text=True, check=False).stdout
            self._before_flushes = "--no-flush" in text
        return self._before_flushes

    # The head of the report

    def machine(self) -> dict:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")
        return {
            "processor": model,
            "processors": os.cpu_count(),
            "kernel": platform.release(),
            "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB,
            "peers": self.peers,
            "diskferry": self._our_version(),
            "load": round(os.getloadavg()[0], 2),
        }

    def _our_version(self) -> str:
        if self.diskferry is None:
            return "not measured"
        version = subprocess.run([self.diskferry, "--version"], capture_output=True, text=True, check=False).stdout.strip()
        commit = subprocess.run(
            ["git", "-C", HERE, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
        ).stdout.strip()
        return f"{version or 'unknown version'} ({commit or 'no commit'})"
