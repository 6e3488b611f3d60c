"""The sensor that waits for a manifest that meets conditions, not just for any ``_SUCCESS``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_s3commit.airflow_version import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.hooks.s3_commit import S3CommitHook
from airflow_s3commit.links import ManifestLink
from airflow_s3commit.metrics import count_retry
from airflow_s3commit.params import moment_of
from airflow_s3commit.protocol.model.destination import Destination, as_uri
from airflow_s3commit.settings import DEFAULT_DEFERRABLE, DEFAULT_POKE_INTERVAL
from airflow_s3commit.templates import ValuesRequired

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow.sdk import BaseOperatorLink, Context

    from airflow_s3commit.protocol.watch.new_manifests import Snapshot
    from airflow_s3commit.protocol.watch.search import Criteria, ManifestSearch
    from airflow_s3commit.store.credentials import StoreAddress
    from airflow_s3commit.xcom import JsonObject

#: Seconds from the sensor's timeout until Airflow's own timeout of the deferral. A live trigger ends before
#: that, and reports the outcome of its last search.
_GRACE = 60.0


class S3SuccessManifestSensor(ValuesRequired, BaseSensorOperator):
    """Waits until a destination has a manifest that meets the conditions, and returns its summary.

    The ``_SUCCESS`` of the day before always exists, so at least one condition is required. One manifest must
    meet all conditions; if several do, the sensor returns the newest. A ``_SUCCESS`` of 0 bytes (the classic
    committer's) or of another program is logged and ignored. A missing bucket, or missing permission, fails
    the task at once. After the timeout, the error has the outcome of the last search: nothing, a stale
    manifest, 0 bytes, half a file. A condition without a value in this run (a missing XCom, a template that
    renders to nothing) fails the task at once: without it any manifest would do. It may be retried.

    :param destination: The dataset's directory: ``s3://bucket/prefix/`` or a `Destination`. (templated)
    :param job: The job, as its reference (the output of an `S3CommitSetupOperator`) or its id. (templated)
    :param run_id: The run that committed. (templated)
    :param context: Further facts of that run: ``dag_id``, ``partition_key``, ``logical_date``, … (templated)
    :param newer_than: Ignore commits up to this time: a time, a date (its beginning) or a data interval (its
        start), in the DAG's zone; or a duration before the run's ``run_after``, such as ``1d12h``, with
        calendar days. (templated)
    :param partitions: Partitions that the commit added files to, such as ``dt=2013-01-01``. (templated)
    :param min_files: Minimum number of files in the manifest. (templated)
    :param search_depth: Maximum number of manifests that one poke reads, newest first.
    :param poke_interval: Seconds between two pokes; by default ``[s3commit] poke_interval``.
    :param deferrable: Poke once, then wait in the triggerer instead of on a worker; by default
        ``[operators] default_deferrable``.
    :param aws_conn_id: The ``aws`` connection of the store; None means boto3's default chain. (templated)
    :param region_name: Overrides the connection's region. (templated)
    :param verify: Overrides the connection's check of TLS certificates. (templated)
    :param kwargs: Other arguments of sensors, such as ``mode`` (``poke`` or ``reschedule``) and
        ``timeout``.
    """

    template_fields: Sequence[str] = (
        "destination",
        "job",
        "run_id",
        "context",
        "newer_than",
        "partitions",
        "min_files",
        "aws_conn_id",
        "region_name",
        "verify",
    )
    operator_extra_links: Collection[BaseOperatorLink] = (ManifestLink(),)
    ui_color = "#f2efe2"

    def __init__(
        self,
        *,
        destination: str | Destination,
        job: Any = None,
        run_id: str | None = None,
        context: Mapping[str, str] | None = None,
        newer_than: Any = None,
        partitions: Any = None,
        min_files: int | str | None = None,
        search_depth: int = 100,
        poke_interval: float = DEFAULT_POKE_INTERVAL,
        deferrable: bool = DEFAULT_DEFERRABLE,
        aws_conn_id: str | None = S3CommitHook.default_conn_name,
        region_name: str | None = None,
        verify: bool | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        conditions = {
            "job": job,
            "run_id": run_id,
            "context": context,
            "newer_than": newer_than,
            "partitions": partitions,
        }
        self._conditions = [name for name, condition in conditions.items() if condition is not None]
        if not self._conditions:
            raise ValueError(
                f"Sensor {self.task_id} would accept any manifest, even yesterday's. Set a condition: job, "
                "run_id, context, newer_than or partitions."
            )
        self.destination = as_uri(destination)
        self.job = job
        self.run_id = run_id
        self.context = context
        self.newer_than = newer_than
        self.partitions = partitions
        self.min_files = min_files
        self.search_depth = search_depth
        self.deferrable = deferrable
        self.aws_conn_id = aws_conn_id
        self.region_name = region_name
        self.verify = verify
        self.manifest_uri: str | None = None
        self.address: StoreAddress | None = None
        self._seen = ""
        self._began_after: datetime | None = None

    @cached_property
    def hook(self) -> S3CommitHook:
        """The hook of this task's connection."""
        return S3CommitHook(
            self.aws_conn_id, region_name=self.region_name, verify=self.verify, on_retry=count_retry
        )

    def execute(self, context: Context) -> Any:
        """Wait here, or poke once and wait in the triggerer; return the manifest's summary.

        :param context: The task's context.
        :raises AirflowSensorTimeout: No manifest met the conditions in time.
        :raises AirflowFailException: The store refuses the search, so waiting is pointless; or a condition
            has no value in this run.
        """
        self._began_after = getattr(context.get("dag_run"), "run_after", None)
        self.require_text("destination")
        if self.deferrable:
            result = self._first_poke(context)
            return result.xcom_value if isinstance(result, PokeReturnValue) else self._defer()
        try:
            return super().execute(context)
        except AirflowSensorTimeout as error:
            raise AirflowSensorTimeout(f"{error} Last outcome: {self._seen}") from error

    def poke(self, context: Context) -> PokeReturnValue | bool:  # noqa: ARG002 - Airflow's shape
        """Search for the manifest once; return its summary, or False.

        :param context: The task's context.
        :raises AirflowFailException: The store refuses the search, so waiting is pointless.
        """
        from airflow_s3commit.protocol.watch.search import FINAL, outcome_of  # noqa: PLC0415 - keeps parsing light
        from airflow_s3commit.xcom import manifest_summary  # noqa: PLC0415

        try:
            self._view.refresh()
            look = self._search.look(self._view)
        except S3CommitError as error:
            outcome = outcome_of(error)
            if outcome in FINAL:
                raise AirflowFailException(f"{outcome}: {type(error).__name__}: {error}") from error
            if outcome != "unavailable":
                raise
            self._seen = f"{outcome}: {error}"
            self.log.warning("The store is unavailable; trying again later: %s", error)
            return False
        self._seen = f"{look.outcome}: {look.seen}"
        if look.manifest is None:
            self.log.info("Not yet: %s", self._seen)
            return False
        return PokeReturnValue(is_done=True, xcom_value=self._found(manifest_summary(look.manifest)))

    def execute_complete(self, context: Context, event: JsonObject | None = None) -> JsonObject:  # noqa: ARG002
        """Return the summary of the manifest that the trigger found.

        :param context: The task's context.
        :param event: The event of `S3SuccessManifestTrigger`.
        :raises AirflowSensorTimeout: No manifest met the conditions in time.
        :raises AirflowFailException: The store refuses the search, so waiting is pointless.
        :raises AirflowException: The trigger ended with another error, or there is no event.
        """
        from airflow_s3commit.protocol.watch.search import FINAL  # noqa: PLC0415 - keeps parsing light

        if event is None:
            raise AirflowException(f"Task {self.task_id} was resumed without an event; clear it.")
        if event["status"] == "success":
            return self._found(event["manifest"])
        outcome = f"{event['outcome']}: {event['message']}"
        if event["status"] == "timeout":
            raise AirflowSensorTimeout(
                f"No manifest at {self.destination} met the conditions within {self.timeout:g} s. "
                f"Last outcome: {outcome}"
            )
        if event["outcome"] in FINAL:
            raise AirflowFailException(outcome)
        raise AirflowException(outcome)

    def _first_poke(self, context: Context) -> PokeReturnValue | bool:
        """Poke once, and treat errors as Airflow's poke mode does."""
        try:
            return self.poke(context)
        except Exception as error:
            final = isinstance(error, AirflowFailException)
            if self.never_fail or (self.soft_fail and final):
                raise AirflowSkipException(f"Skipped instead of failed: {error}") from error
            if final or not self.silent_fail:
                raise
            self.log.exception("The first poke failed; the triggerer continues to wait")
            return False

    def _defer(self) -> NoReturn:
        from airflow_s3commit.triggers.success_manifest import (  # noqa: PLC0415 - keeps DAG parsing light
            S3SuccessManifestTrigger,
        )

        self.defer(
            trigger=S3SuccessManifestTrigger(
                destination=self.destination,
                wanted=self._wanted().to_dict(),
                poke_interval=self.poke_interval,
                give_up_at=time.time() + self.timeout,
                search_depth=self.search_depth,
                aws_conn_id=self.aws_conn_id,
                region_name=self.region_name,
                verify=self.verify,
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout + _GRACE),
        )
        raise AssertionError("defer() returned")

    def _found(self, summary: JsonObject) -> JsonObject:
        self.manifest_uri = str(summary["manifest"])
        self.address = self.hook.address
        self.log.info("Found %s", self.manifest_uri)
        return summary

    @cached_property
    def _view(self) -> Snapshot:
        from airflow_s3commit.protocol.watch.new_manifests import Snapshot  # noqa: PLC0415

        destination = Destination.parse(self.destination)
        return Snapshot(self.hook.store, destination, depth=self.search_depth)

    @cached_property
    def _search(self) -> ManifestSearch:
        from airflow_s3commit.protocol.watch.search import ManifestSearch  # noqa: PLC0415 - keeps parsing light

        return ManifestSearch(self._wanted())

    def _wanted(self) -> Criteria:
        from airflow_s3commit.protocol.watch.search import Criteria  # noqa: PLC0415 - keeps DAG parsing light

        lost = [name for name in self._conditions if getattr(self, name) is None]
        if lost:
            raise AirflowFailException(
                f"Task {self.task_id}: the condition {', '.join(lost)} has no value in this run: check the"
                " task whose XCom it reads."
            )
        try:
            return Criteria.of(
                job=self.job,
                run_id=self.run_id,
                context=self.context,
                newer_than=self._moment(),
                partitions=self.partitions,
                min_files=self.min_files,
            )
        except ValueError as error:
            raise AirflowFailException(f"Task {self.task_id}: {error}.") from error

    def _moment(self) -> Any:
        given = self.newer_than
        if given is None or (isinstance(given, str) and given.strip() in {"", "None"}):
            return given
        dag, before = self.get_dag(), self._began_after or datetime.now(UTC)
        try:
            return moment_of(given, before=before, zone="UTC" if dag is None else dag.timezone)
        except ValueError as error:
            raise ValueError(f"the condition newer_than: {error}") from error
