"""A table is compared with everything in its destination, and its log with what is derived from it."""

from __future__ import annotations

import pytest

from airflow_s3commit import TableReport, verify
from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.protocol.inspect import verify_table as module
from airflow_s3commit.protocol.inspect.verify_log import LogCheck
from airflow_s3commit.protocol.inspect.verify_table import verify_table
from airflow_s3commit.protocol.metadata import snapshot as snapshots
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import checkpoint_key, entry_key
from airflow_s3commit.protocol.model.snapshot import TableSnapshot
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, an_id, apart, named, once
from tests.protocol.metadata.test_log import entry, write

HERE = Destination(BUCKET, ROOT)
FILES = {"dt=1/part-0.parquet": b"one", "dt=1/part-1.parquet": b"two", "dt=2/part-0.parquet": b"seven!!"}


def report_on(lake: Lake, generation: int | None = None) -> TableReport:
    """Verify the table; nothing may change."""
    before = lake.everything()
    report = verify(lake.store, lake.destination, generation=generation, threads=0)
    assert lake.everything() == before
    assert isinstance(report, TableReport)
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
    assert (report.generation, report.files, report.intact, report.entries) == (3, 4, 4, 4)
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


def test_an_older_generation_is_compared_despite_later_commits() -> None:
    """Files that later commits replaced or added are counted separately; damage to the others is found."""
    lake = Lake()
    committed(lake, "first", FILES)
    committed(lake, "second", {"dt=2/part-0.parquet": b"replaced"})
    report = report_on(lake, 1)
    assert (report.generation, report.files, report.intact, report.removed, report.later) == (1, 3, 2, 1, 1)
    assert report.sound
    lake.store.delete(BUCKET, ROOT + named("dt=1/part-0.parquet", an_id("first")))
    assert report_on(lake, 1).missing_count == 1
    with pytest.raises(NoSuchKey, match="no generation 3"):
        report_on(lake, 3)
    with pytest.raises(ValueError, match="one job, or the table"):
        verify(lake.store, lake.destination, generation=1, job_id=OURS)  # type: ignore[call-overload]


def test_commits_meanwhile_are_not_damage() -> None:
    """A replace that ends while the destination is listed accounts for what it removed and added."""
    lake = Lake()
    committed(lake, "first", FILES)
    log = LogCheck(lake.store, HERE).read()
    committed(lake, "second", {"dt=2/part-0.parquet": b"replaced"})
    report = verify_table(log)
    assert (report.generation, report.intact, report.removed, report.later) == (1, 2, 1, 1)
    assert report.sound


def test_retained_files_are_not_leftovers() -> None:
    """What a commit replaced and retains is counted, and an older generation is complete."""
    lake = Lake()
    committed(lake, "first", FILES)
    committed(lake, "second", {"dt=2/part-0.parquet": b"replaced"}, retain="1h")
    report = report_on(lake)
    assert (report.sound, report.intact, report.retained, report.leftover_count) == (True, 3, 1, 0)
    assert report_on(lake, 1).intact == 3


def test_data_older_than_the_log_is_part_of_the_table() -> None:
    """Files that a baseline covers are counted; in a partition that was replaced since, they are foreign."""
    lake = Lake()
    lake.put({"dt=1/old.parquet": b"old", "dt=2/old.parquet": b"old"})
    committed(lake, "first", {"dt=2/part-0.parquet": b"new"})
    report = report_on(lake)
    assert (report.sound, report.older, report.intact) == (True, 1, 1)
    lake.put({"dt=2/old.parquet": b"again"})
    assert [found.key for found in report_on(lake).foreign] == [f"{ROOT}dt=2/old.parquet"]


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


def findings(lake: Lake, generation: int | None = None) -> dict[str, tuple[str, bool]]:
    """Return the problem of each record, by its key, and whether it is harmless."""
    found = report_on(lake, generation).log
    assert all(finding.remedy for finding in found)
    prefix = f"{lake.destination}_s3commit/"
    return {finding.where.removeprefix(prefix): (finding.problem, finding.harmless) for finding in found}


def three_commits(lake: Lake) -> None:
    """Commit three jobs; the second partition is replaced by the second."""
    committed(lake, "first", FILES)
    committed(lake, "second", {"dt=2/part-0.parquet": b"replaced"})
    committed(lake, "third", {"dt=3/part-0.parquet": b"added"})


@each(
    ("key", "damage", "problem"),
    [
        (f"manifests/{an_id('first')}.jsonl", "change", "not the list"),
        (f"manifests/{an_id('first')}.jsonl", "delete", "does not exist"),
        (f"manifests/{an_id('second')}.json", "delete", "is missing"),
        (f"manifests/{an_id('second')}.json", "change", ""),
        (f"manifests/{an_id('second')}.json", "swap", "differs from the one in entry 2"),
        (f"log/{2:020d}.json", "change", ""),
        (f"log/{2:020d}.json", "delete", "are missing"),
    ],
)
def test_a_record_that_does_not_agree_with_the_log_is_named(key: str, damage: str, problem: str) -> None:
    """Damaged, missing and forged entries, lists and manifests make the table unsound."""
    lake = Lake()
    with apart(key.endswith(".jsonl")):
        three_commits(lake)
    if damage == "delete":
        lake.store.delete(BUCKET, HOME + key)
    elif damage == "swap":
        lake.tamper(HOME + key, old=b'"files":1', new=b'"files":2')
    else:
        lake.tamper(HOME + key, cut=1)
    found = findings(lake)
    assert list(found) == [key]
    assert problem in found[key][0]
    assert not found[key][1]
    assert not report_on(lake).sound


def test_a_list_that_the_table_no_longer_needs_is_compared_too() -> None:
    """The files of a replaced commit can still be read by its job."""
    lake = Lake()
    with apart():
        committed(lake, "first", FILES)
    committed(lake, "second", FILES)
    key = f"manifests/{an_id('first')}.jsonl"
    lake.tamper(HOME + key, cut=1)
    assert "not the list" in findings(lake)[key][0]
    assert report_on(lake).complete


@each("is_live", [True, False])
def test_a_changed_list_within_an_entry_is_named(is_live: bool) -> None:
    """The entry is named once; the manifest, which still has the list, is used to compare the files."""
    lake = Lake()
    committed(lake, "first", FILES)
    committed(lake, "second", {"dt=2/part-0.parquet": b"replaced"} if is_live else FILES)
    lake.tamper(entry_key(HERE, 1), old=b'"size":', new=b'"size":1')
    report = report_on(lake)
    assert [(one.where, one.harmless) for one in report.log] == [
        (f"s3://{BUCKET}/{entry_key(HERE, 1)}", False)
    ]
    assert report.log[0].problem == "has another list of files within than it names"
    assert (report.complete, report.sound) == (True, False)
    lake.tamper(f"{HOME}manifests/{an_id('first')}.json", old=b'"size":', new=b'"size":1')
    assert {one.where for one in report_on(lake).log} == {f"s3://{BUCKET}/{entry_key(HERE, 1)}"}


def test_the_newest_commit_may_lack_its_manifest() -> None:
    """The process that creates the next entry writes it, and nothing depends on it earlier."""
    lake = Lake()
    three_commits(lake)
    key = f"manifests/{an_id('third')}.json"
    lake.store.delete(BUCKET, HOME + key)
    assert findings(lake) == {key: ("is missing", True)}
    assert report_on(lake).sound


@each("damage", ["stale", "gone", "foreign"])
def test_the_marker_names_the_newest_generation(damage: str) -> None:
    """At rest ``_SUCCESS`` names it; while a job publishes, the marker may be missing."""
    lake = Lake()
    committed(lake, "first", FILES)
    old = lake.get(f"{ROOT}_SUCCESS")
    committed(lake, "second", FILES)
    if damage == "gone":
        lake.store.delete(BUCKET, f"{ROOT}_SUCCESS")
    else:
        lake.store.put(BUCKET, f"{ROOT}_SUCCESS", old if damage == "stale" else b"")
    ((where, (problem, harmless)),) = findings(lake).items()
    assert where.endswith("_SUCCESS")
    assert ("generation" in problem or "classic" in problem, harmless) == (True, False)
    unfinished = lake.sealed(FILES)
    lake.store.die("complete_upload")
    with pytest.raises(Crash):
        unfinished.commit()
    lake.store.rest()
    assert findings(lake) == {}


def test_a_checkpoint_equals_the_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged checkpoint is harmless, as readers skip it; one that disagrees is not."""
    monkeypatch.setattr(snapshots, "CHECKPOINT_EVERY", 2)
    lake = Lake()
    three_commits(lake)
    key = checkpoint_key(HERE, 2)
    good = lake.get(key)
    assert findings(lake) == {}
    lake.store.put(BUCKET, key, good[:-4])
    ((problem, harmless),) = findings(lake).values()
    assert ("truncated" in problem, harmless) == (True, True)
    assert report_on(lake).sound
    wrong = TableSnapshot(lake.destination)
    wrong.apply(entry(1, an_id("first"), "dt=1"))
    wrong.number, wrong.generation = 2, 2
    lake.store.put(BUCKET, key, wrong.to_bytes())
    ((problem, harmless),) = findings(lake).values()
    assert (problem, harmless) == ("is not what the log up to it adds up to", False)


def test_a_damaged_log_is_read_from_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries before a checkpoint are named, and the files are still compared."""
    monkeypatch.setattr(snapshots, "CHECKPOINT_EVERY", 2)
    lake = Lake()
    three_commits(lake)
    lake.tamper(entry_key(HERE, 1), cut=1)
    report = report_on(lake)
    assert (report.generation, report.intact, len(report.log), report.sound) == (3, 4, 1, False)
    lake.store.delete(BUCKET, checkpoint_key(HERE, 2))
    assert report_on(lake).generation is None


def test_the_log_of_a_copy_is_not_a_history() -> None:
    """Entries that name the original are not compared with the copy."""
    lake = Lake()
    write(lake, entry(1, an_id("copied"), "dt=1", uri="s3://lake/trains/"))
    committed(lake, "first", FILES)
    report = report_on(lake)
    assert (report.sound, report.files, report.log) == (True, 3, [])


def test_a_commit_while_partition_markers_are_compared_is_not_damage() -> None:
    """Its entry accounts for what it removed, though it was read for another comparison."""
    lake = Lake()
    committed(lake, "first", FILES, partition_success=True)

    def commit() -> None:
        committed(lake, "second", {"dt=2/part-0.parquet": b"replaced"}, partition_success=True)

    lake.store.before = once("get", "dt=2/_SUCCESS", commit)
    report = verify(lake.store, lake.destination, threads=0)
    assert isinstance(report, TableReport)
    assert (report.generation, report.missing_count, report.removed) == (1, 0, 1)
    assert report.sound


def test_a_job_that_ends_while_the_marker_is_compared_is_not_damage() -> None:
    """A missing marker that its job has written since is not named."""
    lake = Lake()
    job = lake.sealed(FILES)
    lake.store.die("put", f"{ROOT}_SUCCESS")
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    lake.store.before = once("list_objects", "__magic_job-", lambda: lake.job().recover())
    report = verify(lake.store, lake.destination, threads=0)
    assert isinstance(report, TableReport)
    assert report.log == []


def test_files_that_a_commit_is_about_to_delete_are_no_leftovers() -> None:
    """While a replace deletes what it replaced the table is sound; what is left of it afterwards is named."""
    lake = Lake()
    first = committed(lake, "first", FILES)
    job = lake.sealed({"dt=1/part-0.parquet": b"new"}, job_id=an_id("second"))
    doomed = named("dt=1/part-0.parquet", first)
    reports: list[TableReport] = []

    def meanwhile() -> None:
        lake.store.rest()
        reports.append(report_on(lake))

    lake.store.before = once("delete", doomed, meanwhile)
    job.commit()
    lake.put({doomed: b"one"})
    reports.append(report_on(lake))
    assert [(report.sound, report.removed, report.leftover_count) for report in reports] == [
        (True, 2, 0),
        (False, 0, 1),
    ]


def test_files_that_an_abort_is_about_to_delete_are_no_leftovers() -> None:
    """While an abort takes back what its commit had published the table is sound."""
    lake = Lake()
    committed(lake, "first", FILES)
    job = lake.sealed({"dt=1/part-0.parquet": b"new"}, conflict_mode="append")
    lake.store.die("put", "/_s3commit/log/00000000000000000002.json")
    with pytest.raises(Crash):
        job.commit()
    reports: list[TableReport] = []

    def meanwhile() -> None:
        lake.store.rest()
        reports.append(report_on(lake))

    lake.store.rest()
    lake.store.before = once("delete", named("dt=1/part-0.parquet"), meanwhile)
    lake.job().abort()
    assert [(report.sound, report.removed, report.leftover_count) for report in reports] == [(True, 1, 0)]
