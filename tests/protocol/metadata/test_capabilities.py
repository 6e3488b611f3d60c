"""Before a job starts, the store is checked for everything that the protocol requires."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_s3commit.exceptions import (
    AccessDenied,
    NoSuchBucket,
    OutcomeUnknown,
    PreconditionFailed,
    StoreRejected,
    StoreUnsuitable,
)
from airflow_s3commit.protocol.metadata.capabilities import (
    FRESH_SECONDS,
    check_bucket,
    check_store,
    find_profiles,
    keep_profiles,
    measure,
)
from airflow_s3commit.protocol.metadata.fitness import LISTED, STORE_CLOCK_SECONDS
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import store_key
from airflow_s3commit.protocol.model.ownership import HmacSigner
from airflow_s3commit.store.base import DeleteFailure, ObjectToDelete
from airflow_s3commit.store.memory import MemoryStore
from airflow_s3commit.store.profile import StoreProfile
from airflow_s3commit.testing import StoreCall
from tests.protocol.building import BUCKET, OURS, Lake, once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_s3commit.store.base import ObjectInfo

OPTIONS = JobOptions()


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


class Careless(MemoryStore):
    """A store where some deletes ignore ETags.

    Args:
        lacks: ``delete`` for single deletes, ``many`` for bulk ones.

    """

    def __init__(self, lacks: str) -> None:
        super().__init__()
        self._lacks = lacks

    def delete(self, bucket: str, key: str, *, if_match: str | None = None) -> None:
        """Delete, whatever the condition is."""
        super().delete(bucket, key, if_match=None if self._lacks == "delete" else if_match)

    def delete_many(self, bucket: str, objects: Sequence[ObjectToDelete]) -> list[DeleteFailure]:
        """Delete, whatever the ETags are."""
        failures = []
        for one in objects:
            try:
                super().delete(bucket, one.key, if_match=None if self._lacks == "many" else one.etag)
            except PreconditionFailed:
                failures.append(DeleteFailure(one.key, "PreconditionFailed", ""))
        return failures


class Narrow(MemoryStore):
    """A store whose credentials only reach what is below ``flights/``."""

    def check_bucket(self, bucket: str) -> None:
        """Refuse: a HEAD of a bucket names no prefix."""
        raise AccessDenied("403")

    def list_objects(self, bucket: str, prefix: str, **arguments: Any) -> Iterator[ObjectInfo]:
        """List below that prefix."""
        if not prefix.startswith("flights/"):
            raise AccessDenied("below flights/ alone")
        return super().list_objects(bucket, prefix, **arguments)


RECORD = "flights/_s3commit/store.json"


def test_a_probe_recognises_a_good_store() -> None:
    """Conditions are found to be honoured, and only the record of that is left."""
    lake = Lake()
    assert check_store(lake.context(), OPTIONS) == {BUCKET: StoreProfile()}
    assert lake.keys("") == [RECORD]
    assert lake.pending() == []


@pytest.mark.parametrize("blind", ["if_none_match", "if_match"])
@pytest.mark.parametrize("refuses", [False, True])
def test_each_condition_is_tried(blind: str, refuses: bool) -> None:
    """A store that ignores or refuses only one of the two conditions is detected."""
    store = HalfBlind(blind, refuses=refuses)
    found = measure(store, BUCKET, "probe")
    assert (found.create_only, found.compare_and_swap) == (blind != "if_none_match", blind != "if_match")
    assert not found.fences
    assert store.profile(BUCKET) == found
    assert list(store.list_objects(BUCKET, "")) == []


@pytest.mark.parametrize(("lacks", "losses"), [("delete", "right before it is deleted"), ("many", "")])
def test_deletes_are_tried(lacks: str, losses: str) -> None:
    """A store whose deletes, single or in bulk, ignore ETags is detected, and the consequences are named."""
    found = measure(Careless(lacks), BUCKET, "probe")
    assert (found.conditional_delete, found.bulk_etags) == (lacks != "delete", lacks != "many")
    assert found.fences
    assert losses in " ".join(found.losses)
    assert bool(found.losses) == bool(losses)


def test_a_store_that_ignores_conditions_is_unsuitable() -> None:
    """The error names the store, the bucket and the condition that is ignored."""
    lake = Lake(conditions=False)
    with pytest.raises(StoreUnsuitable, match="on memory:: in bucket lake writes with If-None-Match"):
        check_store(lake.context(), OPTIONS)


def test_the_answer_is_remembered() -> None:
    """A store is probed once for each bucket, not for each job."""
    lake = Lake()
    check_store(lake.context(), OPTIONS)
    lake.store.calls.clear()
    check_store(lake.context("another"), OPTIONS)
    assert lake.store.calls == []
    assert Lake(conditions=False).store is not lake.store
    with pytest.raises(StoreUnsuitable):
        check_store(Lake(conditions=False).context(), OPTIONS)


def test_profiles_are_measured_once() -> None:
    """Another process reads what the first one stored, with one request, and the store follows it."""
    lake = Lake()
    kept = StoreProfile(bare_etags=True)
    keep_profiles(lake.store, lake.context().layout.destination, {BUCKET: kept})
    lake.store.calls.clear()
    assert check_store(lake.context(), OPTIONS) == {BUCKET: kept}
    assert [call for call in lake.store.calls if call.verb in ("get", "put", "delete")] == [
        StoreCall("get", BUCKET, RECORD)
    ]
    assert lake.store.profile(BUCKET) == kept


@pytest.mark.parametrize("why", ["elsewhere", "old", "from the future", "damaged"])
def test_a_useless_record_is_replaced(why: str) -> None:
    """Profiles of another endpoint, with a wrong time, or unreadable, are measured again."""
    lake = Lake()
    home = lake.context().layout.destination
    keep_profiles(lake.store, home, {BUCKET: StoreProfile(bare_etags=True)})
    if why == "elsewhere":
        lake.tamper(store_key(home), old=b"memory:", new=b"https://s3.example.org")
    elif why == "old":
        lake.store_clock.sleep(FRESH_SECONDS + 1)
    elif why == "from the future":
        lake.store_clock.advance(-STORE_CLOCK_SECONDS - 1)
    else:
        lake.tamper(store_key(home), cut=1)
    assert find_profiles(lake.store, home) == {}
    assert check_store(lake.context(), OPTIONS) == {BUCKET: StoreProfile()}
    assert find_profiles(lake.store, home) == {BUCKET: StoreProfile()}


def test_a_signed_job_only_trusts_signed_profiles() -> None:
    """With a signer, profiles that others could have written are measured again, and kept signed."""
    lake, signer = Lake(), HmacSigner.of_text("k" * 32)
    home, forged = lake.context().layout.destination, {BUCKET: StoreProfile(create_only=False)}
    for other in (None, HmacSigner.of_text("o" * 32)):
        keep_profiles(lake.store, home, forged, other)
        assert find_profiles(lake.store, home, signer) == {}
    assert check_store(lake.context(signer=signer), OPTIONS) == {BUCKET: StoreProfile()}
    assert find_profiles(lake.store, home, signer) == {BUCKET: StoreProfile()}


def test_both_buckets_are_probed() -> None:
    """If the staging is in another bucket, that bucket's conditions count too."""
    lake = Lake()
    layout = lake.context().layout
    apart = lake.context(layout=replace(layout, staging=Destination("other", f"x/__magic_job-{OURS}/")))
    assert check_store(apart, OPTIONS).keys() == {BUCKET, "other"}
    assert [call.verb for call in lake.store.calls].count("put") == 2 * (9 + LISTED) + 1
    nowhere = lake.context(layout=replace(layout, staging=Destination("nowhere", f"x/__magic_job-{OURS}/")))
    with pytest.raises(NoSuchBucket):
        check_store(nowhere, OPTIONS)


@pytest.mark.parametrize("verb", ["create_upload", "list_uploads", "abort_upload", "put", "delete"])
def test_a_missing_right_shows_at_once(verb: str) -> None:
    """A role that may not start, list or abort uploads, write or delete is refused before any work."""
    lake = Lake()
    lake.store.before = once(verb, "", AccessDenied("no"))
    with pytest.raises(AccessDenied):
        check_store(lake.context(), OPTIONS)


def test_rights_below_one_prefix_are_enough() -> None:
    """Credentials that may only list below the destination, and are refused a HEAD of the bucket, suffice."""
    check_bucket(Narrow(), BUCKET, "flights/")
    with pytest.raises(AccessDenied, match="below flights/ alone"):
        check_bucket(Narrow(), BUCKET, "elsewhere/")


def test_a_probe_that_fails_is_removed() -> None:
    """If an error interrupts the probe, its object is removed."""
    lake = Lake()
    lake.store.after = once("put", "", OutcomeUnknown("lost"))
    with pytest.raises(OutcomeUnknown):
        check_store(lake.context(), OPTIONS)
    assert (lake.keys(""), lake.pending()) == ([], [])
    assert check_store(lake.context(), OPTIONS)


def test_a_dead_setups_probe_is_removed() -> None:
    """The next measurement removes a completed probe that is days old, but not one that a job may need."""
    lake = Lake()
    old, new = (f"flights/_s3commit/probe-{name}" for name in ("old", "new"))
    lake.store.put(BUCKET, old, b"")
    lake.store_clock.sleep(2 * 86_400.0)
    lake.store.put(BUCKET, new, b"")
    check_store(lake.context(), OPTIONS)
    assert lake.keys("") == [new, RECORD]


@pytest.mark.parametrize(
    ("days", "level"), [(None, logging.INFO), (0, logging.WARNING), (1, logging.WARNING), (7, None)]
)
def test_a_short_lifecycle_rule_gets_a_warning(
    days: int | None, level: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A rule that removes uploads too early gets a warning, a missing one a mention, a good one neither."""
    caplog.set_level(logging.INFO, "airflow_s3commit.protocol.metadata.capabilities")
    check_store(Lake(stale_upload_days=days).context(), OPTIONS)
    levels = [record.levelno for record in caplog.records if "lifecycle" in record.message]
    assert levels == ([] if level is None else [level])
