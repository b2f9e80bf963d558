"""What verbs do with one image: info, measure, check, create, resize, bitmap and digest, beside the binary."""

import errno
import json
import os
import subprocess
import tempfile
import unittest

import diskferry

MIB = 1 << 20


def ours(*words):
    """What the binary prints."""
    return subprocess.run([os.environ["DISKFERRY"], *words], check=True, capture_output=True, text=True).stdout


class Images(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.image = os.path.join(self.directory.name, "disk.qcow2")
        diskferry.create(self.image, "qcow2", 8 * MIB, options={"cluster_size": 4096})

    def test_an_image_that_is_made_is_what_info_says_and_the_binary(self):
        found, theirs = diskferry.info(self.image), json.loads(ours("info", "--output=json", self.image))
        self.assertEqual((found["format"], found["size"], found["cluster_size"]), ("qcow2", 8 * MIB, 4096))
        self.assertEqual((found["size"], found["cluster_size"]), (theirs["virtual-size"], theirs["cluster-size"]))
        self.assertEqual((found["backing"], found["snapshots"], found["bitmaps"]), (None, [], []))
        ours("snapshot", "-c", "before", self.image)
        self.assertEqual([one["name"] for one in diskferry.info(self.image)["snapshots"]], ["before"])
        with diskferry.open(self.image, format="raw") as raw:
            self.assertEqual(diskferry.info(self.image, format="raw")["size"], raw.size)

    def test_what_is_measured_is_what_the_binary_measures(self):
        words = ["measure", "--output=json", "-O", "qcow2", "--size", "1G", "-o", "cluster_size=65536"]
        theirs = json.loads(ours(*words))
        found = diskferry.measure("qcow2", size=1 << 30, options={"cluster_size": 65536})
        self.assertEqual((found.required, found.fully_allocated), (theirs["required"], theirs["fully-allocated"]))
        self.assertGreater(diskferry.measure("qcow2", source="pattern:2M").required, 2 * MIB)
        with self.assertRaises(diskferry.Error):
            diskferry.measure("qcow2")

    def test_a_bitmap_follows_what_is_written_and_is_merged(self):
        diskferry.bitmap(self.image, "one", "add", granularity=65536)
        diskferry.bitmap(self.image, "two", "add", granularity=65536)
        with diskferry.open(self.image, write=True, format="qcow2") as disk:
            disk.write(b"x" * 4096, MIB)
        diskferry.bitmap(self.image, "two", "clear")
        diskferry.bitmap(self.image, "two", "merge", other="one")
        diskferry.bitmap(self.image, "one", "remove")
        self.assertEqual(diskferry.info(self.image)["bitmaps"], [{"name": "two", "granularity": 65536}])
        marked = json.loads(ours("map", "-f", "qcow2", "--json", "--context", "qemu:dirty-bitmap:two", self.image))
        self.assertIn((MIB, 65536), [(run["offset"], run["length"]) for run in marked])
        for wrong in ({"action": "blend"}, {"action": "merge"}, {"action": "clear", "granularity": 4096}):
            with self.assertRaises((ValueError, diskferry.Error)):
                diskferry.bitmap(self.image, "two", **wrong)

    def test_a_size_changes_and_becomes_less_only_when_that_is_said(self):
        diskferry.resize(self.image, "qcow2", 16 * MIB)
        self.assertEqual(diskferry.info(self.image)["size"], 16 * MIB)
        with self.assertRaises(diskferry.Error):
            diskferry.resize(self.image, "qcow2", MIB)
        self.assertEqual(diskferry.info(self.image)["size"], 16 * MIB)
        diskferry.resize(self.image, "qcow2", MIB, shrink=True)
        self.assertEqual(diskferry.info(self.image)["size"], MIB)
        raw = os.path.join(self.directory.name, "disk.raw")
        diskferry.create(raw, "raw", MIB)
        diskferry.resize(raw, "raw", 3 * MIB)
        self.assertEqual(os.path.getsize(raw), 3 * MIB)

    def test_a_leak_is_found_and_repaired(self):
        with diskferry.open(self.image, write=True, format="qcow2") as disk:
            disk.write(b"x" * MIB, 0)
        sound = diskferry.check(self.image)
        self.assertEqual((sound["corruptions"], sound["leaks"]), (0, 0))
        self.assertIsNone(diskferry.check("pattern:1M", format="raw"))
        with self.assertRaises(ValueError):
            diskferry.check(self.image, repair="all")
        fixed = diskferry.check(self.image, format="qcow2", repair="all")
        self.assertEqual((fixed["corruptions"], fixed["leaks"], fixed["leaks_fixed"]), (0, 0, 0))
        with self.assertRaises(ValueError):
            diskferry.check(self.image, format="qcow2", repair="some")

    def test_a_digest_is_that_of_the_binary_in_each_format_and_can_be_stopped(self):
        diskferry.convert("pattern:5M", self.image, "qcow2", source_format="raw")
        seen = []
        found = diskferry.digest(self.image, progress=lambda done, total: seen.append((done, total)))
        self.assertEqual(found, diskferry.digest("pattern:5M", format="raw"))
        self.assertEqual(found, ours("digest", "pattern:5M").split()[0])
        self.assertNotEqual(found, diskferry.digest("pattern:5M", "sha512", format="raw"))

        def stop(done, total):
            raise KeyError("enough")

        with self.assertRaises(KeyError):
            diskferry.digest("sparse-random:64G?percent=90", format="raw", progress=stop)
        with self.assertRaises(diskferry.Error):
            diskferry.digest(self.image, "crc7")

    def test_what_is_missing_is_a_file_that_is_not_found_and_nothing_is_made(self):
        missing = os.path.join(self.directory.name, "missing")
        for call in (
            lambda: diskferry.info(missing),
            lambda: diskferry.check(missing),
            lambda: diskferry.digest(missing),
            lambda: diskferry.resize(missing, "qcow2", MIB),
            lambda: diskferry.bitmap(missing, "one", "add"),
        ):
            with self.assertRaises(FileNotFoundError) as raised:
                call()
            self.assertEqual(raised.exception.errno, errno.ENOENT)
        self.assertFalse(os.path.exists(missing))
        with self.assertRaises(ValueError):
            diskferry.create(missing, "qcow2", MIB, options={"backing_file": "x"})
        self.assertFalse(os.path.exists(missing))


if __name__ == "__main__":
    unittest.main()
