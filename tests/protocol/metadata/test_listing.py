"""Data is listed with few requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_s3commit.exceptions import InvalidDestination
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.listing import (
    WideListing,
    choose_listing,
    data_objects,
    refuse_nested,
)
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.store.base import ObjectInfo
from airflow_s3commit.store.memory import MemoryStore
from tests.protocol.building import ROOT, Lake


def days(count: int, below: str = "") -> list[str]:
    """Return the directories of a number of days."""
    return [f"{below}dt={number:05d}" for number in range(count)]


class TestChoice:
    """Which directories are listed together."""

    @pytest.mark.parametrize("count", [0, 1, 63])
    def test_few_directories_are_listed_separately(self, count: int) -> None:
        """A handful of directories is listed one by one."""
        assert choose_listing(days(count), 16) is None

    def test_many_directories_are_tried_together(self) -> None:
        """A parent may take as many requests as its directories take rounds of requests."""
        assert choose_listing(days(320), 16) == WideListing("", 20_000)
        assert choose_listing(days(320), 64) == WideListing("", 5_000)

    def test_the_held_objects_are_bounded(self) -> None:
        """However many directories there are, the objects held for a parent are bounded."""
        assert choose_listing(days(100_000), 1) == WideListing("", 50_000)

    def test_directories_of_one_round_are_not_listed_together(self) -> None:
        """If one round lists all directories, they are not tried together."""
        assert choose_listing(days(100), 128) is None

    @pytest.mark.parametrize(
        ("directories", "around"),
        [
            (days(64, "country=nl/"), "country=nl"),
            ([*days(64, "country=nl/"), *days(64, "country=no/")], ""),
            ([*days(64, "a/b/c/"), "a/b"], "a/b"),
            ([*days(64, "a/"), ""], ""),
            ([*days(64, "a/x"), "a/x"], "a"),
        ],
    )
    def test_no_more_than_their_parent_is_listed(self, directories: list[str], around: str) -> None:
        """The listing covers the deepest directory that contains all of them."""
        choice = choose_listing(directories, 1)
        assert choice is not None
        assert choice.directory == around


class Watched(MemoryStore):
    """A store that notes what was listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[str] = []

    def list_objects(self, bucket: str, prefix: str, **options: Any) -> Iterator[ObjectInfo]:
        """Note it and list."""
        self.listed.append(prefix)
        return super().list_objects(bucket, prefix, **options)


def crowded(partitions: int, files: int, beside: int = 0) -> Watched:
    """Return a store with a number of partitions, files in each, and other objects beside them."""
    store = Watched()
    for day in days(partitions):
        for number in range(files):
            store.put("lake", f"t/{day}/f{number}", b"x")
        store.put("lake", f"t/{day}/deeper/f", b"x")
        store.put("lake", f"t/{day}/_hidden", b"x")
    for number in range(beside):
        store.put("lake", f"t/other/{number:06d}", b"x")
    return store


def context(store: MemoryStore, threads: int = 4) -> JobContext:
    """Return a job on that store."""
    return JobContext(store, Layout.of(Destination.parse("s3://lake/t/"), "j-1"), threads=threads)


def test_small_partitions_are_one_listing() -> None:
    """The data of a hundred small partitions is found by a single listing, and nothing else with it."""
    store = crowded(100, 2)
    touched = days(100)[::1]
    found = sorted(info.key for info in data_objects(context(store), touched))
    assert found == sorted(f"t/{day}/f{number}" for day in touched for number in range(2))
    assert store.listed == ["t/"]


def test_a_parent_that_is_too_large_is_given_up() -> None:
    """If the parent holds more than it may cost, each partition is listed, with the same result."""
    store = crowded(100, 2, beside=26_000)
    found = sorted(info.key for info in data_objects(context(store), days(100)))
    assert found == sorted(f"t/{day}/f{number}" for day in days(100) for number in range(2))
    assert sorted(store.listed) == ["t/", *(f"t/{day}/" for day in days(100))]


@pytest.mark.parametrize("threads", [0, 4])
def test_data_objects_are_found_in_any_number_of_directories(threads: int) -> None:
    """Directories are listed without those below them, with or without threads."""
    lake = Lake()
    lake.put({f"dt={n}/{name}": b"x" for n in range(40) for name in ("a", "b", "sub/c", "_h")})
    found = data_objects(lake.context(threads=threads), [f"dt={n}" for n in range(0, 40, 2)])
    expected = {f"{ROOT}dt={n}/{name}" for n in range(0, 40, 2) for name in ("a", "b")}
    assert {info.key for info in found} == expected
    assert len(list(data_objects(lake.context(), None))) == 120
    assert list(data_objects(lake.context(), [])) == []


def test_a_directory_of_many_pages_is_fully_listed() -> None:
    """What follows the prefetched page is listed too, in its place."""
    lake = Lake()
    lake.put({f"dt=1/{n:06d}": b"" for n in range(5_000)})
    found = data_objects(lake.context(), ["dt=1"])
    assert next(found).key == f"{ROOT}dt=1/000000"
    assert sum(1 for _ in found) == 4_999


def test_destinations_below_are_noticed() -> None:
    """A directory below that has records of its own is named, if all of the destination is listed."""
    lake = Lake()
    lake.put({"dt=1/a": b"", "archive/_s3commit/log/00000000000000000001.json": b"", "_s3commit/x": b""})
    nested: set[str] = set()
    assert [info.key for info in data_objects(lake.context(), None, nested=nested)] == [f"{ROOT}dt=1/a"]
    with pytest.raises(InvalidDestination, match="such as s3://lake/flights/archive/"):
        refuse_nested(lake.context().layout.destination, nested)
    refuse_nested(lake.context().layout.destination, set())
