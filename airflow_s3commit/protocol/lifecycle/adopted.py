"""What the commit of a job adopted from Hadoop checks besides: its file names may lack the job's id.

The files of any other job are its own by their names. Those of an adopted one are told apart only by the
ETags of its sealed uploads. So no completion may overwrite an object, and the job does not commit beside one
that replaces its partitions, which may take its files for data of nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from airflow_s3commit.exceptions import DestinationChanged, DestinationNotEmpty, NoSuchKey
from airflow_s3commit.protocol.lifecycle.run import CommitRun, touched
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.log import read_entry
from airflow_s3commit.protocol.metadata.manifests import FileSummary
from airflow_s3commit.protocol.metadata.pending_uploads import pending_parts
from airflow_s3commit.protocol.metadata.removal import PendingId
from airflow_s3commit.protocol.metadata.sealed_job import each_pendingset
from airflow_s3commit.protocol.metadata.snapshot import live_files, read_snapshot
from airflow_s3commit.protocol.model.codec import text_digest
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import JobRecord
from airflow_s3commit.protocol.model.ownership import is_ours
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.model.sealed_job import SealRecord
from airflow_s3commit.store.base import Head, ObjectInfo
from airflow_s3commit.store.execute import in_batches, outcomes

_BATCH = 1_000


def sealed_uploads(run: CommitRun, seal: SealRecord) -> Iterable[PendingUpload]:
    """Yield every upload of a sealed job."""
    for _, _, pendingset in each_pendingset(run.context, run.stage_seals(seal)):
        yield from pendingset.commits


def refuse_occupied(context: JobContext, uploads: Iterable[PendingUpload]) -> None:
    """Raise if a completion would overwrite an object, or list a file of the table twice. Reads only.

    An object that Hadoop made of the very upload, before it died, is the job's own.

    Args:
        context: The adopted job.
        uploads: Its uploads that count.

    Raises:
        DestinationNotEmpty: It would.
        S3CommitError: A request failed.

    """
    store, keys = context.store, set[bytes]()
    for batch in in_batches(uploads, _BATCH):
        keys |= {text_digest(upload.destinationKey) for upload in batch}
        own = []
        calls = [(upload, Head(upload.bucket, upload.destinationKey)) for upload in batch]
        for upload, outcome in outcomes(store, calls, NoSuchKey):
            if not isinstance(outcome, ObjectInfo):
                continue
            if not is_ours(upload, outcome):
                raise _occupied(context, upload.destinationKey, "an object of another writer is there")
            own.append(PendingId.of(upload))
        for pending, parts in pending_parts(store, own, threads=context.threads):
            if parts is not None:
                raise _occupied(context, pending.key, "an object is there, and the upload is still pending")
    _refuse_listed(context, lambda key: text_digest(key) in keys)


def _refuse_listed(context: JobContext, is_planned: Callable[[str], bool]) -> None:
    home = context.layout.destination
    snapshot = read_snapshot(context.store, home)
    commits = snapshot.commits() if snapshot is not None else []
    for commit, files in live_files(context.store, home, commits, FileSummary):
        for file in files if commit.job_id != context.job_id else ():
            if is_planned(file.key):
                raise _occupied(context, file.key, f"it is a file of the table, of job {commit.job_id}")


def _occupied(context: JobContext, key: str, why: str) -> DestinationNotEmpty:
    home = context.layout.destination.uri
    return DestinationNotEmpty(
        f"{context.name} writes {join_uri(context.bucket, key)}, and {why}: a commit would overwrite it, so"
        " nothing was changed. Move that object elsewhere, or replace its partition by another job, and adopt"
        f" this one again; or give it up with: s3commit adopt {home} {context.job_id} --abort"
    )


def refuse_if_replaced(run: CommitRun, job: JobRecord, seal: SealRecord) -> None:
    """Raise if another job has removed files from a partition of an adopted job since its setup.

    That job may have listed a file of this one, taken it for data of nobody, and delete it yet.

    Args:
        run: The commit; its log is read.
        job: The adopted job.
        seal: Its seal.

    Raises:
        DestinationChanged: One has.

    """
    context = run.context
    own = touched(job.options.as_sealed(seal.removes), seal)
    for number in range(job.log + 1, run.log.position + 1):
        entry = read_entry(context.store, context.layout.destination, number)
        if entry.manifest is None or entry.job_id == context.job_id:
            continue
        is_removal = entry.removes != "nothing" or entry.restores is not None or entry.closing
        is_beside = own is None or not entry.manifest.partitions.keys().isdisjoint(own)
        if entry.removes == "everything" or (is_removal and is_beside):
            raise DestinationChanged(
                f"{context.name}: job {entry.job_id} has replaced files beside it, by entry {number} of"
                " the log, while this one was committing. File names of Hadoop do not show whose they are, so"
                " that job may delete them: this one is rolled back; write it again, as a new job"
            )
