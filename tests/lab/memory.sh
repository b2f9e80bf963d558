# Runs in the guest of the kernel lab, as root: copies in control groups of version 2, and from and to 9p. Needs `diskferry` in the directory that
# is shared. The machine of the other tests may have version 1 only.
set -eu

cp /host/diskferry /tmp/diskferry
ferry=/tmp/diskferry
groups=/sys/fs/cgroup
mib=1048576
step() { echo "lab: $*"; }
fail() { echo "lab: FAILED: $*"; exit 1; }

step "files on 9p, which have a new inode whenever they are looked up"
mkdir "/host/a b"
source="/host/a b/source"
head -c $mib /dev/urandom >"$source"
for wish in off auto require; do
  # To the last one twice: created, and overwritten.
  for target in /tmp/from-9p "/host/a b/target" "/host/a b/target"; do
    $ferry copy -q --sandbox=$wish "$source" "$target" || fail "--sandbox=$wish: it was not copied to $target"
    cmp "$source" "$target" || fail "--sandbox=$wish: $target is not as the source"
  done
  rm /tmp/from-9p "/host/a b/target"
done
rm -r "/host/a b"

modprobe virtio_blk
[ -e $groups/cgroup.controllers ] || mount -t cgroup2 none $groups
grep -qw memory $groups/cgroup.controllers || fail "this kernel has no memory controller of version 2"
echo +memory >$groups/cgroup.subtree_control

# Runs the rest of the words in a new group with $1 as memory.max and $2 as memory.high; leaves what happened in `events`.
in_group() {
  mkdir $groups/lab
  echo "$1" >$groups/lab/memory.max
  echo "$2" >$groups/lab/memory.high
  shift 2
  status=0
  sh -c 'echo 0 >/sys/fs/cgroup/lab/cgroup.procs; exec "$@"' sh "$@" || status=$?
  events=$(tr '\n' ' ' <$groups/lab/memory.events)
  peak=$(($(cat $groups/lab/memory.peak) / mib))
  # The pages that it left in the page cache then belong to no group.
  rmdir $groups/lab
}
event() { echo "$events" | sed -n "s/.*\b$1 \([0-9]*\).*/\1/p"; }
# MiB of a file that lie in memory.
resident() { $ferry cache stat --json "$1" | sed 's/.*"cached":\([0-9]*\).*/\1/' | awk '{ print int($1 / 256) }'; }

mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 /dev/vda
mkdir -p /tmp/disk
mount /dev/vda /tmp/disk
source=/tmp/disk/source target=/tmp/disk/target
head -c $((200 * mib)) /dev/urandom >$source
$ferry cache evict $source >/dev/null

step "twenty copies of 200 MiB in a group of 128 MiB"
round=0
while [ $round -lt 20 ]; do
  case $((round % 4)) in
    0 | 1) from=$source words= ;;
    2) from=random:200M words= ;;
    3) from=file:$source?cache=none words="--request-size 64k" ;;
  esac
  in_group 128M max $ferry copy -q $words "$from" $target
  [ "$status" = 0 ] || fail "copy $round ended with status $status: $events"
  [ "$(event oom)" = 0 ] && [ "$(event oom_kill)" = 0 ] || fail "copy $round: $events"
  [ $round -ge 4 ] || step "copy $round: at most $peak MiB; $events"
  [ "$from" != $source ] || [ $round -ge 4 ] || cmp $source $target || fail "copy $round is not the source"
  $ferry cache evict $source >/dev/null
  rm $target
  round=$((round + 1))
done

# Short requests go through the page cache. Of a file of up to 64 MiB `auto` leaves an eighth of what the group leaves, at most 64 MiB;
# of a longer one nothing.
short=/tmp/disk/short
head -c $((60 * mib)) $source >$short
for limits in "max max 40 70 $short" "128M max 4 24 $short" "128M 64M 0 8 $short" "max max 0 2 $source"; do
  set -- $limits
  $ferry cache evict $source $short >/dev/null
  in_group "$1" "$2" $ferry copy -q --request-size 32k "file:$5?cache=auto" "file:$target?cache=auto"
  [ "$status" = 0 ] || fail "memory.max $1, memory.high $2: status $status: $events"
  left=$(($(resident $5) + $(resident $target)))
  step "memory.max $1, memory.high $2, $5: $left MiB stay"
  [ $left -ge "$3" ] && [ $left -le "$4" ] || fail "$left MiB stay, not $3 to $4"
  rm $target
done
umount /tmp/disk
step "done"
