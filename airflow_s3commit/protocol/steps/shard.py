"""Complete a part of a sealed job's uploads, so that several processes share the work of one commit.

A part leaves no record. The commit completes whatever is not complete, so it does not matter which parts ran,
how often, or where they died. They only save it time.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_s3commit.exceptions import InvalidOption, S3CommitError
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.pending_uploads import complete_uploads
from airflow_s3commit.protocol.metadata.sealed_job import load_stage_seals
from airflow_s3commit.protocol.steps.progress import Counter, Progress
from airflow_s3commit.protocol.steps.sealed import load_seal, sealed_uploads
from airflow_s3commit.protocol.steps.setup import load_job, recorded, refusing_ended


def complete_part(
    context: JobContext,
    part: int,
    parts: int,
    *,
    seal_sha256: str | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> int:
    """Complete every ``parts``-th task attempt of the seal, from number ``part`` on; return how many files.

    Before: the job is sealed. It goes by the seal: an upload of an attempt that does not count would become a
    visible file that no entry names. Repeatable by any process, beside a commit or an abort.

    Args:
        context: The job.
        part: Number of the part, from 0.
        parts: How many there are.
        seal_sha256: The expected SHA-256 of the job's seal.
        progress: Called after each completed upload; the total is that of all parts.

    Raises:
        InvalidOption: There is no such part.
        AlreadyCommitted: The job is committed.
        JobClosed: The job is not sealed, or is aborted.
        JobFailed: An upload is gone. The commit will abort the job.
        InvalidRecord: A sealed record was changed.

    """
    if not 0 <= part < parts:
        raise InvalidOption(f"part {part} of {parts}: parts are numbered from 0 to {parts - 1}")
    with naming(context, f"part {part} of {parts} of the commit"), refusing_ended(context):
        context = recorded(context)
        load_job(context)
        seal = load_seal(context, seal_sha256)
        stages = load_stage_seals(context, seal)
        uploads = sealed_uploads(context, stages, lambda number: number % parts == part)
        counter = Counter(context, seal.counts.files, progress)
        try:
            for upload in complete_uploads(context, uploads):
                counter.add(upload)
        except S3CommitError as error:
            error.add_note(f"some files of {context.name} may be visible: commit it, or abort it")
            raise
        return counter.progress.files_done
