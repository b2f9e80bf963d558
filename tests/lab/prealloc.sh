# Runs in the guest of the kernel lab, as root: preallocation, on a disk that zeroes by itself. Needs `diskferry`,
# a static or otherwise runnable binary, in the directory that is shared.
# scsi_debug has write_zeroes_unmap here; it is loaded again without lbprz for the other half.
set -eu

ferry=/host/diskferry
step() { echo "lab: $*"; }
fail() { echo "lab: FAILED: $*"; exit 1; }
limit() { cat "/sys/block/$1/queue/write_zeroes_unmap_max_bytes"; }
# Bytes for which the disk keeps data: scsi_debug has a map of its blocks, and forgets those that it was told to zero and unmap.
# (The kernel's own counters of written sectors count zeroes, too.)
written() {
  tr ',' '\n' </sys/bus/pseudo/drivers/scsi_debug/map | awk -F- 'NF { n += ($2 == "" ? 1 : $2 - $1 + 1) } END { print n * 512 }'
}
disk_of_scsi_debug() {
  for model in /sys/block/sd*/device/model; do
    grep -q scsi_debug "$model" && { basename "${model%/device/model}"; return; }
  done
  fail "scsi_debug made no disk"
}
way() { sed 's/.*"way":"\([^"]*\)".*/\1/'; }
all_written() {
  filefrag -v -s "$1" >/tmp/map
  ! grep -q unwritten /tmp/map || { cat /tmp/map; fail "$1 has unwritten extents"; }
  blocks=$(awk -F: '$1 + 0 == $1 && NF > 3 { n += $4 } END { print n }' /tmp/map)
  [ "$blocks" = $(($2 / 4096)) ] || { cat /tmp/map; fail "$1 has $blocks blocks of $2 bytes"; }
}

disk=$(disk_of_scsi_debug)
step "the disk $disk: write_zeroes_unmap_max_bytes $(limit "$disk")"
[ "$(limit "$disk")" != 0 ] || fail "the disk has no write_zeroes_unmap"

step "the block device itself"
dd if=/dev/urandom of=/dev/$disk bs=1M count=1 seek=3 conv=fsync status=none
sum=$(dd if=/dev/$disk bs=1M count=1 skip=3 iflag=direct status=none | md5sum)
before=$(written)
$ferry prealloc -q --json --length 64M /dev/$disk >/tmp/said || fail "prealloc of the device"
cat /tmp/said
[ "$(way </tmp/said)" = write-zeroes ] || fail "the way is $(way </tmp/said)"
[ $(($(written) - before)) -lt $((1 << 20)) ] || fail "$(($(written) - before)) bytes were written"
[ "$(dd if=/dev/$disk bs=1M count=1 skip=3 iflag=direct status=none | md5sum)" = "$sum" ] || fail "data were lost"
$ferry zero -q -Z -o 3M -l 1M /dev/$disk || fail "zero -Z"
dd if=/dev/$disk bs=1M count=1 skip=3 iflag=direct status=none | cmp -n 1048576 - /dev/zero || fail "not zero"

mkdir -p /tmp/mnt
for kind in ext4 xfs; do
  step "$kind"
  case $kind in
    ext4) mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 /dev/$disk ;;
    xfs) mkfs.xfs -q -f /dev/$disk ;;
  esac
  mount /dev/$disk /tmp/mnt
  sync
  before=$(written)
  $ferry prealloc -q --json --size 128M /tmp/mnt/file >/tmp/said || fail "prealloc on $kind"
  cat /tmp/said
  sync
  all_written /tmp/mnt/file $((128 << 20))
  cost=$(($(written) - before))
  if [ "$(way </tmp/said)" = write-zeroes ]; then
    [ "$cost" -lt $((16 << 20)) ] || fail "$cost bytes were written for 128 MiB of zeroes"
  else
    # A file system whose FALLOC_FL_WRITE_ZEROES this kernel does not have yet.
    [ $kind != ext4 ] || fail "the way on ext4 is $(way </tmp/said)"
    step "$kind has no FALLOC_FL_WRITE_ZEROES in $(uname -r)"
  fi
  step "$kind: $(way </tmp/said), $cost bytes written"
  # A file that was allocated and written in part, and is to be completed.
  $ferry prealloc -q --mode unwritten --size 32M /tmp/mnt/part
  echo hello | dd of=/tmp/mnt/part bs=1 seek=5000000 conv=notrunc status=none
  $ferry prealloc -q --json /tmp/mnt/part
  all_written /tmp/mnt/part $((32 << 20))
  [ "$(dd if=/tmp/mnt/part bs=1 skip=5000000 count=5 status=none)" = hello ] || fail "data were lost on $kind"
  cmp -n 5000000 /tmp/mnt/part /dev/zero || fail "not zero on $kind"
  strace -f -e trace=fallocate,ftruncate,pwritev -o /tmp/calls $ferry prealloc -q --size 16M /tmp/mnt/traced
  grep -E 'fallocate|ftruncate|pwritev' /tmp/calls | cut -c1-120
  umount /tmp/mnt
done

step "a disk whose unmapped blocks need not read as zeroes"
rmmod scsi_debug
modprobe scsi_debug dev_size_mb=256 lbpws=1 lbpu=1 lbprz=0
for second in 1 2 3 4 5; do ls /sys/block/sd* >/dev/null 2>&1 && break; sleep 1; done
disk=$(disk_of_scsi_debug)
step "write_zeroes_unmap_max_bytes $(limit "$disk")"
$ferry prealloc -q --json --length 32M /dev/$disk >/tmp/said || fail "prealloc without lbprz"
cat /tmp/said
[ "$(limit "$disk")" != 0 ] || [ "$(way </tmp/said)" = zero-out ] || fail "the way is $(way </tmp/said)"
dd if=/dev/$disk bs=1M count=32 iflag=direct status=none | cmp -n $((32 << 20)) - /dev/zero || fail "not zero without lbprz"

modprobe virtio_blk
# Other disks are believed in what they advertise, and their contents are checked afterwards.
for other in nvme0n1 vda; do
  [ -b /dev/$other ] || fail "there is no /dev/$other"
  head -c 1048576 /dev/urandom | tee /tmp/noise | dd of=/dev/$other bs=1M seek=5 conv=fsync iflag=fullblock status=none
  $ferry prealloc -q --json --length 32M /dev/$other >/tmp/said || fail "prealloc of $other"
  step "$other: write_zeroes_unmap_max_bytes $(limit $other), $(way </tmp/said)"
  want=zero-out
  [ "$(limit $other)" = 0 ] || want=write-zeroes
  [ "$(way </tmp/said)" = $want ] || fail "the way on $other is $(way </tmp/said), not $want"
  dd if=/dev/$other bs=1M skip=5 count=1 iflag=direct status=none | cmp - /tmp/noise || fail "data were lost on $other"
  dd if=/dev/$other bs=1M count=5 iflag=direct status=none | cmp -n $((5 << 20)) - /dev/zero || fail "not zero on $other"
done

step "partitions are read again after a copy"
# A disk with a GPT of two partitions, made where this was started.
cp /host/table /tmp/table
for other in $disk vda nvme0n1; do
  $ferry copy -q /tmp/table /dev/$other || fail "copy of a table to $other"
  part=$other
  case $other in *[0-9]) part=${other}p ;; esac
  [ "$(cat /sys/block/$other/${part}1/start)" = 2048 ] || fail "the kernel does not know ${part}1"
  [ "$(cat /sys/block/$other/${part}2/size)" = 32768 ] || fail "the kernel does not know ${part}2"
  step "$other: $(ls -d /sys/block/$other/$part* | tr '\n' ' ')"
  mkfs.ext4 -q "/dev/${part}1"
  mount "/dev/${part}1" /tmp/mnt
  ! $ferry zero /dev/$other 2>/tmp/refusal || fail "a disk with a mounted partition was zeroed"
  grep -q "its partition ${part}1 is mounted on /tmp/mnt" /tmp/refusal || { cat /tmp/refusal; fail "the refusal"; }
  umount /tmp/mnt
  $ferry copy -q zero:64M /dev/$other || fail "copy of zeroes to $other"
  [ ! -e "/sys/block/$other/${part}1" ] || fail "the kernel still has ${part}1"
done
step "done"
