"""The conflict mode, from form and template to the task."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import ParamValidationError

from airflow_s3commit.operators import S3CommitSetupOperator
from airflow_s3commit.params import SPARKS_CONFLICT_MODE, check_conflict_mode, conflict_mode_param
from tests.airflow.runs import new_context


@pytest.mark.parametrize(
    ("run_type", "conf", "params", "mode"),
    [
        ("scheduled", {}, {}, "fail"),
        ("scheduled", {}, {"conflict_mode": "append"}, "append"),
        ("manual", {"conflict_mode": "append"}, {"conflict_mode": "append"}, "append"),
        ("backfill", {}, {"conflict_mode": "fail"}, "replace"),
        ("backfill", None, {"conflict_mode": "fail"}, "replace"),
        ("backfill", {}, {}, "replace"),
        ("backfill", {"conflict_mode": "append"}, {"conflict_mode": "append"}, "append"),
        ("backfill", {"other": 1}, {"conflict_mode": "fail"}, "replace"),
    ],
)
def test_the_default_mode(run_type: str, conf: dict | None, params: dict, mode: str) -> None:
    """Runs take the param's mode, and backfills replace unless their conf names a mode."""
    operator = S3CommitSetupOperator(task_id="setup", destination="s3://lake/flights/")
    operator.render_template_fields(
        new_context(params=params, dag_run={"run_type": run_type, "conf": conf})  # type: ignore[arg-type]
    )
    assert operator.conflict_mode == mode


@pytest.mark.parametrize(
    ("run_type", "conf", "params", "mode"),
    [
        ("scheduled", {}, {}, "as-written"),
        ("backfill", {}, {}, "as-written"),
        ("scheduled", {}, {"conflict_mode": "append"}, "append"),
        ("scheduled", {}, {"conflict_mode": "fail"}, "fail"),
        ("backfill", {}, {"conflict_mode": "fail"}, "replace"),
        ("manual", {"conflict_mode": "replace"}, {"conflict_mode": "replace"}, "replace"),
    ],
)
def test_the_save_modes_decide_unless_a_mode_is_named(
    run_type: str, conf: dict, params: dict, mode: str
) -> None:
    """A group of Spark's own writers takes the param's mode if there is one, and the save modes otherwise."""
    operator = S3CommitSetupOperator(
        task_id="setup", destination="s3://lake/flights/", conflict_mode=SPARKS_CONFLICT_MODE
    )
    operator.render_template_fields(
        new_context(params=params, dag_run={"run_type": run_type, "conf": conf})  # type: ignore[arg-type]
    )
    assert operator.conflict_mode == mode


def test_the_param_takes_the_three_modes_only() -> None:
    """The form's field accepts the modes and refuses anything else."""
    param = conflict_mode_param("append")
    assert param.resolve() == "append"
    assert param.resolve("replace") == "replace"
    with pytest.raises(ParamValidationError):
        param.resolve("overwrite")


def test_an_unknown_mode_is_named() -> None:
    """The error says what the mode was and what it may be."""
    with pytest.raises(ValueError, match="'overwrite'; it must be one of fail, append, replace"):
        check_conflict_mode("overwrite")
