#!/usr/bin/env bash
# Run Redis, Celery's queue, with a password that shows in no process list; or ask whether it answers.
#
#   entrypoint.sh server | health        ADDRESS (host:port), REDIS_PASSWORD
set -euo pipefail

case ${1:?server or health?} in
  server)
    exec redis-server - <<END
bind ${ADDRESS%:*}
port ${ADDRESS##*:}
requirepass ${REDIS_PASSWORD:?}
save ""
appendonly no
END
    ;;
  health)
    [ "$(REDISCLI_AUTH=${REDIS_PASSWORD:?} redis-cli -h 127.0.0.1 -p "${ADDRESS##*:}" ping)" = PONG ]
    ;;
  *) exec "$@" ;;
esac
