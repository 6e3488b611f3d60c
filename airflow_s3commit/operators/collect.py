"""Sealing a job: from here on, exactly these stage attempts count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_s3commit.links.pendingsets import PendingsetsLink
from airflow_s3commit.operators.base import CommitStepOperator, refusals_are_final

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow.sdk import BaseOperatorLink, Context

    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.records import SealReference
    from airflow_s3commit.xcom import JsonObject

__all__ = ["S3CommitCollectOperator", "SealingOperator"]


class SealingOperator(CommitStepOperator):
    """A step that knows which stages of the job count.

    :param stages: XComs of the stage tasks; None takes every stage attempt that the job has sealed, which is
        how stages of other engines are found. (templated)
    """

    template_fields: Sequence[str] = (*CommitStepOperator.template_fields, "stages")
    operator_extra_links: Collection[BaseOperatorLink] = (PendingsetsLink(),)

    def __init__(self, *, stages: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stages = stages
        self.seal_uri: str | None = None
        self.endpoint_url: str | None = None

    def seal(self, job: Job) -> SealReference:
        """Seal the job; one that is sealed with the same stages stays as it is."""
        from airflow_s3commit.xcom import (  # noqa: PLC0415 - keeps DAG parsing light
            fetched,
            seal_etags_of,
            stages_of,
        )

        try:
            told = fetched(self.stages)
            stages, etags = stages_of(told, job.reference.job_id), seal_etags_of(told)
        except ValueError as error:
            raise AirflowFailException(f"Task {self.task_id}: {error}") from error
        sealed = job.seal(stages, etags=etags)
        self.seal_uri, self.endpoint_url = sealed.location, self.hook.address.endpoint_url
        self.log.info(
            "Job %s is sealed: %d files, %d bytes, %s rows in %d partitions",
            job.reference.job_id,
            sealed.counts.files,
            sealed.counts.bytes,
            "unknown" if sealed.counts.rows is None else sealed.counts.rows,
            len(sealed.partitions),
        )
        return sealed


class S3CommitCollectOperator(SealingOperator):
    """Finds and verifies what the stages sealed, and seals the job. Returns where the seal is.

    After it, nothing can be added to the job. `S3CommitResolveConflictsOperator` does the same by itself;
    this operator is for DAGs that put a check of their own in between.

    :param job: The job reference. (templated)
    :param stages: XComs of the stage tasks; None takes every stage attempt that the job has sealed.
        (templated)
    """

    ui_color = "#e8f0f7"

    def execute(self, context: Context) -> JsonObject:  # noqa: ARG002 - Airflow's shape
        """Seal the job."""
        with refusals_are_final():
            return self.seal(self.opened_job()).to_dict()
