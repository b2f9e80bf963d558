"""Nodes of Ray that are killed while a fleet runs on them: see the script beside this one, `ray`."""

import filecmp
import json
import os
import subprocess
import sys
import time

from ray.cluster_utils import Cluster

DISKS, NODES, KILLS, SECONDS = 40, 4, 3, 10


def ferry(*words: str) -> str:
    return subprocess.run(["diskferry", *words], check=True, capture_output=True, text=True).stdout


def make_sources() -> None:
    for folder in ("sources", "targets"):
        os.mkdir(folder)
    for n in range(DISKS):
        size = "64M" if n % 20 == 0 else "8M"
        ferry("copy", "-q", f"sparse-random:{size}?seed={n}&percent=60&random-content=true", f"sources/{n}.raw")
    with open("job.toml", "w") as job:
        job.write('[limits]\nshard-size = "16M"\nrate = "8M"\nreaders = 8\n')
        job.write('[[disk]]\nsource = "sources/*.raw"\ntarget = "targets/{name}.img"\n')


def main() -> None:
    make_sources()
    # The head has no processors for tasks: only nodes that can be killed run them.
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=2) for _ in range(NODES)]
    environment = os.environ | {"RAY_ADDRESS": cluster.address}
    command = [sys.executable, sys.argv[1], "job.toml", "plan.json", "8"]
    fleet = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    while not os.path.exists("plan.json"):
        time.sleep(0.1)
    refused = subprocess.run(["diskferry", "finish", "-q", "plan.json"], capture_output=True, text=True)
    assert refused.returncode == 1 and "missing" in refused.stderr, refused
    kills = 0
    while kills < KILLS and fleet.poll() is None:
        time.sleep(SECONDS)
        if not json.loads(ferry("status", "--json", "plan.json"))["copied"]:
            continue
        cluster.remove_node(nodes.pop(0), allow_graceful=False)
        nodes.append(cluster.add_node(num_cpus=2))
        kills += 1
    said, _ = fleet.communicate()
    # Ray speaks there, too.
    digests = [line for line in said.splitlines() if line.endswith(".img") and len(line.split()[0]) == 64]
    assert fleet.returncode == 0, fleet.returncode
    assert kills > 1, f"all was done before {kills} nodes were killed"
    assert len(digests) == DISKS, said
    for n in range(DISKS):
        assert filecmp.cmp(f"sources/{n}.raw", f"targets/{n}.img", shallow=False), n
    cluster.shutdown()
    print(f"ray: {DISKS} disks, {kills} nodes killed; all are right")


main()
