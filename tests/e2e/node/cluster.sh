#!/bin/bash
# cluster.sh FOLDER: starts the cluster's programs, on the node.
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
# shellcheck source=tests/e2e/node/lib.sh
. "$here/lib.sh"
folder=$1 ip=10.88.0.1 service=10.96.0.1 files=$STATE/disk
export PATH=$folder:$PATH

spawn() { # NAME COMMAND...
  local name=$1
  shift
  setsid "$@" </dev/null >>"$LOGS/$name.log" 2>&1 &
}

# One bridge, whose addresses are the node's and that of the API server's Service.
ip link add kube0 type bridge
ip address add $ip/16 dev kube0
ip address add $service/32 dev kube0
ip link set kube0 up
ip route add default via $ip
echo 1 >/proc/sys/net/ipv4/ip_forward
mkdir -p "$files/cni" /var/run/cdi
cat >"$files/cni/10-node.conflist" <<EOF
{"cniVersion": "1.0.0", "name": "node", "plugins": [
 {"type": "bridge", "bridge": "kube0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "$files/ipam", "routes": [{"dst": "0.0.0.0/0"}],
   "ranges": [[{"subnet": "10.88.0.0/16", "rangeStart": "10.88.1.1", "gateway": "$ip"}]]}}]}
EOF
cat >"$files/containerd.toml" <<EOF
version = 3
root = "$files/containerd"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "${PAUSE_IMAGE:-registry.k8s.io/pause:3.10}"
[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
restrict_oom_score_adj = true # for hosts that are containers
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["$folder/cni"]
conf_dir = "$files/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
BinaryName = "$folder/runc"
EOF

# Tokens, and the certificate that the API server makes for itself.
mkdir -p "$files/pki"
openssl genrsa -out "$files/pki/accounts.key" 2048 2>/dev/null
account() { # NAME USER [GROUP]: adds a user, and writes its kubeconfig
  local token
  token=$(cat /proc/sys/kernel/random/uuid)
  echo "$token,$2,$1,\"${3-}\"" >>"$files/pki/tokens.csv"
  cat >"$STATE/$1.kubeconfig" <<EOF
apiVersion: v1
kind: Config
clusters: [{name: node, cluster: {server: "https://$ip", certificate-authority: $STATE/ca.crt}}]
users: [{name: $1, user: {token: $token}}]
contexts: [{name: node, context: {cluster: node, user: $1}}]
current-context: node
EOF
}
account admin admin system:masters
account controllers system:kube-controller-manager
account scheduler system:kube-scheduler
account kubelet "system:node:$NODE" system:nodes
export KUBECONFIG=$STATE/admin.kubeconfig

spawn etcd etcd --data-dir "$files/etcd" --listen-client-urls http://127.0.0.1:2379 \
  --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
spawn containerd containerd --config "$files/containerd.toml"
spawn apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --secure-port=443 \
  --advertise-address=$ip --service-cluster-ip-range=$service/16 --cert-dir="$files/pki" \
  --token-auth-file="$files/pki/tokens.csv" --authorization-mode=Node,RBAC \
  --enable-admission-plugins=NodeRestriction --allow-privileged=true \
  --enable-aggregator-routing=true --kubelet-preferred-address-types=InternalIP \
  --service-account-issuer=https://kubernetes.default.svc \
  --service-account-key-file="$files/pki/accounts.key" \
  --service-account-signing-key-file="$files/pki/accounts.key"
await 30 containerd ctr version
for each in "$folder"/images/*.tar; do
  ctr --namespace k8s.io images import "$each"
done >"$LOGS/images.log" 2>&1 &
images=$!
await 60 "the API server's certificate" test -s "$files/pki/apiserver.crt"
cp "$files/pki/apiserver.crt" "$STATE/ca.crt"
await 90 "the API server" kubectl get --raw /readyz
for each in controllers scheduler; do
  kubeconfigs=(--kubeconfig="$STATE/$each.kubeconfig" --leader-elect=false
    --authentication-kubeconfig="$STATE/$each.kubeconfig"
    --authorization-kubeconfig="$STATE/$each.kubeconfig")
  if [[ $each == scheduler ]]; then
    spawn $each kube-scheduler "${kubeconfigs[@]}"
  else
    spawn $each kube-controller-manager "${kubeconfigs[@]}" --use-service-account-credentials=true \
      --service-account-private-key-file="$files/pki/accounts.key" --root-ca-file="$STATE/ca.crt"
  fi
done
wait $images || fail "an image cannot be imported: $LOGS/images.log"
ln -s "$folder/kubelet" "$STATE/kubelet"
spawn kubelet "$here/kubelet.sh" run
await 60 "the node" kubectl wait --for=condition=Ready "node/$NODE" --timeout=1s
await 60 "the service account" kubectl get serviceaccount default

echo "export KUBECONFIG=$KUBECONFIG"
echo "export GPU_TURNSTILE_E2E_NODE=$NODE"
echo "export GPU_TURNSTILE_E2E_KUBECTL=$folder/kubectl"
echo "export GPU_TURNSTILE_E2E_KILL_KUBELET='$here/kubelet.sh kill'"
echo "export GPU_TURNSTILE_E2E_RESTART_KUBELET='$here/kubelet.sh restart'"
steps=
for each in "$folder"/kubelet-*; do
  [[ ! -e $each ]] || steps+="$here/kubelet.sh switch $each; "
done
[[ -z $steps ]] ||
  echo "export GPU_TURNSTILE_E2E_UPGRADE_KUBELET='$steps$here/kubelet.sh switch $folder/kubelet'"
image() { # VARIABLE PATTERN
  local found
  found=$(ctr --namespace k8s.io images list --quiet | grep -E "$2" | head -n 1) || return 0
  echo "export $1=$found"
}
image GPU_TURNSTILE_E2E_IMAGE '/busybox:'
image GPU_TURNSTILE_E2E_DEPLOY_IMAGE '/gpu-turnstile:'
image GPU_TURNSTILE_E2E_SCHEDULER_IMAGE '/kube-scheduler:'
