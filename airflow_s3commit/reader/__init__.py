"""Reading what a job committed, by its manifest: one generation, whatever is being written meanwhile.

`dataset` returns a ``pyarrow.dataset.Dataset`` of exactly the files that one job's manifest lists. A reader
that lists the destination sees a commit half done; this one sees the last job that committed, until the next
one has.
"""

from __future__ import annotations

from airflow_s3commit.reader.file_format import UnreadableFiles
from airflow_s3commit.reader.partition_columns import UnreadablePartitions
from airflow_s3commit.reader.table import dataset

__all__ = ["UnreadableFiles", "UnreadablePartitions", "dataset"]
