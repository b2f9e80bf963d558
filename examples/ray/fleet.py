#!/usr/bin/env python3
"""Copies the disks of a job by tasks of Ray, and proves them:

    fleet.py JOB PLAN [SHARES]

PLAN goes to a directory that all nodes have at the same path, as they have the targets; its journals lie beside it. A source that is a
file has to be there, too; a server is reached from each node. All nodes have `diskferry` in PATH and the Python package (docs/python.md).
The same command goes on where an earlier one was stopped.
"""

import os
import subprocess
import sys

import ray

import diskferry.fleet


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    job, plan = sys.argv[1:3]
    if not os.path.exists(plan):
        subprocess.run(["diskferry", "plan", "-q", job, "-o", plan], check=True)
    ray.init(address="auto", log_to_driver=False)
    print(diskferry.fleet.run(plan, int(sys.argv[3]) if len(sys.argv) == 4 else None, verify=True), end="")


if __name__ == "__main__":
    main()
