#!/usr/bin/env bash
# Run PostgreSQL, with a password, on data that go when it ends; or ask whether it answers, or can be run here.
#
#   postgres.sh server | health        ADDRESS (host:port), POSTGRES_USER, POSTGRES_PASSWORD, POSTGRES_DB
#   postgres.sh available
set -euo pipefail
unset "${!PG@}" # settings of other servers

# Distributions and Homebrew keep the server's programs out of PATH.
newest=$({ compgen -G '/usr/lib/postgresql/*/bin' || compgen -G '/usr/pgsql-*/bin' ||
  compgen -G '/opt/homebrew/opt/postgresql*/bin' || compgen -G '/usr/local/opt/postgresql*/bin' || true; } |
  sort -V | tail -n 1)
PATH=$PATH:$newest

# PostgreSQL refuses root.
as_owner() {
  if [ "$(id -u)" -eq 0 ]; then setpriv --reuid=postgres --regid=postgres --init-groups "$@"; else "$@"; fi
}

case ${1:?server, health or available?} in
  available)
    command -v initdb >/dev/null && command -v postgres >/dev/null
    [ "$(id -u)" -ne 0 ] || { id postgres && command -v setpriv; } >/dev/null 2>&1
    ;;
  server)
    directory=$(as_owner mktemp -dt s3commit-postgres-XXXXXX)
    cd "$directory"
    trap 'cd / && rm -rf "$directory"' EXIT
    # Clients do not keep it alive, and its data need not be saved.
    stop() { kill -QUIT "$(head -n 1 data/postmaster.pid)" 2>/dev/null || true; wait; exit 143; }
    trap stop TERM INT HUP
    as_owner sh -c 'umask 077; cat >password' <<<"${POSTGRES_PASSWORD:?}"
    as_owner initdb --pgdata=data --username="${POSTGRES_USER:?}" --pwfile=password --auth=scram-sha-256 \
      --encoding=UTF8 --locale=C --no-sync
    rm password
    unset POSTGRES_PASSWORD
    as_owner postgres --single -F -D data postgres <<<"create database ${POSTGRES_DB:?}"
    as_owner postgres -D data -c listen_addresses="${ADDRESS%:*}" -c port="${ADDRESS##*:}" \
      -c unix_socket_directories= -c max_connections=200 \
      -c fsync=off -c synchronous_commit=off -c full_page_writes=off &
    wait "$!"
    ;;
  health)
    pg_isready --quiet --host="${ADDRESS%:*}" --port="${ADDRESS##*:}"
    ;;
esac
