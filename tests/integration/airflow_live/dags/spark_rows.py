"""The rows with Spark: on this machine, in its SQL shell, and with their drivers on a standalone cluster.

They are apart from the others because every task reads its DAG's file anew, and Spark's provider takes long.
"""

from __future__ import annotations

import os
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

from tests.integration.airflow_live.control import S3A_JARS, SPARK_CLUSTER
from tests.integration.airflow_live.row_dag import group, row
from tests.integration.airflow_live.stages import noting_processes

HELD = str(Path(__file__).parents[1] / "jobs" / "held_spark.py")

#: Made to start soon.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

with row("spark_killed") as dag, group(dag) as commit:
    commit.spark_submit(
        application=HELD,
        application_args=[f"s3://lake/{dag.dag_id}/", dag.dag_id, "{{ run_id }}"],
        conf={"spark.driver.extraJavaOptions": JAVA},
    )


def overwrite(dag_id: str, day: str, ids: str) -> str:
    """Return statements that overwrite one day of the row's destination."""
    return (
        "CREATE TABLE flights (id BIGINT, dt STRING) USING parquet PARTITIONED BY (dt)"
        f" LOCATION 's3a://lake/{dag_id}';"
        f" INSERT OVERWRITE flights PARTITION (dt = '{day}') SELECT id FROM {ids};"
    )


for name, statements in (
    # Two instances of a mapped stage.
    (
        "sql_committed",
        [
            overwrite("sql_committed", "{{ run_id }}", "range(10)"),
            overwrite("sql_committed", "new;day", "range(10, 15)"),
        ],
    ),
    ("sql_failed", overwrite("sql_failed", "{{ run_id }}", "range(10)") + " SELECT nothing FROM nowhere"),
):
    with row(name) as dag, group(dag) as commit:
        commit.spark_sql(
            statements,
            # One shell after the other.
            max_active_tis_per_dag=1,
            conf={
                "spark.driver.extraClassPath": os.environ.get(S3A_JARS, ""),
                "spark.driver.extraJavaOptions": JAVA,
                # Each shell has its own metastore.
                "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
            },
        )

spark = find_spec("pyspark")
assert spark is not None
assert spark.origin is not None
SPARK_JAR = next(Path(spark.origin).parent.glob("jars/spark-core_*.jar"))

#: What Spark opens for itself in other JVMs; a driver on the cluster without executors there needs it too.
OPENED = "--add-opens=java.base/java.nio=ALL-UNNAMED --add-opens=java.base/sun.nio.ch=ALL-UNNAMED"

#: The cluster's address, as its connection knows it. A driver on the cluster need not have executors there.
MASTER = f"{{{{ conn.{SPARK_CLUSTER}.host }}}}:{{{{ conn.{SPARK_CLUSTER}.port }}}}"

for name, master, then in (
    ("cluster_killed", MASTER, ""),
    ("cluster_reconnected", "local[2]", ""),
    ("cluster_sealed", "local[2]", "raise"),
):
    with row(name) as dag, group(dag) as commit:
        commit.spark_submit(
            conn_id=SPARK_CLUSTER,
            # A standalone master takes no Python program as a driver, but a program that starts one.
            application=str(SPARK_JAR),
            java_class="org.apache.spark.deploy.SparkSubmit",
            application_args=[
                "--master",
                master,
                HELD,
                f"s3://lake/{dag.dag_id}/",
                dag.dag_id,
                "{{ run_id }}",
                then,
            ],
            conf={
                "spark.driver.memory": "512m",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.extraJavaOptions": f"{JAVA} {OPENED}",
                "spark.executor.memory": "512m",
                "spark.executor.extraJavaOptions": JAVA,
                "spark.cores.max": 2,
                "spark.ui.enabled": False,
            },
            retries=0 if name == "cluster_killed" else 1,
            retry_delay=timedelta(seconds=1),
            on_execute_callback=noting_processes,
        )
