#!/usr/bin/env bash
# Make a Python environment in the versions of constraints.txt and no others, each file with one of its hashes.
# It needs uv on the PATH, and leaves no installer in the environment.
#
#   install-python.sh libraries EXTRAS [PACKAGE ...]   what this checkout's package needs with these extras, such
#                                                      as "spark" or "none", and these packages
#   install-python.sh package                          the package itself
#
# VENV: where the environment is; /opt/s3commit unless set. PYTHON: what it is made with; python3 unless set.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=${VENV:-/opt/s3commit}

[ -e "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv --without-pip "$venv"
# Run from the checkout: its pyproject.toml tells uv to leave pyspark-client out, which would overwrite pyspark.
cd "$root"
install=(uv pip install --quiet --python "$venv/bin/python"
  --constraint constraints.txt --build-constraints constraints.txt)

case ${1:?libraries or package?} in
  libraries)
    extra=(--extra "${2:?which extras?}")
    [ "$2" != none ] || extra=()
    shift 2
    "${install[@]}" --requirement pyproject.toml "${extra[@]}" "$@"
    ;;
  # In the images a JDK compiles the jar when it is first needed.
  package) S3COMMIT_WITHOUT_JAR=1 "${install[@]}" --no-deps "airflow-s3commit @ file://$root" ;;
  *) echo "install-python.sh does not know $1" >&2 && exit 64 ;;
esac
