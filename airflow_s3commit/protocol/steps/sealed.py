"""Read a job's seal, and the uploads that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow_s3commit.exceptions import InvalidRecord, JobClosed
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.sealed_job import each_pendingset, load_stage_seals
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.layout import owner_of, seal_key
from airflow_s3commit.protocol.model.ownership import check_place
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.model.sealed_job import SealRecord, StageSealRecord


def find_seal(context: JobContext) -> Stored[SealRecord] | None:
    """Read the job's seal; None if it is not sealed.

    Raises:
        InvalidRecord: It is damaged, or of another job or place.

    """
    key = seal_key(context.layout.destination, context.job_id)
    stored = records.find(context.store, context.bucket, key, SealRecord)
    if stored is not None:
        check_place(stored.record, context.layout, join_uri(context.bucket, key))
    return stored


def sealed_uploads(
    context: JobContext, stages: list[StageSealRecord], selected: Callable[[int], bool] = lambda _: True
) -> Iterator[PendingUpload]:
    """Yield the sealed uploads in the seals' order, each checked to be the job's own.

    Args:
        context: The job.
        stages: The seals of its stages.
        selected: Returns whether to read the task attempt with a number, in the seals' order.

    Raises:
        InvalidRecord: A record was changed, or a file lies outside the destination; or it does not have the
            job's id in its name, and could overwrite another job's file. Hadoop's adopted files may.

    """
    for _, _, pendingset in each_pendingset(context, stages, selected):
        for upload in pendingset.commits:
            check_name(context, upload.destinationKey)
            yield upload


def check_name(context: JobContext, key: str) -> None:
    """Refuse a file that does not have the job's id in its name, unless Hadoop named it and it was adopted.

    Before: the job's record was read.

    Raises:
        InvalidRecord: It has not, and could overwrite another job's file.

    """
    is_adopted = context.record is not None and context.record.adopted
    if not is_adopted and owner_of(key) != context.job_id:
        raise InvalidRecord(f"{context.name}: the file {key} does not have the job's id in its name")


def bare_keys(context: JobContext, seal: SealRecord) -> set[str]:
    """Return the keys of the files of an adopted job, whose names do not show whose they are; else none."""
    if context.record is None or not context.record.adopted:
        return set()
    return {upload.destinationKey for upload in sealed_uploads(context, load_stage_seals(context, seal))}


def load_seal(context: JobContext, sha256: str | None = None) -> SealRecord:
    """Read the job's seal, and compare its SHA-256 with the one that the caller was given, if any.

    Raises:
        JobClosed: The job is not sealed.
        InvalidRecord: The seal is damaged, another job's, or not the one that the caller expects.

    """
    stored = find_seal(context)
    if stored is None:
        raise JobClosed(f"{context.name} is not sealed: seal it first, or abort it")
    if sha256 is not None and stored.sha256 != sha256:
        where = join_uri(context.bucket, seal_key(context.layout.destination, context.job_id))
        raise InvalidRecord(f"{where} is not the seal that was handed over: its SHA-256 is {stored.sha256}")
    return stored.record
