#!/bin/bash
# Copies the disks of a job by an array job of Slurm, and proves them by a job that depends on it:
#   fleet.sh JOB PLAN TASKS [OPTION OF SBATCH]...
# PLAN goes to a directory that all nodes have at the same path, as they have the targets; its journals lie beside it. A source that
# is a file has to be there, too; a server is reached from each node. The same command goes on where an earlier one was stopped.
# In slurm.conf: RequeueExit=75 (a task that lost a server is run again), JobRequeue=1 (so are tasks of a node that is gone).
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
job=$1 plan=$(realpath -m "$2") tasks=$3
shift 3

[ -e "$plan" ] || diskferry plan "$job" -o "$plan"
# What a task has said stays when it is run again.
options=(--parsable --requeue --open-mode=append "$@")
command="exec diskferry run $(printf %q "$plan")"
array=$(sbatch "${options[@]}" --job-name=fleet-run --array="0-$((tasks - 1))" --output="$plan.run-%a.log" --wrap "$command")
command="exec diskferry finish --verify $(printf %q "$plan")"
# Not afterok: a task that was run again counts as failed there. `finish` itself refuses while a shard is missing.
last=$(sbatch "${options[@]}" --job-name=fleet-finish --dependency="afterany:${array%%;*}" \
  --output="$plan.finish.log" --wrap "$command")
printf 'run: %s, finish: %s; diskferry status %q\n' "${array%%;*}" "${last%%;*}" "$plan"
