"""Jobs that Hadoop's S3A committers left behind: finding them, and adopting one to finish or abort it.

Adoption copies what Hadoop wrote into a job of ours with the same id; from there it is committed or aborted
as any other, with its lock, its states and its way back. The Hadoop job must be dead: its tasks and driver
know nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from airflow_s3commit.clock import Clock, SystemClock
from airflow_s3commit.exceptions import (
    InvalidDestination,
    InvalidOption,
    InvalidRecord,
    Refused,
    S3CommitError,
)
from airflow_s3commit.protocol.abort import abort_job
from airflow_s3commit.protocol.context import JobContext, naming, new_uuid
from airflow_s3commit.protocol.destination import Destination
from airflow_s3commit.protocol.hadoop_abort import (
    ABORT_REASON,
    check_abort,
    clean_up,
    is_ending,
    prepare_abort,
)
from airflow_s3commit.protocol.hadoop_adoption import Adoption, check, is_beyond, take_over
from airflow_s3commit.protocol.hadoop_files import job_id_of, magic_files
from airflow_s3commit.protocol.hadoop_status import HadoopJob, examine
from airflow_s3commit.protocol.layout import Layout
from airflow_s3commit.protocol.publish import Progress, commit_job
from airflow_s3commit.protocol.records import AbortReport, JobOptions, ManifestRecord
from airflow_s3commit.store.base import ObjectStore

__all__ = ["HadoopJob", "Rehearsal", "adopt", "clean_up_hadoop_job", "find_hadoop_jobs", "rehearse_adoption"]


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What an adoption would do.

    Attributes:
        job: What Hadoop left; None if nothing.
        refusal: The error that it would raise before it changed anything; None if it would go on.

    """

    job: HadoopJob | None
    refusal: S3CommitError | None


def find_hadoop_jobs(store: ObjectStore, destination: str) -> list[HadoopJob]:
    """Return the jobs that Hadoop's magic committer left at a destination, oldest first; changes nothing.

    Jobs of the staging committers leave their files on their cluster and cannot be found here.
    """
    place = Destination.parse(destination)
    found = magic_files(store, place).values()
    return sorted((examine(store, place, files) for files in found), key=lambda job: job.modified)


def rehearse_adoption(
    store: ObjectStore,
    destination: str,
    *,
    commit: bool = True,
    job_id: str | None = None,
    pendingsets_uri: str | None = None,
    options: JobOptions | None = None,
    expect_tasks: int | None = None,
    accept_partial: bool = False,
    older_than: float = 0.0,
    force: bool = False,
) -> Rehearsal:
    """Find out what `adopt` would do with the same arguments, by the same checks; changes nothing.

    Raises:
        S3CommitError: The store could not be asked.

    """
    adoption = _adoption(
        store, destination, job_id, pendingsets_uri, options,
        expect_tasks=expect_tasks, accept_partial=accept_partial, older_than=older_than, force=force,
    )  # fmt: skip
    files = adoption.files()
    job = examine(store, adoption.context.layout.destination, files) if files.found or files.unknown else None
    try:
        if commit and not is_beyond(adoption):
            check(adoption, files)
        elif not commit and job is not None and not is_ending(adoption):
            check_abort(adoption, files)
    except Refused as error:
        return Rehearsal(job, error)
    return Rehearsal(job, None)


def clean_up_hadoop_job(store: ObjectStore, destination: str, job_id: str) -> int:
    """Remove what a successful Hadoop job left: its directory, and uploads of attempts that did not count.

    No object that it published is touched. Run again: finds nothing.

    Returns:
        How many uploads were aborted.

    Raises:
        JobClosed: The job is not successful. Nothing was changed.
        InvalidRecord: There is something in its directory that may be data, or cannot be read. Nothing was
            changed.
        S3CommitError: Something could not be removed; clean up again.

    """
    return clean_up(JobContext(store, Layout.of(Destination.parse(destination), job_id)))


def adopt(
    store: ObjectStore,
    destination: str,
    *,
    commit: bool = True,
    job_id: str | None = None,
    pendingsets_uri: str | None = None,
    options: JobOptions | None = None,
    expect_tasks: int | None = None,
    accept_partial: bool = False,
    older_than: float = 0.0,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
    clock: Clock | None = None,
    new_id: Callable[[], str] = new_uuid,
    lock_wait: float = 600.0,
) -> ManifestRecord | AbortReport:
    """Finish, or abort, a job that Hadoop's S3A committers left; run again, it goes on where it was left.

    Before: the Hadoop job is dead. After, with ``commit``: every upload of every task that committed is
    complete, every other one is aborted, and the manifest stands. After an abort: none of its uploads is
    pending, and what Hadoop had published of it is taken back where it is provably this job's. A job whose
    driver died in the middle of its job commit is finished or taken back alike.

    Everything is read and checked before anything is changed.

    Args:
        store: Where everything is.
        destination: URI of the dataset's directory.
        commit: Finish the job; False aborts it.
        job_id: Its UUID: ``…`` of ``__magic_job-…``. May be left out if ``pendingsets_uri`` has it.
        pendingsets_uri: The directory of a staging committer's pendingsets, copied to S3 if need be
            (``…/<UUID>/staging-uploads/_temporary/0/``); or any other directory of pendingsets. By default
            the job's magic directory is looked at.
        options: How to commit. By default existing data is kept (``append``), and conflicts are judged by
            partition. Hadoop's file names need not be unique, so ``unique_filenames`` is always off.
        expect_tasks: How many tasks the job had: a commit with more or fewer is refused.
        accept_partial: Commit although task numbers below the greatest have no pendingset. A task of the
            magic committer writes one even without output, so it did not commit; with the staging committers
            it may have had no output.
        older_than: Seconds without a sign of life below which the job is refused: it may be alive. By default
            the caller knows that it is dead.
        force: End a job that may be alive. Pass over files that do not count and cannot be read, and with
            ``commit=False`` over any file that cannot be read: the uploads that only they name stay pending
            until a sweep. With ``commit=False`` it also gives up old data that cannot be put back.
        progress: Called after each completed upload.
        clock: Where time comes from.
        new_id: Where ids come from.
        lock_wait: Seconds that the commit waits for another living job's lock.

    Raises:
        NoSuchJob: Nothing of such a job is there to be finished; an abort finds nothing and says so.
        InvalidRecord: A file is damaged, of another version or job, or names a key outside the destination;
            or the job's id cannot be one of ours. Nothing was changed.
        DuplicateOutput: Two tasks write one key. Nothing was changed.
        DestinationNotEmpty: Conflict mode ``fail``, and there is data. Nothing was changed.
        AuditFailed: Tasks are missing, or there are not as many as expected. Nothing was changed.
        JobClosed: No task committed, so there is nothing to finish; or the job may be alive; or somebody
            aborted it meanwhile.
        JobMismatch: It was adopted before, with other options.
        InvalidOption: The options say how data is to be kept, whose uploads Hadoop began.
        AlreadyCommitted: Hadoop's job commit was successful, so there is nothing to finish or take back
            (`clean_up_hadoop_job` removes what it left); or an abort came after our commit.
        S3CommitError: As from the job's commit or abort; adopt again.

    """
    adoption = _adoption(
        store, destination, job_id, pendingsets_uri, options,
        expect_tasks=expect_tasks, accept_partial=accept_partial, older_than=older_than, force=force,
    )  # fmt: skip
    adoption.context = replace(
        adoption.context, clock=clock or SystemClock(), new_id=new_id, lock_wait=lock_wait
    )
    with naming(adoption.context, "adoption"):
        if commit:
            take_over(adoption)
            return commit_job(adoption.context, progress=progress)
        prepare_abort(adoption)
        return abort_job(adoption.context, force=force, reason=ABORT_REASON)


def _adoption(
    store: ObjectStore,
    destination: str,
    job_id: str | None,
    pendingsets_uri: str | None,
    options: JobOptions | None,
    **asked: Any,
) -> Adoption:
    place = Destination.parse(destination)
    job_id = _chosen_id(job_id, pendingsets_uri)
    options = _chosen_options(options, pendingsets_uri)
    root = Destination.parse(options.staging) if options.staging is not None else None
    return Adoption(JobContext(store, Layout.of(place, job_id, root)), options, pendingsets_uri, **asked)


def _chosen_id(job_id: str | None, pendingsets_uri: str | None) -> str:
    if job_id is not None:
        return job_id
    found = job_id_of(pendingsets_uri) if pendingsets_uri is not None else None
    if found is None:
        raise InvalidRecord(
            "adopt needs the job's UUID: give the … of its directory __magic_job-…, or of …/staging-uploads/"
        )
    return found


def _chosen_options(options: JobOptions | None, pendingsets_uri: str | None) -> JobOptions:
    if options is None:
        options = JobOptions(
            committer="magic" if pendingsets_uri is None else "partitioned", conflict_mode="append"
        )
    if options.staging is not None and pendingsets_uri is None:
        raise InvalidDestination(
            "a job of Hadoop's magic committer is adopted in its own magic directory; leave staging out"
        )
    asked = options.object_options
    if asked.of_data != asked.of_records:
        raise InvalidOption(
            "Hadoop began an adopted job's uploads: storage class, tags, headers and a public ACL come too"
            " late for them; of object_options only encryption and an ACL for owners apply, to its records"
        )
    return msgspec.structs.replace(options, unique_filenames=False)
