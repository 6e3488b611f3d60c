"""Find jobs that Hadoop's S3A committers left, and adopt one to commit or abort it.

Adoption copies Hadoop's records into a job of ours with the same id, which is then committed or aborted like
any other. The Hadoop job must be dead, since its driver and tasks ignore our records.

An abort reads the pendingsets of a magic directory itself, since they are in the job's staging. Those of
another directory are copied there first. It also deletes the objects that Hadoop has published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

import msgspec

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import (
    InvalidDestination,
    InvalidOption,
    InvalidRecord,
    JobClosed,
    Refused,
    S3CommitError,
)
from airflow_s3commit.protocol.adoption.takeover import (
    ABORTED,
    Adoption,
    check,
    import_file,
    is_sealed,
    published,
    refuse_occupied_again,
    refuse_unknown,
    take_over,
)
from airflow_s3commit.protocol.hadoop.files import HadoopFile, HadoopFiles, job_id_of, magic_files, read_files
from airflow_s3commit.protocol.hadoop.status import HadoopJob, classify, examine
from airflow_s3commit.protocol.metadata.context import JobContext, naming, new_uuid
from airflow_s3commit.protocol.metadata.removal import PendingId, abort_uploads, delete_records
from airflow_s3commit.protocol.model.codec import text_digest
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import AbortReport, JobOptions, JobRecord
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.steps.abort import abort
from airflow_s3commit.protocol.steps.commit import commit as commit_job
from airflow_s3commit.protocol.steps.progress import Progress
from airflow_s3commit.store.base import ObjectStore

#: The reason in the log of such an abort.
ABORT_REASON = "adopted from Hadoop to be aborted"


def prepare_abort(adoption: Adoption) -> bool:
    """Set up a Hadoop job as ours, and import its uploads. Repeatable.

    Returns:
        Whether there is something to abort.

    Raises:
        InvalidRecord: A file is damaged, or not Hadoop's. Nothing was changed.
        AlreadyCommitted: The Hadoop job is successful. Nothing was changed.
        JobClosed: The Hadoop job may be alive. Nothing was changed.
        S3CommitError: A request failed; prepare it again.

    """
    if adoption.end() is not None:
        return True
    existing, files = adoption.context.record, adoption.files()
    if not files.found and not files.unknown:
        return existing is not None
    check_abort(adoption, files)
    uploads = (
        upload
        for _, pendingset in adoption.readable(files.found, forgiving=adoption.force)
        for upload in pendingset.commits
    )
    own = {key for key, is_own in published(adoption.context, uploads) if is_own}
    neutral = msgspec.structs.replace(adoption.options, committer="magic", conflict_mode="append")
    adoption.set_up(existing.options if existing is not None else neutral, files.uri, own)
    if adoption.pendingsets_uri is not None:
        for file, pendingset in adoption.readable(files.found, forgiving=adoption.force):
            import_file(adoption.context, file, pendingset, ABORTED, text_digest(file.key).hex())
    return True


def clean_up(context: JobContext) -> int:
    """Remove the magic directory of a successful Hadoop job, and abort its leftover uploads. Repeatable.

    Leftover uploads are those of files that do not count, except for those that a file that counts lists too.
    No object outside the magic directory is deleted.

    Returns:
        The number of aborted uploads.

    Raises:
        JobClosed: The job is not successful. Nothing was changed.
        InvalidRecord: A file is damaged, or not Hadoop's. Nothing was changed.
        S3CommitError: Something could not be removed; clean up again.

    """
    destination, job_id = context.layout.destination, context.job_id
    files = magic_files(context.store, destination, job_id).get(job_id)
    if files is None:
        return 0
    verdict = classify(examine(context.store, destination, files))
    if verdict.status != "successful":
        raise JobClosed(
            f"Hadoop job {job_id} is {verdict.status}: {verdict.reason}. Adopt it instead: s3commit adopt …"
        )
    refuse_unknown(files)
    counted = {PendingId.of(upload) for upload in _uploads(context, files.committed)}
    leftover = {PendingId.of(upload) for upload in _uploads(context, files.others)} - counted
    # Its names do not show whose its uploads are, as those of an adopted job; nothing else adopts it.
    options = JobOptions(committer="magic", conflict_mode="append")
    record = JobRecord(
        **context.layout.place,
        options=options,
        adopted=True,
        created=context.now_ms(),
        nonce=context.new_id(),
    )
    aborted = abort_uploads(replace(context, record=record), leftover)
    listed = context.store.list_objects(context.staging_bucket, context.layout.staging.prefix)
    delete_records(context, (info.key for info in listed))
    return aborted


def _uploads(context: JobContext, files: Iterable[HadoopFile]) -> Iterator[PendingUpload]:
    for _, outcome in read_files(context.store, files, context.job_id, context.layout.destination):
        if isinstance(outcome, InvalidRecord):
            raise outcome
        yield from outcome.commits


def check_abort(adoption: Adoption, files: HadoopFiles) -> None:
    """Read all files, and raise if the job must not be aborted. Changes nothing."""
    refuse_unknown(files)
    adoption.examine(files, commit=False)
    for _ in adoption.readable(files.found, forgiving=adoption.force):
        pass


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Result of a dry run of an adoption.

    Attributes:
        job: Facts about the Hadoop job; None if it has no files.
        refusal: The error that the adoption would raise before any change; None if it would proceed.

    """

    job: HadoopJob | None
    refusal: S3CommitError | None


class AdoptionRequest(TypedDict, total=False):
    """Which job to adopt and how: keyword arguments of `adopt` and `rehearse_adoption`, all optional.

    Attributes:
        job_id: UUID of the Hadoop job, as in ``__magic_job-<UUID>``. It may be omitted if it is in
            ``pendingsets_uri``.
        pendingsets_uri: URI of a directory of pendingsets on S3: a staging committer's
            ``…/<UUID>/staging-uploads/_temporary/0/``, or a copy of one. The default is the job's magic
            directory.
        options: Options of the commit. The default is conflict mode ``append``, which keeps existing data.
        expect_tasks: Number of the job's tasks: a commit of more or fewer is refused.
        accept_partial: Commit although task numbers below the greatest have no pendingset. With the magic
            committer these tasks did not commit, as it writes one even for a task without output. With the
            staging committers they may have had no output.
        older_than: Seconds without activity below which the job is refused, because it may be alive. The
            default 0 refuses none: the caller knows that the job is dead.
        force: End a job that may be alive, and skip unreadable files that do not count; with
            ``commit=False`` skip any unreadable file. The uploads that only these files list stay pending
            until a sweep.

    """

    job_id: str | None
    pendingsets_uri: str | None
    options: JobOptions | None
    expect_tasks: int | None
    accept_partial: bool
    older_than: float
    force: bool


def find_hadoop_jobs(store: ObjectStore, destination: str | Destination) -> list[HadoopJob]:
    """Return the jobs that Hadoop's magic committer left at a destination, oldest first. Reads only.

    Jobs of the staging committers have their files on their cluster, and are not found.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.

    Raises:
        S3CommitError: A request failed.

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

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        commit: Check for a commit; False checks for an abort.
        **request: The job and the options of its adoption: see `AdoptionRequest`.

    Raises:
        InvalidRecord: The job id is missing or invalid.
        InvalidDestination: The staging of the options is for another committer.
        InvalidOption: The object options come too late for the job.
        S3CommitError: A request failed.

    """
    adoption = _adoption(store, destination, request)
    files = adoption.files()
    job = examine(store, adoption.context.layout.destination, files) if files.found or files.unknown else None
    try:
        if commit and is_sealed(adoption):
            refuse_occupied_again(adoption)
        elif commit:
            check(adoption, files)
        elif job is not None and adoption.end() is None:
            check_abort(adoption, files)
    except Refused as error:
        return Rehearsal(job, error)
    return Rehearsal(job, None)


def clean_up_hadoop_job(store: ObjectStore, destination: str | Destination, job_id: str) -> int:
    """Remove the magic directory of a successful Hadoop job, and abort its leftover uploads. Repeatable.

    The objects that the job published stay.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        job_id: UUID of the Hadoop job.

    Returns:
        The number of aborted uploads; 0 if the job has no directory.

    Raises:
        JobClosed: The job is not successful. Nothing was changed.
        InvalidRecord: A file in its directory may be data, or cannot be read. Nothing was changed.
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
    **request: Unpack[AdoptionRequest],
) -> Manifest | AbortReport:
    """Commit or abort a job that Hadoop's S3A committers left. Repeatable: resumes an interrupted adoption.

    The Hadoop job must be dead; its driver may have died in the middle of its job commit. Everything is read
    and checked before anything is changed. A commit completes every upload of the committed tasks, aborts
    all other uploads of the job, and writes the manifest. An abort aborts all uploads of the job, and deletes
    the objects that Hadoop published if they are provably from this job.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        commit: Commit the job; False aborts it.
        progress: Called after each completed upload.
        clock: Source of time for records and waits.
        new_id: Source of nonces for records.
        **request: The job and the options of its adoption: see `AdoptionRequest`.

    Returns:
        The manifest of a commit, or the report of an abort.

    Raises:
        NoSuchJob: A commit found no files of the job. An abort reports that it found nothing.
        InvalidRecord: A file is damaged, of another version or job, or names a key outside the destination;
            or the job id is missing or invalid. Nothing was changed.
        DuplicateOutput: Two tasks write one key, or one task has two pendingsets. Nothing was changed.
        DestinationNotEmpty: The conflict mode is ``fail``, and there is data; or an object of another writer,
            or a file of the table, has the key of one of its files. Nothing was changed.
        DestinationChanged: A job has replaced files in its partitions since it was adopted.
        AuditFailed: Tasks are missing, or their number is not the expected one. Nothing was changed.
        JobClosed: No task committed, so there is nothing to commit; or the job may be alive; or another
            process aborted it.
        JobMismatch: The job was adopted with other options before.
        InvalidDestination: The options have a staging, and the job is in its magic directory.
        InvalidOption: The object options come too late: Hadoop has begun the uploads.
        AlreadyCommitted: The Hadoop job is successful, so there is nothing to commit or abort
            (`clean_up_hadoop_job` removes its leftovers); or the job to abort has been adopted and committed.
        S3CommitError: As from the commit or abort of our job; adopt it again.

    """
    adoption = _adoption(store, destination, request)
    adoption.context = replace(adoption.context, clock=clock or SystemClock(), new_id=new_id)
    with naming(adoption.context, "adoption"):
        if commit:
            take_over(adoption)
            return Manifest.of(commit_job(adoption.context, progress=progress))
        if not prepare_abort(adoption):
            return AbortReport(uploads=0, objects=0)
        return abort(adoption.context, ABORT_REASON)


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
            "adopt needs the job's UUID: the … of its directory __magic_job-… or …/staging-uploads/"
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
    objects = options.object_options
    if objects.of_data != objects.of_records:
        raise InvalidOption(
            "Hadoop began the uploads of an adopted job: storage class, tags, headers and a public ACL come"
            " too late for them; of object_options set only encryption and an ACL for owners, for its records"
        )
    return options
