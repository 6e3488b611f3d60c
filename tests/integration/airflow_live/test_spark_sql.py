"""Stages of SQL alone, in Spark's own shell: pending until the commit, gone if a statement fails."""

from __future__ import annotations

import io

import pyarrow.parquet as pq
import pytest

from tests.integration.airflow_live.scenario import Played, Run, Stage
from tests.integration.airflow_live.sql_rows import OLD

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.seaweedfs,
    pytest.mark.spark,
    pytest.mark.all,
    pytest.mark.xdist_group("airflow-live"),
    pytest.mark.timeout(1800),  # the first test waits until every story has been played
]


def rows_of(visible: dict[str, bytes]) -> dict[str, list[int]]:
    """Return the ids in each directory."""
    found: dict[str, list[int]] = {}
    for path, body in visible.items():
        if not path.endswith("/"):
            ids = pq.ParquetFile(io.BytesIO(body)).read()["id"].to_pylist()
            found.setdefault(path.rpartition("/")[0], []).extend(ids)
    return {directory: sorted(ids) for directory, ids in found.items()}


@pytest.mark.parametrize("name", ["sql_committed"])
def test_the_statements_of_each_mapped_stage_are_one_commit(name: str, stage: Stage, played: Played) -> None:
    """Each instance's INSERT OVERWRITE replaces its own partition, at the commit of the group."""
    report = stage.airflow.report(name, "row")
    assert name not in played.failures, f"{played.failures[name]}\n{report}"
    assert Run(stage, name, "row").state == "success", report
    committed = stage.airflow.api.xcom(name, "row", "refresh.commit")
    assert committed["rows"] == 15, report
    left = played.left[name]
    expected = {"dt=row": list(range(10)), "dt=new;day": list(range(10, 15)), "dt=other": [-1]}
    assert rows_of(left.visible) == expected, report
    assert (left.pending, left.staging) == ([], []), report


@pytest.mark.parametrize("name", ["sql_failed"])
def test_a_statement_that_fails_leaves_nothing(name: str, stage: Stage, played: Played) -> None:
    """What earlier statements wrote is never visible, and the teardown aborts it."""
    run, left, report = Run(stage, name, "row"), played.left[name], stage.airflow.report(name, "row")
    assert name not in played.failures, f"{played.failures[name]}\n{report}"
    assert run.state == "failed", report
    states = {task: run.tasks()[task][0] for task in ("spark_sql", "abort")}
    assert states == {"spark_sql": "failed", "abort": "failed"}, report
    assert rows_of(left.visible) == {partition: [-1] for partition in OLD}, report
    assert (left.pending, left.staging) == ([], []), report
