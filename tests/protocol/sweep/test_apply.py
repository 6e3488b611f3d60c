from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import pytest

from airflow_s3commit.exceptions import AccessDenied, JobClosed, S3CommitError, Unavailable
from airflow_s3commit.protocol.doctor.policy import iam_policies
from airflow_s3commit.protocol.inspect.jobs import list_jobs
from airflow_s3commit.protocol.inspect.verify_table import verify
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.metadata.removal import object_metadata
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import OLDER_DATA
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.steps import files as lists_of_files
from airflow_s3commit.protocol.sweep import apply_sweep, sweep
from airflow_s3commit.protocol.sweep_plan import SweepPlan, plan_sweep
from airflow_s3commit.protocol.write_job import write_job
from airflow_s3commit.store.base import Upload
from airflow_s3commit.testing.faulty_store import Crash, Effect, Fault, FaultyStore, StoreCall
from tests.cases import each
from tests.crash.faulty import FAULTS
from tests.crash.late import LaggingLog
from tests.iam import allows
from tests.protocol import building
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Lake, an_id, complete, named, once

FLIGHTS = Destination(BUCKET, ROOT)
DAY = 86_400.0
FILES = {"dt=1/part-0.parquet": b"new 1/0", "dt=2/part-0.parquet": b"new 2/0"}
OLD = {"dt=1/part-0.parquet": b"old 1/0", "dt=3/part-0.parquet": b"old 3/0"}


def _plan(lake: Lake, **asked: Any) -> SweepPlan:
    return plan_sweep(lake.store, FLIGHTS, **{"older_than": DAY, "threads": 0, **asked})


def _stop(lake: Lake, verb: str, ending: str, step: Callable[[], object]) -> None:
    """Let a process die right after a call took effect."""
    lake.store.after = once(verb, ending, building.Crash())
    with pytest.raises(building.Crash):
        step()
    lake.store.rest()


def _left(plan: SweepPlan) -> str:
    return "; ".join(f"{left.what}: {left.reason}" for left in plan.left)


def test_a_clean_destination_has_nothing_to_sweep() -> None:
    """If nothing is left over nothing is planned, and finding that out writes nothing."""
    lake = Lake()
    lake.put(OLD)
    lake.sealed(FILES).commit()
    lake.store_clock.advance(9 * DAY)
    before = lake.everything()
    lake.store.calls.clear()
    plan = _plan(lake)
    assert (plan.jobs, plan.uploads, plan.left) == ([], [], [])
    assert all(call.reads for call in lake.store.calls)
    assert lake.sweep().failures == []
    assert lake.everything() == before


def test_a_dry_run_is_the_default_and_removes_nothing() -> None:
    """By default a sweep only reports uploads, bytes, ages and their cost."""
    lake = Lake()
    lake.run_task(lake.set_up(), FILES)
    lake.stray(body=b"x" * 1000)
    lake.store_clock.advance(2 * DAY)
    before = lake.everything()
    report = sweep(lake.store, FLIGHTS, older_than=DAY)
    assert report.dry_run
    assert (report.plan.pending, report.plan.bytes, report.plan.oldest) == (3, 1014, 2 * DAY)
    assert report.plan.monthly_cost_usd == pytest.approx(1014 / 2**30 * 0.023)
    assert report.to_dict()["plan"]["bytes"] == 1014
    assert lake.everything() == before


def test_a_living_job_is_never_touched() -> None:
    """Whatever it does, a job with a recent sign of life keeps every upload and record, and commits."""
    for options in ({}, {"track_pending": "s3"}):
        lake = Lake()
        lake.put(OLD)
        job = lake.set_up(**options)
        lake.store_clock.advance(5 * DAY)
        committed = [lake.run_task(job, {path: body}, task=path[3]) for path, body in FILES.items()]
        with job.task_attempt("spark", "1", "9", "1", threads=0, min_part_bytes=1) as attempt:
            attempt.open("dt=9/at-work.parquet")
            steps = [partial(job.seal_stage, "spark", "1", committed), job.seal]
            for step in (lambda: None, *steps):
                step()
                before = lake.everything()
                report = lake.sweep()
                assert lake.everything() == before
                assert (report.jobs, report.uploads, report.plan.jobs) == ([], 0, [])
                assert "sign of life" in _left(report.plan)
        job.commit()
        assert len(lake.data()) == 3


def test_a_silent_job_is_aborted() -> None:
    """An open or sealed job that gave no sign of life for long enough is aborted completely."""
    for seal in (False, True):
        lake = Lake()
        lake.put(OLD)
        job = lake.set_up()
        lake.run_stage(job, FILES)
        if seal:
            job.seal()
        lake.store_clock.advance(DAY - 1)
        assert _plan(lake).jobs == []
        lake.store_clock.advance(1)
        before = lake.visible()
        report = lake.sweep()
        assert [(done.job_id, done.action, done.objects) for done in report.jobs] == [(OURS, "abort", 0)]
        assert (lake.pending(), lake.staging(), lake.visible()) == ([], [], before)


def test_an_upload_is_a_sign_of_life() -> None:
    """A job that writes no record, but recently began an upload, is alive."""
    lake = Lake()
    job = lake.set_up(committer="magic")
    lake.store_clock.advance(5 * DAY)
    with job.task_attempt("spark", "1", "0", "1", threads=0) as attempt:
        attempt.open("dt=1/a.parquet")
        lake.store_clock.advance(DAY / 2)
        assert _plan(lake).jobs == []
        lake.store_clock.advance(DAY / 2)
        assert [job.job_id for job in _plan(lake).jobs] == [OURS]


def test_a_commit_that_died_before_its_entry_is_aborted_when_old() -> None:
    """Until then it is left, and a recovery commits it; after that its files are taken back."""
    for old in (False, True):
        lake = Lake()
        lake.put(OLD)
        _stop(lake, "complete_upload", ".parquet", lake.sealed(FILES).commit)
        lake.store_clock.advance(DAY if old else DAY - 1)
        before = lake.everything()
        report = lake.sweep()
        if old:
            assert [(done.action, done.objects > 0) for done in report.jobs] == [("abort", True)]
            assert (lake.data(), lake.pending(), lake.staging()) == (OLD, [], [])
        else:
            assert lake.everything() == before
            assert isinstance(lake.job().recover(), Manifest)


def test_a_committed_job_is_finished() -> None:
    """A commit that died after its entry is finished: deletions, marker, clean-up."""
    lake = Lake()
    lake.put(OLD)
    _stop(lake, "put", f"log/{2:020d}.json", lake.sealed(FILES).commit)
    report = lake.sweep()
    assert [done.action for done in report.jobs] == ["finish"]
    new = {named(path): body for path, body in FILES.items()}
    assert lake.data() == {**new, "dt=3/part-0.parquet": b"old 3/0"}
    assert lake.staging() == []
    assert f"{ROOT}_SUCCESS" in lake.keys(ROOT)


@pytest.mark.parametrize(("verb", "ending"), [("abort_upload", ".parquet"), ("delete", "sealed.json")])
def test_an_abort_that_stopped_is_finished(verb: str, ending: str) -> None:
    """An abort that died after its entry, or before its clean-up was complete, is finished."""
    lake = Lake()
    _stop(lake, verb, ending, lake.sealed(FILES).abort)
    report = lake.sweep()
    assert [done.action for done in report.jobs] == ["abort"]
    assert (lake.pending(), lake.staging()) == ([], [])


def test_leftovers_without_a_record_are_removed_when_old() -> None:
    """A setup that stopped, and what is left of a job whose record is gone, are aborted; so are their ids."""
    lake = Lake()
    _stop(lake, "put", "job.json", lambda: lake.set_up(an_id("half-set-up")))
    job = lake.set_up()
    lake.run_task(job, FILES)
    lake.store.delete(BUCKET, lake.open_key())
    assert _plan(lake).jobs == []
    lake.store_clock.advance(DAY)
    plan = _plan(lake)
    assert [(dead.job_id, dead.action, dead.state, dead.uploads) for dead in plan.jobs] == [
        (OURS, "abort", None, 2),
        (an_id("half-set-up"), "abort", "open", 0),
    ]
    assert lake.sweep().failures == []
    assert (lake.pending(), lake.left()) == ([], [])
    with pytest.raises(JobClosed):
        lake.set_up()


def test_leftovers_of_a_late_task_do_not_undo_a_commit() -> None:
    """A pendingset that a straggler wrote after its job was committed goes; the job stays committed."""
    lake = Lake()
    manifest = lake.sealed(FILES).commit()
    lake.forge_task({ROOT + named("dt=1/late.parquet"): BUCKET})
    lake.stray(named("dt=1/later.parquet"))
    lake.store_clock.advance(DAY)
    assert [done.action for done in lake.sweep().jobs] == ["finish"]
    assert (lake.pending(), lake.staging()) == ([], [])
    assert lake.job().commit() == manifest


@pytest.mark.parametrize("has_log", [False, True])
def test_unclaimed_uploads_are_aborted_when_old(*, has_log: bool) -> None:
    """Old strays are removed; recent ones stay. An id in a name is spent first if jobs were ever set up."""
    lake = Lake()
    if has_log:
        lake.sealed(FILES).commit()
    for path in ("dt=1/stray.parquet", "_SUCCESS", named("dt=1/late.parquet", THEIRS)):
        lake.stray(path)
    lake.store_clock.advance(DAY)
    lake.stray("dt=1/young.parquet")
    beside = lake.store.create_upload(BUCKET, "flights10/x", metadata={}, content_type="x")
    entries = len(lake.entries())
    report = lake.sweep()
    orphans = 2 if has_log else 3
    assert (report.uploads, report.bytes) == (orphans, 5 * orphans)
    assert [upload.age for upload in report.plan.uploads] == [DAY] * orphans
    assert [done.job_id for done in report.jobs] == ([THEIRS] if has_log else [])
    assert len(lake.entries()) == entries + has_log
    left = {upload.upload_id: upload.key for upload in lake.store.list_uploads(BUCKET, "")}
    assert sorted(left.values()) == [f"{ROOT}dt=1/young.parquet", "flights10/x"]
    assert beside in left


def test_a_setup_that_looks_at_the_store_is_no_job_yet() -> None:
    """A sweep aborts the upload by which a setup looks at the store, and leaves the job without an end."""
    lake = Lake()
    lake.sealed(FILES, job_id=THEIRS).commit()
    entries, swept = len(lake.entries()), []

    def sweep_beside() -> None:
        lake.store.rest()
        swept.append(lake.sweep(older_than=0.0))

    other = FaultyStore(lake.store, after=once("create_upload", "", sweep_beside))
    with write_job(lake.destination, store=other, conflict_mode="append", clock=lake.clock) as writer:
        pass
    assert [(len(report.jobs), report.uploads) for report in swept] == [(0, 1)]
    assert len(lake.entries()) == entries + 1
    assert writer.manifest is not None


def test_a_listing_of_the_log_that_lags_hides_no_log() -> None:
    """An upload with a job's id is aborted by an entry of the log, even where no listing shows one."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}).commit()
    lake.stray(named("dt=1/stray", THEIRS))
    lake.store_clock.advance(2 * 86_400.0)
    lake.sweep(LaggingLog(lake.store, listings=100, lacks=10))
    assert lake.pending() == []
    assert [entry.get("job_id") for entry in lake.entries()] == [None, OURS, THEIRS]


def test_jobs_on_directories_above_and_below_keep_their_uploads() -> None:
    """A sweep between nested destinations leaves both jobs their uploads, however old."""
    lake = Lake()
    options = JobOptions(committer="magic")
    above = Job.setup(lake.store, "s3://lake/", job_id=OURS, options=options)
    inside = Job.setup(lake.store, f"{FLIGHTS.uri}dt=2/", job_id=THEIRS, options=options)
    above.task_attempt("spark", "1", "0", "1", threads=0).open("flights/dt=1/a.parquet")
    inside.task_attempt("spark", "1", "0", "1", threads=0).open("b.parquet")
    lake.store_clock.advance(9 * DAY)
    before = lake.everything()
    report = lake.sweep()
    assert lake.everything() == before
    assert OURS in _left(report.plan)
    assert THEIRS in _left(report.plan)


@pytest.mark.parametrize("is_named", [False, True])
def test_jobs_with_their_staging_elsewhere_are_known_by_their_records(*, is_named: bool) -> None:
    """A living job keeps its uploads, a dead one goes with its staging, and strangers are left."""
    lake, jobs = Lake(), _staged_elsewhere("dead", "alive")
    guest = Job.setup(lake.store, "s3://lake/trains/", job_id=an_id("guest"), options=ELSEWHERE)
    found = {name: start(lake) for name, start in jobs.items()} | {"guest": guest}
    for job in found.values():
        lake.run_task(job, {"dt=1/a.parquet": b"1"})
    lake.store_clock.advance(2 * DAY)
    lake.run_task(found["alive"], {}, task="1")
    report = lake.sweep(staging_root=ELSEWHERE.staging) if is_named else lake.sweep()
    assert [done.job_id for done in report.jobs] == [an_id("dead")]
    assert len(lake.pending()) == 2
    staged = {info.key.split("/")[1] for info in lake.store.list_objects("other", "staging/")}
    assert staged == {f"__magic_job-{an_id(name)}" for name in ("alive", "guest")}
    assert found["alive"].state() is not None
    assert guest.state() is not None


ELSEWHERE = JobOptions(committer="magic", staging="s3://other/staging/", conflict_mode="append")


def _staged_elsewhere(*names: str) -> dict[str, Callable[[Lake], Job]]:
    def start(name: str, lake: Lake) -> Job:
        return Job.setup(lake.store, FLIGHTS.uri, job_id=an_id(name), options=ELSEWHERE, clock=lake.clock)

    return {name: partial(start, name) for name in names}


def test_what_outlived_its_record_in_a_staging_elsewhere_is_found_by_the_root() -> None:
    """Its pendingsets show which destination it is of: that of another one stays."""
    lake = Lake()
    job = _staged_elsewhere("ours")["ours"](lake)
    guest = Job.setup(lake.store, "s3://lake/trains/", job_id=an_id("guest"), options=ELSEWHERE)
    for one, uri in ((job, ROOT), (guest, "trains/")):
        lake.run_task(one, {"dt=1/a.parquet": b"1"})
        lake.store.delete(BUCKET, f"{uri}_s3commit/open/{one.reference.job_id}/job.json")
    lake.store_clock.advance(2 * DAY)
    report = lake.sweep(staging_root=ELSEWHERE.staging)
    assert [done.job_id for done in report.jobs] == [an_id("ours")]
    assert {info.key.split("/")[1] for info in lake.store.list_objects("other", "staging/")} == {
        f"__magic_job-{an_id('guest')}"
    }
    assert lake.pending() == [f"trains/{named('dt=1/a.parquet', an_id('guest'))}"]


def test_a_staging_elsewhere_that_a_damaged_record_hid_from_the_abort_is_removed() -> None:
    """A sweep of its root removes what the end could not find, and nothing of a job that is not of here."""
    lake = Lake()
    job = _staged_elsewhere("ours")["ours"](lake)
    lake.run_task(job, {"dt=1/a.parquet": b"1"})
    lake.store.put(BUCKET, lake.open_key(job_id=an_id("ours")), b"{damaged")
    lake.job(an_id("ours")).abort()
    guests = {}
    for place in ("trains/", "flights/sub/"):
        job_id = an_id(place)
        # Somebody has spent the id here.
        lake.job(job_id).abort()
        guest = Job.setup(lake.store, f"s3://lake/{place}", job_id=job_id, options=ELSEWHERE)
        guests[f"__magic_job-{job_id}"] = lake.run_stage(guest, {"dt=1/a.parquet": b"1"})
    pending = lake.pending()
    lake.store_clock.advance(9 * DAY)
    report = lake.sweep(staging_root=ELSEWHERE.staging)
    assert [done.job_id for done in report.jobs] == [an_id("ours")]
    assert lake.sweep(staging_root=ELSEWHERE.staging).plan.jobs == []
    left = {info.key.split("/")[1] for info in lake.store.list_objects("other", "staging/")}
    assert (left, lake.pending()) == (guests.keys(), pending)


def test_a_job_whose_staging_bucket_is_gone_holds_nobody_up() -> None:
    """Its uploads are aborted by name; until then a sweep and the list of jobs say what is wrong with it."""
    lake = Lake()
    job = _staged_elsewhere("ours")["ours"](lake)
    lake.run_task(job, {"dt=1/a.parquet": b"1"})
    dead = lake.set_up(an_id("dead"))
    lake.run_task(dead, {"dt=2/b.parquet": b"2"})
    del lake.store.inner._buckets["other"]
    lake.store_clock.advance(9 * DAY)
    summaries = {one.job_id: one.problem for one in list_jobs(lake.store, FLIGHTS)}
    assert summaries == {an_id("dead"): None, an_id("ours"): "bucket other does not exist"}
    report = lake.sweep()
    assert [done.job_id for done in report.jobs] == [an_id("dead")]
    assert "look and abort it: bucket other does not exist" in _left(report.plan)
    assert job.abort().uploads == 1
    assert lake.pending() == []
    assert lake.sweep().plan.left == []


def test_a_committed_job_whose_staging_bucket_is_gone_is_finished() -> None:
    """Nobody needs that bucket any more: what it replaced is deleted, and its records go."""
    lake = Lake()
    lake.put({"dt=1/old.parquet": b"old"})
    job = lake.set_up(staging="s3://other/private/")
    lake.run_stage(job, {"dt=1/a.parquet": b"1"})
    job.seal()
    lake.store.die("put", f"log/{2:020d}.json", after=True)
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    del lake.store.inner._buckets["other"]
    report = lake.sweep()
    assert ([done.action for done in report.jobs], report.plan.left) == (["finish"], [])
    assert lake.data() == {named("dt=1/a.parquet"): b"1"}
    assert lake.keys(lake.open_key("")) == []


def test_what_a_job_staged_elsewhere_left_late_is_named_with_its_staging() -> None:
    """Its record is gone, but its end says where that was; nothing of the job stays."""
    lake = Lake()
    lake.sealed({"dt=1/a.parquet": b"1"}, job_id=THEIRS).commit()
    lake.set_up(staging="s3://other/private/").abort()
    lake.stray(named("dt=1/late.parquet"))
    lake.store_clock.advance(9 * DAY)
    (done,) = lake.sweep().jobs
    assert (done.job_id, done.staging) == (OURS, f"s3://other/private/__magic_job-{OURS}/")
    assert lake.pending() == []


def test_a_job_whose_receipt_is_damaged_holds_nobody_up() -> None:
    """Its late upload is left, with the reason, because nothing else says how it ended; others are ended."""
    lake = Lake()
    lake.sealed({"dt=1/a.parquet": b"1"}).commit()
    late = named("dt=1/late.parquet")
    lake.stray(late)
    lake.run_task(lake.set_up(an_id("dead")), {"dt=2/b.parquet": b"2"})
    lake.set_up(THEIRS).abort()
    lake.tamper(lake.receipt_key(), cut=9)
    lake.store_clock.advance(9 * DAY)
    report = lake.sweep()
    assert [done.job_id for done in report.jobs] == [an_id("dead")]
    assert f"look and abort it: s3://{BUCKET}/{lake.receipt_key()}" in _left(report.plan)
    assert lake.pending() == [f"{lake.prefix}{late}"]


def test_a_sweep_needs_no_right_above_its_destination() -> None:
    """With the policy of a committer it ends a job of which only an upload is left."""
    lake = Lake(prefix="team/flights/")
    allowed = iam_policies(Destination(BUCKET, lake.prefix))["committer"]
    lake.sealed({"dt=1/a.parquet": b"1"}).commit()
    lake.stray(named("dt=1/b.parquet", THEIRS))
    lake.store_clock.advance(2 * DAY)

    def judge(call: StoreCall) -> None:
        if call.verb in ("head", "get") and not allows(
            allowed, "s3:GetObject", f"arn:aws:s3:::{call.bucket}/{call.key}"
        ):
            raise AccessDenied(f"{call}: 403")

    lake.store.before = judge
    report = lake.sweep()
    assert [done.job_id for done in report.jobs] == [THEIRS]
    assert lake.pending() == []


@pytest.mark.parametrize("files", [{"dt=1/a.parquet": b"1"}, {}])
def test_the_staging_of_a_job_on_another_directory_is_left(files: dict[str, bytes]) -> None:
    """A job may keep its records in the directory of another dataset, whose log does not know it."""
    lake = Lake()
    lake.sealed(FILES, conflict_mode="append").commit()
    options = JobOptions(committer="magic", staging=lake.destination)
    guest = Job.setup(lake.store, "s3://lake/trains/", job_id=an_id("guest"), options=options)
    lake.run_stage(guest, files)
    guest.seal()
    lake.store_clock.advance(9 * DAY)
    assert lake.sweep().jobs == []
    assert guest.commit().counts.files == len(files)


def test_a_staging_elsewhere_that_names_no_upload_is_left() -> None:
    """A staging elsewhere in which nothing shows its destination may be a job's on another directory."""
    lake = Lake()
    lake.sealed(FILES, conflict_mode="append").commit()
    guest = Job.setup(lake.store, "s3://lake/trains/", job_id=an_id("guest"), options=ELSEWHERE)
    task = lake.run_task(guest, {})
    lake.store_clock.advance(9 * DAY)
    report = lake.sweep(staging_root=ELSEWHERE.staging)
    assert (report.jobs, [left.reason for left in report.plan.left]) == (
        [],
        [f"no record shows that it is a job on {lake.destination}"],
    )
    guest.seal_stage("spark", "1", [task])
    assert guest.seal().tasks == 1


def test_what_is_in_the_destination_beside_the_sealed_files_goes_with_its_job() -> None:
    """The object of an upload that an unsealed attempt completed goes when its silent job is swept."""
    lake = Lake()
    lake.put(OLD)
    job = lake.set_up()
    lake.run_task(job, FILES)
    before = lake.visible()
    for upload in list(lake.store.list_uploads(BUCKET, ROOT)):
        complete(lake.store, upload.key, upload.upload_id)
    assert len(lake.visible()) == len(before) + len(FILES)
    lake.store_clock.advance(DAY)
    assert [done.objects for done in lake.sweep().jobs] == [len(FILES)]
    assert lake.visible() == before


def test_what_only_a_person_can_delete_is_named_as_that() -> None:
    """A late object of a committed job is in no table: verify and a sweep name it, and say what to do."""
    lake = Lake()
    lake.sealed(FILES).commit()
    key, made = f"{ROOT}{named('dt=9/late.parquet')}", object_metadata(FLIGHTS, OURS, "late")
    upload_id = lake.store.create_upload(BUCKET, key, metadata=made, content_type="x")
    lake.store.upload_part(BUCKET, key, upload_id, 1, b"late")
    complete(lake.store, key, upload_id)
    lake.store_clock.advance(2 * DAY)
    report = lake.sweep()
    assert (report.jobs, "left over, delete by hand" in _left(report.plan)) == ([], True)
    assert verify(lake.store, FLIGHTS).leftover_count == 1


def test_an_object_is_a_sign_of_life() -> None:
    """An object of a job without records is left until it is old, and removed then."""
    lake = Lake()
    lake.put(OLD)
    job = lake.set_up()
    lake.run_task(job, FILES)
    before = lake.visible()
    lake.store_clock.advance(9 * DAY)
    for upload in list(lake.store.list_uploads(BUCKET, ROOT)):
        complete(lake.store, upload.key, upload.upload_id)
    for key in [*lake.staging(), lake.open_key()]:
        lake.store.delete(BUCKET, key)
    lake.store_clock.advance(DAY - 1)
    assert _plan(lake).jobs == []
    lake.store_clock.advance(1)
    assert [(done.job_id, done.objects) for done in lake.sweep().jobs] == [(OURS, len(FILES))]
    assert lake.visible() == before


def test_names_of_other_programs_are_no_jobs() -> None:
    """Files that Spark wrote by itself, with ids of its own in their names, are no leftovers."""
    lake = Lake()
    older, later = (f"dt=1/part-00000-{an_id(name)}-c000.parquet" for name in ("older", "later"))
    lake.put({older: b"1"})
    lake.sealed(FILES, conflict_mode="append").commit()
    lake.put({later: b"2"})
    lake.store_clock.advance(9 * DAY)
    before = lake.everything()
    report = lake.sweep()
    assert (report.plan.jobs, report.plan.left) == ([], [])
    assert lake.everything() == before


def test_a_job_with_unreadable_records_is_left() -> None:
    """Damage is reported and not removed, because the job may be alive."""
    lake = Lake()
    lake.run_task(lake.set_up(), FILES)
    lake.tamper(lake.open_key(), cut=3)
    lake.store_clock.advance(9 * DAY)
    before = lake.everything()
    assert "cannot be read" in _left(lake.sweep().plan)
    assert lake.everything() == before


def test_a_job_that_came_alive_after_the_plan_is_skipped() -> None:
    """If it commits a task, is sealed or is ended after the plan, the report says why it is skipped."""
    for wake, why in (
        (lambda lake: lake.run_task(lake.job(), {"dt=5/a.parquet": b"5"}, task="00005"), "sign of life"),
        (lambda lake: lake.job().seal(), "sign of life"),
        (lambda lake: lake.job().abort(), "it is gone"),
    ):
        lake = Lake()
        lake.run_stage(lake.set_up(), FILES)
        lake.store_clock.advance(2 * DAY)
        plan = _plan(lake)
        assert len(plan.jobs) == 1
        wake(lake)
        before = lake.everything()
        report = apply_sweep(lake.store, plan, threads=0)
        assert lake.everything() == before
        assert report.jobs == []
        assert why in report.skipped[0].reason


def test_a_commit_at_the_last_moment_wins() -> None:
    """If the job commits right before the sweep's entry, the sweep skips it."""
    lake = Lake()
    job = lake.sealed(FILES)
    lake.store_clock.advance(2 * DAY)

    def wake() -> None:
        lake.store.rest()
        job.commit()

    lake.store.before = once("put", f"log/{2:020d}.json", wake)
    report = lake.sweep()
    assert "is committed" in report.skipped[0].reason
    assert (report.jobs, report.failures, len(lake.data())) == ([], [], 2)


def test_an_upload_that_is_claimed_after_the_plan_is_skipped() -> None:
    """A stray whose job is set up after all is left to that job."""
    lake = Lake()
    lake.stray(named("dt=1/a.parquet"))
    lake.store_clock.advance(2 * DAY)
    plan = _plan(lake)
    lake.set_up()
    report = apply_sweep(lake.store, plan, threads=0)
    assert report.uploads == 0
    assert "a job claims it now" in report.skipped[0].reason
    assert len(lake.pending()) == 1


class _Undated(building.WatchedStore):
    """Reports the same age for every upload, as moto does."""

    def list_uploads(self, bucket: str, prefix: str, **_: object):  # type: ignore[no-untyped-def]
        return (Upload(u.key, u.upload_id, 1_289_347_200.0) for u in super().list_uploads(bucket, prefix))


def test_a_store_without_ages_of_uploads_keeps_them() -> None:
    """If every upload has the same age, orphans stay, and dead jobs are still swept."""
    lake = Lake()
    lake.store = _Undated((BUCKET,), now=lake.store_clock.time, min_part_bytes=1)
    lake.run_task(lake.set_up(), FILES)
    lake.store_clock.advance(2 * DAY)
    lake.stray()
    report = lake.sweep()
    assert [done.job_id for done in report.jobs] == [OURS]
    assert lake.pending() == [f"{ROOT}dt=1/stray.parquet"]
    assert "does not show when" in _left(report.plan)


def test_ages_follow_the_store_s_clock() -> None:
    """A machine whose clock is years off sweeps exactly the same."""
    for skew in (-3650 * DAY, 3650 * DAY):
        lake = Lake()
        lake.clock.advance(skew)
        lake.run_task(lake.set_up(), FILES)
        lake.stray()
        assert _plan(lake).pending == 0
        lake.store_clock.advance(DAY)
        assert _plan(lake).pending == 3


def test_without_records_the_store_is_asked_for_its_time() -> None:
    """With nothing but strays, the store's time comes from a small object that is then removed."""
    lake = Lake()
    lake.stray()
    lake.store_clock.advance(DAY)
    before = lake.everything()
    assert [upload.age for upload in _plan(lake).uploads] == [DAY]
    assert lake.everything() == before


def test_one_failure_does_not_stop_the_rest() -> None:
    """A job that cannot be ended is reported as a failure; the others, and the strays, are swept."""
    lake = Lake()
    for job_id in (OURS, THEIRS):
        lake.run_task(lake.set_up(job_id), FILES)
    lake.stray()
    lake.store_clock.advance(DAY)

    def refuse(call: StoreCall) -> None:
        if call.verb == "abort_upload" and OURS in call.key:
            error = S3CommitError("no")
            error.add_note("an upload may be left")
            raise error

    lake.store.before = refuse
    report = lake.sweep()
    assert [done.job_id for done in report.jobs] == [THEIRS]
    assert report.uploads == 1
    assert OURS in report.failures[0].what
    assert "an upload may be left" in report.failures[0].reason
    lake.store.rest()
    assert [done.job_id for done in lake.sweep().jobs] == [OURS]


def test_an_orphan_that_cannot_be_aborted_is_a_failure() -> None:
    """It is neither counted nor forgotten, and the next sweep finds it."""
    lake = Lake()
    for path in ("dt=1/a", "dt=1/b"):
        lake.stray(path)
    lake.store_clock.advance(DAY)
    lake.store.before = once("abort_upload", "dt=1/a", Unavailable("slow"))
    report = lake.sweep()
    assert (report.uploads, [failure.what[-6:] for failure in report.failures]) == (1, ["dt=1/a"])
    lake.store.rest()
    assert lake.sweep().uploads == 1


def test_in_an_outage_no_more_orphans_are_tried() -> None:
    """While the store fails few aborts wait for it, and each orphan that is left is a failure."""
    lake = Lake()
    for number in range(20):
        lake.stray(f"dt=1/{number:02}")
    lake.store_clock.advance(DAY)
    store = FaultyStore(lake.store, Fault("refuse", "abort_upload", "*/dt=1/*", nth=3, times=None))
    report = apply_sweep(store, _plan(lake, older_than=60.0), clock=lake.clock)
    assert (report.uploads, len(report.failures), report.skipped) == (2, 18, [])
    assert len({failure.what for failure in report.failures}) == 18
    assert [call.verb for call in store.calls].count("abort_upload") < 10
    assert lake.sweep().uploads == 18


def test_older_than_cannot_be_negative() -> None:
    """A negative age is refused before any request."""
    with pytest.raises(ValueError, match="older_than"):
        _plan(Lake(), older_than=-1.0)


DEAD = an_id("dead-0000")
ENDED = an_id("ended-000")
ABORTED = an_id("aborted-0")


@dataclass
class _Graveyard:
    """A destination with one of each kind of dead thing, and one living job."""

    lake: Lake = field(default_factory=Lake)
    alive: dict[str, bytes] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        lake = self.lake
        lake.put(OLD)
        lake.run_task(lake.set_up(DEAD, conflict_mode="append"), FILES)
        lake.set_up(an_id("dead-too"), conflict_mode="append")
        lake.run_task(lake.job(an_id("dead-too")), FILES)
        _stop(lake, "put", "_SUCCESS", lake.sealed(FILES, job_id=ENDED).commit)
        doomed = lake.sealed(FILES, job_id=ABORTED, conflict_mode="append")
        _stop(lake, "put", f"jobs/{ABORTED}.json", doomed.abort)
        lake.run_task(lake.set_up(an_id("remains")), FILES)
        lake.store.delete(BUCKET, lake.open_key(job_id=an_id("remains")))
        lake.stray()
        lake.stray("_SUCCESS")
        lake.store_clock.advance(2 * DAY)
        job = lake.set_up(conflict_mode="append")
        lake.run_stage(job, {"dt=7/alive.parquet": b"alive"})
        lake.stray("dt=7/young.parquet")
        lake.store.create_upload(
            BUCKET, f"flights10/{named('x.parquet', DEAD)}", metadata={}, content_type="x"
        )
        self.alive = self._alive()
        self.kept = [f"{ROOT}dt=7/young.parquet", f"flights10/{named('x.parquet', DEAD)}"]

    def _alive(self) -> dict[str, bytes]:
        kept = (f"{ROOT}__magic_job-{OURS}/", self.lake.open_key(""))
        return {key: self.lake.get(key) for prefix in kept for key in self.lake.keys(prefix)}

    def check_the_living(self) -> None:
        """Check that the living job has every record unchanged, and its upload."""
        assert self._alive() == self.alive
        assert set(self.lake.pending()) >= {*self.kept, ROOT + named("dt=7/alive.parquet")}

    def check_swept(self) -> None:
        """Check that all dead things are gone, the commit is finished, and the living job commits."""
        self.check_the_living()
        lake = self.lake
        assert sorted(lake.pending()) == sorted([*self.kept, ROOT + named("dt=7/alive.parquet")])
        assert {key.split("/")[1] for key in lake.keys(f"{ROOT}__magic_job-")} == {f"__magic_job-{OURS}"}
        assert {key.split("/")[3] for key in lake.keys(f"{ROOT}_s3commit/open/")} == {OURS}
        assert lake.keys(f"{ROOT}_s3commit/time") == []
        ended = {named(path, ENDED): body for path, body in FILES.items()}
        assert lake.data() == {**ended, "dt=3/part-0.parquet": b"old 3/0"}
        job = lake.job()
        job.seal()
        job.commit()
        assert lake.data() == {
            **ended, "dt=3/part-0.parquet": b"old 3/0", named("dt=7/alive.parquet"): b"alive"
        }  # fmt: skip


def test_a_sweep_of_everything_leaves_the_living_alone() -> None:
    """One sweep removes one of each kind of dead thing and spares a living job."""
    yard = _Graveyard()
    report = yard.lake.sweep()
    assert {(done.job_id, done.action) for done in report.jobs} == {
        (DEAD, "abort"), (an_id("dead-too"), "abort"), (ENDED, "finish"), (ABORTED, "abort"),
        (an_id("remains"), "abort"),
    }  # fmt: skip
    assert (report.uploads, report.skipped, report.failures) == (2, [], [])
    yard.check_swept()


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [fault if fault == "crash-after" else pytest.param(fault, marks=pytest.mark.all) for fault in FAULTS],
)
def test_a_sweep_that_stops_anywhere_is_finished_by_the_next(fault: Effect) -> None:
    """Stopped at any call, a sweep harmed no living job, and the next one does the rest."""
    for stop in count(1):
        yard = _Graveyard()
        store = FaultyStore(yard.lake.store, Fault(fault, nth=stop))
        with suppress(Crash, S3CommitError):
            yard.lake.sweep(store)
        if not store.struck:
            assert stop > 100
            break
        yard.check_the_living()
        # The upload that asks for the time counts as a leftover once no sweep can be waiting for it.
        yard.lake.store_clock.advance(120)
        assert yard.lake.sweep().failures == []
        yard.check_swept()


@pytest.mark.parametrize("ready", [False, True])
def test_a_job_that_wakes_up_during_a_sweep_is_committed_or_gone(*, ready: bool) -> None:
    """At whatever call of its sweep a silent job wakes up and commits, all of its output exists, or none."""
    outcomes = []
    for stop in count(1):
        lake = Lake()
        lake.put(OLD)
        job = lake.set_up(conflict_mode="append")
        early = lake.run_task(job, FILES)
        if ready:
            job.seal_stage("spark", "1", [early])
            job.seal()
        lake.store_clock.advance(2 * DAY)
        calls = count(1)

        def wake(
            _: StoreCall, lake: Lake = lake, calls: Any = calls, stop: int = stop, early: Any = early
        ) -> None:
            if next(calls) != stop:
                return
            awake = lake.job()
            try:
                if not ready:
                    late = lake.run_task(awake, {"dt=3/late.parquet": b"late"}, task="00001")
                    awake.seal_stage("spark", "1", [early, late])
                    awake.seal()
                awake.commit()
            except S3CommitError:
                outcomes.append(False)
            else:
                outcomes.append(True)

        report = lake.sweep(FaultyStore(lake.store, before=wake))
        if next(calls) <= stop:
            break
        if outcomes[-1]:
            files = FILES if ready else {**FILES, "dt=3/late.parquet": b"late"}
            assert lake.data() == {**OLD, **{named(path): body for path, body in files.items()}}
            assert {done.action for done in report.jobs} <= {"finish"}
        else:
            assert lake.data() == OLD
        lake.store_clock.advance(2 * DAY)
        assert lake.sweep().failures == []
        assert (lake.pending(), lake.staging()) == ([], [])
    assert set(outcomes) == {True, False}
    assert len(outcomes) > 15


@each("job_id", [OURS[:8], "older", OLDER_DATA])
@each("how", ["abort", "sweep"])
def test_lists_of_files_of_ids_that_begin_with_a_jobs_id_stay(
    job_id: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that the table needs stays when somebody shortens an id, or forges a staging of that id."""
    monkeypatch.setattr(lists_of_files, "WITHIN_BYTES", -1)
    lake = Lake()
    lake.put({"dt=0/old": b"old"})
    lake.sealed({"dt=1/a": b"a"}, conflict_mode="append").commit()
    lists = lake.keys(f"{HOME}lists/")
    assert len(lists) == 2
    if how == "abort":
        lake.job(job_id).abort()
    else:
        lake.forge_task({f"{ROOT}dt=1/x-{job_id}": BUCKET}, job_id=job_id)
        lake.store_clock.advance(7 * 86_400)
        assert len(lake.sweep().plan.jobs) == 1
    assert not lake.staging(job_id)
    assert lake.keys(f"{HOME}lists/") == lists
