# shellcheck shell=bash disable=SC2034
# Common to the scripts here.
STATE=${STATE:-$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../..")/build/node}
NODE=gpu-turnstile-node # also the name of its cgroup
LOGS=$STATE/log

fail() {
  echo "$*" >&2
  exit 1
}

await() { # SECONDS WHAT COMMAND...
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || fail "$what: not in time; logs are in $LOGS"
    sleep 0.2
  done
}

cgroups() { # the node's cgroup in each hierarchy
  if [[ $(stat --file-system --format %T /sys/fs/cgroup) == cgroup2fs ]]; then
    echo "/sys/fs/cgroup/$NODE"
  else
    awk -v name="$NODE" '$3 ~ /^cgroup2?$/ && $2 ~ "^/sys/fs/cgroup/" {print $2 "/" name}' /proc/mounts
  fi
}
