# Runs in the guest of the kernel lab, as root, in a directory with our binary: copies a sparse disk onto block devices,
# clean ones and ones full of old bytes. All must become equal to the source. Where a device can be zeroed without writing, or is
# clean, the sectors that are written (zeroed ones apart, as far as the kernel tells them apart) are the data.
set -eu

size=$((32 << 20))
cp diskferry /tmp/diskferry
ferry=/tmp/diskferry
failed=

modprobe -a virtio_blk loop || true

say() { echo "lab: $*"; }
fail() { echo "lab: FAILED: $*"; failed=yes; }

# Eight times a quarter of a MiB of data: 2 MiB.
truncate -s $size /tmp/source
for i in 0 1 2 3 4 5 6 7; do
  head -c 262144 /dev/urandom | dd of=/tmp/source bs=4M seek=$i conv=notrunc status=none
done
data=$((8 * 262144))
head -c $size /dev/zero | tr '\0' '\252' >/tmp/dirty
# The same with a few bytes here and there.
truncate -s $size /tmp/odd
for i in 1 3 7 100 101 1000 4000 6000 8191; do
  head -c 5000 /dev/urandom | dd of=/tmp/odd bs=4096 seek=$i conv=notrunc iflag=fullblock status=none
done
truncate -s $size /tmp/odd

# There is no udev here: dmsetup makes its nodes itself.
export DM_DISABLE_UDEV=1

about() { echo "/sys/dev/block/$((0x$(stat -Lc %t "$1"))):$((0x$(stat -Lc %T "$1")))"; }
# Sectors written so far; the kernel counts zeroing requests as writes too.
written() { awk '{print $7}' "$(about "$1")/stat"; }
limit() { cat "$(about "$1")/queue/$2" 2>/dev/null || echo none; }

# Fails unless the first bytes of device $1 are the source's, as read from the device.
check() {
  blockdev --flushbufs "$1"
  cmp -n $size "$1" /tmp/source >/tmp/cmp 2>&1 || fail "$2: $(cat /tmp/cmp)"
}
# The device $1, called $2: full of old bytes, then clean.
try() {
  say "$2: write_zeroes_max_bytes=$(limit "$1" write_zeroes_max_bytes) discard_max_bytes=$(limit "$1" discard_max_bytes)"
  dd if=/tmp/dirty of="$1" bs=1M conv=fsync status=none
  before=$(written "$1")
  $ferry copy -q /tmp/source "$1" || fail "$2, full: status $?"
  say "  full of 0xAA: $((($(written "$1") - before) * 512)) bytes written or zeroed"
  check "$1" "$2, full"
  # Twice as much as the copy touches is clean.
  dd if=/dev/zero of="$1" bs=1M count=$((size >> 20)) conv=fsync status=none
  [ -z "${3:-}" ] || $3
  before=$(written "$1")
  $ferry copy -q /tmp/source "$1" || fail "$2, clean: status $?"
  bytes=$((($(written "$1") - before) * 512))
  say "  clean: $bytes bytes written or zeroed, $data of data"
  check "$1" "$2, clean"
  if [ "$(limit "$1" write_zeroes_max_bytes)" = 0 ] && [ $bytes -gt $((data + data / 100)) ]; then
    fail "$2, clean: $bytes bytes were written for $data"
  fi
  $ferry copy -q --target-is-zero /tmp/source "$1" 2>/tmp/claim && fail "$2: a false claim was believed" || true
  grep -q 'does not read as zeroes' /tmp/claim || fail "$2: $(cat /tmp/claim)"
}

# dm-thin: the space that the volume has taken, in blocks of the pool.
thin_used() { dmsetup status lab-thin | awk '{print $4}'; }
empty_thin() { blkdiscard /dev/mapper/lab-thin; say "  discarded: $(thin_used) sectors mapped"; }

scsi() { for d in /sys/block/sd*; do grep -q scsi_debug "$d/device/model" && echo "/dev/$(basename "$d")" && return; done; }
reload() {
  modprobe -r scsi_debug || { say "scsi_debug cannot be unloaded"; return 1; }
  modprobe scsi_debug dev_size_mb=256 "$@" && sleep 1 && udevadm settle 2>/dev/null || true
  [ -n "$(scsi)" ]
}

if [ -n "$(scsi)" ]; then
  try "$(scsi)" "scsi_debug, lbprz=1"
  # A pool of half the disk, with its metadata on a part of it.
  disk=$(scsi)
  echo "0 8192 linear $disk 0" | dmsetup create lab-meta
  echo "0 262144 linear $disk 8192" | dmsetup create lab-data
  dd if=/dev/zero of=/dev/mapper/lab-meta bs=4K count=16 conv=fsync status=none
  if echo "0 262144 thin-pool /dev/mapper/lab-meta /dev/mapper/lab-data 128 0" | dmsetup create lab-pool; then
    dmsetup message lab-pool 0 "create_thin 0"
    echo "0 $((size / 512)) thin /dev/mapper/lab-pool 0" | dmsetup create lab-thin
    try /dev/mapper/lab-thin "dm-thin" empty_thin
    used=$(($(thin_used) * 512))
    say "  the volume occupies $used bytes of its pool"
    [ $used -le $((data + 16 * 65536)) ] || fail "dm-thin: $used bytes are mapped for $data"
    # A full volume has all its room: zeroes over its data take no more, and give none back.
    dd if=/tmp/dirty of=/dev/mapper/lab-thin bs=1M conv=fsync status=none
    $ferry copy -q /tmp/source /dev/mapper/lab-thin || fail "dm-thin, full again"
    check /dev/mapper/lab-thin "dm-thin, full again"
    say "  full: the volume occupies $(($(thin_used) * 512)) bytes"
    [ $(($(thin_used) * 512)) = $size ] || fail "dm-thin, full: $(thin_used) sectors are mapped"
    dmsetup remove lab-thin
    dmsetup remove lab-pool
    # A pool that hands out blocks with old bytes: a range that reads as zeroes does not any more, once something is written to the same block.
    for told in "" --target-is-zero; do
      for block in 128 2048 6144; do
        head -c $((1 << 27)) /dev/zero | tr '\0' '\252' | dd of=/dev/mapper/lab-data bs=1M conv=fsync status=none
        dd if=/dev/zero of=/dev/mapper/lab-meta bs=4K count=16 conv=fsync status=none
        echo "0 262144 thin-pool /dev/mapper/lab-meta /dev/mapper/lab-data $block 0 1 skip_block_zeroing" | dmsetup create lab-pool
        dmsetup message lab-pool 0 "create_thin 0"
        echo "0 $((size / 512)) thin /dev/mapper/lab-pool 0" | dmsetup create lab-thin
        $ferry copy -q $told /tmp/odd /dev/mapper/lab-thin || fail "dm-thin without zeroing: status $?"
        blockdev --flushbufs /dev/mapper/lab-thin
        cmp -n $size /dev/mapper/lab-thin /tmp/odd >/tmp/cmp 2>&1 || fail "dm-thin without zeroing, $block $told: $(cat /tmp/cmp)"
        say "dm-thin without zeroing, blocks of $((block / 2)) KiB $told: $(($(thin_used) * 512)) bytes mapped"
        dmsetup remove lab-thin
        dmsetup remove lab-pool
      done
    done
    # A linear volume over the disk is what LVM makes.
  else
    fail "no thin pool"
  fi
  dmsetup remove lab-data
  dmsetup remove lab-meta
  echo "0 $((size / 512)) linear $disk 2048" | dmsetup create lab-linear
  try /dev/mapper/lab-linear "dm-linear, as LVM makes it"
  dmsetup remove lab-linear
  if reload lbprz=0 lbpu=1 lbpws=1; then try "$(scsi)" "scsi_debug, lbprz=0"; fi
  if reload lbprz=2 lbpu=1 lbpws=1; then
    # Unmapped blocks read as 0xFF, and the kernel is made to unmap where zeroes are asked for.
    mode=$(ls /sys/class/scsi_disk/*/zeroing_mode | tail -n 1)
    echo writesame_16_unmap >"$mode" && try "$(scsi)" "scsi_debug that lies ($(cat "$mode"))"
  fi
else
  say "this kernel has no scsi_debug"
fi
for disk in /dev/nvme0n1 /dev/vda; do
  if [ -b $disk ]; then try $disk "$disk"; else say "there is no $disk"; fi
done
truncate -s $size /tmp/backing
loop=$(losetup -f --show /tmp/backing) && try "$loop" "loop over tmpfs"
[ -z "$failed" ] || exit 1
say "all passed"
