#!/usr/bin/env bash
# Make a Python environment with uv alone, in the version and with one of the hashes of constraints.txt.
#
#   install-uv.sh DIRECTORY
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
pinned=$(mktemp)
trap 'rm -f "$pinned"' EXIT
# Its line, and the lines with its hashes, which it is continued by.
sed -n '/^uv==/,/[^\\]$/p' "$root/constraints.txt" >"$pinned"
python3 -m venv "${1:?which directory?}"
"$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --require-hashes -r "$pinned"
