"""Adopt a job of Hadoop's S3A committers: it becomes a job of ours, committed or aborted like any other.

The Hadoop job must be dead, since its driver and tasks ignore our records. Each pendingset that counts
becomes a committed task of one stage. All is read and checked before anything is written. Our records depend
on Hadoop's files alone, so a process that resumes after a crash or runs beside another writes the same bytes.

The end of our job aborts the uploads that do not count. In a magic directory, which is our job's staging too,
Hadoop's own files name them; files of another directory are copied into a stage that is not sealed. The end
also removes the magic directory. A staging committer's directory belongs to its cluster and stays.

Names of Hadoop's files may repeat, and do not show which job wrote them. So nothing is published over an
object of another writer, or over a file of the table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace

import msgspec

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    AuditFailed,
    DestinationNotEmpty,
    InvalidDestination,
    InvalidOption,
    InvalidRecord,
    JobClosed,
    JobMismatch,
    NoSuchJob,
    Refused,
    S3CommitError,
)
from airflow_s3commit.protocol.hadoop.jobs import HadoopFile, HadoopJob, Survey, classify, fates
from airflow_s3commit.protocol.metadata.context import JobContext, create_record, naming, new_uuid, recorded
from airflow_s3commit.protocol.metadata.pending_uploads import Progress
from airflow_s3commit.protocol.metadata.removal import PendingId, abort_uploads, delete_records
from airflow_s3commit.protocol.metadata.sealed_job import committed_task, find_seal
from airflow_s3commit.protocol.model.codec import bytes_digest, encode, text_digest, upload_digest
from airflow_s3commit.protocol.model.delta import UNKNOWN_COLUMNS
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import AbortReport, JobOptions, JobRecord
from airflow_s3commit.protocol.model.layout import Layout, partition_of
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload, TaskExtra
from airflow_s3commit.protocol.model.sealed_job import CommittedTask
from airflow_s3commit.protocol.model.table import Entry
from airflow_s3commit.protocol.steps.abort import abort
from airflow_s3commit.protocol.steps.append import decide
from airflow_s3commit.protocol.steps.commit import commit
from airflow_s3commit.protocol.steps.files import FileSummary, each_list
from airflow_s3commit.protocol.steps.fold import newest_entry, read_table
from airflow_s3commit.protocol.steps.log import look_up_end
from airflow_s3commit.protocol.steps.seal import seal, seal_stage
from airflow_s3commit.protocol.steps.setup import open_job, refuse_ended
from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)

#: The stage of the tasks that count, and the stage of copied files that do not count.
_STAGE, _LEFTOVERS = "hadoop", "hadoop.leftovers"

_NEUTRAL = JobOptions(committer="magic", conflict_mode="append")


@dataclass
class Adoption:
    """The adoption of a Hadoop job. `commit` and `abort` end it, and may be repeated.

    One instance takes one of these steps: it reads Hadoop's files once.

    Attributes:
        job_id: UUID of the Hadoop job, as in ``__magic_job-<UUID>``.
        pendingsets_uri: URI of an S3 directory of pendingsets: a staging committer's
            ``…/<UUID>/staging-uploads/_temporary/0/``, or a copy. By default the job's magic directory.
        options: Options of the commit; by default in conflict mode ``append``.
        expect_tasks: Number of the job's tasks: a commit of more or fewer is refused.
        accept_partial: Commit although task numbers below the greatest lack a pendingset: with the magic
            committer these tasks did not commit, with the staging committers they may have had no output.
        older_than: Refuse a job idle for fewer seconds: it may be alive. The default trusts the caller.
        force: End a job that may be alive, and skip unreadable files: in a commit those that do not count, in
            an abort any. The uploads that only these files list stay pending until a sweep.

    Raises:
        InvalidRecord: The job id is invalid.
        InvalidDestination: A URI is invalid; or a job in its magic directory has options with a staging.
        InvalidOption: The object options come too late: Hadoop has begun the uploads.
    """

    store: ObjectStore
    destination: str | Destination
    job_id: str
    _: KW_ONLY
    pendingsets_uri: str | None = None
    options: JobOptions = _NEUTRAL
    expect_tasks: int | None = None
    accept_partial: bool = False
    older_than: float = 0.0
    force: bool = False
    clock: Clock = field(default_factory=SystemClock)
    new_id: Callable[[], str] = new_uuid
    _context: JobContext = field(init=False)
    _surveyed: Survey | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Check the options."""
        staging, objects = self.options.staging, self.options.object_options
        if staging is not None and self.pendingsets_uri is None:
            raise InvalidDestination(
                "a job of Hadoop's magic committer is adopted in its own; leave staging out"
            )
        if objects.of_data != objects.of_records:
            raise InvalidOption(
                "Hadoop began the uploads of an adopted job: of object_options set only encryption and,"
                " for its records, an ACL for owners"
            )
        root = Destination.parse(staging) if staging is not None else None
        layout = Layout.of(Destination.of(self.destination), self.job_id, root)
        self._context = JobContext(self.store, layout, clock=self.clock, new_id=self.new_id)

    @property
    def job(self) -> HadoopJob | None:
        """The facts about the Hadoop job; None if it has no files."""
        job = self._survey.job
        return job if job.files else None

    def refusal(self, *, commit: bool) -> S3CommitError | None:
        """Return the error that `commit` or `abort` would raise before any change. Reads only."""
        try:
            self._check(commit=commit)
        except Refused as error:
            return error
        return None

    def commit(self, *, progress: Callable[[Progress], object] | None = None) -> Manifest:
        """Complete every upload of the committed tasks, and abort all other uploads of the job.

        Raises:
            NoSuchJob: There are no files of the job.
            InvalidRecord: A file is damaged, of another version or job, or has a key outside the destination.
            DuplicateOutput: Two tasks write one key, or one task has two pendingsets.
            DestinationNotEmpty: The conflict mode is ``fail``, and there is data; or an object of another
                writer, or a file of the table, has the key of one of the job's files.
            AuditFailed: Tasks are missing, or their number is not the expected one.
            JobClosed: No task committed; or the job may be alive; or it was aborted.
            InvalidOption: The table is published, or would be; Hadoop records no columns.
            JobMismatch: The job was adopted with other options before, or to be aborted; or is one of ours.
            AlreadyCommitted: The Hadoop job is successful: a sweep removes its leftovers.
            S3CommitError: As from the commit of our job. All of those above come before any change.
        """
        with self._preparing(commit=True):
            if self._check(commit=True) is None:
                self._take_over()
        return Manifest.of(commit(self._context, progress=progress))

    def abort(self) -> AbortReport:
        """Abort all uploads of the job, and delete the objects that Hadoop has provably made of them.

        Raises:
            InvalidRecord: A file is damaged, or not Hadoop's. Nothing was changed.
            NoSuchJob: There are no files of the job.
            AlreadyCommitted: The Hadoop job is successful, or it was adopted and committed.
            JobClosed: The job may be alive. Nothing was changed.
            JobMismatch: The job is one of ours.
            S3CommitError: As from the abort of our job.
        """
        with self._preparing(commit=False):
            end, record = self._check(commit=False), self._context.record
            if end is None and (survey := self._survey).job.files:
                if record is None:
                    # Without the options that could refuse it: an abort must not fail because of data.
                    options = msgspec.structs.replace(
                        _NEUTRAL, staging=self.options.staging, object_options=self.options.object_options
                    )
                    self._set_up(options, survey.own | survey.others_own)
                self._copy(survey.found)
            elif record is None and end is None:
                # It has no files, and this says so.
                _refuse_commit(survey.job, accept_partial=True, expect_tasks=None)
        return abort(self._context, "adopted from Hadoop to be aborted")

    def clean_up(self) -> int:
        """Remove a successful job's magic directory, and abort its leftover uploads; return how many.

        For a sweep. What the job published stays, and so does everything else outside the magic directory.
        Raises `JobClosed` if the job is not successful, and `InvalidRecord` if a file in its directory may be
        data or cannot be read; nothing is changed then.
        """
        context, survey, job = self._context, self._survey, self.job
        if job is None:
            return 0
        verdict = classify(job)
        if verdict.status != "successful":
            told = f"Hadoop job {job.job_id} is {verdict.status}: {verdict.reason}"
            raise JobClosed(f"{told}. Adopt it instead: s3commit adopt …")
        self._refuse_damage(survey.unreadable)
        leftover = {
            PendingId.of(upload)
            for _, pendingset in self._read(survey.others)
            for upload in pendingset.commits
            if upload_digest(upload.destinationKey, upload.uploadId) not in survey.counted
        }
        # Treated as an adopted job's: the names of Hadoop's files do not show whose the uploads are.
        record = JobRecord(**context.layout.place, options=_NEUTRAL, adopted=True, created=0, nonce="-")
        aborted = abort_uploads(replace(context, record=record), leftover)
        listed = context.store.list_objects(context.staging_bucket, context.layout.staging.prefix)
        delete_records(context, (info.key for info in listed))
        return aborted

    @contextmanager
    def _preparing(self, *, commit: bool) -> Iterator[None]:
        """Ignore an error if another process has ended the job as wanted, and so removed files read here."""
        with naming(self._context, "adoption"):
            try:
                yield
            except S3CommitError:
                end = self._end()
                if end is None or (end.kind == "commit") != commit:
                    refuse_ended(self._context, end)
                    raise

    @property
    def _survey(self) -> Survey:
        """What Hadoop's files say. They are read at the first use."""
        if self._surveyed is None:
            home = self._context.layout.destination
            self._surveyed = Survey(self.store, home, self._context.job_id, self.pendingsets_uri)
        return self._surveyed

    def _end(self) -> Entry | None:
        """Return the entry that ended our job; None if it has not ended. Reads the job's record, if any."""
        self._context = recorded(self._context)
        return look_up_end(self._context, self._context.record)

    def _check(self, *, commit: bool) -> Entry | None:
        """Raise if the job must not be ended this way; return the entry that already ended it so, if any."""
        end, context = self._end(), self._context
        if end is not None and (end.kind == "commit") != commit:
            refuse_ended(context, end)
        if context.record is not None and not context.record.adopted:
            raise JobMismatch(f"{context.name} is no job of Hadoop's: end it with s3commit commit or abort")
        if end is not None or not ((survey := self._survey).job.files or commit):
            return end
        # Once our job is sealed, our own commit may have published uploads: do not go by Hadoop's status.
        if find_seal(context) is None:
            refuse_end(survey.job, adopts=True, older_than=self.older_than, force=self.force)
        if context.record is not None and commit and context.record.options != self.options:
            known = context.record.options
            raise JobMismatch(f"{context.name} was adopted with {known}: adopt it with these, or abort it")
        damage = [] if self.force else survey.unreadable
        if not commit:
            self._refuse_damage(damage)
            return None
        _refuse_commit(survey.job, accept_partial=self.accept_partial, expect_tasks=self.expect_tasks)
        newest = newest_entry(context.store, context.layout.destination)
        if self.options.publish or (newest is not None and newest.entry.published):
            raise InvalidOption(f"{context.name} is Hadoop's, which records no columns: {UNKNOWN_COLUMNS}")
        self._refuse_damage([*survey.flaws, *damage])
        files = self._read(survey.committed)
        self._refuse_occupied((upload for _, one in files for upload in one.commits), survey.listed)
        if self.options.conflict_mode == "fail":
            table = read_table(context.store, context.layout.destination)
            decide(context, self.options, survey.partitions, table, survey.own)
        return None

    def _refuse_damage(self, errors: Iterable[S3CommitError]) -> None:
        if unknown := self._survey.unknown:
            raise InvalidRecord(f"{unknown[0]} is no file of Hadoop's committers: move it elsewhere first")
        for error in errors:
            raise error

    def _refuse_occupied(self, uploads: Iterable[PendingUpload], listed: Container[bytes]) -> None:
        """Refuse uploads with the key of another writer's object, or of a file of the table."""
        for upload, fate, is_there in fates(self._context.store, uploads, listed):
            if is_there and fate != "published":
                raise self._occupied(upload.destinationKey, "an object of another writer is there")
        self._refuse_listed(self._survey.keys)

    def _refuse_listed(self, keys: Container[bytes]) -> None:
        """Refuse keys of table files that other jobs committed: the table would list them twice."""
        store, home = self._context.store, self._context.layout.destination
        table = read_table(store, home)
        commits = table.commits()
        # Files of other jobs that were not adopted have these jobs' ids in their names, and cannot collide.
        others = (
            table.sources[number]
            for number in commits
            if None in table.sources[number].owners and table.sources[number].job_id != self._context.job_id
        )
        for source, files in each_list(FileSummary, store, home, others):
            names = commits[source.number]
            for file in files:
                if text_digest(file.key) in keys and partition_of(home.relative(file.key) or "") in names:
                    job = f"of job {source.job_id}" if source.job_id is not None else "older than its log"
                    raise self._occupied(file.key, f"it is a file of the table, {job}")

    def _occupied(self, key: str, why: str) -> DestinationNotEmpty:
        return DestinationNotEmpty(
            f"{self._context.name} writes {join_uri(self._context.bucket, key)}, and {why}, so nothing was"
            " published. Move that object elsewhere, or replace its partition by another job, and adopt this"
            " one again; or give it up with: s3commit adopt … --abort"
        )

    def _take_over(self) -> None:
        """Set our job up, copy Hadoop's pendingsets into it, and seal it. Repeatable."""
        survey = self._survey
        self._set_up(self.options, survey.own)
        # Another job may have begun the log meanwhile, and listed what Hadoop has published.
        self._refuse_listed(survey.keys)
        self._copy(survey.others)
        read = self._read(survey.committed)
        tasks = [self._import(file, pendingset, _STAGE, file.task) for file, pendingset in read]
        seal_stage(self._context, _STAGE, str(survey.run), tasks)
        seal(self._context, [(_STAGE, str(survey.run))])
        logger.info("%s: adopted %d tasks from %s", self._context.name, len(tasks), survey.uri)

    def _set_up(self, options: JobOptions, own: Container[str]) -> None:
        stored = open_job(self._context, options, {"adopted_from": self._survey.uri}, adopting=own)
        self._context = self._context.as_recorded(stored.record, stored.sha256)

    def _copy(self, files: Iterable[HadoopFile]) -> None:
        """Copy files, so that the end of our job aborts their uploads; in a magic directory it finds them."""
        if self._survey.uri != self._context.layout.staging.uri:
            for file, pendingset in self._read(files, forgiving=self.force):
                self._import(file, pendingset, _LEFTOVERS, text_digest(file.key).hex())

    def _read(
        self, files: Iterable[HadoopFile], *, forgiving: bool = False
    ) -> Iterator[tuple[HadoopFile, PendingSet]]:
        """Read files again; skip one that cannot be read with a warning, or raise its error."""
        context = self._context
        for file, outcome in self._survey.read(files):
            if not isinstance(outcome, InvalidRecord):
                yield file, outcome
            elif not forgiving:
                raise outcome
            else:
                logger.warning("%s: skipped a file: %s", context.name, outcome)

    def _import(self, file: HadoopFile, pendingset: PendingSet, stage: str, task: str) -> CommittedTask:
        """Write the pendingset of a Hadoop file as one of our job; return its committed task. Repeatable."""
        context = self._context
        extra = TaskExtra(
            stage=stage,
            stage_attempt=str(file.run),
            task=task,
            attempt="0",
            nonce=bytes_digest(encode(pendingset)).hex(),
        )
        commits = [msgspec.structs.replace(upload, jobId=context.job_id) for upload in pendingset.commits]
        record = msgspec.structs.replace(pendingset, jobId=context.job_id, commits=commits, s3commit=extra)
        key = context.layout.pendingset(extra.stage, extra.stage_attempt, extra.task, extra.attempt)
        stored = create_record(context.store, context.staging_bucket, key, record)
        if stored.record != record:
            raise InvalidRecord(f"{file.uri} has changed since it was imported: stop its job first")
        return committed_task(extra, stored)


def refuse_end(job: HadoopJob, *, adopts: bool = False, older_than: float = 0.0, force: bool = False) -> None:
    """Raise if a job must not be ended: it is successful, or may be alive, which ``force`` ignores.

    Or it is half-published, and the caller does not adopt it: only an adoption finishes it or takes it back.
    """
    verdict, name = classify(job, older_than=older_than), f"Hadoop job {job.job_id}"
    if verdict.status == "successful":
        raise AlreadyCommitted(
            f"{name} is successful: {verdict.reason}. Remove what is left of it with: s3commit sweep"
        )
    if verdict.status == "perhaps alive" and not force:
        raise JobClosed(f"{name} may be alive: {verdict.reason}; stop it first, wait, or use --force")
    if verdict.status == "half-published" and not adopts:
        raise JobClosed(
            f"{name} is half-published: {verdict.reason}. End it with: s3commit adopt … --commit or --abort"
        )


def _refuse_commit(job: HadoopJob, *, accept_partial: bool, expect_tasks: int | None) -> None:
    """Raise if a job has no files or committed tasks, another number of tasks than expected, or gaps."""
    name = f"Hadoop job {job.job_id}"
    if not job.files:
        raise NoSuchJob(
            f"{name} has no files in {job.prefix}: it was cleaned up, or they are elsewhere, as those of a"
            " staging committer are"
        )
    if expect_tasks not in (None, job.pendingsets):
        raise AuditFailed(f"{name}: {job.pendingsets} tasks committed, but {expect_tasks} are expected")
    if not job.pendingsets:
        raise JobClosed(f"{name}: no task committed in {job.prefix}, so there is nothing to commit; abort it")
    if job.gaps and not accept_partial:
        raise AuditFailed(
            f"{name} is partial: {job.gaps} task numbers have no pendingset: {job.missing_words}. Tasks of"
            " the staging committers write none without output. To commit it anyway: --accept-partial"
            " (accept_partial=True)"
        )
