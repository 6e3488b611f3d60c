"""Making a job of Hadoop's S3A committers one of ours.

Each pendingset that counts becomes a committed task of one stage; what does not count is kept where a commit
discards it and an abort aborts it. Everything is read and checked before anything is written. Every record
is made from Hadoop's alone, so a process that goes on after a crash, or works beside another one, writes the
same bytes. Nothing of Hadoop's is removed before the job has ended; then its magic directory goes with our
records, which are in it. A staging committer's directory belongs to its cluster and is left alone.
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
from airflow_s3commit.protocol.lifecycle.seal import seal_job, seal_stage
from airflow_s3commit.protocol.lifecycle.setup import set_up_job
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.cleanup import clean_staging
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.job_record import find_job
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.state import is_spent, read_state
from airflow_s3commit.protocol.model.codec import encode
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.digest import bytes_digest, text_digest, upload_digest
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import partition_of
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload, TaskExtra
from airflow_s3commit.protocol.model.seal import CommittedTask

logger = logging.getLogger(__name__)

_STAGE = "hadoop"
_LEFTOVERS = "hadoop.leftovers"

#: The stage that holds every upload of a job that is adopted to be aborted.
ABORTED = "hadoop.aborted"


@dataclass
class Adoption:
    """One process's adoption of a job.

    Attributes:
        context: Our job, of the same id.
        options: How to commit it.
        pendingsets_uri: The directory of its pendingsets, if not its magic directory.
        expect_tasks: How many tasks it must have to be committed, if that is known.
        force: Pass over what cannot be read, where that loses no committed file, and end what may be alive.
        accept_partial: Commit it although task numbers are missing.
        older_than: Seconds of silence before which it may be alive.
        is_set_up: This process has set our job up, or found it open.

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
        """Find out what became of the job, and refuse to end it where that may not be.

        Raises:
            AlreadyCommitted: It is successful.
            JobClosed: It may be alive; or it is to be finished, and no task committed.
            AuditFailed: It is to be finished, and tasks are missing or too many.
            NoSuchJob: It is to be finished, and Hadoop left nothing.

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
        """List what Hadoop left."""
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
        """Yield files and the uploads they name; raise what is wrong with one, or pass it over."""
        context = self.context
        for file, outcome in read_files(context.store, files, context.job_id, context.layout.destination):
            if not isinstance(outcome, InvalidRecord):
                yield file, outcome
            elif forgiving:
                logger.warning("%s: passed over: %s", context.name, outcome)
            else:
                raise outcome

    def set_up(self, options: JobOptions, source: str) -> bool:
        """Set our job up; False if it is committed already."""
        record = set_up_job(self.context, options, {"adopted_from": source}, adopting=True)
        if record is not None:
            self.context = self.context.as_recorded(record)
            self.is_set_up = True
        if find_manifest(self.context) is None:
            return self.is_set_up
        # Another process has committed the job; if it also cleaned up, what was set up here is a second one.
        current = read_state(self.context)
        if current is None or current.record.state == "open":
            clean_staging(self.context)
        return False

    def is_moved_on(self) -> bool:
        """Tell whether another process has taken the job further; if it ended, tidy up after it.

        Whoever ends a job also removes what this process was reading, and may have done so before this
        process wrote its last record.
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

    def find_conditional(self) -> None:
        """Use conditional writes, or not, as the standing job does."""
        record = find_job(self.context)
        if record is not None:
            self.context = self.context.as_recorded(record)


@dataclass
class _Checked:
    """What the check of all committed pendingsets leaves: some 16 bytes a key."""

    keys: set[bytes] = field(default_factory=set)
    uploads: set[bytes] = field(default_factory=set)
    partitions: set[str] = field(default_factory=set)


def is_beyond(adoption: Adoption) -> bool:
    """Tell whether the job was adopted before and came as far as ``sealed``, or ended.

    Raises:
        JobMismatch: It was adopted with other options.
        JobClosed: It was aborted.

    """
    context = adoption.context
    adoption.find_conditional()
    current = read_state(context)
    if current is not None and current.record.state != "open":
        existing = find_job(context)
        if existing is not None and existing.options != adoption.options:
            raise JobMismatch(f"{context.name} was adopted before, with other options")
        return True
    if current is None and find_manifest(context) is not None:
        return True
    if current is None and is_spent(context):
        raise JobClosed(f"{context.name} was aborted: nothing of it will become visible")
    return False


def take_over(adoption: Adoption) -> None:
    """Bring a Hadoop job to where ours is ``sealed``, unless it is there, or further, already."""
    if is_beyond(adoption):
        return
    try:
        files = adoption.files()
        checked = check(adoption, files)
        if adoption.set_up(adoption.options, files.uri):
            _import_and_seal(adoption, files, checked)
    except S3CommitError as error:
        is_moved_on = False
        with noting(
            error,
            "looking for another process's adoption and undoing this one's",
            "nothing of the job became visible by this; adopt or abort it again",
        ):
            is_moved_on = adoption.is_moved_on()
        if not is_moved_on:
            raise


def refuse_unknown(files: HadoopFiles) -> None:
    """Refuse to adopt a job in whose directory there is something that may be data.

    Raises:
        InvalidRecord: There is.

    """
    if files.unknown:
        raise InvalidRecord(
            f"{files.unknown[0]} is no file of Hadoop's committers: cleaning up would destroy it; move it"
            " elsewhere first"
        )


def check(adoption: Adoption, files: HadoopFiles) -> _Checked:
    """Read everything before anything is written; raise what keeps the job from being finished."""
    context, checked = adoption.context, _Checked()
    refuse_unknown(files)
    adoption.examine(files, commit=True)
    tasks = [file.task for file in files.committed]
    for task, following in pairwise(tasks):
        if task == following:
            raise DuplicateOutput(f"task {task} has two pendingsets in {files.uri}")
    for file, pendingset in adoption.readable(files.committed, forgiving=False):
        for upload in pendingset.commits:
            _check_upload(context, file, upload, checked)
    for _ in adoption.readable(files.others, forgiving=adoption.force):
        pass
    if adoption.options.conflict_mode == "fail":
        whole = adoption.options.whole_destination
        for info in data_objects(context, None if whole else sorted(checked.partitions)):
            raise DestinationNotEmpty(
                f"{context.name}: conflict mode is fail and {join_uri(context.bucket, info.key)} exists;"
                " use replace or append"
            )
    return checked


def _check_upload(context: JobContext, file: HadoopFile, upload: PendingUpload, checked: _Checked) -> None:
    key = upload.destinationKey
    if not upload.etags:
        raise InvalidRecord(f"{file.uri}: the upload of {key} has no parts, so no store can complete it")
    digest = text_digest(key)
    if digest in checked.keys:
        raise DuplicateOutput(
            f"{join_uri(upload.bucket, key)} is written twice, the second time by {file.uri}"
        )
    checked.keys.add(digest)
    checked.uploads.add(upload_digest(key, upload.uploadId))
    checked.partitions.add(partition_of(context.layout.destination.relative(key) or ""))


def _import_and_seal(adoption: Adoption, files: HadoopFiles, checked: _Checked) -> None:
    """Copy what Hadoop wrote into our job; written again, every record is the same bytes."""
    context = adoption.context
    _import_others(adoption, files, checked.uploads)
    tasks = [
        import_file(context, file, pendingset, _STAGE, file.task)
        for file, pendingset in adoption.readable(files.committed, forgiving=False)
    ]
    attempt = _stage_attempt(files.application_attempt)
    seal_stage(context, _STAGE, attempt, tasks)
    seal_job(context, [(_STAGE, attempt)])
    logger.info("%s: adopted %d tasks from %s", context.name, len(tasks), files.uri)


def _import_others(adoption: Adoption, files: HadoopFiles, counted: set[bytes]) -> None:
    """Keep what does not count where a commit discards it and an abort aborts it."""
    for file, pendingset in adoption.readable(files.others, forgiving=adoption.force):
        # A task whose driver died before it could remove its directory has every upload in both places.
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
    """Write down what a file names as a task of ours; written again, it is the same.

    Raises:
        InvalidRecord: It was written before, with other content.

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
    stored = records.create(
        context.store, context.staging_bucket, key, record, conditional=context.conditional
    )
    if stored.record != record:
        raise InvalidRecord(
            f"{file.uri} was changed since it was adopted as {context.staging_uri(key)}: is its job alive?"
        )
    rows = [upload.s3commit.rows if upload.s3commit is not None else None for upload in commits]
    known = [count for count in rows if count is not None]
    return CommittedTask(
        stage=extra.stage,
        stage_attempt=extra.stage_attempt,
        task=extra.task,
        attempt=extra.attempt,
        location=context.staging_uri(key),
        etag=stored.etag,
        files=len(commits),
        bytes=sum(upload.length for upload in commits),
        rows=sum(known) if len(known) == len(rows) else None,
        sha256=stored.sha256,
    )


def _stage_attempt(application_attempt: int) -> str:
    return f"{application_attempt:02d}"
