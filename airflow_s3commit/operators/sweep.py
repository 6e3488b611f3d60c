"""Maintenance: what dead jobs left behind at a destination."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_s3commit.metrics import count_sweep
from airflow_s3commit.operators.base import S3CommitBaseOperator, refusals_are_final
from airflow_s3commit.operators.log_table import log_table
from airflow_s3commit.settings import DEFAULT_SWEEP_AGE

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_s3commit.protocol.sweep import SweepReport
    from airflow_s3commit.protocol.sweep_plan import SweepPlan
    from airflow_s3commit.xcom import JsonObject

__all__ = ["S3CommitSweepOperator"]

_HOUR = 3600.0

#: What a template may write for a boolean.
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class S3CommitSweepOperator(S3CommitBaseOperator):
    """Removes what dead jobs left at a destination: pending uploads, records, a lapsed lock.

    It is what remains when neither teardown nor callback ran, because the scheduler was lost with the run.
    Dry by default: it logs what it would remove, and why. A job that was cut off in the middle of its commit
    is only named, not touched: recover it. Returns the totals; what was found is in the log, as a table.

    If something could not be removed the task fails after the rest was, with its totals in the XCom
    ``sweep_report``, and a retry takes up what is left.

    :param destination: The dataset's directory, ``s3://bucket/prefix/``. (templated)
    :param older_than: Seconds, or a ``timedelta``, without a sign of life after which a job is dead. It must
        be longer than any task of a job works. By default ``[s3commit] sweep_age_days``. (templated)
    :param apply: Do it; without it, this is a dry run. Text that is neither yes nor no is refused.
        (templated)
    :param staging: Where jobs on this destination have their staging, if not below it. (templated)
    :param object_options: How to encrypt the small objects by which a sweep asks the store its time, as
        `S3CommitSetupOperator` takes it: for buckets that deny what comes unencrypted. (templated)
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
        destination: str,
        older_than: timedelta | float | str = DEFAULT_SWEEP_AGE,
        apply: bool | str = False,
        staging: str | None = None,
        object_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.destination = destination
        self.older_than = older_than
        self.apply = apply
        self.staging = staging
        self.object_options = object_options

    def execute(self, context: Context) -> JsonObject:
        """Find what is dead and, unless it is a dry run, remove it."""
        from airflow_s3commit.protocol.destination import Destination  # noqa: PLC0415 - keeps parsing light
        from airflow_s3commit.protocol.records import ObjectOptions  # noqa: PLC0415
        from airflow_s3commit.protocol.sweep import sweep  # noqa: PLC0415
        from airflow_s3commit.store.headers import with_headers  # noqa: PLC0415

        older_than, dry_run = self._seconds(), self._is_dry()
        with refusals_are_final():
            destination = Destination.parse(self.destination)
            root = Destination.parse(self.staging) if self.staging else None
            kept = ObjectOptions.from_dict(self.object_options or {})
            store = with_headers(self.hook.store, kept.of_records)
            report = sweep(
                store,
                destination,
                older_than=older_than,
                dry_run=dry_run,
                staging_root=root,
                signer=self.hook.signer,
            )
        count_sweep(report)
        self._log(report)
        totals = _totals(report)
        if report.failures:
            context["ti"].xcom_push(key="sweep_report", value=totals)
            raise AirflowException(
                f"{len(report.failures)} things at {destination.uri} could not be removed; the first: "
                f"{report.failures[0].what}: {report.failures[0].reason}. Sweep again."
            )
        return totals

    def _seconds(self) -> float:
        given = self.older_than
        try:
            seconds = given.total_seconds() if isinstance(given, timedelta) else float(given)
        except (TypeError, ValueError):
            seconds = -1.0
        # Not a number is no length of time either, and compares false.
        if seconds >= 0:
            return seconds
        raise AirflowFailException(
            f"Task {self.task_id}: older_than is {given!r}; give seconds, 0 or more, or a timedelta."
        )

    def _is_dry(self) -> bool:
        """Read the flag; what is neither yes nor no must not be taken for a wish to delete."""
        known = _TRUTHS.get(str(self.apply).strip().lower())
        if known is None:
            raise AirflowFailException(
                f"Task {self.task_id}: apply is {self.apply!r}; it must be true or false."
            )
        return not known

    def _log(self, report: SweepReport) -> None:
        plan = report.plan
        rows = list(_rows(plan))
        if not rows:
            self.log.info("Nothing to sweep at %s", plan.destination)
        else:
            titles = ("what", "action", "silent h", "uploads", "bytes", "why")
            self.log.info(
                "%s at %s: %d uploads, %d bytes, about $%.2f a month\n%s",
                "A dry run would sweep" if report.dry_run else "Swept",
                plan.destination,
                plan.pending,
                plan.bytes,
                plan.monthly_cost,
                log_table(titles, rows),
            )
        for left in plan.left:
            self.log.info("Left alone: %s: %s", left.what, left.reason)
        for skipped in report.skipped:
            self.log.info("Skipped: %s: %s", skipped.what, skipped.reason)
        for failed in report.failures:
            self.log.error("Failed: %s: %s", failed.what, failed.reason)


def _rows(plan: SweepPlan) -> Iterator[tuple[object, ...]]:
    for job in plan.jobs:
        silent = round(job.silent / _HOUR, 1)
        yield f"job {job.job_id}", job.action, silent, job.uploads, job.bytes, job.reason
    for upload in plan.uploads:
        yield upload.key, "discard", round(upload.age / _HOUR, 1), 1, upload.bytes, upload.reason
    if plan.lock is not None:
        yield (
            plan.lock.uri,
            "unlock",
            round(plan.lock.age / _HOUR, 1),
            0,
            0,
            f"job {plan.lock.job_id} is gone",
        )


def _totals(report: SweepReport) -> JsonObject:
    """Return numbers only: what a sweep found may be long, and is in the log."""
    plan = report.plan
    return {
        "destination": plan.destination,
        "dry_run": report.dry_run,
        "older_than": plan.older_than,
        "found": {
            "jobs": len(plan.jobs),
            "uploads": plan.pending,
            "bytes": plan.bytes,
            "oldest": plan.oldest,
            "monthly_cost_usd": round(plan.monthly_cost, 4),
            "lock": plan.lock is not None,
            "left_alone": len(plan.left),
        },
        "swept": {
            "jobs": len(report.jobs),
            "uploads": report.uploads + sum(job.uploads for job in report.jobs),
            "objects": sum(job.objects for job in report.jobs),
            "lock": report.lock,
            "skipped": len(report.skipped),
            "failures": len(report.failures),
        },
    }
