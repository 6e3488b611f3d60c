"""The jobs that ended last, without reading about all that ever did."""

from __future__ import annotations

import heapq
from itertools import islice

from msgspec import Struct

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.destination import Destination, join_uri
from airflow_s3commit.protocol.journal import Stored, fetch_listed
from airflow_s3commit.protocol.layout import aborted_prefix, manifests_prefix
from airflow_s3commit.protocol.ownership import check_ending
from airflow_s3commit.protocol.records import AbortedRecord, ManifestRecord, decode, largest
from airflow_s3commit.protocol.survey import JobSummary, committed_summary
from airflow_s3commit.store.base import Fetched, ObjectInfo, ObjectStore

__all__ = ["Endings", "aborted_summary", "latest_endings"]

#: Objects that are listed to find the latest: ten requests for each of manifests and aborts.
_LISTED = 10_000


class Endings(Struct, frozen=True, kw_only=True):
    """Jobs that ended, the last one first.

    Attributes:
        jobs: What is known of them: of a committed one its manifest, of an aborted one when, why and whose.
        complete: Whether all endings were looked at to find the last ones; their names are in no order of
            time, and a listing is cut short where there are very many.

    """

    jobs: list[JobSummary]
    complete: bool = True


def latest_endings(store: ObjectStore, destination: Destination, most: int) -> Endings:
    """Find the jobs that were committed or aborted last; nothing is changed.

    Args:
        store: Where everything is.
        destination: The destination.
        most: How many to read.

    Raises:
        S3CommitError: The store could not be asked.

    """
    found: list[ObjectInfo] = []
    complete = True
    for prefix in (manifests_prefix(destination), aborted_prefix(destination)):
        listed = list(islice(store.list_objects(destination.bucket, prefix), _LISTED + 1))
        complete = complete and len(listed) <= _LISTED
        found += (info for info in listed[:_LISTED] if info.key.endswith(".json"))
    latest = heapq.nlargest(most, found, key=lambda info: info.modified)
    jobs: dict[str, JobSummary] = {}
    for info, outcome in fetch_listed(
        store, destination.bucket, latest, lambda key: largest(_kind(destination, key))
    ):
        jobs[info.key] = _summary(destination, info.key, outcome)
    return Endings(jobs=[jobs[info.key] for info in latest if info.key in jobs], complete=complete)


def _kind(destination: Destination, key: str) -> type[ManifestRecord | AbortedRecord]:
    return AbortedRecord if key.startswith(aborted_prefix(destination)) else ManifestRecord


def _summary(destination: Destination, key: str, fetched: Fetched | InvalidRecord) -> JobSummary:
    age = max(fetched.date - fetched.info.modified, 0.0) if isinstance(fetched, Fetched) else None
    where, job_id = join_uri(destination.bucket, key), key.rpartition("/")[2].removesuffix(".json")
    try:
        if isinstance(fetched, InvalidRecord):
            raise fetched
        record = decode(_kind(destination, key), fetched.body, where)
        check_ending(record, destination, job_id, where)
    except InvalidRecord as error:
        return JobSummary(
            job_id=job_id,
            destination=None,
            staging=None,
            state="aborted" if _kind(destination, key) is AbortedRecord else "committed",
            age=age,
            problem=str(error),
        )
    if isinstance(record, AbortedRecord):
        return aborted_summary(record, destination, age)
    return committed_summary(Stored(record, fetched.info.etag, fetched.info.modified, fetched.date))


def aborted_summary(aborted: AbortedRecord, destination: Destination, age: float | None) -> JobSummary:
    """Describe an aborted job by all that is left of it: its record, and that record's age in seconds."""
    return JobSummary(
        job_id=aborted.job_id,
        destination=destination.uri,
        staging=None,
        state="aborted",
        since=aborted.since,
        reason=aborted.reason,
        context=aborted.context,
        age=age,
    )
