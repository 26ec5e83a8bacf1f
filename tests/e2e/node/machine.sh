#!/bin/bash
# The node's first process. /etc, /opt, /run and /var are its own, and vanish with it.
set -euo pipefail
# shellcheck source=tests/e2e/node/lib.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib.sh"
read -r pid _ </proc/self/stat # /proc is still the host's
mount --make-rprivate /
mount -t tmpfs -o "size=${SIZE:-6g}" disk "$STATE/disk"
for each in etc opt var; do
  mkdir -p "$STATE/disk/$each" "$STATE/disk/work/$each" "/$each"
  mount -t overlay overlay "/$each" \
    -o "lowerdir=/$each,upperdir=$STATE/disk/$each,workdir=$STATE/disk/work/$each"
done
mount -t tmpfs run /run
mount -t proc proc /proc
# The kubelet would set these for the host.
for each in vm/{overcommit_memory,panic_on_oom} kernel/{panic,panic_on_oops} \
  kernel/keys/{root_maxkeys,root_maxbytes}; do
  cp --no-preserve=mode "/proc/sys/$each" "$STATE/disk/${each##*/}"
  mount --bind "$STATE/disk/${each##*/}" "/proc/sys/$each"
done
mount --make-rshared /
mkdir -p /run/netns
ip link set lo up
echo "$pid" >"$STATE/pid"
touch "$STATE/ready"
while :; do
  sleep 3600 &
  wait $!
done
