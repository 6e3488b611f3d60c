"""The row whose file is removed while it runs, in a directory of its own."""

from __future__ import annotations

from tests.integration.airflow_live.row_dag import group, row
from tests.integration.airflow_live.stages import write

with row("file_removed") as dag, group(dag) as commit:
    commit.stage(write(commit.job))
