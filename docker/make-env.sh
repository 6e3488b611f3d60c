#!/usr/bin/env bash
# Write the stack's secrets, made now from the system's random numbers, into a file that Compose reads by itself.
#
#   docker/make-env.sh [FILE]        FILE: docker/.env unless named; never overwritten
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
file=${1:-$here/.env}

# Hexadecimal: such a secret needs no quoting in a URL, in JSON or in a shell.
secret() { od -An -v -tx1 -N"$1" /dev/urandom | tr -d ' \n'; }
# What Fernet calls a key: 32 bytes in URL-safe base64.
fernet_key() { head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '\n'; }

umask 077
set -o noclobber
if ! {
  cat >"$file" <<END
# Secrets of this stack. Keep this file to yourself; to change one, see docs/how-to/run-the-stack.md.

# The user of Airflow's pages and API is "admin".
AIRFLOW_ADMIN_PASSWORD=$(secret 16)
AIRFLOW_FERNET_KEY=$(fernet_key)
AIRFLOW_SECRET_KEY=$(secret 32)
AIRFLOW_JWT_SECRET=$(secret 32)
POSTGRES_PASSWORD=$(secret 24)
REDIS_PASSWORD=$(secret 24)
SPARK_SECRET=$(secret 32)

# S3: the administrator makes buckets; the pipeline reaches one prefix and nothing else.
S3_ADMIN_ACCESS_KEY=$(secret 10)
S3_ADMIN_SECRET_KEY=$(secret 24)
S3_PIPELINE_ACCESS_KEY=$(secret 10)
S3_PIPELINE_SECRET_KEY=$(secret 24)
END
} 2>/dev/null; then
  echo "$file could not be written, or is there already: its secrets are kept. Remove it to have new ones." >&2
  exit 1
fi
echo "Wrote $file"
