"""How Spark hands rows to Python: in batches that it counts, and does not weigh as well.

Spark ends an Arrow batch by its rows, 10,000, and since 4.0 by its bytes too (SPARK-51316), 64 MiB. To know
the bytes it asks every column of a batch for its size before each row that it adds: with 14 columns that was
half of what handing the rows over costs (`benchmarks/write.py`). A byte limit of 2^31 - 1 stands for none,
and Spark asks no more.

What then bounds a batch is the count of its rows: 2,000 cost no more than 10,000, and weigh less than Spark's
64 MiB as long as a row has less than 32 KiB on average.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_s3commit.causes import ending

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["BATCHES_BY_COUNT", "batch_conf", "count_rows", "rows_counted"]

#: What has Spark count the rows of a batch, and no more.
BATCHES_BY_COUNT = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}

#: Types whose values are often large: pictures, documents.
_LARGE = frozenset({"binary", "variant"})


def batch_conf(given: Collection[str]) -> dict[str, str]:
    """Return what is to be added to a Spark conf: nothing if it says itself how large a batch may be.

    Args:
        given: The conf, or its keys.

    """
    return {} if any(key in given for key in BATCHES_BY_COUNT) else dict(BATCHES_BY_COUNT)


def count_rows(session: SparkSession) -> bool:
    """Have a session count the rows of its batches from now on, and tell whether that changed anything.

    After: it does, or it goes by limits of its own, which are left alone.
    """
    conf = batch_conf([key for key in BATCHES_BY_COUNT if session.conf.get(key, None) is not None])
    for key, value in conf.items():
        session.conf.set(key, value)
    return bool(conf)


@contextmanager
def rows_counted(session: SparkSession, schema: StructType) -> Iterator[None]:
    """Have a session count the rows of its batches for a while.

    Rows with columns of a type whose values are often large stay under the session's limit. A thread that
    writes in the same session meanwhile takes this for the session's own limits; if this ends first, the
    other goes on under Spark's, which cost it time and nothing else.
    """
    changed = not _has_large(schema) and count_rows(session)

    def restore() -> None:
        for key in BATCHES_BY_COUNT if changed else ():
            session.conf.unset(key)

    with ending(restore, "restoring the session's limits of batches", "its batches stay counted by rows"):
        yield


def _has_large(schema: StructType) -> bool:
    """Whether a column, or what is nested in it, is of a type whose values are often large.

    A field of a struct that only has such a name counts too, which costs time and nothing else.
    """
    words = {word for field in schema.fields for word in re.findall(r"\w+", field.dataType.simpleString())}
    return not _LARGE.isdisjoint(words)
