"""What OpenStack's oslo.utils makes of our `qemu-img info` is what it makes of QEMU's, and its inspector of formats
calls our images what they are. Usage: oslo.py OURS THEIRS DIRECTORY"""

import os
import subprocess
import sys

from oslo_utils import imageutils
from oslo_utils.imageutils import format_inspector

OURS, THEIRS, DIRECTORY = sys.argv[1:]
KEYS = ["image", "backing_file", "file_format", "virtual_size", "cluster_size", "disk_size", "encrypted"]
# How a format is made, and its name in oslo.utils where that is another one.
FORMATS = {
    "raw": ([], "raw"),
    "qcow2": ([], "qcow2"),
    "vmdk": ([], "vmdk"),
    "vdi": ([], "vdi"),
    "vhdx": ([], "vhdx"),
    "vpc": ([], "vhd"),
    "luks": (["--object", "secret,id=s,file=key", "-o", "key-secret=s,iter-time=10"], "luks"),
}


def ours(*words: str) -> None:
    subprocess.run([OURS, *words], check=True)


def same(image: str) -> None:
    """The same is read out of what both programs say of it."""
    both = [subprocess.run([tool, "info", "--output=json", image], capture_output=True, text=True, check=True) for tool in (OURS, THEIRS)]
    assert not both[0].stderr, both[0].stderr
    read = [imageutils.QemuImgInfo(told.stdout, format="json") for told in both]
    for key in KEYS:
        mine, other = (getattr(info, key) for info in read)
        assert mine == other, f"{image}: {key}: {mine} is not {other}"
    mine, other = ([snapshot["name"] for snapshot in info.snapshots] for info in read)
    assert mine == other, f"{image}: {mine} is not {other}"


def main() -> None:
    os.chdir(DIRECTORY)
    with open("base", "wb") as base:
        base.write(os.urandom(100_000))
        base.truncate(8 << 20)
    with open("key", "w", encoding="utf-8") as key:
        key.write("a key")
    for word, (more, name) in FORMATS.items():
        image = f"image.{word}"
        ours("convert", "-f", "raw", "-O", word, *more, "base", image)
        same(image)
        inspector = format_inspector.detect_file_format(image)
        assert str(inspector) == name, f"{image}: is called {inspector}"
        inspector.safety_check()
    ours("create", "-q", "-f", "qcow2", "-b", "image.qcow2", "-F", "qcow2", "overlay")
    ours("snapshot", "-c", "one", "overlay")
    same("overlay")
    try:
        format_inspector.detect_file_format("overlay").safety_check()
    except format_inspector.SafetyCheckFailed as failed:
        assert "backing_file" in str(failed), failed
    else:
        raise AssertionError("an overlay is called safe")


main()
