"""Many directories are listed with what is around them, where that may be cheaper, and are listed right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.listing import WideListing, choose_listing, data_objects
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.store.base import ObjectInfo
from airflow_s3commit.store.memory import MemoryStore


def days(count: int, below: str = "") -> list[str]:
    """Return the directories of so many days."""
    return [f"{below}dt={number:05d}" for number in range(count)]


class TestChoice:
    """What is tried."""

    @pytest.mark.parametrize("count", [0, 1, 63])
    def test_few_directories_are_listed_each(self, count: int) -> None:
        """A handful of directories is listed one by one."""
        assert choose_listing(days(count), 16) is None

    def test_many_directories_are_tried_together(self) -> None:
        """A parent may take as many requests as the directories take rounds of requests."""
        assert choose_listing(days(320), 16) == WideListing("", 20_000)
        assert choose_listing(days(320), 64) == WideListing("", 5_000)

    def test_what_is_held_has_a_bound(self) -> None:
        """However many directories there are, the objects of a parent that are held are bounded."""
        assert choose_listing(days(100_000), 1) == WideListing("", 50_000)

    def test_where_a_round_lists_them_all_there_is_nothing_to_gain(self) -> None:
        """Directories that are all listed in one round are not tried together."""
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
        """What is listed is the deepest directory that all of them are, or lie in."""
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


def lake(partitions: int, files: int, beside: int = 0) -> Watched:
    """Return a store with so many partitions of so many files, and so many objects beside them."""
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
    store = lake(100, 2)
    touched = days(100)[::1]
    found = sorted(info.key for info in data_objects(context(store), touched))
    assert found == sorted(f"t/{day}/f{number}" for day in touched for number in range(2))
    assert store.listed == ["t/"]


def test_a_parent_that_is_too_large_is_given_up() -> None:
    """Where the parent holds more than it may cost, each partition is listed, with the same result."""
    store = lake(100, 2, beside=26_000)
    found = sorted(info.key for info in data_objects(context(store), days(100)))
    assert found == sorted(f"t/{day}/f{number}" for day in days(100) for number in range(2))
    assert sorted(store.listed) == ["t/", *(f"t/{day}/" for day in days(100))]
