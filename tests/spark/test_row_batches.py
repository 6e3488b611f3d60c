"""How large the batches of rows are that Spark passes on, and whose limits decide it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

from airflow_s3commit.spark import batch_conf, register, write_pending
from airflow_s3commit.spark.session import BATCHES_BY_COUNT
from tests.spark.conftest import write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Lake

pytestmark = [pytest.mark.spark, pytest.mark.seaweedfs, pytest.mark.xdist_group("spark")]

RECORDS, BYTES = BATCHES_BY_COUNT


def said(spark: SparkSession) -> dict[str, str]:
    """Return a session's own batch settings."""
    found = {key: spark.conf.get(key, None) for key in BATCHES_BY_COUNT}
    return {key: value for key, value in found.items() if value is not None}


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """Return a session without settings of batches."""
    fresh = spark.newSession()
    assert said(fresh) == {}
    return fresh


def batches_of(session: SparkSession, rows: int, **more: str) -> DataFrame:
    """Return a row for each batch of a number of rows, with its row count; further columns are SQL."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    counted = session.range(0, rows, 1, 1).mapInArrow(count, "rows long")
    return counted.withColumns({name: F.expr(sql) for name, sql in more.items()})


def written(lake: Lake, frame: DataFrame) -> list[int]:
    """Write these, and return how many rows each batch had."""
    write_pending(frame, destination=lake.uri, options=lake.options)
    return sorted(lake.table()["rows"].to_pylist())


def test_a_write_has_rows_counted(session: SparkSession, lake: Lake) -> None:
    """While `write_pending` runs a batch has 2,000 rows and no limit in bytes, afterwards Spark's."""
    assert written(lake, batches_of(session, 5_000)) == [1_000, 2_000, 2_000]
    assert said(session) == {}


def test_a_failed_write_restores_the_session(session: SparkSession, lake: Lake) -> None:
    """A session's limits are restored after a write that failed."""
    with pytest.raises(Exception, match="USER_RAISED_EXCEPTION"):
        written(lake, batches_of(session, 10, broken="raise_error('broken')"))
    assert said(session) == {}


@pytest.mark.parametrize("sql", ["array(x'00')", pytest.param("x'00'", marks=pytest.mark.all)])
def test_rows_that_may_be_large_are_weighed(session: SparkSession, lake: Lake, sql: str) -> None:
    """Rows with binary columns, nested ones too, stay under Spark's own limits."""
    assert written(lake, batches_of(session, 5_000, large=sql)) == [5_000]


@pytest.mark.parametrize("own", [{RECORDS: "3000"}, pytest.param({BYTES: "64m"}, marks=pytest.mark.all)])
def test_limits_of_the_session_stay(session: SparkSession, lake: Lake, own: dict[str, str]) -> None:
    """If the session sets a batch's limit, in rows or in bytes, no way of writing changes it."""
    for key, value in own.items():
        session.conf.set(key, value)
    register(session)
    assert said(session) == own
    largest = int(own.get(RECORDS, 10_000))
    assert written(lake, batches_of(session, 4_000))[-1] == min(largest, 4_000)
    assert said(session) == own


def test_a_registered_session_counts_rows(session: SparkSession, lake: Lake) -> None:
    """After `register` the data source gets batches of 2,000 rows, and `write_pending` changes nothing."""
    register(session)
    assert said(session) == BATCHES_BY_COUNT
    write(batches_of(session, 3_000), lake)
    assert sorted(lake.table()["rows"].to_pylist()) == [1_000, 2_000]
    write_pending(batches_of(session, 1), destination=lake.uri, mode="append", options=lake.options)
    assert said(session) == BATCHES_BY_COUNT


def test_a_conf_with_its_own_limit_is_left_alone() -> None:
    """A conf with either limit is left alone, another gets both."""
    assert batch_conf({"spark.executor.memory": "1g"}) == BATCHES_BY_COUNT
    assert batch_conf({RECORDS: 100}) == batch_conf({BYTES: "16m"}) == {}
