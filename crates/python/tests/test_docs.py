"""docs/python.md: its programs print what it says, and its commands run."""

import os
import re
import subprocess
import sys
import unittest

from servers import DISKFERRY

DOCS = os.path.join(os.path.dirname(__file__), "..", "..", "..", "docs", "python.md")


class Docs(unittest.TestCase):
    def test_every_block_does_what_the_page_says(self):
        with open(DOCS) as file:
            page = file.read()
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.S | re.M)
        programs = 0
        for (kind, text), (following, printed) in zip(blocks, [*blocks[1:], ("", "")]):
            if kind == "python":
                words = [sys.executable, "-c", text]
            elif kind == "shell":
                words = ["sh", "-ec", text]
            else:
                continue
            programs += 1
            path = f"{os.path.dirname(sys.executable)}:{os.path.dirname(os.path.abspath(DISKFERRY))}"
            environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
            done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment)
            self.assertEqual((done.returncode, done.stderr), (0, ""), text)
            if following == "output":
                self.assertEqual(done.stdout, printed, text)
        self.assertGreaterEqual(programs, 6)


if __name__ == "__main__":
    unittest.main()
