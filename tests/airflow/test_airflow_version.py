"""What older versions of Airflow lack, as far as this one can stand in for them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_s3commit import airflow_version
from airflow_s3commit.operators import S3CommitSetupOperator


def test_every_name_is_airflow_s_own() -> None:
    """In this version nothing takes the place of a name."""
    for name in ("AirflowPlugin", "PartitionMapper", "conf"):
        assert "airflow_s3commit" not in getattr(getattr(airflow_version, name), "__module__", "")
    assert airflow_version.AirflowFailException is AirflowFailException


@pytest.mark.parametrize(("key", "day"), [("2013-01-05", "2013-01-05"), (None, "else")])
def test_templates_have_the_key_of_the_run(context, key, day) -> None:
    """In Airflow 3.2 a task's context lacks the partition key, and in 3.1 the run too has none."""
    del context["partition_key"]
    context["dag_run"] = SimpleNamespace(**({} if key is None else {"partition_key": key}))
    task = S3CommitSetupOperator(task_id="setup", destination="s3://lake/{{ partition_key or 'else' }}/")
    assert task.render_template(task.destination, context) == f"s3://lake/{day}/"
