"""Progress is logged at intervals; jobs that destroy before their last entry are settled first."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from airflow_s3commit import Job
from airflow_s3commit.exceptions import (
    DestinationChanged,
    InvalidRecord,
    JobClosed,
    JobFailed,
    NoSuchKey,
    NotReversible,
    S3CommitError,
)
from airflow_s3commit.protocol.inspect.details import describe_job
from airflow_s3commit.protocol.lifecycle.run import Progress, ProgressLog
from airflow_s3commit.protocol.metadata.log import newest_entries
from airflow_s3commit.protocol.metadata.manifests import manifest_files
from airflow_s3commit.protocol.metadata.snapshot import live_files, read_snapshot, refuse_begun
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.sweep.apply import sweep
from tests.cases import each
from tests.crash.late import LaggingLog
from tests.fakes import ManualClock
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, an_id, named, once
from tests.protocol.lifecycle.test_enter import crash


def test_a_line_every_few_seconds() -> None:
    """However often the progress changes, the log gets a line every five seconds, and one at the end."""
    clock, lines = ManualClock(), []
    log = logging.Logger("progress")
    log.addFilter(lambda record: lines.append(record.getMessage()) or False)
    tell = ProgressLog(log, every=5.0, clock=clock)
    for done in range(1, 101):
        clock.advance(0.125)
        tell(Progress(done, 100, done * 1024, done / 10, 64, 3))
    assert [line.split()[1] for line in lines] == ["40", "80", "100"]


def test_the_words() -> None:
    """A line has the files, bytes, files a second, concurrent requests and resent requests."""
    words = str(Progress(12_000, 40_000, 3 << 30, 4.0, 512, 17))
    assert words == "12,000 of 40,000 files, 3.0 GiB, 3,000 files/s, 512 requests at once, 17 sent again"


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (1 << 40, "1.0 TiB"), (1 << 52, "4,096.0 TiB")],
)
def test_sizes(count: int, words: str) -> None:
    """Bytes are shown in the unit that fits them."""
    assert str(Progress(1, 1, count, 1.0)).split(", ")[1] == words


def test_before_any_time_has_passed() -> None:
    """Without any elapsed time there is no speed yet, and no error."""
    assert Progress(1, 2, 3, 0.0).files_per_second == 0.0


def test_the_manifest_keeps_the_metrics() -> None:
    """The last figures of the progress are in the manifest's metrics."""
    told: list[Progress] = []
    manifest = Lake().sealed({"a": b"1", "b": b"22", "c": b"333"}).commit(progress=told.append)
    assert [progress.files_done for progress in told] == [1, 2, 3]
    assert {progress.files_total for progress in told} == {3}
    assert told[-1].bytes_done == 6
    assert manifest.metrics["complete_files"] == 3
    assert manifest.metrics["complete_bytes"] == 6
    assert manifest.metrics["complete_concurrency"] == 1
    assert manifest.metrics["complete_retries"] == 0
    assert {"complete_ms", "complete_files_per_second"} <= set(manifest.metrics)


FIXED = {"unique_filenames": False}
OLD = {"dt=1/a": b"old a", "dt=1/old": b"old"}
DAY = 86_400.0


def kinds(lake: Lake) -> list[tuple[str, str]]:
    """Return the job and kind of each entry after the baseline."""
    found = [json.loads(lake.get(key)) for key in lake.keys(f"{HOME}log/")]
    return [(entry["job_id"], entry["kind"]) for entry in found if entry["kind"] != "baseline"]


def endings(lake: Lake) -> list[tuple[str, str]]:
    """Return the job and kind of the end of each job."""
    return [(job_id, kind) for job_id, kind in kinds(lake) if kind != "begin"]


def half_published(**options: Any) -> Lake:
    """Return a lake whose job has begun, has published one of two files, and died."""
    lake = Lake()
    lake.put(OLD)
    job = lake.sealed({"dt=1/a": b"new a", "dt=1/b": b"new b"}, **(options or FIXED))
    lake.store.die("complete_upload", nth=2)
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    return lake


def lose_uploads(lake: Lake) -> None:
    """Abort every pending upload, as a lifecycle rule does."""
    for upload in list(lake.store.list_uploads(BUCKET, "")):
        lake.store.abort_upload(BUCKET, upload.key, upload.upload_id)


def table(lake: Lake) -> dict[str, bytes]:
    """Return the table at its newest generation as a reader finds it by the log."""
    home = Destination.parse(lake.destination)
    snapshot = read_snapshot(lake.store, home)
    assert snapshot is not None
    found = live_files(lake.store, home, snapshot.commits(), FileEntry)
    return {file.key.removeprefix(ROOT): lake.get(file.key) for _, files in found for file in files}


def test_the_begin_precedes_everything_that_destroys() -> None:
    """Before the begin entry the destination is unchanged, and an abort only aborts uploads."""
    lake = Lake()
    lake.put({**OLD, "_SUCCESS": b"marker"})
    before = lake.visible()
    job = lake.sealed({"dt=1/a": b"new a"}, **FIXED)
    crash(lake, job.commit, "put", "log/00000000000000000002.json")
    assert lake.visible() == before
    report = lake.job().abort()
    assert (report.uploads, report.objects) == (1, 0)
    assert lake.visible() == before
    assert kinds(lake) == [(OURS, "abandon")]


def test_the_begin_says_what_a_helper_needs() -> None:
    """It names staging, seal, plan, partitions, and how much of the table is destroyed before the end."""
    lake = half_published(**FIXED)
    (key,) = (key for key in lake.keys(f"{HOME}log/") if json.loads(lake.get(key))["kind"] == "begin")
    entry, state = json.loads(lake.get(key)), lake.job().state()
    assert state is not None
    assert entry["staging"] == f"{lake.destination}__magic_job-{OURS}/"
    assert entry["plan"] == {"plan_id": state.plan_id, "etag": state.plan_etag}
    assert (entry["removes"], entry["epoch"]) == ("partitions", 1)
    begin = entry["begin"]
    assert (begin["partitions"], begin["seal_etag"], begin["files"]) == (["dt=1"], state.seal_etag, 2)
    assert begin["destroys"] == 1


def test_jobs_with_unique_names_do_not_begin() -> None:
    """The log has nothing about them before their last entry."""
    lake = Lake()
    lake.put(OLD)
    lake.sealed({"dt=1/a": b"1"}).commit()
    assert kinds(lake) == [(OURS, "commit")]


@each("after", ["", "the commit entry", "the move to aborting"])
@each("mode", ["append", "replace", "fail"])
@each("theirs", [{}, FIXED])
def test_a_dead_begun_job_is_finished(after: str, mode: str, theirs: dict[str, Any]) -> None:
    """Wherever it died, a job on its partitions finishes it before its own entry."""
    lake = half_published()
    if after == "the commit entry":
        crash(lake, lake.job().commit, "put", "log/00000000000000000003.json", after=True)
    elif after == "the move to aborting":
        key = lake.context().layout.state
        state = json.loads(lake.get(key))
        lake.store.put(BUCKET, key, json.dumps({**state, "state": "aborting"}).encode())
    lake.sealed({"dt=1/t": b"t"}, job_id=THEIRS, conflict_mode=mode, **theirs)
    if mode == "fail":
        with pytest.raises(S3CommitError):
            lake.job(THEIRS).commit()
    else:
        lake.job(THEIRS).commit()
    if after == "the commit entry":
        lake.job().recover()
    manifest = lake.job().manifest()
    assert manifest is not None
    assert manifest.generation == 3
    data = {"dt=1/a": b"new a", "dt=1/b": b"new b"} if mode != "replace" else {}
    if mode != "fail":
        data["dt=1/t" if theirs else named("dt=1/t", THEIRS)] = b"t"
    assert lake.data() == data
    assert lake.staging() == []


def test_a_begun_job_that_has_its_last_entry_deletes_before_another_publishes() -> None:
    """It may still have to delete what it replaces, and the next job writes the same bytes under that key."""
    lake = Lake()
    again = {"job_id": THEIRS, "conflict_mode": "append", **FIXED}
    lake.sealed({"dt=1/k": b"the same"}, job_id=an_id("first"), conflict_mode="append", **FIXED).commit()
    replacing = lake.sealed({"dt=1/r": b"r"}, **FIXED)
    theirs = lake.sealed({"dt=1/k": b"the same"}, **again)
    crash(lake, replacing.commit, "put", "log/00000000000000000004.json", after=True)
    theirs.commit()
    replacing.commit()
    assert table(lake) == {"dt=1/k": b"the same", "dt=1/r": b"r"}


def test_a_file_that_is_written_again_with_the_same_bytes_stays() -> None:
    """A file that the job overwrites with the same ETag is not deleted as something it replaced."""
    lake = Lake()
    for job_id in (THEIRS, OURS):
        lake.sealed({"dt=1/k": b"the same"}, job_id=job_id, **FIXED).commit()
    assert table(lake) == {"dt=1/k": b"the same"}


def test_jobs_on_other_partitions_pass_a_begun_job() -> None:
    """Another partition's job commits, begins and ends, and the begun job is unchanged."""
    lake = half_published()
    before = lake.job().state()
    lake.sealed({"dt=2/t": b"t"}, job_id=THEIRS, **FIXED).commit()
    assert kinds(lake) == [(OURS, "begin"), (THEIRS, "begin"), (THEIRS, "commit")]
    assert lake.job().state() == before
    lake.job().recover()
    assert lake.data() == {"dt=1/a": b"new a", "dt=1/b": b"new b", "dt=2/t": b"t"}
    assert table(lake) == lake.data()


def test_a_job_on_the_whole_destination_settles_every_begun_job() -> None:
    """A directory replace removes the files of all partitions."""
    lake = half_published()
    lake.sealed({"dt=2/t": b"t"}, job_id=THEIRS, committer="directory").commit()
    assert endings(lake) == [(OURS, "commit"), (THEIRS, "commit")]
    assert lake.data() == {named("dt=2/t", THEIRS): b"t"}


@each("damage", ["sealed.json", "stages/spark-1/sealed.json"])
def test_a_begun_job_that_cannot_be_settled_stops_others_until_it_is_forced(damage: str) -> None:
    """The error names the job, its state is kept, and with force it ends with what has been published."""
    lake = half_published()
    key = f"{ROOT}__magic_job-{OURS}/{damage}"
    lake.tamper(key, cut=10)
    lake.sealed({"dt=1/t": b"t"}, job_id=THEIRS)
    with pytest.raises((InvalidRecord, NotReversible)) as raised:
        lake.job(THEIRS).commit()
    assert any(f"s3commit show {lake.destination} {OURS}" in note for note in raised.value.__notes__)
    with pytest.raises(JobClosed, match=r"is lost: .* of 1 of its files"):
        lake.job().abort(force=True)
    lake.job(THEIRS).commit()
    assert endings(lake) == [(OURS, "lost"), (THEIRS, "commit")]
    assert lake.data() == {named("dt=1/t", THEIRS): b"t"}


def test_a_begun_job_whose_staging_is_gone_is_named() -> None:
    """The refusal names the remedy: an abort, which has nothing left to undo."""
    lake = half_published()
    for key in lake.keys(f"{ROOT}__magic_job-{OURS}/"):
        lake.store.delete(BUCKET, key)
    lake.sealed({"dt=1/t": b"t"}, job_id=THEIRS)
    with pytest.raises(InvalidRecord, match=f"s3commit abort {lake.destination} {OURS}"):
        lake.job(THEIRS).commit()
    lake.job().abort()
    lake.job(THEIRS).commit()
    assert endings(lake) == [(OURS, "abandon"), (THEIRS, "commit")]


@each("lacks", [1, 2, 3])
def test_a_lagging_listing_does_not_hide_the_end_of_a_settled_job(lacks: int) -> None:
    """The job that settled it finds its last entry by its key, and does not take its records for gone."""
    lake = half_published()
    lake.sealed({"dt=1/t": b"t"}, job_id=THEIRS, conflict_mode="append")
    lagging = LaggingLog(lake.store, 9, lacks)
    Job.at(lagging, lake.job(THEIRS).reference, clock=lake.clock, new_id=lake.new_id).commit()
    assert kinds(lake) == [(OURS, "begin"), (OURS, "commit"), (THEIRS, "commit")]
    assert lake.data() == {"dt=1/a": b"new a", "dt=1/b": b"new b", named("dt=1/t", THEIRS): b"t"}


@each("rollback", [True, False])
def test_a_damaged_state_of_a_begun_job_is_rebuilt(rollback: bool) -> None:
    """Its begin names its seal and plan."""
    lake = half_published()
    lake.tamper(lake.context().layout.state, cut=10)
    if rollback:
        with pytest.raises(NotReversible, match="as entry 2 of the log"):
            lake.job().recover(rollback=True)
    lake.job().recover()
    assert lake.data() == {"dt=1/a": b"new a", "dt=1/b": b"new b"}


def test_a_damaged_state_of_a_begun_job_is_ended_by_force() -> None:
    """An abort with force of a job with a damaged state does not undo what the log says has begun."""
    lake = half_published()
    lake.tamper(lake.context().layout.state, cut=10)
    with pytest.raises(JobClosed, match="is lost"):
        lake.job().abort(force=True)
    assert lake.data() == {"dt=1/a": b"new a", "dt=1/old": b"old"}


def test_a_lost_job_lists_no_file_of_an_older_commit() -> None:
    """A file that it was to overwrite is not its own, even if its seal is damaged and only names are left."""
    lake = Lake()
    lake.sealed({"dt=1/b": b"older b"}, job_id=THEIRS, **FIXED).commit()
    job = lake.sealed({"dt=1/a": b"new a", "dt=1/b": b"new b"}, **FIXED)
    crash(lake, job.commit, "complete_upload", "dt=1/b")
    lake.tamper(lake.context().layout.seal, cut=10)
    with pytest.raises(JobClosed, match="is lost"):
        lake.job().abort(force=True)
    home = Destination.parse(lake.destination)
    (lost,) = [one for one in newest_entries(lake.store, home) if one.kind == "lost"]
    assert lost.manifest is not None
    assert [entry.key for entry in manifest_files(lake.store, lost.manifest)] == [f"{ROOT}dt=1/a"]


def test_a_lost_job_leaves_a_table_that_the_log_describes() -> None:
    """The entry names the missing key, and the log describes exactly what a reader finds."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"old a", "dt=1/b": b"old b", "dt=1/c": b"c"}, job_id=THEIRS, **FIXED).commit()
    job = lake.sealed({"dt=1/a": b"new a", "dt=1/b": b"new b"}, **FIXED)
    lake.store.die("complete_upload", nth=2)
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    lose_uploads(lake)
    for _ in range(2):
        with pytest.raises(
            JobClosed, match=r"is lost: .* of 1 of its files were gone \(s3://lake/flights/dt=1/b"
        ):
            lake.job().commit()
    expected = {"dt=1/a": b"new a", "dt=1/b": b"old b", "dt=1/c": b"c"}
    assert (lake.data(), table(lake)) == (expected, expected)
    assert (lake.pending(), lake.staging()) == ([], [])
    assert f"{ROOT}_SUCCESS" not in lake.keys("")
    assert endings(lake) == [(THEIRS, "commit"), (OURS, "lost")]
    with pytest.raises(NoSuchKey):
        lake.get(f"{HOME}manifests/{OURS}.json")


@each("ending", ["commit", "recover", "another job"])
@each("at", range(1, 40))
def test_losing_a_job_can_stop_anywhere(at: int, ending: str) -> None:
    """Wherever the process that finds an upload missing dies, the next one ends the job as lost."""
    lake = half_published()
    lose_uploads(lake)
    lake.store.die("", nth=at)
    with suppress(Crash, JobClosed):
        lake.job().commit()
    lake.store.rest()
    if ending == "another job":
        lake.sealed({"dt=2/t": b"t"}, job_id=THEIRS, committer="directory", conflict_mode="replace").commit()
        assert endings(lake) == [(OURS, "lost"), (THEIRS, "commit")]
    else:
        with pytest.raises(JobClosed, match="is lost"):
            getattr(lake.job(), ending)()
        assert lake.data() == {"dt=1/a": b"new a", "dt=1/old": b"old"}
    assert (lake.pending(), lake.staging()) == ([], [])


def test_missing_uploads_are_found_before_the_begin() -> None:
    """Nothing is overwritten, deleted or lost: the job is rolled back, and its message names the key."""
    lake = Lake()
    lake.put({**OLD, "_SUCCESS": b"marker"})
    before = lake.visible()
    job = lake.sealed({"dt=1/a": b"new a", "dt=1/b": b"new b"}, **FIXED)
    gone = next(iter(lake.store.list_uploads(BUCKET, "")))
    lake.store.abort_upload(BUCKET, gone.key, gone.upload_id)
    with pytest.raises(JobFailed, match=rf"upload of s3://{BUCKET}/{gone.key} is gone.*write the job again"):
        job.commit()
    assert lake.visible() == before
    assert kinds(lake) == [(OURS, "abandon")]
    assert (lake.pending(), lake.staging()) == ([], [])


def overtaken(lake: Lake, then: Callable[[], object]) -> Job:
    """Return a job that another process begins, and then acts on, while the job's own lists its uploads."""
    lake.put(OLD)
    job = lake.sealed({"dt=1/a": b"new a"}, **FIXED)

    def overtake() -> None:
        lake.store.rest()
        lake.job().begin(1)
        then()

    lake.store.before = once("list_uploads", "", overtake)
    return job


def test_another_process_may_have_completed_what_is_not_pending() -> None:
    """A process that finds no pending upload looks for its object, and finishes the job, which has begun."""
    lake = Lake()
    job = overtaken(lake, lambda: lake.job().complete(0))
    assert job.commit().counts.files == 1
    assert lake.data() == {"dt=1/a": b"new a"}


def test_a_job_that_another_process_has_begun_is_lost_if_its_uploads_are_gone() -> None:
    """A process that finds an upload gone reads the log again: after the begin nothing is rolled back."""
    lake = Lake()
    job = overtaken(lake, lambda: lose_uploads(lake))
    with pytest.raises(JobClosed, match="is lost"):
        job.commit()
    assert kinds(lake) == [(OURS, "begin"), (OURS, "lost")]


def test_a_begun_job_removes_the_marker_that_an_older_commit_wrote_late() -> None:
    """No marker vouches for files that the job overwrites, although it was not there when the job began."""
    lake = Lake()
    older = lake.sealed({"dt=1/t": b"t"}, job_id=THEIRS)
    crash(lake, older.commit, "put", "_SUCCESS")
    job = lake.sealed({"dt=1/a": b"a"}, **FIXED)
    markers: list[bool] = []

    def finish() -> None:
        lake.store.rest()
        lake.job(THEIRS).recover()
        lake.store.before = once(
            "complete_upload", "", lambda: markers.append(f"{ROOT}_SUCCESS" in lake.keys(""))
        )

    lake.store.after = once("put", "log/00000000000000000002.json", finish)
    job.commit()
    assert kinds(lake)[1] == (OURS, "begin")
    assert markers == [False]


def test_a_lost_job_is_shown_and_its_record_stays() -> None:
    """Its id is spent, and the record that names the lost files outlives every sweep."""
    lake = half_published()
    lose_uploads(lake)
    with pytest.raises(JobClosed):
        lake.job().commit()
    home = Destination.parse(lake.destination)
    details = describe_job(lake.store, home, OURS)
    assert (details.summary.state, details.begun) == ("lost", None)
    assert details.summary.reason is not None
    assert "dt=1/b" in details.summary.reason
    with pytest.raises(JobClosed):
        lake.set_up(**FIXED)
    lake.store_clock.advance(90 * DAY)
    sweep(lake.store, home, older_than=DAY, dry_run=False, threads=0)
    assert describe_job(lake.store, home, OURS).summary.state == "lost"


def test_an_open_begin_is_shown() -> None:
    """The details of a begun job name its entry."""
    lake = half_published()
    assert describe_job(lake.store, Destination.parse(lake.destination), OURS).begun == 2


def test_a_shard_with_a_lost_upload_ends_the_job_as_lost() -> None:
    """Whichever shard has the upload, the worker that finds it missing completes the rest."""
    lake = Lake()
    lake.put(OLD)
    lake.sealed({"dt=1/a": b"new a"}, {"dt=1/b": b"new b"}, **FIXED)
    shards = lake.job().begin(2)
    for upload in list(lake.store.list_uploads(BUCKET, "")):
        if upload.key.endswith("/b"):
            lake.store.abort_upload(BUCKET, upload.key, upload.upload_id)
    for shard in shards:
        if shard:
            with pytest.raises(JobClosed, match="is lost"):
                lake.job().complete(shard)
    with pytest.raises(JobClosed, match="is lost"):
        lake.job().finish()
    assert lake.data() == {"dt=1/a": b"new a", "dt=1/old": b"old"}


def test_a_shard_with_a_lost_upload_is_never_recorded_as_complete() -> None:
    """If its worker dies, the process that ends the job still finds the upload missing."""
    lake = Lake()
    lake.put(OLD)
    lake.sealed({"dt=1/a": b"new a"}, {"dt=1/b": b"new b"}, **FIXED)
    lake.job().begin(2)
    for upload in list(lake.store.list_uploads(BUCKET, f"{ROOT}dt=1/b")):
        lake.store.abort_upload(BUCKET, upload.key, upload.upload_id)
    crash(lake, lambda: lake.job().complete(1), "put", ".jsonl")
    with pytest.raises(JobClosed, match="is lost"):
        lake.job().commit()
    assert endings(lake) == [(OURS, "lost")]


def test_a_table_that_is_being_overwritten_is_not_read() -> None:
    """A reader would mix generations, so it is refused until the begun job has ended."""
    lake = half_published(**FIXED)
    home = Destination.parse(lake.destination)
    lake.sealed({"dt=2/t": b"t"}, job_id=THEIRS, conflict_mode="append").commit()
    snapshot = read_snapshot(lake.store, home)
    assert snapshot is not None
    assert snapshot.begun == {OURS: 2}
    with pytest.raises(DestinationChanged, match=f"s3commit recover {lake.destination} {OURS}"):
        refuse_begun(lake.store, home, snapshot)
    lake.job().recover()
    snapshot = read_snapshot(lake.store, home)
    assert snapshot is not None
    refuse_begun(lake.store, home, snapshot)
    assert table(lake) == lake.data()


def test_a_begun_job_that_destroys_nothing_does_not_stop_readers() -> None:
    """New keys in a table without a baseline belong to no generation before its last entry."""
    lake = Lake()
    lake.sealed({"dt=1/t": b"t"}, job_id=THEIRS).commit()
    job = lake.sealed({"dt=1/a": b"a"}, conflict_mode="append", **FIXED)
    crash(lake, job.commit, "complete_upload", "dt=1/a", after=True)
    home = Destination.parse(lake.destination)
    snapshot = read_snapshot(lake.store, home)
    assert snapshot is not None
    assert snapshot.begun == {OURS: 2}
    refuse_begun(lake.store, home, snapshot)
    assert table(lake) == {named("dt=1/t", THEIRS): b"t"}
