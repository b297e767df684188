# Becomes the systemd of a machine. It runs as the first process of new mount,
# PID, UTS, IPC and network namespaces, in the folder of the machine.
# usage: boot.sh LOWER [CGROUP-DIR...]
# Errors go to standard error, as does what systemd says.
set -eu
lower=$1
shift
if [ "${IN_CGROUP_NAMESPACE-}" = "" ]; then
  mount --make-rprivate /
  # 0 is the writer, which is this shell.
  for dir in "$@"; do echo 0 > "$dir/cgroup.procs"; done
  IN_CGROUP_NAMESPACE=1 exec unshare --cgroup sh "$0" "$lower" "$@"
fi
root=$PWD/root
mount -t overlay -o "lowerdir=$lower,upperdir=$PWD/upper,workdir=$PWD/work" overlay "$root"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o nosuid,nodev,mode=755 tmpfs "$root/run"
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs "$root/tmp"
# The hierarchies of the host, seen from the groups of this machine.
awk '{ for (i = 7; $i != "-"; i++); if ($(i+1) ~ /^cgroup2?$/) print length($5), $5, $(i+1), $(i+3) }' /proc/self/mountinfo | sort -n |
  while read -r _ at type options; do
    [ "$at" = /sys/fs/cgroup ] || [ -e "$root/sys/fs/cgroup/.made" ] || {
      mount -t tmpfs -o nosuid,nodev,noexec,mode=755 tmpfs "$root/sys/fs/cgroup"
      : > "$root/sys/fs/cgroup/.made"
    }
    [ -d "$root$at" ] || mkdir -p "$root$at"
    if [ "$type" = cgroup2 ]; then
      mount -t cgroup2 cgroup2 "$root$at"
    else
      mount -t cgroup -o "$(echo "$options" | sed -E 's/^rw,?//')" cgroup "$root$at"
    fi
  done
while read -r from at; do
  mkdir -p "$root$at"
  mount --bind "$from" "$root$at"
  mount -o remount,bind,ro "$root$at"
done < binds
hostname machine
mkdir "$root/run/host"
cd "$root"
pivot_root . run/host
umount -l /run/host
rmdir /run/host
exec env -i container=paseo-sandbox-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init --show-status=0 --log-target=journal
