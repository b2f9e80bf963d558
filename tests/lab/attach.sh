# Runs in the guest of the kernel lab, as root, in the directory that tests/lab/run shares, where the program is: disks are attached
# as block devices by the kernel's own NBD client, written through a file system, detached, and killed.
set -eu

ferry=$PWD/diskferry
cd /tmp

step() { echo "lab: $*"; }
fail() { echo "lab: FAILED: $*"; exit 1; }
# Waits until the device $1 has $2 bytes.
has() {
  for second in $(seq 60); do
    [ "$(cat "/sys/block/$1/size")" = $(($2 / 512)) ] && return
    sleep 1
  done
  fail "$1 has not $2 bytes: $(cat log)"
}
is_free() {
  for second in $(seq 60); do
    [ -e "/sys/block/$1/pid" ] || return 0
    sleep 1
  done
  fail "$1 is still connected"
}

modprobe nbd
step "a file system on a raw file"
truncate -s 64M disk.raw
"$ferry" attach disk.raw /dev/nbd0 2>log &
server=$!
has nbd0 $((64 << 20))
[ "$("$ferry" attached)" = "/dev/nbd0: disk.raw" ] || fail "it is not listed"
"$ferry" attach memory:1M /dev/nbd0 2>/dev/null && fail "attached twice"
mkfs.ext4 -q /dev/nbd0
mkdir -p disk
mount /dev/nbd0 disk
cp -a /usr/share/doc/util-linux disk/
"$ferry" detach /dev/nbd0 2>/dev/null && fail "a mounted disk was detached"
umount disk
"$ferry" detach /dev/nbd0
wait $server || fail "the server ended with $?: $(cat log)"
e2fsck -fn disk.raw >/dev/null 2>&1 || fail "the file system is damaged"

step "another size"
truncate -s 64M volume.raw
"$ferry" attach volume.raw /dev/nbd4 2>log &
server=$!
has nbd4 $((64 << 20))
truncate -s 96M volume.raw
has nbd4 $((96 << 20))
dd if=/usr/bin/qemu-img of=/dev/nbd4 bs=1M seek=64 oflag=direct conv=sync status=none
cmp -n "$(stat -c %s /usr/bin/qemu-img)" -i 0:64M /usr/bin/qemu-img volume.raw || fail "other bytes are behind the old end"
truncate -s 32M volume.raw
has nbd4 $((32 << 20))
"$ferry" detach /dev/nbd4
wait $server || fail "the server ended with $?: $(cat log)"

step "what the kernel is told"
modprobe loop
losetup --sector-size 4096 -f --show disk.raw >loop
"$ferry" attach "$(cat loop)" /dev/nbd5 2>log &
server=$!
has nbd5 $((64 << 20))
[ "$(cat /sys/block/nbd5/queue/logical_block_size)" = 4096 ] || fail "blocks of $(cat /sys/block/nbd5/queue/logical_block_size) bytes"
[ "$(cat /sys/block/nbd5/queue/physical_block_size)" = 4096 ] || fail "physical blocks of $(cat /sys/block/nbd5/queue/physical_block_size) bytes"
[ "$(cat /sys/block/nbd5/queue/discard_max_bytes)" -gt 0 ] || fail "the kernel sees no discard"
"$ferry" detach /dev/nbd5
wait $server || fail "the server ended with $?: $(cat log)"
losetup -d "$(cat loop)"

step "verified by fio"
"$ferry" create -q -f qcow2 fio.qcow2 64M
"$ferry" attach --format qcow2 fio.qcow2 /dev/nbd6 2>log &
server=$!
has nbd6 $((64 << 20))
for engine in psync:0 libaio:1; do
  fio --name=v --filename=/dev/nbd6 --ioengine="${engine%:*}" --direct="${engine#*:}" --rw=randtrimwrite --serialize_overlap=1 --bsrange=4k-128k \
    --size=48M --iodepth=16 --verify=crc32c --verify_fatal=1 --randseed=7 --output=fio.log || fail "fio: $(cat fio.log)"
done
"$ferry" detach /dev/nbd6
wait $server || fail "the server ended with $?: $(cat log)"
"$ferry" check fio.qcow2 >/dev/null || fail "the image is damaged"

step "under the name qemu-nbd; what is in the page cache only"
"$ferry" create -q -f qcow2 image.qcow2 64M
"$ferry" as qemu-nbd --connect=/dev/nbd1 -f qcow2 image.qcow2
has nbd1 $((64 << 20))
dd if=/usr/bin/qemu-img of=/dev/nbd1 bs=1M status=none
"$ferry" as qemu-nbd --disconnect /dev/nbd1
is_free nbd1
sleep 2
"$ferry" check image.qcow2 >/dev/null || fail "the image is damaged"
"$ferry" convert -f qcow2 -O raw image.qcow2 out.raw
cmp -n "$(stat -c %s /usr/bin/qemu-img)" /usr/bin/qemu-img out.raw || fail "the image has other bytes"

step "ended by a signal, and killed"
for signal in TERM KILL; do
  "$ferry" attach disk.raw /dev/nbd2 2>log &
  server=$!
  has nbd2 $((64 << 20))
  dd if=/usr/bin/qemu-img of=/dev/nbd2 bs=1M status=none
  kill -$signal $server
  wait $server || [ $signal = KILL ] || fail "the server ended with $?"
  # Without its server it stays, with errors, until it is detached.
  [ $signal = TERM ] || "$ferry" detach --force /dev/nbd2 2>/dev/null || fail "the dead device is not detached"
  is_free nbd2
  [ $signal = KILL ] || cmp -n "$(stat -c %s /usr/bin/qemu-img)" /usr/bin/qemu-img disk.raw || fail "writes are lost"
done
step "passed"
