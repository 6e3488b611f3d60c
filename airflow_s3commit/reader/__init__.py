"""Reading what a job committed, by its manifest: one generation, whatever is being written meanwhile.

`dataset` returns a ``pyarrow.dataset.Dataset`` of exactly the files that one job's manifest lists. A reader
that lists the destination sees a commit half done; this one sees the last job that committed, until the next
one has. Importing this package imports no pyarrow; its names do.
"""

from __future__ import annotations

from airflow_s3commit._lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from airflow_s3commit.reader.formats import UnreadableFiles
    from airflow_s3commit.reader.partitions import UnreadablePartitions
    from airflow_s3commit.reader.table import dataset

__all__ = [
    "UnreadableFiles",
    "UnreadablePartitions",
    "dataset",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "airflow_s3commit.reader.formats": ("UnreadableFiles",),
            "airflow_s3commit.reader.partitions": ("UnreadablePartitions",),
            "airflow_s3commit.reader.table": ("dataset",),
        },
    )
