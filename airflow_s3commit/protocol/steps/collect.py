"""Seal a stage from a Spark driver's records of its own writes, applied in order, as Spark's modes mean them.

The driver's tasks write pendingsets of ours. Each write of the application has a record of the tasks that
count, and of what it overwrites: nothing, some directories with all below them, or the partitions that it has
files for. A write that overwrites discards what earlier writes of the application have put there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from airflow_s3commit.exceptions import InvalidOption, InvalidRecord, JobClosed, NoSuchKey
from airflow_s3commit.protocol.metadata.context import (
    JobContext,
    Stored,
    check_digest,
    create_record,
    load_record,
    naming,
)
from airflow_s3commit.protocol.metadata.sealed_job import committed_task, find_stage_seal
from airflow_s3commit.protocol.model.codec import bytes_digest, encode
from airflow_s3commit.protocol.model.job import JobOptions, Removal
from airflow_s3commit.protocol.model.layout import is_below, partition_of
from airflow_s3commit.protocol.model.pendingset import PendingSet, TaskExtra
from airflow_s3commit.protocol.model.sealed_job import (
    CommittedTask,
    DriverSealRecord,
    DriverTask,
    SealReference,
)
from airflow_s3commit.protocol.steps.seal import seal_stage
from airflow_s3commit.protocol.steps.setup import job_record, refusing_ended
from airflow_s3commit.store.execute import in_threads

logger = logging.getLogger(__name__)

#: The record with which a driver takes its number, before its first write.
_REGISTRATION = "driver.json"

#: The record with which a driver that has sealed writes says, at its end, that it was not killed.
_END = "ended.json"


def collect_stage(context: JobContext, stage: str, stage_attempt: str) -> SealReference:
    """Seal a stage attempt with the task attempts that its newest Spark driver has sealed.

    Before: the application has ended successfully. After: the stage is sealed. Repeatable.

    Raises:
        InvalidOption: Some of the partitions that the application wrote were overwritten, others added to.
        InvalidRecord: A record of the driver is damaged, or a pendingset is not the one that it names.
        JobClosed: The job is not open, or no driver has written for the stage attempt.
    """
    with naming(context, f"collection of stage {stage}-{stage_attempt}"), refusing_ended(context):
        sealed = find_stage_seal(context, stage, stage_attempt)
        if sealed is not None:
            return sealed
        options = job_record(context).options
        writes = _driver_seals(context, stage, stage_attempt)
        if not writes:
            raise JobClosed(
                f"{context.name}: no Spark application has written for stage {stage}-{stage_attempt}. Make it"
                f" write to {context.layout.destination.uri}, as s3a://, with a DataFrame writer or SQL."
                " RDDs' saveAs… methods and Hive's own formats cannot be committed later"
            )
        application = _Application(context, options, stage, stage_attempt)
        for write in writes:
            application.add(write)
        tasks = [application.committed(task) for task in application.tasks.values()]
        removes, replaced = application.removal()
    return seal_stage(context, stage, stage_attempt, tasks, removes=removes, replaced=replaced)


@dataclass
class _Output:
    """A task attempt that counts, and its pendingset once read; ``partial`` if some files were discarded."""

    task: DriverTask
    pendingset: Stored[PendingSet] | None = None
    partial: bool = False


@dataclass
class _Application:
    """What the writes of an application add up to."""

    context: JobContext
    options: JobOptions
    stage: str
    stage_attempt: str
    tasks: dict[str, _Output] = field(default_factory=dict)
    #: Directories that writes overwrite with all below them, and partitions that dynamic writes overwrite.
    replaced: set[str] = field(default_factory=set)
    dynamic: set[str] = field(default_factory=set)

    def add(self, write: DriverSealRecord) -> None:
        touched: set[str] = set()
        outputs = {task.task: _Output(task) for task in write.tasks}
        if write.dynamic:
            touched = {name for output in outputs.values() for name in self._partitions(output)}
        if self.tasks and (write.replaced or touched):
            self._discard(write.replaced, touched)
        self.replaced.update(write.replaced)
        self.dynamic |= touched
        self.tasks |= outputs

    def removal(self) -> tuple[Removal, set[str]]:
        """Return what a commit as written removes, and the directories that it empties."""
        if self.options.conflict_mode != "as-written" or not (self.replaced or self.dynamic):
            return "nothing", set()
        if "" in self.replaced:
            return "everything", set()
        written = {name for output in self.tasks.values() for name in self._partitions(output)}
        added = {name for name in written - self.dynamic if not is_below(name, self.replaced)}
        if added:
            overwritten = min(self.dynamic | self.replaced)
            raise InvalidOption(
                f"{self.context.name}: the application of stage {self.stage}-{self.stage_attempt} added to"
                f" {min(added)!r} and overwrote {overwritten!r}, which one commit cannot do: name the job's"
                " conflict mode, or write them in two jobs"
            )
        return "partitions", self.replaced

    def committed(self, output: _Output) -> CommittedTask:
        task = output.task
        if task.rows and not task.files:
            raise InvalidRecord(
                f"{self.context.name}: Spark counts {task.rows} rows of task {task.task} of stage"
                f" {self.stage}-{self.stage_attempt}, whose pendingset lists no file: run the stage again"
            )
        if output.pendingset is not None and output.partial:
            return committed_task(self._extra(task), output.pendingset)
        return CommittedTask(
            stage=self.stage,
            stage_attempt=self.stage_attempt,
            task=task.task,
            attempt=task.attempt,
            location=self.context.staging_uri(self._key(task)),
            files=task.files,
            bytes=task.bytes,
            rows=task.rows if task.files else 0,
            sha256=task.sha256,
        )

    def _discard(self, replaced: Iterable[str], touched: set[str]) -> None:
        """Discard the files of earlier writes in overwritten directories."""
        directories = set(replaced)
        if "" in directories:
            self.tasks.clear()
            return
        for name, output in list(self.tasks.items()):
            pendingset = self._read(output).record
            kept = [
                upload
                for upload in pendingset.commits
                if (partition := self._partition(upload.destinationKey)) not in touched
                and not is_below(partition, directories)
            ]
            if not kept:
                del self.tasks[name]
            elif len(kept) < len(pendingset.commits):
                self.tasks[name] = self._rewrite(output, msgspec.structs.replace(pendingset, commits=kept))

    def _rewrite(self, output: _Output, pendingset: PendingSet) -> _Output:
        # The attempt's id depends on the content alone, so that a repetition writes the same record.
        digest = bytes_digest(encode(pendingset)).hex()
        task = msgspec.structs.replace(output.task, attempt=f"{output.task.attempt}.{digest}")
        extra = self._extra(task, nonce=digest)
        record = msgspec.structs.replace(pendingset, s3commit=extra)
        context, key = self.context, self._key(task)
        stored = create_record(context.store, context.staging_bucket, key, record)
        return _Output(task, stored, partial=True)

    def _partitions(self, output: _Output) -> Iterator[str]:
        for upload in self._read(output).record.commits:
            yield self._partition(upload.destinationKey)

    def _partition(self, key: str) -> str:
        return partition_of(self.context.layout.destination.check_data_key(self.context.bucket, key))

    def _read(self, output: _Output) -> Stored[PendingSet]:
        if output.pendingset is None:
            context, key = self.context, self._key(output.task)
            try:
                stored = load_record(context.store, context.staging_bucket, key, PendingSet)
            except NoSuchKey:
                raise InvalidRecord(
                    f"{context.staging_uri(key)} is missing, but the Spark driver counts it"
                ) from None
            check_digest(stored.sha256, output.task.sha256, stored.uri)
            output.pendingset = stored
        return output.pendingset

    def _key(self, task: DriverTask) -> str:
        return self.context.layout.pendingset(self.stage, self.stage_attempt, task.task, task.attempt)

    def _extra(self, task: DriverTask, nonce: str = "-") -> TaskExtra:
        return TaskExtra(
            stage=self.stage,
            stage_attempt=self.stage_attempt,
            task=task.task,
            attempt=task.attempt,
            nonce=nonce,
        )


def _driver_seals(context: JobContext, stage: str, stage_attempt: str) -> list[DriverSealRecord]:
    """Return the records of the writes of a stage attempt's newest driver, in their order.

    A driver is a JVM, which has taken the number after those that it found; contexts that it started one
    after the other share it. Output of an earlier driver is discarded if it was killed, or YARN started the
    newest in its place. Raises `JobClosed` if two drivers have the newest number, as they began at once; if
    the newest has begun a write and sealed none; or if an earlier one has sealed writes, and neither holds.
    """
    drivers, ended = _drivers(context, stage, stage_attempt)
    if not drivers:
        return []
    newest = max(drivers)
    of_stage = f"{context.name}: of stage attempt {stage}-{stage_attempt}"
    twins = [driver for driver in drivers if driver.partition("-")[0] == newest.partition("-")[0]]
    if len(twins) > 1:
        raise JobClosed(
            f"{of_stage} {len(twins)} Spark drivers began to write at once, and nothing tells whose output"
            " counts; nothing of it will be visible: run the stage again"
        )
    if not drivers[newest]:
        raise JobClosed(
            f"{of_stage} the newest Spark driver, {newest}, has begun to write and finished no write: it died"
            ", or still runs; run the stage again"
        )

    def load(key: str) -> DriverSealRecord:
        record = load_record(context.store, context.staging_bucket, key, DriverSealRecord).record
        if (record.job_id, record.stage, record.stage_attempt) != (context.job_id, stage, stage_attempt):
            raise InvalidRecord(f"{context.staging_uri(key)} is of another job or stage attempt")
        return record

    found = [*in_threads(load, sorted(drivers[newest]), context.threads)]
    for older in sorted(driver for driver in drivers.keys() - {newest} if drivers[driver]):
        if older in ended and not _is_restart(load(drivers[older][0]), found[0]):
            raise JobClosed(
                f"{of_stage} the Spark drivers {older} and {newest} have both written and neither was killed,"
                " so nothing tells whether the later one's output replaces the earlier one's or joins it;"
                " nothing of it will be visible: give each submission a stage of its own, and run the stage"
                " again"
            )
        logger.warning(
            "%s the output of driver %s is discarded, because driver %s was started in its place",
            of_stage,
            older,
            newest,
        )
    return found


def _drivers(context: JobContext, stage: str, stage_attempt: str) -> tuple[dict[str, list[str]], set[str]]:
    """Return the keys of each driver's seals, and those drivers that have noted their end."""
    prefix = context.layout.driver_seals(stage, stage_attempt)
    drivers: dict[str, list[str]] = {}
    ended: set[str] = set()
    for info in context.store.list_objects(context.staging_bucket, prefix):
        driver, slash, name = info.key.removeprefix(prefix).partition("/")
        if name == _END:
            ended.add(driver)
        elif slash and name.endswith(".json"):
            drivers.setdefault(driver, []).extend([info.key] if name != _REGISTRATION else [])
    return drivers, ended


def _is_restart(older: DriverSealRecord, newer: DriverSealRecord) -> bool:
    """Return whether YARN started the driver of the newer record because that of the older had failed."""
    return older.application == newer.application and older.application_attempt != newer.application_attempt
