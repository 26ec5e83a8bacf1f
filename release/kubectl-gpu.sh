#!/bin/sh
# kubectl gpu, as krew installs it. The first call installs the wheel beside this file, with its
# dependencies, into a virtual environment there: krew removes it together with the plugin.
set -e
here=$(dirname "$(readlink -f "$0")")
venv=$here/venv
if [ ! -e "$venv/installed" ]; then
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "kubectl-gpu needs Python 3.11 or newer as python3" >&2; exit 1; }
  echo "kubectl-gpu: installing its Python packages, once" >&2
  python3 -m venv --clear "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$(echo "$here"/*.whl)[kubectl]"
  touch "$venv/installed"
fi
exec "$venv/bin/kubectl-gpu" "$@"
