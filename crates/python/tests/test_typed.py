"""The programs whose types are checked run, too."""

import asyncio
import os
import tempfile
import unittest

import diskferry

import typed


class Typed(unittest.TestCase):
    def test_the_programs_that_mypy_checks_run(self):
        with tempfile.TemporaryDirectory() as directory, diskferry.serve("memory:1M") as uri:
            self.assertEqual(typed.synchronous(uri), 1 << 20)
            self.assertEqual(bytes(asyncio.run(typed.asynchronous(uri))), b"hello")
            self.assertTrue(typed.disks(uri, os.path.join(directory, "copy")))

    def test_every_public_name_is_documented(self):
        missing = []
        for module in (diskferry, diskferry.nbd):
            for name, value in vars(module).items():
                if name.startswith("_") or not (callable(value) or isinstance(value, type)):
                    continue
                if not getattr(value, "__doc__", None):
                    missing.append(name)
                for method, function in vars(value).items() if isinstance(value, type) else ():
                    if not method.startswith("_") and not getattr(function, "__doc__", None):
                        missing.append(f"{name}.{method}")
        self.assertEqual(missing, [])


if __name__ == "__main__":
    unittest.main()
