"""Nodes of Ray that are killed while a fleet runs on them: see the script beside this one, `ray`."""

import filecmp
import json
import os
import subprocess
import sys
import time

from ray.cluster_utils import Cluster

DISKS = int(sys.argv[2]) if len(sys.argv) > 2 else 200
NODES, EACH, SECONDS = 10, 2, 10
# Of all readers of the sources, a second.
RATE = "24M"


def ferry(*words: str) -> str:
    return subprocess.run(["diskferry", *words], check=True, capture_output=True, text=True).stdout


def make_sources() -> subprocess.Popen:
    """Disks of 8 MiB, and every twentieth of 128 MiB, with holes; what serves them, and counts what is read."""
    for folder in ("sources", "targets"):
        os.mkdir(folder)
    with open("job.toml", "w") as job:
        job.write(f'[limits]\nshard-size = "16M"\nrate = "{RATE}"\nreaders = {NODES * EACH}\n')
        for n in range(DISKS):
            size = "128M" if n % 20 == 0 else "8M"
            disk = f"sparse-random:{size}?seed={n}&percent=60&runlength=1M&random-content=true"
            ferry("copy", "-q", disk, f"sources/{n}.raw")
            socket = os.path.abspath("sources.sock")
            job.write(f'[[disk]]\nsource = "nbd+unix:///{n}.raw?socket={socket}"\ntarget = "targets/{n}.img"\n')
    words = ["serve", "-r", "--filter=stats", "-U", "sources.sock", "file", "dir=sources", "statsformat=json", "statsfile=reads"]
    return subprocess.Popen(["diskferry", *words])


def main() -> None:
    server = make_sources()
    try:
        kills = run_with_kills()
    finally:
        server.terminate()
        server.wait()
    with open("reads") as reads:
        read = json.load(reads)["operations"]["read"]["bytes"]
    data = json.loads(ferry("status", "--json", "plan.json"))["data"]
    print(f"ray: {DISKS} disks, {data >> 20} MiB, {kills} nodes killed; all are right; read {read / data:.3f} of the data")
    sys.exit(read > 1.05 * data)


def run_with_kills() -> int:
    # The head has no processors for tasks: only nodes that can be killed run them.
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=EACH) for _ in range(NODES)]
    environment = os.environ | {"RAY_ADDRESS": cluster.address}
    command = [sys.executable, sys.argv[1], "job.toml", "plan.json", str(NODES * EACH)]
    # A pipe that is not read until the end would fill.
    with open("digests", "w") as digests:
        fleet = subprocess.Popen(command, env=environment, stdout=digests)
    while not os.path.exists("plan.json"):
        time.sleep(0.1)
    refused = subprocess.run(["diskferry", "finish", "-q", "plan.json"], capture_output=True, text=True)
    assert refused.returncode == 1 and "missing" in refused.stderr, refused
    kills = 0
    while fleet.poll() is None:
        time.sleep(SECONDS)
        status = json.loads(ferry("status", "--json", "plan.json"))
        if not status["copied"] or status["copied"] == status["data"]:
            continue
        cluster.remove_node(nodes.pop(0), allow_graceful=False)
        nodes.append(cluster.add_node(num_cpus=EACH))
        kills += 1
    with open("digests") as digests:
        said = digests.read()
    # Ray speaks there, too.
    digests = [line for line in said.splitlines() if line.endswith(".img") and len(line.split()[0]) == 64]
    assert fleet.returncode == 0, fleet.returncode
    assert kills > 2, f"only {kills} nodes were killed before all was done"
    assert len(digests) == DISKS, said
    for n in range(DISKS):
        assert filecmp.cmp(f"sources/{n}.raw", f"targets/{n}.img", shallow=False), n
    cluster.shutdown()
    return kills


main()
