"""A stage of a job that ``spark-submit`` runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException

from airflow_s3commit.hooks.s3_commit import S3CommitHook
from airflow_s3commit.operators.base import job_reference, refusals_are_final

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue

    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.records import JobReference, SealReference
    from airflow_s3commit.xcom import JsonObject

__all__ = ["S3CommitSparkSubmitOperator"]

#: Where this task remembers its stage attempt, in its ``task_state_store``.
_REMEMBERED = "s3commit.stage_attempt"


class S3CommitSparkSubmitOperator(SparkSubmitOperator):
    """Runs a Spark application that writes into a job, and returns where the application's seal is.

    The application writes with ``df.write.format("s3commit")``; which job, stage and stage attempt it writes
    for is added to its configuration. A retry takes over a stage attempt that was sealed before the earlier
    try failed, instead of computing it again; one that was not sealed is aborted.

    Credentials are never part of the configuration. If the ``aws`` connection holds keys, they are in the
    environment of ``spark-submit`` while it runs, which serves ``local`` masters and the driver in client
    mode; executors and drivers elsewhere use the identity of their own machines.

    :param job: The job reference: the output of an `S3CommitSetupOperator`. (templated)
    :param stage: The stage's name within the job, of letters, digits, ``.``, ``_`` and ``-``; by default the
        task's name, with the map index in a mapped task. (templated)
    :param aws_conn_id: The ``aws`` connection of the store; None means boto3's default chain. (templated)
    :param region_name: Overrides the connection's region. (templated)
    :param verify: Overrides the connection's check of TLS certificates. (templated)
    :param kwargs: Everything else that ``SparkSubmitOperator`` takes.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "job",
        "stage",
        "aws_conn_id",
        "region_name",
        "verify",
    )

    def __init__(
        self,
        *,
        job: Any,
        stage: str | None = None,
        aws_conn_id: str | None = S3CommitHook.default_conn_name,
        region_name: str | None = None,
        verify: bool | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.stage = stage
        self.aws_conn_id = aws_conn_id
        self.region_name = region_name
        self.verify = verify
        self._stage_attempt: str | None = None

    @cached_property
    def commit_hook(self) -> S3CommitHook:
        """The hook of the store's connection (the parent's hook is Spark's)."""
        return S3CommitHook(self.aws_conn_id, region_name=self.region_name, verify=self.verify)

    def execute(self, context: Context) -> JsonObject:  # type: ignore[override]
        """Submit the application, unless an earlier try of this task has sealed its output already."""
        job = self.commit_hook.job(job_reference(self.job, self.task_id))
        stage = self._stage_name(context)
        with refusals_are_final():
            earlier = self._earlier_attempt(context, job.reference)
            seal = job.stage_seal(stage, earlier) if earlier else None
            if earlier and seal:
                self.log.info("Stage %s was sealed by attempt %s of this task; using that", stage, earlier)
                return self._summary(stage, earlier, seal)
            self._stage_attempt = earlier
            if earlier is None or not self._may_still_run(context):
                self._begin_attempt(context, job, stage)
        with self.commit_hook.credentials_in_environment():
            super().execute(context)
        with refusals_are_final():
            return self._sealed_output(context, job, stage)

    def submit_job(self, context: Context) -> str | None:
        """Submit anew where the parent found no driver to reconnect to."""
        if self._may_still_run(context):
            # The parent built its hook for a driver that turned out to be gone: a new application needs a
            # stage attempt of its own, and its configuration is in the hook.
            job = self.commit_hook.job(job_reference(self.job, self.task_id))
            self._begin_attempt(context, job, self._stage_name(context))
            self._hook = self._get_hook()
        return super().submit_job(context)

    def _begin_attempt(self, context: Context, job: Job, stage: str) -> None:
        from airflow_s3commit.spark.session import committer_conf  # noqa: PLC0415 - keeps parsing light

        if self._stage_attempt is not None:
            uploads = job.abort_stage(stage, self._stage_attempt)
            self.log.info("Aborted %d uploads of attempt %s of stage %s", uploads, self._stage_attempt, stage)
        self._stage_attempt = str(context["ti"].try_number)
        self._remember(context, job.reference)
        address = self.commit_hook.address
        self.conf = {
            **(self.conf or {}),
            **committer_conf(
                job.reference,
                stage,
                self._stage_attempt,
                endpoint_url=address.endpoint_url,
                region=address.region,
                path_style=address.path_style,
            ),
        }

    def _sealed_output(self, context: Context, job: Job, stage: str) -> JsonObject:
        attempt = cast("str", self._stage_attempt)
        seal = job.stage_seal(stage, attempt)
        if seal is None:
            self._forget_driver(context)
            raise AirflowException(
                f"The Spark application of task {self.task_id} ended well but sealed no output of "
                f"stage {stage} (attempt {attempt}) in job {job.reference.job_id}. Does it write with "
                f'df.write.format("s3commit") to {job.reference.destination}, and with no other job or stage '
                "among its options?"
            )
        return self._summary(stage, attempt, seal)

    @staticmethod
    def _summary(stage: str, attempt: str, seal: SealReference) -> JsonObject:
        return {"stage": stage, "stage_attempt": attempt, **seal.to_dict()}

    def _stage_name(self, context: Context) -> str:
        if self.stage:
            return self.stage
        own_name = self.task_id.rpartition(".")[2]
        map_index = getattr(context["ti"], "map_index", None)
        return own_name if map_index is None or map_index < 0 else f"{own_name}-{map_index}"

    def _earlier_attempt(self, context: Context, reference: JobReference) -> str | None:
        """Return the stage attempt that an earlier try of this task began in this job."""
        remembered = context.get("task_state_store")
        noted = remembered.get(_REMEMBERED) if remembered is not None else None
        if isinstance(noted, Mapping) and noted.get("job_id") == reference.job_id:
            return str(noted["stage_attempt"])
        if noted is not None:
            # The run was cleared: a driver of the former job must not be taken for one of this job.
            self._forget_driver(context)
        return None

    def _remember(self, context: Context, reference: JobReference) -> None:
        remembered = context.get("task_state_store")
        if remembered is not None:
            note: dict[str, JsonValue] = {
                "job_id": reference.job_id,
                "stage_attempt": self._stage_attempt,
            }
            remembered.set(_REMEMBERED, note)

    def _may_still_run(self, context: Context) -> bool:
        """Tell whether the parent will look for a driver that an earlier try left running on a cluster."""
        remembered = context.get("task_state_store")
        return bool(self.durable and remembered is not None and remembered.get(self.external_id_key))

    def _forget_driver(self, context: Context) -> None:
        remembered = context.get("task_state_store")
        if remembered is not None:
            for key in (self.external_id_key, self._K8S_DRIVER_STATUS_KEY):
                remembered.delete(key)
