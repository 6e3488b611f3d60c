"""What was measured of the stores that a destination's jobs use."""

from __future__ import annotations

from airflow_s3commit.protocol.model.codec import Versioned
from airflow_s3commit.protocol.model.limits import Line, Text
from airflow_s3commit.store.profile import StoreProfile


class StoreRecord(Versioned, frozen=True, kw_only=True):
    """``_s3commit/store.json``: the profiles of the buckets of a destination's jobs, as last measured.

    Attributes:
        version: Always 1.
        endpoint: Address of the store that was measured; at another one the record is of no use.
        buckets: The profile of each bucket.
        signature: By the key of the process that measured, where jobs are signed.

    """

    endpoint: Line
    buckets: dict[Line, StoreProfile]
    signature: Text | None = None
