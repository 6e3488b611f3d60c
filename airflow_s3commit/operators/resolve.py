"""Partitioned conflict resolution: what the commit will replace, found out before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_s3commit.operators.base import refusals_are_final
from airflow_s3commit.operators.collect import SealingOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_s3commit.xcom import JsonObject

__all__ = ["S3CommitResolveConflictsOperator"]


class S3CommitResolveConflictsOperator(SealingOperator):
    """Seals the job if nobody has, and plans its commit. Returns where seal and plan are, and their ETags.

    With conflict mode ``fail`` it is this task that fails when a touched partition has data: before anything
    has become visible.

    :param job: The job reference. (templated)
    :param stages: XComs of the stage tasks; None takes every stage attempt that the job has sealed.
        (templated)
    """

    ui_color = "#e8f0f7"

    def execute(self, context: Context) -> JsonObject:  # noqa: ARG002 - Airflow's shape
        """Seal and plan."""
        with refusals_are_final():
            job = self.opened_job()
            sealed = self.seal(job)
            plan = job.plan()
        self.log.info(
            "The commit will replace %d objects (%d bytes) in %d partitions",
            plan.objects,
            plan.bytes,
            plan.partitions,
        )
        return {"seal": sealed.to_dict(), "plan": plan.to_dict()}
