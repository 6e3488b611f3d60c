"""Import a job of Hadoop's S3A committers as a job of ours, and seal it.

Each pendingset that counts becomes a committed task of one stage. Uploads that do not count become tasks of a
stage that is not sealed: a commit or an abort of the job aborts them. Everything is read and checked before
anything is written. Our records depend on Hadoop's alone, so a process that resumes after a crash, or runs
beside another one, writes the same bytes. Hadoop's files stay until the job has ended; then the clean-up of
our records removes the magic directory, which contains both. A staging committer's directory belongs to its
cluster and is left alone.

Names of Hadoop's files may repeat, and do not show whose they are. So nothing is published over an object of
another writer, or over a file of the table: that is looked for each time an adoption runs.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator
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
    NoSuchKey,
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
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.pending_uploads import pending_parts
from airflow_s3commit.protocol.metadata.removal import PendingId
from airflow_s3commit.protocol.metadata.sealed_job import committed_task, load_stage_seals
from airflow_s3commit.protocol.model.codec import bytes_digest, encode, text_digest, upload_digest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.entry import Entry
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import partition_of
from airflow_s3commit.protocol.model.ownership import is_ours
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload, TaskExtra
from airflow_s3commit.protocol.model.sealed_job import CommittedTask
from airflow_s3commit.protocol.steps.conflicts import decide
from airflow_s3commit.protocol.steps.files import each_list
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.protocol.steps.lists import FileSummary
from airflow_s3commit.protocol.steps.seal import seal
from airflow_s3commit.protocol.steps.sealed import find_seal, sealed_uploads
from airflow_s3commit.protocol.steps.setup import open_job, recorded
from airflow_s3commit.protocol.steps.stage import seal_stage
from airflow_s3commit.protocol.steps.state import look_up_end
from airflow_s3commit.store.base import Head, ObjectInfo
from airflow_s3commit.store.execute import in_batches, outcomes

logger = logging.getLogger(__name__)

_STAGE = "hadoop"
_LEFTOVERS = "hadoop.leftovers"

#: The stage of all uploads of a job that is adopted to be aborted.
ABORTED = "hadoop.aborted"

_BATCH = 1_000


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

    """

    context: JobContext
    options: JobOptions
    pendingsets_uri: str | None
    expect_tasks: int | None
    force: bool
    accept_partial: bool = False
    older_than: float = 0.0

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

    def set_up(self, options: JobOptions, source: str, own: Container[str]) -> None:
        """Set our job up. Repeatable.

        Args:
            options: Options of our job.
            source: URI of the directory with Hadoop's files, for the job's record.
            own: Keys of the objects that Hadoop has made of the job's uploads.

        """
        record = open_job(self.context, options, {"adopted_from": source}, adopting=own)
        self.context = self.context.as_recorded(record)

    def end(self) -> Entry | None:
        """Return the entry that ended our job; None if it has not ended. Reads the job's record, if any."""
        self.context = recorded(self.context)
        return look_up_end(self.context, self.context.record)


@dataclass
class _CommittedOutput:
    """The output of all committed tasks: digests of keys and uploads, 16 bytes each, and partitions.

    Attributes:
        published: Keys of the objects that Hadoop has made of it.

    """

    keys: set[bytes] = field(default_factory=set)
    uploads: set[bytes] = field(default_factory=set)
    partitions: set[str] = field(default_factory=set)
    published: set[str] = field(default_factory=set)


def is_sealed(adoption: Adoption) -> bool:
    """Return whether an earlier adoption has sealed the job, or committed it.

    Raises:
        JobMismatch: The earlier adoption had other options.
        JobClosed: The job was aborted.

    """
    end, context = adoption.end(), adoption.context
    if end is not None and end.kind == "abandon":
        raise JobClosed(f"{context.name} was aborted; none of its output will become visible")
    if end is not None or find_seal(context) is None:
        return end is not None
    if context.record is not None and context.record.options != adoption.options:
        raise JobMismatch(f"{context.name} was adopted with other options before; adopt it with those")
    return True


def take_over(adoption: Adoption) -> None:
    """Import a Hadoop job as ours and seal it, unless an earlier adoption has done so. Repeatable.

    Raises:
        S3CommitError: As from `check`; or a request failed. If another process has ended the job meanwhile,
            nothing is raised: a commit finishes what that process began.

    """
    if is_sealed(adoption):
        refuse_occupied_again(adoption)
        return
    try:
        files = adoption.files()
        output = check(adoption, files)
        adoption.set_up(adoption.options, files.uri, output.published)
        # Another job may have begun the log meanwhile, and listed what Hadoop has published.
        _refuse_listed(adoption.context, output.keys)
        _import_and_seal(adoption, files, output)
    except S3CommitError as error:
        has_ended = False
        with noting(error, "looking for another process's adoption", "adopt or abort the job again"):
            has_ended = adoption.end() is not None
        if not has_ended:
            raise


def refuse_occupied_again(adoption: Adoption) -> None:
    """Check the keys of a job that an earlier adoption sealed, unless it has ended. Raises as `check`."""
    sealed = find_seal(adoption.context)
    if sealed is not None and adoption.end() is None:
        stages = load_stage_seals(adoption.context, sealed.record)
        _refuse_occupied(adoption.context, sealed_uploads(adoption.context, stages))


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
    uploads = (upload for _, pendingset in committed for upload in pendingset.commits)
    output.published = _refuse_occupied(context, uploads)
    if adoption.options.conflict_mode == "fail":
        _refuse_data(adoption, output)
    return output


def _refuse_data(adoption: Adoption, output: _CommittedOutput) -> None:
    """Refuse conflict mode ``fail`` where there is data, before anything is written."""
    context, options = adoption.context, adoption.options
    table = read_table(context.store, context.layout.destination)
    if table.head.number:
        decide(context, options, output.partitions, table, output.published)
        return
    for info in data_objects(context, None if options.whole_destination else sorted(output.partitions)):
        if info.key not in output.published:
            raise DestinationNotEmpty(
                f"{context.name}: conflict mode is fail and {join_uri(context.bucket, info.key)} exists;"
                " use replace or append"
            )


def published(context: JobContext, uploads: Iterable[PendingUpload]) -> Iterator[tuple[str, bool]]:
    """Yield the keys of uploads that have an object, and whether Hadoop made it of that upload. Reads only.

    An object with an upload's ETag comes from this job only if the upload is gone. If the upload is pending,
    a rerun with the same file names wrote the object.
    """
    for batch in in_batches(uploads, _BATCH):
        calls = [(upload, Head(upload.bucket, upload.destinationKey)) for upload in batch]
        alike = []
        for upload, outcome in outcomes(context.store, calls, NoSuchKey):
            if isinstance(outcome, ObjectInfo) and is_ours(upload, outcome):
                alike.append(PendingId.of(upload))
            elif isinstance(outcome, ObjectInfo):
                yield upload.destinationKey, False
        for pending, parts in pending_parts(context.store, alike, threads=context.threads):
            yield pending.key, parts is None


def _refuse_occupied(context: JobContext, uploads: Iterable[PendingUpload]) -> set[str]:
    """Return the keys of objects that Hadoop has made of uploads; refuse what a completion would overwrite.

    Raises:
        DestinationNotEmpty: An object of another writer, or a file of the table, has one of the keys.
        S3CommitError: A request failed.

    """
    keys, own = set[bytes](), set[str]()

    def noted() -> Iterator[PendingUpload]:
        for upload in uploads:
            keys.add(text_digest(upload.destinationKey))
            yield upload

    for key, is_own in published(context, noted()):
        if not is_own:
            raise _occupied(context, key, "an object of another writer is there")
        own.add(key)
    _refuse_listed(context, keys)
    return own


def _refuse_listed(context: JobContext, keys: Container[bytes]) -> None:
    """Refuse a job if a file of the table, of another job, has one of its keys: it would be listed twice."""
    store, home = context.store, context.layout.destination
    table = read_table(store, home)
    commits = table.commits()
    # The names of all other jobs' files have these jobs' ids.
    others = (
        table.sources[number]
        for number in commits
        if None in table.sources[number].owners and table.sources[number].job_id != context.job_id
    )
    for source, files in each_list(FileSummary, store, home, others):
        names = commits[source.number]
        for file in files:
            if text_digest(file.key) in keys and partition_of(home.relative(file.key) or "") in names:
                job = f"of job {source.job_id}" if source.job_id is not None else "older than its log"
                raise _occupied(context, file.key, f"it is a file of the table, {job}")


def _occupied(context: JobContext, key: str, why: str) -> DestinationNotEmpty:
    home = context.layout.destination.uri
    return DestinationNotEmpty(
        f"{context.name} writes {join_uri(context.bucket, key)}, and {why}: a commit would overwrite it, so"
        " nothing was changed. Move that object elsewhere, or replace its partition by another job, and adopt"
        f" this one again; or give it up with: s3commit adopt {home} {context.job_id} --abort"
    )


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
    seal(context, [(_STAGE, attempt)])
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
