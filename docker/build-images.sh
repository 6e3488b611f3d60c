#!/usr/bin/env bash
# Build the images of compose.yaml and list their sizes. By Compose, so that what it builds later finds the same cache.
#
# BASE, SPARK_EXTRA: see the Dockerfile. BUILD_NETWORK: "host", where builds have no way out of their own.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
compose=(docker compose)
docker compose version >/dev/null 2>&1 || compose=(docker-compose)
# The file asks for every secret, and a build uses none.
unused=$(mktemp -d)
trap 'rm -rf "$unused"' EXIT
"$here/make-env.sh" "$unused/env" >/dev/null
"${compose[@]}" --env-file "$unused/env" --file "$here/compose.yaml" build --quiet
docker image ls --filter reference='s3commit-*:latest' --format '{{.Repository}}  {{.Size}}'
