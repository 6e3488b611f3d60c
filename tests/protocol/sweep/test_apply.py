from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import pytest

from airflow_s3commit.exceptions import S3CommitError, Unavailable
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.sweep.apply import apply_sweep, sweep
from airflow_s3commit.protocol.sweep.plan import SweepPlan
from airflow_s3commit.protocol.sweep.planner import plan_sweep
from airflow_s3commit.store.base import Upload
from airflow_s3commit.testing.faulty_store import Crash, Effect, Fault, FaultyStore, StoreCall
from tests.crash.faulty import FAULTS
from tests.protocol import building
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Lake, an_id, named, once

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
    assert report.plan.monthly_cost == pytest.approx(1014 / 2**30 * 0.023)
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


@pytest.mark.parametrize("silent", [0.0, 9 * DAY])
def test_a_job_that_is_committing_is_reported_for_recovery(silent: float) -> None:
    """However old, a begun commit is left unchanged, and the report says to recover it."""
    lake = Lake()
    _stop(lake, "complete_upload", ".parquet", lake.sealed(FILES).commit)
    lake.store_clock.advance(silent)
    before = lake.everything()
    report = lake.sweep()
    assert lake.everything() == before
    assert "recover" in _left(report.plan)
    assert isinstance(lake.job().recover(), ManifestRecord)


def test_a_committed_job_is_finished() -> None:
    """A commit that died after its point of no return is finished: deletions, marker, clean-up."""
    lake = Lake()
    lake.put(OLD)
    _stop(lake, "put", f"{OURS}.json", lake.sealed(FILES).commit)
    report = lake.sweep()
    assert [done.action for done in report.jobs] == ["finish"]
    new = {named(path): body for path, body in FILES.items()}
    assert lake.data() == {**new, "dt=3/part-0.parquet": b"old 3/0"}
    assert lake.staging() == []
    assert f"{ROOT}_SUCCESS" in lake.keys(ROOT)


@pytest.mark.parametrize(("verb", "ending"), [("abort_upload", ".parquet"), ("delete", "job.json")])
def test_an_abort_that_stopped_is_finished(verb: str, ending: str) -> None:
    """A job left aborting, or aborted and not cleaned up, is finished."""
    lake = Lake()
    _stop(lake, verb, ending, lake.sealed(FILES).abort)
    report = lake.sweep()
    assert [done.action for done in report.jobs] == ["abort"]
    assert (lake.pending(), lake.staging()) == ([], [])


def test_leftovers_without_a_job_are_removed_when_old() -> None:
    """A setup that stopped, and records of a job that is gone, go with the uploads that they name."""
    lake = Lake()
    _stop(lake, "put", "job.json", lambda: lake.set_up(an_id("half-set-up")))
    job = lake.set_up()
    lake.run_task(job, FILES)
    for name in ("job.json", "state.json"):
        lake.store.delete(BUCKET, f"{ROOT}__magic_job-{OURS}/{name}")
    assert _plan(lake).jobs == []
    lake.store_clock.advance(DAY)
    plan = _plan(lake)
    assert [(dead.job_id, dead.action, dead.uploads) for dead in plan.jobs] == [
        (OURS, "discard", 2),
        (an_id("half-set-up"), "discard", 0),
    ]
    assert lake.sweep().failures == []
    assert lake.pending() == []
    assert lake.keys(f"{ROOT}__magic") == []


def test_leftovers_of_a_late_task_do_not_undo_a_commit() -> None:
    """A pendingset that a straggler wrote after its job was committed goes; the job stays committed."""
    lake = Lake()
    manifest = lake.sealed(FILES).commit()
    lake.forge_task({ROOT + named("dt=1/late.parquet"): BUCKET})
    lake.stray(named("dt=1/later.parquet"))
    lake.store_clock.advance(DAY)
    assert [done.action for done in lake.sweep().jobs] == ["discard"]
    assert (lake.pending(), lake.staging()) == ([], [])
    assert lake.job().commit() == manifest


def test_unclaimed_uploads_are_aborted_when_old() -> None:
    """Old strays are removed, including the upload of a restored marker; recent ones stay."""
    lake = Lake()
    for path in ("dt=1/stray.parquet", "_SUCCESS", named("dt=1/late.parquet", THEIRS)):
        lake.stray(path)
    lake.store_clock.advance(DAY)
    lake.stray("dt=1/young.parquet")
    beside = lake.store.create_upload(BUCKET, "flights10/x", metadata={}, content_type="x")
    report = lake.sweep()
    assert (report.uploads, report.bytes) == (3, 15)
    assert [upload.age for upload in report.plan.uploads] == [DAY] * 3
    left = {upload.upload_id: upload.key for upload in lake.store.list_uploads(BUCKET, "")}
    assert sorted(left.values()) == [f"{ROOT}dt=1/young.parquet", "flights10/x"]
    assert beside in left


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


def test_jobs_with_their_staging_elsewhere_are_known_by_the_staging_root() -> None:
    """With it, a living job keeps its uploads, a dead one goes, and strangers are left."""
    lake = Lake()
    root = Destination("other", "staging/")
    options = JobOptions(committer="magic", staging=root.uri)
    jobs = {
        job_id: Job.setup(lake.store, uri, job_id=job_id, options=options, clock=lake.clock)
        for job_id, uri in (
            (an_id("dead"), FLIGHTS.uri),
            (an_id("alive"), FLIGHTS.uri),
            (an_id("guest"), "s3://lake/trains/"),
        )
    }
    for job in jobs.values():
        job.task_attempt("spark", "1", "0", "1", threads=0).open("dt=1/a.parquet")
    lake.store_clock.advance(2 * DAY)
    lake.run_task(jobs[an_id("alive")], FILES)
    report = lake.sweep(staging_root=root)
    assert report.plan is not None
    assert [planned.job_id for planned in report.plan.jobs] == [an_id("dead")]
    assert [done.job_id for done in report.jobs] == [an_id("dead")]
    assert len(lake.pending()) == 4
    assert jobs[an_id("alive")].state() is not None
    assert jobs[an_id("guest")].state() is not None


def test_a_job_with_unreadable_records_is_left() -> None:
    """Damage is reported and not removed, because the job may be alive."""
    lake = Lake()
    lake.run_task(lake.set_up(), FILES)
    lake.tamper(f"{ROOT}__magic_job-{OURS}/state.json", cut=3)
    lake.store_clock.advance(9 * DAY)
    before = lake.everything()
    assert "cannot be read" in _left(lake.sweep().plan)
    assert lake.everything() == before


def test_a_job_that_came_alive_after_the_plan_is_skipped() -> None:
    """If a task commits or the state changes after the plan, the job is skipped, and the report says so."""
    for wake, why in (
        (lambda lake: lake.run_task(lake.job(), {"dt=5/a.parquet": b"5"}, task="00005"), "sign of life"),
        (lambda lake: lake.job().seal(), "its state has changed"),
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


def test_a_job_that_comes_alive_at_the_last_moment_is_left() -> None:
    """If the job is sealed right before the sweep moves its state, the sweep skips it."""
    lake = Lake()
    job = lake.set_up()
    lake.run_stage(job, FILES)
    lake.store_clock.advance(2 * DAY)
    plan = _plan(lake)

    def wake() -> None:
        lake.store.rest()
        job.seal()

    lake.store.before = once("put", "state.json", wake)
    report = apply_sweep(lake.store, plan, clock=lake.clock, new_id=lake.new_id, threads=0)
    assert "at the same time" in report.skipped[0].reason
    job.commit()
    assert len(lake.data()) == 2


def test_an_upload_that_is_claimed_after_the_plan_is_skipped() -> None:
    """A stray whose job is set up again is left to that job."""
    lake = Lake()
    lake.stray(named("dt=1/a.parquet"))
    lake.store_clock.advance(2 * DAY)
    plan = _plan(lake)
    lake.set_up()
    report = apply_sweep(lake.store, plan, threads=0)
    assert report.uploads == 0
    assert OURS in report.skipped[0].reason
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
        if call.verb == "put" and OURS in call.key:
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
        _stop(lake, "put", f"{ENDED}.json", lake.sealed(FILES, job_id=ENDED).commit)
        _stop(lake, "put", "state.json", lake.sealed(FILES, job_id=ABORTED, conflict_mode="append").abort)
        _stop(lake, "put", "job.json", lambda: lake.set_up(an_id("remains")))
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
        return {key: self.lake.get(key) for key in self.lake.keys(f"{ROOT}__magic_job-{OURS}/")}

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
        (an_id("remains"), "discard"),
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
            assert report.jobs == []
        else:
            assert lake.data() == OLD
        lake.store_clock.advance(2 * DAY)
        assert lake.sweep().failures == []
        assert (lake.pending(), lake.staging()) == ([], [])
    assert set(outcomes) == {True, False}
    assert len(outcomes) > 15


def test_the_id_of_an_aborted_job_is_kept_for_at_least_thirty_days() -> None:
    """The record of an abort goes only when it is older than thirty days and than the requested age."""
    lake = Lake()
    spent = f"{ROOT}_s3commit/aborted/"
    old = lake.set_up()
    lake.run_task(old, FILES)
    old.abort()
    lake.store_clock.advance(29 * DAY)
    assert lake.sweep().spent == 0
    lake.store_clock.advance(2 * DAY)
    young = lake.set_up(THEIRS)
    young.abort()
    assert _plan(lake, older_than=60 * DAY).spent == []
    report = lake.sweep()
    assert ([one.job_id for one in report.plan.spent], report.spent) == ([old.reference.job_id], 1)
    assert [info.key for info in lake.store.list_objects(BUCKET, spent)] == [
        f"{spent}{young.reference.job_id}.json"
    ]
    assert report.failures == report.skipped == []


def test_a_spent_id_that_an_upload_still_claims_is_kept() -> None:
    """While a pending upload carries the id of an aborted job, the record that forbids the id stays."""
    lake = Lake()
    job = lake.set_up()
    job.abort()
    lake.stray(f"dt=1/part-0-{job.reference.job_id}.parquet")
    lake.store_clock.advance(31 * DAY)
    assert _plan(lake).spent == []


def test_a_spent_id_with_records_in_its_staging_is_kept() -> None:
    """They are removed first, because the record of the abort proves whose they are."""
    lake = Lake()
    lake.set_up().abort()
    lake.forge_task({ROOT + named("dt=1/late.parquet"): BUCKET})
    lake.store_clock.advance(31 * DAY)
    assert [dead.action for dead in _plan(lake).jobs] == ["discard"]
    assert _plan(lake).spent == []


def test_a_rewritten_record_of_an_abort_is_kept() -> None:
    """If the job is aborted again after the plan, the new record stays for thirty days."""
    lake = Lake()
    job = lake.set_up()
    job.abort()
    lake.store_clock.advance(31 * DAY)
    lake.stray()
    plan = _plan(lake)
    key = plan.spent[0].uri.removeprefix(f"s3://{BUCKET}/")
    lake.store.put(BUCKET, key, b'{"another": "record"}')
    report = apply_sweep(lake.store, plan, clock=lake.clock, new_id=lake.new_id, threads=0)
    assert report.spent == 0
    assert "rewritten" in report.skipped[0].reason
