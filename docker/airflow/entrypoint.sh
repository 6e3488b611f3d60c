#!/usr/bin/env bash
# Run one component of Airflow. Settings, connections and secrets are in the environment (AIRFLOW__…).
#
#   entrypoint.sh migrate | api-server | scheduler | dag-processor | triggerer | worker
#
# Task logs lie in one directory that every component sees, so none of them serves its own over the network.
set -euo pipefail

docker=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

# The component that runs tasks runs their Spark drivers too.
spark_for_tasks() {
  [ -z "${SPARK_CONF_DIR:-}" ] || "$docker/spark/configure.sh"
}

# What tasks and their Spark drivers inherit is this environment: where the queue is, and its password, the worker
# reads from files of its own.
hide_queue() {
  local name
  for name in AIRFLOW__CELERY__BROKER_URL AIRFLOW__CELERY__RESULT_BACKEND; do
    (umask 077 && printf %s "${!name:?}" >"$AIRFLOW_HOME/$name")
    export "${name}_CMD=cat $(printf %q "$AIRFLOW_HOME/$name")"
    unset "$name"
  done
}

write_passwords() (
  umask 077
  # shellcheck disable=SC2153 # both come from the environment
  printf '{"admin": "%s"}\n' "${AIRFLOW_ADMIN_PASSWORD:?}" \
    >"${AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE:?}"
)

mkdir -p "${AIRFLOW_HOME:?}"

case ${1:?which component?} in
  migrate) exec airflow db migrate ;;
  api-server)
    write_passwords
    exec airflow api-server --host "${ADDRESS%:*}" --port "${ADDRESS##*:}"
    ;;
  scheduler)
    spark_for_tasks
    exec airflow scheduler --skip-serve-logs
    ;;
  dag-processor) exec airflow dag-processor ;;
  triggerer) exec airflow triggerer --skip-serve-logs ;;
  worker)
    spark_for_tasks
    hide_queue
    exec airflow celery worker --skip-serve-logs --without-gossip --without-mingle
    ;;
  *) exec "$@" ;;
esac
