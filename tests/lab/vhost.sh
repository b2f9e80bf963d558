# Runs in the guest of the kernel lab, as root, in the directory that tests/lab/run shares: each of its disks that is attached by
# vhost-user-blk is written past the page cache and through it, and through a file system; $disks has their serial numbers.
set -eu

room=$PWD
disks="raw image"
cd /tmp

step() { echo "lab: $*"; }
fail() { echo "lab: FAILED: $*"; dmesg | tail -n 5; exit 1; }
# The device with this serial number.
device_of() {
  for directory in /sys/block/vd*; do
    [ "$(cat "$directory/serial" 2>/dev/null)" != "$1" ] || echo "/dev/${directory##*/}"
  done
}

modprobe virtio_blk
for name in $disks; do
  for second in $(seq 60); do
    [ -z "$(device_of $name)" ] || break
    sleep 1
  done
  disk=$(device_of $name)
  [ -b "$disk" ] || fail "there is no $name"
  sys=/sys/block/${disk##*/}
  [ "$(ls "$sys/mq" | wc -l)" = 4 ] || fail "$name has $(ls "$sys/mq" | wc -l) queues"
  [ "$(cat "$sys/queue/discard_max_bytes")" -gt 0 ] || fail "$name has no discard"
  [ "$(cat "$sys/queue/write_zeroes_max_bytes")" -gt 0 ] || fail "$name has no write zeroes"

  step "$name: fsx"
  "$room/fsx" "$disk" 1 1500 512 direct || fail "fsx on $name"

  step "$name: verified by fio"
  for engine in psync:0 libaio:1; do
    fio --eta=never --name=v --filename="$disk" --ioengine="${engine%:*}" --direct="${engine#*:}" --rw=randtrimwrite --serialize_overlap=1 --bsrange=4k-128k \
      --size=12M --iodepth=16 --verify=crc32c --verify_fatal=1 --randseed=7 --output=fio.log || fail "fio on $name: $(cat fio.log)"
  done
  fio --eta=never --name=v --filename="$disk" --ioengine=libaio --direct=1 --rw=randwrite --bsrange=4k-128k --numjobs=4 --cpus_allowed=0-3 --cpus_allowed_policy=split \
    --size=6M --offset_increment=6M --iodepth=8 --verify=crc32c --verify_fatal=1 --randseed=7 --output=fio.log || fail "fio by four on $name: $(cat fio.log)"

  step "$name: a file system"
  mkfs.ext4 -q "$disk"
  mkdir -p at
  mount -o discard "$disk" at
  cp -a /usr/share/doc/util-linux at/
  truncate -s 4M at/file
  "$room/fsx" at/file 2 1500 1 || fail "fsx on a file on $name"
  rm at/file
  fstrim at
  umount at
  e2fsck -fn "$disk" >fsck.log 2>&1 || fail "the file system on $name: $(cat fsck.log)"
  blockdev --flushbufs "$disk"
  echo 3 >/proc/sys/vm/drop_caches
  sha256sum <"$disk" | cut -d ' ' -f 1 >"$room/$name.sha256"
done
step "passed"
