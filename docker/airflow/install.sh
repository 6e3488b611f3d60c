#!/usr/bin/env bash
# What every Airflow component needs, and what spark-submit needs on the worker: the driver runs there.
set -euo pipefail

docker=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
"$docker/install-system.sh" java
"$docker/install-python.sh" stack
if [ -n "${IMAGE_USER:-}" ]; then
  # Mount points too: a named volume takes its first owner from the image.
  install -d -o "$IMAGE_USER" -g "$IMAGE_USER" /opt/airflow /opt/airflow/logs
fi
