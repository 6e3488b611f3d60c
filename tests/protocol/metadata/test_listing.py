"""Data is listed with few requests, and files of unfinished jobs are not part of the dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.listing import (
    WideListing,
    choose_listing,
    data_objects,
    settled_objects,
)
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobReference
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.store.base import ObjectInfo
from airflow_s3commit.store.memory import MemoryStore
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Crash, Lake, named


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


def lake(partitions: int, files: int, beside: int = 0) -> Watched:
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
    store = lake(100, 2)
    touched = days(100)[::1]
    found = sorted(info.key for info in data_objects(context(store), touched))
    assert found == sorted(f"t/{day}/f{number}" for day in touched for number in range(2))
    assert store.listed == ["t/"]


def test_a_parent_that_is_too_large_is_given_up() -> None:
    """If the parent holds more than it may cost, each partition is listed, with the same result."""
    store = lake(100, 2, beside=26_000)
    found = sorted(info.key for info in data_objects(context(store), days(100)))
    assert found == sorted(f"t/{day}/f{number}" for day in days(100) for number in range(2))
    assert sorted(store.listed) == ["t/", *(f"t/{day}/" for day in days(100))]


OLD = "dt=1/old"
THEIR_FILE = named("dt=1/theirs", THEIRS)


def settled(lake: Lake, *directories: str) -> list[str]:
    """Return the paths that our job may replace, below the dataset's prefix."""
    found = settled_objects(lake.context(), directories or None)
    return sorted(info.key.removeprefix(lake.prefix) for info in found)


def half_published(job_id: str = THEIRS, *, staging: str | None = None) -> Lake:
    """Return a lake with an old file and one that a job published before it died without an entry."""
    lake = Lake()
    lake.put({OLD: b"old"})
    if staging is not None:
        place = f"{staging}__magic_job-{job_id}/"
        lake.reference = lambda _=OURS: JobReference(  # type: ignore[method-assign]
            job_id=job_id, destination=lake.destination, staging=place
        )
    files = {"dt=1/theirs": b"t", "dt=1/unpublished": b"u"}
    job = lake.sealed(files, job_id=job_id, conflict_mode="append", staging=staging)
    lake.store.die("complete_upload", after=True)
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    return lake


def copied(lake: Lake, *, metadata: bool, to: str = "copy/") -> Lake:
    """Return a copy of the dataset, whose objects keep their metadata or lose it."""
    copy = Lake(prefix=to)
    copy.store = lake.store
    objects = lake.store.inner._buckets[BUCKET].objects
    for key in lake.keys(ROOT):
        headers = objects[key].headers if metadata else {}
        lake.store.put(BUCKET, to + key.removeprefix(ROOT), objects[key].body, headers=headers)
    return copy


class TestSettled:
    """Which files a replacing job may replace."""

    def test_files_of_the_job_itself_are_kept(self) -> None:
        """What the job published before its commit began again is not among what it replaces."""
        assert settled(half_published(OURS)) == [OLD]

    def test_files_of_an_unfinished_job_are_kept(self) -> None:
        """A job with a record in the default staging has not ended; its uploads' metadata is not needed."""
        lake = half_published()
        assert settled(lake) == [OLD]
        lake.put({THEIR_FILE: b"t"})
        assert settled(lake) == settled(lake, "dt=1") == [OLD]

    @pytest.mark.parametrize("staging", ["s3://lake/elsewhere/", "s3://other/private/"])
    def test_an_unfinished_job_with_another_staging_is_known_by_its_objects(self, staging: str) -> None:
        """If its record cannot be found, the object's metadata names the destination."""
        lake = half_published(staging=staging)
        assert lake.staging(THEIRS) == []
        assert list(lake.data()) == [OLD, THEIR_FILE]
        assert settled(lake) == [OLD]

    def test_files_of_a_committed_job_are_settled(self) -> None:
        """They are part of the dataset, in the partitions that are listed."""
        lake = Lake()
        files = {"dt=1/theirs": b"t", "dt=2/theirs": b"t"}
        lake.sealed(files, job_id=THEIRS, conflict_mode="append").commit()
        assert settled(lake) == [THEIR_FILE, named("dt=2/theirs", THEIRS)]
        assert settled(lake, "dt=1") == [THEIR_FILE]

    def test_files_of_an_aborted_job_are_settled(self) -> None:
        """What a late request left of an ended job no longer belongs to a job."""
        lake = half_published()
        left = lake.store.inner._buckets[BUCKET].objects[ROOT + THEIR_FILE]
        lake.job(THEIRS).abort()
        lake.store.inner._buckets[BUCKET].objects[ROOT + THEIR_FILE] = left
        assert settled(lake) == sorted([OLD, THEIR_FILE])

    def test_files_without_a_job_id_are_settled(self) -> None:
        """Objects of other programs belong to no job, and cost no request."""
        lake = Lake()
        lake.put({OLD: b"old", "dt=1/part-00000.parquet": b"spark", "_hidden": b"", "dt=1/.x": b""})
        lake.store.calls.clear()
        assert settled(lake) == [OLD, "dt=1/part-00000.parquet"]
        assert [call.verb for call in lake.store.calls] == ["list_objects"]

    def test_files_named_like_a_job_that_never_was_are_settled(self) -> None:
        """An id in the name is not enough: such files come from other tools, or other tables."""
        lake = Lake()
        lake.put({THEIR_FILE: b"t"})
        assert settled(lake) == [THEIR_FILE]

    @pytest.mark.parametrize("metadata", [True, False])
    def test_a_copy_s_files_are_settled(self, metadata: bool) -> None:
        """A copy has no unfinished jobs, although the original's records and objects were copied too."""
        copy = copied(half_published(), metadata=metadata)
        assert settled(copy) == sorted([OLD, THEIR_FILE])

    @pytest.mark.parametrize("metadata", [True, False])
    def test_a_copy_of_a_whole_dataset_is_settled(self, metadata: bool) -> None:
        """The files of jobs that committed to the original are the copy's data."""
        lake = Lake()
        lake.sealed({"dt=1/theirs": b"t"}, job_id=THEIRS, conflict_mode="append").commit()
        assert settled(copied(lake, metadata=metadata)) == [THEIR_FILE]

    def test_objects_of_older_versions_belong_to_their_place(self) -> None:
        """An object that names a job and no destination is an unfinished job's, as it was written here."""
        lake = Lake()
        lake.store.put(BUCKET, ROOT + THEIR_FILE, b"t", headers={"x-amz-meta-s3commit-job": THEIRS})
        assert settled(lake) == []

    @pytest.mark.parametrize("body", [b"", b"{", bytes(2 << 20)])
    def test_a_damaged_record_settles_nothing(self, body: bytes) -> None:
        """A job whose record cannot be read may be under way, so its files stay."""
        lake = half_published()
        lake.put({THEIR_FILE: b"t"})
        lake.store.put(BUCKET, lake.context(THEIRS).layout.job, body)
        assert settled(lake) == [OLD]

    def test_a_job_is_looked_up_once_for_each_page(self) -> None:
        """However many files a job has, its records are looked up once."""
        lake = Lake()
        lake.put({named(f"dt=1/{number}", THEIRS): b"t" for number in range(30)})
        lake.store.calls.clear()
        assert len(settled(lake)) == 30
        assert len(lake.store.calls) == 1 + 4

    def test_the_job_that_holds_its_files_back_is_named(self, caplog: pytest.LogCaptureFixture) -> None:
        """The warning about files that stay names their job, and the command that shows it."""
        assert settled(half_published()) == [OLD]
        assert f"s3commit show s3://lake/flights/ {THEIRS}" in caplog.text
