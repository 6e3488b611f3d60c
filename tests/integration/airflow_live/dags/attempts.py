"""The rows about tries of a stage of another engine, and about stages that were skipped or wrote nothing."""

from __future__ import annotations

from datetime import timedelta

from tests.integration.airflow_live.row_dag import group, row
from tests.integration.airflow_live.stages import no_data_today, seal_and_vanish, write, write_nothing

engine = seal_and_vanish.override(retries=1, retry_delay=timedelta(seconds=1))

with row("sealed_and_lost") as dag, group(dag) as commit:
    commit.stage(engine(commit.job))

with row("application_found_again") as dag, group(dag) as commit:
    commit.stage(engine(commit.job, again=False))

with row("named_sealed_and_lost") as dag, group(dag) as commit:
    commit.stage(engine(commit.job), name="engine")

with row("named_without_output") as dag, group(dag) as commit:
    commit.stage(engine(commit.job, again=False), name="engine")

with row("marked_success_when_sealed") as dag, group(dag) as commit:
    commit.stage(seal_and_vanish(commit.job, hold=True), name="engine")

with row("marked_success_too_soon") as dag, group(dag) as commit:
    commit.stage(write(commit.job, late=True))

with row("one_of_two_skipped_by_default") as dag, group(dag) as commit:
    commit.stage(write(commit.job, hold=False))
    commit.stage(no_data_today(commit.job))

with row("nothing_written") as dag, group(dag) as commit:
    commit.stage(write_nothing(commit.job))

for name, on_empty in (("empty_committed", "commit"), ("empty_refused", "commit"), ("emptied", "remove")):
    with (
        row(name) as dag,
        group(dag, on_empty=on_empty, committer="directory", conflict_mode="replace") as commit,
    ):
        commit.stage(no_data_today(commit.job))
