#!/bin/bash
# up.sh FOLDER: starts a cluster of one node from a folder of binaries, in namespaces of its own.
# ../README.md says what is in the folder. STATE is where logs and state are kept, SIZE the size of
# the node's disk, which is a tmpfs.
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
# shellcheck source=tests/e2e/node/lib.sh
. "$here/lib.sh"
folder=$(realpath "${1:?usage: up.sh FOLDER}")
for each in etcd containerd containerd-shim-runc-v2 ctr runc kubectl cni/bridge cni/host-local \
  cni/loopback kube-apiserver kube-controller-manager kube-scheduler kubelet; do
  [[ -x $folder/$each ]] || fail "$folder/$each: no such program"
done
[[ $(id -u) == 0 ]] || fail "must be root"
[[ ! -e $STATE/pid ]] || fail "it is up, or was not taken down: $here/down.sh"
case $STATE in /etc/* | /opt/* | /run/* | /var/*) fail "$STATE: the node has its own folder there" ;; esac
rm -rf "$STATE"
mkdir -p "$LOGS" "$STATE/disk"
if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
  read -ra controllers </sys/fs/cgroup/cgroup.controllers
  for each in "${controllers[@]}"; do
    echo "+$each" >/sys/fs/cgroup/cgroup.subtree_control || true # some hosts permit only some
  done
fi
cgroups | xargs mkdir -p
export STATE
setsid unshare --mount --net --pid --ipc --uts --fork "$here/machine.sh" \
  </dev/null >"$LOGS/machine.log" 2>&1 &
await 10 "the machine" test -e "$STATE/ready"
"$here/in.sh" "$here/cluster.sh" "$folder" | tee "$STATE/env"
