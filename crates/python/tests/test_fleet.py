"""Shares of a plan, and the end of it, without Ray: the lab has that (tests/lab/ray)."""

import filecmp
import os
import subprocess
import tempfile
import unittest

from diskferry import fleet
from servers import DISKFERRY


class Shares(unittest.TestCase):
    def test_shares_in_any_order_and_twice_are_the_whole_and_finish_refuses_before(self):
        with tempfile.TemporaryDirectory() as folder:
            plan = os.path.join(folder, "plan.json")
            for n in range(3):
                with open(os.path.join(folder, f"{n}.raw"), "wb") as file:
                    file.write(os.urandom(1 << 20))
            job = os.path.join(folder, "job.toml")
            with open(job, "w") as file:
                file.write('[[disk]]\nsource = "*.raw"\ntarget = "{name}.img"\n')
            subprocess.run([DISKFERRY, "plan", "-q", job, "-o", plan], check=True)
            with self.assertRaisesRegex(fleet.Failed, "missing"):
                fleet.finish(plan, DISKFERRY)
            for index in (2, 0, 0, 1):
                fleet.share(plan, index, 3, DISKFERRY)
            digests = fleet.finish(plan, DISKFERRY, verify=True)
            self.assertEqual([len(line.split()[0]) for line in digests.splitlines()], [64] * 3)
            for n in range(3):
                raw, copy = (os.path.join(folder, f"{n}.{end}") for end in ("raw", "img"))
                self.assertTrue(filecmp.cmp(raw, copy, shallow=False))

    def test_what_fails_says_why(self):
        with self.assertRaisesRegex(fleet.Failed, "/nonexistent"):
            fleet.share("/nonexistent", 0, 1, DISKFERRY)


if __name__ == "__main__":
    unittest.main()
