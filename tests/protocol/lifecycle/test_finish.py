"""After the point of no return any process can finish the job, and none undoes it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_s3commit import Job, JobOptions
from airflow_s3commit.protocol.metadata.log import Log
from airflow_s3commit.protocol.metadata.state import follow, move, read_state
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, Crash, Lake, named, once

SUCCESS = f"{ROOT}_SUCCESS"
MANIFEST = f"manifests/{OURS}.json"
OUTPUT = {named("dt=1/a"): b"1"}


def sealed_lake(**options: Any) -> Lake:
    """Return a lake with a sealed job that replaces a file, and with an attempt that does not count."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    job = lake.set_up(**options)
    lake.run_task(job, {"dt=1/a": b"late"}, attempt="2")
    lake.run_stage(job, {"dt=1/a": b"1"})
    job.seal()
    return lake


@each(
    ("verb", "ending"),
    [("put", MANIFEST), ("delete", "dt=1/old"), ("abort_upload", ""), ("put", "_SUCCESS"),
     ("delete", "sealed.json"), ("delete", "state.json"), ("delete", "job.json")],
)  # fmt: skip
@each("after", [False, True])
def test_another_process_finishes_what_a_dead_one_left(verb: str, ending: str, *, after: bool) -> None:
    """Wherever it dies, the next commit leaves the output, a marker, and nothing else of the job."""
    lake = sealed_lake()
    lake.store.die(verb, ending, after=after)
    with pytest.raises(Crash):
        lake.job().commit()
    lake.store.rest()
    assert lake.job().commit() == lake.job().manifest()
    assert lake.data() == OUTPUT
    assert OURS.encode() in lake.get(SUCCESS)
    assert (lake.pending(), lake.staging()) == ([], [])


def test_uploads_of_attempts_that_do_not_count_are_aborted() -> None:
    """What another attempt of a task wrote never becomes visible, and does not stay pending."""
    lake = sealed_lake()
    assert len(lake.pending()) == 2
    lake.job().commit()
    assert (lake.data(), lake.pending()) == (OUTPUT, [])


@each("short", [1_000, 2])
@each("at", [None, 1, 2])
def test_uploads_that_only_a_record_names_go_before_the_record(
    monkeypatch: pytest.MonkeyPatch, short: int, at: int | None
) -> None:
    """Wherever the process dies, and however long the staging is, no upload outlives what names it."""
    monkeypatch.setattr("airflow_s3commit.protocol.lifecycle.finish._SHORT", short)
    lake = sealed_lake(track_pending="s3")
    if at is not None:
        lake.store.die("abort_upload" if at == 1 else "delete", named("dt=1/a") if at == 1 else "job.json")
        with pytest.raises(Crash):
            lake.job().commit()
        lake.store.rest()
        assert at == 1 or lake.pending() == []
    lake.job().commit()
    assert lake.data() == OUTPUT
    assert (lake.pending(), lake.staging()) == ([], [])


def test_a_job_that_another_process_finishes_meanwhile_has_its_manifest() -> None:
    """A process whose records vanish while it finishes takes the manifest of the one that removed them."""
    lake = sealed_lake()
    lake.store.die("delete", "dt=1/old")
    with pytest.raises(Crash):
        lake.job().commit()
    lake.store.rest()
    done: list[ManifestRecord] = []

    def overtake() -> None:
        lake.store.rest()
        done.append(lake.job(owner="another").commit())

    lake.store.before = once("get", lake.context().layout.seal, overtake)
    assert [lake.job().commit()] == done
    assert lake.data() == OUTPUT


@each("ending", [MANIFEST, "_SUCCESS"])
@each("holds", [True, False])
def test_a_commit_whose_state_an_earlier_version_moved_is_finished(ending: str, *, holds: bool) -> None:
    """The state may follow the entry, as in earlier versions, and may hold the job's record or not."""
    lake = sealed_lake()
    lake.store.die("put", ending)
    with pytest.raises(Crash):
        lake.job().commit()
    lake.store.rest()
    context = lake.context(record=lake.job().record())
    current, entry = read_state(context), Log(context).ending()
    assert current is not None
    assert entry is not None
    assert current.record.state == "committing"
    moved = follow(context, current, entry)
    if moved is not None and not holds:
        moved = move(context, moved, "committed", job=None)
    assert moved is not None
    assert lake.job().commit() == entry.manifest
    assert lake.data() == OUTPUT
    assert (lake.pending(), lake.staging()) == ([], [])


@each("ending", [MANIFEST, "dt=1/old", "_SUCCESS"])
def test_a_state_without_the_record_follows_the_entry(ending: str) -> None:
    """A state that cannot say where to read the log says itself that the job is committed."""
    lake = sealed_lake()
    context = lake.context()
    current = read_state(context)
    assert current is not None
    assert move(context, current, "sealed", job=None) is not None
    lake.store.die("delete" if ending == "dt=1/old" else "put", ending)
    with pytest.raises(Crash):
        lake.job().commit()
    lake.store.rest()
    left = read_state(lake.context())
    assert left is not None
    assert left.record.state == "committed"
    assert isinstance(lake.job().commit(), ManifestRecord)
    assert lake.data() == OUTPUT
    assert (lake.pending(), lake.staging()) == ([], [])


@pytest.mark.parametrize("kept", [True, False])
def test_a_state_that_outlived_its_job_s_record_ends_with_the_manifest(kept: bool) -> None:
    """After a clean-up that died, the log proves the commit: a manifest that was deleted is written again."""
    lake = sealed_lake()
    lake.store.die("delete", lake.context().layout.state)
    with pytest.raises(Crash):
        lake.job().commit()
    lake.store.rest()
    assert lake.staging() == ["state.json"]
    (manifest,) = [key for key in lake.keys("") if key.endswith(MANIFEST)]
    if not kept:
        lake.store.delete(BUCKET, manifest)
    assert isinstance(lake.job().commit(), ManifestRecord)
    assert lake.staging() == []
    assert manifest in lake.keys("")
    assert lake.data() == OUTPUT


@each("last", ["a file", "no file", "an aborted stage attempt"])
def test_an_own_job_leaves_nothing_of_attempts_that_do_not_count(last: str) -> None:
    """Whatever another attempt left in the staging, with or without pending uploads, is gone afterwards."""
    lake = Lake()
    options = JobOptions(committer="magic", conflict_mode="append")
    job = Job.setup(
        lake.store, lake.destination, options=options, job_id=OURS, clock=lake.clock, new_id=lake.new_id,
        assume="own",
    )  # fmt: skip
    files = {} if last == "no file" else {"dt=1/a": b"1"}
    if last == "an aborted stage attempt":
        lake.run_task(job, files, stage_attempt="0")
        job.abort_stage("spark", "0")
    else:
        lake.run_task(job, files, attempt="2")
    lake.run_stage(job, files)
    job.commit(stages=[("spark", "1")])
    assert (lake.staging(), lake.pending()) == ([], [])
    assert len(lake.data()) == len(files)


@each("mode", ["append", "replace", "fail"])
@each("within", [100, 0])
def test_the_staging_of_an_own_job_is_not_listed_if_it_is_known(
    mode: Any, within: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If each task that counts has files and no upload is left, the clean-up deletes by known keys."""
    monkeypatch.setattr("airflow_s3commit.protocol.lifecycle.plan._WITHIN_OBJECTS", within)
    lake = Lake()
    lake.put({"dt=3/old" if mode == "fail" else "dt=1/old": b"old"})
    options = JobOptions(committer="magic", conflict_mode=mode)
    job = Job.setup(
        lake.store, lake.destination, options=options, job_id=OURS, clock=lake.clock, new_id=lake.new_id,
        assume="own",
    )  # fmt: skip
    lake.run_stage(job, {"dt=1/a": b"1"}, {"dt=2/b": b"2"})
    lake.store.calls.clear()
    job.commit(stages=[("spark", "1")])
    listed = [call.key for call in lake.store.calls if call.verb == "list_objects"]
    assert [key for key in listed if "__magic_job-" in key] == []
    assert (lake.staging(), lake.pending()) == ([], [])
