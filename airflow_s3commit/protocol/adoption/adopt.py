"""Find jobs that Hadoop's S3A committers left, and adopt one to commit or abort it.

Adoption copies Hadoop's records into a job of ours with the same id, which is then committed or aborted like
any other. The Hadoop job must be dead, since its driver and tasks ignore our states and locks.

`abort_job` reads the pendingsets of a magic directory itself, since they are in the job's staging. Those of
another directory are copied there first. The preparation of an abort also determines whether the Hadoop job
had begun to publish, and so whether there are objects to delete.
"""

from __future__ import annotations

import logging
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
    NoSuchKey,
    NoSuchUpload,
    Refused,
    S3CommitError,
)
from airflow_s3commit.protocol.adoption.takeover import (
    ABORTED,
    Adoption,
    check,
    import_file,
    is_taken_over,
    refuse_unknown,
    take_over,
)
from airflow_s3commit.protocol.hadoop.files import HadoopFile, HadoopFiles, job_id_of, magic_files, read_files
from airflow_s3commit.protocol.hadoop.status import HadoopJob, classify, examine
from airflow_s3commit.protocol.lifecycle.abort import abort_job
from airflow_s3commit.protocol.lifecycle.commit import commit_job
from airflow_s3commit.protocol.lifecycle.run import Progress
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext, naming, new_uuid
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.removal import PendingId, abort_uploads, clean_staging
from airflow_s3commit.protocol.metadata.state import find_job, is_spent, move, read_state
from airflow_s3commit.protocol.model.codec import text_digest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import BEFORE_COMMIT, AbortReport, JobOptions, JobRecord
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.ownership import is_ours
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

logger = logging.getLogger(__name__)

#: The reason in the record of such an abort.
ABORT_REASON = "adopted from Hadoop to be aborted"

_BATCH = 1_000


def prepare_abort(adoption: Adoption) -> None:
    """Set up a Hadoop job as ours, import its uploads and move it to ``aborting``. Repeatable.

    Does nothing if the job has no files, or an earlier adoption has gone that far.

    Raises:
        InvalidRecord: A file is damaged, or not Hadoop's. Nothing was changed.
        AlreadyCommitted: The Hadoop job is successful. Nothing was changed.
        JobClosed: The Hadoop job may be alive. Nothing was changed.
        S3CommitError: A request failed; prepare it again.

    """
    if is_ending(adoption):
        return
    context = adoption.context
    current = read_state(context)
    files = adoption.files()
    if not files.found and not files.unknown:
        return
    check_abort(adoption, files)
    if not (current is None and is_spent(context)) and not _set_up(adoption, files):
        return
    context = adoption.context
    if adoption.pendingsets_uri is not None:
        for file, pendingset in adoption.readable(files.found, forgiving=adoption.force):
            import_file(context, file, pendingset, ABORTED, text_digest(file.key).hex())
    current = read_state(context)
    if current is None:
        adoption.clean_up_if_superseded()
    elif current.record.state in BEFORE_COMMIT:
        # The result holds until another process changes the state, in which case the move fails.
        begun = _was_publishing(adoption, files)
        move(context, current, "aborting", reason=ABORT_REASON, begun=begun)


def is_ending(adoption: Adoption) -> bool:
    """Return whether our job is past ``sealed``: its commit or abort has begun, or it is committed."""
    adoption.load_context()
    current = read_state(adoption.context)
    if current is None:
        return find_manifest(adoption.context) is not None
    return current.record.state not in BEFORE_COMMIT


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
    aborted = abort_uploads(context, leftover)
    # clean_staging only removes a directory whose job record names it, and Hadoop writes no such record.
    record = JobRecord(
        **context.layout.place,
        options=JobOptions(committer="magic", conflict_mode="append"),
        context={"cleaned_up": files.uri},
        adopted=True,
        created=context.now_ms(),
        nonce=context.new_id(),
    )
    records.create(context.store, context.staging_bucket, context.layout.job, record)
    clean_staging(context)
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


def _set_up(adoption: Adoption, files: HadoopFiles) -> bool:
    """Set our job up, with the options of an earlier adoption or some that accept any existing data."""
    existing = find_job(adoption.context)
    neutral = msgspec.structs.replace(adoption.options, committer="magic", conflict_mode="append")
    return adoption.set_up(existing.options if existing is not None else neutral, files.uri)


def _was_publishing(adoption: Adoption, files: HadoopFiles) -> bool:
    """Return whether Hadoop has completed uploads of this job, so that the abort must delete their objects.

    An object with an upload's ETag comes from this job only if the upload is gone. If the upload is pending,
    a rerun with the same file names wrote the object, and the object must stay.
    """
    context, published = adoption.context, False
    uploads = (
        upload
        for _, pendingset in adoption.readable(files.found, forgiving=adoption.force)
        for upload in pendingset.commits
    )
    for batch in in_batches(uploads, _BATCH):
        calls = [(upload, Head(upload.bucket, upload.destinationKey)) for upload in batch]
        for upload, outcome in outcomes(context.store, calls, NoSuchKey):
            if not (isinstance(outcome, ObjectInfo) and is_ours(upload, outcome)):
                continue
            if _is_pending(context.store, upload):
                logger.warning(
                    "%s: %s has the same content but is another job's; the abort deletes no object",
                    context.name,
                    join_uri(upload.bucket, upload.destinationKey),
                )
                return False
            published = True
    return published


def _is_pending(store: ObjectStore, upload: PendingUpload) -> bool:
    try:
        next(iter(store.list_parts(upload.bucket, upload.destinationKey, upload.uploadId)), None)
    except NoSuchUpload:
        return False
    return True


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
        if commit and not is_taken_over(adoption):
            check(adoption, files)
        elif not commit and job is not None and not is_ending(adoption):
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
) -> ManifestRecord | AbortReport:
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
        DestinationNotEmpty: The conflict mode is ``fail``, and there is data. Nothing was changed.
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
