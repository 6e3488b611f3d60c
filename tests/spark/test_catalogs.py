"""Tables of a catalog at a job's destination, on real S3A: a job's commit precedes every deletion."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_s3commit import Job, JobOptions, JobReference, write_table
from airflow_s3commit.spark import committer_conf
from tests.spark.conftest import Lake, Submit

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = [
    pytest.mark.all,
    pytest.mark.spark,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("spark-submit"),
]

#: The main class of Spark's SQL shell, which the task group's ``spark_sql`` runs.
SQL_SHELL = "org.apache.spark.sql.hive.thriftserver.SparkSQLCLIDriver"

PARQUET, TEXT = "USING parquet", "STORED AS TEXTFILE"

#: Changes that Spark makes without its commit protocol, by the table: format, statement, what is said of it.
SPARKS = {
    "saved": (PARQUET, "saveAsTable", "To drop the table would delete"),
    "dropped": (PARQUET, "DROP TABLE {name}", "To drop the table would delete"),
    "emptied": (PARQUET, "TRUNCATE TABLE {name}", "TRUNCATE TABLE would delete"),
    "parted": (PARQUET, "ALTER TABLE {name} DROP PARTITION (dt = 'a')", "DROP PARTITION would delete"),
    "renamed": (PARQUET, "ALTER TABLE {name} RENAME TO renamed2", "RENAME would move"),
    "moved": (
        PARQUET,
        "ALTER TABLE {name} PARTITION (dt = 'a') RENAME TO PARTITION (dt = 'b')",
        "RENAME would move",
    ),
    "other.inner": (PARQUET, "DROP DATABASE other CASCADE", "DROP DATABASE would delete"),
}

#: Writes of Hive's own, likewise.
HIVES = {
    "inserted": (TEXT, "INSERT OVERWRITE {name} SELECT id, 'c' FROM range(3)", "Hive's own write"),
    "loaded": (TEXT, "LOAD DATA LOCAL INPATH '/etc/hostname' INTO TABLE {name}", "LOAD DATA would move"),
}


def reference(destination: str) -> JobReference:
    """Return a job that has not been set up."""
    job_id = str(uuid.uuid4())
    return JobReference(job_id=job_id, destination=destination, staging=f"{destination}__magic_job-{job_id}/")


def files(lake: Lake, path: str) -> list[str]:
    """Return the visible files of a table, without directory markers."""
    paths = [found.removeprefix(path) for found in lake.visible() if found.startswith(path)]
    return [found for found in paths if found and not found.endswith("/")]


@pytest.mark.parametrize("catalog", ["memory", pytest.param("hive", marks=pytest.mark.all)])
def test_no_statement_deletes_or_moves_files_before_the_commit(
    catalog: str, lake: Lake, submit_unchanged: Submit, tmp_path: Path
) -> None:
    """A change that Spark or Hive make at once is refused by name, before it, if the table is a job's."""
    refused = SPARKS | (HIVES if catalog == "hive" else {})
    free = {"free": (PARQUET, "TRUNCATE TABLE {name}", "done")}
    home = tmp_path / "hive"
    metastore = f"jdbc:derby:;databaseName={home}/metastore;create=true"
    conf = {
        "spark.sql.warehouse.dir": lake.uri.replace("s3:", "s3a:"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": metastore,
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Dderby.system.home={home}",
        # Hive's temporary files are not below the table then.
        "spark.hadoop.hive.exec.stagingdir": str(tmp_path / "staging"),
    }
    paths = {name: name.replace("other.", "other.db/") + "/" for name in refused}
    jobs = {}
    for name, path in paths.items():
        jobs[name] = reference(lake.uri + path)
        conf |= committer_conf(jobs[name], "load", "1", writer="spark")
    changes = {name: change[:2] for name, change in (refused | free).items()}
    done = submit_unchanged("catalogued.py", [json.dumps(changes)], conf)
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["said"]["free"] == "done"
    for name, (_, _, why) in refused.items():
        said = seen["said"][name]
        assert f"job {jobs[name].job_id} writes to {jobs[name].destination}, and " in said, name
        assert why in said
        assert files(lake, paths[name]) == ["dt=a/old"], name
    assert set(seen["exists"].values()) == {True}
    assert files(lake, "free/") == []


@pytest.mark.all
def test_other_extensions_do_not_disable_the_guard(lake: Lake, submit_unchanged: Submit) -> None:
    """Spark 4 loads the guard in a session with other extensions: a job's table cannot be dropped."""
    conf = committer_conf(reference(f"{lake.uri}t/"), "load", "1", writer="spark")
    conf |= {
        "spark.sql.extensions": "org.example.Missing",
        "spark.sql.warehouse.dir": lake.uri.replace("s3:", "s3a:"),
    }
    done = submit_unchanged("catalogued.py", [json.dumps({"t": (PARQUET, "DROP TABLE {name}")})], conf)
    said = json.loads(done.stdout.splitlines()[-1])["said"]["t"]
    assert "To drop the table would delete" in said
    assert files(lake, "t/") == ["dt=a/old"]


@pytest.mark.parametrize("catalog", ["memory", pytest.param("hive", marks=pytest.mark.all)])
def test_partitions_of_a_catalog_follow_the_log_after_each_end(
    catalog: str, lake: Lake, submit_unchanged: Submit, tmp_path: Path
) -> None:
    """Spark's earlier changes are right after a commit, and undone after an abort."""
    old = pa.table({"id": [-1, -2], "dt": ["a:b", None], "h": pa.array([1, None], pa.int32())})
    conf = {
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path}/hive;create=true"
    }
    conf |= {"spark.sql.warehouse.dir": str(tmp_path / "warehouse")}
    tables = {}
    for end in ("commit", "abort"):
        uri = f"{lake.uri}{end}/"
        write_table(old, uri, store=lake.store, partition_by=["dt", "h"])
        job = Job.setup(lake.store, uri, options=JobOptions(conflict_mode="as-written"))
        conf |= committer_conf(job.reference, "load", "1", writer="spark")
        tables[f"t_{end}"] = {"job": job.reference.to_dict(), "end": end}
    done = submit_unchanged("registered.py", [json.dumps(tables), catalog], conf)
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    before = ["dt=__HIVE_DEFAULT_PARTITION__/h=__HIVE_DEFAULT_PARTITION__", "dt=a%3Ab/h=1"]
    after = ["dt=it%27s%5C/h=0", "dt=new/h=1"]
    assert seen["t_commit"] == {
        "moments": [[], before, after, after], "ids": [0, 1], "generation": 3, "again": []
    }  # fmt: skip
    assert seen["t_abort"] == {
        "moments": [[], before, after, before], "ids": [-2, -1], "generation": 2, "again": []
    }  # fmt: skip


@pytest.mark.all
def test_statements_in_sparks_sql_shell_wait_for_the_commit(
    lake: Lake, submit_unchanged: Submit, tmp_path: Path
) -> None:
    """What ``spark-sql`` writes is pending; a failed statement fails the application."""
    job = Job.setup(lake.store, lake.uri, options=JobOptions(conflict_mode="as-written"))
    conf = committer_conf(job.reference, "load", "1", writer="spark")
    conf |= {
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path}/h;create=true",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    create = f"CREATE TABLE t (id BIGINT) USING parquet LOCATION '{lake.uri.replace('s3:', 's3a:')}'"
    insert = "INSERT OVERWRITE t SELECT id FROM range(3)"
    sql = f"{create}; {insert}; SELECT nothing FROM nowhere; {insert}"
    done = submit_unchanged("--class", [SQL_SHELL, "spark-internal", "-e", sql], conf)
    assert done.returncode != 0
    assert "nowhere" in done.stdout + done.stderr
    assert lake.visible() == []
    assert job.seal_stage("load", "1").counts.rows == 3
    job.abort()
    assert lake.pending() == []
