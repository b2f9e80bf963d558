"""Disks by name: opened, copied, compared and served."""

import html
import os
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from . import _native

Name = Union[str, "os.PathLike[str]"]
Progress = Callable[[int, int], object]


class Error(OSError):
    """A disk could not be opened, or an operation on it failed.

    `errno` is the number of the system call that failed, or else the nearest one, `strerror` says what was attempted, on what, and why it
    failed, and `kind` is a word that never changes, such as "NotFound", "ReadOnly", "NoSpace", "Disconnected" or "NotFast".

    Like an OSError it is of the class that Python has for its number, too: FileNotFoundError, PermissionError, FileExistsError,
    ConnectionRefusedError, ...; and a ValueError where an argument makes no sense (`kind` is "InvalidInput"), such as a digest that is not known.
    """

    __module__ = "diskferry"

    kind: str

    def __new__(cls, errno: int, text: str, kind: str = "Io") -> "Error":
        of_number = _InvalidInput if kind == "InvalidInput" else _CLASSES.get(type(OSError(errno, text)), cls)
        chosen = of_number if cls is Error else cls
        return OSError.__new__(chosen, errno, text)

    def __init__(self, errno: int, text: str, kind: str = "Io") -> None:
        super().__init__(errno, text)
        self.kind = kind

    def __str__(self) -> str:
        return str(self.strerror)


class _FileNotFound(Error, FileNotFoundError):
    pass


class _FileExists(Error, FileExistsError):
    pass


class _IsADirectory(Error, IsADirectoryError):
    pass


class _NotADirectory(Error, NotADirectoryError):
    pass


class _Permission(Error, PermissionError):
    pass


class _Timeout(Error, TimeoutError):
    pass


class _BrokenPipe(Error, BrokenPipeError):
    pass


class _ConnectionAborted(Error, ConnectionAbortedError):
    pass


class _ConnectionRefused(Error, ConnectionRefusedError):
    pass


class _ConnectionReset(Error, ConnectionResetError):
    pass


class _InvalidInput(Error, ValueError):
    pass


# By the class that Python has for an error number: the one that is both.
_CLASSES = {each.__bases__[1]: each for each in Error.__subclasses__()}


class _Naming(NamedTuple):
    """A disk's name and settings, for the native part."""

    name: str
    format: Optional[str]
    filters: list[str]
    external: Optional[str]
    params: list[tuple[str, str]]
    options: list[tuple[str, str]]
    compress: bool


class _Choices(NamedTuple):
    """How to copy, for the native part."""

    threads: Optional[int]
    connections: int
    sparse: int
    allocated: bool
    flush: bool
    force: bool
    target_is_zero: bool
    create: bool
    journal: Optional[str]
    digest: Optional[str]
    verify: bool
    offset: Optional[int] = None
    length: Optional[int] = None
    target_offset: Optional[int] = None
    changes: Optional[str] = None


def _pairs(given: Optional[Mapping[str, object]]) -> list[tuple[str, str]]:
    return [(key, _word(value)) for key, value in (given or {}).items()]


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _naming(
    name: Name,
    format: Optional[str] = None,
    filters: Sequence[str] = (),
    allow_external: Optional[Name] = None,
    params: Optional[Mapping[str, object]] = None,
    options: Optional[Mapping[str, object]] = None,
    compress: bool = False,
) -> _Naming:
    if isinstance(filters, str):
        raise TypeError("filters is a list of names")
    external = None if allow_external is None else os.fspath(allow_external)
    return _Naming(
        os.fspath(name), format, list(filters), external, _pairs(params), _pairs(options), compress
    )


class Extent(NamedTuple):
    """A run of bytes of one kind."""

    start: int
    """The first byte."""
    length: int
    """The number of bytes."""
    kind: str
    """"data"; "hole", which reads as zeroes and takes no space; or "zero", which reads as zeroes and takes space."""
    depth: int
    """The layer of the chain of images that it comes from; 0 is the opened one."""

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.start + self.length


class Comparison(NamedTuple):
    """The result of a comparison; true if both are the same."""

    same: bool
    what: Optional[str]
    """The kind of the first difference: "content", "allocation" or "size"."""
    offset: Optional[int]
    """Its offset, in bytes."""
    same_size: bool

    def __bool__(self) -> bool:
        return self.same


class Disk(_native.Disk):
    """An open disk: see `diskferry.open`. A `with` statement closes it at the end.

    Any thread may use it, and several may at a time.
    """

    def __enter__(self) -> "Disk":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.size

    def map(self, offset: int = 0, count: Optional[int] = None) -> Iterator[Extent]:
        """The extents from `offset` on, looked up one by one."""
        for start, length, kind, depth in self.extents(offset, count):
            yield Extent(start, length, kind, depth)

    def totals(self) -> dict[str, int]:
        """Bytes of each kind in the map."""
        totals = {"data": 0, "hole": 0, "zero": 0}
        for extent in self.map():
            totals[extent.kind] += extent.length
        return totals

    def plot(self, axes: Any = None, *, width: int = 512) -> Any:
        """Draws the map with matplotlib: a row of `width` parts, the darker the more data. Returns the axes."""
        try:
            import matplotlib.pyplot as plt  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError as error:
            raise ImportError("plot() needs matplotlib: pip install matplotlib") from error
        if axes is None:
            _, axes = plt.subplots(figsize=(9, 1.2))
        data, zero = _shares(self, width)
        size = max(self.size, 1)
        step = size / max(len(data), 1)
        left = [index * step for index in range(len(data))]
        axes.bar(left, [1] * len(data), step, align="edge", color="#e8edf3")
        axes.bar(left, zero, step, align="edge", color="#a9bdd6", label="zero")
        axes.bar(left, data, step, align="edge", bottom=zero, color="#2b5c9e", label="data")
        axes.set_xlim(0, size)
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        axes.set_xlabel("bytes")
        axes.set_title(f"{self.name} ({self.format}, {_size(self.size)})", fontsize="medium")
        return axes

    def __repr__(self) -> str:
        if self.closed:
            return f"<diskferry.Disk {self.name!r}, closed>"
        return f"<diskferry.Disk {self.name!r}, {self.format}, {self.size} bytes>"

    def _repr_html_(self) -> str:
        """For notebooks: facts, and the map as a self-contained picture."""
        if self.closed:
            return f"<p>{html.escape(repr(self))}</p>"
        data, zero = _shares(self, 256)
        bars = "".join(_bars(data, zero))
        totals = self.totals()
        facts = ", ".join(f"{_size(count)} {kind}" for kind, count in totals.items() if count)
        name = html.escape(self.name)
        return (
            f"<div><b>{name}</b> ({html.escape(self.format)}, {_size(self.size)}): {facts}"
            f'<svg viewBox="0 0 {max(len(data), 1)} 16" width="100%" height="24" '
            f'preserveAspectRatio="none" role="img"><title>map of {name}</title>'
            f'<rect width="{max(len(data), 1)}" height="16" fill="#e8edf3"/>{bars}</svg></div>'
        )


def _shares(disk: Disk, width: int) -> tuple[list[float], list[float]]:
    """A disk in at most `width` steps: how much of each is data, and how much is zero."""
    size = disk.size
    width = max(1, min(width, size))
    shares: dict[str, list[float]] = {kind: [0.0] * width for kind in ("data", "zero", "hole")}
    if size == 0:
        return shares["data"], shares["zero"]
    for extent in disk.map():
        share = shares[extent.kind]
        first, last = extent.start * width // size, (extent.end - 1) * width // size
        for step in range(first, last + 1):
            begin, end = size * step // width, size * (step + 1) // width
            common = min(extent.end, end) - max(extent.start, begin)
            if common > 0:
                share[step] += common / max(end - begin, 1)
    return shares["data"], shares["zero"]


def _bars(data: list[float], zero: list[float]) -> Iterator[str]:
    """Rectangles, one for adjoining steps that look alike."""
    start = 0
    looks = [(round(16 * d), round(16 * z)) for d, z in zip(data, zero)]
    for end in range(1, len(looks) + 1):
        if end < len(looks) and looks[end] == looks[start]:
            continue
        dark, pale = looks[start]
        if dark:
            yield _bar(start, end, dark, 16 - dark, "#2b5c9e")
        if pale:
            yield _bar(start, end, pale, 16 - dark - pale, "#a9bdd6")
        start = end


def _bar(start: int, end: int, height: int, top: int, color: str) -> str:
    return f'<rect x="{start}" y="{top}" width="{end - start}" height="{height}" fill="{color}"/>'


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} EiB"


def open(
    name: Name,
    *,
    write: bool = False,
    format: Optional[str] = None,
    filters: Sequence[str] = (),
    params: Optional[Mapping[str, object]] = None,
    allow_external: Optional[Name] = None,
    lock: bool = True,
    force: bool = False,
    connections: int = 1,
) -> Disk:
    """Opens anything that the command line can name: a path, a URI, or `DEVICE:ARG?key=value`.

    format: the image's ("raw", "qcow2", ...). Without it, it is guessed for reading, and never for writing.
    filters: `NAME?key=value` each, the first one nearest to the user.
    params: the format's parameters (snapshot=, ...).
    allow_external: the directory in which images may name files, or "chain" to allow any file that they name.
    lock: whether to lock it, so that no other program that honours locks changes it.
    force: whether a block device that the system uses may be written.
    connections: the most connections to a server, from 1 to 64.

    Raises diskferry.Error.
    """
    naming = _naming(name, format, filters, allow_external, params)
    return Disk(naming, write, lock, force, connections)


def copy(
    source: Name,
    target: Name,
    *,
    progress: Optional[Progress] = None,
    source_format: Optional[str] = "raw",
    source_filters: Sequence[str] = (),
    target_filters: Sequence[str] = (),
    source_params: Optional[Mapping[str, object]] = None,
    allow_external: Optional[Name] = None,
    threads: Optional[int] = None,
    connections: int = 8,
    sparse: int = 4096,
    allocated: bool = False,
    target_is_zero: bool = False,
    flush: bool = True,
    force: bool = False,
    offset: Optional[int] = None,
    length: Optional[int] = None,
    target_offset: Optional[int] = None,
    journal: Optional[Name] = None,
    digest: Optional[str] = None,
    verify: bool = False,
    changes: Optional[Name] = None,
) -> dict[str, Any]:
    """Copies a disk to another, which is created if it does not exist.

    progress: called now and then with the bytes done and the total; an exception that it raises stops the copy.
    sparse: the block size in which to look for zeroes, in bytes; 0: do not look.
    allocated: leave no holes in the target.
    target_is_zero: the target is known to read as zeroes.
    flush: make the target durable.
    offset, length, target_offset: only this range of the source, in bytes, to this offset of the target (default: the same),
        which keeps all its other bytes.
    journal: a file in which it is noted what has become durable: the same call goes on where a copy was stopped.
    digest: the digest of what was copied is wanted, for example "sha256" (see `diskferry digest --algorithm`).
    verify: what was written is read back and compared; "verified" is then in the statistics.
    changes: only what changed since is copied into a target that exists: "bitmap:NAME" of the source, or a file that lists it.

    Returns statistics: "total", "copied", "zeroed", "skipped" bytes, "seconds", and "digest" if it was wanted. Raises
    diskferry.Error; then a target that it created is removed, unless there is a journal.
    """
    naming = _naming(source, source_format, source_filters, allow_external, source_params)
    made = _naming(target, "raw", target_filters)
    choices = _Choices(
        threads,
        connections,
        sparse,
        allocated,
        flush,
        force,
        target_is_zero,
        True,
        None if journal is None else os.fspath(journal),
        digest,
        verify,
        offset,
        length,
        target_offset,
        None if changes is None else os.fspath(changes),
    )
    return _native.copy(naming, made, choices, progress)


def convert(
    source: Name,
    target: Name,
    format: str,
    *,
    progress: Optional[Progress] = None,
    options: Optional[Mapping[str, object]] = None,
    compress: bool = False,
    source_format: Optional[str] = None,
    source_filters: Sequence[str] = (),
    target_filters: Sequence[str] = (),
    source_params: Optional[Mapping[str, object]] = None,
    allow_external: Optional[Name] = None,
    threads: Optional[int] = None,
    connections: int = 8,
    sparse: int = 4096,
    allocated: bool = False,
    target_is_zero: bool = False,
    flush: bool = True,
    force: bool = False,
    create: bool = True,
    journal: Optional[Name] = None,
    digest: Optional[str] = None,
    verify: bool = False,
) -> dict[str, Any]:
    """Copies a disk into a new image of `format`; the rest is as in `copy`.

    options: the format's options for a new image (cluster_size=, ...).
    compress: whether the new image is compressed.
    source_format: without it, it is guessed.
    create: whether the image is made. Otherwise it is there, and written where it lies (as by `convert -n`): it keeps its
        options and size, and what lies behind the end of the source.
    """
    naming = _naming(source, source_format, source_filters, allow_external, source_params)
    made = _naming(target, format, target_filters, allow_external, None, options, compress)
    choices = _Choices(
        threads,
        connections,
        sparse,
        allocated,
        flush,
        force,
        target_is_zero,
        create,
        None if journal is None else os.fspath(journal),
        digest,
        verify,
    )
    return _native.copy(naming, made, choices, progress)


def compare(
    first: Name,
    second: Name,
    *,
    strict: bool = False,
    progress: Optional[Progress] = None,
    first_format: Optional[str] = None,
    second_format: Optional[str] = None,
    allow_external: Optional[Name] = None,
) -> Comparison:
    """Compares two disks; if one is longer, the rest of it must read as zeroes.

    strict: sizes and maps (data, zeroes, holes) must be the same too.
    progress: called now and then with the bytes done and the total.
    """
    ends = (
        _naming(first, first_format, (), allow_external),
        _naming(second, second_format, (), allow_external),
    )
    return Comparison(*_native.compare(*ends, strict, progress))


@contextmanager
def serve(
    name: Name,
    *,
    export: str = "",
    read_only: bool = False,
    format: Optional[str] = "raw",
    filters: Sequence[str] = (),
    params: Optional[Mapping[str, object]] = None,
    allow_external: Optional[Name] = None,
    unix: Optional[Name] = None,
    tcp: Optional[tuple[str, int]] = None,
) -> Iterator[str]:
    """Serves a disk over NBD from this process during the `with` statement, which gives the URI.

    export: the name of the export; it is also the default export.
    unix, tcp: a path, or a host and a port (0: any free port), to listen on. Without them it listens on a private Unix socket.
    """
    naming = _naming(name, format, filters, allow_external, params)
    server = _native.Server(naming, export, read_only, unix, tcp)
    try:
        yield server.uri
    finally:
        server.stop()
