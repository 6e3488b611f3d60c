"""What follows a commit's entry follows from the entry and the log alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_s3commit.exceptions import InvalidRecord, OutcomeUnknown
from airflow_s3commit.protocol.inspect.verify_table import verify
from airflow_s3commit.protocol.repair import repair
from airflow_s3commit.protocol.steps import finish
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, an_id, named

ENTRY = f"log/{2:020d}.json"


def _at_the_entry(lake: Lake, *acts: Callable[[], object]) -> None:
    """Have things done right after the entry of our job."""

    def after(call: object) -> None:
        if str(call).startswith("put") and str(call).endswith(ENTRY):
            lake.store.after = lambda _: None
            for act in acts:
                act()

    lake.store.after = after


@each("mode", ["append", "replace"])
@each("committer", ["magic", "directory"])
@each("dies", [False, True])
def test_nothing_is_inferred_from_a_listing_after_the_entry(mode: str, committer: str, dies: bool) -> None:
    """After its entry a commit lists no data: what another program adds then is not taken for anybody's."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    job = lake.sealed({"dt=1/a": b"1"}, conflict_mode=mode, committer=committer)
    acts = [lambda: lake.put({"dt=1/late": b"late"}), lake.store.calls.clear]
    _at_the_entry(lake, *acts, *([lake.store.crash] if dies else []))
    if dies:
        with pytest.raises(Crash):
            job.commit()
        lake.store.rest()
    lake.job().commit()
    listed = {call.key for call in lake.store.calls if call.verb == "list_objects"}
    assert all(key.startswith((HOME, f"{ROOT}__magic_job-")) for key in listed)
    old = {"dt=1/old": b"old"} if mode == "append" else {}
    assert lake.data() == {**old, "dt=1/late": b"late", named("dt=1/a"): b"1"}
    assert lake.entries()[1]["commit"].get("unowned", []) == []


@each("old", ["dt=1/old", f"dt=1/part-00000-{THEIRS}.c000.parquet"])
def test_a_file_that_is_written_over_after_the_entry_stays(old: str) -> None:
    """What a commit took of other programs, Spark too, is deleted only as it was when the entry was made."""
    lake = Lake()
    lake.put({old: b"old"})
    job = lake.sealed({"dt=1/a": b"1"})
    lake.put({"dt=1/added": b"added"})
    _at_the_entry(lake, lambda: lake.put({old: b"newer", "dt=1/added": b"newer"}))
    job.commit()
    assert lake.data() == {old: b"newer", "dt=1/added": b"newer", named("dt=1/a"): b"1"}


@each("when", ["before the entry", "after it"])
def test_nothing_is_deleted_by_an_entry_that_was_written_over(when: str) -> None:
    """A commit takes and deletes nothing by an entry that is not the one that the next one follows."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    if when == "before the entry":
        lake.sealed({"dt=2/b": b"2"}, job_id=THEIRS).commit()
    job = lake.sealed({"dt=1/a": b"1"})
    if when == "after it":
        lake.store.die("put", ENTRY, after=True)
        with pytest.raises(Crash):
            job.commit()
        lake.store.rest()
    lake.tamper(f"{HOME}log/{1:020d}.json", old=b'"since":1', new=b'"since":2')
    with pytest.raises((InvalidRecord, OutcomeUnknown), match="does not follow"):
        lake.job().commit()
    assert lake.data()["dt=1/old"] == b"old"


@each("end", ["commit", "abort"])
def test_staging_of_more_than_a_page_goes(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much tasks have staged, counted or not, nothing of it is left or pending after the end."""
    monkeypatch.setattr(finish, "_PAGE", 3)
    lake = Lake()
    job = lake.sealed(*({f"dt=1/{number}": b"1"} for number in range(4)))
    for number in range(4):
        lake.run_task(job, {f"dt=1/late {number}": b"2"}, task=f"late{number}")
    getattr(lake.job(), end)()
    assert (lake.staging(), lake.pending(), lake.keys(f"{HOME}open/")) == ([], [], [])
    assert len(lake.data()) == (4 if end == "commit" else 0)


@each("end", ["commit", "abort"])
def test_what_a_job_has_in_two_buckets_goes(end: str) -> None:
    """The end of a job removes its records from both buckets; done again, also what came late."""
    lake = Lake()
    getattr(lake.sealed({"dt=1/a": b"1"}, staging="s3://other/jobs/"), end)()
    assert lake.keys(f"{HOME}open/") == []
    lake.store.put("other", f"jobs/__magic_job-{OURS}/late.pendingset", b"late")
    getattr(lake.job(), end)()
    assert lake.everything()["other"] == ({}, [])


def test_an_abort_leaves_what_an_older_log_had_of_its_id() -> None:
    """After the log was removed a job's files are older data, also to another job under its id."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}).commit()
    for key in lake.keys(HOME):
        lake.store.delete(BUCKET, key)
    job = lake.sealed({"dt=1/b": b"2"})
    lake.store.die("put", f"log/{2:020d}.json")
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    lake.job().abort()
    assert lake.data() == {named("dt=1/a"): b"1"}


@each("older", [True, False])
@each("how", ["commit", "sweep"])
def test_an_object_that_is_put_again_stays_when_a_replace_is_finished_again(older: bool, how: str) -> None:
    """The same bytes at the key of what a replace took are newer than its entry, so they are not its own."""
    lake = Lake()
    if older:
        lake.put({"dt=1/x": b"same"})
    job = lake.sealed({"dt=1/a": b"1"})
    if not older:
        lake.put({"dt=1/x": b"same"})
    job.commit()
    assert lake.data() == {named("dt=1/a"): b"1"}
    lake.store_clock.advance(86_400)
    lake.put({"dt=1/x": b"same"})
    # A task that outlived its job makes a sweep finish the job again.
    lake.store.create_upload(BUCKET, f"{ROOT}{named('dt=1/late')}", metadata={}, content_type="x")
    if how == "commit":
        lake.job().commit()
    else:
        lake.store_clock.advance(8 * 86_400)
        lake.sweep()
    assert not lake.pending()
    assert lake.data() == {named("dt=1/a"): b"1", "dt=1/x": b"same"}


@each("by", ["commit", "sweep", "repair"])
def test_a_committed_job_is_finished_although_the_bucket_of_its_staging_is_gone(by: str) -> None:
    """After the entry nothing in the staging is needed: what finishes the job removes its other records."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"1"}, staging="s3://other/jobs/")
    lake.store.die("put", "_SUCCESS")
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    del lake.store.inner._buckets["other"]
    if by == "commit":
        lake.job().commit()
    elif by == "sweep":
        assert [one.action for one in lake.sweep().jobs] == ["finish"]
    else:
        assert repair(lake.store, lake.destination, dry_run=False, clock=lake.clock).is_sound
    assert lake.keys(f"{HOME}open/") == []
    assert lake.sweep().plan.left == []
    assert f"{ROOT}_SUCCESS" in lake.keys("")


@each("mode", ["append", "replace"])
def test_nothing_follows_from_a_receipt_whose_log_was_deleted(mode: str) -> None:
    """What a task of an older log's job left late is removed, and the newer log's table stays as it is."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}, job_id=THEIRS).commit()
    lake.sealed({"dt=1/b": b"2"}, conflict_mode=mode, committer="directory").commit()
    for key in lake.keys(f"{HOME}log/"):
        lake.store.delete(BUCKET, key)
    lake.sealed({"dt=2/c": b"3"}, job_id=an_id("newer"), conflict_mode="append").commit()
    before = lake.visible()
    lake.stray(named("dt=1/late"))
    report = lake.sweep(older_than=0)
    assert ([one.job_id for one in report.jobs], report.failures) == ([OURS], [])
    assert (lake.visible(), lake.pending()) == (before, [])
    assert verify(lake.store, lake.destination).sound
