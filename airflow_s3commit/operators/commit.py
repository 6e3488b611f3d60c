"""The commit: one task completes all uploads, or mapped tasks complete parts of them before it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, Context
from airflow.sdk.definitions.asset import AssetRef

from airflow_s3commit.airflow_version import AirflowException, AirflowFailException
from airflow_s3commit.exceptions import AlreadyCommitted, InvalidOption
from airflow_s3commit.links import ManifestLink
from airflow_s3commit.metrics import counted
from airflow_s3commit.operators.base import CommitStepOperator, failures_are_noted, totals
from airflow_s3commit.templates import at_least, mapping

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_s3commit.protocol.metadata.pending_uploads import Progress, ProgressLog
    from airflow_s3commit.protocol.model.manifest import Manifest
    from airflow_s3commit.store.credentials import StoreAddress


class CompletingOperator(CommitStepOperator):
    """A step that completes uploads, logs its progress, and stops when it is killed.

    :param conflicts: The output of `S3CommitResolveConflictsOperator`; the task is refused if the job has
        another seal. None if no such task ran. (templated)
    """

    template_fields = (*CommitStepOperator.template_fields, "conflicts")
    ui_color = "#d7ead9"

    def __init__(self, *, conflicts: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conflicts = conflicts
        self.check(conflicts=mapping)
        self._killed = False
        self._log_progress: ProgressLog | None = None

    def on_kill(self) -> None:
        """Stop completing uploads: a retry commits the job, or the teardown aborts it."""
        # Airflow runs execute() for up to five more seconds after this returns.
        self._killed = True

    def report_progress(self, progress: Progress) -> None:
        """Log the progress from time to time, and stop a killed task."""
        if self._killed:
            raise AirflowException(
                f"Task {self.task_id} was killed after {progress.files_done} of {progress.files_total} "
                "files; run it again to finish, or let the teardown abort the job."
            )
        if self._log_progress is None:
            from airflow_s3commit.protocol.metadata.pending_uploads import ProgressLog  # noqa: PLC0415 - keeps parsing light

            self._log_progress = ProgressLog(self.log)
        self._log_progress(progress)

    def pinned(self) -> tuple[str | None, int | None]:
        """Return the seal's SHA-256 and the preview's generation in ``conflicts``; None without it."""
        if self.conflicts is None:
            return None, None
        try:
            seal, generation = self.conflicts["seal"], int(self.conflicts["preview"]["generation"])
            digest, where = str(seal["sha256"]), str(seal["location"])
        except (KeyError, TypeError, ValueError) as error:
            raise AirflowFailException(
                f"Task {self.task_id}: conflicts is {self.conflicts!r}; pass the output of the"
                " S3CommitResolveConflictsOperator of this run, or None."
            ) from error
        if self.job["job_id"] not in where:
            raise AirflowFailException(
                f"Task {self.task_id}: job {self.job['job_id']} on {self.job['destination']} was not sealed:"
                f" conflicts is of an earlier job, {where}. Clear all stages together with the tasks after"
                " them."
            )
        return digest, generation


class S3CommitJobOperator(CompletingOperator):
    """Commits a job, returns a summary of its manifest, and emits the assets' events.

    It may be retried at any point: a retry finishes the commit, or returns the same summary. One task
    completes some thousands of files a second; `S3CommitPartOperator` divides them.

    :param pin_preview: Whether to refuse the commit if another job has changed its partitions since
        ``conflicts`` was made, because someone has reviewed it. If False, it replaces what is there by then.
    :param outlets: Assets of the table. Each gets one event, with the summary and counts by partition as its
        ``extra``. If the run has a partition key, Airflow puts it on the event.
    :param partition_asset: An asset that gets an event for each partition with new files, keyed by the
        partition, for DAGs scheduled by a ``PartitionedAssetTimetable``. It must differ from the table's
        assets: events with a key do not start ``schedule=[asset]`` DAGs.
    """

    operator_extra_links = (ManifestLink(),)

    def __init__(
        self, *, pin_preview: bool = True, partition_asset: Asset | None = None, **kwargs: Any
    ) -> None:
        # A named parameter's default would replace Airflow's, and fail a mapped task.
        outlets = kwargs.pop("outlets", None)
        # Like Airflow's operators, it takes a single asset too.
        tables: list[Any] = [outlets]
        if isinstance(outlets, Sequence | None) and not isinstance(outlets, str):
            tables = list(outlets or [])
        partitions = [] if partition_asset is None else [partition_asset]
        super().__init__(outlets=[*tables, *partitions], **kwargs)
        if wrong := [one for one in (*tables, *partitions) if isinstance(one, Sequence)]:
            # Unchecked, it would fail only after the commit, or start no DAG.
            raise InvalidOption(f"Task {self.task_id}: {wrong[0]!r} is no asset: give an Asset of this name")
        if partition_asset is not None and partition_asset in tables:
            raise InvalidOption(
                f"Task {self.task_id}: partition_asset {partition_asset.name!r} is an outlet already: give"
                " the partitions a separate asset, because events with a partition key do not start DAGs"
                " with schedule=[asset]."
            )
        self.pin_preview = pin_preview
        self.partition_asset = partition_asset
        self.manifest_uri: str | None = None
        self.address: StoreAddress | None = None
        self._manifest: Manifest | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Complete every upload of the job, enter it in the log, and return its manifest's summary."""
        from airflow_s3commit.assets import announce  # noqa: PLC0415 - keeps DAG parsing light

        with failures_are_noted(context, self.job):
            job, (seal, generation) = self.opened_job(), self.pinned()
            commit = partial(
                job.commit,
                seal_sha256=seal,
                generation=generation if self.pin_preview else None,
                progress=self.report_progress,
            )
            self._manifest = manifest = counted(job.reference.destination, commit)
        self.manifest_uri = manifest.uri
        self.address = self.hook.address
        replaced = f"it replaced {manifest.replaced.files} files, {manifest.replaced.bytes} bytes"
        about = (manifest.job_id, manifest.generation, totals(manifest), replaced, manifest.uri)
        self.log.info("Job %s is committed as generation %d: %s; %s; manifest %s", *about)
        events = context.get("outlet_events")
        if events is not None:
            outlets = [one for one in self.outlets if isinstance(one, Asset | AssetRef)]
            tables: Any = [one for one in outlets if one != self.partition_asset]
            announce(events, manifest, tables=tables, partitions=self.partition_asset)
        return manifest.to_dict()

    def get_openlineage_facets_on_complete(self, _task_instance: object) -> OperatorLineage[Any, Any]:
        """Return the commit's lineage for the OpenLineage provider; empty if the task did not commit."""
        from airflow_s3commit.assets import lineage_of  # noqa: PLC0415 - keeps DAG parsing light

        return lineage_of(self._manifest)


class S3CommitPartOperator(CompletingOperator):
    """Completes a part of a job's uploads, so that several tasks share the work of one commit.

    Map it over the numbers of the parts (``.partial(parts=8, …).expand(part=list(range(8)))``), before the
    `S3CommitJobOperator`, which completes what is left and enters the job in the log. Until then readers that
    list may see the files of a part. It may be retried, cleared, and run at the same time as the other parts.

    :param part: The part's number, from 0.
    :param parts: How many parts there are.
    """

    def __init__(self, *, part: int, parts: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.part = part
        self.parts = parts
        self.check(parts=at_least(1, int), part=at_least(0, int))

    def execute(self, context: Context) -> None:
        """Complete the uploads of the part, unless the job is committed."""
        with failures_are_noted(context, self.job):
            job, (seal, _) = self.opened_job(), self.pinned()
            try:
                files = job.complete_part(
                    self.part, self.parts, seal_sha256=seal, progress=self.report_progress
                )
            except AlreadyCommitted as error:
                self.log.info("Nothing to do: %s", error)
            else:
                self.log.info("Part %d of %d is complete: %d files", self.part, self.parts, files)
