"""Images and disks by name: what verbs of the command line do with one of them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from . import _native
from ._disks import Name, Progress, _naming, _pairs


class Measure(NamedTuple):
    """How large an image would be, in bytes."""

    required: int
    fully_allocated: int


def info(name: Name, *, format: Optional[str] = None, params: Optional[Mapping[str, object]] = None) -> dict[str, Any]:
    """What is known of an image, without reading its disk.

    Returns "format", "size", "cluster_size" (bytes or None), "backing", "backing_format", "data_files", "encrypted", "dirty",
    "corrupt", "snapshots" ("id", "name", "size", "seconds" since 1970) and "bitmaps" ("name", "granularity").
    """
    return _native.info(_naming(name, format, params=params))


def measure(
    format: str,
    *,
    source: Optional[Name] = None,
    size: Optional[int] = None,
    source_format: Optional[str] = None,
    options: Optional[Mapping[str, object]] = None,
    allow_external: Optional[Name] = None,
) -> Measure:
    """How large an image of `format` with these options would be: of the disk `source`, or an empty one of `size` bytes."""
    disk = None if source is None else _naming(source, source_format, (), allow_external)
    return Measure(*_native.measure(disk, size, format, _pairs(options)))


def check(name: Name, *, format: Optional[str] = None, repair: Optional[str] = None) -> Optional[dict[str, Any]]:
    """Whether the metadata of an image are sound. None: images of its format cannot be checked.

    repair: "leaks" or "all"; then the format has to be named, and what is returned is found afterwards.

    Returns "format", "corruptions", "leaks", "check_errors", "messages", "leaks_fixed" and "corruptions_fixed".
    """
    return _native.check(_naming(name, format), repair)


def create(
    name: Name,
    format: str,
    size: int,
    *,
    options: Optional[Mapping[str, object]] = None,
    force: bool = False,
) -> None:
    """Makes an empty disk or image of `size` bytes; an existing file becomes it. It is durable when this returns.

    options: the format's (cluster_size=, ...). Overlays are made by the verb: `diskferry create -b`.
    force: whether a block device that the system uses may be written.
    """
    _native.create(_naming(name, format, options=options), size, force)


def resize(name: Name, format: str, size: int, *, shrink: bool = False) -> None:
    """Gives a raw file, or the disk in a qcow2 image, another size in bytes. `shrink`: it may become smaller."""
    _native.resize(_naming(name, format), size, shrink)


def bitmap(
    name: Name,
    bitmap: str,
    action: str,
    *,
    format: str = "qcow2",
    granularity: Optional[int] = None,
    other: Optional[str] = None,
) -> None:
    """Changes a persistent bitmap: "add", "remove", "clear", "enable", "disable", or "merge" what is set in `other` into it."""
    _native.bitmap(_naming(name, format), bitmap, action, granularity, other)


def digest(
    name: Name,
    algorithm: str = "sha256",
    *,
    progress: Optional[Progress] = None,
    format: Optional[str] = None,
    filters: Sequence[str] = (),
    params: Optional[Mapping[str, object]] = None,
    allow_external: Optional[Name] = None,
) -> str:
    """The digest of what a disk holds: the same for one disk in all formats, as `diskferry digest` prints it."""
    return _native.digest(_naming(name, format, filters, allow_external, params), algorithm, progress)
