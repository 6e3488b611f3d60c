"""Uncommon ways to write: they give the rows of a disk at the commit, or are refused by name."""

from __future__ import annotations

import gzip
import io
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from airflow_s3commit import Job, JobOptions
from airflow_s3commit.spark import committer_conf
from tests.spark.conftest import Lake, Submit
from tests.spark.engines import ENGINES, Engine

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.spark,
    pytest.mark.seaweedfs,
    pytest.mark.all,
    pytest.mark.xdist_group("spark-submit"),
]

#: Writes that are committed, with their directories.
WRITTEN = {"special": "special a ü+%41=1"} | {
    name: name
    for name in (
        "option_path", "insert_into", "dynamic_option", "text_gzip", "threads", "empty", "null_partition",
        "directory", "jvm", "lines", "typed", "beside_a_stream",
    )
}  # fmt: skip

#: The package's errors for those that it refuses.
REFUSED = {
    "own_protocol": "which would publish the files at once",
    "batches": "a streaming query writes it",
    "batch_threads": "a streaming query writes it",
    "sink": "It would publish files at once",
}

#: What Spark itself refuses, wherever the table is.
SPARKS = ("v2", "updated", "merged", "binary")


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Return each Spark that the jar is for."""
    return ENGINES[request.param](request.config.cache)


def rows_of(folder: Path) -> list[tuple[str, str]]:
    """Return each row of a folder's files, with its directory."""
    found = []
    for file in folder.rglob("*"):
        if file.name.startswith((".", "_")) or not file.is_file():
            continue
        content = file.read_bytes()
        if file.name.endswith((".gz", ".csv")):
            lines = gzip.decompress(content) if file.name.endswith(".gz") else content
            rows: list[object] = list(lines.splitlines())
        else:
            read = pa.orc.read_table if file.name.endswith(".orc") else pq.read_table
            rows = list(read(io.BytesIO(content)).to_pylist())
        found += [(file.relative_to(folder).parent.as_posix(), str(row)) for row in rows]
    return sorted(found)


def test_uncommon_ways_to_write(lake: Lake, submit_unchanged: Submit, tmp_path: Path) -> None:
    """Nothing is visible before the commit; then the rows are those of a disk, or a named error came."""
    local, conf, jobs = tmp_path / "local", {"spark.sql.warehouse.dir": str(tmp_path / "warehouse")}, {}
    conf["spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version"] = "2"
    old = io.BytesIO()
    pq.write_table(pa.table({"id": [-1, -2]}), old)
    for name in (*WRITTEN.values(), *REFUSED, *SPARKS):
        there = f"{lake.destination.prefix}{name}/dt=old/x.parquet"
        lake.store.put(lake.destination.bucket, there, old.getvalue())
        (local / name / "dt=old").mkdir(parents=True, exist_ok=True)
        (local / name / "dt=old" / "x.parquet").write_bytes(old.getvalue())
        if name not in jobs:
            uri = f"{lake.uri}{name}/"
            jobs[name] = Job.setup(lake.store, uri, options=JobOptions(conflict_mode="as-written"))
            conf |= committer_conf(jobs[name].reference, "load", "1", writer="spark")
    done = submit_unchanged("odd_jobs.py", [lake.uri.replace("s3:", "s3a:").rstrip("/"), str(local)], conf)
    assert done.returncode == 0, done.stderr[-4000:]
    errors = json.loads(done.stdout.splitlines()[-1])
    assert {path for path in lake.visible() if "dt=old" not in path} == set()
    assert {name for name in SPARKS if not errors[f"{name} there"]} == set()
    for name, why in REFUSED.items():
        assert f"job {jobs[name].reference.job_id} " in errors[f"{name} there"], name
        assert why in errors[f"{name} there"]
        assert errors[f"{name} here"] == ""
    for name, path in WRITTEN.items():
        assert not errors[f"{name} there"], name
        job = jobs[path]
        job.seal_stage("load", "1")
        job.seal()
        job.commit()
        table = Lake(lake.store, lake.server, f"{lake.uri}{path}/")
        assert rows_of(table.download(tmp_path / "there" / name)) == rows_of(local / path), name
        assert table.pending() == []
