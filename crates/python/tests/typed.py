"""Programs as users write them: mypy --strict finds nothing in them, and they run."""

import asyncio
from ctypes import c_int

import diskferry
import diskferry.nbd as nbd


def synchronous(uri: str) -> int:
    h = nbd.NBD()
    h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    h.connect_uri(uri)
    data: bytearray = h.pread(512, 0)
    h.pwrite(data, 0, nbd.CMD_FLAG_FUA)
    found: list[int] = []

    def extent(context: str, offset: int, entries: list[int], error: c_int) -> int:
        found.extend(entries)
        return 0

    h.block_status(h.get_size(), 0, extent)
    buffer = nbd.Buffer(4096)
    done: list[int] = []

    def completion(error: c_int) -> int:
        done.append(error.value)
        return 1

    h.aio_pread(buffer, 0, completion)
    while h.aio_in_flight():
        h.poll(-1)
    try:
        h.pread(512, h.get_size())
    except nbd.Error as error:
        name: str | None = error.errno
        assert name == "EINVAL" and error.errnum and error.string
    h.shutdown()
    return sum(found[0::2])


async def asynchronous(uri: str) -> bytearray:
    async with diskferry.connect(uri, contexts=("base:allocation",)) as disk:
        await disk.write(b"hello", 0)
        first, _ = await asyncio.gather(disk.read(5, 0), disk.read(4096, 4096))
        status: dict[str, list[tuple[int, int]]] = await disk.block_status(disk.size, 0)
        assert status
        return first


def disks(uri: str, path: str) -> diskferry.Comparison:
    with diskferry.open(uri, write=True, format="raw") as disk:
        disk.write(memoryview(b"hello"), 512)
        kinds: set[str] = {extent.kind for extent in disk.map()}
        assert "data" in kinds

    def progress(done: int, total: int) -> None:
        assert 0 <= done <= total

    diskferry.copy(uri, path, progress=progress)
    return diskferry.compare(uri, path, first_format="raw", second_format="raw")
