"""Servers that break the rules: their bytes never get beyond a buffer, and never hang or end the program."""

import os
import random
import socket
import struct
import threading
import unittest

import diskferry.nbd as nbd

SIZE = 1 << 20
IHAVEOPT = 0x49484156454F5054
REPLY = 0x3E889045565A9


def receive(peer, count):
    data = b""
    while len(data) < count:
        some = peer.recv(count - len(data))
        if not some:
            raise ConnectionError
        data += some
    return data


def greet(peer):
    """The handshake of an honest server with structured replies and base:allocation."""
    peer.sendall(b"NBDMAGICIHAVEOPT" + struct.pack(">H", 3))
    receive(peer, 4)
    while True:
        _, option, length = struct.unpack(">QII", receive(peer, 16))
        receive(peer, length)

        def reply(kind, data=b""):
            peer.sendall(struct.pack(">QIII", REPLY, option, kind, len(data)) + data)

        if option == 8:
            reply(1)
        elif option == 10:
            reply(4, struct.pack(">I", 1) + b"base:allocation")
            reply(1)
        elif option == 7:
            reply(3, struct.pack(">HQH", 0, SIZE, 1 | 4 | 8 | 32 | 64 | 128))
            reply(1)
            return
        else:
            reply(0x80000001)


def chunk(flags, kind, cookie, payload):
    return struct.pack(">IHHQI", 0x668E33EF, flags, kind, cookie, len(payload)) + payload


def simple(cookie, error=0):
    return struct.pack(">IIQ", 0x67446698, error, cookie)


class Hostile(unittest.TestCase):
    def serve(self, talk):
        """A handle that is connected to `talk(peer)`, which runs beside it."""
        ours, theirs = socket.socketpair()

        def run():
            try:
                with theirs:
                    talk(theirs)
            except OSError:
                pass

        thread = threading.Thread(target=run)
        thread.start()
        self.addCleanup(thread.join, 60)
        h = nbd.NBD()
        self.addCleanup(h.__class__.close, h)
        h.add_meta_context("base:allocation")
        h.set_request_extended_headers(False)
        h.connect_socket(ours.detach())
        return h

    def answered(self, *answers):
        """The result of a read of 4096 bytes into the middle of a buffer, with these replies."""

        def talk(peer):
            greet(peer)
            _, _, _, cookie, offset, length = struct.unpack(">IHHQQI", receive(peer, 28))
            for answer in answers:
                peer.sendall(answer(cookie, offset, length))
            peer.recv(1)

        h = self.serve(talk)
        memory = bytearray(b"\xaa" * 12288)
        try:
            h.pread_into(memoryview(memory)[4096:8192], 65536)
            result = "done"
        except nbd.Error as error:
            result = error.string
        self.assertEqual(memory[:4096] + memory[8192:], b"\xaa" * 8192, "written beyond the buffer")
        return result, memory[4096:8192]

    def test_a_correct_reply_is_accepted(self):
        result, data = self.answered(
            lambda c, o, n: chunk(0, 1, c, struct.pack(">Q", o + 1024) + b"b" * (n - 1024)),
            lambda c, o, n: chunk(1, 2, c, struct.pack(">QI", o, 1024)),
        )
        self.assertEqual((result, data), ("done", bytes(1024) + b"b" * 3072))

    def test_replies_that_break_the_rules_fail_the_read(self):
        data = struct.pack(">Q", 65536)
        cases = {
            "before the range": [lambda c, o, n: chunk(1, 1, c, struct.pack(">Q", o - 512) + b"x" * n)],
            "beyond the range": [lambda c, o, n: chunk(1, 1, c, struct.pack(">Q", o + 512) + b"x" * n)],
            "at the end of numbers": [lambda c, o, n: chunk(1, 1, c, struct.pack(">Q", (1 << 64) - 1) + b"x" * n)],
            "a hole beyond": [lambda c, o, n: chunk(1, 2, c, struct.pack(">QI", o, 0xFFFFFFFF))],
            "not all of it": [lambda c, o, n: chunk(1, 1, c, data + b"x" * (n - 1))],
            "twice the same": [
                lambda c, o, n: chunk(0, 1, c, data + b"x" * 2048),
                lambda c, o, n: chunk(1, 1, c, data + b"x" * 2048),
            ],
            "nothing": [lambda c, o, n: chunk(1, 0, c, b"")],
            "another cookie": [lambda c, o, n: chunk(1, 1, c + 1, data + b"x" * n)],
            "a simple reply": [lambda c, o, n: simple(c) + b"x" * n],
            "an extent": [lambda c, o, n: chunk(1, 5, c, struct.pack(">III", 1, 512, 0))],
            "an unknown chunk": [lambda c, o, n: chunk(1, 77, c, b"x" * 100)],
            "an error without a number": [lambda c, o, n: chunk(1, 0x8001, c, b"")],
            "an error whose text is longer than it": [lambda c, o, n: chunk(1, 0x8001, c, struct.pack(">IH", 5, 900))],
            "an endless length": [lambda c, o, n: struct.pack(">IHHQI", 0x668E33EF, 1, 1, c, 0xFFFFFFFF)],
            "a wrong magic": [lambda c, o, n: b"\0" * 32],
        }
        for name, answers in cases.items():
            with self.subTest(name):
                result, _ = self.answered(*answers)
                self.assertTrue(result.startswith("nbd_pread: "), result)

    def test_a_reply_that_comes_before_the_payload_was_sent_waits_for_it(self):
        """The memory of a write is needed until all of it was sent, whatever the server replies."""
        go = threading.Event()

        def talk(peer):
            greet(peer)
            _, _, _, cookie, _, length = struct.unpack(">IHHQQI", receive(peer, 28))
            peer.sendall(simple(cookie, 28))
            go.wait(60)
            receive(peer, length)
            peer.recv(28)

        h = self.serve(talk)
        data = bytearray(32 << 20)
        h.set_strict_mode(0)
        cookie = h.aio_pwrite(data, 0)
        for _ in range(20):
            h.poll(5)
        self.assertEqual(h.aio_in_flight(), 1)
        with self.assertRaises(BufferError):
            data.clear()
        go.set()
        while h.aio_in_flight():
            h.poll(-1)
        with self.assertRaisesRegex(nbd.Error, "No space left"):
            h.aio_command_completed(cookie)
        data.clear()

    def test_noise_at_any_point_is_an_error(self):
        """Random bytes in place of any message: HOSTILE_ROUNDS=N for more."""
        seed = int(os.environ.get("BLACKBOX_SEED", random.randrange(1 << 32)))
        print(f"seed {seed}", end=" ", flush=True)
        for round in range(int(os.environ.get("HOSTILE_ROUNDS", "200"))):
            dice = random.Random(seed + round)

            class Noisy:
                """A peer whose messages are partly wrong, too long or too short."""

                def __init__(self, peer):
                    self.peer, self.recv = peer, peer.recv

                def sendall(self, data):
                    if dice.random() < 0.15:
                        data = bytearray(data)
                        for _ in range(dice.randrange(1, 4)):
                            data[dice.randrange(len(data))] = dice.randrange(256)
                        data = data[: dice.randrange(len(data) + 1)] if dice.random() < 0.2 else data
                    self.peer.sendall(bytes(data))

            def talk(peer):
                noisy = Noisy(peer)
                # The client waits for the rest of a message that was cut; this server does not wait for the client.
                peer.settimeout(0.2)
                greet(noisy)
                for _ in range(3):
                    _, _, kind, cookie, offset, length = struct.unpack(">IHHQQI", receive(peer, 28))
                    if kind == 7:
                        extents = struct.pack(">III", 1, length, 0)
                        noisy.sendall(chunk(1, 5, cookie, extents))
                    else:
                        noisy.sendall(chunk(0, 1, cookie, struct.pack(">Q", offset) + b"x" * (length // 2)))
                        rest = struct.pack(">QI", offset + length // 2, length - length // 2)
                        noisy.sendall(chunk(1, 2, cookie, rest))

            try:
                h = self.serve(talk)
                self.assertEqual(len(h.pread(4096, 0)), 4096)
                h.block_status(4096, 0, lambda *a: 0)
                h.pread_structured(8192, 4096, lambda *a: 0)
            except nbd.Error as error:
                self.assertTrue(error.string)


if __name__ == "__main__":
    unittest.main()
