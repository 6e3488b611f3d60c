"""The log defines the table, which takes few requests to find and never has another table's files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_s3commit.exceptions import (
    DestinationNotEmpty,
    InvalidOption,
    InvalidRecord,
    NoSuchKey,
    Unavailable,
)
from airflow_s3commit.protocol.inspect.details import preview_commit
from airflow_s3commit.protocol.inspect.verify_table import TableReport, verify
from airflow_s3commit.protocol.metadata import manifests
from airflow_s3commit.protocol.metadata import snapshot as module
from airflow_s3commit.protocol.metadata.log_end import find_head
from airflow_s3commit.protocol.metadata.manifests import FileSummary
from airflow_s3commit.protocol.metadata.snapshot import (
    CHECKPOINT_EVERY,
    live_files,
    read_snapshot,
    unlisted_objects,
    write_checkpoint,
)
from airflow_s3commit.protocol.model.codec import encode
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import checkpoint_key, entry_key
from airflow_s3commit.protocol.model.manifest import FileEntry
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Lake, an_id, apart, named, once
from tests.protocol.lifecycle.test_enter import crash
from tests.protocol.metadata.test_log import HERE, entry, write

LOG = f"{HOME}log/"


def grown(count: int) -> Lake:
    """Return a lake with a log of commits to a hundred partitions in turn, and its checkpoints."""
    lake = Lake()
    for number in range(1, count + 1):
        one = entry(number, an_id(str(number)), f"n={number % 100}", removes="partitions")
        lake.store.inner.put(BUCKET, entry_key(HERE, number), encode(one))
        write_checkpoint(lake.store, HERE, number)
    lake.store.calls.clear()
    return lake


def live(lake: Lake, generation: int | None = None) -> list[int]:
    """Return the numbers of the commits that make up the table."""
    snapshot = read_snapshot(lake.store, HERE, generation)
    assert snapshot is not None
    return [commit.number for commit in snapshot.commits()]


def verbs(lake: Lake) -> list[str]:
    """Return the calls so far, except those for entries, which run concurrently."""
    return [call.verb for call in lake.store.calls if not (call.verb == "get" and call.key.startswith(LOG))]


def checkpoints(lake: Lake) -> list[str]:
    """Return the keys of the checkpoints."""
    return lake.keys(f"{HOME}checkpoints/")


class TestReadSnapshot:
    def test_a_log_without_commits_is_not_a_table(self) -> None:
        """Neither an empty log nor one of aborted jobs, or of another table, has a snapshot."""
        lake = Lake()
        assert read_snapshot(lake.store, HERE) is None
        write(lake, entry(1, OURS, "dt=1", uri="s3://lake/trains/"), entry(2, THEIRS, kind="abandon"))
        assert read_snapshot(lake.store, HERE) is None
        for generation, found in (1, "it is a copy of"), (2, "no commit is in"), (3, "no commit is in"):
            with pytest.raises(NoSuchKey, match=f"no generation {generation}: {found}"):
                read_snapshot(lake.store, HERE, generation)

    def test_a_long_log_is_read_from_its_newest_checkpoint(self) -> None:
        """Of 1,000 entries it reads those after the newest checkpoint, and sends three more requests."""
        lake = grown(1_000)
        assert live(lake) == list(range(901, 1_001))
        assert verbs(lake) == ["list_objects", "get", "list_objects"]
        assert len(lake.store.calls) <= 4 + CHECKPOINT_EVERY

    @pytest.mark.parametrize("generation", [1, 12, 13, 14, 26, 99])
    def test_every_generation_is_read(self, generation: int) -> None:
        """Before, at and after a checkpoint, the table is the one of the generation."""
        assert live(grown(99), generation) == list(range(1, generation + 1))

    def test_a_missing_entry_is_an_error(self) -> None:
        """A table is not read past a deleted entry, at the newest checkpoint or after it."""
        for number in (26, 27):
            lake = grown(28)
            lake.store.delete(BUCKET, entry_key(HERE, number))
            with pytest.raises(InvalidRecord, match=f"{number:020}.json is missing"):
                read_snapshot(lake.store, HERE)

    def test_an_entry_that_a_listing_lacks_is_read_by_its_key(self) -> None:
        """A table is read up to the entry that the caller knows, however old the listing is."""
        lake = grown(3)
        real = lake.store.list_objects
        lake.store.list_objects = lambda *a, **k: iter(list(real(*a, **k))[:-2])  # type: ignore[method-assign]
        assert live(lake) == [1]
        snapshot = read_snapshot(lake.store, HERE, at_least=3)
        assert snapshot is not None
        assert [commit.number for commit in snapshot.commits()] == [1, 2, 3]


class TestCheckpoint:
    def test_one_is_written_now_and_then(self) -> None:
        """Every 13th entry has a checkpoint, and no other; nothing takes it for an entry."""
        lake = grown(30)
        assert checkpoints(lake) == [checkpoint_key(HERE, number) for number in (13, 26)]
        assert find_head(lake.store, HERE) == 30

    def test_long_ones_are_written_less_often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A checkpoint saves reading some of its commits, and all together do not outgrow the log."""
        monkeypatch.setattr(module, "_PART", 1)
        lake = Lake()
        for number in range(1, 14 * 8):
            write(lake, entry(number, an_id(str(number)), f"n={number}"))
            write_checkpoint(lake.store, HERE, number)
        assert checkpoints(lake) == [checkpoint_key(HERE, 13)]

    @each(
        "damage",
        [
            lambda lake, key: lake.tamper(key, cut=5),
            lambda lake, key: lake.store.put(BUCKET, key, b""),
            lambda lake, key: lake.store.put(BUCKET, key, lake.get(checkpoint_key(HERE, 13))),
            lambda lake, key: lake.store.delete(BUCKET, key),
        ],
    )
    def test_a_damaged_one_is_skipped(self, damage: object) -> None:
        """The log is folded from an older checkpoint, or from its start: the table is the same."""
        assert callable(damage)
        lake = grown(64)
        expected = live(lake)
        for number in (26, 13):
            damage(lake, checkpoint_key(HERE, number))
            assert live(lake) == expected

    def test_a_damaged_one_gets_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        """The warning names the object."""
        lake = grown(13)
        lake.tamper(checkpoint_key(HERE, 13), cut=5)
        assert live(lake) == list(range(1, 14))
        assert f"skipping a checkpoint: s3://{BUCKET}/{checkpoint_key(HERE, 13)}" in caplog.text

    def test_one_of_another_log_is_skipped(self) -> None:
        """If the log was deleted and began again, what is left of the old one is not believed."""
        lake = grown(13)
        for key in lake.keys(LOG):
            lake.store.delete(BUCKET, key)
        write(lake, entry(1, THEIRS, "dt=1"))
        assert live(lake) == [1]
        for number in range(2, 40):
            write(lake, entry(number, an_id(f"new {number}"), "dt=1", removes="partitions"))
        assert live(lake) == [39]

    def test_a_commit_writes_it_and_does_not_need_it(self) -> None:
        """The commit of the 13th entry succeeds where the checkpoint cannot be written."""
        for failure in (None, Unavailable("no checkpoint today")):
            lake = grown(12)
            job = lake.sealed({"dt=1/a": b"a"})
            if failure is not None:
                lake.store.before = once("put", ".gz", failure)
            assert job.commit().generation == 13
            assert bool(checkpoints(lake)) == (failure is None)

    def test_it_survives_what_others_remove(self) -> None:
        """A replacement of the whole destination leaves the checkpoints."""
        lake = grown(13)
        lake.sealed({"a": b"a"}, committer="directory").commit()
        assert checkpoints(lake) == [checkpoint_key(HERE, 13)]
        assert live(lake) == [14]


class TestLiveFiles:
    def found(self, lake: Lake) -> Mapping[int, list[str]]:
        """Return the paths of the live files of each commit."""
        snapshot = read_snapshot(lake.store, HERE)
        assert snapshot is not None
        files = live_files(lake.store, HERE, snapshot.commits(), FileSummary)
        return {commit.number: [file.key for file in found] for commit, found in files}

    def test_files_of_removed_partitions_are_left_out(self) -> None:
        """Of a commit that was replaced in part, the files of the other partitions are in the table."""
        lake = Lake()
        lake.sealed({"dt=1/a": b"a", "dt=2/a": b"a"}).commit()
        lake.sealed({"dt=2/b": b"b"}, job_id=THEIRS).commit()
        assert self.found(lake) == {
            1: [lake.prefix + named("dt=1/a")],
            2: [lake.prefix + named("dt=2/b", THEIRS)],
        }

    @pytest.mark.parametrize("is_apart", [True, False])
    def test_a_long_list_is_read_in_pieces(self, is_apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """A long list, or an entry with one, is read on its own."""
        lake = Lake()
        with apart(is_apart):
            lake.sealed({"dt=1/a": b"a", "dt=1/b": b"b"}).commit()
        expected = self.found(lake)
        monkeypatch.setattr(manifests, "_LIST_BYTES", 10)
        assert self.found(lake) == expected

    @pytest.mark.parametrize("limit", [10, 10_000])
    def test_a_list_that_was_changed_is_refused(self, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Either way, it is compared with the digest in the log."""
        monkeypatch.setattr(manifests, "_LIST_BYTES", limit)
        lake = Lake()
        with apart():
            lake.sealed({"dt=1/a": b"a"}).commit()
        lake.tamper(f"{HOME}manifests/{OURS}.jsonl", old=b"dt=1/a", new=b"dt=1/x")
        with pytest.raises(InvalidRecord, match="is not the list"):
            self.found(lake)

    def test_a_list_within_takes_one_request(self) -> None:
        """It is read from the entry, which exists before the manifest."""
        lake = Lake()
        crash(lake, lake.sealed({"dt=1/a": b"a"}).commit, "put", f"{OURS}.json")
        snapshot = read_snapshot(lake.store, HERE)
        assert snapshot is not None
        assert [commit.within for commit in snapshot.commits()] == [True]
        lake.store.calls.clear()
        [(_, [file])] = live_files(lake.store, HERE, snapshot.commits(), FileSummary)
        assert file.key == lake.prefix + named("dt=1/a")
        assert [(call.verb, call.key) for call in lake.store.calls] == [("get", entry_key(HERE, 1))]

    @pytest.mark.parametrize("limit", [10, 10_000])
    def test_a_list_within_that_was_changed_is_refused(
        self, limit: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is compared with the digest in the checkpoint, as is the manifest's list, used instead."""
        monkeypatch.setattr(manifests, "_LIST_BYTES", limit)
        monkeypatch.setattr(module, "CHECKPOINT_EVERY", 2)
        lake = Lake()
        for number in (1, 2):
            lake.sealed({f"dt={number}/a": b"a"}, job_id=an_id(str(number)), conflict_mode="append").commit()
        good = self.found(lake)
        key, copy = entry_key(HERE, 1), f"{HOME}manifests/{an_id('1')}.json"
        lake.tamper(key, old=b"dt=1/a", new=b"dt=1/x")
        assert self.found(lake) == good
        lake.tamper(copy, old=b"dt=1/a", new=b"dt=1/x")
        with pytest.raises(InvalidRecord, match=r"1\.json is not the list"):
            self.found(lake)
        lake.store.delete(BUCKET, key)
        with pytest.raises(NoSuchKey, match=r"1\.json does not exist"):
            self.found(lake)

    def test_whole_entries_are_read_on_demand(self) -> None:
        """A reader gets the fields of each file that it asks for."""
        lake = Lake()
        lake.sealed({"dt=1/a": b"abc"}).commit()
        snapshot = read_snapshot(lake.store, HERE)
        assert snapshot is not None
        ((_, (whole,)),) = live_files(lake.store, HERE, snapshot.commits(), FileEntry)
        ((_, (short,)),) = live_files(lake.store, HERE, snapshot.commits(), FileSummary)
        assert (whole.size, whole.partition) == (3, "dt=1")
        assert (short.key, short.size, short.rows) == (whole.key, whole.size, whole.rows)


FLIGHTS = Destination(BUCKET, ROOT)
WEEK = "7d"
FIRST, THIRD = an_id("first"), an_id("third")


def two_generations(retain: str = WEEK) -> Lake:
    """Return a lake whose second commit has replaced one of two partitions."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1", "dt=2/a": b"2"}, job_id=FIRST, conflict_mode="append").commit()
    lake.sealed({"dt=1/a": b"new"}, retain=retain).commit()
    return lake


def table(lake: Lake, generation: int | None = None) -> set[str]:
    """Return the paths of the files of the table, without its baseline."""
    snapshot = read_snapshot(lake.store, FLIGHTS, generation)
    assert snapshot is not None
    files = live_files(lake.store, FLIGHTS, snapshot.commits(), FileSummary)
    return {file.key.removeprefix(ROOT) for _, some in files for file in some}


OLD, OLD2, NEW = named("dt=1/a", FIRST), named("dt=2/a", FIRST), named("dt=1/a")


def test_a_retaining_commit_leaves_what_it_replaces() -> None:
    """The replaced files stay, but not in the table; the generation before has them."""
    lake = two_generations()
    assert lake.data().keys() == {OLD, OLD2, NEW}
    assert table(lake) == {OLD2, NEW}
    assert table(lake, 1) == {OLD, OLD2}
    manifest = lake.job().manifest()
    assert manifest is not None
    assert manifest.replaced.files == 1


def test_what_cannot_be_retained_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Before files without a job's id are deleted, a warning says how many, and names one."""
    lake = two_generations()
    lake.put({"dt=1/another": b"program's"})
    job = lake.sealed({"dt=1/a": b"newest"}, job_id=THIRD, retain=WEEK)
    job.plan()
    (warned,) = [one.getMessage() for one in caplog.records if "retain=" in one.getMessage()]
    named_one = f"s3://{BUCKET}/{ROOT}dt=1/another"
    assert f"does not hold for 1 of the 2 objects that it replaces, such as {named_one}:" in warned
    job.commit()
    assert lake.data().keys() == {OLD, OLD2, NEW, named("dt=1/a", THIRD)}


def test_nothing_is_retained_by_default() -> None:
    """Without ``retain`` the replaced files are deleted at once."""
    lake = two_generations(retain="0s")
    assert lake.data().keys() == {OLD2, NEW}
    snapshot = read_snapshot(lake.store, FLIGHTS)
    assert snapshot is not None
    assert snapshot.retained() == []


@each("retain", ["0s", WEEK])
@each("committer", ["magic", "directory"])
def test_a_later_replace_leaves_retained_files(committer: str, retain: str) -> None:
    """A plan has the files of the table, and none that an earlier commit retains."""
    lake = two_generations()
    job = lake.sealed({"dt=1/a": b"newest"}, job_id=THIRD, committer=committer, retain=retain)
    replaced = {"magic": {NEW}, "directory": {NEW, OLD2}}[committer]
    assert preview_commit(lake.context(THIRD)).replaced == len(replaced)
    assert job.plan().objects == len(replaced)
    job.commit()
    gone = set() if retain == WEEK else replaced
    assert lake.data().keys() == {OLD, OLD2, NEW, named("dt=1/a", THIRD)} - gone
    assert table(lake) == {named("dt=1/a", THIRD)} | ({OLD2} if committer == "magic" else set())


def test_foreign_files_are_not_retained() -> None:
    """Files of no generation are deleted at once, even by a commit that retains."""
    lake = two_generations()
    lake.put({"dt=1/foreign": b"f"})
    lake.sealed({"dt=1/a": b"newest"}, job_id=THIRD, retain=WEEK).commit()
    assert lake.data().keys() == {OLD, OLD2, NEW, named("dt=1/a", THIRD)}


@each("committer", ["magic", "directory"])
def test_retained_files_are_not_data_for_a_job_that_fails_on_data(committer: str) -> None:
    """Conflict mode ``fail`` is refused for data of the table, but not for its former files."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}, job_id=FIRST, conflict_mode="append").commit()
    lake.sealed({"dt=2/a": b"2"}, committer="directory", retain=WEEK).commit()
    assert lake.data().keys() == {OLD, named("dt=2/a")}
    if committer == "directory":
        lake.set_up(THEIRS, conflict_mode="append")
        with pytest.raises(DestinationNotEmpty, match=named("dt=2/a")):
            lake.set_up(THIRD, committer=committer, conflict_mode="fail")
        return
    lake.sealed({"dt=1/a": b"3"}, job_id=THIRD, conflict_mode="fail").commit()
    assert table(lake) == {named("dt=2/a"), named("dt=1/a", THIRD)}
    again = lake.sealed({"dt=1/b": b"4"}, job_id=THEIRS, conflict_mode="fail")
    with pytest.raises(DestinationNotEmpty, match=named("dt=1/a", THIRD)):
        again.commit()


def test_a_job_that_was_set_up_earlier_knows_of_retained_files() -> None:
    """A job learns from the log that files have been retained since its setup."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}, job_id=FIRST, conflict_mode="append").commit()
    late = lake.sealed({"dt=1/a": b"late"}, job_id=THIRD)
    lake.sealed({"dt=1/a": b"new"}, retain=WEEK).commit()
    late.commit()
    assert lake.data().keys() == {OLD, named("dt=1/a", THIRD)}


def test_aborts_in_between_do_not_hide_retained_files() -> None:
    """An abandoned job between the retaining commit and a plan hides nothing."""
    lake = two_generations()
    lake.set_up(THEIRS).abort()
    lake.sealed({"dt=1/a": b"newest"}, job_id=THIRD).commit()
    assert lake.data().keys() == {OLD, OLD2, named("dt=1/a", THIRD)}


def test_verify_does_not_take_retained_files_for_foreign_ones() -> None:
    """A retained file beside those of the last job is not a finding; a foreign one is."""
    lake = two_generations()
    report = verify(lake.store, FLIGHTS, job_id=OURS, threads=0)
    assert report.exclusive
    whole = verify(lake.store, FLIGHTS, threads=0)
    assert isinstance(whole, TableReport)
    assert (whole.sound, whole.retained) == (True, 1)
    lake.put({"dt=1/foreign": b"f"})
    assert verify(lake.store, FLIGHTS, job_id=OURS, threads=0).unlisted == [f"{ROOT}dt=1/foreign"]


@each(
    ("options", "message"),
    [
        ({"retain": "7"}, "retain: '7' is not a duration"),
        ({"retain": "1000000w"}, "more than a hundred years"),
        ({"retain": 7}, "retain=7 is not text"),
    ],
)
def test_retain_is_a_duration(options: dict[str, Any], message: str) -> None:
    """Only durations are accepted, of a hundred years at most."""
    with pytest.raises(InvalidOption, match=message):
        JobOptions(conflict_mode="replace", **options)


def test_a_copy_of_a_table_with_retained_files_is_refused() -> None:
    """A baseline by listing would take the retained files of the original for data."""
    lake = two_generations()
    for key in lake.keys(ROOT):
        lake.store.put(BUCKET, key.replace(ROOT, "copy/"), lake.get(key))
    copied = Lake(prefix="copy/")
    copied.store = lake.store
    job = copied.sealed({"dt=1/a": b"c"}, job_id=THEIRS)
    with pytest.raises(InvalidRecord, match="retains files that it has replaced"):
        job.commit()
    assert [key for key in lake.keys(f"{HOME}log/") if key.endswith("3.json")] == []


def test_live_and_retained_jobs_are_distinguished() -> None:
    """The table's own files are told from retained ones of the same partition."""
    lake = two_generations()
    snapshot = read_snapshot(lake.store, FLIGHTS)
    assert snapshot is not None
    assert (snapshot.live_jobs("dt=1"), snapshot.retained_jobs("dt=1")) == ({OURS}, {FIRST})


def test_a_job_that_has_ended_is_looked_up_once() -> None:
    """Its manifest answers, so there are no further requests for it."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    for job_id in (THEIRS, an_id("3"), an_id("4")):
        lake.sealed({"dt=1/a": b"1"}, job_id=job_id, conflict_mode="append").commit()
    snapshot = read_snapshot(lake.store, FLIGHTS)
    assert snapshot is not None
    lake.store.calls.clear()
    assert [info.key for info in unlisted_objects(lake.store, FLIGHTS, snapshot, ())] == [f"{ROOT}dt=1/old"]
    asked = [call.key for call in lake.store.calls if THEIRS in call.key or an_id("3") in call.key]
    assert sorted(asked) == sorted(f"{ROOT}_s3commit/manifests/{job}.json" for job in (THEIRS, an_id("3")))


def test_the_file_of_a_job_that_ends_between_two_looks_is_not_unlisted() -> None:
    """It had no manifest at the first look, and is not unfinished at the second: its entry names its file."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.sealed({"dt=1/a": b"1"}, job_id=THEIRS, conflict_mode="append").commit()
    job = lake.sealed({"dt=1/b": b"2"}, conflict_mode="append")
    with apart():
        crash(lake, job.commit, "put", f"{OURS}.jsonl")
    snapshot = read_snapshot(lake.store, FLIGHTS)
    assert snapshot is not None

    def commit() -> None:
        lake.store.rest()
        job.commit()

    lake.store.before = once("head", f"manifests/{OURS}.json", commit)
    assert [info.key for info in unlisted_objects(lake.store, FLIGHTS, snapshot, ())] == [f"{ROOT}dt=1/old"]
    assert job.manifest() is not None


def test_a_removed_partition_has_no_unlisted_files() -> None:
    """Files that another program writes there afterwards belong to no generation."""
    lake = Lake()
    lake.put({"dt=1/old": b"old", "dt=2/old": b"old"})
    lake.sealed({"dt=1/a": b"1"}, job_id=THEIRS).commit()
    lake.put({"dt=1/foreign": b"f"})
    snapshot = read_snapshot(lake.store, FLIGHTS)
    assert snapshot is not None
    assert [info.key for info in unlisted_objects(lake.store, FLIGHTS, snapshot, ())] == [f"{ROOT}dt=2/old"]
