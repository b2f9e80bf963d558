"""`diskferry shell` is nbdsh: its options, its prompt, and a chain of servers."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from servers import DISKFERRY, required, server, started

# The package of this Python is found by the python3 of the shell.
ENVIRONMENT = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}


def shell(*words, text="", env=ENVIRONMENT):
    words = [DISKFERRY, "shell", *words]
    return subprocess.run(words, input=text, capture_output=True, text=True, timeout=120, env=env)


class Shell(unittest.TestCase):
    def test_statements_are_run_in_the_order_of_the_command_line(self):
        with server("diskferry") as uri:
            done = shell("-c", "print(h.connection_state().split(':')[0])", "-u", uri, "-c",
                         "h.pwrite(b'x' * 512, 0)", "-c", "print(bytes(h.pread(4, 0)), h.get_size())")
            self.assertEqual((done.stdout, done.stderr, done.returncode), ("START\nb'xxxx' 1048576\n", "", 0))
            done = shell("-b", "-u", uri, "-c", "print(h.can_meta_context('base:allocation'))")
            self.assertEqual(done.stdout, "True\n")
            done = shell("--opt-mode", "-u", uri, "-c", "print(h.aio_is_negotiating()); h.opt_go(); print(h.get_size())")
            self.assertEqual(done.stdout, "True\n1048576\n")
            done = shell("-u", uri, "-c", "-", text="a = h.get_size()\nprint(a)\n")
            self.assertEqual(done.stdout, "1048576\n")
            done = shell("-v", "-u", uri, "-c", "pass")
            self.assertIn("libnbd: debug: nbdsh:", done.stderr)

    def test_without_a_handle(self):
        done = shell("-n", "-c", "print('h' in globals(), nbd.NBD().get_size.__name__)")
        self.assertEqual(done.stdout, "False get_size\n")
        done = shell("-n", "-u", "nbd://localhost")
        self.assertEqual(done.returncode, 1)
        self.assertIn("-n option cannot be used with", done.stderr)

    def test_a_statement_that_fails_ends_it_in_one_line(self):
        with server("diskferry") as uri:
            done = shell("-u", uri, "-c", "h.pread(512, 1 << 20)", "-c", "print('never')")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(done.stderr, "nbdsh: command line script failed: nbd_pread: request out of bounds: Invalid argument\n")

    def test_it_does_what_nbdsh_does(self):
        if not required("nbdsh"):
            self.skipTest("nbdsh is missing")
        cases = [
            ["-u", "URI", "-c", "print(h.get_size(), h.get_handle_name())"],
            ["--base-allocation", "--uri", "URI", "--command", "print(h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION))"],
            ["-u", "URI", "-c", "h.pread(512, 1 << 20)"],
            ["-n", "-c", "print(nbd.NBD().get_export_name())"],
            ["-n", "--opt-mode"],
            ["-u", "nbd+unix:///?socket=/nonexistent", "-c", "print(1)"],
            ["-c", "import nbd; print(nbd.CMD_FLAG_FUA, os.getpid() > 0 if 'os' in globals() else True)"],
        ]
        for words in cases:
            with self.subTest(words=words), server("diskferry") as uri:
                words = [uri if word == "URI" else word for word in words]
                theirs = subprocess.run(["nbdsh", *words], capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
                ours = shell(*words)
                self.assertEqual((ours.stdout, ours.stderr, ours.returncode), (theirs.stdout, theirs.stderr, theirs.returncode))

    def test_the_prompt_is_ready_with_a_handle(self):
        with server("diskferry") as uri:
            done = shell("-u", uri, text="h.get_size()\nimport nbd as other\nother is nbd\n")
        self.assertIn("1048576\n", done.stdout)
        self.assertIn("True\n", done.stdout)
        self.assertIn("nbd> ", done.stdout + done.stderr)
        self.assertIn("The handle h is in state READY.", done.stderr)

    def test_a_missing_package_is_one_line_that_says_how_to_install_it(self):
        with tempfile.TemporaryDirectory() as directory:
            os.symlink(shutil.which("python3", path="/usr/bin"), f"{directory}/python3")
            done = shell("-c", "pass", env={**os.environ, "PATH": directory, "PYTHONNOUSERSITE": "1", "PYTHONPATH": ""})
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"^diskferry: shell: .*pip install \./crates/python\n$")
        with tempfile.TemporaryDirectory() as directory:
            done = shell("-c", "pass", env={**os.environ, "PATH": directory})
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1))

    def test_the_chain_of_the_fast_zero_proposal(self):
        """nbdkit memory -> qemu-nbd -> nbdkit nbd -> our shell: a zero takes the time of a write, a fast one fails at once."""
        for program in ("nbdkit", "qemu-nbd"):
            if not required(program):
                self.skipTest(f"{program} is missing")
        slow = ["nbdkit", "-f", "--exit-with-parent", "-U", "SOCKET", "--filter=nozero", "--filter=delay",
                "memory", "1m", "delay-write=3", "zeromode=emulate"]
        with started(slow) as first:
            with started(["qemu-nbd", "-t", "-k", "SOCKET", "-f", "raw", first]) as second:
                with started(["nbdkit", "-f", "--exit-with-parent", "-U", "SOCKET", "nbd", second]) as last:
                    begun = time.monotonic()
                    done = shell("--connect", last, "-c", "buf = h.zero(512, 0)")
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    self.assertGreater(time.monotonic() - begun, 3)
                    done = shell("--connect", last, "-c", "buf = h.zero(512, 0, nbd.CMD_FLAG_FAST_ZERO)")
                    self.assertEqual(done.returncode, 1)
                    self.assertRegex(done.stderr, re.escape("write-zeroes: command failed: Operation not supported"))


if __name__ == "__main__":
    unittest.main()
