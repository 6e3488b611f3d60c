"""What Airflow's own database says about DAGs and the jobs that their runs set up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from airflow.utils.types import DagRunType
from sqlalchemy import delete, insert

from airflow_s3commit import JobReference
from airflow_s3commit.operators.setup import JOB
from airflow_s3commit.plugin.auth import Metadata, Origin

pytestmark = [pytest.mark.airflow, pytest.mark.xdist_group("airflow-page")]

REFERENCE = JobReference(job_id="j", destination="s3://lake/a/", staging="s3://lake/a/__magic_job-j/")
ORIGIN = Origin("metadata_dag", "r", "refresh.setup", 2)


@pytest.fixture(scope="module", autouse=True)
def run() -> Iterator[None]:
    """A run whose mapped setup task has told Airflow its job, and has returned nothing yet."""
    initdb()
    with create_session() as session:
        session.add(DagBundleModel(name="metadata"))
        session.flush()
        session.add(DagModel(dag_id="metadata_dag", bundle_name="metadata"))
        session.add(DagRun(dag_id="metadata_dag", run_id="r", run_type=DagRunType.MANUAL))
        session.flush()
        ids = {"dag_id": "metadata_dag", "run_id": "r", "task_id": "refresh.setup", "map_index": 2}
        session.execute(insert(TaskInstance).values(**ids, pool="default_pool", pool_slots=1))
        XComModel.set(JOB, REFERENCE.to_dict(), **ids, session=session)
    yield
    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == "metadata_dag"))
        session.execute(delete(DagModel).where(DagModel.dag_id == "metadata_dag"))
        session.execute(delete(DagBundleModel).where(DagBundleModel.name == "metadata"))


def test_a_job_is_known_from_before_its_setup_task_returns_it() -> None:
    """That very task has told it, not another one, another instance or another run."""
    assert Metadata().jobs_of(ORIGIN) == [REFERENCE]
    for other in (
        Origin("metadata_dag", "r", "refresh.setup", 1),
        Origin("metadata_dag", "r", "refresh.commit", 2),
        Origin("metadata_dag", "other", "refresh.setup", 2),
        Origin("other_dag", "r", "refresh.setup", 2),
        Origin("metadata_dag", None, "refresh.setup", 2),
        Origin("metadata_dag"),
    ):
        assert Metadata().jobs_of(other) == []


def test_only_dags_that_airflow_has_are_known() -> None:
    """This holds however many are asked for."""
    assert Metadata().teams_of(["metadata_dag", "never_heard_of"]) == {"metadata_dag": None}
    assert "metadata_dag" in Metadata().all_dag_ids()
