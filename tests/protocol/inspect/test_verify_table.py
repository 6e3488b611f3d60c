"""A table is compared with everything in its destination, and its log with what is derived from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_s3commit import TableReport, verify
from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.protocol.inspect import verify_table as module
from airflow_s3commit.protocol.inspect.verify_log import LogCheck
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.model.layout import checkpoint_key, entry_key
from airflow_s3commit.protocol.steps import checkpoint, fold
from airflow_s3commit.protocol.table_rollback import roll_back
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, an_id, apart, named, once

HERE = Destination(BUCKET, ROOT)
FILES = {"dt=1/part-0.parquet": b"one", "dt=1/part-1.parquet": b"two", "dt=2/part-0.parquet": b"seven!!"}


def report_on(lake: Lake) -> TableReport:
    """Verify the table; nothing may change."""
    before = lake.everything()
    report = verify(lake.store, lake.destination)
    assert lake.everything() == before
    assert report.to_dict()["sound"] == report.sound
    return report


def committed(lake: Lake, name: str, files: dict[str, bytes], **options: object) -> str:
    """Commit a job and return its id."""
    lake.sealed(files, job_id=an_id(name), **options).commit()
    return an_id(name)


def test_a_table_of_several_commits_is_sound() -> None:
    """One listing of the destination finds every file of every commit that was not replaced."""
    lake = Lake()
    committed(lake, "first", FILES)
    committed(lake, "second", {"dt=2/part-0.parquet": b"replaced"})
    committed(lake, "third", {"dt=2/part-1.parquet": b"added"}, conflict_mode="append")
    lake.set_up(an_id("aborted")).abort()
    lake.store.calls.clear()
    report = report_on(lake)
    assert (report.generation, report.files, report.intact, report.entries) == (4, 4, 4, 5)
    assert (report.sound, report.log) == (True, [])
    listed = [call.key for call in lake.store.calls if call.verb == "list_objects"]
    assert listed.count(ROOT) == 1
    assert not any(call.verb == "head" and call.key.endswith(".parquet") for call in lake.store.calls)


def test_changes_to_the_files_are_named() -> None:
    """Deleted, overwritten and foreign files in any partition are named by their keys."""
    lake = Lake()
    lake.sealed(FILES).commit()
    gone, other, longer = (ROOT + named(path) for path in FILES)
    lake.store.delete(BUCKET, gone)
    lake.store.put(BUCKET, other, b"TWO")
    lake.store.put(BUCKET, longer, b"eight!!!")
    lake.put({"dt=7/foreign.parquet": b"x", "_hidden/x": b"", "dt=1/.part.crc": b""})
    report = report_on(lake)
    assert (report.complete, report.exclusive, report.sound) == (False, False, False)
    assert (report.missing, {change.key for change in report.changed}) == ([gone], {other, longer})
    assert [(found.key, found.size, found.job_id) for found in report.foreign] == [
        (f"{ROOT}dt=7/foreign.parquet", 1, None)
    ]


def test_objects_of_jobs_are_judged_by_their_end() -> None:
    """Those of an unfinished job are not a problem; those of jobs that ended are leftovers."""
    lake = Lake()
    committed(lake, "first", FILES)
    lake.set_up(THEIRS).abort()
    unfinished = lake.sealed({"dt=3/part-0.parquet": b"new"})
    lake.store.die("complete_upload", after=True)
    with pytest.raises(Crash):
        unfinished.commit()
    lake.store.rest()
    report = report_on(lake)
    assert (report.sound, [found.job_id for found in report.unfinished]) == (True, [OURS])
    lake.put({named("dt=1/x.parquet", THEIRS): b"late", named("dt=1/y.parquet", an_id("first")): b"stray"})
    report = report_on(lake)
    assert not report.exclusive
    assert {found.job_id for found in report.leftovers} == {THEIRS, an_id("first")}
    assert report.foreign_count == 0


def test_a_place_without_a_log_has_no_table() -> None:
    """There is nothing to compare it with, and that is not said to be sound."""
    with pytest.raises(NoSuchKey, match="no log"):
        verify(Lake().store, "s3://other/")


@each("digest", [hashlib.md5, hashlib.sha256])
def test_commits_meanwhile_are_not_damage(digest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replace during the listing accounts for what it removed and added, whatever ETags say of content."""
    # As with SSE-KMS: an ETag that is no MD5 says nothing, so objects are asked for their metadata.
    monkeypatch.setattr("airflow_s3commit.store.memory._md5", digest)
    lake = Lake()
    committed(lake, "first", FILES)
    replaced = {"dt=2/part-0.parquet": b"replaced"}
    lake.store.before = once("list_objects", ROOT, lambda: committed(lake, "second", replaced))
    report = verify(lake.store, HERE)
    assert (report.generation, report.intact, report.removed, report.later) == (2, 2, 1, 1)
    assert report.sound


def test_retained_files_are_not_leftovers() -> None:
    """What a commit replaced and retains is counted."""
    lake = Lake()
    committed(lake, "first", FILES)
    committed(lake, "second", {"dt=2/part-0.parquet": b"replaced"}, retain="1h")
    report = report_on(lake)
    assert (report.sound, report.intact, report.retained, report.leftover_count) == (True, 3, 1, 0)
    lake.put({"dt=1/foreign.parquet": b"x"})
    committed(lake, "third", {"dt=1/part-0.parquet": b"third"}, retain="1h")
    report = report_on(lake)
    assert (report.sound, report.intact, report.retained) == (True, 2, 4)
    lake.store.delete(BUCKET, ROOT + named("dt=2/part-0.parquet", an_id("first")))
    lake.put({"dt=1/foreign.parquet": b"another"})
    report = report_on(lake)
    assert (report.files, report.retained, report.removed, report.foreign_count) == (2, 2, 0, 1)


def test_what_an_unfinished_commit_retains_is_not_about_to_be_deleted() -> None:
    """It is counted as retained, as it is once the commit is finished."""
    lake = Lake()
    committed(lake, "first", FILES)
    job = lake.sealed({"dt=2/part-0.parquet": b"replaced"}, retain="1h")
    lake.store.die("put", "_SUCCESS")
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    report = report_on(lake)
    assert (report.sound, report.intact, report.retained, report.removed) == (True, 3, 1, 0)


def test_data_older_than_the_log_is_part_of_the_table() -> None:
    """The first entry lists it; what a commit has replaced is foreign if it is put there again."""
    lake = Lake()
    lake.put({"dt=1/old.parquet": b"old", "dt=2/old.parquet": b"old"})
    committed(lake, "first", {"dt=2/part-0.parquet": b"new"})
    report = report_on(lake)
    assert (report.sound, report.intact) == (True, 2)
    lake.put({"dt=2/old.parquet": b"again"})
    assert [found.key for found in report_on(lake).foreign] == [f"{ROOT}dt=2/old.parquet"]


def test_a_table_after_a_rollback_is_sound() -> None:
    """Files that came back are compared as those of their commit, and those that left are retained."""
    lake = Lake()
    committed(lake, "first", FILES)
    committed(lake, "second", FILES, retain="1h")
    roll_back(lake.context(THEIRS), 2, retain="1h")
    report = report_on(lake)
    assert (report.sound, report.generation, report.intact, report.retained) == (True, 4, 3, 3)
    lake.store.delete(BUCKET, ROOT + named("dt=2/part-0.parquet", an_id("first")))
    assert report_on(lake).missing_count == 1


def test_memory_does_not_hold_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings beyond the named ones are only counted, and foreign objects are not looked at."""
    monkeypatch.setattr(module, "MAX_NAMED", 2)
    lake = Lake()
    committed(lake, "first", FILES)
    lake.put({f"dt=1/foreign-{number}.parquet": b"x" for number in range(5)})
    lake.store.calls.clear()
    report = report_on(lake)
    assert (report.foreign_count, len(report.foreign)) == (5, 2)
    assert not any("foreign" in call.key for call in lake.store.calls)


def findings(lake: Lake) -> dict[str, tuple[str, bool]]:
    """Return the problem of each record, by its key, and whether it is harmless."""
    found = report_on(lake).log
    assert all(finding.remedy for finding in found)
    prefix = f"{lake.destination}_s3commit/"
    return {finding.where.removeprefix(prefix): (finding.problem, finding.harmless) for finding in found}


def three_commits(lake: Lake) -> None:
    """Commit three jobs; the second partition is replaced by the second."""
    committed(lake, "first", FILES)
    committed(lake, "second", {"dt=2/part-0.parquet": b"replaced"})
    committed(lake, "third", {"dt=3/part-0.parquet": b"added"})


LOG = [f"log/{number:020d}.json" for number in range(5)]
RECEIPT = f"jobs/{an_id('first')}.json"
LIST = "lists/"


@pytest.mark.parametrize(
    ("key", "damage", "problem"),
    [
        (LIST, "change", "not the list"),
        (LIST, "delete", "is gone"),
        (RECEIPT, "delete", "is missing"),
        (RECEIPT, "change", "differs from entry 2"),
        (RECEIPT, "swap", "differs from entry 2"),
        (LOG[3], "change", "not a valid Entry"),
        (LOG[3], "delete", "is missing"),
        (LOG[3], "swap", "does not follow entry 2"),
    ],
)
def test_a_record_that_does_not_agree_with_the_log_is_named(key: str, damage: str, problem: str) -> None:
    """Damaged, missing and forged entries, lists and receipts make the table unsound."""
    lake = Lake()
    with apart(key == LIST):
        three_commits(lake)
    if key == LIST:
        key = lake.keys(f"{HOME}{LIST}{an_id('first')}")[0].removeprefix(HOME)
    if damage == "delete":
        lake.store.delete(BUCKET, HOME + key)
    elif damage == "swap":
        lake.tamper(HOME + key, old=lake.get(HOME + LOG[2])[-40:-30], new=b"x" * 10) if key == RECEIPT else (
            lake.store.put(BUCKET, HOME + key, forged(lake))
        )
    else:
        lake.tamper(HOME + key, cut=1)
    found = findings(lake)
    assert list(found) == [key]
    assert problem in found[key][0]
    assert not found[key][1]
    assert not report_on(lake).sound


def test_an_entry_that_is_damaged_meanwhile_is_named_once() -> None:
    """However often the log is read again, and the files are those of the entries before."""
    lake = Lake()
    committed(lake, "first", FILES)

    def meanwhile() -> None:
        lake.store.rest()
        lake.set_up(OURS).abort()
        lake.tamper(entry_key(HERE, 3), cut=1)

    lake.store.before = once("get", RECEIPT, meanwhile)
    report = verify(lake.store, HERE)
    assert [one.where.removeprefix(f"{lake.destination}_s3commit/") for one in report.log] == [LOG[3]]
    assert (report.generation, report.intact, report.sound) == (2, 3, False)


def forged(lake: Lake) -> bytes:
    """Return the third entry with another entry before it."""
    entry = json.loads(lake.get(HOME + LOG[3]))
    return json.dumps({**entry, "prev": "0" * 64}).encode()


def test_an_entry_that_was_written_over_is_found_by_the_next_one() -> None:
    """Each entry names the SHA-256 of the one before, so no entry can be changed alone."""
    lake = Lake()
    three_commits(lake)
    lake.tamper(HOME + LOG[3], old=b'"tasks":1', new=b'"tasks":2')
    assert {key: problem for key, (problem, _) in findings(lake).items()} == {
        LOG[4]: "does not follow entry 3",
        f"jobs/{an_id('second')}.json": "differs from entry 3",
    }


def test_a_log_that_was_cut_is_found() -> None:
    """Older records say that the log went on: the base of an open job, ``_SUCCESS``, a job's end."""
    lake = Lake()
    three_commits(lake)
    lake.set_up(OURS)
    lake.store.delete(BUCKET, HOME + LOG[4])
    found = findings(lake)
    assert "the log ends with 3" in found[f"open/{OURS}/job.json"][0]
    assert "names generation 4; the log ends with 3" in found[f"{lake.destination}_SUCCESS"][0]
    assert not any(harmless for _, harmless in found.values())


def test_a_log_in_place_of_another_is_found() -> None:
    """A whole log agrees with itself; an open job knows the one that it was set up with."""
    lake = Lake()
    committed(lake, "first", FILES)
    lake.set_up(OURS)
    other = Lake()
    other.new_id()
    committed(other, "first", FILES)
    committed(other, "second", {"dt=1/a": b"a"}, conflict_mode="append")
    for key in other.keys(f"{HOME}log/"):
        lake.store.put(BUCKET, key, other.get(key))
    assert "another entry 2" in findings(lake)[f"open/{OURS}/job.json"][0]


def test_a_list_that_the_table_no_longer_needs_is_compared_too() -> None:
    """The files of a replaced commit can still be read by its job."""
    lake = Lake()
    with apart():
        committed(lake, "first", FILES)
    committed(lake, "second", FILES)
    (key,) = lake.keys(f"{HOME}lists/{an_id('first')}")
    lake.tamper(key, cut=1)
    assert "not the list" in findings(lake)[key.removeprefix(HOME)][0]
    assert report_on(lake).complete


@pytest.mark.parametrize("is_live", [True, False])
def test_a_changed_list_within_an_entry_is_named(is_live: bool) -> None:
    """The entry is named once, and the files whose list cannot be read are not called left over."""
    lake = Lake()
    committed(lake, "first", FILES)
    if not is_live:
        committed(lake, "second", FILES)
    key, receipt = entry_key(HERE, 2), f"{HOME}{RECEIPT}"
    for one in (key, receipt):
        lake.tamper(one, old=b'"size":', new=b'"size":1')
    report = report_on(lake)
    named_first = [one.problem for one in report.log if one.where.endswith(key)]
    assert named_first == ["has another list of files within than it names"]
    assert (report.leftover_count, report.sound) == (0, False)


def test_a_list_with_other_totals_than_its_entry_is_named() -> None:
    """Readers trust the totals without reading the list."""
    lake = Lake()
    committed(lake, "first", FILES)
    key, receipt = entry_key(HERE, 2), f"{HOME}{RECEIPT}"
    for one in (key, receipt):
        lake.tamper(one, old=b'"dt=1":{"files":2', new=b'"dt=1":{"files":3')
    assert "counts 4" in findings(lake)[LOG[2]][0]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [({"job_id": "../x"}, "impossible id"), ({"restores": {"dt=1": [9]}}, "not all in place")],
)
def test_a_forged_entry_that_follows_is_named(changes: dict[str, object], problem: str) -> None:
    """The chain does not show a forgery of the newest entry; what it says may."""
    lake = Lake()
    committed(lake, "first", FILES)
    forged = json.loads(lake.get(HOME + LOG[2]))
    if "restores" in changes:
        forged["commit"] |= changes
    else:
        forged |= changes
    lake.store.put(BUCKET, HOME + LOG[2], json.dumps(forged).encode())
    assert problem in findings(lake)[LOG[2]][0]


def test_the_newest_entry_may_lack_its_receipt() -> None:
    """The process that creates the next entry writes it, also one that comes while the log is verified."""
    lake = Lake()
    three_commits(lake)
    lake.store.delete(BUCKET, f"{HOME}jobs/{an_id('third')}.json")
    assert findings(lake) == {}
    lake.store.after = once(
        "get", f"jobs/{an_id('third')}.json", lambda: committed(lake, "fourth", {"dt=4/a": b"a"})
    )
    report = verify(lake.store, lake.destination)
    assert (report.sound, report.log) == (True, [])


@pytest.mark.parametrize("damage", ["stale", "gone", "foreign", "ahead", "of another job"])
def test_the_marker_names_a_generation_of_the_log(damage: str) -> None:
    """``_SUCCESS`` names the newest commit that is finished, or a later one, and its job."""
    lake = Lake()
    committed(lake, "first", FILES)
    old = lake.get(f"{ROOT}_SUCCESS")
    committed(lake, "second", FILES)
    new = lake.get(f"{ROOT}_SUCCESS")
    if damage == "gone":
        lake.store.delete(BUCKET, f"{ROOT}_SUCCESS")
    body = {
        "stale": old,
        "foreign": b"",
        "ahead": new.replace(b'"s3commit.generation":"3"', b'"s3commit.generation":"9"'),
        "of another job": new.replace(an_id("second").encode(), an_id("first").encode()),
    }
    if damage in body:
        lake.store.put(BUCKET, f"{ROOT}_SUCCESS", body[damage])
    ((where, (_, harmless)),) = findings(lake).items()
    assert (where, harmless) == (f"{lake.destination}_SUCCESS", False)


@pytest.mark.parametrize("moment", ["_SUCCESS", f"jobs/{OURS}.json"])
def test_the_marker_of_an_unfinished_commit_may_be_older(moment: str) -> None:
    """A job that died before or after its marker explains both; once it is finished the marker is its own."""
    lake = Lake()
    committed(lake, "first", FILES)
    job = lake.sealed(FILES)
    lake.store.die("put", moment)
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    assert findings(lake) == {}
    lake.job().recover()
    assert findings(lake) == {}


def test_a_place_without_a_finished_commit_needs_no_marker() -> None:
    """Neither the first entry nor an abort writes one."""
    lake = Lake()
    lake.put({"dt=1/old.parquet": b"old", "_SUCCESS": b""})
    lake.set_up().abort()
    assert findings(lake) == {}


def test_a_checkpoint_equals_the_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that readers pass over, damaged or of another log, is harmless; one that disagrees is not."""
    monkeypatch.setattr(fold, "CHECKPOINT_EVERY", 3)
    lake = Lake()
    three_commits(lake)
    key = checkpoint_key(HERE, 3)
    good = lake.get(key)
    assert findings(lake) == {}
    table = fold.read_table(lake.store, HERE, 3)
    del table.live["dt=1"]
    wrong = checkpoint.to_bytes(table, lake.destination)
    table.head = Position(3, "0" * 64)
    other = checkpoint.to_bytes(table, lake.destination)
    for body, problem, harmless in (
        (good[:-4], "is cut off", True),
        (other, "is of another log", True),
        (wrong, "is not what the log up to it adds up to", False),
    ):
        lake.store.put(BUCKET, key, body)
        assert list(findings(lake).values()) == [(problem, harmless)]


def test_a_damaged_log_is_read_from_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries before a checkpoint are named, and the files are still compared."""
    monkeypatch.setattr(fold, "CHECKPOINT_EVERY", 3)
    lake = Lake()
    with apart():
        three_commits(lake)
    lake.tamper(entry_key(HERE, 2), cut=1)
    report = report_on(lake)
    assert (report.generation, report.intact, len(report.log), report.sound) == (4, 4, 1, False)
    lake.store.delete(BUCKET, checkpoint_key(HERE, 3))
    assert report_on(lake).generation is None


def test_what_an_unfinished_commit_took_is_read_from_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint has of an older commit only what is left of it, which is no finding about its list."""
    monkeypatch.setattr(fold, "CHECKPOINT_EVERY", 3)
    lake = Lake()
    committed(lake, "first", {**FILES, "dt=3/part-0.parquet": b"3"})
    committed(lake, "second", {"dt=1/part-0.parquet": b"replaced"})
    dying = lake.sealed({"dt=2/part-0.parquet": b"replaced"}, job_id=an_id("third"))
    lake.store.die("put", f"log/{4:020}.json", after=True)
    with pytest.raises(Crash):
        dying.commit()
    lake.store.rest()
    assert findings(lake) == {}


def test_a_copy_is_told_from_its_original() -> None:
    """Its entries name the original, so its files are not compared, and one finding says what to do."""
    lake = Lake()
    three_commits(lake)
    for key in lake.keys(ROOT):
        lake.store.put(BUCKET, key.replace(ROOT, "copy/"), lake.get(key))
    report = verify(lake.store, f"s3://{BUCKET}/copy/")
    assert (report.sound, report.generation) == (False, None)
    assert "this dataset is a copy" in report.log[0].problem
    assert "remove _s3commit/" in report.log[0].remedy


def marked(lake: Lake, name: str, files: dict[str, bytes]) -> str:
    """Commit a job that wants a marker in each partition."""
    return committed(lake, name, files, partition_success=True)


@pytest.mark.parametrize("damage", ["stale", "gone", "foreign", "too much"])
def test_markers_of_partitions_follow_from_the_log(damage: str) -> None:
    """Each partition has the marker of the commit that touched it last, and an emptied one has none."""
    lake = Lake()
    marked(lake, "first", FILES)
    old = lake.get(f"{ROOT}dt=1/_SUCCESS")
    marked(lake, "second", {"dt=1/part-0.parquet": b"new"})
    committed(lake, "third", {"dt=9/part-0.parquet": b"all"}, committer="directory")
    committed(lake, "fourth", {"dt=1/part-0.parquet": b"again"})
    assert findings(lake) == {}
    place = "dt=2" if damage == "too much" else "dt=1"
    if damage == "gone":
        lake.store.delete(BUCKET, f"{ROOT}dt=1/_SUCCESS")
    else:
        lake.put({f"{place}/_SUCCESS": b"" if damage == "foreign" else old})
    check = LogCheck(lake.store, HERE).read()
    assert [one.where for one in check.findings] == [f"{lake.destination}{place}/_SUCCESS"]
    assert check.marked == {"dt=1": 5, "dt=2": 4, "dt=9": 4}


@pytest.mark.parametrize("committer", ["partitioned", "directory"])
def test_markers_of_an_unfinished_commit_may_be_older(committer: str) -> None:
    """What it has touched is not compared; the rest is."""
    lake = Lake()
    marked(lake, "first", FILES)
    job = lake.sealed({"dt=1/part-0.parquet": b"new"}, committer=committer)
    lake.store.die("put", "dt=1/_SUCCESS")
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    assert findings(lake) == {}
    if committer == "partitioned":
        lake.store.delete(BUCKET, f"{ROOT}dt=2/_SUCCESS")
        assert list(findings(lake)) == [f"{lake.destination}dt=2/_SUCCESS"]


def test_a_commit_while_partition_markers_are_compared_is_not_damage() -> None:
    """Its entry accounts for what it removed, though it was read for another comparison."""
    lake = Lake()
    committed(lake, "first", FILES, partition_success=True)

    def commit() -> None:
        committed(lake, "second", {"dt=2/part-0.parquet": b"replaced"}, partition_success=True)

    lake.store.before = once("get", "dt=2/_SUCCESS", commit)
    report = verify(lake.store, lake.destination)
    assert (report.sound, report.generation, report.missing_count) == (True, 3, 0)


def test_a_job_that_ends_while_the_marker_is_compared_is_not_damage() -> None:
    """A marker of a commit that came after the log was read is explained by reading it again."""
    lake = Lake()
    committed(lake, "first", FILES)
    lake.store.before = once("get", f"{ROOT}_SUCCESS", lambda: committed(lake, "second", FILES))
    report = verify(lake.store, lake.destination)
    assert (report.sound, report.log) == (True, [])


@pytest.mark.parametrize("older", [True, False])
def test_files_that_a_commit_is_about_to_delete_are_no_leftovers(older: bool) -> None:
    """While a replace deletes what it replaced the table is sound; what is left of it afterwards is named."""
    lake = Lake()
    doomed = "dt=1/part-0.parquet" if older else named("dt=1/part-0.parquet", an_id("first"))
    if older:
        lake.put(FILES)
        lake.set_up(an_id("first")).abort()
    else:
        committed(lake, "first", FILES)
    lake.put({"dt=1/foreign.parquet": b"x"})
    job = lake.sealed({"dt=1/part-0.parquet": b"new"}, job_id=an_id("second"))
    reports: list[TableReport] = []

    def meanwhile() -> None:
        lake.store.rest()
        reports.append(report_on(lake))

    lake.store.before = once("delete", doomed, meanwhile)
    job.commit()
    lake.put({doomed: b"one"})
    reports.append(report_on(lake))
    assert [(one.sound, one.files, one.removed) for one in reports] == [(True, 2, 3), (False, 2, 0)]
    assert (reports[1].foreign_count, reports[1].leftover_count) == (1, 0) if older else (0, 1)


@pytest.mark.parametrize("finishes", [False, True])
def test_files_that_an_abort_is_about_to_delete_are_no_leftovers(finishes: bool) -> None:
    """While an abort takes back what its commit had published the table is sound, and when it ends too."""
    lake = Lake()
    committed(lake, "first", FILES)
    job = lake.sealed({"dt=1/part-0.parquet": b"new"}, conflict_mode="append")
    lake.store.die("put", f"_s3commit/{LOG[3]}")
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    abort: Callable[[], object] = lambda: lake.job().abort()  # noqa: E731
    if finishes:
        lake.store.before = once("list_objects", ROOT, abort)
    else:
        lake.store.die("delete", named("dt=1/part-0.parquet"))
        with pytest.raises(Crash):
            abort()
        lake.store.rest()
    report = verify(lake.store, lake.destination)
    assert (report.sound, report.removed, report.leftover_count) == (True, 0 if finishes else 1, 0)


def test_a_job_that_is_set_up_and_publishes_meanwhile_is_unfinished() -> None:
    """Its record is looked up after the listing has shown its file."""
    lake = Lake()
    committed(lake, "first", FILES)

    def meanwhile() -> None:
        job = lake.sealed({"dt=1/part-0.parquet": b"new"}, conflict_mode="append")
        lake.store.die("put", f"_s3commit/{LOG[3]}")
        with pytest.raises(Crash):
            job.commit()
        lake.store.rest()

    lake.store.before = once("list_objects", ROOT, meanwhile)
    report = verify(lake.store, lake.destination)
    assert (report.sound, [found.job_id for found in report.unfinished]) == (True, [OURS])
