"""Find jobs that Hadoop's S3A committers left, and adopt one to finish or abort it.

Adoption copies Hadoop's records into a job of ours with the same id, which is then committed or aborted like
any other. The Hadoop job must be dead: its tasks and driver do not know our states and locks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

import msgspec

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import (
    InvalidDestination,
    InvalidOption,
    InvalidRecord,
    Refused,
    S3CommitError,
)
from airflow_s3commit.protocol.adoption.abort import (
    ABORT_REASON,
    check_abort,
    clean_up,
    is_ending,
    prepare_abort,
)
from airflow_s3commit.protocol.adoption.takeover import Adoption, check, is_beyond, take_over
from airflow_s3commit.protocol.hadoop.files import job_id_of, magic_files
from airflow_s3commit.protocol.hadoop.status import HadoopJob, examine
from airflow_s3commit.protocol.lifecycle.abort import abort_job
from airflow_s3commit.protocol.lifecycle.commit import commit_job
from airflow_s3commit.protocol.metadata.context import JobContext, naming, new_uuid
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import AbortReport, JobOptions
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.progress import Progress
from airflow_s3commit.store.base import ObjectStore


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Result of a dry run of an adoption.

    Attributes:
        job: What Hadoop left; None if nothing.
        refusal: The error that the adoption would raise before any change; None if it would proceed.

    """

    job: HadoopJob | None
    refusal: S3CommitError | None


class AdoptionRequest(TypedDict, total=False):
    """Which job to adopt and how: keyword arguments of `adopt` and `rehearse_adoption`, all optional.

    Attributes:
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

    """

    job_id: str | None
    pendingsets_uri: str | None
    options: JobOptions | None
    expect_tasks: int | None
    accept_partial: bool
    older_than: float
    force: bool


def find_hadoop_jobs(store: ObjectStore, destination: str | Destination) -> list[HadoopJob]:
    """Return the jobs that Hadoop's magic committer left at a destination, oldest first; changes nothing.

    Jobs of the staging committers leave their files on their cluster and cannot be found here.
    """
    place = Destination.of(destination)
    found = magic_files(store, place).values()
    return sorted((examine(store, place, files) for files in found), key=lambda job: job.modified)


def rehearse_adoption(
    store: ObjectStore,
    destination: str | Destination,
    *,
    commit: bool = True,
    **request: Unpack[AdoptionRequest],
) -> Rehearsal:
    """Run the checks of `adopt` with the same arguments. Reads only.

    Raises:
        S3CommitError: A request failed.

    """
    adoption = _adoption(store, destination, request)
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


def clean_up_hadoop_job(store: ObjectStore, destination: str | Destination, job_id: str) -> int:
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
    return clean_up(JobContext(store, Layout.of(Destination.of(destination), job_id)))


def adopt(
    store: ObjectStore,
    destination: str | Destination,
    *,
    commit: bool = True,
    progress: Callable[[Progress], None] | None = None,
    clock: Clock | None = None,
    new_id: Callable[[], str] = new_uuid,
    lock_wait: float = 600.0,
    **request: Unpack[AdoptionRequest],
) -> ManifestRecord | AbortReport:
    """Finish or abort a job that Hadoop's S3A committers left. Repeatable: resumes an interrupted adoption.

    Before: the Hadoop job is dead. After a commit: every upload of every committed task is completed, every
        other
    one is aborted, and the manifest exists. After an abort: none of its uploads is pending, and objects that
    Hadoop had published are deleted if they are provably this job's. This includes a job whose driver died
    in its job commit.

    Reads and checks everything before it changes anything.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory.
        commit: Finish the job; False aborts it.
        progress: Called after each completed upload.
        clock: Source of time.
        new_id: Source of ids.
        lock_wait: Seconds that the commit waits for the lock of another live job.
        **request: Which job, and how: see `AdoptionRequest`.

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
    adoption = _adoption(store, destination, request)
    adoption.context = replace(
        adoption.context, clock=clock or SystemClock(), new_id=new_id, lock_wait=lock_wait
    )
    with naming(adoption.context, "adoption"):
        if commit:
            take_over(adoption)
            return commit_job(adoption.context, progress=progress)
        prepare_abort(adoption)
        return abort_job(adoption.context, force=adoption.force, reason=ABORT_REASON)


def _adoption(store: ObjectStore, destination: str | Destination, request: AdoptionRequest) -> Adoption:
    place, pendingsets_uri = Destination.of(destination), request.get("pendingsets_uri")
    job_id = _chosen_id(request.get("job_id"), pendingsets_uri)
    options = _chosen_options(request.get("options"), pendingsets_uri)
    root = Destination.parse(options.staging) if options.staging is not None else None
    return Adoption(
        JobContext(store, Layout.of(place, job_id, root)),
        options,
        pendingsets_uri,
        expect_tasks=request.get("expect_tasks"),
        force=request.get("force", False),
        accept_partial=request.get("accept_partial", False),
        older_than=request.get("older_than", 0.0),
    )


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
