#!/usr/bin/env bash
# Make a Python environment with this checkout's package, in the versions of constraints.txt and no others.
#
#   install-python.sh EXTRAS [PACKAGE ...]        EXTRAS: such as "spark" or "airflow,fast"; or "none"
#
# VENV: where it is made; /opt/s3commit unless set. PYTHON: what it is made with; python3 unless set.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=${VENV:-/opt/s3commit}
extras=${1:?which extras?}
[ "$extras" != none ] || extras=
shift

"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  "uv==$(sed -n 's/^UV_VERSION := //p' "$root/Makefile")"
# Run from the checkout: its pyproject.toml tells uv to leave pyspark-client out, which would overwrite pyspark.
cd "$root"
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --constraint constraints.txt \
  "airflow-s3commit${extras:+[$extras]} @ file://$root" "$@"
