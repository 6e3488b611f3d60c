"""Before a job starts, the store is checked for everything that the protocol needs."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_s3commit.exceptions import (
    AccessDenied,
    NoSuchBucket,
    OutcomeUnknown,
    StoreRejected,
    StoreUnsuitable,
)
from airflow_s3commit.protocol.metadata.capabilities import check_bucket, check_store, honours_conditions
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.store.memory import MemoryStore
from tests.protocol.building import BUCKET, OURS, Lake, once

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_s3commit.store.base import ObjectInfo

REQUIRED, BEST_EFFORT = JobOptions(), JobOptions(fencing="best-effort")


class HalfBlind(MemoryStore):
    """A store that ignores one of the two conditions, or refuses it.

    Args:
        blind: The condition it ignores or refuses.
        refuses: Whether it refuses it.

    """

    def __init__(self, blind: str, *, refuses: bool = False) -> None:
        super().__init__()
        self._blind = blind
        self._refuses = refuses

    def put(self, bucket: str, key: str, body: bytes, **arguments: Any) -> Any:
        """Write without that condition, or not at all."""
        if arguments.pop(self._blind, None) and self._refuses:
            raise StoreRejected("a header you provided implies functionality that is not implemented")
        return super().put(bucket, key, body, **arguments)


class Narrow(MemoryStore):
    """A store whose credentials reach what is below ``flights/`` and nothing else."""

    def check_bucket(self, bucket: str) -> None:
        """Refuse: a HEAD of a bucket names no prefix."""
        raise AccessDenied("403")

    def list_objects(self, bucket: str, prefix: str, **arguments: Any) -> Iterator[ObjectInfo]:
        """List below that prefix."""
        if not prefix.startswith("flights/"):
            raise AccessDenied("below flights/ alone")
        return super().list_objects(bucket, prefix, **arguments)


def test_a_good_store_is_told_by_a_probe() -> None:
    """Conditions are found to be honoured, and nothing is left of the probe."""
    lake = Lake()
    assert check_store(lake.context(), REQUIRED)
    assert lake.everything() == Lake().everything()


@pytest.mark.parametrize("blind", ["if_none_match", "if_match"])
@pytest.mark.parametrize("refuses", [False, True])
def test_each_condition_is_tried(blind: str, refuses: bool) -> None:
    """A store that ignores or refuses only one of the two conditions is found out."""
    store = HalfBlind(blind, refuses=refuses)
    assert not honours_conditions(store, BUCKET, "probe")
    assert list(store.list_objects(BUCKET, "")) == []


def test_a_store_that_ignores_conditions_is_unsuitable() -> None:
    """Required fencing refuses it, best effort goes on and remembers."""
    lake = Lake(conditions=False)
    with pytest.raises(StoreUnsuitable, match="cannot be kept apart"):
        check_store(lake.context(), REQUIRED)
    assert not check_store(lake.context(), BEST_EFFORT)
    assert lake.everything() == Lake().everything()


def test_the_answer_is_remembered() -> None:
    """A store is probed once for each bucket, not once for each job."""
    lake = Lake()
    check_store(lake.context(), REQUIRED)
    lake.store.calls.clear()
    check_store(lake.context("another"), REQUIRED)
    assert lake.store.calls == []
    assert Lake(conditions=False).store is not lake.store
    with pytest.raises(StoreUnsuitable):
        check_store(Lake(conditions=False).context(), REQUIRED)


def test_both_buckets_are_probed() -> None:
    """If the staging is in another bucket, that one's conditions count too."""
    lake = Lake()
    layout = lake.context().layout
    apart = lake.context(layout=replace(layout, staging=Destination("other", f"x/__magic_job-{OURS}/")))
    assert check_store(apart, REQUIRED)
    assert [verb for verb, _ in lake.store.calls].count("put") == 2 * 4
    nowhere = lake.context(layout=replace(layout, staging=Destination("nowhere", f"x/__magic_job-{OURS}/")))
    with pytest.raises(NoSuchBucket):
        check_store(nowhere, REQUIRED)


@pytest.mark.parametrize("verb", ["create_upload", "list_uploads", "abort_upload", "put", "delete"])
def test_a_right_that_is_missing_shows_at_once(verb: str) -> None:
    """A role that may not start, list or abort uploads, write or delete is refused before any work."""
    lake = Lake()
    lake.store.before = once(verb, "", AccessDenied("no"))
    with pytest.raises(AccessDenied):
        check_store(lake.context(), REQUIRED)


def test_rights_below_one_prefix_are_enough() -> None:
    """Credentials that may list below the destination alone, and are refused a HEAD of it, will do."""
    check_bucket(Narrow(), BUCKET, "flights/")
    with pytest.raises(AccessDenied, match="below flights/ alone"):
        check_bucket(Narrow(), BUCKET, "elsewhere/")


def test_a_probe_that_fails_is_removed() -> None:
    """If the probe itself is interrupted by an error, its object is removed."""
    lake = Lake()
    lake.store.after = once("put", "", OutcomeUnknown("lost"))
    with pytest.raises(OutcomeUnknown):
        check_store(lake.context(), REQUIRED)
    assert (lake.keys(""), lake.pending()) == ([], [])
    assert check_store(lake.context(), REQUIRED)


@pytest.mark.parametrize(
    ("days", "level"), [(None, logging.INFO), (0, logging.WARNING), (1, logging.WARNING), (7, None)]
)
def test_a_short_lifecycle_rule_is_warned_of(
    days: int | None, level: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A rule that removes uploads too early is warned of, a missing one is mentioned, a good one is not."""
    caplog.set_level(logging.INFO, "airflow_s3commit.protocol.metadata.capabilities")
    check_store(Lake(stale_upload_days=days).context(), REQUIRED)
    levels = [record.levelno for record in caplog.records if "lifecycle" in record.message]
    assert levels == ([] if level is None else [level])
