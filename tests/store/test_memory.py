"""What only the store in memory can be made to do."""

from __future__ import annotations

import pytest

from airflow_s3commit.exceptions import NoSuchUpload, StoreRejected
from airflow_s3commit.store.memory import MemoryStore
from tests.fakes import ManualClock


def completed(store: MemoryStore) -> tuple[str, list[str]]:
    """Complete an upload of ``k``; return its id and part ETags."""
    upload_id = store.create_upload("lake", "k", metadata={}, content_type="a/b")
    etags = [store.upload_part("lake", "k", upload_id, 1, b"1")]
    store.complete_upload("lake", "k", upload_id, etags)
    return upload_id, etags


def test_a_store_that_forgets_completed_uploads() -> None:
    """Asked to behave like MinIO, it does not know an upload that it has completed."""
    store = MemoryStore(repeat_complete="gone")
    upload_id, etags = completed(store)
    with pytest.raises(NoSuchUpload):
        store.complete_upload("lake", "k", upload_id, etags)


def test_a_completed_upload_is_forgotten_with_its_object() -> None:
    """A completion repeated after another write of the key neither succeeds nor touches that write."""
    store = MemoryStore()
    upload_id, etags = completed(store)
    store.put("lake", "k", b"other")
    with pytest.raises(NoSuchUpload):
        store.complete_upload("lake", "k", upload_id, etags)
    assert store.get("lake", "k").body == b"other"


def test_a_store_that_ignores_conditions() -> None:
    """Asked to, it overwrites and deletes whatever the condition says, as some stores do."""
    store = MemoryStore(conditions=False)
    store.put("lake", "k", b"1")
    store.put("lake", "k", b"2", if_none_match=True)
    store.put("lake", "k", b"3", if_match="wrong")
    assert store.get("lake", "k").body == b"3"
    store.delete("lake", "k", if_match="wrong")
    assert list(store.list_objects("lake", "")) == []


def test_its_time_can_be_handed_in() -> None:
    """Every time it states is that of the clock it was given."""
    clock = ManualClock(1000.0)
    store = MemoryStore(now=clock.time)
    assert store.put("lake", "k", b"").date == 1000.0
    clock.advance(5.0)
    fetched = store.get("lake", "k")
    assert (fetched.info.modified, fetched.date) == (1000.0, 1005.0)
    store.create_upload("lake", "u", metadata={}, content_type="a/b")
    assert [upload.initiated for upload in store.list_uploads("lake", "")] == [1005.0]


def test_by_default_its_time_moves() -> None:
    """Without a clock two writes have two times."""
    store = MemoryStore()
    assert store.put("lake", "a", b"").date < store.put("lake", "b", b"").date


def test_small_parts_can_be_allowed() -> None:
    """The least size of a part can be lowered, so that tests need no megabytes."""
    store = MemoryStore(min_part_bytes=1)
    upload_id = store.create_upload("lake", "k", metadata={}, content_type="a/b")
    etags = [store.upload_part("lake", "k", upload_id, number, b"x") for number in (1, 2)]
    store.complete_upload("lake", "k", upload_id, etags)
    assert store.get("lake", "k").body == b"xx"


def test_a_body_is_copied() -> None:
    """A part that its writer overwrites afterwards keeps its stored content."""
    store = MemoryStore()
    upload_id = store.create_upload("lake", "k", metadata={}, content_type="a/b")
    buffer = bytearray(b"before")
    etag = store.upload_part("lake", "k", upload_id, 1, memoryview(buffer))
    buffer[:] = b"after."
    store.complete_upload("lake", "k", upload_id, [etag])
    assert store.get("lake", "k").body == b"before"


@pytest.mark.parametrize("key", ["", "k" * 1025, "é" * 513])
def test_a_key_that_s3_refuses_is_refused(key: str) -> None:
    """An empty key, or one of more than 1,024 bytes, is no key of an object or of an upload."""
    store = MemoryStore()
    with pytest.raises(StoreRejected):
        store.put("lake", key, b"")
    with pytest.raises(StoreRejected):
        store.create_upload("lake", key, metadata={}, content_type="a/b")
    assert store.put("lake", "é" * 512, b"").etag == store.head("lake", "é" * 512).etag


def test_a_lifecycle_rule_can_be_claimed() -> None:
    """It returns the configured age of stale uploads."""
    assert MemoryStore(stale_upload_days=7).stale_upload_days("lake", "p/") == 7
