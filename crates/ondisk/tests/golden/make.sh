#!/bin/sh
# Makes the golden bytes of superblock/: for each profile NAME.sb (the superblock), NAME.gd (the first kilobyte of
# the first descriptor block), NAME.bits (block bitmap and inode bitmap of group 0, where blocks are small) and
# NAME.groups (which groups hold a superblock, descriptors and reserved descriptor blocks, as dumpe2fs tells it).
# Needs mke2fs and dumpe2fs 1.47; the files are the same each time. Run it in its own directory.
set -eu
cd "$(dirname "$0")/superblock"
export E2FSPROGS_FAKE_TIME=1700000000
export MKE2FS_CONFIG=/dev/null
# A file in memory: the file systems of many hosts end at 16 TiB.
image=$(mktemp -p /dev/shm)
trap 'rm -f "$image"' EXIT

make() { # name, size, options of mke2fs
    name=$1 size=$2
    shift 2
    rm -f "$image"
    truncate -s "$size" "$image"
    mke2fs -q -F -T default -U 6c616e65-6673-4000-8000-676f6c64656e -E "hash_seed=6c616e65-6673-4000-8000-686173686573,lazy_itable_init=1" \
        -L "$name" "$@" "$image"
    block=$(dumpe2fs -h "$image" 2>/dev/null | sed -n 's/^Block size: *//p')
    dd if="$image" of="$name.sb" bs=1024 skip=1 count=1 status=none
    dumpe2fs "$image" 2>/dev/null | awk '
        /^Group [0-9]+:/ { group = $2; sub(":", "", group) }
        /superblock at|[Gg]roup descriptors? at|Reserved GDT blocks at/ {
            line = group
            if (match($0, /superblock at [0-9]+/)) line = line " super " last(substr($0, RSTART, RLENGTH))
            if (match($0, /roup descriptors? at [0-9-]+/)) line = line " descriptors " last(substr($0, RSTART, RLENGTH))
            if (match($0, /GDT blocks at [0-9-]+/)) line = line " reserved " last(substr($0, RSTART, RLENGTH))
            print line
        }
        function last(text) { sub(/.* /, "", text); return text }' > "$name.groups"
    descriptors=$(sed -n '1s/.*descriptors \([0-9]*\).*/\1/p' "$name.groups")
    dd if="$image" bs="$block" skip="$descriptors" count=1 status=none | head -c 1024 > "$name.gd"
}

bits() { # name: blocks of 1 KiB only
    map=$(dumpe2fs "$image" 2>/dev/null | sed -n 's/.*Block bitmap at \([0-9]*\).*/\1/p' | head -1)
    dd if="$image" of="$1.bits" bs=1024 skip="$map" count=1 status=none
    map=$(dumpe2fs "$image" 2>/dev/null | sed -n 's/.*Inode bitmap at \([0-9]*\).*/\1/p' | head -1)
    dd if="$image" bs=1024 skip="$map" count=1 status=none >> "$1.bits"
}

all=none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,flex_bg,sparse_super,large_file,huge_file
all=$all,dir_nlink,extra_isize,metadata_csum
make default 2G -b 4096 -I 256 -O "$all,64bit,metadata_csum_seed,orphan_file"
make csum32 300M -b 1024 -I 256 -O "$all"
bits csum32
make small64 300M -b 1024 -I 256 -O "$all,64bit"
bits small64
make ext2 300M -b 1024 -I 128 -O none,ext_attr,resize_inode,dir_index,filetype,sparse_super,large_file
bits ext2
make revision0 40M -b 1024 -r 0
make uninit 1G -b 2048 -I 256 -O none,has_journal,ext_attr,dir_index,filetype,extent,flex_bg,sparse_super,uninit_bg
make bigalloc 4G -b 1024 -I 256 -C 16384 -O "$all,64bit,bigalloc,^resize_inode"
bits bigalloc
make bigalloc4k 64G -b 4096 -I 256 -C 65536 -O "$all,64bit,bigalloc,^resize_inode"
make meta_bg 1G -b 1024 -I 256 -O "$all,64bit,meta_bg,^resize_inode"
make sparse2 2G -b 4096 -I 256 -O "$all,64bit,sparse_super2,^resize_inode"
make block64k 20G -b 65536 -I 512 -O "$all,64bit,^resize_inode"
make huge 17T -b 4096 -I 256 -N 140000 -O "$all,64bit,meta_bg,^resize_inode,^has_journal"
# Too many groups to keep; the first and the last tell enough.
sed -i -n '1,100p;$p' huge.groups

# indirect.bin: the 15 words of a file's map, and the blocks of pointers under it, by debugfs's `stat`:
# (0-11):58-69, (IND):70, (12-267):71-326, (DIND):327, (IND):328, (268-292):329-353, (TIND):354, (DIND):355, (IND):356,
# (66000):357
# inline-directory.bin: the slot of a directory within its inode; its times and the order of names are the host's.
cd ..
source=$(mktemp -d)
trap 'rm -rf "$image" "$source"' EXIT
head -c 300000 /dev/zero | tr '\0' x > "$source/file"
printf x | dd of="$source/file" bs=1024 seek=66000 conv=notrunc status=none
rm -f "$image"
truncate -s 2M "$image"
mke2fs -q -F -t ext2 -b 1024 -I 128 -d "$source" "$image"
slot() { # path: the byte of an inode's slot
    debugfs -R "imap $1" "$image" 2>/dev/null |
        sed -n 's/.*block \([0-9]*\), offset \(0x[0-9a-f]*\).*/\1 \2/p' | { read -r block offset; echo $((block * 1024 + offset)); }
}
part() { tail -c +$(($1 + 1)) "$image" | head -c "$2"; }
part $(($(slot file) + 40)) 60 > indirect.bin
for block in 70 327 328 354 355 356; do part $((block * 1024)) 1024 >> indirect.bin; done
rm "$source/file"
mkdir "$source/small"
touch "$source/small/one" "$source/small/a longer name" "$source/small/x"
rm -f "$image"
truncate -s 2M "$image"
mke2fs -q -F -t ext4 -b 1024 -I 256 -O inline_data -U 6c616e65-6673-4000-8000-676f6c64656e -d "$source" "$image"
part "$(slot small)" 256 > inline-directory.bin
