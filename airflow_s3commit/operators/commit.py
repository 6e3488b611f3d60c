"""The commit: one task completes all uploads, or mapped tasks complete them in shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow.sdk import Asset, chain
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_s3commit.links import ManifestLink
from airflow_s3commit.metrics import commit_counted
from airflow_s3commit.operators.base import CommitStepOperator, refusals_are_final, store_failures_are_noted

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import BaseOperatorLink, Context
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from airflow_s3commit.protocol.lifecycle.run import Progress, ProgressLog
    from airflow_s3commit.protocol.model.manifest import ManifestRecord
    from airflow_s3commit.store.credentials import StoreAddress
    from airflow_s3commit.xcom import JsonObject


class CompletingOperator(CommitStepOperator):
    """A step that completes uploads, logs its progress, and stops when it is killed.

    :param job: The job reference. (templated)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._killed = False
        self._log_progress: ProgressLog | None = None

    def on_kill(self) -> None:
        """Stop completing uploads; the next try or the teardown finishes the commit or rolls it back.

        The job is not fenced here. Before the point of no return, a retry (which a timeout may have) finishes
        the commit, or else the teardown rolls it back. After that point the data stays visible: the commit
        continues until the process ends, and the next try finishes it.
        """
        # Airflow runs execute() for up to five more seconds after this returns.
        self._killed = True

    def report_progress(self, progress: Progress) -> None:
        """Log the progress from time to time, and stop a killed task.

        :param progress: Files and bytes completed so far.
        :raises AirflowException: The task was killed.
        """
        if self._killed:
            raise AirflowException(
                f"Task {self.task_id} was killed after {progress.files_done} of {progress.files_total} "
                "files; run it again to finish, or let the teardown roll back."
            )
        if self._log_progress is None:
            from airflow_s3commit.protocol.lifecycle.run import ProgressLog  # noqa: PLC0415 - keeps parsing light

            self._log_progress = ProgressLog(self.log)
        self._log_progress(progress)


class ManifestOperator(CommitStepOperator):
    """A step that ends with the job's manifest: it returns a summary of it and emits the assets' events.

    :param job: The job reference. (templated)
    :param outlets: Assets of the table. Each gets one event, with the summary and counts by partition as its
        ``extra``. If the run has a partition key, Airflow puts it on the event.
    :param partition_asset: An asset that gets an event for each partition with new files, keyed by the
        partition, for DAGs scheduled by a ``PartitionedAssetTimetable``. It must differ from the table's
        assets: events with a key do not start ``schedule=[asset]`` DAGs.
    """

    template_fields: Sequence[str] = CommitStepOperator.template_fields
    operator_extra_links: Collection[BaseOperatorLink] = (ManifestLink(),)
    ui_color = "#d7ead9"

    def __init__(
        self,
        *,
        outlets: Sequence[Any] | None = None,
        partition_asset: Asset | None = None,
        **kwargs: Any,
    ) -> None:
        declared = list(outlets or [])
        if partition_asset is not None:
            if partition_asset in declared:
                raise ValueError(
                    f"partition_asset {partition_asset.name!r} is an outlet already: give the partitions a"
                    " separate asset, because events with a partition key do not start DAGs with"
                    " schedule=[asset]."
                )
            declared.append(partition_asset)
        super().__init__(outlets=declared, **kwargs)
        self.partition_asset = partition_asset
        self.manifest_uri: str | None = None
        self.address: StoreAddress | None = None
        self._manifest: ManifestRecord | None = None

    def committed(self, context: Context, manifest: ManifestRecord) -> JsonObject:
        """Log a commit, describe it in the assets' events, and return its manifest's summary.

        :param context: The task's context.
        :param manifest: The commit's manifest.
        """
        from airflow_s3commit.assets import announce  # noqa: PLC0415 - keeps DAG parsing light
        from airflow_s3commit.xcom import manifest_summary  # noqa: PLC0415

        summary = manifest_summary(manifest)
        self._manifest = manifest
        self.manifest_uri = summary["manifest"]
        self.address = self.hook.address
        self.log.info(
            "Job %s is committed: %d files, %d bytes, %d partitions; manifest %s",
            manifest.job_id,
            manifest.counts.files,
            manifest.counts.bytes,
            len(manifest.partitions),
            summary["manifest"],
        )
        events = context.get("outlet_events")
        if events is not None:
            tables = [one for one in self.outlets if isinstance(one, Asset) and one != self.partition_asset]
            announce(events, manifest, tables=tables, partitions=self.partition_asset)
            if tables and context.get("partition_key"):
                self.log.info(
                    "Airflow puts this run's partition key %s on the events of %s, which start no DAG with"
                    " schedule=[asset]: use a PartitionedAssetTimetable, or an AssetWatcher",
                    context["partition_key"],
                    ", ".join(asset.name for asset in tables),
                )
        return summary

    def get_openlineage_facets_on_complete(
        self,
        task_instance: object,  # noqa: ARG002 - Airflow's shape
    ) -> OperatorLineage[Any, Any]:
        """Return the commit's lineage for the OpenLineage provider; empty if the task did not commit.

        :param task_instance: The task instance; not used.
        """
        from airflow_s3commit.assets import lineage_of  # noqa: PLC0415 - keeps DAG parsing light

        return lineage_of(self._manifest)


def etag_of(conflicts: Any, name: str, task_id: str) -> str | None:
    """Return the ETag of the seal or plan in the resolve task's output; None without that output.

    :param conflicts: The rendered output of `S3CommitResolveConflictsOperator`, or None.
    :param name: ``seal`` or ``plan``.
    :param task_id: The task, for the message.
    :raises AirflowException: ``conflicts`` is not the output of the resolve task.
    """
    if conflicts is None:
        return None
    if isinstance(conflicts, Mapping) and isinstance(conflicts.get(name), Mapping):
        return str(conflicts[name]["etag"])
    raise AirflowException(
        f"Task {task_id}: conflicts is {conflicts!r}; pass the output of the "
        "S3CommitResolveConflictsOperator of this run, or None."
    )


class S3CommitJobOperator(CompletingOperator, ManifestOperator):
    """Commits a job and returns a summary of its manifest.

    It may be retried after a crash at any point: a retry finishes the commit, and returns the same summary if
    the job is committed. One task completes some thousands of files a second; `as_shards` divides them among
    mapped tasks.

    :param job: The job reference. (templated)
    :param conflicts: The output of `S3CommitResolveConflictsOperator`; the commit is refused if the job has
        another seal or plan. None if no such task ran; the commit makes the plan itself. (templated)
    :param pin_plan: Whether to refuse any plan other than that of ``conflicts``, because someone has reviewed
        it. False plans again if other jobs have changed the partitions since.
    :param outlets: Assets of the table. Each gets one event, with the summary and counts by partition as its
        ``extra``. If the run has a partition key, Airflow puts it on the event.
    :param partition_asset: An asset that gets an event for each partition with new files, keyed by the
        partition, for DAGs scheduled by a ``PartitionedAssetTimetable``. It must differ from the table's
        assets: events with a key do not start ``schedule=[asset]`` DAGs.
    """

    template_fields: Sequence[str] = (*ManifestOperator.template_fields, "conflicts")

    def __init__(self, *, conflicts: Any = None, pin_plan: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conflicts = conflicts
        self.pin_plan = pin_plan

    @staticmethod
    def as_shards(**arguments: Any) -> ShardedCommit:
        """Add a commit in mapped tasks instead of this one task, as `sharded_commit` does.

        :param arguments: The arguments of `sharded_commit`.
        """
        return sharded_commit(**arguments)

    def execute(self, context: Context) -> JsonObject:
        """Complete every upload of the job, write its manifest, and return the manifest's summary.

        :param context: The task's context.
        """
        job = self.opened_job()
        noted = store_failures_are_noted(context)
        with noted, commit_counted(job.reference.destination) as count, refusals_are_final():
            manifest = job.commit(
                seal_etag=etag_of(self.conflicts, "seal", self.task_id),
                plan_etag=etag_of(self.conflicts, "plan", self.task_id) if self.pin_plan else None,
                progress=self.report_progress,
            )
            count(manifest)
        return self.committed(context, manifest)


#: Airflow maps a task over at most ``[core] max_map_length`` values, 1,024 by default.
_MOST_SHARDS: Final = 1_024


class S3CommitBeginOperator(CommitStepOperator):
    """Begins a commit in shards. Returns the shards' numbers, over which the shard tasks are mapped.

    It may be retried, and then returns the shards of the first try.

    :param job: The job reference. (templated)
    :param shards: Number of shards, from 1 to 1,024, with equal numbers of files. (templated)
    :param conflicts: The output of `S3CommitResolveConflictsOperator`, or None. (templated)
    :param pin_plan: Whether to refuse any plan other than that of ``conflicts``.
    """

    template_fields: Sequence[str] = (*CommitStepOperator.template_fields, "shards", "conflicts")
    ui_color = "#d7ead9"

    def __init__(
        self, *, shards: int | str, conflicts: Any = None, pin_plan: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.shards = shards
        self.conflicts = conflicts
        self.pin_plan = pin_plan

    def execute(self, context: Context) -> list[int]:
        """Begin the commit, and return the shards' numbers; one number if the job is committed already.

        :param context: The task's context.
        """
        with store_failures_are_noted(context), refusals_are_final():
            numbers = self.opened_job().begin(
                self._shard_count(),
                seal_etag=etag_of(self.conflicts, "seal", self.task_id),
                plan_etag=etag_of(self.conflicts, "plan", self.task_id) if self.pin_plan else None,
            )
        if not numbers:
            # Airflow skips a task that is mapped over an empty list, and the tasks downstream of it.
            self.log.info("The job is committed already")
            return [0]
        self.log.info("The commit has %d shards", len(numbers))
        return numbers

    def _shard_count(self) -> int:
        try:
            count = int(self.shards)
        except (TypeError, ValueError):
            count = 0
        if not 1 <= count <= _MOST_SHARDS:
            raise AirflowFailException(
                f"Task {self.task_id}: shards is {self.shards!r}; give a number from 1 to {_MOST_SHARDS}."
            )
        return count


class S3CommitShardOperator(CompletingOperator):
    """Completes the uploads of one shard. It may be retried, and run in parallel with the other shards.

    :param job: The job reference. (templated)
    :param shard: The shard's number, one of those that `S3CommitBeginOperator` returned. (templated)
    """

    template_fields: Sequence[str] = (*CompletingOperator.template_fields, "shard")
    ui_color = "#d7ead9"

    def __init__(self, *, shard: int | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shard = shard

    def execute(self, context: Context) -> None:  # noqa: ARG002 - Airflow's shape
        """Complete the uploads of the shard.

        :param context: The task's context.
        """
        with refusals_are_final():
            self.opened_job().complete(int(self.shard), progress=self.report_progress)
        self.log.info("Shard %s is complete", self.shard)


class S3CommitFinishOperator(ManifestOperator):
    """Finishes a commit whose shards are complete, and returns a summary of its manifest. It may be retried.

    :param job: The job reference. (templated)
    :param outlets: Assets of the table. Each gets one event, with the summary and counts by partition as its
        ``extra``. If the run has a partition key, Airflow puts it on the event.
    :param partition_asset: An asset that gets an event for each partition with new files, keyed by the
        partition.
    """

    def execute(self, context: Context) -> JsonObject:
        """Write the manifest, delete the replaced files, and return the manifest's summary.

        :param context: The task's context.
        """
        job = self.opened_job()
        noted = store_failures_are_noted(context)
        with noted, commit_counted(job.reference.destination) as count, refusals_are_final():
            manifest = job.finish()
            count(manifest)
        return self.committed(context, manifest)


class ShardedCommit(NamedTuple):
    """The tasks of a sharded commit.

    :param begin: The first task; set it downstream of the resolve task.
    :param shards: The mapped tasks.
    :param finish: The last task; its output is the manifest's summary.
    """

    begin: S3CommitBeginOperator
    shards: MappedOperator
    finish: S3CommitFinishOperator


def sharded_commit(
    *,
    job: Any,
    shards: int | str,
    task_id: str = "commit",
    conflicts: Any = None,
    pin_plan: bool = True,
    outlets: Sequence[Any] = (),
    partition_asset: Any = None,
    **kwargs: Any,
) -> ShardedCommit:
    """Add ``begin >> shard tasks >> finish`` instead of one `S3CommitJobOperator`.

    The shards run in parallel. Each task may be retried, or cleared, on its own.

    :param job: The job reference. (templated)
    :param shards: Number of shards, from 1 to 1,024. (templated)
    :param task_id: The id of the last task; the others are ``<task_id>_begin`` and ``<task_id>_shards``.
    :param conflicts: The output of `S3CommitResolveConflictsOperator`, or None. (templated)
    :param pin_plan: Whether to refuse any plan other than that of ``conflicts``.
    :param outlets: Assets of the table, as in `S3CommitJobOperator`.
    :param partition_asset: The asset of the partitions, as in `S3CommitJobOperator`.
    :param kwargs: Arguments of all three tasks: connection, retries, pool.
    """
    begin = S3CommitBeginOperator(
        task_id=f"{task_id}_begin",
        job=job,
        shards=shards,
        conflicts=conflicts,
        pin_plan=pin_plan,
        **kwargs,
    )
    mapped = S3CommitShardOperator.partial(task_id=f"{task_id}_shards", job=job, **kwargs).expand(
        shard=begin.output
    )
    finish = S3CommitFinishOperator(
        task_id=task_id, job=job, outlets=outlets, partition_asset=partition_asset, **kwargs
    )
    chain(begin, mapped, finish)
    return ShardedCommit(begin, mapped, finish)
