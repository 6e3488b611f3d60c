"""Conflicts, resolved before anything changes: which existing objects a commit replaces, as a value.

==============  =======================  ==============  ==============================================
scope           ``fail``                 ``append``      ``replace``
==============  =======================  ==============  ==============================================
directory       refuse if any data       nothing         all data objects of the destination
partitioned     refuse if a touched      nothing         the data objects of the touched
                partition has data                       partitions, and only they
==============  =======================  ==============  ==============================================

A partition is a directory that gets data, without the directories below it; files at the root form the
partition ``""``, never the whole table. Hidden objects are never in a plan. Without unique file names the
plan also marks objects that the job itself overwrites: those cannot be put back.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from itertools import islice

import msgspec

from airflow_s3commit.exceptions import (
    DestinationChanged,
    DestinationNotEmpty,
    InvalidRecord,
    NoSuchKey,
)
from airflow_s3commit.protocol import journal
from airflow_s3commit.protocol.context import JobContext, naming
from airflow_s3commit.protocol.destination import is_hidden, join_uri
from airflow_s3commit.protocol.journal import Stored
from airflow_s3commit.protocol.layout import partition_of
from airflow_s3commit.protocol.limits import PLAN_PART_BYTES
from airflow_s3commit.protocol.listing_choice import choose_listing
from airflow_s3commit.protocol.ownership import check_place
from airflow_s3commit.protocol.records import (
    JobOptions,
    JobRecord,
    PlannedObject,
    PlanPart,
    PlanRecord,
    PlanReference,
    SealRecord,
    decode_lines,
    encode,
)
from airflow_s3commit.protocol.sealed import check_digest, each_pendingset, load_stage_seals
from airflow_s3commit.protocol.signing import sign
from airflow_s3commit.store.base import ObjectInfo
from airflow_s3commit.store.calls import in_batches

__all__ = [
    "check_unchanged",
    "data_objects",
    "find_plan",
    "make_plan",
    "nothing_planned",
    "plan_reference",
    "planned_objects",
    "replaced_objects",
    "verify_plan",
]

logger = logging.getLogger(__name__)

_PART_OBJECTS = 10_000
_FIRST_PAGE = 1_000
_DIGEST_BYTES = 16


def make_plan(context: JobContext, job: JobRecord, seal: Stored[SealRecord]) -> Stored[PlanRecord]:
    """Resolve a sealed job's conflicts and write the plan, in memory that does not grow with it.

    Before: the job is sealed. After: the plan stands. Run again: a new plan takes its place.

    Raises:
        DestinationNotEmpty: Conflict mode ``fail``, and there is data.

    """
    with naming(context, "plan"):
        plan_id, digest = context.new_id(), _Digest()
        parts = []
        planned = digest.watch(_resolve(context, job.options, seal.record))
        for number, objects in enumerate(in_batches(planned, _PART_OBJECTS)):
            body = msgspec.json.Encoder().encode_lines(objects)
            key = context.layout.plan_part(plan_id, number)
            written = context.store.put(context.staging_bucket, key, body)
            sha256 = hashlib.sha256(body).hexdigest()
            parts.append(PlanPart(number=number, etag=written.etag, objects=len(objects), sha256=sha256))
        record = PlanRecord(
            **context.layout.place,
            plan_id=plan_id,
            seal_etag=seal.etag,
            parts=parts,
            objects=digest.objects,
            bytes=digest.bytes,
            overwritten=digest.overwritten,
            digest=digest.value,
        )
        if context.signer is not None:
            record = sign(record, context.signer)
        written = context.store.put(context.staging_bucket, context.layout.plan, encode(record))
    logger.info("%s: plan replaces %d objects, %d bytes", context.name, record.objects, record.bytes)
    return Stored(record, written.etag, written.date, written.date)


def nothing_planned(context: JobContext, seal_etag: str) -> PlanRecord:
    """Return the plan of a job that replaces nothing; it is not written anywhere."""
    return PlanRecord(
        **context.layout.place,
        plan_id="none",
        seal_etag=seal_etag,
        parts=[],
        objects=0,
        bytes=0,
        overwritten=0,
        digest=_Digest().value,
    )


def find_plan(context: JobContext, etag: str | None) -> Stored[PlanRecord] | None:
    """Read the plan and check that it is the one with this ETag, where one is given; None if there is none.

    Raises:
        InvalidRecord: It was changed, is another job's, or is missing although an ETag was given.

    """
    where = context.staging_uri(context.layout.plan)
    stored = journal.find(
        context.store, context.staging_bucket, context.layout.plan, PlanRecord, signer=context.signer
    )
    if stored is None:
        if etag is not None:
            raise InvalidRecord(f"{where} is missing; plan again")
        return None
    check_place(stored.record, context.layout, where)
    if etag is not None and stored.etag != etag.strip('"'):
        raise InvalidRecord(f"{where} was changed after it was written: ETag {stored.etag}, expected {etag}")
    return stored


def verify_plan(context: JobContext, job: JobRecord, seal: SealRecord, plan: PlanRecord) -> None:
    """Read a plan's parts and check that they hold what its digest says, before anything is published.

    Raises:
        InvalidRecord: A part is missing or was changed, or names what this job does not replace; or the plan
            names other parts than were written.

    """
    digest = _Digest()
    for _ in digest.watch(replaced_objects(context, job, seal, plan)):
        pass
    if digest.value != plan.digest:
        where = context.staging_uri(context.layout.plan)
        raise InvalidRecord(
            f"{where} does not agree with its parts: it was changed after it was written; plan again"
        )


def check_unchanged(context: JobContext, job: JobRecord, seal: SealRecord, plan: PlanRecord) -> None:
    """List the planned partitions again and refuse to go on if they are not what the plan was made for.

    Raises:
        DestinationChanged: They differ.
        DestinationNotEmpty: Conflict mode ``fail``, and there is data now.

    """
    digest = _Digest()
    for _ in digest.watch(_resolve(context, job.options, seal)):
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
    """Yield the objects of a plan, after checking of each that it is one that this job may replace.

    Raises:
        InvalidRecord: A part is missing or was changed; or it names an object outside the destination or
            hidden from readers, in a partition that gets no data, or not to be replaced at all.

    """
    touched = None if job.options.whole_destination else frozenset(seal.partitions)
    for planned in planned_objects(context, plan):
        relative = context.layout.destination.relative(planned.key) or ""
        fault = None
        if not relative or relative.endswith("/") or is_hidden(relative):
            fault = "which is no data file of the destination"
        elif touched is not None and partition_of(relative) not in touched:
            fault = "in a partition that gets no data"
        elif not planned.overwritten and job.options.conflict_mode != "replace":
            fault = f"although its conflict mode is {job.options.conflict_mode}"
        if fault is not None:
            where = context.staging_uri(context.layout.plan)
            raise InvalidRecord(
                f"{where}: the plan of {context.name} replaces"
                f" {join_uri(context.bucket, planned.key)}, {fault}; it was changed after it was made"
            )
        yield planned


def planned_objects(context: JobContext, plan: PlanRecord) -> Iterator[PlannedObject]:
    """Yield the objects that a plan names, a part at a time, each part checked against the plan; to look at.

    Raises:
        InvalidRecord: A part is missing or was changed.

    """
    for part in plan.parts:
        key = context.layout.plan_part(plan.plan_id, part.number)
        try:
            fetched = context.store.get(context.staging_bucket, key, limit=PLAN_PART_BYTES)
        except NoSuchKey:
            raise InvalidRecord(f"{context.staging_uri(key)} is missing; plan again") from None
        if fetched.info.etag != part.etag:
            raise InvalidRecord(f"{context.staging_uri(key)} was changed after it was written; plan again")
        digest = hashlib.sha256(fetched.body).hexdigest()
        check_digest(context, digest, part.sha256, context.staging_uri(key))
        yield from decode_lines(PlannedObject, BytesIO(fetched.body), context.staging_uri(key))


def data_objects(context: JobContext, directories: Iterable[str] | None) -> Iterator[ObjectInfo]:
    """Yield the data objects of some directories (without those below them), or of the whole destination.

    Hidden objects, directory markers and everything under a staging prefix are left out. Many directories
    are listed together with what is around them where that is cheaper; else the first page of each is
    fetched ahead, several at once.
    """
    destination, store = context.layout.destination, context.store
    if directories is None:
        found: Iterable[ObjectInfo] = store.list_objects(destination.bucket, destination.prefix)
    else:
        touched = list(directories)
        wide = _list_around(context, touched)
        found = wide if wide is not None else _list_directories(context, touched)
    for info in found:
        relative = destination.relative(info.key)
        if relative is not None and not relative.endswith("/") and not is_hidden(relative):
            yield info


def _list_around(context: JobContext, directories: list[str]) -> list[ObjectInfo] | None:
    """List the directories together with what is around them; None if that is too much, or not worth it."""
    choice = choose_listing(directories, context.threads)
    if choice is None:
        return None
    destination, touched = context.layout.destination, set(directories)
    prefix = destination.key(f"{choice.directory}/" if choice.directory else "")
    found = []
    for seen, info in enumerate(context.store.list_objects(destination.bucket, prefix)):
        if seen == choice.objects:
            return None
        if partition_of(destination.relative(info.key) or "") in touched:
            found.append(info)
    return found


def _list_directories(context: JobContext, directories: Iterable[str]) -> Iterator[ObjectInfo]:
    destination = context.layout.destination

    def first_page(directory: str) -> tuple[list[ObjectInfo], Iterator[ObjectInfo]]:
        prefix = destination.key(f"{directory}/" if directory else "")
        pages = context.store.list_objects(destination.bucket, prefix, recursive=False)
        return list(islice(pages, _FIRST_PAGE)), pages

    if not context.threads:
        for directory in directories:
            page, rest = first_page(directory)
            yield from page
            yield from rest
        return
    with ThreadPoolExecutor(context.threads, thread_name_prefix="s3commit-list") as pool:
        for group in in_batches(directories, 2 * context.threads):
            for page, rest in pool.map(first_page, group):
                yield from page
                yield from rest


def _resolve(context: JobContext, options: JobOptions, seal: SealRecord) -> Iterator[PlannedObject]:
    """Decide, object by object, what becomes of the data that is there."""
    if options.conflict_mode == "append" and options.unique_filenames:
        return
    own = set() if options.unique_filenames else _own_keys(context, seal)
    whole = options.whole_destination and options.conflict_mode != "append"
    for info in data_objects(context, None if whole else seal.partitions):
        if options.conflict_mode == "fail":
            raise DestinationNotEmpty(
                f"{context.name}: conflict mode is fail and {join_uri(context.bucket, info.key)} exists;"
                " use replace or append, or another destination"
            )
        overwritten = _key_digest(info.key) in own
        if overwritten or options.conflict_mode == "replace":
            yield PlannedObject(key=info.key, size=info.size, etag=info.etag, overwritten=overwritten)


def _own_keys(context: JobContext, seal: SealRecord) -> set[bytes]:
    stages = load_stage_seals(context, seal)
    return {
        _key_digest(upload.destinationKey)
        for _, _, pendingset in each_pendingset(context, stages)
        for upload in pendingset.commits
    }


def _key_digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=_DIGEST_BYTES).digest()


@dataclass(slots=True)
class _Digest:
    """Counts planned objects as they pass, and adds their hashes up: the sum knows no order."""

    objects: int = 0
    bytes: int = 0
    overwritten: int = 0
    _sum: int = 0

    def watch(self, planned: Iterable[PlannedObject]) -> Iterator[PlannedObject]:
        for item in planned:
            self.objects += 1
            self.bytes += item.size
            self.overwritten += item.overwritten
            text = f"{item.key}\0{item.etag}\0{item.size}\0{item.overwritten}"
            self._sum += int.from_bytes(hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest())
            yield item

    @property
    def value(self) -> str:
        return f"{self._sum % (1 << 8 * _DIGEST_BYTES):032x}"


def plan_reference(context: JobContext, stored: Stored[PlanRecord], seal: SealRecord) -> PlanReference:
    """Return where a plan is and what it will replace."""
    return PlanReference(
        location=context.staging_uri(context.layout.plan),
        etag=stored.etag,
        partitions=len(seal.partitions),
        objects=stored.record.objects,
        bytes=stored.record.bytes,
    )
