"""The jar records which columns Spark's own writers wrote, and reads by the log need no file for them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_s3commit import Job, JobOptions
from airflow_s3commit.protocol.model.sealed_job import WrittenColumns
from airflow_s3commit.reader import dataset
from airflow_s3commit.spark import committer_conf
from tests.protocol.published import generations, replayed, versions
from tests.spark.conftest import Lake, Submit
from tests.spark.engines import ENGINES, RELEASE, Engine

pytestmark = [pytest.mark.spark, pytest.mark.seaweedfs, pytest.mark.xdist_group("spark-submit")]

_NESTED = {
    "type": "struct",
    "fields": [
        {"name": "x", "type": "long", "nullable": True, "metadata": {}},
        {
            "name": "y",
            "type": {"type": "array", "elementType": "integer", "containsNull": True},
            "nullable": True,
            "metadata": {},
        },
    ],
}
_FLAGS = {"type": "map", "keyType": "string", "valueType": "boolean", "valueContainsNull": True}

#: The columns of each table by their types in Spark's JSON, and the number of those of partitions.
WRITTEN: dict[str, tuple[list[tuple[str, object]], int]] = {
    "typed": (
        [
            ("id", "long"), ("nested", _NESTED), ("flags", _FLAGS), ("price", "decimal(9,2)"),
            ("at", "timestamp"), ("local", "timestamp_ntz"), ("day", "date"), ("raw", "binary"),
            ("dt", "string"), ("h", "long"),
        ],
        2,
    ),
    "inserted": (
        [("Id", "long"), ("code", "string"), ("name", "string"), ("dt", "string"), ("h", "integer")],
        2,
    ),
    "hived": ([("id", "long"), ("code", "string"), ("dt", "string")], 1),
    "below": ([("id", "long"), ("a:b", "void"), ("dt", "void"), ("h", "long")], 3),
    "empty": ([("id", "long"), ("dt", "string"), ("h", "long")], 0),
}  # fmt: skip

#: Formats of rows; Spark 4 has XML, and Avro is a package of its own.
ROWS = ("csv", "json")

#: Tables of which no columns are recorded: one is in the files and in a directory, or a text is too long.
UNKNOWN = ("doubled", "wide", "long")

#: Writes of published tables that Delta cannot have, and why.
NOT_IN_DELTA = {
    "spaced": "column 'a b': Delta has no names with",
    "spans": "column 'x' has the type interval day, which Delta does not have",
    "orc": "Delta reads Parquet alone, not orc",
    "unknown": "the columns of the write are unknown",
}


@pytest.fixture(
    scope="module",
    params=[name if name == "installed" else pytest.param(name, marks=pytest.mark.all) for name in ENGINES],
)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Return each Spark that the jar is for."""
    return ENGINES[request.param](request.config.cache)


@pytest.mark.all
def test_every_write_records_its_columns(
    engine: Engine, lake: Lake, submit_unchanged: Submit, tmp_path: Path
) -> None:
    """They are those of the files, then those of the partitions, in Spark's JSON, or unknown as a whole."""
    has_hive = any((engine.home / "jars").glob("spark-hive_*"))
    metastore = f"jdbc:derby:;databaseName={tmp_path}/hive;create=true"
    conf = {
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": metastore,
        "spark.sql.catalogImplementation": "hive" if has_hive else "in-memory",
    }
    rows = (*ROWS, "xml")
    if engine.python != Path(sys.executable):
        (scala,) = {
            jar.name.split("_")[1].split("-")[0] for jar in (engine.home / "jars").glob("spark-sql_*")
        }
        conf["spark.jars.packages"] = f"org.apache.spark:spark-avro_{scala}:{RELEASE}"
        rows = (*ROWS, "avro")
    jobs, hives = {}, [] if has_hive else ["hived"]
    written = {name: columns for name, columns in WRITTEN.items() if name not in hives}
    for name in (*written, *rows, "twice", *UNKNOWN, *NOT_IN_DELTA):
        publish: Any = "delta" if name in ("typed", *NOT_IN_DELTA) else None
        options = JobOptions(conflict_mode="as-written", publish=publish)
        jobs[name] = Job.setup(lake.store, f"{lake.uri}{name}/", options=options)
        conf |= committer_conf(jobs[name].reference, "load", "1", writer="spark")
    place = lake.uri.replace("s3:", "s3a:").rstrip("/")
    done = submit_unchanged("typed_writes.py", [place, *rows], conf)
    assert done.returncode == 0, done.stderr[-4000:]
    errors = json.loads(done.stdout.splitlines()[-1])
    for name, fault in NOT_IN_DELTA.items():
        assert f"its table is published, and {fault}" in errors.pop(name)
        jobs.pop(name)
    assert not [key for key in lake.pending() for name in NOT_IN_DELTA if f"/{name}/" in key]
    assert errors == dict.fromkeys(jobs, "")
    found = {}
    for name, job in jobs.items():
        job.seal_stage("load", "1")
        job.seal()
        texts = job.commit().schemas
        columns = [WrittenColumns.of(text, name) for text in texts]
        assert all(one.arrow is None for one in columns)
        found[name] = [([(f.name, f.type) for f in one.spark.fields], one.partitions) for one in columns]
    for name, (fields, partitions) in written.items():
        names = [field for field, _ in fields]
        assert found[name] == [(fields, names[len(names) - partitions :])], name
    for name in rows:
        assert found[name] == [([("id", "long"), ("h", "long"), ("dt", "string")], ["dt"])]
    assert sorted(found["twice"]) == [
        ([("id", "long")], []),
        ([("id", "long"), ("more", "string")], []),
    ]
    assert [found[name] for name in UNKNOWN] == [[], [], []]
    # Spark chooses how a file has a time: only its footer tells what pyarrow reads.
    typed = dataset(lake.server.config, f"{lake.uri}typed/")
    assert typed.schema.names == [field for field, _ in WRITTEN["typed"][0]]
    assert typed.to_table().num_rows == 6
    # So a job of Spark's own writers can be published.
    assert replayed(lake.store, f"{lake.uri}typed/") == generations(lake.store, f"{lake.uri}typed/")
    (actions,) = versions(lake.store, f"{lake.uri}typed/").values()
    metadata = next(one["metaData"] for one in actions if "metaData" in one)
    columns = json.loads(metadata["schemaString"])["fields"]
    assert [(one["name"], one["type"]) for one in columns] == WRITTEN["typed"][0]
    assert metadata["partitionColumns"] == ["dt", "h"]
