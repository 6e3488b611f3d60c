#!/usr/bin/env bash
# Run one part of a Spark standalone cluster.
#
#   entrypoint.sh master        listens at ADDRESS (host:port), shows itself at PAGE (host:port)
#   entrypoint.sh worker        works for SPARK_MASTER (spark://host:port), shows itself at PAGE
#
# An executor inherits the worker's environment: there it finds the keys of the store, which are in no
# configuration. SPARK_LOCAL_IP, if set, is the one address that anything listens on.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
"$here/configure.sh"
SPARK_HOME=$(python -c 'from importlib.util import find_spec; print(find_spec("pyspark").submodule_search_locations[0])')
export SPARK_HOME

case ${1:?master or worker?} in
  master)
    exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master \
      --host "${ADDRESS%:*}" --port "${ADDRESS##*:}" --webui-port "${PAGE##*:}"
    ;;
  worker)
    exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker \
      --host "${PAGE%:*}" --webui-port "${PAGE##*:}" --work-dir "${SPARK_WORK_DIR:?}" \
      --cores "${SPARK_WORKER_CORES:-1}" --memory "${SPARK_WORKER_MEMORY:-1g}" "${SPARK_MASTER:?}"
    ;;
  *)
    exec "$@"
    ;;
esac
