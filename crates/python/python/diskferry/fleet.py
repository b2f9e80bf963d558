"""Many disks on a cluster of Ray: the shares of a plan, each as a task.

    import diskferry.fleet, ray

    ray.init(address="auto")
    print(diskferry.fleet.run("/fleet/plan.json", shares=20))

The plan was made by `diskferry plan`. Its directory, journals and targets are at the same paths on all nodes, and each node has the
program `diskferry` and this package. What becomes of a task harms nothing: a share may be run any number of times, also twice at once.
"""

import importlib
import os
import subprocess
import time
from typing import Any, Mapping, Optional, Sequence, Union

Path = Union[str, "os.PathLike[str]"]

#: The exit status of `run` where another try may succeed.
_AGAIN = 75
#: Seconds until the next try.
_PAUSE = 5


class Again(Exception):
    """A server was lost, or another process still runs a shard of this share: the task is run again."""


class Failed(Exception):
    """A share failed for good, or `finish` refused; the text is what the program said."""


def _call(words: Sequence[str]) -> str:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == _AGAIN:
        raise Again(done.stderr.strip())
    if done.returncode != 0:
        raise Failed(done.stderr.strip() or f"{words[0]} ended with {done.returncode}")
    return done.stdout


def share(plan: Path, index: int, count: int, program: Path = "diskferry") -> None:
    """Copies the share `index` of `count` equal ones, here. Raises Again or Failed."""
    try:
        _call([os.fspath(program), "run", "--quiet", os.fspath(plan), "--shard", f"{index}/{count}"])
    except Again:
        time.sleep(_PAUSE)
        raise


def finish(plan: Path, program: Path = "diskferry", verify: bool = False) -> str:
    """Proves all targets and publishes them; returns their digests, a line a disk. Raises Failed where a shard is missing."""
    return _call([os.fspath(program), "finish", *(["--verify"] if verify else []), os.fspath(plan)])


def run(
    plan: Path,
    shares: Optional[int] = None,
    *,
    program: Path = "diskferry",
    options: Optional[Mapping[str, Any]] = None,
    verify: bool = False,
) -> str:
    """Runs all shares as tasks of Ray and then `finish`, whose digests it returns.

    Ray is connected, or is by default. `shares` are as many as the cluster has processors, if not given. `options` are those of a task:
    `{"resources": {"near-storage": 1}}` keeps tasks where the sources are. A task whose node is lost, or that lost a server, is run again;
    other failures are raised together, as Failed, when all tasks have ended.
    """
    ray: Any = importlib.import_module("ray")

    plan = os.path.abspath(plan)
    count = shares or max(1, int(ray.cluster_resources().get("CPU", 1)))
    wishes = {"num_cpus": 1, "max_retries": -1, "retry_exceptions": [Again], "scheduling_strategy": "SPREAD"}
    task = ray.remote(share).options(**{**wishes, **(options or {})})
    failures = []
    for waited in [task.remote(plan, index, count, os.fspath(program)) for index in range(count)]:
        try:
            ray.get(waited)
        except Failed as failure:
            failures.append(str(failure))
    if failures:
        raise Failed("\n".join(failures))
    return finish(plan, program, verify)
