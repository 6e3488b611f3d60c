"""Conflict resolution: which existing objects a commit replaces, decided before anything changes.

==============  =======================  ==============  ==============================================
scope           ``fail``                 ``append``      ``replace``
==============  =======================  ==============  ==============================================
directory       refuse if any data       nothing         all data objects of the destination;
                                                         refuse if other destinations are below it
partitioned     refuse if a touched      nothing         the data objects of the touched
                partition has data                       partitions, and only they
==============  =======================  ==============  ==============================================

A partition is a directory that the job writes to, without its subdirectories; files at the root form the
partition ``""``, never the whole table. With conflict mode ``as-written`` the seal decides, and may name
partitions without files, which are emptied. A plan never contains hidden objects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from airflow_s3commit.exceptions import (
    DestinationChanged,
    DestinationNotEmpty,
    InvalidRecord,
)
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.listing import refuse_nested, settled_objects
from airflow_s3commit.protocol.metadata.log import Log
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.removal import clean_if_ended
from airflow_s3commit.protocol.metadata.sealed_job import (
    NO_PLAN,
    each_pendingset,
    load_seal,
    load_stage_seals,
    nothing_planned,
    planned_objects,
)
from airflow_s3commit.protocol.metadata.snapshot import KnownFiles, known_files
from airflow_s3commit.protocol.metadata.state import (
    check_state,
    gone,
    last_state,
    load_job,
    move,
    require_state,
)
from airflow_s3commit.protocol.model.codec import DIGEST_BYTES, encode, sha256, text_digest
from airflow_s3commit.protocol.model.destination import is_data, join_uri
from airflow_s3commit.protocol.model.job import JobRecord
from airflow_s3commit.protocol.model.layout import partition_of
from airflow_s3commit.protocol.model.sealed_job import (
    WITHIN,
    PlannedObject,
    PlanPart,
    PlanRecord,
    PlanReference,
    SealRecord,
)
from airflow_s3commit.store.base import ObjectInfo
from airflow_s3commit.store.execute import in_batches

logger = logging.getLogger(__name__)


#: Objects of a part of a plan, and the most of a part that lies within the plan's record.
_PART_OBJECTS = 10_000
_WITHIN_OBJECTS = 100


def plan_job(context: JobContext) -> PlanReference:
    """Make a plan, and name it in the job's state: the commit keeps to it.

    Before: the job is sealed. Repeatable by any process: the newest plan counts. A job that can replace
    nothing has no plan to name.

    Raises:
        DestinationNotEmpty: Conflict mode ``fail``, and there is data.
        InvalidDestination: Conflict mode ``replace`` for the whole destination, with others below it.
        JobClosed: The job is not sealed, or another process has begun its commit or aborted it meanwhile.
        AlreadyCommitted: The job is committed.

    """
    job, log = load_job(context), Log(context)
    current = check_state(context, last_state(context, "sealed"), "sealed")
    seal = load_seal(context, current.record.seal_etag)
    if not job.options.only_adds:
        log.read()
    plan = make_plan(context, job, seal, log)
    if not job.options.only_adds:
        while move(context, current, "sealed", plan_etag=plan.etag, plan_id=plan.record.plan_id) is None:
            if clean_if_ended(context):
                raise gone(context)
            current = require_state(context, "sealed")
    return PlanReference(
        location=context.staging_uri(context.layout.plan(plan.record.plan_id)),
        etag=plan.etag,
        partitions=len(seal.record.partitions),
        objects=plan.record.objects,
        bytes=plan.record.bytes,
    )


def make_plan(context: JobContext, job: JobRecord, seal: Stored[SealRecord], log: Log) -> Stored[PlanRecord]:
    """Resolve a sealed job's conflicts and write the plan under an id of its own, in constant memory.

    A short list of objects lies within the plan's record.

    Before: the job is sealed, and the log is read. Repeatable: each plan is another record.

    Args:
        context: The job.
        job: Its record.
        seal: Its seal.
        log: The destination's log: the plan holds as of its newest entry.

    Raises:
        DestinationNotEmpty: Conflict mode ``fail``, and there is data.
        InvalidDestination: Conflict mode ``replace`` for the whole destination, with others below it.

    """
    if job.options.only_adds:
        return Stored(nothing_planned(context, seal.etag), NO_PLAN, 0.0, 0.0)
    with naming(context, "plan"):
        log.record_newest()
        plan_id, digest = context.new_id(), _Digest()
        parts = []
        planned = digest.watch(_resolve(context, job, seal.record, log))
        for number, objects in enumerate(in_batches(planned, _PART_OBJECTS)):
            if number == 0 and len(objects) <= _WITHIN_OBJECTS:
                parts.append(PlanPart(number=0, etag=WITHIN, objects=len(objects), within=objects))
                continue
            body = msgspec.json.Encoder().encode_lines(objects)
            key = context.layout.plan_part(plan_id, number)
            written = context.store.put(context.staging_bucket, key, body)
            content = sha256(body)
            parts.append(PlanPart(number=number, etag=written.etag, objects=len(objects), sha256=content))
        record = PlanRecord(
            **context.layout.place,
            plan_id=plan_id,
            seal_etag=seal.etag,
            base=log.position,
            parts=parts,
            objects=digest.objects,
            bytes=digest.bytes,
            digest=digest.value,
        )
        written = context.store.put(context.staging_bucket, context.layout.plan(plan_id), encode(record))
    if job.options.retain_seconds and digest.first_unretained:
        logger.warning(
            "%s: retain=%r does not hold for %d of the %d objects that it replaces, such as %s: their names"
            " do not have the id of a job that has committed them, so the commit deletes them at once. Copy"
            " them first if they are needed",
            context.name,
            job.options.retain,
            digest.unretained,
            digest.objects,
            join_uri(context.bucket, digest.first_unretained),
        )
    logger.info("%s: plan replaces %d objects, %d bytes", context.name, record.objects, record.bytes)
    stored = Stored(record, written.etag, written.date, written.date)
    return context.known.keep(context.layout.plan(plan_id), stored)


def verify_plan(context: JobContext, job: JobRecord, seal: SealRecord, plan: PlanRecord) -> None:
    """Read a plan's parts and compare them with its digest, before anything is published.

    Raises:
        InvalidRecord: A part is missing, was changed, or names an object that this job may not replace.

    """
    digest = _Digest()
    for _ in digest.watch(replaced_objects(context, job, seal, plan)):
        pass
    if digest.value != plan.digest:
        where = context.staging_uri(context.layout.plan(plan.plan_id))
        raise InvalidRecord(
            f"{where} does not agree with its parts: it was changed after it was written; plan again"
        )


def check_unchanged(
    context: JobContext, job: JobRecord, seal: SealRecord, plan: PlanRecord, log: Log
) -> None:
    """List the planned partitions again, and raise if they differ from the plan.

    Before: the log is read, and its newest entry is recorded.

    Raises:
        DestinationChanged: They differ.
        DestinationNotEmpty: Conflict mode ``fail``, and there is data now.

    """
    digest = _Digest()
    for _ in digest.watch(_resolve(context, job, seal, log)):
        pass
    if digest.value != plan.digest:
        raise DestinationChanged(
            f"{context.name}: the partitions to be replaced held {plan.objects} objects ({plan.bytes}"
            " bytes) when"
            f" the plan was made and hold {digest.objects} ({digest.bytes} bytes) now, or others; plan again"
        )


def replaced_objects(
    context: JobContext, job: JobRecord, seal: SealRecord, plan: PlanRecord
) -> Iterator[PlannedObject]:
    """Yield the objects of a plan, each checked to be one that this job may replace.

    Raises:
        InvalidRecord: A part is missing or was changed; or it names an object outside the destination or
            hidden from readers, in a partition that gets no data, or not to be replaced at all.

    """
    options = job.options.as_sealed(seal.removes)
    touched = None if options.whole_destination else frozenset(seal.partitions)
    for planned in planned_objects(context, plan):
        relative = context.layout.destination.relative(planned.key) or ""
        fault = None
        if not is_data(relative):
            fault = "which is no data file of the destination"
        elif touched is not None and partition_of(relative) not in touched:
            fault = "in a partition that gets no data"
        elif options.conflict_mode != "replace":
            fault = f"although its conflict mode is {options.conflict_mode}"
        if fault is not None:
            where = context.staging_uri(context.layout.plan(plan.plan_id))
            raise InvalidRecord(
                f"{where}: the plan of {context.name} replaces"
                f" {join_uri(context.bucket, planned.key)}, {fault}; it was changed after it was made"
            )
        yield planned


def existing_objects(
    context: JobContext,
    job: JobRecord,
    seal: SealRecord,
    is_retained: Callable[[str], bool],
    has_ended: Callable[[str], bool] = lambda _job_id: False,
) -> Iterator[ObjectInfo]:
    """Yield the existing objects that a commit replaces, or is refused for.

    Args:
        context: The job.
        job: Its record.
        seal: Its seal.
        is_retained: Returns whether a file has left the table and is retained, by its key.
        has_ended: As for `settled_objects`.

    Raises:
        InvalidDestination: Conflict mode ``replace`` for the whole destination, with others below it.

    """
    options = job.options.as_sealed(seal.removes)
    if options.only_adds:
        return
    own = _own_keys(context, seal) if job.adopted else set()
    whole = options.whole_destination
    nested: set[str] = set()
    for info in settled_objects(context, None if whole else seal.partitions, has_ended, nested=nested):
        # Hadoop published an own one before the job was adopted, or this commit has.
        if not is_retained(info.key) and text_digest(info.key) not in own:
            yield info
    if options.conflict_mode == "replace":
        refuse_nested(context.layout.destination, nested)


def _resolve(context: JobContext, job: JobRecord, seal: SealRecord, log: Log) -> Iterator[PlannedObject]:
    """Yield the existing objects that the commit replaces."""
    options = job.options.as_sealed(seal.removes)
    known: KnownFiles | None = None
    if not options.only_adds and (log.retaining or options.retain_seconds):
        known = known_files(context.store, context.layout.destination, at_least=log.position)
    is_retained = known.is_retained if known is not None else lambda _key: False
    for info in existing_objects(context, job, seal, is_retained, log.has_ended):
        if options.conflict_mode == "fail":
            raise DestinationNotEmpty(
                f"{context.name}: conflict mode is fail and {join_uri(context.bucket, info.key)} exists;"
                " use replace or append, or another destination"
            )
        yield PlannedObject(
            key=info.key,
            size=info.size,
            etag=info.etag,
            retained=options.retain_seconds > 0 and known is not None and known.is_live(info.key),
        )


def _own_keys(context: JobContext, seal: SealRecord) -> set[bytes]:
    """Return digests of the keys of a sealed job's uploads."""
    stages = load_stage_seals(context, seal)
    return {
        text_digest(upload.destinationKey)
        for _, _, pendingset in each_pendingset(context, stages)
        for upload in pendingset.commits
    }


@dataclass(slots=True)
class _Digest:
    """Counts planned objects and adds up their hashes; a sum does not depend on their order."""

    objects: int = 0
    bytes: int = 0
    unretained: int = 0
    first_unretained: str = ""
    _sum: int = 0

    def watch(self, planned: Iterable[PlannedObject]) -> Iterator[PlannedObject]:
        for item in planned:
            self.objects += 1
            self.bytes += item.size
            text = f"{item.key}\0{item.etag}\0{item.size}"
            if item.retained:
                text += "\0retained"
            else:
                self.unretained += 1
                self.first_unretained = self.first_unretained or item.key
            self._sum += int.from_bytes(text_digest(text))
            yield item

    @property
    def value(self) -> str:
        return f"{self._sum % (1 << 8 * DIGEST_BYTES):032x}"
