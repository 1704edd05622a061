#!/bin/bash
# xfstests runs this instead of mount(8), umount(8), df(1) and findmnt(8). Mounts the test and the scratch device with
# lanefs. In the output, replaces their anchors by the devices, and the type fuseblk.lanefs by ext4.
name=${0##*/} real=
for folder in /usr/bin /bin /usr/sbin /sbin; do
  [ -x "$folder/$name" ] && real=$folder/$name && break
done

# The anchor of the device $1: the loop device that the kernel shows as the source of its mount.
anchor_of() {
  local file
  for file in /sys/block/loop*/loop/backing_file; do
    [ "$(<"$file")" = "/memfd:lanefs:$1 (deleted)" ] || continue
    file=${file#/sys/block/}
    echo "/dev/${file%%/*}"
    return
  done 2>/dev/null
}

is_ours() { [ "$1" = "$TEST_DEV" ] || [ "$1" = "$SCRATCH_DEV" ]; }

if [ "$name" = mount ]; then
  options= type= elsewhere=no unknown= words=()
  arguments=("$@")
  while [ $# -gt 0 ]; do
    case $1 in
      -o) options+=,$2; shift ;;
      -o*) options+=,${1#-o} ;;
      -t) type=$2; shift ;;
      -r) options+=,ro ;;
      -w) options+=,rw ;;
      -n|-v|-s|--) ;;
      -M|-B|-R|--bind|--rbind|--move|--make-*) elsewhere=yes ;;
      -*) unknown+=" $1" ;;
      *) words+=("$1") ;;
    esac
    shift
  done
  case ,$options, in *,remount,*|*,bind,*|*,rbind,*|*,move,*) elsewhere=yes ;; esac
  if [ $elsewhere = no ] && [ ${#words[@]} -gt 0 ] && is_ours "${words[0]}"; then
    # The kernel's ext4 must not take the place of lanefs.
    if [ -n "$unknown" ] || [ ${#words[@]} != 2 ] || [ "${type:-ext4}" != ext4 ]; then
      echo "mount: not understood for a mount of lanefs: ${arguments[*]}" >&2
      exit 32
    fi
    exec "$LANEFS" mount -o "allow_other$options" "${words[@]}"
  fi
  set -- "${arguments[@]}"
fi

arguments=() sed=(-e 's/fuseblk\.lanefs/ext4/g')
for argument; do
  [ "$argument" = ext4 ] && [ "$name" = findmnt ] && argument=fuseblk.lanefs
  if is_ours "$argument"; then
    anchor=$(anchor_of "$argument")
    [ -n "$anchor" ] && argument=$anchor
  fi
  arguments+=("$argument")
done
case $name in
  mount|df|findmnt)
    if [ $# -eq 0 ] || [ "$name" != mount ]; then
      for device in "$TEST_DEV" "$SCRATCH_DEV"; do
        anchor=$(anchor_of "$device")
        [ -n "$anchor" ] && sed+=(-e "s,$anchor\\b,$device,g")
      done
      "$real" "${arguments[@]}" | sed "${sed[@]}"
      exit "${PIPESTATUS[0]}"
    fi ;;
esac
exec "$real" "${arguments[@]}"
