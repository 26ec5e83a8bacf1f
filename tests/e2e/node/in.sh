#!/bin/bash
# in.sh COMMAND...: runs a command on the node that up.sh has started, in the current directory.
set -euo pipefail
# shellcheck source=tests/e2e/node/lib.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib.sh"
[[ -e $STATE/pid ]] || fail "no node is up"
# shellcheck disable=SC2016
exec nsenter --target "$(<"$STATE/pid")" --mount --net --pid --ipc --uts -- \
  bash -c 'cd "$0" && exec "$@"' "$PWD" "$@"
