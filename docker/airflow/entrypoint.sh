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
    exec airflow celery worker --skip-serve-logs --without-gossip --without-mingle
    ;;
  *) exec "$@" ;;
esac
