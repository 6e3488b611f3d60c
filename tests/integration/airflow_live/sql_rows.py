"""The rows of Spark's SQL shell, whose destinations have rows of another program before the run."""

from __future__ import annotations

import io
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

from tests.integration.airflow_live.matrix import settled
from tests.integration.airflow_live.scenario import Run, Story

#: The partitions of those rows.
OLD = ("dt=row", "dt=other")


def over_old_rows(run: Run) -> Story:
    """Put the rows there, and do nothing to the run."""
    old = io.BytesIO()
    pq.write_table(pa.table({"id": [-1]}), old)
    for partition in OLD:
        run.stage.store.put("lake", f"{run.destination.prefix}{partition}/old.parquet", old.getvalue())
    run.start()
    yield from settled(run)


#: Each row's story, by its DAG.
SQL_STORIES: dict[str, Callable[[Run], Story]] = {
    "sql_committed": over_old_rows,
    "sql_failed": over_old_rows,
}
