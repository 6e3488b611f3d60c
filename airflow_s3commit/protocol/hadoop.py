"""Jobs that Hadoop's S3A committers left behind: finding them, and adopting one to finish or abort it.

Adoption copies what Hadoop wrote into a job of ours with the same id; from there it is committed or aborted
as any other, with its lock, its states and its way back. The Hadoop job must be dead: its tasks and driver
know nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from airflow_s3commit.clock import Clock, SystemClock
from airflow_s3commit.exceptions import InvalidDestination, InvalidOption, InvalidRecord
from airflow_s3commit.protocol.abort import abort_job
from airflow_s3commit.protocol.context import JobContext, naming, new_uuid
from airflow_s3commit.protocol.destination import Destination
from airflow_s3commit.protocol.hadoop_abort import ABORT_REASON, prepare_abort
from airflow_s3commit.protocol.hadoop_adoption import Adoption, take_over
from airflow_s3commit.protocol.hadoop_files import (
    HadoopFiles,
    job_id_of,
    magic_files,
    read_files,
    upload_digest,
)
from airflow_s3commit.protocol.layout import Layout
from airflow_s3commit.protocol.publish import Progress, commit_job
from airflow_s3commit.protocol.records import AbortReport, JobOptions, ManifestRecord
from airflow_s3commit.store.base import ObjectStore

__all__ = ["HadoopJob", "adopt", "find_hadoop_jobs"]


@dataclass(frozen=True, slots=True)
class HadoopJob:
    """What one job of Hadoop's committers left, for people to decide about.

    Attributes:
        job_id: Its UUID.
        prefix: URI of the directory its files are in.
        application_attempt: The run of the application whose tasks count: the last that committed any.
        pendingsets: Tasks that committed, in that run.
        uploads: Pending uploads that those tasks name; what a commit would complete.
        bytes: Their bytes.
        others: Uploads named by files that do not count; a commit would abort them.
        gaps: Task numbers below the greatest one without a pendingset: the job had not finished.
        modified: When its last file was written, in seconds by the store's clock.
        damaged: What is wrong with files that cannot be read, or are none of Hadoop's.

    """

    job_id: str
    prefix: str
    application_attempt: int
    pendingsets: int
    uploads: int
    bytes: int
    others: int
    gaps: int
    modified: float
    damaged: tuple[str, ...] = ()


def find_hadoop_jobs(store: ObjectStore, destination: str) -> list[HadoopJob]:
    """Return the jobs that Hadoop's magic committer left at a destination, oldest first; changes nothing.

    Jobs of the staging committers leave their files on their cluster and cannot be found here.
    """
    place = Destination.parse(destination)
    found = magic_files(store, place).values()
    return sorted((_described(store, place, files) for files in found), key=lambda job: job.modified)


def adopt(
    store: ObjectStore,
    destination: str,
    *,
    commit: bool = True,
    job_id: str | None = None,
    pendingsets_uri: str | None = None,
    options: JobOptions | None = None,
    expect_tasks: int | None = None,
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
        force: Pass over files that do not count and cannot be read, and with ``commit=False`` over any file
            that cannot be read: the uploads that only they name stay pending until a sweep. With
            ``commit=False`` it also gives up old data that cannot be put back.
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
        AuditFailed: There are not as many tasks as expected. Nothing was changed.
        JobClosed: No task committed, so there is nothing to finish; or somebody aborted the job meanwhile.
        JobMismatch: It was adopted before, with other options.
        InvalidOption: The options say how data is to be kept, whose uploads Hadoop began.
        AlreadyCommitted: An abort came after the commit.
        S3CommitError: As from the job's commit or abort; adopt again.

    """
    place = Destination.parse(destination)
    job_id = _chosen_id(job_id, pendingsets_uri)
    options = _chosen_options(options, pendingsets_uri)
    root = Destination.parse(options.staging) if options.staging is not None else None
    layout = Layout.of(place, job_id, root)
    context = JobContext(store, layout, clock=clock or SystemClock(), new_id=new_id, lock_wait=lock_wait)
    adoption = Adoption(context, options, pendingsets_uri, expect_tasks, force=force)
    with naming(context, "adoption"):
        if commit:
            take_over(adoption)
            return commit_job(adoption.context, progress=progress)
        prepare_abort(adoption)
        return abort_job(adoption.context, force=force, reason=ABORT_REASON)


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


def _described(store: ObjectStore, place: Destination, files: HadoopFiles) -> HadoopJob:
    uploads = size = others = 0
    damaged = [f"{uri} is no file of Hadoop's committers" for uri in files.unknown]
    counted: set[bytes] = set()
    for _, outcome in read_files(store, files.committed, files.job_id, place):
        if isinstance(outcome, InvalidRecord):
            damaged.append(str(outcome))
            continue
        uploads += len(outcome.commits)
        size += sum(upload.length for upload in outcome.commits)
        counted.update(map(upload_digest, outcome.commits))
    for _, outcome in read_files(store, files.others, files.job_id, place):
        if isinstance(outcome, InvalidRecord):
            damaged.append(str(outcome))
        else:
            others += sum(upload_digest(upload) not in counted for upload in outcome.commits)
    return HadoopJob(
        job_id=files.job_id,
        prefix=files.uri,
        application_attempt=files.application_attempt,
        pendingsets=len(files.committed),
        uploads=uploads,
        bytes=size,
        others=others,
        gaps=files.gaps,
        modified=files.modified,
        damaged=tuple(damaged),
    )
