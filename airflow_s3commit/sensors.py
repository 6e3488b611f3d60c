"""The sensor that waits for a manifest that meets conditions, not just for any ``_SUCCESS``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue

from airflow_s3commit.airflow_version import AirflowException, AirflowFailException, AirflowSensorTimeout
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.links import ManifestLink
from airflow_s3commit.operators.base import TableOperator
from airflow_s3commit.params import moment_of
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.settings import DEFAULT_DEFERRABLE, DEFAULT_POKE_INTERVAL
from airflow_s3commit.templates import at_least, mapping

if TYPE_CHECKING:
    from airflow_s3commit.protocol.watch import Criteria, Snapshot
    from airflow_s3commit.store.credentials import StoreAddress

__all__ = ["S3SuccessManifestSensor"]

#: Seconds from the sensor's timeout until Airflow's own timeout of the deferral. A live trigger ends before
#: that, and reports the outcome of its last search.
_GRACE = 60.0

#: The conditions, of which every sensor must have at least one.
_CONDITIONS = ("job", "run_id", "context", "newer_than", "partitions")


class S3SuccessManifestSensor(TableOperator, BaseSensorOperator):
    """Waits until a destination has a manifest that meets the conditions, and returns its summary.

    The ``_SUCCESS`` of the day before always exists, so at least one condition is required. One manifest must
    meet all conditions; of several, it returns the newest. The log of commits is searched: a ``_SUCCESS`` of
    another program is no commit, and a compaction changes no row, so it does not count. A missing bucket or
    permission fails the task at once. After the timeout, the error has the outcome of the last search: no
    commit, a stale one, a damaged log. A condition without a value in this run (a missing XCom, a template
    that renders to nothing) fails the task at once: without it any manifest would do. It may be retried.

    :param job: The job, as its reference (the output of an `S3CommitSetupOperator`) or its id. (templated)
    :param run_id: The run that committed. (templated)
    :param context: Further facts of that run: ``dag_id``, ``partition_key``, ``logical_date``, … (templated)
    :param newer_than: Ignore commits up to this time: a time, or the start of a date or data interval, in the
        DAG's zone; or a duration before ``run_after``, such as ``1d12h``, with calendar days. (templated)
    :param partitions: Partitions that the commit added files to, such as ``dt=2013-01-01``. (templated)
    :param min_files: Minimum number of files in the manifest. (templated)
    :param search_depth: Maximum number of manifests that one poke reads, newest first.
    :param poke_interval: Seconds between two pokes; by default ``[s3commit] poke_interval``.
    :param deferrable: Poke once, then wait in the triggerer; by default ``[operators] default_deferrable``.
    :param kwargs: Other arguments of sensors, such as ``mode`` (``poke`` or ``reschedule``) and ``timeout``.
    """

    template_fields = (*TableOperator.template_fields, *_CONDITIONS, "min_files")
    operator_extra_links = (ManifestLink(),)
    ui_color = "#f2efe2"

    def __init__(
        self,
        *,
        job: Any = None,
        run_id: str | None = None,
        context: Mapping[str, str] | None = None,
        newer_than: Any = None,
        partitions: Any = None,
        min_files: int | str | None = None,
        search_depth: int = 100,
        poke_interval: float = DEFAULT_POKE_INTERVAL,
        deferrable: bool = DEFAULT_DEFERRABLE,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.job = job
        self.run_id = run_id
        self.context = context
        self.newer_than = newer_than
        self.partitions = partitions
        self.min_files = min_files
        self.search_depth = search_depth
        self.deferrable = deferrable
        self.manifest_uri: str | None = None
        self.address: StoreAddress | None = None
        self._seen = ""
        self._began_after: datetime | None = None
        self._given = [name for name in (*_CONDITIONS, "min_files") if getattr(self, name) is not None]
        if self._given in ([], ["min_files"]):
            raise ValueError(
                f"Sensor {self.task_id} would accept any manifest, even yesterday's. Set a condition:"
                f" {', '.join(_CONDITIONS)}."
            )
        readers = {name: partial(self._condition, name) for name in (*_CONDITIONS, "min_files")}
        self.check(search_depth=at_least(1, int), **readers)

    def execute(self, context: Context) -> Any:
        """Wait here, or poke once and wait in the triggerer; return the manifest's summary."""
        self._began_after = getattr(context.get("dag_run"), "run_after", None)
        self.require_text("destination")
        try:
            return super().execute(context)
        except AirflowSensorTimeout as error:
            raise AirflowSensorTimeout(f"{error} Last outcome: {self._seen}") from error

    def poke(self, context: Context) -> PokeReturnValue | bool:  # noqa: ARG002 - Airflow's shape
        """Search for the manifest once; return its summary, or False, or wait in the triggerer."""
        from airflow_s3commit.protocol.watch import FINAL, outcome_of  # noqa: PLC0415 - keeps parsing light

        try:
            self._view.refresh()
            look = self._view.search(self._wanted)
        except S3CommitError as error:
            outcome = outcome_of(error)
            if outcome in FINAL:
                raise AirflowFailException(f"{outcome}: {type(error).__name__}: {error}") from error
            if outcome != "unavailable":
                raise
            self._seen = f"{outcome}: {error}"
            self.log.warning("The store is unavailable; trying again later: %s", error)
            return self._wait()
        self._seen = f"{look.outcome}: {look.seen}"
        if look.manifest is None:
            self.log.info("Not yet: %s", self._seen)
            return self._wait()
        return PokeReturnValue(is_done=True, xcom_value=self._found(look.manifest.to_dict()))

    def execute_complete(self, context: Context, event: dict[str, Any] | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Return the summary of the manifest that the trigger found, or raise what its event tells."""
        from airflow_s3commit.protocol.watch import FINAL  # noqa: PLC0415 - keeps parsing light

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

    def _wait(self) -> bool:
        """Continue in the triggerer if the sensor is deferrable; otherwise return False, to poke again."""
        from airflow_s3commit.triggers import S3SuccessManifestTrigger  # noqa: PLC0415 - keeps parsing light

        if self.deferrable:
            self.defer(
                trigger=S3SuccessManifestTrigger(
                    destination=self.destination,
                    wanted=self._wanted.to_dict(),
                    poke_interval=self.poke_interval,
                    give_up_at=time.time() + self.timeout,
                    search_depth=self.search_depth,
                    aws_conn_id=self.aws_conn_id,
                ),
                method_name="execute_complete",
                timeout=timedelta(seconds=self.timeout + _GRACE),
            )
        return False

    def _found(self, summary: dict[str, Any]) -> dict[str, Any]:
        self.manifest_uri = str(summary["manifest"])
        self.address = self.hook.address
        self.log.info("Found %s", self.manifest_uri)
        return summary

    @cached_property
    def _view(self) -> Snapshot:
        """What earlier searches have read of the log; the next search continues after it."""
        from airflow_s3commit.protocol.watch import Snapshot  # noqa: PLC0415 - keeps DAG parsing light

        return Snapshot(self.hook.store, Destination.parse(self.destination), depth=self.search_depth)

    @cached_property
    def _wanted(self) -> Criteria:
        from airflow_s3commit.protocol.watch import Criteria  # noqa: PLC0415 - keeps DAG parsing light

        lost = [name for name in self._given if getattr(self, name) is None]
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
                newer_than=self.read("newer_than", self._moment),
                partitions=self.partitions,
                min_files=self.min_files,
            )
        except ValueError as error:
            raise AirflowFailException(f"Task {self.task_id}: {error}.") from error

    def _condition(self, name: str, value: Any) -> object:
        """Parse one condition as the search will, to check it."""
        from airflow_s3commit.protocol.watch import Criteria  # noqa: PLC0415 - only if it is no template

        readers = {"newer_than": self._moment, "context": mapping}
        return Criteria.of(**{name: readers[name](value) if name in readers else value})

    def _moment(self, given: Any) -> Any:
        if given is None:
            return None
        dag, before = self.get_dag(), self._began_after or datetime.now(UTC)
        return moment_of(given, before=before, zone="UTC" if dag is None else dag.timezone)
