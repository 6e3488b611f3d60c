"""Reads a table by its log: one consistent generation, even during a later commit.

`dataset` returns a ``pyarrow.dataset.Dataset`` of exactly the files that commits have left in the table. A
reader that lists the destination may see half a commit; this one sees the last commit until the next job has
committed. Importing this package does not import pyarrow; using its names does.
"""

from __future__ import annotations

from airflow_s3commit._names import lazy

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from airflow_s3commit.reader.listing import UnreadablePartitions
    from airflow_s3commit.reader.table import UnreadableFiles, dataset

__all__ = ["UnreadableFiles", "UnreadablePartitions", "dataset"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__spec__)
