#!/bin/bash
# down.sh: ends the node that up.sh has started, and all on it. Its logs stay.
set -euo pipefail
# shellcheck source=tests/e2e/node/lib.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib.sh"
if [[ -e $STATE/pid ]]; then
  kill -KILL "$(<"$STATE/pid")" || true # the first process: the kernel ends the others, too
fi
remove() {
  cgroups | while read -r each; do
    [[ ! -e $each ]] || find "$each" -depth -type d -exec rmdir {} +
  done
}
await 30 "the end of its processes" remove
rm -f "$STATE/pid" "$STATE/ready"
