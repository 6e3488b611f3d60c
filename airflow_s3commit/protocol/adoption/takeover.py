"""Import a job of Hadoop's S3A committers as a job of ours, and seal it.

Each pendingset that counts becomes a committed task of one stage. Uploads that do not count become tasks of a
stage that is not sealed: a commit or an abort of the job aborts them. Everything is read and checked before
anything is written. Our records depend on Hadoop's alone, so a process that resumes after a crash, or runs
beside another one, writes the same bytes. Hadoop's files stay until the job has ended; then the clean-up of
our records removes the magic directory, which contains both. A staging committer's directory belongs to its
cluster and is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from airflow_s3commit._causes import noting
from airflow_s3commit.exceptions import (
    DestinationNotEmpty,
    DuplicateOutput,
    InvalidRecord,
    JobClosed,
    JobMismatch,
    S3CommitError,
)
from airflow_s3commit.protocol.hadoop.files import (
    HadoopFile,
    HadoopFiles,
    directory_files,
    magic_files,
    read_files,
)
from airflow_s3commit.protocol.hadoop.status import HadoopJob, examine, refusal
from airflow_s3commit.protocol.lifecycle.abort import abort_job
from airflow_s3commit.protocol.lifecycle.adopted import refuse_occupied
from airflow_s3commit.protocol.lifecycle.setup import set_up_job
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.removal import clean_staging
from airflow_s3commit.protocol.metadata.sealed_job import committed_task
from airflow_s3commit.protocol.metadata.snapshot import is_retained_at
from airflow_s3commit.protocol.metadata.state import find_job, is_spent, read_state
from airflow_s3commit.protocol.model.codec import bytes_digest, encode, text_digest, upload_digest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import partition_of
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload, TaskExtra
from airflow_s3commit.protocol.model.sealed_job import CommittedTask
from airflow_s3commit.protocol.steps.stage import seal_job, seal_stage

logger = logging.getLogger(__name__)

_STAGE = "hadoop"
_LEFTOVERS = "hadoop.leftovers"

#: The stage of all uploads of a job that is adopted to be aborted.
ABORTED = "hadoop.aborted"


@dataclass
class Adoption:
    """The adoption of a Hadoop job by this process.

    Attributes:
        context: Our job, with the id of the Hadoop job.
        options: Options of our job.
        pendingsets_uri: URI of the directory of its pendingsets; None for its magic directory.
        expect_tasks: Number of committed tasks without which it is not committed; None for any.
        force: Skip unreadable files if that loses no committed file, and end a job that may be alive.
        accept_partial: Commit it although task numbers are missing.
        older_than: Seconds without activity below which it may be alive.
        is_set_up: Whether this process has set our job up, or found it open.

    """

    context: JobContext
    options: JobOptions
    pendingsets_uri: str | None
    expect_tasks: int | None
    force: bool
    accept_partial: bool = False
    older_than: float = 0.0
    is_set_up: bool = False

    def examine(self, files: HadoopFiles, *, commit: bool) -> HadoopJob:
        """Return the facts about the Hadoop job, if it may be adopted. Reads only.

        Args:
            files: The job's files.
            commit: Whether to commit the job; otherwise it is aborted.

        Raises:
            AlreadyCommitted: The job is successful.
            JobClosed: The job may be alive; or no task of it committed, so a commit is pointless.
            AuditFailed: A commit would publish fewer or more tasks than expected.
            NoSuchJob: A commit found no files of the job.
            S3CommitError: A request failed.

        """
        job = examine(self.context.store, self.context.layout.destination, files)
        error = refusal(
            job,
            commit=commit,
            accept_partial=self.accept_partial,
            expect_tasks=self.expect_tasks,
            older_than=self.older_than,
            force=self.force,
        )
        if error is not None:
            raise error
        return job

    def files(self) -> HadoopFiles:
        """Return the files of the Hadoop job, by a listing."""
        context = self.context
        if self.pendingsets_uri is not None:
            directory = Destination.parse(self.pendingsets_uri)
            return directory_files(context.store, directory, context.job_id)
        place, job_id = context.layout.destination, context.job_id
        return magic_files(context.store, place, job_id).get(job_id) or HadoopFiles(
            job_id, context.layout.staging.uri
        )

    def readable(
        self, files: Iterable[HadoopFile], *, forgiving: bool
    ) -> Iterator[tuple[HadoopFile, PendingSet]]:
        """Yield files with their pendingsets.

        Args:
            files: The files to read.
            forgiving: Skip an invalid file with a warning instead of raising its error.

        Raises:
            InvalidRecord: A file is damaged, of another version or job, or has a key outside the destination.
            S3CommitError: A file could not be fetched.

        """
        context = self.context
        for file, outcome in read_files(context.store, files, context.job_id, context.layout.destination):
            if not isinstance(outcome, InvalidRecord):
                yield file, outcome
            elif forgiving:
                logger.warning("%s: skipped a file: %s", context.name, outcome)
            else:
                raise outcome

    def set_up(self, options: JobOptions, source: str) -> bool:
        """Set our job up. Repeatable.

        Args:
            options: Options of our job.
            source: URI of the directory with Hadoop's files, for the job's record.

        Returns:
            Whether the job is set up; False if another process has committed it.

        """
        record = set_up_job(self.context, options, {"adopted_from": source}, adopting=True)
        if record is not None:
            self.context = self.context.as_recorded(record)
            self.is_set_up = True
        if find_manifest(self.context) is None:
            return self.is_set_up
        # Another process has committed the job. If it also cleaned up, this set-up wrote the records anew.
        current = read_state(self.context)
        if current is None or current.record.state == "open":
            clean_staging(self.context)
        return False

    def clean_up_if_superseded(self) -> bool:
        """Return whether another process has taken the job further, and remove our records if it has ended.

        The process that ends a job removes its records, but this process may have written some after that.
        If the job has neither a state nor a manifest, another process aborted it: then this one aborts what
        it has set up, and the result is False.
        """
        current = read_state(self.context)
        if current is not None:
            return current.record.state != "open"
        if find_manifest(self.context) is not None:
            clean_staging(self.context)
            return True
        if self.is_set_up:
            abort_job(self.context)
        return False

    def load_context(self) -> None:
        """Update `context` from the record of an earlier adoption, if there is one."""
        record = find_job(self.context)
        if record is not None:
            self.context = self.context.as_recorded(record)


@dataclass
class _CommittedOutput:
    """The output of all committed tasks: digests of keys and uploads, 16 bytes each, and partitions."""

    keys: set[bytes] = field(default_factory=set)
    uploads: set[bytes] = field(default_factory=set)
    partitions: set[str] = field(default_factory=set)


def is_taken_over(adoption: Adoption) -> bool:
    """Return whether an earlier adoption has sealed the job, begun to end it, or committed it.

    Raises:
        JobMismatch: The earlier adoption had other options.
        JobClosed: The job was aborted.

    """
    context = adoption.context
    adoption.load_context()
    current = read_state(context)
    if current is not None and current.record.state != "open":
        existing = find_job(context)
        if existing is not None and existing.options != adoption.options:
            raise JobMismatch(f"{context.name} was adopted with other options before; adopt it with those")
        return True
    if current is None and find_manifest(context) is not None:
        return True
    if current is None and is_spent(context):
        raise JobClosed(f"{context.name} was aborted; none of its output will become visible")
    return False


def take_over(adoption: Adoption) -> None:
    """Import a Hadoop job as ours and seal it, unless an earlier adoption has done so. Repeatable.

    Raises:
        S3CommitError: As from `check`; or a request failed.

    """
    if is_taken_over(adoption):
        return
    try:
        files = adoption.files()
        output = check(adoption, files)
        if adoption.set_up(adoption.options, files.uri):
            _import_and_seal(adoption, files, output)
    except S3CommitError as error:
        is_superseded = False
        with noting(
            error,
            "looking for another process's adoption, and removing the records of this one,",
            "no output of the job has become visible; adopt or abort it again",
        ):
            is_superseded = adoption.clean_up_if_superseded()
        if not is_superseded:
            raise


def refuse_unknown(files: HadoopFiles) -> None:
    """Raise `InvalidRecord` if a job's directory contains something that may be data."""
    if files.unknown:
        raise InvalidRecord(
            f"{files.unknown[0]} is no file of Hadoop's committers, and a clean-up would delete it: move it"
            " elsewhere first"
        )


def check(adoption: Adoption, files: HadoopFiles) -> _CommittedOutput:
    """Read all files and return the output that counts, if the job can be committed. Changes nothing.

    Raises:
        InvalidRecord: A file is damaged or unknown, or an upload has no parts.
        DuplicateOutput: Two tasks write one key, or one task has two pendingsets.
        DestinationNotEmpty: The conflict mode is ``fail``, and there is data; or one of its keys is taken.
        S3CommitError: As from `Adoption.examine`; or a request failed.

    """
    context, output = adoption.context, _CommittedOutput()
    refuse_unknown(files)
    adoption.examine(files, commit=True)
    tasks = [file.task for file in files.committed]
    for task, following in pairwise(tasks):
        if task == following:
            raise DuplicateOutput(f"task {task} has two pendingsets in {files.uri}")
    for file, pendingset in adoption.readable(files.committed, forgiving=False):
        for upload in pendingset.commits:
            _add_output(context, file, upload, output)
    for _ in adoption.readable(files.others, forgiving=adoption.force):
        pass
    committed = adoption.readable(files.committed, forgiving=False)
    refuse_occupied(context, (upload for _, pendingset in committed for upload in pendingset.commits))
    if adoption.options.conflict_mode == "fail":
        whole = adoption.options.whole_destination
        is_retained = is_retained_at(context.store, context.layout.destination)
        for info in data_objects(context, None if whole else sorted(output.partitions)):
            if is_retained(info.key):
                continue
            raise DestinationNotEmpty(
                f"{context.name}: conflict mode is fail and {join_uri(context.bucket, info.key)} exists;"
                " use replace or append"
            )
    return output


def _add_output(
    context: JobContext, file: HadoopFile, upload: PendingUpload, output: _CommittedOutput
) -> None:
    key = upload.destinationKey
    if not upload.etags:
        raise InvalidRecord(
            f"{file.uri}: the upload of {key} has no parts, so no store can complete it; abort the job"
        )
    digest = text_digest(key)
    if digest in output.keys:
        raise DuplicateOutput(
            f"two uploads write {join_uri(upload.bucket, key)}, the second one in {file.uri}"
        )
    output.keys.add(digest)
    output.uploads.add(upload_digest(key, upload.uploadId))
    output.partitions.add(partition_of(context.layout.destination.relative(key) or ""))


def _import_and_seal(adoption: Adoption, files: HadoopFiles, output: _CommittedOutput) -> None:
    context = adoption.context
    _import_others(adoption, files, output.uploads)
    tasks = [
        import_file(context, file, pendingset, _STAGE, file.task)
        for file, pendingset in adoption.readable(files.committed, forgiving=False)
    ]
    attempt = _stage_attempt(files.application_attempt)
    seal_stage(context, _STAGE, attempt, tasks)
    seal_job(context, [(_STAGE, attempt)])
    logger.info("%s: adopted %d tasks from %s", context.name, len(tasks), files.uri)


def _import_others(adoption: Adoption, files: HadoopFiles, counted: set[bytes]) -> None:
    """Import the uploads that do not count, for the end of the job to abort."""
    for file, pendingset in adoption.readable(files.others, forgiving=adoption.force):
        # A crash between a task's commit and the removal of its directory leaves its uploads in both places.
        commits = [
            upload
            for upload in pendingset.commits
            if upload_digest(upload.destinationKey, upload.uploadId) not in counted
        ]
        if commits:
            others = msgspec.structs.replace(pendingset, commits=commits)
            import_file(adoption.context, file, others, _LEFTOVERS, text_digest(file.key).hex())


def import_file(
    context: JobContext, file: HadoopFile, pendingset: PendingSet, stage: str, task: str
) -> CommittedTask:
    """Write the pendingset of a Hadoop file as one of our job, and return its committed task. Repeatable.

    Args:
        context: Our job.
        file: The Hadoop file.
        pendingset: The uploads to import from it.
        stage: Our stage.
        task: Our task id.

    Raises:
        InvalidRecord: An earlier import of the file wrote other content.

    """
    extra = TaskExtra(
        stage=stage,
        stage_attempt=_stage_attempt(file.application_attempt),
        task=task,
        attempt="0",
        nonce=bytes_digest(encode(pendingset)).hex(),
    )
    commits = [msgspec.structs.replace(upload, jobId=context.job_id) for upload in pendingset.commits]
    record = msgspec.structs.replace(pendingset, jobId=context.job_id, commits=commits, s3commit=extra)
    key = context.layout.pendingset(extra.stage, extra.stage_attempt, extra.task, extra.attempt)
    stored = records.create(context.store, context.staging_bucket, key, record)
    if stored.record != record:
        raise InvalidRecord(
            f"{file.uri} has changed since it was imported as {context.staging_uri(key)}: its job may be"
            " alive; stop it first"
        )
    return committed_task(context, key, extra, stored, commits)


def _stage_attempt(application_attempt: int) -> str:
    return f"{application_attempt:02d}"
