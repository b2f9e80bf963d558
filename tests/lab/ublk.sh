# Runs in the guest of the kernel lab, as root, in the directory that tests/lab/run shares, where the program is: disks are attached
# as block devices of ublk, written through a file system, detached, killed, and attached again by another process.
set -eu

ferry=$PWD/diskferry
cd /tmp
disk=/dev/ublkb0
sys=/sys/block/ublkb0

step() { echo "lab: $*"; }
fail() { echo "lab: FAILED: $*"; cat log 2>/dev/null; dmesg | tail -n 5; exit 1; }
# Attaches with these arguments, and waits until the disk is there.
start() {
  "$ferry" attach "$@" $disk 2>log &
  server=$!
  for second in $(seq 60); do
    "$ferry" attached | grep -q "^$disk: a disk of process $server" && return
    kill -0 $server 2>/dev/null || fail "attach has ended"
    sleep 1
  done
  fail "$disk is not there: $("$ferry" attached)"
}
# Expects this command to fail with these words.
refused() {
  words=$1
  shift
  ! "$@" 2>refusal || fail "not refused: $*"
  grep -qe "$words" refusal || fail "another refusal: $(cat refusal)"
}
ends() { wait $server || fail "the process ended with $?"; }
is_gone() { [ ! -e $disk ] && [ ! -e $sys ] || fail "the device is still there"; }
drop_caches() { blockdev --flushbufs $disk; echo 3 >/proc/sys/vm/drop_caches; }

step "without the driver"
modprobe -r ublk_drv
refused "modprobe ublk_drv" "$ferry" attach memory:1M $disk
modprobe ublk_drv

step "a file system on a raw file"
truncate -s 64M disk.raw
start disk.raw
[ "$(cat $sys/size)" = $((64 << 11)) ] || fail "it has $(cat $sys/size) sectors"
[ "$(cat $sys/queue/write_cache)" = "write back" ] || fail "the kernel sees no flush"
[ "$(cat $sys/queue/discard_max_bytes)" -gt 0 ] || fail "the kernel sees no discard"
[ "$(cat $sys/queue/write_zeroes_max_bytes)" -gt 0 ] || fail "the kernel sees no write zeroes"
"$ferry" attached --json | grep -q '"kind": "ublk"' || fail "it is not listed as JSON"
refused "in use" "$ferry" attach memory:1M $disk
mkfs.ext4 -q $disk
mkdir -p disk
mount $disk disk
cp -a /usr/share/doc/util-linux disk/
refused "--force" "$ferry" detach $disk
umount disk
"$ferry" detach $disk
ends
is_gone
e2fsck -fn disk.raw >/dev/null 2>&1 || fail "the file system is damaged"

step "an image: its clusters, discards and zeroes"
"$ferry" create -q -f qcow2 image.qcow2 64M
start --format qcow2 image.qcow2
[ "$(cat $sys/queue/discard_granularity)" = 65536 ] || fail "a discard frees $(cat $sys/queue/discard_granularity) bytes"
dd if=/usr/bin/qemu-img of=$disk bs=1M oflag=direct conv=sync status=none
blkdiscard -o 8M -l 8M $disk
dd if=/dev/urandom of=$disk bs=1M count=4 seek=20 oflag=direct status=none
blkdiscard -z -o 20M -l 4M $disk
drop_caches
cmp -n "$(stat -c %s /usr/bin/qemu-img)" /usr/bin/qemu-img $disk || fail "other bytes are read"
cmp -n $((4 << 20)) -i 20M:0 $disk /dev/zero || fail "what was zeroed is not zero"
# In the page cache only.
dd if=/usr/bin/qemu-img of=$disk bs=1M seek=32 status=none
kill -TERM $server
ends
is_gone
"$ferry" check image.qcow2 >/dev/null || fail "the image is damaged"
"$ferry" convert -q -f qcow2 -O raw image.qcow2 out.raw
cmp -n "$(stat -c %s /usr/bin/qemu-img)" -i 0:32M /usr/bin/qemu-img out.raw || fail "writes are lost at the end"

step "killed while a file system is written, and attached again"
truncate -s 256M big.raw
mkfs.ext4 -q big.raw
start big.raw
mount $disk disk
(
  for n in $(seq 40); do
    dd if=/dev/urandom of=disk/part-$n bs=64k count=32 conv=fsync status=none || exit 1
    sha256sum disk/part-$n >>sums
  done
) &
writer=$!
for kill in 1 2 3 4 5; do
  sleep 2
  kill -KILL $server
  wait $server 2>/dev/null || true
  if [ $kill = 1 ]; then
    for second in $(seq 20); do "$ferry" attached | grep -q "^$disk: waits" && break; sleep 1; done
    refused "its process has gone" "$ferry" detach $disk
    refused "under the same name" "$ferry" attach disk.raw $disk
    mv big.raw kept.raw
    truncate -s 1M big.raw
    refused "another size" "$ferry" attach big.raw $disk
    mv kept.raw big.raw
  fi
  start big.raw
done
wait $writer || fail "what was written failed"
[ "$(wc -l <sums)" = 40 ] || fail "the writer has not written all"
umount disk
drop_caches
mount $disk disk
sha256sum -c --quiet sums || fail "what was written between the kills is damaged"
umount disk
"$ferry" detach $disk
ends
e2fsck -fn big.raw >/dev/null 2>&1 || fail "the file system is damaged"

step "read-only; of another user; beside a server"
start --readonly disk.raw
[ "$(cat $sys/ro)" = 1 ] || fail "it can be written"
! dd if=/dev/zero of=$disk bs=4k count=1 oflag=direct status=none 2>/dev/null || fail "it was written"
kill -TERM $server
ends
is_gone
chown nobody disk.raw
start --user nobody disk.raw
[ "$(stat -c %U /proc/$server)" = nobody ] || fail "it is of $(stat -c %U /proc/$server)"
dd if=/usr/bin/qemu-img of=$disk bs=1M status=none
kill -TERM $server
ends
is_gone
cmp -n "$(stat -c %s /usr/bin/qemu-img)" /usr/bin/qemu-img disk.raw || fail "writes are lost"
"$ferry" serve --unix sock --attach $disk memory 16M 2>log &
server=$!
for second in $(seq 60); do [ -b $disk ] && break; sleep 1; done
dd if=/usr/bin/qemu-img of=$disk bs=1M count=4 oflag=direct status=none
"$ferry" convert -q -O raw "nbd+unix:///?socket=/tmp/sock" seen.raw
cmp -n $((1 << 20)) /usr/bin/qemu-img seen.raw || fail "the server has other bytes"
"$ferry" detach $disk
is_gone
kill -0 $server || fail "the server has ended with its attachment"
kill -TERM $server
ends

step "another size"
truncate -s 64M volume.raw
start volume.raw
truncate -s 96M volume.raw
grown=
for second in $(seq 10); do [ "$(cat $sys/size)" != $((96 << 11)) ] || grown=yes; sleep 1; done
if [ -n "$grown" ]; then
  dd if=/usr/bin/qemu-img of=$disk bs=1M seek=64 oflag=direct conv=sync status=none
  cmp -n "$(stat -c %s /usr/bin/qemu-img)" -i 0:64M /usr/bin/qemu-img volume.raw || fail "other bytes are behind the old end"
  truncate -s 32M volume.raw
  for second in $(seq 10); do [ "$(cat $sys/size)" != $((32 << 11)) ] || grown=no; sleep 1; done
  [ "$grown" = no ] || fail "it has not become shorter: $(cat $sys/size) sectors"
else
  printf '6.16\n%s\n' "$(uname -r)" | sort -VC && fail "it keeps its size on $(uname -r)"
fi
kill -TERM $server
ends
is_gone

step "what the kernel is told"
modprobe loop
losetup --sector-size 4096 -f --show disk.raw >loop
start "$(cat loop)"
for limit in logical_block_size=512 physical_block_size=4096 discard_granularity=4096; do
  [ "$(cat "$sys/queue/${limit%=*}")" = "${limit#*=}" ] || fail "${limit%=*} is $(cat "$sys/queue/${limit%=*}"), not ${limit#*=}"
done
kill -TERM $server
ends
is_gone
losetup -d "$(cat loop)"

step "verified by fio"
"$ferry" create -q -f qcow2 fio.qcow2 64M
start --format qcow2 fio.qcow2
for engine in psync:0 libaio:1; do
  fio --name=v --filename=$disk --ioengine="${engine%:*}" --direct="${engine#*:}" --rw=randtrimwrite --serialize_overlap=1 --bsrange=4k-128k \
    --size=48M --iodepth=16 --verify=crc32c --verify_fatal=1 --randseed=7 --output=fio.log || fail "fio: $(cat fio.log)"
done
kill -TERM $server
ends
is_gone
"$ferry" check fio.qcow2 >/dev/null || fail "the image is damaged"

step "its process has gone for good"
start memory:1M
kill -KILL $server
wait $server 2>/dev/null || true
for second in $(seq 20); do "$ferry" attached | grep -q "^$disk: waits" && break; sleep 1; done
"$ferry" detach --force $disk
is_gone
step "passed"
