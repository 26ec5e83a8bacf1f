#!/bin/bash
# kubelet.sh kill | restart | switch PATH, on the node: ends the kubelet, by SIGKILL or SIGTERM, and
# waits until the next one was started; after `switch` that is the program at PATH.
# kubelet.sh run: starts the kubelet, again and again, as systemd would.
set -euo pipefail
# shellcheck source=tests/e2e/node/lib.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib.sh"

configure() { # MINOR: writes the configuration for kubelets of this version
  cat <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$NODE
enforceNodeAllocatable: []
failSwapOn: false
evictionHard: {memory.available: 1Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
maxPods: 250
serializeImagePulls: false
oomScoreAdj: 0
resolvConf: ""
topologyManagerPolicy: ${TOPOLOGY:-none}
nodeStatusUpdateFrequency: 10s
EOF
  (($1 < 35)) || echo "failCgroupV1: false"
}

run() {
  while :; do
    kubelet=$(readlink "$STATE/kubelet")
    [[ $( (exec -a kubelet "$kubelet" --version)) =~ v1\.([0-9]+) ]]
    configure "${BASH_REMATCH[1]}" >"$STATE/kubelet.yaml"
    (exec -a kubelet "$kubelet" --config="$STATE/kubelet.yaml" --hostname-override="$NODE" \
      --kubeconfig="$STATE/kubelet.kubeconfig" --node-ip=10.88.0.1 --v=2) &
    echo $! >"$STATE/kubelet.pid"
    wait $! || true
    sleep 0.5
  done
}

is_another() { # PID
  [[ $(<"$STATE/kubelet.pid") != "$1" ]]
}

end() { # SIGNAL
  local old
  old=$(<"$STATE/kubelet.pid")
  kill "-$1" "$old"
  await 60 "the next kubelet" is_another "$old"
}

case ${1-} in
run) run ;;
kill) end KILL ;;
restart) end TERM ;;
switch)
  ln -sfn "$(realpath --no-symlinks "$2")" "$STATE/kubelet"
  end TERM
  ;;
*) fail "usage: kubelet.sh kill | restart | switch PATH | run" ;;
esac
