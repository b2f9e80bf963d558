"""An NBD export in asyncio: many commands in flight at a time, each of which may be cancelled."""

import asyncio
import os
from collections import deque
from typing import Any, Callable, Optional, TypeVar, Union

from . import nbd

Buffer = Union[bytes, bytearray, memoryview]

_Started = TypeVar("_Started")

# The most commands in flight.
_MOST = 1024


class Connection:
    """A connected export; `diskferry.connect` returns one. It belongs to the event loop that connected it.

    A command that was sent cannot be taken back: if it is cancelled, it is still carried out, and its reply is dropped.
    """

    def __init__(self, handle: nbd.NBD, loop: asyncio.AbstractEventLoop) -> None:
        self._handle = handle
        self._loop = loop
        self._fd = handle.aio_get_fd()
        self._writing = False
        self._closed = False
        self._flying = 0
        # Tasks that wait for room, and those that wait until nothing is in flight.
        self._queue: deque["asyncio.Future[None]"] = deque()
        self._idle: Optional["asyncio.Future[None]"] = None
        self.size: int = handle.get_size()
        """The size of the export in bytes."""
        loop.add_reader(self._fd, self._readable)

    @property
    def handle(self) -> nbd.NBD:
        """The handle below: for abilities and settings, not for commands."""
        return self._handle

    async def read(self, count: int, offset: int) -> bytearray:
        """Reads `count` bytes from `offset` on."""
        return await self._command(self._handle._aio_read, count, offset)

    async def readinto(self, buffer: Any, offset: int) -> None:
        """Reads into the memory of an object. If it is cancelled, the memory may still change until the reply has come."""
        await self._command(self._handle.aio_pread, buffer, offset)

    async def write(self, data: Buffer, offset: int, *, fua: bool = False) -> None:
        """Writes bytes, which must not change until it is done; with `fua` they are durable then."""
        flags = nbd.CMD_FLAG_FUA if fua else 0
        await self._command(self._handle.aio_pwrite, data, offset, flags=flags)

    async def zero(
        self, count: int, offset: int, *, punch: bool = True, fast: bool = False, fua: bool = False
    ) -> None:
        """Makes bytes read as zeroes. `punch`: they may become a hole. `fast`: fail if it would be as slow as writing."""
        flags = (0 if punch else nbd.CMD_FLAG_NO_HOLE) | (nbd.CMD_FLAG_FUA if fua else 0)
        flags |= nbd.CMD_FLAG_FAST_ZERO if fast else 0
        await self._command(self._handle.aio_zero, count, offset, flags=flags)

    async def trim(self, count: int, offset: int, *, fua: bool = False) -> None:
        """Trims bytes: they are not needed any more."""
        flags = nbd.CMD_FLAG_FUA if fua else 0
        await self._command(self._handle.aio_trim, count, offset, flags=flags)

    async def cache(self, count: int, offset: int) -> None:
        """Has the server prefetch bytes."""
        await self._command(self._handle.aio_cache, count, offset)

    async def flush(self) -> None:
        """Flushes: makes earlier changes durable."""
        await self._command(self._handle.aio_flush)

    async def block_status(
        self, count: int, offset: int
    ) -> dict[str, list[tuple[int, int]]]:
        """Lengths and flags from `offset` on for each selected context; perhaps not for the whole range."""
        found: dict[str, list[tuple[int, int]]] = {}

        def extent(context: str, _: int, entries: list[tuple[int, int]], __: Any) -> int:
            found[context] = entries
            return 0

        await self._command(self._handle.aio_block_status_64, count, offset, extent)
        return found

    async def close(self) -> None:
        """Disconnects when the replies to all commands have come, and closes the connection."""
        if self._closed:
            return
        self._closed = True
        # Those that wait for room raise.
        while self._queue:
            self._wake()
        if self._flying:
            self._idle = self._loop.create_future()
            await self._idle
        self._leave()
        handle = self._handle
        if handle.aio_is_ready() or handle.aio_is_processing():
            # Waiting for the server to disconnect would block the loop.
            await self._loop.run_in_executor(None, handle.shutdown)
        handle.close()

    async def _command(self, start: Callable[..., _Started], *args: Any, flags: int = 0) -> _Started:
        """Starts a command, and waits for its end. Returns what `start` did."""
        self._check_open()
        while self._flying >= _MOST:
            await self._room()
            self._check_open()
        future: "asyncio.Future[None]" = self._loop.create_future()

        def completion(error: Any) -> int:
            self._landed()
            if not future.done():
                errno = error.value
                if errno == 0:
                    future.set_result(None)
                else:
                    future.set_exception(_failure(errno))
            # No other task asks for it.
            return 1

        self._flying += 1
        try:
            started = start(*args, completion=completion, flags=flags)
        except BaseException:
            self._landed()
            raise
        if not self._writing and self._handle.aio_get_direction() & nbd.AIO_DIRECTION_WRITE:
            self._writing = True
            self._loop.add_writer(self._fd, self._writable)
        await future
        return started

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the connection is closed")

    async def _room(self) -> None:
        """Waits for its turn."""
        future: "asyncio.Future[None]" = self._loop.create_future()
        self._queue.append(future)
        try:
            await future
        except asyncio.CancelledError:
            # Its turn is the next one's.
            if not future.cancelled():
                self._wake()
            raise

    def _landed(self) -> None:
        """A command has ended."""
        self._flying -= 1
        if self._queue:
            self._wake()
        if self._flying == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _wake(self) -> None:
        while self._queue:
            future = self._queue.popleft()
            if not future.done():
                future.set_result(None)
                return

    def _readable(self) -> None:
        self._go_on(self._handle.aio_notify_read)

    def _writable(self) -> None:
        self._go_on(self._handle.aio_notify_write)

    def _go_on(self, notify: Callable[[], None]) -> None:
        try:
            notify()
            direction = self._handle.aio_get_direction()
        except nbd.Error:
            # The task that waits for a command gets the error.
            direction = 0
        if direction == 0:
            self._leave()
        elif self._writing and not direction & nbd.AIO_DIRECTION_WRITE:
            self._writing = False
            self._loop.remove_writer(self._fd)

    def _leave(self) -> None:
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._writing = False


def _failure(errno: int) -> nbd.Error:
    return nbd.Error(f"command failed: {os.strerror(errno)}", errno)


class connect:
    """Connects to an NBD URI:

        async with diskferry.connect("nbd://localhost") as disk:
            data = await disk.read(4096, 0)

    Or `disk = await diskferry.connect(uri)`, and `await disk.close()` at the end. `contexts` are those for block_status.
    """

    def __init__(self, uri: str, *, contexts: tuple[str, ...] = (), tls: bool = False) -> None:
        self._handle = nbd.NBD()
        self._uri = uri
        self._connection: Optional[Connection] = None
        if tls:
            self._handle.set_tls(nbd.TLS_REQUIRE)
        for context in contexts:
            self._handle.add_meta_context(context)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        # Looking up names and negotiating TLS would block the loop.
        await loop.run_in_executor(None, self._handle.connect_uri, self._uri)
        self._connection = Connection(self._handle, loop)
        return self._connection

    def __await__(self) -> Any:
        return self._connect().__await__()

    async def __aenter__(self) -> Connection:
        return await self._connect()

    async def __aexit__(self, *exception: object) -> None:
        if self._connection is not None:
            await self._connection.close()
