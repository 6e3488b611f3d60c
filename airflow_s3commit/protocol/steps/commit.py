"""Commit a job: complete its uploads, create its entry in the log, finish.

The entry is the commit. Before it the job can be aborted, after it only finished. What the commit takes from
the table is worked out at the head of the log, right before each try to create the entry: the entry's number
is free only if nothing came after that head.

Any process may commit a job again after a crash at any point, also while another process commits it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice

from msgspec import UNSET, Raw, Struct

from airflow_s3commit._causes import whole_text
from airflow_s3commit.exceptions import (
    DestinationChanged,
    DestinationNotEmpty,
    InvalidDestination,
    InvalidOption,
    InvalidRecord,
    JobFailed,
    NoSuchJob,
    NoSuchUpload,
    OutcomeUnknown,
    Refused,
    S3CommitError,
)
from airflow_s3commit.protocol.metadata.context import JobContext, naming, recorded
from airflow_s3commit.protocol.metadata.pending_uploads import Progress, complete_counted
from airflow_s3commit.protocol.metadata.sealed_job import bare_keys, load_seal, sealed_tasks, sealed_uploads
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.delta import SAME_ROWS
from airflow_s3commit.protocol.model.destination import is_data
from airflow_s3commit.protocol.model.job import JobOptions, JobRecord, Position
from airflow_s3commit.protocol.model.layout import is_below, partition_of
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.model.sealed_job import Counts, SealedTask, SealRecord
from airflow_s3commit.protocol.model.table import Commit, Entry, Table, UnownedObject
from airflow_s3commit.protocol.steps.abort import abandon, undo
from airflow_s3commit.protocol.steps.append import NOTHING, Taken, carried, decide, end_job, ending
from airflow_s3commit.protocol.steps.files import FileList, files_in, write_list
from airflow_s3commit.protocol.steps.finish import Known, finish, refuse_markers_beside_retained
from airflow_s3commit.protocol.steps.fold import entries_after, read_table, table_at_head
from airflow_s3commit.protocol.steps.log import Log, find_end, find_head, read_entry
from airflow_s3commit.protocol.steps.setup import load_job, never_set_up, refuse_ended, refusing_ended
from airflow_s3commit.store.forwarding import CountingStore

logger = logging.getLogger(__name__)


def commit(
    context: JobContext,
    *,
    seen: int | None = None,
    seal_sha256: str | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> Entry:
    """Make a sealed job visible, and return its entry. Repeatable by any process.

    Before: the job is sealed. After: its entry is in the log, what it replaces is deleted, ``_SUCCESS``
    belongs to this commit or a later one, and nothing of the job is pending or staged.

    ``seen`` is the entry that a preview was made at. For the other arguments and the errors see `Job.commit`.
    """
    counting = CountingStore(context.store)
    context = recorded(replace(context, store=counting))
    with naming(context, "commit"):
        job, known = context.record, Known()
        if job is not None:
            seen = min((one for one in (seen, job.made_from) if one is not None), default=None)
        log = Log(context, job.base if job is not None else None)
        # A job that nobody else ends, and that is never refused for what others commit, saves this request.
        only_adds = job is not None and job.options.only_adds and not job.publishes and seen is None
        if not (context.alone and only_adds):
            log.read()
        # A job with a record ends after its base, so the log shows it. Without a record its receipt does, or
        # the newest entry, which was read first and alone may lack its receipt.
        end = log.end if job is not None else log.end or find_end(context)
        if end is None and job is None:
            raise NoSuchJob(never_set_up(context))
        if end is None and job is not None:
            files, unseen = FileList(context), _unseen(context, job, seen)
            run = _Run(context, job, log, files, seen, unseen, progress, lambda: counting.counters)
            end = _publish(run, seal_sha256)
            known = run.known(end)
        assert end is not None
        if end.kind == "abandon":
            undo(context, end)
            refuse_ended(context, end)
        finish(context, end, known)
        return end


@dataclass
class _Run:
    """One process's try to publish a job."""

    context: JobContext
    job: JobRecord
    log: Log
    files: FileList
    seen: int | None
    unseen: list[Entry]
    report: Callable[[Progress], object] | None
    requests: Callable[[], dict[str, int]]
    seal: SealRecord = field(init=False)
    metrics: dict[str, int] = field(default_factory=dict)
    counted: set[str] = field(default_factory=set)
    bare: set[str] | None = None
    entered: str = ""
    has_begun: bool = False
    is_complete: bool = False

    @cached_property
    def options(self) -> JobOptions:
        return self.job.options.as_sealed(self.seal.removes)

    def own(self) -> set[str]:
        if self.bare is None:
            self.bare = bare_keys(self.context, self.seal)
        return self.bare

    def table_at_head(self) -> Table:
        """Return the table at the head of the log as it was read."""
        return table_at_head(self.context.store, self.context.layout.destination, self.log)

    def known(self, end: Entry) -> Known:
        """Return what this process knows of the commit: nothing if another process created its entry."""
        if end.nonce != self.entered:
            return Known()
        table = self.log.table
        before = table if table is not None and table.head.number == end.number - 1 else None
        staged = None
        if self.context.alone == "writer" and self.options.track_pending == "task":
            layout = self.context.layout
            seals = (layout.stage_seal(stage.stage, stage.stage_attempt) for stage in self.seal.stages)
            staged = [*self.counted, *seals]
        return Known(self.counted, staged, before)

    def taken(self) -> Taken:
        """Return what the commit takes at the head of the log, or refuse it."""
        _refuse_changes(self)
        if self.options.only_adds:
            # This costs no request: creating an entry needs the newest one anyway. The table is read only if
            # the newest entry has no files with these columns, as after an abort.
            newest = self.log.read_newest()
            commit = newest.commit if newest is not None else None
            written = [name for name, counts in commit.partitions.items() if counts.files] if commit else []
            if newest is not None and not _columns(self.seal.partitions) <= _columns(written):
                _refuse_other_case(self, self.table_at_head().live)
            return NOTHING
        table = self.table_at_head()
        partitions = _touched(self.context, self.seal, table)
        taken = decide(self.context, self.options, partitions, table, self.own())
        if taken.unowned and SAME_ROWS.items() <= self.job.context.items():
            raise DestinationChanged(
                f"{self.context.name}: another program has put {taken.unowned[0].key} there meanwhile, and a"
                " compaction would delete it: move it, or see: s3commit verify"
            )
        if table.live.keys() - taken.pieces.keys():
            _refuse_other_case(self, table.live)
        return taken

    def entry(self, head: Position, digest: str = "", within: list[Raw] | None = None) -> Entry:
        """Return the entry after a head, with the list of files if it is known."""
        options, seal, taken = self.options, self.seal, self.taken()
        refuse_markers_beside_retained(self.context, options, self.log.marks, self.table_at_head)
        losing = taken.losing(self.context.layout.destination) if taken.takes == "partitions" else ()
        made = Commit(
            mode=options.conflict_mode,
            takes=taken.takes,
            unowned=taken.unowned,
            partitions=dict(sorted({**dict.fromkeys(losing, Counts()), **seal.partitions}.items())),
            counts=seal.counts,
            replaced=taken.replaced,
            files_sha256=digest,
            within=UNSET if within is None else within,
            retain=options.retain_seconds,
            adopted=self.job.adopted,
            tasks=sum(stage.tasks for stage in seal.stages),
            schemas=seal.schemas,
            metrics={**self.metrics, **self.requests()},
        )
        entry = ending(self.context, head, self.job, commit=made, options=options)
        self.entered = entry.nonce
        return entry


def _touched(context: JobContext, seal: SealRecord, table: Table) -> set[str]:
    """Return the partitions that a job writes, and those with data below directories that it overwrites.

    Another program may have put data there, or deleted files of the table.
    """
    home, found = context.layout.destination, {*seal.partitions}
    found |= {name for name in table.live if is_below(name, seal.replaced)}
    for directory in seal.replaced:
        for info in context.store.list_objects(home.bucket, home.key(f"{directory}/")):
            if is_data(path := home.relative(info.key) or ""):
                found.add(partition_of(path))
    return found


def _unseen(context: JobContext, job: JobRecord, seen: int | None) -> list[Entry]:
    """Return the entries that a commit's caller has not seen and that came before the job's setup."""
    if seen is None or seen >= job.base.number:
        return []
    store, home = context.store, context.layout.destination
    since = read_entry(store, home, seen).position if seen > 0 else Position()
    return [read.entry for read in entries_after(store, home, since, job.base.number)]


def _publish(run: _Run, seal_sha256: str | None) -> Entry:
    """Complete the uploads, and create the job's entry: a commit, or ``abandon`` if that cannot be."""
    context, log = run.context, run.log
    try:
        # Nothing is published yet: a refusal leaves the job as it is.
        with refusing_ended(context):
            run.seal = load_seal(context, seal_sha256)
        log.read_newest()
        _refuse_changes(run)
        if run.options.conflict_mode != "replace" or run.options.whole_destination:
            run.taken()
        if run.job.publishes:
            carried(context, log, run.entry(log.head))
    except Refused:
        # The reason may be that another process has ended the job meanwhile.
        if (end := log.read()) is None:
            raise
        return end
    try:
        _complete(run)
        write_list(context, run.files, context.job_id)
        return _enter(run)
    except (JobFailed, DestinationNotEmpty, DestinationChanged, InvalidDestination, InvalidOption) as error:
        return _give_up(run, error)
    except S3CommitError as error:
        if isinstance(error, InvalidRecord) and not run.is_complete:
            return _give_up(run, error)
        # A process that ended the job has aborted the upload of its list, or removed its records. If there
        # was none, a damaged record is the table's: all files of the job are there.
        if isinstance(error, NoSuchUpload | InvalidRecord) and (end := log.read()) is not None:
            return end
        error.add_note(f"{_may_be_visible(run)}: commit it again, or abort it")
        raise


def _give_up(run: _Run, error: S3CommitError) -> Entry:
    """Abort a job that can certainly not be committed, unless it has published nothing; raise the error.

    Returns the entry if another process has ended the job meanwhile. Raises `OutcomeUnknown` if a step fails.
    """
    try:
        # Another process may have ended the job, and removed what this one needs.
        if (end := run.log.read()) is not None:
            return end
        if run.has_begun:
            end = abandon(run.context, run.log, run.job, str(error))
            if end.kind == "commit":
                return end
            logger.warning("%s: aborting it: %s", run.context.name, error)
            undo(run.context, end)
    except S3CommitError as second:
        raise OutcomeUnknown(
            f"{run.context.name} cannot be committed ({error}), and is not undone ({whole_text(second)}):"
            f" {_may_be_visible(run)}; end it with: s3commit abort"
        ) from error
    raise error


def _may_be_visible(run: _Run) -> str:
    return f"up to {run.seal.counts.files} files of it may be visible"


def _complete(run: _Run) -> None:
    """Complete every sealed upload, and list its file."""
    progress = complete_counted(run.context, _listed(run), run.seal.counts.files, run.report)
    run.metrics, run.is_complete = progress.metrics, True


def _listed(run: _Run) -> Iterator[PendingUpload]:
    def counted() -> Iterator[tuple[str, SealedTask]]:
        for key, task in sealed_tasks(run.context, run.seal):
            run.counted.add(key)
            yield key, task

    for upload in sealed_uploads(run.context, counted()):
        run.files.add(upload)
        run.has_begun = True
        yield upload


def _refuse_changes(run: _Run) -> None:
    """Refuse a commit if another came in between that its caller has not seen, or that may delete its files.

    A commit that replaces may have listed a file of an adopted job as one that no job owns, and delete it
    yet: names of Hadoop do not show whose files they are.
    """
    if run.seen is not None and run.seen > run.log.head.number:
        raise DestinationChanged(
            f"{run.context.name}: the log has no generation {run.seen}: it ends with entry"
            f" {run.log.head.number}, so the number is wrong, or the log was begun anew; preview it again, or"
            " write it anew if it was made from that generation"
        )
    for entry in [*run.unseen, *run.log.after_base] if run.seen is not None or run.job.adopted else ():
        made = entry.commit
        if made is None:
            continue
        seal, names = run.seal, {*made.partitions, *made.restores}
        touched = any(name in seal.partitions or is_below(name, seal.replaced) for name in names)
        if not (run.options.whole_destination or made.takes == "everything" or touched):
            continue
        if run.seen is not None and entry.number > run.seen:
            since = f"the preview at {run.seen}; preview it again"
            if run.seen == run.job.made_from:
                since = f"generation {run.seen}, which it was made from; abort it, and write it anew"
            raise DestinationChanged(
                f"{run.context.name}: generation {entry.number} changed its partitions after {since}"
            )
        if run.job.adopted and (made.takes != "nothing" or made.restores):
            raise DestinationChanged(
                f"{run.context.name}: generation {entry.number} has replaced files beside it since it was"
                " adopted, and may delete its files, because names of Hadoop do not show whose they are:"
                " write it again, as a new job"
            )


def _refuse_other_case(run: _Run, partitions: Iterable[str]) -> None:
    """Refuse partition columns whose names differ by their case alone from those of a table's partitions.

    Spark takes both for one column, and leaves the other one's directory when it replaces its own; DuckDB,
    Delta and the readers of this package refuse the table; pyarrow makes two columns of them.
    """
    known = _columns(partitions)
    lowered = {name.lower(): name for name in known}
    for name in sorted(_columns(run.seal.partitions) - known):
        if other := lowered.get(name.lower()):
            raise InvalidOption(
                f"{run.context.name}: its partition column {name!r} is {other!r} in the table, which some"
                " readers take for one column and others for two: write it anew with the table's name"
            )


def _columns(partitions: Iterable[str]) -> set[str]:
    """Return the names of the partition columns of some directories."""
    parts = (part.partition("=") for name in partitions for part in name.split("/"))
    return {name for name, equals, _ in parts if equals}


def _enter(run: _Run) -> Entry:
    """Create the job's entry, and return it, or the entry that another process ended the job with."""
    make = partial(run.entry, digest=run.files.sha256, within=run.files.short())
    otherwise = "Its files are there, and not in the table: commit it again, or abort it"
    entry = end_job(run.context, run.log, make, otherwise=otherwise)
    logger.info("%s: entry %d ends it: %s", run.context.name, entry.number, entry.kind)
    return entry


def complete_part(
    context: JobContext,
    part: int,
    parts: int,
    *,
    seal_sha256: str | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> int:
    """Complete every ``parts``-th task attempt of the seal, from number ``part`` on; as `Job.complete_part`.

    Only sealed uploads are completed: one of an attempt that does not count would become a visible file that
    no entry names. Repeatable by any process, also during a commit or an abort.
    """
    if not 0 <= part < parts:
        raise InvalidOption(f"part {part} of {parts}: parts are numbered from 0 to {parts - 1}")
    with naming(context, f"part {part} of {parts} of the commit"), refusing_ended(context):
        context = recorded(context)
        load_job(context)
        seal = load_seal(context, seal_sha256)
        uploads = sealed_uploads(context, islice(sealed_tasks(context, seal), part, None, parts))
        try:
            return complete_counted(context, uploads, seal.counts.files, progress).files_done
        except S3CommitError as error:
            error.add_note(f"some files of {context.name} may be visible: commit it, or abort it")
            raise


class Preview(Plain, Struct, frozen=True, kw_only=True):
    """What the commit of a sealed job would take from the table now.

    Attributes:
        generation: Number of the newest entry of the log that was read. A commit that is given it is refused
            if a later one touched its partitions.
        partitions: The partitions that would lose files.
        objects: How many files would leave.
        bytes: Their total size.
    """

    generation: int
    partitions: list[str]
    objects: int
    bytes: int


def preview(context: JobContext) -> Preview:
    """Return what the commit of a sealed job would take now. Changes nothing. Raises as `Job.preview`."""
    with naming(context, "preview of the commit"):
        table, taken = _decided(context)
        return Preview(
            generation=table.head.number,
            partitions=sorted(taken.losing(context.layout.destination)),
            objects=taken.replaced.files,
            bytes=taken.replaced.bytes,
        )


def replaced_files(context: JobContext) -> Iterator[FileEntry | UnownedObject]:
    """Yield the files that the commit of a sealed job would take now. Raises as `preview`."""
    table, taken = _decided(context)
    yield from files_in(context.store, context.layout.destination, table.sources, taken.pieces)
    yield from taken.unowned


def _decided(context: JobContext) -> tuple[Table, Taken]:
    with refusing_ended(context):
        job, seal = load_job(context), load_seal(context)
        bare = bare_keys(context, seal)
    store, home, options = context.store, context.layout.destination, job.options.as_sealed(seal.removes)
    if options.only_adds:
        # An append takes nothing, whatever the table has.
        table = Table()
        table.head = Position(find_head(store, home))
        return table, NOTHING
    table = read_table(store, home)
    return table, decide(context, options, _touched(context, seal, table), table, bare)
