"""The resolved conflicts of a job."""

from __future__ import annotations

from msgspec import Struct

from airflow_s3commit.protocol.model.codec import JobOwned, Plain
from airflow_s3commit.protocol.model.limits import Count, Generation, Line, Text


class PlannedObject(Struct, frozen=True, kw_only=True):
    """An existing object that a commit replaces.

    Attributes:
        key: Its key.
        size: Its bytes.
        etag: Its ETag when the plan was made.
        overwritten: The job writes the same key: completing the upload replaces the object.
        retained: It is a file of the table, and stays in place until a sweep releases it.

    """

    key: Text
    size: Count
    etag: Line
    overwritten: bool = False
    retained: bool = False


#: ETag of a part that lies within the plan's record. A version that looks for its object refuses the plan.
WITHIN = "none"


class PlanPart(Struct, frozen=True, kw_only=True):
    """One piece of a plan's list of objects.

    Attributes:
        number: Its number.
        etag: ETag of its object; ``none`` if it has none.
        objects: How many objects it lists.
        sha256: SHA-256 of its object in hexadecimal; None without one, or in plans of older versions.
        within: The list itself, if it is short; None if it is an object.

    """

    number: Count
    etag: Text
    objects: Count
    sha256: Text | None = None
    within: list[PlannedObject] | None = None


class PlanRecord(JobOwned, frozen=True, kw_only=True):
    """``plan/<plan id>/summary.json``: the resolved conflicts of a job. Written once.

    Attributes:
        version: Always 1.
        job_id: The job.
        destination: URI of its destination; None in plans of older versions.
        staging: URI of its staging; likewise.
        plan_id: Names the directory of its parts, and is its writer's nonce.
        seal_etag: The seal it was made for.
        base: Number of the newest entry of the log when it was made; 0 without one.
        parts: The pieces of the list of planned objects.
        objects: How many objects are planned.
        bytes: Their bytes.
        overwritten: How many of them the job overwrites in place.
        unnamed: How many of them have no job's id in their names.
        digest: Sum of a hash of each planned object's key, size and ETag: equal for equal sets in any order.
        signature: By the planner's key, where jobs are signed.

    """

    plan_id: Text
    seal_etag: Text
    base: Generation = 0
    parts: list[PlanPart]
    objects: Count
    bytes: Count
    overwritten: Count
    unnamed: Count = 0
    digest: Text
    signature: Text | None = None


class PlanReference(Plain, Struct, frozen=True, kw_only=True):
    """Location, ETag and totals of a plan.

    Attributes:
        location: URI of the plan.
        etag: Its ETag.
        partitions: Number of partitions with files of the job.
        objects: Number of existing objects that the commit replaces.
        bytes: Their total size.

    """

    location: Text
    etag: Text
    partitions: Count
    objects: Count
    bytes: Count
