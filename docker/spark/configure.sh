#!/usr/bin/env bash
# Write Spark's configuration into SPARK_CONF_DIR, from the defaults beside this script.
#
# Master, workers and drivers know each other by the secret in _SPARK_AUTH_SECRET, which Spark looks for first.
# It also insists on one in the configuration, which it may log: that one is made up here and never used, so
# that a process without the variable is refused.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
: "${_SPARK_AUTH_SECRET:?}"
umask 077
mkdir -p "${SPARK_CONF_DIR:?}"
written=$(mktemp "$SPARK_CONF_DIR/spark-defaults.XXXXXX")
cat "$here/spark-defaults.conf" >"$written"
printf 'spark.authenticate.secret unused-%s\n' "$(od -An -v -tx1 -N16 /dev/urandom | tr -d ' \n')" >>"$written"
if [ -n "${SPARK_DRIVER_BIND_ADDRESS:-}" ]; then
  printf 'spark.driver.bindAddress %s\n' "$SPARK_DRIVER_BIND_ADDRESS" >>"$written"
fi
mv "$written" "$SPARK_CONF_DIR/spark-defaults.conf"
