"""Spark Connect: what works from a client, and the error of what does not."""

from __future__ import annotations

import json
import shlex
import sys
from typing import TYPE_CHECKING

import pytest

from tests.hadoop.real_hadoop import Hadoop
from tests.spark_cluster.cluster import SMALL, DriverProcess
from tests.spark_cluster.conftest import DRIVER_KEYS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spark_cluster.conftest import Table

pytestmark = [
    pytest.mark.all,
    pytest.mark.spark,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("spark-cluster"),
]


def first_in_line(directory: Path) -> str:
    """Return a Python that runs before other processes, where this user may have that.

    Spark gives the process of a stream's function ten seconds to start. It imports pandas first, which takes
    longer where other suites have the processors.
    """
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nexec nice -n -15 {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o700)
    return str(python)


def test_the_doors_under_connect(table: Table, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Writes, reads and a named stream work from a Connect client; a stream without a name is refused."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "0.json").write_text("\n".join(f'{{"id": {n}}}' for n in range(10)))
    hadoop = Hadoop.get("3.5.0", request.config.cache.mkdir("hadoop"))
    s3a = {
        "spark.jars": ",".join(hadoop.jars_for_spark),
        "spark.hadoop.fs.s3a.endpoint": table.address["spark.s3commit.endpoint.url"],
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    told = {
        "conf": {**SMALL, **table.address, **s3a},
        "home": str(tmp_path),
        "tables": {door: f"{table.uri}{door}/" for door in ("format", "write_pending", "foreach_batch")},
    }
    client = DriverProcess(
        "tests.spark_cluster.connect_client",
        json.dumps(told),
        log=tmp_path / "client.log",
        environment={**DRIVER_KEYS, "PYSPARK_PYTHON": first_in_line(tmp_path)},
    )
    try:
        said = {answer.pop("what"): answer for answer in (client.answer() for _ in range(5))}
    finally:
        client.stop()
    assert said["format"] == {"result": None}
    assert table.below("format/").rows() == list(range(10))
    assert said["write_pending"] == {"result": 10}
    read = [[number, number % 2 == 0] for number in range(10) if number % 2 == 0 or number > 6]
    assert said["read_table"] == {"result": read}
    assert said["foreach_batch"] == {"result": None}
    assert "Spark Connect does not reveal a query's id" in said["foreach_batch without a stream"]["error"]
    assert table.below("foreach_batch/").rows() == list(range(10))
    assert table.pending() == []
