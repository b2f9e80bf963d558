"""Scripts for libnbd's module, which is called nbd here: the idioms of its manual and of nbdsh's, rewritten.

Each is run with libnbd's module and with ours, against servers of several kinds, and must print the same. `uri` leads to a disk
of 1 MiB that can be written; `attempt` prints what a call returns or raises, `refused` only its errno, where libnbd's words
differ from version to version.
"""

# Run before each of them.
PRELUDE = r'''
import os, sys
def attempt(what):
    try:
        print("gave", repr(what()))
    except Exception as e:
        print("raised", type(e).__name__, e.args, str(e))
def refused(what):
    try:
        print("gave", repr(what()))
    except nbd.Error as e:
        print("refused", e.errnum, e.errno)
def wait(h):
    while h.aio_in_flight() > 0:
        h.poll(-1)
h = nbd.NBD()
'''

SCRIPTS = {}


def script(function):
    """The script is its docstring."""
    SCRIPTS[function.__name__] = function.__doc__
    return function


@script
def nothing_is_connected():
    """
attempt(lambda: h.pread(512, 0))
attempt(lambda: h.get_size())
attempt(lambda: h.can_flush())
attempt(lambda: h.poll(0))
attempt(lambda: h.aio_get_fd())
attempt(lambda: h.aio_get_direction())
attempt(lambda: h.aio_in_flight())
attempt(lambda: h.get_protocol())
attempt(lambda: h.get_uri())
attempt(lambda: h.opt_go())
attempt(lambda: h.aio_notify_read())
attempt(lambda: h.aio_command_completed(1))
attempt(lambda: h.aio_peek_command_completed())
attempt(lambda: h.get_export_description())
attempt(lambda: h.kill_subprocess(15))
refused(lambda: h.shutdown())
print(h.connection_state(), h.aio_is_created(), h.aio_is_ready(), h.aio_is_dead())
"""


@script
def defaults_and_settings():
    """
print(h.get_tls(), h.get_handshake_flags(), h.get_opt_mode(), h.get_export_name(), h.get_full_info())
print(h.get_request_structured_replies(), h.get_request_block_size(), h.get_pread_initialize())
print(h.get_nr_meta_contexts(), h.get_private_data(), h.get_tls_verify_peer(), h.supports_tls(), h.supports_uri())
print(h.set_private_data(42), h.get_private_data())
h.set_export_name("x"); h.add_meta_context("base:allocation"); h.set_handle_name("me")
print(h.get_export_name(), h.get_meta_context(0), h.get_nr_meta_contexts(), h.get_handle_name())
attempt(lambda: h.get_meta_context(3))
h.clear_meta_contexts()
print(h.get_nr_meta_contexts())
attempt(lambda: h.set_tls(5))
attempt(lambda: h.set_strict_mode(0x1000))
attempt(lambda: h.set_handshake_flags(9))
attempt(lambda: h.set_export_name("x" * 5000))
attempt(lambda: h.add_meta_context("x" * 5000))
"""


@script
def types_are_checked():
    """
h.connect_uri(uri)
for what in (lambda: h.pread("x", 0), lambda: h.pwrite(5, 0), lambda: h.connect_command("x"),
             lambda: h.aio_pwrite(5, 0), lambda: h.aio_pread(b"read only", 0)):
    try:
        what()
    except (TypeError, BufferError) as e:
        print(type(e).__name__, e)
"""


@script
def uris_that_are_none():
    """
attempt(lambda: h.connect_uri("foo://x"))
attempt(lambda: h.connect_uri("nbd+unix:///"))
attempt(lambda: h.connect_uri("nonsense"))
attempt(lambda: h.connect_uri("nbd://x?socket=/a"))
"""


@script
def servers_that_are_not_there():
    """
attempt(lambda: h.connect_tcp("no.such.invalid", "1"))
print(h.connection_state())
attempt(lambda: h.connect_unix("/nonexistent"))
print(h.connection_state(), h.aio_is_dead())
h = nbd.NBD(); attempt(lambda: h.connect_tcp("127.0.0.1", "1"))
h = nbd.NBD(); attempt(lambda: h.connect_tcp("127.0.0.1", "nosuchservice"))
h = nbd.NBD(); attempt(lambda: h.connect_command(["/bin/false"]))
h = nbd.NBD(); attempt(lambda: h.connect_command([]))
"""


@script
def facts_of_the_export():
    """
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(uri)
print(h.get_size(), h.get_protocol(), h.get_structured_replies_negotiated(), h.get_tls_negotiated())
print(h.is_read_only(), h.can_flush(), h.can_fua(), h.can_trim(), h.can_zero(), h.can_fast_zero())
print(h.can_df(), h.can_multi_conn(), h.can_cache(), h.is_rotational())
print(h.can_meta_context("base:allocation"), h.can_meta_context("x"))
attempt(lambda: h.get_block_size(7))
attempt(lambda: h.set_export_name("x"))
attempt(lambda: h.set_tls(1))
attempt(lambda: h.opt_go())
print(h.aio_is_ready(), h.aio_get_direction())
"""


@script
def read_and_write():
    """
h.connect_uri(uri)
h.pwrite(b"hello, world" + bytes(500), 4096)
buf = h.pread(512, 4096)
print(type(buf).__name__, bytes(buf[:12]), len(buf))
h.pwrite(bytearray(b"x" * 512), 0, nbd.CMD_FLAG_FUA)
h.pwrite(memoryview(b"y" * 512), 512)
h.flush()
print(bytes(h.pread(1024, 0)) == b"x" * 512 + b"y" * 512)
h.zero(512, 0)
h.zero(512, 512, nbd.CMD_FLAG_NO_HOLE)
print(h.pread(1024, 0) == bytes(1024))
h.trim(4096, 8192)
h.shutdown()
print(h.connection_state(), h.get_size())
attempt(lambda: h.pread(512, 0))
attempt(lambda: h.aio_get_fd())
attempt(lambda: h.poll(0))
attempt(lambda: h.aio_disconnect())
"""


@script
def strict_mode_refuses():
    """
h.connect_uri(uri)
attempt(lambda: h.pread(512, 1 << 20))
attempt(lambda: h.pread(0, 0))
attempt(lambda: h.pread(512, 0, 1))
attempt(lambda: h.pwrite(b"x" * 512, 1 << 20))
attempt(lambda: h.trim(1 << 33, 0))
attempt(lambda: h.flush(1))
attempt(lambda: h.zero(512, 0, 0x80))
attempt(lambda: h.zero(0, 0))
attempt(lambda: h.block_status(512, 0, lambda *a: 0))
"""


@script
def what_is_wrong_is_sent_without_strict_mode():
    """
h.connect_uri(uri)
h.set_strict_mode(0)
refused(lambda: h.pread(512, 1 << 20))
refused(lambda: h.pread(512, 0, 0x8000))
attempt(lambda: h.pread(512, 0, 0x18000))
refused(lambda: h.pwrite(b"x" * 512, 1 << 20))
refused(lambda: h.zero(512, 1 << 20))
attempt(lambda: h.pread(1 << 27, 0))
print(h.pread(512, 0) is not None)
"""


@script
def the_map():
    """
h.add_meta_context("base:allocation")
h.connect_uri(uri)
h.pwrite(b"x" * 65536, 65536)
def status(context, offset, entries, error):
    print(context, offset, sum(entries[0::2]) >= 65536, error.value)
    return 0
h.block_status(1 << 20, 0, status)
h.block_status(65536, 65536, lambda *a: print(a[2][1]) or 0, nbd.CMD_FLAG_REQ_ONE)
attempt(lambda: h.block_status(1 << 20, 0, status, 4))
"""


@script
def callbacks_that_fail():
    """
h.add_meta_context("base:allocation")
h.connect_uri(uri)
sys.stderr = open(os.devnull, "w")
def raises(*a):
    raise ValueError("on purpose")
def says(*a):
    a[-1].value = 28
    return -1
attempt(lambda: h.block_status(1 << 20, 0, raises))
attempt(lambda: h.block_status(1 << 20, 0, says))
attempt(lambda: h.pread_structured(1024, 0, raises))
attempt(lambda: h.pread_structured(1024, 0, says))
b = nbd.Buffer(512)
c = h.aio_pread(b, 0, raises); wait(h)
attempt(lambda: h.aio_command_completed(c))
c = h.aio_pread(b, 0, says); wait(h)
attempt(lambda: h.aio_command_completed(c))
attempt(lambda: h.aio_pread(b, 0, 5))
"""


@script
def structured_reads():
    """
h.connect_uri(uri)
h.pwrite(b"z" * 4096, 0)
seen = 0
def chunk(buf, offset, status, error):
    global seen
    if status == nbd.READ_DATA:
        assert bytes(buf) == b"z" * len(buf), (offset, len(buf))
    seen += len(buf)
    return 0
buf = h.pread_structured(4096, 0, chunk)
print(seen, bytes(buf) == b"z" * 4096)
if h.can_df():
    print(len(h.pread_structured(4096, 0, chunk, nbd.CMD_FLAG_DF)))
"""


@script
def asynchronous_commands():
    """
h.connect_uri(uri)
data = nbd.Buffer.from_bytearray(b"a" * 512)
c = h.aio_pwrite(data, 1024)
while not h.aio_command_completed(c):
    h.poll(-1)
done = []
buffers = [nbd.Buffer(512) for _ in range(16)]
for i, b in enumerate(buffers):
    h.aio_pread(b, i * 512, lambda error, i=i: done.append((i, error.value)) or 1)
wait(h)
print(sorted(done) == [(i, 0) for i in range(16)], bytes(buffers[2].to_bytearray()) == b"a" * 512)
c = h.aio_flush()
wait(h)
print(h.aio_peek_command_completed() == c, h.aio_command_completed(c), h.aio_command_completed(c))
attempt(lambda: h.aio_peek_command_completed())
attempt(lambda: h.aio_command_completed(0))
c = h.aio_zero(512, 1024); wait(h); print(h.aio_command_completed(c))
b = bytearray(512)
c = h.aio_pread(b, 1024); wait(h); print(h.aio_command_completed(c), bytes(b) == bytes(512))
h.aio_disconnect()
while not h.aio_is_closed():
    h.poll(-1)
print(h.connection_state())
"""


@script
def buffers():
    """
b = nbd.Buffer(16)
print(len(b), b.size(), b.is_zero(), b.is_zero(4, 4), bytes(b.to_bytearray()))
b = nbd.Buffer.from_bytearray(b"abc")
print(bytes(b.to_buffer()), b.is_zero(), b.is_zero(1, 0))
x = bytearray(8)
b = nbd.Buffer.from_buffer(x)
b.to_buffer()[0] = 65
print(x[0], len(b))
x[:] = bytes(8)
print(b.is_zero())
"""


@script
def own_loop():
    """
import select
h.aio_connect_uri(uri)
def turn():
    poll = select.poll()
    events = {0: 0, 1: select.POLLIN, 2: select.POLLOUT, 3: select.POLLIN | select.POLLOUT}
    poll.register(h.aio_get_fd(), events[h.aio_get_direction()])
    [(_, seen)] = poll.poll()
    if seen & select.POLLIN:
        h.aio_notify_read()
    elif seen & select.POLLOUT:
        h.aio_notify_write()
while not (h.aio_is_ready() or h.aio_is_dead()):
    turn()
b = nbd.Buffer(4096)
c = h.aio_pread(b, 0)
while not h.aio_command_completed(c):
    turn()
print(len(b), h.aio_is_ready())
"""


@script
def option_mode():
    """
h.set_opt_mode(True)
h.set_full_info(True)
h.connect_uri(uri)
print(h.connection_state().split(":")[0], h.aio_is_negotiating(), h.get_protocol())
attempt(lambda: h.pread(512, 0))
refused(lambda: h.get_size())
name = h.get_export_name()
h.set_export_name("nosuchexport-really")
try:
    h.opt_info(); print("any export will do")
except nbd.Error as e:
    print(h.aio_is_negotiating())
h.set_export_name(name)
h.opt_info()
print(h.get_size(), h.can_flush())
contexts = []
h.add_meta_context("base:")
print(h.opt_list_meta_context(lambda name: contexts.append(name)), contexts)
h.clear_meta_contexts()
h.add_meta_context("base:allocation")
h.opt_go()
print(h.aio_is_ready(), h.get_size(), h.can_meta_context("base:allocation"))
"""


@script
def option_mode_left():
    """
h.set_opt_mode(True)
h.connect_uri(uri)
h.opt_abort()
print(h.aio_is_closed())
refused(lambda: h.opt_go())
"""


@script
def without_structured_replies():
    """
h.set_request_structured_replies(False)
if hasattr(h, "set_request_extended_headers"):
    h.set_request_extended_headers(False)
h.add_meta_context("base:allocation")
h.connect_uri(uri)
print(h.get_structured_replies_negotiated(), h.can_df())
print(len(h.pread(65536, 0)))
attempt(lambda: h.block_status(512, 0, lambda *a: 0))
refused(lambda: h.pread_structured(512, 0, lambda *a: 0, nbd.CMD_FLAG_DF))
seen = []
h.pread_structured(512, 0, lambda b, o, s, e: seen.append((len(b), o, s)) or 0)
print(seen)
"""


@script
def without_handshake_flags():
    """
h.set_handshake_flags(0)
h.connect_uri(uri)
print(h.get_protocol(), h.get_size(), len(h.pread(512, 0)))
"""


@script
def closures_are_let_go():
    """
import gc, weakref
h.connect_uri(uri)
class Closure:
    def __call__(self, error):
        return 1
c = Closure(); gone = weakref.ref(c)
h.aio_flush(c); del c
wait(h); gc.collect()
print(gone() is None)
"""


@script
def a_server_on_standard_input_and_output():
    """
h.connect_command(["nbdkit", "-s", "--exit-with-parent", "memory", "1M"])
h.pwrite(b"x" * 512, 0)
print(h.get_size(), h.pread(512, 0) == b"x" * 512)
attempt(lambda: h.get_uri())
h.kill_subprocess(0)
"""


@script
def a_server_by_socket_activation():
    """
h.connect_systemd_socket_activation(["nbdkit", "memory", "1M"])
print(h.get_size(), len(h.pread(512, 0)))
del h
"""


@script
def a_server_of_the_old_protocol():
    """
h.connect_command(["nbdkit", "-s", "-o", "--exit-with-parent", "memory", "1M"])
print(h.get_protocol(), h.get_size(), h.can_zero(), h.get_structured_replies_negotiated())
h.pwrite(b"x" * 512, 512)
print(h.pread(512, 512) == b"x" * 512)
h = nbd.NBD()
h.set_tls(nbd.TLS_REQUIRE)
attempt(lambda: h.connect_command(["nbdkit", "-s", "-o", "--exit-with-parent", "memory", "1M"]))
"""


@script
def a_socket_that_is_given():
    """
import socket
s = socket.socket(socket.AF_UNIX)
s.connect(uri.split("socket=")[1])
h.connect_socket(s.detach())
print(h.get_size(), len(h.pread(512, 0)))
h.shutdown()
"""


@script
def a_server_that_leaves():
    """
import socket
ours, theirs = socket.socketpair()
theirs.sendall(b"NBDMAGICIHAVE")
theirs.close()
attempt(lambda: h.connect_socket(ours.detach()))
print(h.connection_state().split(":")[0])
for greeting in (b"SSH-2.0-OpenSSH_9.9 hello", b"NBDMAGIC" + bytes(8), b""):
    h = nbd.NBD()
    ours, theirs = socket.socketpair()
    theirs.sendall(greeting); theirs.shutdown(socket.SHUT_WR)
    attempt(lambda: h.connect_socket(ours.detach()))
"""


@script
def a_server_that_leaves_commands_unanswered():
    """
import socket, threading, struct
ours, theirs = socket.socketpair()
def serve():
    theirs.sendall(b"NBDMAGICIHAVEOPT" + struct.pack(">H", 0))
    theirs.recv(4)
    theirs.recv(1000)
    theirs.sendall(struct.pack(">QH", 1 << 20, 1 | 4) + bytes(124))
    theirs.recv(28)
    theirs.close()
thread = threading.Thread(target=serve); thread.start()
h.connect_socket(ours.detach())
print(h.get_protocol(), h.get_size())
b = nbd.Buffer(512)
seen = []
c = h.aio_pread(b, 0, lambda error: seen.append(error.value))
thread.join()
try:
    while h.aio_in_flight() > 0:
        h.poll(-1)
except nbd.Error as e:
    print("poll failed")
print(seen, h.aio_in_flight())
attempt(lambda: h.aio_command_completed(c))
"""


@script
def tls_that_is_not_there():
    """
h.set_tls(nbd.TLS_REQUIRE)
refused(lambda: h.connect_uri(uri))
h = nbd.NBD()
h.set_tls(nbd.TLS_ALLOW)
h.connect_uri(uri)
print(h.get_tls(), h.get_tls_negotiated(), len(h.pread(512, 0)))
"""


@script
def tls_with_a_shared_key():
    """
import tempfile
keys = tempfile.NamedTemporaryFile("w", suffix=".psk")
keys.write("alice:" + "ab" * 32 + chr(10)); keys.flush()
h.set_tls(nbd.TLS_REQUIRE); h.set_tls_psk_file(keys.name); h.set_tls_username("alice")
words = ["nbdkit", "-s", "--exit-with-parent", "--tls=require", "--tls-psk=" + keys.name, "memory", "1M"]
h.connect_command(words)
print(h.get_tls_negotiated(), h.get_size(), h.get_tls_username())
h.pwrite(b"x" * 300000 + bytes(212), 0)
print(h.pread(300212, 0) == b"x" * 300000 + bytes(212))
buffers = [nbd.Buffer(65536) for _ in range(16)]
for n, b in enumerate(buffers):
    h.aio_pread(b, n * 65536 // 2, lambda error: 1)
wait(h)
print(all(len(b) == 65536 for b in buffers), buffers[0].to_bytearray()[0])
h.shutdown()
h = nbd.NBD()
h = nbd.NBD()
refused(lambda: h.connect_command(words))
"""
