"""A commit that several tasks share: begun once, completed shard by shard on mapped tasks, finished once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow.sdk import chain
from airflow.sdk.exceptions import AirflowFailException

from airflow_s3commit.metrics import commit_counted
from airflow_s3commit.operators.base import CommitStepOperator, refusals_are_final
from airflow_s3commit.operators.committing import CompletingOperator, ManifestOperator, etag_of

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from airflow_s3commit.xcom import JsonObject

__all__ = [
    "S3CommitBeginOperator",
    "S3CommitFinishOperator",
    "S3CommitShardOperator",
    "ShardedCommit",
    "sharded_commit",
]

#: Airflow expands a task over no more than ``[core] max_map_length`` values, 1,024 by default.
_MOST_SHARDS: Final = 1_024


class S3CommitBeginOperator(CommitStepOperator):
    """Begins a job's commit, cut into shards. Returns their numbers, over which shard tasks are mapped.

    Run again, it returns the shards that the commit was cut into the first time.

    :param job: The job reference. (templated)
    :param shards: Into how many; the files are dealt out to them evenly. From 1 to 1,024. (templated)
    :param conflicts: The output of `S3CommitResolveConflictsOperator`, or None. (templated)
    """

    template_fields: Sequence[str] = (*CommitStepOperator.template_fields, "shards", "conflicts")
    ui_color = "#d7ead9"

    def __init__(self, *, shards: int | str, conflicts: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shards = shards
        self.conflicts = conflicts

    def execute(self, context: Context) -> list[int]:  # noqa: ARG002 - Airflow's shape
        """Move the job to committing."""
        with refusals_are_final():
            numbers = self.opened_job().begin(
                self._asked(),
                seal_etag=etag_of(self.conflicts, "seal", self.task_id),
                plan_etag=etag_of(self.conflicts, "plan", self.task_id),
            )
        if not numbers:
            # Airflow skips what is expanded over nothing, and what is behind it; one shard finds all done.
            self.log.info("The job is committed already")
            return [0]
        self.log.info("The commit is cut into %d shards", len(numbers))
        return numbers

    def _asked(self) -> int:
        try:
            asked = int(self.shards)
        except (TypeError, ValueError):
            asked = 0
        if not 1 <= asked <= _MOST_SHARDS:
            raise AirflowFailException(
                f"Task {self.task_id}: shards is {self.shards!r}; give a number from 1 to {_MOST_SHARDS}."
            )
        return asked


class S3CommitShardOperator(CompletingOperator):
    """Completes the uploads of one shard. It may run twice, anywhere, and beside the others.

    :param job: The job reference. (templated)
    :param shard: The shard's number, one of those that `S3CommitBeginOperator` returned. (templated)
    """

    template_fields: Sequence[str] = (*CompletingOperator.template_fields, "shard")
    ui_color = "#d7ead9"

    def __init__(self, *, shard: int | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shard = shard

    def execute(self, context: Context) -> None:  # noqa: ARG002 - Airflow's shape
        """Complete the shard."""
        with refusals_are_final():
            self.opened_job().complete(int(self.shard), progress=self.report_progress)
        self.log.info("Shard %s is complete", self.shard)


class S3CommitFinishOperator(ManifestOperator):
    """Finishes a commit whose shards are complete, and returns a summary of the manifest.

    :param job: The job reference. (templated)
    :param outlets: Assets of the table, as for `S3CommitJobOperator`.
    :param partition_asset: The asset of the partitions, likewise.
    """

    def execute(self, context: Context) -> JsonObject:
        """Write the manifest, remove what was replaced, and tell the assets."""
        job = self.opened_job()
        with commit_counted(job.reference.destination) as count, refusals_are_final():
            manifest = job.finish()
            count(manifest)
        return self.committed(context, manifest)


class ShardedCommit(NamedTuple):
    """The tasks of a sharded commit.

    :param begin: The first; put it behind the resolve task.
    :param shards: The mapped ones.
    :param finish: The last; its output is the manifest's summary.
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
    outlets: Sequence[Any] = (),
    partition_asset: Any = None,
    **kwargs: Any,
) -> ShardedCommit:
    """Add ``begin >> shard tasks >> finish`` in the place of one `S3CommitJobOperator`.

    The shards work on as many workers as there are slots for; the job's lock on the destination is theirs
    together. Each of the tasks may be retried, or cleared, by itself.

    :param job: The job reference.
    :param shards: Into how many shards the commit is cut, from 1 to 1,024. (templated)
    :param task_id: The id of the last task; the others are ``<task_id>_begin`` and ``<task_id>_shards``.
    :param conflicts: The output of `S3CommitResolveConflictsOperator`.
    :param outlets: Assets of the table.
    :param partition_asset: The asset of the partitions.
    :param kwargs: Arguments of all three: connection, retries, pool.
    """
    begin = S3CommitBeginOperator(
        task_id=f"{task_id}_begin", job=job, shards=shards, conflicts=conflicts, **kwargs
    )
    mapped = S3CommitShardOperator.partial(task_id=f"{task_id}_shards", job=job, **kwargs).expand(
        shard=begin.output
    )
    finish = S3CommitFinishOperator(
        task_id=task_id, job=job, outlets=outlets, partition_asset=partition_asset, **kwargs
    )
    chain(begin, mapped, finish)
    return ShardedCommit(begin, mapped, finish)
