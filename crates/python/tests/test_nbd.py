"""diskferry.nbd is libnbd's module: the same scripts print the same, and nothing leaks."""

import errno
import gc
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

import diskferry
import diskferry.nbd as nbd

from scripts import PRELUDE, SCRIPTS
from servers import DISKFERRY, SERVERS, required, server, started

LIBRARIES = {"libnbd": "import nbd\n", "ours": "import diskferry.nbd as nbd\n"}

# Scripts whose output depends on the server's timing, or on the library's version.
ODD = {
    # QEMU's rejects a read beyond the end by closing, before 9.0.
    ("what_is_wrong_is_sent_without_strict_mode", "qemu-nbd"),
}


def has_libnbd():
    try:
        import nbd as _  # noqa: F401
    except ImportError:
        if os.environ.get("REQUIRE_PEERS"):
            raise
        return False
    return True


def run(library, text, uri):
    words = [sys.executable, "-c", f"{LIBRARIES[library]}uri = {uri!r}\n{PRELUDE}{text}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


class SameAsLibnbd(unittest.TestCase):
    def test_scripts_print_the_same_with_libnbds_module_and_with_ours(self):
        if not has_libnbd():
            self.skipTest("libnbd's module is missing")
        for name, text in SCRIPTS.items():
            for kind, command in SERVERS.items():
                if (name, kind) in ODD or not required(command[0]):
                    continue
                with self.subTest(script=name, server=kind):
                    printed = {}
                    for library in LIBRARIES:
                        with server(kind) as uri:
                            printed[library] = run(library, text, uri)
                    self.assertEqual(printed["ours"], printed["libnbd"])
                    self.assertNotIn("Traceback", printed["ours"])

    def test_every_name_of_libnbds_module_is_in_ours(self):
        if not has_libnbd():
            self.skipTest("libnbd's module is missing")
        import nbd as theirs

        self.assertIsNot(theirs, nbd)
        for module, ours in ((theirs, nbd), (theirs.NBD, nbd.NBD), (theirs.Buffer, nbd.Buffer)):
            names = {name for name in dir(module) if not name.startswith("_")}
            self.assertEqual(names - set(dir(ours)) - {"contextlib", "libnbdmod"}, set())
        for name in dir(theirs):
            value = getattr(theirs, name)
            # Masks grow with the library's version.
            if name.isupper() and not isinstance(value, type) and not name.endswith("_MASK"):
                self.assertEqual(getattr(nbd, name), value, name)


class OverOurServer(unittest.TestCase):
    def setUp(self):
        # In this process, so that a server that hangs shows where.
        self.serving = diskferry.serve("memory:1M")
        self.uri = self.serving.__enter__()
        self.addCleanup(self.serving.__exit__, None, None, None)

    def connected(self):
        h = nbd.NBD()
        h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
        h.connect_uri(self.uri)
        return h

    def test_bytes_go_straight_into_memoryviews_and_arrays(self):
        h = self.connected()
        h.pwrite(bytes(range(256)) * 16, 0)
        whole = bytearray(8192)
        h.pread_into(memoryview(whole)[4096:], 0)
        self.assertEqual(whole, bytes(4096) + bytes(range(256)) * 16)
        try:
            import numpy
        except ImportError:
            return
        array = numpy.zeros((2, 256), dtype="<u4")
        h.pread_into(array, 0)
        self.assertEqual(array.tobytes(), (bytes(range(256)) * 16)[:2048])
        h.aio_pwrite(array, 65536)
        while h.aio_in_flight():
            h.poll(-1)
        self.assertEqual(h.pread(2048, 65536), array.tobytes())
        with self.assertRaises((BufferError, ValueError)):
            h.pread_into(array[:, ::2], 0)

    def test_memory_in_flight_cannot_be_resized(self):
        h = self.connected()
        buffer = bytearray(4096)
        cookie = h.aio_pread(buffer, 0)
        with self.assertRaises(BufferError):
            buffer.clear()
        while not h.aio_command_completed(cookie):
            h.poll(-1)
        buffer.clear()

    def test_a_read_that_fails_shows_nothing_of_memory(self):
        h = self.connected()
        h.set_strict_mode(0)
        buffer = nbd.Buffer(65536)
        cookie = h.aio_pread(buffer, 1 << 20)
        while h.aio_in_flight():
            h.poll(-1)
        with self.assertRaises(nbd.Error):
            h.aio_command_completed(cookie)
        self.assertTrue(buffer.is_zero())

    def test_a_buffer_is_zero_until_a_read_fills_it(self):
        """However its read ends, it never shows what other parts of the program had in memory."""

        def soiled():
            # The allocator gives this memory again.
            for soil in [bytearray(b"SECRET" * 700) for _ in range(64)]:
                soil.clear()
            return nbd.Buffer(4096)

        h = self.connected()
        for _ in range(50):
            refused = soiled()
            with self.assertRaises(nbd.Error):
                h.aio_pread(refused, 1 << 40)
            self.assertTrue(refused.is_zero(), "refused")
        with diskferry.serve("memory:1M", filters=["delay?rdelay=60"]) as uri:
            for _ in range(50):
                h = nbd.NBD()
                h.connect_uri(uri)
                flying = soiled()
                h.aio_pread(flying, 0)
                self.assertTrue(flying.is_zero(), "in flight")
                h.close()
                self.assertTrue(flying.is_zero(), "closed")

    def test_a_closed_handle_is_refused_in_each_of_many_threads(self):
        """None waits for a thread that waits for the interpreter; a child, which would stand still."""
        child = """
import threading
from diskferry import nbd
h = nbd.NBD()
h.close()
data, calls = bytearray(4096), 20000
def refused(call):
    for _ in range(calls):
        try:
            call()
        except nbd.ClosedHandle:
            pass
        else:
            raise AssertionError("a closed handle was used")
calls_of = [lambda: h.pwrite(data, 0), lambda: h.pread(512, 0), lambda: h.aio_pread(nbd.Buffer(512), 0)]
calls_of += [h.aio_get_direction, h.aio_get_direction]
threads = [threading.Thread(target=refused, args=(call,)) for call in calls_of]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
data.clear()
print("done")
"""
        done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, timeout=300)
        self.assertEqual((done.stdout, done.stderr), ("done\n", ""))

    def test_what_was_said_in_clear_text_is_void_under_tls(self):
        with tempfile.NamedTemporaryFile("w", suffix=".psk") as keys:
            keys.write("alice:" + "ab" * 32 + "\n")
            keys.flush()
            words = [DISKFERRY, "serve", "--unix", "SOCKET", "--tls=on", "--tls-psk", keys.name, "memory", "1M"]
            with started(words) as uri:
                h = nbd.NBD()
                h.set_opt_mode(True)
                h.set_full_info(True)
                h.set_tls_psk_file(keys.name)
                h.set_tls_username("alice")
                h.connect_uri(uri)
                h.opt_info()
                facts = [
                    h.get_size,
                    h.can_trim,
                    h.is_read_only,
                    h.get_canonical_export_name,
                    lambda: h.get_block_size(nbd.SIZE_MAXIMUM),
                ]
                known = [fact() for fact in facts]
                self.assertEqual(known[0], 1 << 20)
                self.assertTrue(h.opt_starttls())
                for fact in facts:
                    with self.assertRaises(nbd.Error) as caught:
                        fact()
                    self.assertEqual(caught.exception.errno, "EINVAL")
                h.opt_go()
                self.assertEqual([fact() for fact in facts], known)

    def test_extents_of_64_bits_and_filters(self):
        h = self.connected()
        self.assertTrue(h.get_extended_headers_negotiated())
        h.pwrite(b"x" * 4096, 0)
        found = []
        h.block_status_64(1 << 20, 0, lambda *a: found.append(a[:3]) or 0)
        self.assertEqual(sum(length for length, _ in found[0][2]), 1 << 20)
        if h.can_block_status_payload():
            chosen = []
            contexts = ["base:allocation"]
            h.block_status_filter(1 << 20, 0, contexts, lambda *a: chosen.append(a[:3]) or 0)
            self.assertEqual(chosen, found)
            with self.assertRaisesRegex(nbd.Error, "context x not negotiated"):
                h.block_status_filter(512, 0, ["x"], lambda *a: 0)

    def test_a_call_from_a_callback_of_the_same_handle_does_not_hang(self):
        h = self.connected()
        raised = []

        def completion(error):
            try:
                h.pread(512, 0)
            except nbd.Error as e:
                raised.append(e.errnum)
            # Calls that do not wait are allowed.
            h.aio_pread(nbd.Buffer(512), 0, lambda error: 1)
            return 1

        h.aio_pread(nbd.Buffer(512), 0, completion)
        while h.aio_in_flight():
            h.poll(-1)
        self.assertEqual(raised, [errno.EDEADLK])

    def test_while_a_connection_waits_for_its_server_the_handle_answers(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "socket")
            with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
                listener.bind(path)
                # There is room for one connection, and that is taken.
                listener.listen(0)
                first.connect(path)
                h = nbd.NBD()
                thread = threading.Thread(target=lambda: h.aio_connect_unix(path))
                thread.start()
                thread.join(0.5)
                self.assertTrue(h.aio_is_created())
                self.assertTrue(thread.is_alive(), "it did not wait")
                listener.accept()[0].close()
                thread.join()
                self.assertTrue(h.aio_is_connecting())
                h.close()

    def test_a_call_on_a_closed_handle_raises_closed_handle(self):
        h = self.connected()
        h.close()
        with self.assertRaises(nbd.ClosedHandle):
            h.get_size()
        with self.assertRaises(ValueError):
            h.pread(512, 0)

    def test_the_numbers_of_bytes_and_messages_grow(self):
        h = self.connected()
        before = h.stats_bytes_received(), h.stats_chunks_sent(), h.stats_chunks_received()
        h.pread(65536, 0)
        self.assertGreaterEqual(h.stats_bytes_received() - before[0], 16)
        self.assertEqual(h.stats_chunks_sent() - before[1], 1)
        self.assertGreaterEqual(h.stats_chunks_received() - before[2], 1)
        self.assertGreater(h.stats_bytes_sent(), 0)

    def test_whatever_strict_mode_allows_the_server_goes_on(self):
        """Random commands with random switches: each is replied to or refused, and the server goes on."""
        seed = int(os.environ.get("BLACKBOX_SEED", random.randrange(1 << 32)))
        print(f"seed {seed}", end=" ", flush=True)
        dice = random.Random(seed)
        for _ in range(40):
            h = nbd.NBD()
            extended = dice.random() < 0.5
            h.set_request_extended_headers(extended)
            h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
            h.connect_uri(self.uri)
            for _ in range(50):
                h.set_strict_mode(dice.choice([0, nbd.STRICT_MASK, dice.randrange(nbd.STRICT_MASK + 1)]))
                offset = dice.choice([0, 512, 1 << 20, (1 << 20) - 512, 1 << 40, (1 << 64) - 1, dice.randrange(1 << 20)])
                count = dice.choice([0, 1, 512, 4096, 65536, 1 << 20, (1 << 20) + 1, dice.randrange(1 << 17)])
                flags = dice.choice([0, 0, 1, 2, 4, 8, 16, 32, 0x8000, dice.randrange(1 << 16)])
                if extended:
                    # The server would wait for a payload that is announced and does not come.
                    flags &= ~nbd.CMD_FLAG_PAYLOAD_LEN
                command = dice.choice(COMMANDS)
                try:
                    command(h, count, offset, flags)
                except nbd.Error as e:
                    self.assertNotEqual(e.string, "")
                    if not (h.aio_is_ready() or h.aio_is_processing()):
                        break
            del h
        h = self.connected()
        h.pwrite(b"still here".ljust(512), 0)
        self.assertEqual(bytes(h.pread(10, 0)), b"still here")

    def test_threads_share_a_handle(self):
        h = self.connected()
        failures = []

        def work(number):
            dice = random.Random(number)
            try:
                for turn in range(60):
                    offset = number * 65536 + dice.randrange(128) * 512
                    data = bytes([number * 16 + turn % 16]) * 512
                    if dice.random() < 0.5:
                        h.pwrite(data, offset)
                    else:
                        done = []
                        h.aio_pwrite(data, offset, lambda error: done.append(error.value) or 1)
                        while not done:
                            h.poll(100)
                        assert done == [0]
                    read = h.pread(512, offset)
                    assert read == data, (number, turn, offset)
                    if turn % 7 == 0:
                        h.block_status(4096, offset // 4096 * 4096, lambda *a: 0)
            except BaseException as e:  # noqa: B036
                failures.append(repr(e))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(240)
            self.assertFalse(thread.is_alive(), "stuck")
        self.assertEqual(failures, [])
        self.assertEqual(h.aio_in_flight(), 0)

    def test_a_signal_ends_a_call_that_blocks(self):
        import signal
        import socket

        ours, theirs = socket.socketpair()
        h = nbd.NBD()

        class Stop(Exception):
            pass

        def stop(*_):
            raise Stop

        before = signal.signal(signal.SIGALRM, stop)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
            with self.assertRaises(Stop):
                # The server sends no greeting.
                h.connect_socket(ours.detach())
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            theirs.close()

    def test_connections_leave_nothing_behind(self):
        """NBD_CONNECTIONS=100000 is the long form."""
        count = int(os.environ.get("NBD_CONNECTIONS", "1500"))

        def once(number):
            h = self.connected()
            buffer = nbd.Buffer(4096)
            h.aio_pread(buffer, 0, lambda error: 1)
            if number % 3 == 0:
                while h.aio_in_flight():
                    h.poll(-1)
            if number % 5 == 0:
                h.shutdown()

        def descriptors():
            return len(os.listdir("/proc/self/fd"))

        def memory():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        for number in range(300):
            once(number)
        gc.collect()
        before = descriptors(), memory(), len(gc.get_objects())
        for number in range(count):
            once(number)
        gc.collect()
        self.assertLess(descriptors() - before[0], 32)
        self.assertLess(len(gc.get_objects()) - before[2], 500)
        # 100 bytes a connection would be 10 MB in the long form.
        self.assertLess(memory() - before[1], 16 << 20)


COMMANDS = [
    lambda h, count, offset, flags: h.pread(count, offset, flags),
    lambda h, count, offset, flags: h.pread_structured(count, offset, lambda *a: 0, flags),
    lambda h, count, offset, flags: h.pwrite(bytes(count), offset, flags),
    lambda h, count, offset, flags: h.zero(count, offset, flags),
    lambda h, count, offset, flags: h.trim(count, offset, flags),
    lambda h, count, offset, flags: h.cache(count, offset, flags),
    lambda h, count, offset, flags: h.flush(flags),
    lambda h, count, offset, flags: h.block_status(count, offset, lambda *a: 0, flags),
    lambda h, count, offset, flags: h.block_status_64(count, offset, lambda *a: 0, flags),
    lambda h, count, offset, flags: h.block_status_filter(
        count, offset, ["base:allocation"], lambda *a: 0, flags
    ),
]


if __name__ == "__main__":
    unittest.main()
