# Runs in the guest of the kernel lab, as root, in the directory that tests/lab/run shares: the Linux kernel's own
# NBD client works on our server's disk over four connections. The file `port` says where the server listens.
# Leaves `filesystem.sha256`, the digest of the first half of the disk as the guest reads it.
# The first half takes a file system with a copied tree; the second half is written, discarded and zeroed.
set -eu

disk=/dev/nbd0
half=$((128 << 20))
tree=/usr/share/doc
program=/usr/bin/qemu-img
port=$(cat port)

step() { echo "lab: $*"; }
fail() { echo "lab: FAILED: $*"; exit 1; }

# Over $1 connections; $2: how the kernel is set up. The short -C of nbd-client 3.26 crashes.
attach() {
  nbd-client -connections "$1" -N '' $2 10.0.2.2 "$port" $disk >attach.log 2>&1 || { cat attach.log; fail "nbd-client did not attach"; }
  # nbd-client returns before its child has started the device.
  for second in 1 2 3 4 5 6 7 8 9 10; do
    size=$(blockdev --getsize64 $disk)
    [ "$size" = 0 ] || break
    sleep 1
  done
  [ "$size" = $((2 * half)) ] || fail "the disk has $size bytes"
  hex=$(printf ':%04X' "$port")
  open=$(awk -v remote="$hex" '$4 == "01" && index($3, remote)' /proc/net/tcp | wc -l)
  [ "$open" = "$1" ] || fail "$open connections are open, wanted $1"
}
detach() {
  sync
  nbd-client -d $disk >/dev/null
  for second in 1 2 3 4 5 6 7 8 9 10; do
    nbd-client -c $disk >/dev/null || return 0
    sleep 1
  done
  fail "the disk stays attached"
}
# Bytes $1 … $1+$2 of the disk, read from the server and not from the page cache.
part() { dd if=$disk iflag=direct,skip_bytes,count_bytes bs=1M skip="$1" count="$2" status=none; }
must_be_zero() { part "$1" "$2" | cmp -n "$2" - /dev/zero || fail "bytes $1+$2 are not all zero after $3"; }

modprobe nbd
step "attach over four connections"
attach 4 -nonetlink
grep -q . /sys/block/nbd0/queue/discard_max_bytes || fail "no discard limit"
[ "$(cat /sys/block/nbd0/queue/discard_max_bytes)" -gt 0 ] || fail "the kernel sees no trim"
[ "$(cat /sys/block/nbd0/queue/write_cache)" = "write back" ] || fail "the kernel sees no flush"

step "make a file system, copy a tree"
mkfs.ext4 -q -F -b 4096 $disk $((half / 4096))
mkdir -p /tmp/disk
mount -t ext4 -o discard $disk /tmp/disk
cp -a $tree $program /tmp/disk/
sync
umount /tmp/disk

step "compare the tree as the server has it"
blockdev --flushbufs $disk
mount -t ext4 -o ro $disk /tmp/disk
diff -r --no-dereference $tree /tmp/disk/doc || fail "the tree differs"
cmp $program /tmp/disk/qemu-img || fail "the program differs"
umount /tmp/disk
fsck.ext4 -fn $disk || fail "the file system is damaged"

step "delete from the mounted disk, with discard, and check again"
mount -t ext4 -o discard $disk /tmp/disk
rm -r /tmp/disk/doc/qemu-utils /tmp/disk/qemu-img
cp $program /tmp/disk/again
fstrim /tmp/disk
umount /tmp/disk
fsck.ext4 -fn $disk || fail "the file system is damaged after fstrim"

step "write, discard and zero the second half"
head -c $((8 << 20)) /dev/urandom >/tmp/noise
dd if=/tmp/noise of=$disk oflag=direct,seek_bytes bs=256K seek=$half status=none
dd if=/tmp/noise of=$disk oflag=direct,seek_bytes bs=64K seek=$((half + (64 << 20))) status=none
part $half $((8 << 20)) | cmp - /tmp/noise || fail "the noise reads back differently"
must_be_zero $((half + (8 << 20))) $((56 << 20)) "nothing was written there"
blkdiscard -f -o $half -l $((64 << 20)) $disk
must_be_zero $half $((64 << 20)) "blkdiscard"
part $((half + (64 << 20))) $((8 << 20)) | cmp - /tmp/noise || fail "blkdiscard reached too far"
blkdiscard -f -z -o $((half + (64 << 20) + 4096)) -l $(((4 << 20) - 4096)) $disk
part $((half + (64 << 20))) $((8 << 20)) >/tmp/back
head -c 4096 /tmp/noise >/tmp/want
head -c $(((4 << 20) - 4096)) /dev/zero >>/tmp/want
tail -c $((4 << 20)) /tmp/noise >>/tmp/want
cmp /tmp/back /tmp/want || fail "zeroing four MiB but for a page did something else"

step "four writers at once, one a processor and a connection, verified"
fio --name=writers --filename=$disk --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bsrange=4k-64k --numjobs=4 \
  --cpus_allowed=0-3 --cpus_allowed_policy=split --offset=$((half + (96 << 20))) --offset_increment=8m --size=8m \
  --verify=crc32c --verify_fatal=1 --group_reporting --eta=never --output=/tmp/fio.log || { cat /tmp/fio.log; fail "fio found wrong data"; }

step "detach, attach again by one connection and by netlink"
detach
attach 1 ''
part 0 $half | sha256sum | cut -d' ' -f1 >filesystem.sha256
detach

if [ -e ca-cert.pem ]; then
  step "attach under TLS, which a process beside the kernel speaks"
  attach 1 "-nonetlink -cacertfile $PWD/ca-cert.pem -tlshostname localhost"
  [ "$(part 0 $half | sha256sum | cut -d' ' -f1)" = "$(cat filesystem.sha256)" ] || fail "another disk under TLS"
  dd if=/tmp/noise of=$disk oflag=direct,seek_bytes bs=64K count=16 seek=$((half + (112 << 20))) status=none
  part $((half + (112 << 20))) $((1 << 20)) | cmp -n $((1 << 20)) - /tmp/noise || fail "data written under TLS read back differently"
  detach
fi
step "done"
