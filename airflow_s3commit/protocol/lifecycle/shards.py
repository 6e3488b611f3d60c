"""A commit in shards: several workers complete the uploads of one job, in any process and any order.

`begin_shards`, then `complete_shard` for each of them, then `finish_shards`.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_s3commit.exceptions import JobClosed
from airflow_s3commit.protocol.lifecycle.begin import begin_commit
from airflow_s3commit.protocol.lifecycle.commit import commit_job, commit_step, not_committing, settle
from airflow_s3commit.protocol.lifecycle.commit_rollback import rolling_back
from airflow_s3commit.protocol.lifecycle.finish import finish_lost
from airflow_s3commit.protocol.lifecycle.publish import complete_one_shard, complete_shards, prepare
from airflow_s3commit.protocol.lifecycle.run import CommitRun, Verdict, drive
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.state import ended_manifest, is_same_state, read_state
from airflow_s3commit.protocol.model.job import StateRecord
from airflow_s3commit.protocol.model.limits import MAX_SHARDS
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.progress import Progress


def begin_shards(
    context: JobContext, shards: int, *, seal_etag: str | None = None, plan_etag: str | None = None
) -> list[int]:
    """Begin the commit of a sealed job in shards, and return their numbers; none if it is committed.

    Before: the job is sealed. After: it is ``committing``. Repeatable: returns the shards of the first call.

    Args:
        context: The job.
        shards: How many, from 1 to 4,096; tasks are assigned to them round-robin.
        seal_etag: See `commit_job`.
        plan_etag: See `commit_job`.

    Raises:
        ValueError: More than 4,096 shards.
        S3CommitError: As `commit_job`.

    """
    if shards > MAX_SHARDS:
        raise ValueError(f"a commit is cut into at most {MAX_SHARDS} shards, not {shards}")
    run = CommitRun(context, settle, seal_etag, plan_etag, shards=max(shards, 1))
    with naming(context, "begin"):
        return drive(run, _begin_step)


def complete_shard(
    context: JobContext, shard: int, *, progress: Callable[[Progress], None] | None = None
) -> None:
    """Complete the uploads of one shard. Repeatable by any process, also concurrently.

    Before: `begin_shards` returned this number. After: its objects exist, and a record says so.

    Raises:
        S3CommitError: As `commit_job`; a roll-back takes back the whole job.

    """
    run = CommitRun(context, settle, progress=progress)
    with naming(context, f"complete of shard {shard}"):
        drive(run, lambda run, current: _shard_step(run, current, shard))


def finish_shards(context: JobContext) -> ManifestRecord:
    """Finish a commit whose shards are all complete, and return the manifest. Repeatable.

    Raises:
        JobClosed: A shard is not complete.
        S3CommitError: As `commit_job`.

    """
    state = read_state(context)
    if state is not None and state.record.state == "committing":
        missing = sorted(set(range(state.record.shards)) - complete_shards(context, state.record))
        if missing and is_same_state(state, read_state(context)):
            raise JobClosed(f"{context.name}: shards {missing} are not complete; complete them first")
    return commit_job(context)


def _begin_step(run: CommitRun, current: Stored[StateRecord] | None) -> list[int] | None:
    if current is None:
        ended_manifest(run.context)
        return []
    match current.record.state:
        case "sealed":
            begin_commit(run, current)
        case "committing":
            if run.log.ending() is None:
                with rolling_back(run, current) as (job, seal, plan):
                    prepare(run, current.record, job, seal, plan)
            return list(range(current.record.shards))
        case "committed":
            return []
        case "lost":
            raise Verdict(finish_lost(run))
        case _:
            raise not_committing(run.context, current.record)
    return None


def _shard_step(run: CommitRun, current: Stored[StateRecord] | None, shard: int) -> bool | None:
    if current is None:
        return ended_manifest(run.context) is not None
    if current.record.state == "committed":
        return True
    if current.record.state == "lost":
        raise Verdict(finish_lost(run))
    if current.record.state != "committing":
        raise not_committing(run.context, current.record)
    if not 0 <= shard < current.record.shards:
        raise JobClosed(f"{run.context.name} has no shard {shard}; it was cut into {current.record.shards}")
    if run.log.has_ended(run.context.job_id):
        return commit_step(run, current) is not None
    with rolling_back(run, current) as (_, seal, _plan):
        complete_one_shard(run, current.record, seal, shard)
    if run.lost:
        # The other shards are completed too: the job can only end as lost.
        commit_step(run, current)
        return None
    return True
