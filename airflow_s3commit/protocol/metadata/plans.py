"""Read a job's plan and its parts, each checked against the record that names it."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

from airflow_s3commit.exceptions import (
    InvalidRecord,
    NoSuchKey,
)
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.seals import check_digest
from airflow_s3commit.protocol.model.codec import decode_lines, sha256
from airflow_s3commit.protocol.model.job import StateRecord
from airflow_s3commit.protocol.model.limits import PLAN_PART_BYTES
from airflow_s3commit.protocol.model.ownership import check_place
from airflow_s3commit.protocol.model.plan import PlannedObject, PlanRecord

#: Id and ETag of the plan of a job that can replace nothing; it is no object.
NO_PLAN = "none"


def nothing_planned(context: JobContext, seal_etag: str) -> PlanRecord:
    """Return the plan of a job that replaces nothing, without writing it."""
    return PlanRecord(
        **context.layout.place,
        plan_id=NO_PLAN,
        seal_etag=seal_etag,
        parts=[],
        objects=0,
        bytes=0,
        overwritten=0,
        digest=f"{0:032x}",
    )


def find_plan(context: JobContext, state: StateRecord) -> Stored[PlanRecord] | None:
    """Read the plan that a job's state names; None if it names none.

    Raises:
        InvalidRecord: It was changed, is another job's, or is missing.

    """
    if state.plan_etag is None or state.seal_etag is None:
        return None
    return load_plan(context, state.plan_id, state.plan_etag, state.seal_etag)


def load_plan(context: JobContext, plan_id: str | None, etag: str, seal_etag: str) -> Stored[PlanRecord]:
    """Read a plan.

    Args:
        context: The job.
        plan_id: Its id; None for a plan of an older version.
        etag: Its ETag.
        seal_etag: ETag of the job's seal.

    Raises:
        InvalidRecord: It was changed, is another job's, or is missing.

    """
    key = context.layout.plan(plan_id)
    where = context.staging_uri(key)
    if plan_id == NO_PLAN:
        if context.record is not None and not context.record.options.only_adds:
            raise InvalidRecord(f"{context.name}: its state names no plan, and the job may replace files")
        return Stored(nothing_planned(context, seal_etag), NO_PLAN, 0.0, 0.0)
    stored = records.find(context.store, context.staging_bucket, key, PlanRecord, signer=context.signer)
    if stored is None:
        raise InvalidRecord(f"{where} is missing; plan again")
    check_place(stored.record, context.layout, where)
    if stored.etag != etag:
        raise InvalidRecord(f"{where} was changed after it was written: ETag {stored.etag}, expected {etag}")
    return stored


def planned_objects(context: JobContext, plan: PlanRecord) -> Iterator[PlannedObject]:
    """Yield the objects of a plan; reads one part at a time, unless it lies within the plan, and checks it.

    Raises:
        InvalidRecord: A part is missing or was changed.

    """
    for part in plan.parts:
        if part.within is not None:
            yield from part.within
            continue
        key = context.layout.plan_part(plan.plan_id, part.number)
        try:
            fetched = context.store.get(context.staging_bucket, key, limit=PLAN_PART_BYTES)
        except NoSuchKey:
            raise InvalidRecord(f"{context.staging_uri(key)} is missing; plan again") from None
        if fetched.info.etag != part.etag:
            raise InvalidRecord(f"{context.staging_uri(key)} was changed after it was written; plan again")
        digest = sha256(fetched.body)
        check_digest(context, digest, part.sha256, context.staging_uri(key))
        yield from decode_lines(PlannedObject, BytesIO(fetched.body), context.staging_uri(key))
