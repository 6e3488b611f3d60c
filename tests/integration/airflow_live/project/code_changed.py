"""A row whose file is mended between the failure of its run and the clear."""

from __future__ import annotations

from tests.integration.airflow_live.row_dag import group, row
from tests.integration.airflow_live.stages import fail, write

with row("code_changed") as dag, group(dag, conflict_mode="replace", retain="0s") as commit:
    checked = fail()
    commit.stage(write(commit.job, hold=False)) >> commit.stage(checked)
