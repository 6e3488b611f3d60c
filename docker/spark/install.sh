#!/usr/bin/env bash
# What a Spark master, its workers and their executors need: Java, PySpark, pyarrow, pandas and this package.
set -euo pipefail

docker=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
"$docker/install-system.sh" java
"$docker/install-python.sh" spark
if [ -n "${IMAGE_USER:-}" ]; then
  install -d -o "$IMAGE_USER" -g "$IMAGE_USER" /opt/spark /opt/spark/conf /opt/spark/work
fi
