"""The native part of the package diskferry. Import diskferry or diskferry.nbd instead."""

from ctypes import c_int
from os import PathLike
from typing import Any, Callable, Iterator, Protocol

__version__: str

_Path = str | PathLike[str]
# Any object with a buffer: bytes, bytearrays, memoryviews, arrays of NumPy, and Buffer. What cannot be written raises BufferError.
_Readable = Any
_Writable = Any
_Completion = Callable[[c_int], object]
_Chunk = Callable[[memoryview, int, int, c_int], object]
_Extent = Callable[[str, int, list[int], c_int], object]
_Extent64 = Callable[[str, int, list[tuple[int, int]], c_int], object]
_Debug = Callable[[str, str], object]
_Progress = Callable[[int, int], object]

class _Naming(Protocol):
    @property
    def name(self) -> str: ...

class _Choices(Protocol):
    @property
    def connections(self) -> int: ...

class NBD:
    """A connection to an NBD server: the methods are those of libnbd's class of the same name."""

    def __init__(self) -> None: ...
    def close(self) -> None:
        """Closes the connection at once. Any later call raises ClosedHandle."""
    def set_debug(self, debug: object) -> None:
        """Whether to report debug messages: to the callback, or on standard error."""
    def get_debug(self) -> bool:
        """The value of `set_debug`."""
    def set_debug_callback(self, debug: _Debug) -> None:
        """Calls `debug(context, message)` for each message, instead of printing it."""
    def clear_debug_callback(self) -> None:
        """Prints messages again."""
    def set_handle_name(self, handle_name: str) -> None:
        """The name of this handle in messages."""
    def get_handle_name(self) -> str:
        """The name of this handle in messages."""
    def set_private_data(self, private_data: int) -> int:
        """Stores a number for the program; returns the previous one."""
    def get_private_data(self) -> int:
        """The value of `set_private_data`."""
    def get_handle_size(self) -> int:
        """Bytes of this handle itself."""
    def set_export_name(self, export_name: str) -> None:
        """The name of the export; the empty name is the server's default. At most 4096 bytes."""
    def get_export_name(self) -> str:
        """The name of the export."""
    def set_request_block_size(self, request: object) -> None:
        """Whether to ask the server for its block size constraints, which promises to keep to them. Default: True."""
    def get_request_block_size(self) -> bool:
        """What `set_request_block_size` set."""
    def set_full_info(self, request: object) -> None:
        """Whether to ask the server for the name and the description of the export. Default: False."""
    def get_full_info(self) -> bool:
        """What `set_full_info` set."""
    def set_tls(self, tls: int) -> None:
        """TLS_DISABLE, TLS_ALLOW (clear text, if the server has no TLS) or TLS_REQUIRE."""
    def get_tls(self) -> int:
        """What `set_tls` set."""
    def set_tls_certificates(self, dir: _Path) -> None:
        """The directory of `ca-cert.pem`, and of `client-cert.pem` and `client-key.pem` if the server asks for them."""
    def set_tls_verify_peer(self, verify: object) -> None:
        """Whether to verify the server's certificate. Default: True."""
    def get_tls_verify_peer(self) -> bool:
        """What `set_tls_verify_peer` set."""
    def set_tls_username(self, username: str) -> None:
        """The name whose key to use from the key file. Default: the name of the user."""
    def get_tls_username(self) -> str:
        """What `set_tls_username` set."""
    def set_tls_hostname(self, hostname: str) -> None:
        """The host that the certificate must name. Default: the host of the connection."""
    def get_tls_hostname(self) -> str:
        """What `set_tls_hostname` set."""
    def set_tls_psk_file(self, filename: _Path) -> None:
        """The file of pre-shared keys, in lines `user:hexadecimal`."""
    def set_tls_priority(self, priority: str) -> None:
        """Stored, but not used: this library does not use GnuTLS's priorities."""
    def get_tls_priority(self) -> str:
        """What `set_tls_priority` set."""
    def set_request_extended_headers(self, request: object) -> None:
        """Whether to ask for extended headers (64-bit lengths). Default: True."""
    def get_request_extended_headers(self) -> bool:
        """What `set_request_extended_headers` set."""
    def set_request_structured_replies(self, request: object) -> None:
        """Whether to ask for structured replies. Default: True."""
    def get_request_structured_replies(self) -> bool:
        """What `set_request_structured_replies` set."""
    def set_request_meta_context(self, request: object) -> None:
        """Whether `opt_go` and `opt_info` ask for the contexts of `add_meta_context`. Default: True."""
    def get_request_meta_context(self) -> bool:
        """What `set_request_meta_context` set."""
    def set_handshake_flags(self, flags: int) -> None:
        """The handshake flags to accept from the server."""
    def get_handshake_flags(self) -> int:
        """What `set_handshake_flags` set."""
    def set_pread_initialize(self, request: object) -> None:
        """Stored, but not used: a successful read has always set every byte."""
    def get_pread_initialize(self) -> bool:
        """What `set_pread_initialize` set."""
    def set_strict_mode(self, flags: int) -> None:
        """The checks before a command is sent, a sum of STRICT_ bits; 0 sends every command unchecked."""
    def get_strict_mode(self) -> int:
        """What `set_strict_mode` set."""
    def set_opt_mode(self, enable: object) -> None:
        """Whether the handshake stops in option mode, for options one by one."""
    def get_opt_mode(self) -> bool:
        """What `set_opt_mode` set."""
    def add_meta_context(self, name: str) -> None:
        """Adds a context to select; base:allocation is the map."""
    def get_nr_meta_contexts(self) -> int:
        """The number of contexts to select."""
    def get_meta_context(self, i: int) -> str:
        """One of the contexts to select."""
    def clear_meta_contexts(self) -> None:
        """Clears the contexts to select."""
    def set_uri_allow_transports(self, mask: int) -> None:
        """The transports that a URI may name, a sum of ALLOW_TRANSPORT_ bits."""
    def set_uri_allow_tls(self, tls: int) -> None:
        """Whether a URI may (TLS_ALLOW), must (TLS_REQUIRE) or must not (TLS_DISABLE) ask for TLS."""
    def set_uri_allow_tls_priority(self, allow: object) -> None:
        """Whether a URI may set the priority of TLS. Default: True."""
    def set_uri_allow_local_file(self, allow: object) -> None:
        """Whether a URI may name files of this machine, for TLS. Default: False."""
    def set_socket_activation_name(self, socket_name: str) -> None:
        """The name of the socket for a server that is started by socket activation."""
    def get_socket_activation_name(self) -> str:
        """What `set_socket_activation_name` set."""
    def connect_uri(self, uri: str) -> None:
        """Connects to an NBD URI (nbd, nbds, nbd+unix, nbds+unix, nbd+vsock, nbds+vsock), and waits until it can be used."""
    def connect_unix(self, unixsocket: _Path) -> None:
        """Connects to a Unix socket by its path."""
    def connect_vsock(self, cid: int, port: int) -> None:
        """Connects to a port of a virtual machine, or of its host (2)."""
    def connect_tcp(self, hostname: str, port: str) -> None:
        """Connects to a host by its name or address, and a port by its number or name."""
    def connect_socket(self, sock: int) -> None:
        """Takes over a connected socket by its descriptor, and closes it at the end."""
    def connect_command(self, argv: list[str]) -> None:
        """Starts a server that speaks on its standard input and output (`nbdkit -s`); it ends with this."""
    def connect_systemd_socket_activation(self, argv: list[str]) -> None:
        """Starts a server by systemd's socket activation (qemu-nbd, nbdkit), and connects to it; it ends with this."""
    def aio_connect_uri(self, uri: str) -> None:
        """Starts to connect to a URI."""
    def aio_connect(self, addr: _Path | tuple[str, int]) -> None:
        """Starts to connect to an address as in Python's socket module: a path, or a host and a port."""
    def aio_connect_unix(self, unixsocket: _Path) -> None:
        """Starts to connect to a Unix socket."""
    def aio_connect_vsock(self, cid: int, port: int) -> None:
        """Connects to a port of a virtual machine; this waits until the machine answers."""
    def aio_connect_tcp(self, hostname: str, port: str) -> None:
        """Starts to connect to a host."""
    def aio_connect_socket(self, sock: int) -> None:
        """Takes over a connected socket."""
    def aio_connect_command(self, argv: list[str]) -> None:
        """Starts a server that speaks on its standard input and output."""
    def aio_connect_systemd_socket_activation(self, argv: list[str]) -> None:
        """Starts a server by systemd's socket activation."""
    def opt_go(self) -> None:
        """Opens the export and ends option mode."""
    def opt_abort(self) -> None:
        """Disconnects from the server."""
    def opt_starttls(self) -> bool:
        """Asks for TLS; returns whether the server agreed."""
    def opt_extended_headers(self) -> bool:
        """Asks for extended headers; returns whether the server agreed."""
    def opt_structured_reply(self) -> bool:
        """Asks for structured replies; returns whether the server agreed."""
    def opt_list(self, list: Callable[[str, str], object]) -> int:
        """Calls `list(name, description)` for each export; returns how many there are."""
    def opt_info(self) -> None:
        """Asks about the export without opening it."""
    def opt_list_meta_context(self, context: Callable[[str], object]) -> int:
        """Calls `context(name)` for each context of the server that `add_meta_context` names, or for all."""
    def opt_list_meta_context_queries(self, queries: list[str], context: Callable[[str], object]) -> int:
        """The same, for the given queries."""
    def opt_set_meta_context(self, context: Callable[[str], object]) -> int:
        """Selects the contexts of `add_meta_context`, and calls `context(name)` for each that the server accepts."""
    def opt_set_meta_context_queries(self, queries: list[str], context: Callable[[str], object]) -> int:
        """The same, for the given queries."""
    def aio_opt_go(self, completion: _Completion | None = None) -> None:
        """As `opt_go`; calls `completion(error)` at its end."""
    def aio_opt_abort(self) -> None:
        """As `opt_abort`."""
    def aio_opt_starttls(self, completion: _Completion | None = None) -> None:
        """As `opt_starttls`; calls `completion(error)` at its end."""
    def aio_opt_extended_headers(self, completion: _Completion | None = None) -> None:
        """As `opt_extended_headers`; calls `completion(error)` at its end."""
    def aio_opt_structured_reply(self, completion: _Completion | None = None) -> None:
        """As `opt_structured_reply`; calls `completion(error)` at its end."""
    def aio_opt_list(self, list: Callable[[str, str], object], completion: _Completion | None = None) -> None:
        """As `opt_list`; calls `completion(error)` at its end."""
    def aio_opt_info(self, completion: _Completion | None = None) -> None:
        """As `opt_info`; calls `completion(error)` at its end."""
    def aio_opt_list_meta_context(self, context: Callable[[str], object], completion: _Completion | None = None) -> None:
        """As `opt_list_meta_context`; calls `completion(error)` at its end."""
    def aio_opt_list_meta_context_queries(self, queries: list[str], context: Callable[[str], object], completion: _Completion | None = None) -> None:
        """As `opt_list_meta_context_queries`; calls `completion(error)` at its end."""
    def aio_opt_set_meta_context(self, context: Callable[[str], object], completion: _Completion | None = None) -> None:
        """As `opt_set_meta_context`; calls `completion(error)` at its end."""
    def aio_opt_set_meta_context_queries(self, queries: list[str], context: Callable[[str], object], completion: _Completion | None = None) -> None:
        """As `opt_set_meta_context_queries`; calls `completion(error)` at its end."""
    def is_read_only(self) -> bool:
        """Whether the export cannot be written."""
    def can_flush(self) -> bool:
        """Whether the server can flush."""
    def can_fua(self) -> bool:
        """Whether the server supports FUA: writes that are durable before their reply."""
    def is_rotational(self) -> bool:
        """Whether the disk is rotational."""
    def can_trim(self) -> bool:
        """Whether the server can trim."""
    def can_zero(self) -> bool:
        """Whether the server can zero."""
    def can_fast_zero(self) -> bool:
        """Whether the server can refuse a zero that would be slow."""
    def can_block_status_payload(self) -> bool:
        """Whether block status can be limited to some contexts."""
    def can_df(self) -> bool:
        """Whether a read can ask for a reply in one piece."""
    def can_multi_conn(self) -> bool:
        """Whether a flush covers all connections."""
    def can_cache(self) -> bool:
        """Whether the server can prefetch."""
    def can_meta_context(self, metacontext: str) -> bool:
        """Whether a context was selected."""
    def get_protocol(self) -> str:
        """"oldstyle", "newstyle" or "newstyle-fixed"."""
    def get_size(self) -> int:
        """The size of the export in bytes."""
    def get_block_size(self, size_type: int) -> int:
        """A block size limit of the server in bytes: SIZE_MINIMUM, SIZE_PREFERRED, SIZE_MAXIMUM or SIZE_PAYLOAD; 0 if it gives none."""
    def get_canonical_export_name(self) -> str:
        """The server's name for the export."""
    def get_export_description(self) -> str:
        """The server's description of the export."""
    def get_tls_negotiated(self) -> bool:
        """Whether the connection is encrypted."""
    def get_extended_headers_negotiated(self) -> bool:
        """Whether extended headers were negotiated."""
    def get_structured_replies_negotiated(self) -> bool:
        """Whether structured replies were negotiated."""
    def get_uri(self) -> str:
        """A URI that leads to the same export."""
    def is_uri(self, uri: str) -> bool:
        """Whether a text looks like an NBD URI. Nothing is connected."""
    def get_package_name(self) -> str:
        """The name of this package."""
    def get_version(self) -> str:
        """The version of this package."""
    def get_version_extra(self) -> str:
        """The distribution's addition to the version: always empty."""
    def supports_tls(self) -> bool:
        """Whether TLS is built in."""
    def supports_vsock(self) -> bool:
        """Whether vsock is supported: yes."""
    def supports_uri(self) -> bool:
        """Whether URIs are supported: yes."""
    def get_subprocess_pid(self) -> int:
        """The process ID of the server, if this handle started it."""
    def kill_subprocess(self, signum: int) -> None:
        """Sends the server a signal, if this handle started it; 0 is SIGTERM."""
    def stats_bytes_sent(self) -> int:
        """Bytes sent."""
    def stats_chunks_sent(self) -> int:
        """Options and requests sent."""
    def stats_bytes_received(self) -> int:
        """Bytes received."""
    def stats_chunks_received(self) -> int:
        """Replies and chunks of replies received."""
    def pread(self, count: int, offset: int, flags: int = 0) -> bytearray:
        """Reads `count` bytes from `offset` on."""
    def pread_into(self, buf: _Writable, offset: int, flags: int = 0) -> None:
        """Reads into the memory of an object: a bytearray, a memoryview, a NumPy array. Not in libnbd."""
    def pread_structured(self, count: int, offset: int, chunk: _Chunk, flags: int = 0) -> bytearray:
        """Reads, and calls `chunk(bytes, offset, status, error)` for each piece as it arrives: READ_DATA, READ_HOLE or READ_ERROR."""
    def pwrite(self, buf: _Readable, offset: int, flags: int = 0) -> None:
        """Writes bytes at `offset`; with CMD_FLAG_FUA they are durable before this returns."""
    def flush(self, flags: int = 0) -> None:
        """Flushes: makes earlier writes durable."""
    def trim(self, count: int, offset: int, flags: int = 0) -> None:
        """Trims bytes: they are not needed any more, and their contents are then undefined."""
    def cache(self, count: int, offset: int, flags: int = 0) -> None:
        """Has the server prefetch bytes."""
    def zero(self, count: int, offset: int, flags: int = 0) -> None:
        """Makes bytes read as zeroes. CMD_FLAG_NO_HOLE keeps them allocated; with CMD_FLAG_FAST_ZERO this fails if it would be as slow as writing."""
    def block_status(self, count: int, offset: int, extent: _Extent, flags: int = 0) -> None:
        """Calls `extent(context, offset, entries, error)` for each context: entries are lengths and flags in turn."""
    def block_status_64(self, count: int, offset: int, extent64: _Extent64, flags: int = 0) -> None:
        """The same, with entries that are pairs of length and flags."""
    def block_status_filter(self, count: int, offset: int, contexts: list[str], extent64: _Extent64, flags: int = 0) -> None:
        """The same, for some of the selected contexts."""
    def aio_pread(self, buf: _Writable, offset: int, completion: _Completion | None = None, flags: int = 0) -> int:
        """Starts a read into a Buffer, or the memory of an object. Returns a cookie. Calls `completion(error)` at the end; if that returns 1, the command is retired."""
    def _aio_read(self, count: int, offset: int, completion: _Completion, flags: int = 0) -> bytearray:
        """Starts a read into a bytearray of its own, which holds any bytes until the read is over."""
    def aio_pread_structured(self, buf: _Writable, offset: int, chunk: _Chunk, completion: _Completion | None = None, flags: int = 0) -> int:
        """The same, and calls `chunk` like `pread_structured`."""
    def aio_pwrite(self, buf: _Readable, offset: int, completion: _Completion | None = None, flags: int = 0) -> int:
        """Starts a write. The bytes must not change until its end."""
    def aio_flush(self, completion: _Completion | None = None, flags: int = 0) -> int:
        """Starts a flush."""
    def aio_trim(self, count: int, offset: int, completion: _Completion | None = None, flags: int = 0) -> int:
        """Starts a trim."""
    def aio_cache(self, count: int, offset: int, completion: _Completion | None = None, flags: int = 0) -> int:
        """Starts a prefetch."""
    def aio_zero(self, count: int, offset: int, completion: _Completion | None = None, flags: int = 0) -> int:
        """Starts a zero."""
    def aio_block_status(self, count: int, offset: int, extent: _Extent, completion: _Completion | None = None, flags: int = 0) -> int:
        """Starts a block status request, like `block_status`."""
    def aio_block_status_64(self, count: int, offset: int, extent64: _Extent64, completion: _Completion | None = None, flags: int = 0) -> int:
        """Starts a block status request, like `block_status_64`."""
    def aio_block_status_filter(self, count: int, offset: int, contexts: list[str], extent64: _Extent64, completion: _Completion | None = None, flags: int = 0) -> int:
        """Starts a block status request, like `block_status_filter`."""
    def poll(self, timeout: int) -> int:
        """Waits for the socket, at most `timeout` milliseconds (for ever with -1), and makes progress. Returns 0 on timeout, else 1."""
    def poll2(self, fd: int, timeout: int) -> int:
        """The same, and also returns when the other descriptor `fd` is readable."""
    def aio_get_fd(self) -> int:
        """The descriptor of the socket, only for polling in the direction of `aio_get_direction`."""
    def aio_get_direction(self) -> int:
        """The direction to poll: AIO_DIRECTION_READ, AIO_DIRECTION_WRITE, both, or 0."""
    def aio_notify_read(self) -> None:
        """Call this when the socket is readable."""
    def aio_notify_write(self) -> None:
        """Call this when the socket is writable."""
    def aio_is_created(self) -> bool:
        """Whether the handle is new and not connected yet."""
    def aio_is_connecting(self) -> bool:
        """Whether it is connecting, or an option is in flight."""
    def aio_is_negotiating(self) -> bool:
        """Whether options may be sent."""
    def aio_is_ready(self) -> bool:
        """Whether commands may be sent and no message is partly sent or received."""
    def aio_is_processing(self) -> bool:
        """Whether a command or reply is partly sent or received; commands may be sent."""
    def aio_is_dead(self) -> bool:
        """Whether an error has ended the connection."""
    def aio_is_closed(self) -> bool:
        """Whether the connection was closed normally."""
    def aio_command_completed(self, cookie: int) -> bool:
        """Whether a command has ended; if so, it is retired. A failed one raises its error."""
    def aio_peek_command_completed(self) -> int:
        """The cookie of a command that has ended and was not retired; 0 if all are in flight."""
    def aio_in_flight(self) -> int:
        """The number of commands in flight."""
    def connection_state(self) -> str:
        """The state, in words."""
    def aio_disconnect(self, flags: int = 0) -> None:
        """Tells the server that no more commands come. It answers those in flight first."""
    def shutdown(self, flags: int = 0) -> None:
        """Disconnects, and waits until the connection is closed."""

class Buffer:
    """A buffer for asynchronous commands: room for `len` bytes, which are zero at first."""

    def __init__(self, len: int) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: Any) -> Any: ...
    def __setitem__(self, key: Any, value: Any) -> None: ...
    @staticmethod
    def from_buffer(buf: _Readable) -> Buffer:
        """Shares the memory of any object with a buffer: reads go into it."""
    @staticmethod
    def from_bytearray(ba: Any) -> Buffer:
        """Copies bytes, or anything that `bytearray()` accepts."""
    def to_buffer(self) -> Any:
        """The memory itself: changes are seen on both sides."""
    def to_bytearray(self) -> bytearray:
        """A copy of the bytes."""
    def size(self) -> int:
        """The number of bytes."""
    def is_zero(self, offset: int = 0, size: int = -1) -> bool:
        """Whether `size` bytes from `offset` on are all zero; -1 means to the end."""

class Disk:
    """A disk that is open."""

    def __init__(self, naming: _Naming, write: bool, lock: bool, force: bool, connections: int) -> None: ...
    @property
    def name(self) -> str:
        """The disk's name, for messages."""
    @property
    def size(self) -> int:
        """The size of the disk in bytes."""
    @property
    def format(self) -> str:
        """The format of the image, or "raw"."""
    @property
    def writable(self) -> bool:
        """Whether it is writable."""
    @property
    def closed(self) -> bool:
        """Whether it is closed."""
    @property
    def block_sizes(self) -> tuple[int, int, int]:
        """The smallest, preferred and largest block size, in bytes. Other requests work, at a higher cost."""
    def read(self, count: int, offset: int) -> bytearray:
        """Reads `count` bytes from `offset`: all or none."""
    def readinto(self, buffer: _Writable, offset: int) -> None:
        """Fills the memory of an object: a bytearray, a memoryview, a NumPy array."""
    def write(self, data: _Readable, offset: int, *, fua: bool = False) -> None:
        """Writes bytes at `offset`; with `fua` they are durable before this returns."""
    def zero(self, count: int, offset: int, *, punch: bool = True, fast: bool = False, fua: bool = False) -> None:
        """Makes bytes read as zeroes. `punch`: they may become a hole. `fast`: fail if it would be as slow as writing."""
    def trim(self, count: int, offset: int, *, fua: bool = False) -> None:
        """Trims bytes: they are not needed any more, and their contents are then undefined."""
    def flush(self) -> None:
        """Flushes: makes earlier writes durable."""
    def prefetch(self, count: int, offset: int) -> None:
        """Prefetches bytes."""
    def extents(self, offset: int, count: int | None) -> Extents:
        """Extents as tuples: start, length, kind, depth."""
    def close(self) -> None:
        """Flushes, and closes the disk. A second call does nothing."""

class Extents:
    """Extents as tuples: start, length, kind, depth."""

    def __iter__(self) -> "Extents": ...
    def __next__(self) -> tuple[int, int, str, int]: ...

class Server:
    """A server that runs until it is stopped."""

    def __init__(
        self,
        naming: _Naming,
        export: str,
        read_only: bool,
        unix: _Path | None,
        tcp: tuple[str, int] | None,
    ) -> None: ...
    @property
    def uri(self) -> str:
        """The URI of the server."""
    @property
    def connections(self) -> int:
        """The number of connected clients."""
    def stop(self) -> None:
        """Answers the requests in flight, and stops. A second call does nothing."""

def copy(
    source: _Naming, target: _Naming, choices: _Choices, progress: _Progress | None
) -> dict[str, Any]: ...
def compare(
    first: _Naming, second: _Naming, strict: bool, progress: _Progress | None
) -> tuple[bool, str | None, int | None, bool]: ...
def info(disk: _Naming) -> dict[str, Any]: ...
def measure(
    disk: _Naming | None, size: int | None, format: str, options: list[tuple[str, str]]
) -> tuple[int, int]: ...
def check(disk: _Naming, repair: str | None) -> dict[str, Any] | None: ...
def create(disk: _Naming, size: int, force: bool) -> None: ...
def resize(disk: _Naming, size: int, shrink: bool) -> None: ...
def bitmap(
    disk: _Naming, name: str, action: str, granularity: int | None, other: str | None
) -> None: ...
def digest(disk: _Naming, algorithm: str, progress: _Progress | None) -> str: ...
