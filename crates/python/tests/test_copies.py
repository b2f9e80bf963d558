"""The copies of tests/copies.json by copy() and convert(): what the binary does, Python does alike."""

import errno
import json
import os
import tempfile
import unittest

import diskferry

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tests/copies.json")


def contents(file):
    """The bytes of a file in the table."""
    if "text" in file:
        return file["text"].encode()
    held = bytearray(file["size"])
    for at, length, byte in file["data"]:
        held[at : at + length] = bytes([byte]) * length
    return bytes(held)


class Copies(unittest.TestCase):
    def test_each_copy_of_the_table(self):
        with open(TABLE, encoding="utf-8") as table:
            table = json.load(table)
        files = {name: contents(file) for name, file in table["files"].items()}
        self.assertGreaterEqual(len(table["cases"]), 30)
        for case in table["cases"]:
            with self.subTest(case["name"]), tempfile.TemporaryDirectory() as directory:
                Case(self, case, files, directory).check()


class Case:
    def __init__(self, test, case, files, directory):
        self.test, self.case, self.files, self.directory = test, case, files, directory
        target = case.get("target", "target")
        for name in case["begin"] + [target]:
            if name in files:
                with open(self.path(name), "wb") as file:
                    file.write(files[name])
        self.source, self.target = self.path(case["source"]), self.path(target)

    def path(self, name):
        return name if ":" in name else os.path.join(self.directory, name)

    def run(self):
        options = dict(self.case.get("options", {}))
        for key in ("journal", "changes"):
            if key in options:
                options[key] = self.path(options[key])
        options["source_format"] = self.case.get("source_format", "raw")
        if "format" in self.case:
            return diskferry.convert(self.source, self.target, self.case["format"], **options)
        return diskferry.copy(self.source, self.target, **options)

    def check(self):
        test, case = self.test, self.case
        for _ in range(case.get("runs", 1)):
            if "errno" not in case:
                account = self.run()
                continue
            with test.assertRaises(diskferry.Error) as caught:
                self.run()
            found = errno.errorcode.get(caught.exception.errno)
            test.assertEqual(found, case["errno"], str(caught.exception))
            test.assertIn(case.get("says", ""), str(caught.exception))
        if "wanted" not in case:
            test.assertFalse(os.path.exists(self.target), "the target is there")
            return
        held = self.shown()
        test.assertTrue(held == self.files[case["wanted"]], f"{len(held)} bytes, and not those wanted")
        if "digest" in case:
            test.assertEqual(account["digest"], diskferry.copy(self.source, "null:", digest=case["digest"])["digest"])
        if case.get("options", {}).get("verify"):
            test.assertTrue(account["verified"])
        if "allocated" in case:
            test.assertGreaterEqual(os.stat(self.target).st_blocks * 512, case["allocated"])

    def shown(self):
        """The bytes of the disk in the target."""
        path = self.target
        if "format" in self.case:
            path = self.path("shown")
            external = {"allow_external": self.directory} if "backing_file" in str(self.case) else {}
            diskferry.copy(self.target, path, source_format=self.case["format"], **external)
        with open(path, "rb") as file:
            return file.read()


if __name__ == "__main__":
    unittest.main()
