#!/usr/bin/env bash
# What the stack uses of the official image's entry point: one user with a password, and its database.
set -euo pipefail
data=/var/lib/postgresql/data

as_postgres() { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }

if [ ! -e "$data/PG_VERSION" ]; then
  install -d -o postgres -g postgres -m 700 "$data"
  install -o postgres -g postgres -m 600 <(echo "${POSTGRES_PASSWORD:?}") /tmp/password
  # shellcheck disable=SC2086 # several arguments, as in the official image
  as_postgres initdb --pgdata="$data" --username="${POSTGRES_USER:?}" --pwfile=/tmp/password ${POSTGRES_INITDB_ARGS:-}
  rm /tmp/password
  as_postgres pg_ctl --pgdata="$data" --options="-c listen_addresses=''" --wait start
  as_postgres createdb --username="$POSTGRES_USER" "${POSTGRES_DB:?}"
  as_postgres pg_ctl --pgdata="$data" --wait stop
  echo 'host all all all scram-sha-256' >>"$data/pg_hba.conf"
fi
exec setpriv --reuid=postgres --regid=postgres --init-groups postgres -D "$data" -c listen_addresses='*'
