"""The registry of destinations: each is written once, and read without trust."""

from __future__ import annotations

import logging

import pytest

from airflow_s3commit import Destination, Job, JobOptions, MemoryStore, register_destination
from airflow_s3commit.exceptions import InvalidDestination
from airflow_s3commit.protocol.metadata.registry import failures_logged, has_records, is_gone, read_registry
from airflow_s3commit.protocol.metadata.removal import forget_destination
from airflow_s3commit.protocol.model.destination import RegisteredDestination, is_pattern, matches
from airflow_s3commit.store.forwarding import CountingStore

REGISTRY = Destination.parse("s3://ops/registry/")
FLIGHTS, ORDERS = "s3://lake/flights/", "s3://lake/orders/"


@pytest.fixture
def memory() -> MemoryStore:
    """Return a store with a bucket for data and one for the registry."""
    return MemoryStore(buckets=("lake", "ops"))


def test_a_destination_is_written_at_most_once(memory: MemoryStore) -> None:
    """Each set-up makes one request, and all but the first change nothing."""
    store = CountingStore(memory)
    for _ in range(3):
        register_destination(store, REGISTRY, FLIGHTS, aws_conn_id="lake", staging=FLIGHTS)
    assert sum(store.counters.values()) == 3
    (entry,) = read_registry(memory, REGISTRY)
    assert (entry.record.destination, entry.record.aws_conn_id) == (FLIGHTS, "lake")
    assert entry.record.staging is None


def test_destinations_share_no_object(memory: MemoryStore) -> None:
    """Each destination, connection or staging has its own object; the list is in order of URIs."""
    for staging in ("s3://ops/records/", None):
        for destination in (ORDERS, FLIGHTS):
            register_destination(memory, REGISTRY.uri, destination, staging=staging)
    found = [entry.record for entry in read_registry(memory, REGISTRY)]
    assert [record.destination for record in found] == [FLIGHTS, FLIGHTS, ORDERS, ORDERS]
    assert {record.staging for record in found} == {None, "s3://ops/records/"}
    assert len({record.name for record in found}) == 4


def test_a_known_object_is_not_read_again(memory: MemoryStore) -> None:
    """A second reading lists, and reads new objects only."""
    register_destination(memory, REGISTRY, FLIGHTS)
    known = {(entry.key, entry.etag): entry for entry in read_registry(memory, REGISTRY)}
    register_destination(memory, REGISTRY, ORDERS)
    store = CountingStore(memory)
    assert len(read_registry(store, REGISTRY, known)) == 2
    assert sum(store.counters.values()) == 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"version":2,"destination":"s3://lake/flights/"}',
        b'{"version":1,"destination":"s3://lake/other/"}',
        b'{"version":1,"destination":"file:///etc/"}',
        b'{"version":1,"destination":"s3://lake/flights/","staging":"x"}',
    ],
)
def test_a_changed_object_is_left_out(
    memory: MemoryStore, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged record, or one under another record's name, is ignored; the others are read."""
    register_destination(memory, REGISTRY, FLIGHTS)
    (entry,) = read_registry(memory, REGISTRY)
    register_destination(memory, REGISTRY, ORDERS)
    memory.put("ops", entry.key, body)
    with caplog.at_level(logging.WARNING):
        assert [entry.record.destination for entry in read_registry(memory, REGISTRY)] == [ORDERS]
    assert "left out of the registry" in caplog.text


def test_a_failure_is_logged_once(memory: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever fails, the caller continues, and the log has one line that names both prefixes."""
    away = "s3://no-such-bucket/registry/"
    with caplog.at_level(logging.WARNING), failures_logged(away, FLIGHTS):
        register_destination(memory, away, FLIGHTS)
    with failures_logged("nonsense", FLIGHTS):
        register_destination(memory, "nonsense", FLIGHTS)
    first, second = (record.getMessage() for record in caplog.records)
    assert away in first
    assert FLIGHTS in first
    assert "nonsense" in second
    with pytest.raises(InvalidDestination):
        register_destination(memory, "nonsense", FLIGHTS)


def test_a_destination_is_gone_when_nothing_is_left(memory: MemoryStore) -> None:
    """An object or a pending upload, there or in the staging, keeps it; otherwise it is forgotten."""
    register_destination(memory, REGISTRY, FLIGHTS, staging="s3://ops/records/")
    register_destination(memory, REGISTRY, ORDERS)
    flights, orders = read_registry(memory, REGISTRY)
    memory.put("ops", "records/__magic_job-x/job.json", b"{}")
    memory.create_upload("lake", "orders/part-0", metadata={}, content_type="text/plain")
    assert not is_gone(memory, flights.record)
    assert not is_gone(memory, orders.record)
    memory.delete("ops", "records/__magic_job-x/job.json")
    assert is_gone(memory, flights.record)
    assert not forget_destination(memory, "ops", flights.key, "another etag")
    assert forget_destination(memory, "ops", flights.key, flights.etag)
    assert [entry.record.destination for entry in read_registry(memory, REGISTRY)] == [ORDERS]


@pytest.mark.parametrize(
    ("pattern", "is_match"),
    [
        ("s3://lake/*", True),
        ("s3://lake/flights", True),
        ("s3://*/flight?", True),
        ("s3://lake/f", False),
        ("s3://LAKE/*", False),
    ],
)
def test_patterns(pattern: str, is_match: bool) -> None:
    """A star matches slashes too; a final slash is optional; case matters."""
    assert matches(FLIGHTS, pattern) is is_match
    assert is_pattern(pattern) is ("*" in pattern or "?" in pattern)


def test_an_object_where_records_lie_proves_nothing(memory: MemoryStore) -> None:
    """A place counts as ours by a valid record that names it, not by any object below ``_s3commit/``."""
    for key in ("log/00000000000000000001.json", "notes.txt"):
        memory.put("lake", f"flights/_s3commit/{key}", b"{}")
    Job.setup(memory, ORDERS, options=JobOptions(conflict_mode="append"))
    flights = RegisteredDestination(destination=FLIGHTS)
    assert not has_records(memory, flights)
    assert has_records(memory, RegisteredDestination(destination=ORDERS))
    for info in memory.list_objects("lake", "orders/_s3commit/log/"):
        memory.put("lake", info.key.replace("orders/", "flights/"), memory.get("lake", info.key).body)
    assert not has_records(memory, flights)
