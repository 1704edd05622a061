#!/bin/bash
# Makes the files of this folder again (times and the order of work in the kernel make them differ a little). Needs
# root, e2fsprogs and python3. Usage: make.sh DIRECTORY
set -eu
out=$1
work=$(mktemp -d)
trap 'umount "$work/mnt" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
mkdir mnt
uuid=11111111-2222-3333-4444-555555555555

block() { # IMAGE INODE LOGICAL
    debugfs -R "bmap <$2> $3" "$1" 2>/dev/null | grep -o '[0-9]*$' | tail -1
}
cut() { # IMAGE FIRST COUNT NAME
    dd if="$1" of="$out/$4" bs=1024 skip="$2" count="$3" status=none
}

# A journal as the kernel leaves it: three fsyncs after making files, one after removing some.
dirty() { # NAME MKE2FS-OPTIONS MOUNT-OPTIONS FAST
    # shellcheck disable=SC2086
    mke2fs -q -F -t ext4 -b 1024 -U $uuid -J size=4 $2 live.img 24M
    journal=$(block live.img 8 0)
    mount -o "loop,$3" live.img mnt
    FAST=$4 python3 - <<'PY'
import os, shutil, subprocess
root = 'mnt/'
if os.environ['FAST']:
    subprocess.run(['sync', '-f', root])
def sync(fd):
    os.fsync(fd)
    os.close(fd)
for i in range(3):
    os.mkdir(root + f'd{i}')
    for j in range(5):
        open(root + f'd{i}/f{j}', 'w').write('x' * 100)
    sync(os.open(root + f's{i}', os.O_CREAT | os.O_WRONLY))
if os.environ['FAST']:
    os.truncate(root + 's0', 5000)
    os.link(root + 's1', root + 'l1')
    os.unlink(root + 's2')
    for name in ['s0', 's1']:
        fd = os.open(root + name, os.O_RDWR)
        os.write(fd, b'y' * 3000)
        os.fsync(fd)
        os.ftruncate(fd, 1000)
        sync(fd)
else:
    for i in range(2):
        shutil.rmtree(root + f'd{i}')
sync(os.open(root + 'e', os.O_CREAT | os.O_WRONLY))
PY
    cp live.img "$1.img"
    umount mnt
}

dirty v3 "" rw ""
cut v3.img $((journal)) 1 jbd2-v3-superblock.bin
cut v3.img $((journal + 1)) 1 jbd2-v3-descriptor.bin
cut v3.img $((journal + 2)) 1 jbd2-v3-copy.bin
cut v3.img $((journal + 12)) 1 jbd2-v3-commit.bin
cut v3.img $((journal + 38)) 1 jbd2-v3-revoke.bin
dirty none "-O ^metadata_csum,^64bit" rw ""
cut none.img $((journal)) 1 jbd2-32bit-superblock.bin
cut none.img $((journal + 1)) 1 jbd2-32bit-descriptor.bin
cut none.img $((journal + 36)) 1 jbd2-32bit-commit.bin
cut none.img $((journal + 37)) 1 jbd2-32bit-revoke.bin
dirty v1 "-O ^metadata_csum,^64bit" journal_checksum ""
cut v1.img $((journal)) 1 jbd2-v1-superblock.bin
cut v1.img $((journal + 1)) 12 jbd2-v1-transaction.bin
dirty fast "-O fast_commit" rw yes
cut fast.img $((journal)) 1 fast-commit-superblock.bin
# The first fast commit has three blocks, the fourth and fifth one each.
cut fast.img $((journal + 4097)) 3 area-1
cut fast.img $((journal + 4103)) 2 area-2
cat "$out/area-1" "$out/area-2" > "$out/fast-commit-area.bin"
rm "$out/area-1" "$out/area-2"

# Version 2 comes from debugfs: the kernel writes version 3 now.
mke2fs -q -F -t ext4 -b 1024 -U $uuid -O metadata_csum,64bit v2.img 24M
for name in a b; do
    head -c 4096 /dev/zero | tr '\0' $name > $name
    printf '\xc0\x3b\x39\x98' | dd of=$name conv=notrunc status=none
done
printf 'jo -c -v 2\njw -b 4001,4002,4003,4004 a\njw -b 4003,4005,4006 -r 4001,4002 b\njc\n' > script
debugfs -w -f script v2.img > /dev/null 2>&1
journal=$(block v2.img 8 0)
cut v2.img $((journal)) 1 jbd2-v2-superblock.bin
cut v2.img $((journal + 7)) 1 jbd2-v2-descriptor.bin
cut v2.img $((journal + 8)) 1 jbd2-v2-copy.bin
cut v2.img $((journal + 11)) 1 jbd2-v2-revoke.bin
cut v2.img $((journal + 12)) 1 jbd2-v2-commit.bin

# One orphan, and the multi-mount block while mounted and after. Which slot is taken depends on the CPU.
mke2fs -q -F -t ext4 -b 1024 -U $uuid -O orphan_file,mmp live.img 24M
mount -o loop live.img mnt
python3 - <<'PY'
import os, subprocess
fd = os.open('mnt/gone', os.O_CREAT | os.O_RDWR)
os.write(fd, b'x' * 5000)
os.unlink('mnt/gone')
os.fsync(fd)
subprocess.run(['sync', '-f', 'mnt'])
subprocess.run(['sync'])
subprocess.run(['cp', 'live.img', 'orphan.img'])
PY
umount mnt
cut orphan.img 1751 1 orphan-empty.bin
for logical in $(seq 0 31); do
    at=$(block orphan.img 12 "$logical")
    if dd if=orphan.img bs=1016 iflag=skip_bytes skip=$((at * 1024)) count=1 status=none | tr -d '\0' | grep -q .; then
        cut orphan.img "$at" 1 orphan-used.bin
    fi
done
cut orphan.img 1750 1 mmp-used.bin
cut live.img 1750 1 mmp-clean.bin
