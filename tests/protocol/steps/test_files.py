"""What a commit may take: the table's files, and objects that no job of the destination wrote."""

from __future__ import annotations

import pytest

from airflow_s3commit.exceptions import DestinationNotEmpty
from airflow_s3commit.protocol.metadata.store_check import STORE_CLOCK_SECONDS
from airflow_s3commit.protocol.steps.files import unowned_objects
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.protocol.steps.sweep import release
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Crash, Lake, an_id, named

OLD = "dt=1/old"
THEIR_FILE = named("dt=1/theirs", THEIRS)

#: As Spark's own committers name a file: with an id of the write.
SPARKS = f"dt=1/part-00000-{an_id('a write of Spark')}-c000.snappy.parquet"


def unowned(lake: Lake, *partitions: str) -> list[str]:
    """Return the paths of the objects that our job would take beside the table's files."""
    table = read_table(lake.store, lake.context().layout.destination)
    found = unowned_objects(lake.context(), table, partitions or None)
    return sorted(one.key.removeprefix(lake.prefix) for one in found)


def half_published(job_id: str = THEIRS, *, staging: str | None = None) -> Lake:
    """Return a lake with an old file and one that a job published before it died without an entry."""
    lake = Lake()
    lake.put({OLD: b"old"})
    if staging is not None:
        place = lake.reference(job_id)
        lake.reference = lambda _=OURS: type(place)(  # type: ignore[method-assign, assignment]
            job_id=job_id, destination=place.destination, staging=f"{staging}__magic_job-{job_id}/"
        )
    files = {"dt=1/theirs": b"t", "dt=1/unpublished": b"u"}
    job = lake.sealed(files, job_id=job_id, conflict_mode="append", staging=staging)
    lake.store.die("complete_upload", after=True)
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    return lake


def test_files_of_the_table_are_no_objects_of_others() -> None:
    """Neither what is older than the log nor what jobs have committed, in any partition."""
    lake = Lake()
    lake.put({OLD: b"old", SPARKS: b"spark's"})
    lake.sealed({"dt=1/theirs": b"t", "dt=2/theirs": b"t"}, job_id=THEIRS, conflict_mode="append").commit()
    assert unowned(lake) == unowned(lake, "dt=1", "dt=2") == []


@each("path", ["dt=1/added", SPARKS, named("dt=1/x", an_id("a job of another table"))])
@each("mode", ["replace", "fail"])
@each("committer", ["magic", "directory"])
def test_a_file_that_another_program_adds_is_data(path: str, mode: str, committer: str) -> None:
    """It is replaced, or refuses the commit, though its name may have an id like that of a job."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"1"}, conflict_mode=mode, committer=committer)
    lake.put({path: b"added", "dt=1/_hidden": b"", "dt=1/.x": b""})
    if mode == "fail":
        with pytest.raises(DestinationNotEmpty):
            job.preview()
        with pytest.raises(DestinationNotEmpty):
            job.commit()
    else:
        assert (job.preview().objects, job.preview().partitions) == (1, ["dt=1"])
        assert job.commit().replaced.files == 1
        assert lake.data().keys() == {named("dt=1/a"), "dt=1/_hidden", "dt=1/.x"}


def test_a_file_that_another_program_writes_over_is_its_own() -> None:
    """An object that is newer than the table's file of this key is replaced too."""
    lake = Lake()
    lake.put({OLD: b"old"})
    job = lake.sealed({"dt=1/a": b"1"})
    lake.put({OLD: b"newer"})
    assert unowned(lake) == [OLD]
    job.commit()
    assert lake.data() == {named("dt=1/a"): b"1"}


def test_files_of_the_job_itself_stay() -> None:
    """What the job published before its commit began again is not among what it replaces."""
    assert unowned(half_published(OURS)) == []


@each("staging", [None, "s3://lake/elsewhere/", "s3://other/private/"])
def test_files_of_a_job_that_has_not_ended_stay(staging: str | None) -> None:
    """A job with a record has not ended, wherever its staging is, and whatever its objects carry."""
    lake = half_published(staging=staging)
    assert unowned(lake) == unowned(lake, "dt=1") == []
    lake.put({THEIR_FILE: b"copied over"})
    assert unowned(lake) == []


@each("body", [b"", b"{", bytes(2 << 20)])
def test_a_job_whose_record_cannot_be_read_has_not_ended(body: bytes) -> None:
    """Its files stay: it may be under way."""
    lake = half_published()
    lake.store.put(BUCKET, lake.open_key(job_id=THEIRS), body)
    assert unowned(lake) == []


def test_what_a_late_request_left_of_an_aborted_job_stays() -> None:
    """It is of a job that has ended, and a sweep removes it."""
    lake = half_published()
    left = lake.store.inner._buckets[BUCKET].objects[ROOT + THEIR_FILE]
    lake.job(THEIRS).abort()
    lake.store.inner._buckets[BUCKET].objects[ROOT + THEIR_FILE] = left
    assert unowned(lake) == []
    lake.sealed({"dt=1/a": b"1"}).commit()
    assert THEIR_FILE in lake.data()


def test_a_copy_begins_with_all_of_its_files() -> None:
    """In a copy without the original's records every file is older than its log, whatever its name is."""
    lake = half_published()
    copy = Lake(prefix="copy/")
    copy.store = lake.store
    for path, body in lake.data().items():
        copy.put({path: body})
    copy.sealed({"dt=2/a": b"1"}, job_id=an_id("of the copy")).commit()
    assert unowned(copy) == []
    copy.sealed({"dt=1/a": b"1"}).commit()
    assert set(copy.data()) == {named("dt=1/a"), named("dt=2/a", an_id("of the copy"))}


def test_ids_in_names_are_looked_up_once() -> None:
    """However many files have an id, it takes two requests; files of the table and plain names take none."""
    lake = Lake()
    lake.sealed({"dt=1/theirs": b"t"}, job_id=THEIRS, conflict_mode="append").commit()
    lake.put({"dt=1/plain": b"p"})
    table, context = read_table(lake.store, lake.context().layout.destination), lake.context()
    sent = []
    for paths in ([], [named(f"dt=1/{number}", an_id("a write")) for number in range(30)]):
        lake.put(dict.fromkeys(paths, b"t"))
        lake.store.calls.clear()
        assert len(unowned_objects(context, table, None)) == 1 + len(paths)
        sent.append([call.verb for call in lake.store.calls])
    assert sent == [["list_objects"], ["list_objects", "head", "head"]]


def test_another_program_s_object_that_is_retained_is_not_taken_again() -> None:
    """A later commit leaves it in place for its time, unless that program has written over it since."""
    lake = Lake()
    lake.put({"dt=1/kept": b"kept", "dt=1/changed": b"as it was"})
    lake.set_up(an_id("the first")).abort()
    lake.put({"dt=1/added": b"added", "dt=1/changed": b"changed"})
    lake.sealed({"dt=1/a": b"1"}, retain="1d").commit()
    lake.put({"dt=1/changed": b"changed again"})
    assert lake.sealed({"dt=1/b": b"2"}, job_id=THEIRS).commit().replaced.files == 2
    left = {"dt=1/kept": b"kept", "dt=1/added": b"added", named("dt=1/b", THEIRS): b"2"}
    assert lake.data() == left


def test_a_release_leaves_what_another_program_wrote_over_a_retained_file() -> None:
    """Only the object that was retained is deleted, by its ETag."""
    lake = Lake()
    lake.put({OLD: b"old", "dt=1/other": b"other"})
    lake.sealed({"dt=1/a": b"1"}, retain="1d").commit()
    lake.put({OLD: b"newer"})
    lake.store_clock.advance(86_400 + STORE_CLOCK_SECONDS + 1)
    assert release(lake.context(an_id("nobody")), lake.store_clock.time()) == 1
    assert lake.data() == {OLD: b"newer", named("dt=1/a"): b"1"}
