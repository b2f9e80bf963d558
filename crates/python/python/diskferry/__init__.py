"""diskferry: disks by name, and NBD.

    import diskferry

    with diskferry.open("disk.qcow2") as disk:
        print(disk.size, disk.read(512, 0))
    diskferry.convert("disk.qcow2", "disk.raw", "raw")
    with diskferry.serve("memory:1G") as uri:
        ...
    async with diskferry.connect(uri) as disk:
        await disk.read(512, 0)

`diskferry.nbd` is libnbd's module `nbd`. Offsets, counts and sizes are in bytes.
"""

from . import nbd
from ._disks import Comparison, Disk, Error, Extent, compare, convert, copy, open, serve
from ._images import Measure, bitmap, check, create, digest, info, measure, resize
from ._native import __version__
from .aio import Connection, connect

__all__ = [
    "Comparison",
    "Connection",
    "Disk",
    "Error",
    "Extent",
    "Measure",
    "__version__",
    "bitmap",
    "check",
    "compare",
    "connect",
    "convert",
    "copy",
    "create",
    "digest",
    "info",
    "measure",
    "nbd",
    "open",
    "resize",
    "serve",
]
