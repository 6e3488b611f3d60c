"""The operator that sweeps destinations: it removes leftovers of dead jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_s3commit._format import text_table
from airflow_s3commit.airflow_version import AirflowException, AirflowFailException, AirflowNotFoundException
from airflow_s3commit.exceptions import AccessDenied, S3CommitError
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.metrics import count_retry, count_sweep, gauge_pending
from airflow_s3commit.operators.base import S3CommitBaseOperator, refusals_are_final
from airflow_s3commit.params import moment_of
from airflow_s3commit.protocol.model.destination import Destination, as_uri, is_pattern
from airflow_s3commit.settings import DEFAULT_SWEEP_AGE, REGISTRY, REGISTRY_CONNECTION
from airflow_s3commit.templates import mapping, place

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_s3commit.protocol.model.destination import RegisteredDestination
    from airflow_s3commit.protocol.model.job import ObjectOptions
    from airflow_s3commit.protocol.sweep import SweepReport
    from airflow_s3commit.protocol.sweep_plan import SweepPlan
    from airflow_s3commit.store.base import ObjectStore

#: Maximum number of failed destinations in the XCom.
_MOST_NAMED = 20


class S3CommitSweepOperator(S3CommitBaseOperator):
    """Ends dead jobs at a destination, and removes what is left of them: pending uploads and records.

    It is for jobs whose teardown and callback did not run, because the scheduler was lost with the run. A
    dead job is aborted; one that is in the log already is finished. It also deletes files that commits have
    replaced and retained for long enough. By default it is a dry run, which logs what it would do and why.
    Returns the totals; the log has a table of everything found.

    Each run, including a dry run, reports the jobs in progress as the metrics ``s3commit.pending.*``.

    If something could not be removed, the task removes the rest and then fails, with its totals in the XCom
    ``sweep_report``. It may be retried.

    :param destination: The dataset's directory: ``s3://bucket/prefix/`` or a `Destination`; or a pattern such
        as ``s3://lake/*``, for the destinations of ``[s3commit] registry`` that match, each with the
        connection and the staging of its entry, and swept by its own records; entries of empty destinations
        are removed. (templated)
    :param older_than: Time without a new upload or record after which a job is dead: seconds, a
        ``timedelta``, a duration such as ``7d``; or a time, a date or a data interval in the DAG's zone,
        since which it had none. It must be longer than any task of a job runs. By default ``[s3commit]
        sweep_age_days``. (templated)
    :param apply: True removes, False is a dry run. Text must be a word for true or false, such as ``yes``.
        (templated)
    :param staging: The prefix of the staging of jobs on this destination, if it is not below the
        destination. Records of jobs name it too; what outlived those is found by this alone. (templated)
    :param object_options: Encryption of the small objects by which a sweep reads the store's clock, as in
        `S3CommitSetupOperator`, for buckets that deny unencrypted objects. (templated)
    """

    template_fields: Sequence[str] = (
        *S3CommitBaseOperator.template_fields,
        "destination",
        "older_than",
        "apply",
        "staging",
        "object_options",
    )
    ui_color = "#efe8f7"

    def __init__(
        self,
        *,
        destination: str | Destination,
        older_than: Any = DEFAULT_SWEEP_AGE,
        apply: bool | str = False,
        staging: str | Destination | None = None,
        object_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.destination = as_uri(destination)
        self.older_than = older_than
        self.apply = apply
        self.staging = as_uri(staging)
        self.object_options = object_options
        self.check(
            destination=lambda given: is_pattern(given) or place(given),
            older_than=self._seconds,
            apply=_flag,
            staging=place,
            object_options=_object_options,
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """Find dead jobs and orphans, remove them unless it is a dry run, and return the totals.

        :param context: The task's context.
        :raises AirflowException: Something could not be removed.
        """
        self.require_text("destination", "staging")
        if is_pattern(self.destination):
            return self._sweep_registry(context)
        from airflow_s3commit.protocol.sweep_plan import plan_sweep  # noqa: PLC0415 - light DAG parsing

        dry = not self.read("apply", _flag)
        with refusals_are_final():
            destination = Destination.parse(self.destination)
            roots = [Destination.parse(self.staging)] if self.staging else []
            store = self._with_options(self.hook.store)
            older_than = self.read("older_than", self._seconds)
            plan = plan_sweep(store, destination, older_than=older_than, staging_roots=roots)
            report = self._apply(store, plan, dry=dry)
        totals = {"destination": destination.uri, "older_than": older_than, **_totals([report])}
        if report.failures:
            context["ti"].xcom_push(key="sweep_report", value=totals)
            raise AirflowException(
                f"{len(report.failures)} removals at {destination.uri} failed; the first: "
                f"{report.failures[0].what}: {report.failures[0].reason}. Run the sweep again."
            )
        return totals

    def _with_options(self, store: ObjectStore) -> ObjectStore:
        from airflow_s3commit.store.forwarding import with_headers  # noqa: PLC0415 - keeps DAG parsing light

        return with_headers(store, _object_options(self.object_options).of_records)

    def _apply(self, store: ObjectStore, plan: SweepPlan, *, dry: bool) -> SweepReport:
        """Apply a plan unless it is a dry run, report what is pending afterwards, and log what was found."""
        from airflow_s3commit.protocol.inspect.jobs import list_jobs  # noqa: PLC0415 - keeps DAG parsing light
        from airflow_s3commit.protocol.sweep import SweepReport, apply_sweep  # noqa: PLC0415

        report = SweepReport(plan=plan, dry_run=True) if dry else apply_sweep(store, plan)
        count_sweep(report)
        # Most destinations have no job in progress, and the plan knows it.
        jobs = plan.jobs or plan.jobs_left
        destination = Destination.parse(plan.destination)
        gauge_pending(destination.uri, list_jobs(store, destination) if jobs else ())
        self._log(report)
        return report

    def _sweep_registry(self, context: Context) -> dict[str, Any]:
        """Sweep the matching destinations of the registry; remove the entries of those that are gone."""
        from airflow_s3commit.protocol.metadata.registry import read_registry  # noqa: PLC0415
        from airflow_s3commit.protocol.metadata.removal import forget_destination  # noqa: PLC0415
        from airflow_s3commit.protocol.model.destination import matches  # noqa: PLC0415
        from airflow_s3commit.protocol.sweep import plan_registered  # noqa: PLC0415

        if REGISTRY is None:
            raise AirflowFailException(
                f"Task {self.task_id}: destination {self.destination!r} is a pattern, which needs a registry:"
                " set [s3commit] registry."
            )
        registry, store = Destination.parse(REGISTRY), S3CommitHook(REGISTRY_CONNECTION).store
        entries = (
            entry
            for entry in read_registry(store, registry)
            if matches(entry.record.destination, self.destination)
        )
        dry, older_than = not self.read("apply", _flag), self.read("older_than", self._seconds)
        reports: list[SweepReport] = []
        gone: list[str] = []
        failures: dict[str, str] = {}
        for found in plan_registered(entries, self._open, older_than=older_than):
            entry, uri = found.entry, found.entry.record.destination
            try:
                if found.error is not None:
                    raise found.error
                if found.plan is not None:
                    report = self._apply(*found.plan, dry=dry)
                    reports.append(report)
                    if report.failures:
                        failures[uri] = f"{len(report.failures)} removals failed"
                elif not found.gone:
                    self.log.info("Left alone: %s has no records of jobs", uri)
                elif dry or forget_destination(store, registry.bucket, entry.key, entry.etag):
                    self.log.info(
                        "Nothing is left of %s: its entry is removed, unless this is a dry run", uri
                    )
                    gone.append(uri)
            except S3CommitError as error:
                self.log.exception("Sweeping %s failed", uri)
                failures[uri] = str(error)
        totals = {
            "destinations": len(reports),
            **_totals(reports),
            "gone": len(gone),
            "failures": len(failures),
            "failed": list(failures)[:_MOST_NAMED],
        }
        if failures:
            context["ti"].xcom_push(key="sweep_report", value=totals)
            uri, reason = next(iter(failures.items()))
            raise AirflowException(
                f"The sweep of {len(failures)} destinations failed; the first: {uri}: {reason}. Run it again."
            )
        return totals

    def _open(self, record: RegisteredDestination) -> ObjectStore:
        try:
            store = S3CommitHook(record.aws_conn_id, on_retry=count_retry).store
        except AirflowNotFoundException as error:
            raise AccessDenied(f"the connection {record.aws_conn_id!r} cannot be used: {error}") from error
        return self._with_options(store)

    def _seconds(self, given: Any) -> float:
        now, dag = datetime.now(UTC), self.get_dag()
        try:
            seconds = given.total_seconds() if isinstance(given, timedelta) else float(given)
        except (TypeError, ValueError):
            moment = moment_of(given, before=now, zone="UTC" if dag is None else dag.timezone)
            seconds = (now - moment).total_seconds()
        # NaN compares false.
        if seconds >= 0:
            return seconds
        raise ValueError(f"{given!r} is in the future; give seconds, 0 or more, a duration, or a past time")

    def _log(self, report: SweepReport) -> None:
        plan = report.plan
        if plan.is_empty:
            self.log.info("Nothing to sweep at %s", plan.destination)
        else:
            self.log.info(
                "%s at %s: %d uploads, %d bytes, about $%.2f a month\n%s",
                "A dry run would sweep" if report.dry_run else "Swept",
                plan.destination,
                plan.pending,
                plan.bytes,
                plan.monthly_cost_usd,
                text_table(plan.columns, plan.items),
            )
        for left in plan.left:
            self.log.info("Left alone: %s: %s", left.what, left.reason)
        for skipped in report.skipped:
            self.log.info("Skipped: %s: %s", skipped.what, skipped.reason)
        for failed in report.failures:
            self.log.error("Failed: %s: %s", failed.what, failed.reason)


def _flag(given: bool | str) -> bool:
    """Read a word for true or false; any other text must not delete anything."""
    from airflow_s3commit.tables.options import FLAGS  # noqa: PLC0415 - importing needs none

    known = FLAGS.get(str(given).strip().lower())
    if known is None:
        raise ValueError(f"{given!r} is neither true nor false")
    return known


def _object_options(given: Mapping[str, Any] | None) -> ObjectOptions:
    from airflow_s3commit.protocol.model.job import ObjectOptions  # noqa: PLC0415 - importing needs none

    return ObjectOptions.from_dict(mapping(given or {}))


def _totals(reports: Sequence[SweepReport]) -> dict[str, Any]:
    """Return numbers only, because the lists of findings may be long; the log has them."""
    plans = [report.plan for report in reports]
    jobs = [job for report in reports for job in report.jobs]
    return {
        "dry_run": all(report.dry_run for report in reports),
        "found": {
            "jobs": sum(len(plan.jobs) for plan in plans),
            "uploads": sum(plan.pending for plan in plans),
            "bytes": sum(plan.bytes for plan in plans),
        },
        "swept": {
            "jobs": len(jobs),
            "uploads": sum(report.uploads for report in reports) + sum(job.uploads for job in jobs),
            "failures": sum(len(report.failures) for report in reports),
        },
    }
