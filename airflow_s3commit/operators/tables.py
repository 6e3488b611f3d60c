"""Operators that maintain a table: sweep, compact, and publish its commits to Iceberg catalogs and Glue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_s3commit._format import seconds_of, text_table
from airflow_s3commit.airflow_version import AirflowException, AirflowFailException
from airflow_s3commit.exceptions import InvalidOption, S3CommitError
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.metrics import count_retry, count_sweep, gauge_pending
from airflow_s3commit.operators.base import S3CommitBaseOperator, TableOperator, refusals_are_final
from airflow_s3commit.operators.setup import JobOptionsOperator, job_context, job_options
from airflow_s3commit.protocol.model.destination import Destination, as_uri, is_pattern, matches
from airflow_s3commit.protocol.model.job import ObjectOptions
from airflow_s3commit.settings import DEFAULT_SWEEP_AGE, REGISTRY, REGISTRY_CONNECTION
from airflow_s3commit.templates import mapping, place, texts

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_s3commit.protocol.model.destination import RegisteredDestination
    from airflow_s3commit.protocol.sweep import SweepReport
    from airflow_s3commit.protocol.sweep_plan import SweepPlan
    from airflow_s3commit.store.base import ObjectStore

#: Maximum number of failed destinations in the XCom of a sweep.
_MOST_NAMED = 20


class S3CommitSweepOperator(S3CommitBaseOperator):
    """Ends dead jobs at a destination, and removes what is left of them: pending uploads and records.

    It is for jobs whose teardown and callback did not run, because the scheduler was lost with the run. A
    dead job is aborted; one that is in the log already is finished. It also deletes files that commits have
    replaced and retained for long enough. Returns the totals; the log has a table of everything found. Each
    run, a dry one too, reports the metrics ``s3commit.pending.*``. If something could not be removed, it
    removes the rest and then fails, with its totals in the XCom ``sweep_report``. It may be retried.

    :param destination: The dataset's directory: ``s3://bucket/prefix/`` or a `Destination`; or a pattern such
        as ``s3://lake/*``, for the destinations of ``[s3commit] registry`` that match, each with the
        connection and the staging of its entry; entries of empty destinations are removed. (templated)
    :param older_than: Time without a new upload or record until a job is dead, longer than any task runs:
        seconds, a ``timedelta`` or text like ``7d``; by default ``[s3commit] sweep_age_days``. (templated)
    :param apply: True removes, False is a dry run. Text must mean true or false, like ``yes``. (templated)
    :param staging: The prefix of the staging of jobs on this destination, if it is not below the
        destination. Jobs' records name it too; leftovers without a record are found only by it. (templated)
    :param object_options: Encryption of the small objects by which a sweep reads the store's clock, as in
        `S3CommitSetupOperator`, for buckets that deny unencrypted objects. (templated)
    """

    template_fields = (
        *S3CommitBaseOperator.template_fields,
        *("destination", "older_than", "apply", "staging", "object_options"),
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
            older_than=_seconds,
            apply=_flag,
            staging=place,
            object_options=_object_options,
        )

    @refusals_are_final()
    def execute(self, context: Context) -> dict[str, Any]:
        """Find dead jobs and orphans, remove them unless it is a dry run, and return the totals."""
        from airflow_s3commit.protocol.sweep_plan import plan_sweep  # noqa: PLC0415 - light DAG parsing

        self.require_text("destination", "staging")
        dry, older_than = not self.read("apply", _flag), self.read("older_than", _seconds)
        failures: dict[str, str] = {}
        if is_pattern(self.destination):
            totals = self._sweep_registry(failures, dry=dry, older_than=older_than)
        else:
            home = Destination.parse(self.destination)
            roots = [Destination.parse(self.staging)] if self.staging else []
            store = self._store(self.hook)
            plan = plan_sweep(store, home, older_than=older_than, staging_roots=roots)
            report = self._apply(store, plan, dry=dry)
            failures = {one.what: one.reason for one in report.failures}
            totals = {"destination": home.uri, "older_than": older_than, **_totals([report])}
        if failures:
            context["ti"].xcom_push(key="sweep_report", value=totals)
            what, reason = next(iter(failures.items()))
            raise AirflowException(
                f"The sweep of {self.destination} failed {len(failures)} times; the first: {what}: {reason}."
                " Run it again."
            )
        return totals

    def _store(self, hook: S3CommitHook) -> ObjectStore:
        from airflow_s3commit.store.forwarding import with_headers  # noqa: PLC0415 - keeps DAG parsing light

        return with_headers(hook.store, _object_options(self.object_options).of_records)

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
        found = f"{plan.pending} uploads, {plan.bytes} bytes, about ${plan.monthly_cost_usd:.2f} a month"
        what = f"A dry run would sweep {found}" if dry else f"Swept {found}"
        table = "" if plan.is_empty else text_table(plan.columns, plan.items)
        self.log.info("%s at %s\n%s", what, plan.destination, table)
        others = {"Left alone": plan.left, "Skipped": report.skipped, "Failed": report.failures}
        for how, items in others.items():
            for one in items:
                self.log.info("%s: %s", how, one)
        return report

    def _sweep_registry(self, failures: dict[str, str], *, dry: bool, older_than: float) -> dict[str, Any]:
        """Sweep the matching destinations of the registry; remove the entries of those that are gone."""
        from airflow_s3commit.protocol.metadata.registry import read_registry  # noqa: PLC0415
        from airflow_s3commit.protocol.metadata.removal import forget_destination  # noqa: PLC0415
        from airflow_s3commit.protocol.sweep import plan_registered  # noqa: PLC0415

        if REGISTRY is None:
            raise AirflowFailException(
                f"Task {self.task_id}: destination {self.destination!r} is a pattern, which needs a registry:"
                " set [s3commit] registry."
            )
        registry, store = Destination.parse(REGISTRY), S3CommitHook(REGISTRY_CONNECTION).store
        known = read_registry(store, registry)
        entries = (entry for entry in known if matches(entry.record.destination, self.destination))
        reports: list[SweepReport] = []
        gone = 0

        def open_store(record: RegisteredDestination) -> ObjectStore:
            return self._store(S3CommitHook(record.aws_conn_id, on_retry=count_retry))

        for found in plan_registered(entries, open_store, older_than=older_than):
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
                    self.log.info("Nothing is left of %s, so its entry goes, unless in a dry run", uri)
                    gone += 1
            except S3CommitError as error:
                self.log.exception("Sweeping %s failed", uri)
                failures[uri] = str(error)
        counts = {"gone": gone, "failures": len(failures), "failed": list(failures)[:_MOST_NAMED]}
        return {"destinations": len(reports), **_totals(reports), **counts, "dry_run": dry}


class S3CommitCompactOperator(JobOptionsOperator):
    """Rewrites partitions with many small files, in one commit that changes no row.

    It reads and writes with pyarrow in its own process; a partition is compacted if that at least halves its
    files. It may be retried and cleared: it first aborts the jobs of its earlier tries. It fails, and changes
    nothing, if another job has uploads there or commits meanwhile. Returns the generation, which is None if
    no partition gained anything, and the numbers of partitions, files and rows.

    :param partitions: Partitions, like ``dt={{ ds }}``; by default all, none for an empty list. (templated)
    :param target_bytes: Size in bytes at which a file ends; by default 128 MiB. (templated)
    :param kwargs: Options of the job, as in `S3CommitSetupOperator`: ``retain``, ``object_options``, …
    """

    template_fields = (*JobOptionsOperator.template_fields, "partitions", "target_bytes")
    ui_color = "#e9efe0"

    def __init__(
        self, *, partitions: Sequence[str] | None = None, target_bytes: int | str = 2**27, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.partitions = partitions
        self._every = partitions is None
        self.target_bytes = target_bytes
        self.check(target_bytes=int, partitions=texts)

    @refusals_are_final()
    def execute(self, context: Context) -> dict[str, Any]:
        """Compact the partitions, and return what was written."""
        from airflow_s3commit.compaction import compact  # noqa: PLC0415 - keeps DAG parsing light

        self.require_text("destination")
        # None in a run alone is another task's missing result.
        partitions = None if self._every else self.read("partitions", texts)
        target_bytes = self.read("target_bytes", int)
        facts = job_context(context)
        # The compaction would be refused because of a killed try's uploads, which belong to another job.
        self.abort_earlier(facts)
        report = compact(
            self.hook.store,
            self.destination,
            partitions=partitions,
            target_bytes=target_bytes,
            job_options=job_options(self.options),
            context=facts,
        )
        if report.partitions:
            self.log.info("Compacted\n%s", text_table(report.partitions[0].columns, report.partitions))
        return {**report.to_dict(), "partitions": len(report.partitions)}


class S3CommitPublishIcebergOperator(TableOperator):
    """Adds a snapshot to a table of an Iceberg catalog for each commit that it does not have yet.

    It opens and moves no data file, and uses only the table's log, so it may be retried, cleared and run in
    any order. Put it downstream of the commit, with a ``retain`` of the jobs that is longer than a query, and
    than the time from commit to snapshot. Returns the catalog's generation, and the number of new snapshots.

    :param table: The table in the catalog, with its namespace: ``lake.flights``. It is created if it is
        missing; its namespace must exist. (templated)
    :param iceberg_conn_id: The ``iceberg`` connection of the catalog, of any type that pyiceberg has: REST,
        Glue, Hive, SQL. Its extra also lets pyiceberg write to the destination's bucket. (templated)
    """

    template_fields = (*TableOperator.template_fields, "table", "iceberg_conn_id")
    ui_color = "#e3f1ec"

    def __init__(self, *, table: str, iceberg_conn_id: str = "iceberg_default", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.iceberg_conn_id = iceberg_conn_id

    @refusals_are_final()
    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's shape
        """Publish what is missing, and return the generation and the number of snapshots."""
        from airflow.providers.apache.iceberg.hooks.iceberg import IcebergHook  # noqa: PLC0415

        from airflow_s3commit.iceberg import publish_iceberg  # noqa: PLC0415

        self.require_text("destination", "table", "iceberg_conn_id")
        catalog = IcebergHook(self.iceberg_conn_id).catalog
        report = publish_iceberg(self.hook.store, self.destination, catalog, self.table)
        self.log.info("Published: %s", report)
        return {**report.to_dict(), "published": len(report.published)}


class _GlueOperator(S3CommitBaseOperator):
    """A task that uses a table in the AWS Glue Data Catalog.

    :param database: The database in Glue. (templated)
    :param table: The table. (templated)
    :param catalog_id: The account with the catalog; None for the connection's own. (templated)
    :param glue_conn_id: The ``aws`` connection of Glue; by default ``aws_conn_id``. (templated)
    """

    template_fields = (
        *S3CommitBaseOperator.template_fields,
        *("database", "table", "catalog_id", "glue_conn_id"),
    )
    ui_color = "#e3f1ec"

    def __init__(
        self,
        *,
        database: str,
        table: str,
        catalog_id: str | None = None,
        glue_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.database = database
        self.table = table
        self.catalog_id = catalog_id
        self.glue_conn_id = glue_conn_id

    def client(self) -> Any:
        """Return a client of Glue that uses the task's connection."""
        self.require_text("database", "table", "catalog_id", "glue_conn_id")
        from airflow.providers.amazon.aws.hooks.glue_catalog import GlueCatalogHook  # noqa: PLC0415

        from airflow_s3commit.store.s3.config import made_by_boto3  # noqa: PLC0415

        conn_id = self.glue_conn_id or self.aws_conn_id
        hook: Any = GlueCatalogHook(aws_conn_id=conn_id)  # type: ignore[no-untyped-call]  # has no types
        return made_by_boto3(lambda: hook.conn, f"the connection {conn_id!r}")


class S3CommitRegisterPartitionsOperator(_GlueOperator):
    """Sets the partitions of a table in the AWS Glue Data Catalog to those of its newest commit.

    It adds partitions that commits have created, and removes those that a ``replace`` or a roll-back has
    emptied, or that Spark added for a write that was aborted. It touches no files, and uses only the table's
    log, so it may be retried, cleared and run in any order. Put it downstream of the commit; with
    ``trigger_rule="all_done"`` it runs after a failed commit too. Returns the generation and the numbers of
    partitions. The table's location is the destination.
    """

    @refusals_are_final()
    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's shape
        """Register the partitions, and return the generation and how many there are."""
        from airflow_s3commit.protocol.publication import register_partitions  # noqa: PLC0415
        from airflow_s3commit.store.s3.glue import GlueTable  # noqa: PLC0415

        table = GlueTable(self.client(), self.database, self.table, catalog_id=self.catalog_id)
        report = register_partitions(self.hook.store, table)
        self.log.info("Registered partitions of table %s: %s", table.name, report)
        return {**report.to_dict(), "added": len(report.added), "removed": len(report.removed)}


class S3CommitRegisterTableOperator(_GlueOperator, TableOperator):
    """Creates a table in the AWS Glue Data Catalog, which engines read as the Delta table that jobs publish.

    It is needed once: each query looks for the newest version itself. If the table exists already, the task
    succeeds. It does not touch files. Returns whether the table was created.
    """

    template_fields = (*_GlueOperator.template_fields, "destination")

    @refusals_are_final()
    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's shape
        """Create the table unless it exists."""
        from airflow_s3commit.protocol.steps.fold import newest_entry  # noqa: PLC0415
        from airflow_s3commit.store.s3.glue import create_delta_table  # noqa: PLC0415

        self.require_text("destination")
        home = Destination.parse(self.destination)
        newest = newest_entry(self.hook.store, home)
        if newest is None or not newest.entry.published:
            raise InvalidOption(f"{home.uri} is not published: run s3commit publish {home.uri}")
        created = create_delta_table(
            self.client(), self.database, self.table, home.uri, catalog_id=self.catalog_id
        )
        return {"destination": home.uri, "table": f"{self.database}.{self.table}", "created": created}


def _seconds(given: Any) -> float:
    """Read a duration in seconds; any other value raises `ValueError`, so that it deletes nothing."""
    try:
        seconds = given.total_seconds() if isinstance(given, timedelta) else float(given)
    except (TypeError, ValueError):
        seconds = seconds_of(str(given))
    # NaN compares false.
    if seconds >= 0:
        return seconds
    raise ValueError(f"{given!r} is not 0 seconds or more")


def _flag(given: bool | str) -> bool:
    """Read a word for true or false; other text raises `ValueError`, so that it deletes nothing."""
    from airflow_s3commit.tables.options import FLAGS  # noqa: PLC0415 - importing needs none

    known = FLAGS.get(str(given).strip().lower())
    if known is None:
        raise ValueError(f"{given!r} is neither true nor false")
    return known


def _object_options(given: Mapping[str, Any] | None) -> ObjectOptions:
    return ObjectOptions.from_dict(mapping(given or {}))


def _totals(reports: Sequence[SweepReport]) -> dict[str, Any]:
    """Return only the reports' numbers: their lists may be long, and are in the log."""
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
