"""Servers for the tests: nbdkit, qemu-nbd, and diskferry (the binary in $DISKFERRY)."""

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager

DISKFERRY = os.environ.get("DISKFERRY", "diskferry")

# A disk of 1 MiB each, that can be written.
SERVERS = {
    "nbdkit": ["nbdkit", "-f", "--exit-with-parent", "-U", "SOCKET", "memory", "1M"],
    "qemu-nbd": ["qemu-nbd", "-t", "-e", "64", "-f", "raw", "-k", "SOCKET", "DISK"],
    "diskferry": [DISKFERRY, "serve", "--unix", "SOCKET", "memory", "1M"],
}


def required(program):
    """Whether it is installed; a failure if tests must not be skipped."""
    if shutil.which(program):
        return True
    if os.environ.get("REQUIRE_PEERS"):
        raise AssertionError(f"{program} is missing, and REQUIRE_PEERS is set")
    return False


@contextmanager
def started(command, name="socket"):
    """Starts a server; returns its URI."""
    with tempfile.TemporaryDirectory() as directory:
        socket, disk = f"{directory}/{name}", f"{directory}/disk"
        with open(disk, "wb") as file:
            file.truncate(1 << 20)
        words = [word.replace("SOCKET", socket).replace("DISK", disk) for word in command]
        with open(f"{directory}/log", "wb") as log:
            process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 60
            while not os.path.exists(socket):
                if process.poll() is not None or time.monotonic() > until:
                    with open(f"{directory}/log") as log:
                        raise AssertionError(f"{words} did not start: {log.read()}")
                time.sleep(0.005)
            yield f"nbd+unix:///?socket={socket}"
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def server(kind):
    """One of SERVERS."""
    return started(SERVERS[kind])
