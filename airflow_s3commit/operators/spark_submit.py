"""A stage of a job that ``spark-submit`` runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException

from airflow_s3commit.hooks.s3_commit import S3CommitHook
from airflow_s3commit.links import PendingsetsLink
from airflow_s3commit.metrics import count_retry
from airflow_s3commit.operators.base import job_reference, refusals_are_final

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow.sdk import BaseOperatorLink, Context
    from pydantic import JsonValue

    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.model.job import JobReference
    from airflow_s3commit.protocol.model.seal import SealReference
    from airflow_s3commit.xcom import JsonObject

#: Characters that a key of the job's staging has room for.
_LONGEST_STAGE = 128

#: Where this task remembers its stage attempt, in its ``task_state_store``.
_REMEMBERED = "s3commit.stage_attempt"


class S3CommitSparkSubmitOperator(SparkSubmitOperator):
    """Runs a Spark application that writes into a job, and returns the location of its seal.

    The application writes with ``df.write.format("s3commit")``; the operator adds the job, stage and stage
    attempt to its configuration. A retry takes over a stage attempt that an earlier try sealed, and aborts
    one that it did not. A driver that a dead worker left running on a cluster is found again, and seals the
    attempt it was started with.

    Client and cluster mode on local and standalone masters, YARN and Kubernetes. A standalone master's REST
    server must run for drivers on the cluster to be watched and killed, and it takes no Python application as
    a driver: ``java_class="org.apache.spark.deploy.SparkSubmit"`` with the application among the arguments
    does. On YARN in cluster mode without ``yarn_track_via_rm_api`` there is no way to find a driver again, so
    ``durable`` is False there unless it was asked for.

    Unless ``conf`` limits the size of an Arrow batch, batches have 2,000 rows and no limit in bytes, which
    takes less processor time; see `airflow_s3commit.spark.register`.

    Arguments of the application and values of ``conf`` may be of any plain type: booleans are written in
    lower case, and entries of ``conf`` that are None are left out.

    Credentials are never part of the configuration. If the ``aws`` connection holds keys, they are in the
    environment of ``spark-submit`` while it runs, which serves ``local`` masters and the driver in client
    mode; executors and drivers elsewhere use the identity of their own machines.

    :param job: The job reference: the output of an `S3CommitSetupOperator`. (templated)
    :param stage: The stage's name within the job, of letters, digits, ``.``, ``_`` and ``-``; by default the
        task's id, with the map index in a mapped task. Mapped tasks need a name for each instance.
        (templated)
    :param aws_conn_id: The ``aws`` connection of the store; None means boto3's default chain. (templated)
    :param region_name: Overrides the connection's region. (templated)
    :param verify: Overrides the connection's check of TLS certificates. (templated)
    :param ship_package: Ship this package with the application (``--py-files``), for clusters that lack it;
        boto3, msgspec and pyarrow must be there. The application then calls
        ``airflow_s3commit.spark.register(spark)`` before it writes.
    :param kwargs: Other arguments of ``SparkSubmitOperator``.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "job",
        "stage",
        "aws_conn_id",
        "region_name",
        "verify",
    )
    operator_extra_links: Collection[BaseOperatorLink] = (PendingsetsLink(),)

    def __init__(
        self,
        *,
        job: Any,
        stage: str | None = None,
        aws_conn_id: str | None = S3CommitHook.default_conn_name,
        region_name: str | None = None,
        verify: bool | str | None = None,
        ship_package: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.stage = stage
        self.aws_conn_id = aws_conn_id
        self.region_name = region_name
        self.verify = verify
        self.ship_package = ship_package
        self.seal_uri: str | None = None
        self.endpoint_url: str | None = None
        self._durable_was_asked_for = any(
            kwargs.get(name) is not None for name in ("durable", "reconnect_on_retry")
        )
        self._stage_attempt: str | None = None
        self._killed = False

    @cached_property
    def commit_hook(self) -> S3CommitHook:
        """The hook of the store's connection (the parent's hook is Spark's)."""
        return S3CommitHook(
            self.aws_conn_id, region_name=self.region_name, verify=self.verify, on_retry=count_retry
        )

    def execute(self, context: Context) -> JsonObject:  # type: ignore[override]
        """Submit the application, unless an earlier try has sealed its output; return the seal's location."""
        job = self.commit_hook.job(job_reference(self.job, self.task_id))
        stage = self._stage_name(context)
        self._make_presentable()
        with refusals_are_final():
            earlier = self._earlier_attempt(context, job.reference)
            seal = job.stage_seal(stage, earlier) if earlier else None
            if earlier and seal:
                self.log.info("Stage %s was sealed by attempt %s of this task; using that", stage, earlier)
                return self._summary(job, stage, earlier, seal)
            self._stage_attempt = earlier
            self._settle_durability()
            if earlier is None or not self._may_still_run(context):
                self._begin_attempt(context, job, stage)
        self._refuse_to_go_on_if_killed()
        with self.commit_hook.credentials_in_environment():
            super().execute(context)
        self._refuse_to_go_on_if_killed()
        with refusals_are_final():
            return self._sealed_output(context, job, stage)

    def on_kill(self) -> None:
        """Kill the application, and submit no other.

        The job is not fenced off here: after a timeout the task may have a retry left, which goes on with
        the same job. If it has none, the teardown aborts the job, usually before this is called.
        """
        # Airflow goes on running execute() after this returns, for up to five seconds: an application that
        # is submitted then would outlive the task.
        self._killed = True
        super().on_kill()

    def _refuse_to_go_on_if_killed(self) -> None:
        if self._killed:
            raise AirflowException(f"Task {self.task_id} was killed; it does not seal what it uploaded.")

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
        from airflow_s3commit.spark.session import batch_conf, committer_conf  # noqa: PLC0415 - light parsing

        if self._stage_attempt is not None:
            uploads = job.abort_stage(stage, self._stage_attempt)
            self.log.info("Aborted %d uploads of attempt %s of stage %s", uploads, self._stage_attempt, stage)
        self._stage_attempt = str(context["ti"].try_number)
        self._remember(context, job.reference)
        if self.ship_package:
            self._ship()
        address = self.commit_hook.address
        given = self.conf or {}
        self.conf = {
            **given,
            **batch_conf(given),
            **committer_conf(
                job.reference,
                stage,
                self._stage_attempt,
                endpoint_url=address.endpoint_url,
                region=address.region,
                path_style=address.path_style,
            ),
        }

    def _ship(self) -> None:
        from airflow_s3commit.spark.shipping import py_files  # noqa: PLC0415 - keeps parsing light

        given = [path for path in (self.py_files or "").split(",") if path]
        package = py_files()
        self.py_files = ",".join([*given, package] if package not in given else given)

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
        return self._summary(job, stage, attempt, seal)

    def _summary(self, job: Job, stage: str, attempt: str, seal: SealReference) -> JsonObject:
        self.seal_uri, self.endpoint_url = seal.location, self.commit_hook.address.endpoint_url
        told = {"job_id": job.reference.job_id, "stage": stage, "stage_attempt": attempt}
        return {**told, **seal.to_dict()}

    def _make_presentable(self) -> None:
        """Turn values into the text that ``spark-submit`` reads; the parent joins them as they are."""
        if self.application_args is not None:
            self.application_args = [_text(value) for value in self.application_args]
        if self.conf is not None:
            self.conf = {name: _text(value) for name, value in self.conf.items() if value is not None}

    def _settle_durability(self) -> None:
        """Leave the parent's reconnecting out where it refuses to work without the resource manager's API."""
        if not self.durable or self._durable_was_asked_for:
            return
        # A hook to ask; the one that submits is made later, from the configuration as it is then.
        hook = self._get_hook()
        tracked = getattr(hook, "_yarn_track_via_rm_api", True)
        if getattr(hook, "_is_yarn_cluster_mode", False) and not tracked:
            self.durable = False

    def _stage_name(self, context: Context) -> str:
        if self.stage:
            return self.stage
        map_index = getattr(context["ti"], "map_index", None)
        return stage_name(self.task_id, -1 if map_index is None else map_index)

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
        """Return whether the parent will look for a driver that an earlier try left on a cluster."""
        remembered = context.get("task_state_store")
        return bool(self.durable and remembered is not None and remembered.get(self.external_id_key))

    def _forget_driver(self, context: Context) -> None:
        remembered = context.get("task_state_store")
        if remembered is not None:
            for key in (self.external_id_key, self._K8S_DRIVER_STATUS_KEY):
                remembered.delete(key)


def stage_name(task_id: str, map_index: int = -1) -> str:
    """Return the name of the stage that a task instance writes, unlike that of any other in its DAG.

    :param task_id: The task's whole id: tasks of two groups may have the same name in theirs.
    :param map_index: Which instance of a mapped task; less than 0 for others.
    """
    # A dot, because no task can have the id of a group and a dot and a number.
    name = task_id if map_index < 0 else f"{task_id}.{map_index}"
    if len(name) <= _LONGEST_STAGE:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[: _LONGEST_STAGE - 17]}-{digest}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
