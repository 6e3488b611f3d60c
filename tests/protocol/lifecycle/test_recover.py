from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    JobClosed,
    JobFailed,
    NoSuchJob,
    OutcomeUnknown,
)
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.job import AbortReport
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.testing import StoreCall
from tests.protocol.building import BUCKET, OURS, ROOT, Crash, Lake, an_id, named, once

FILES = {"dt=1/part-0.parquet": b"new 1/0", "dt=2/part-0.parquet": b"new 2/0"}
OLD = {"dt=1/part-0.parquet": b"old 1/0", "dt=3/part-0.parquet": b"old 3/0", "_SUCCESS": b'{"old":"marker"}'}


@pytest.fixture
def lake() -> Lake:
    """Return a lake with a dataset and a sealed job that replaces two of its partitions."""
    lake = Lake()
    lake.put(OLD)
    lake.sealed(FILES)
    return lake


def _stop(lake: Lake, verb: str, ending: str, step: Callable[[], object], *, nth: int = 1) -> None:
    """Let a process die right after a call took effect."""
    lake.store.after = once(verb, ending, Crash(), nth=nth)
    with pytest.raises(Crash):
        step()
    lake.store.rest()


def _half_committed(lake: Lake) -> Job:
    """Stop a commit after its first upload was completed."""
    _stop(lake, "complete_upload", ".parquet", lake.job().commit)
    job = lake.job()
    state = job.state()
    assert state is not None
    assert state.state == "committing"
    return job


def _is_committed(lake: Lake) -> bool:
    new = {named(path): body for path, body in FILES.items()}
    return lake.data() == {**new, "dt=3/part-0.parquet": b"old 3/0"} and not lake.pending()


def _is_untouched(lake: Lake) -> bool:
    return {**lake.data(), "_SUCCESS": lake.get(f"{ROOT}_SUCCESS")} == OLD and not lake.pending()


def test_a_commit_that_stopped_halfway_continues(lake: Lake) -> None:
    """A job left committing is committed by recover, and its staging is gone."""
    manifest = _half_committed(lake).recover()
    assert isinstance(manifest, ManifestRecord)
    assert manifest.counts.files == 2
    assert _is_committed(lake)
    assert lake.staging() == []


def test_a_state_is_rebuilt_with_the_newest_plan(lake: Lake) -> None:
    """A recovered commit replaces what its newest plan names."""
    lake.job().plan()
    lake.put({"dt=1/late.parquet": b"late"})
    lake.store_clock.advance(1)
    lake.job().plan()
    _half_committed(lake)
    lake.tamper(lake.context().layout.state, cut=5)
    lake.job().recover()
    assert _is_committed(lake)


def test_a_commit_that_stopped_halfway_is_rolled_back_on_request(lake: Lake) -> None:
    """With rollback a job left committing leaves the destination unchanged, its marker included."""
    report = _half_committed(lake).recover(rollback=True, reason="the data is wrong")
    assert report == AbortReport(uploads=2, objects=1, state="aborted")
    assert _is_untouched(lake)
    assert lake.staging() == []


def test_a_committed_job_is_finished(lake: Lake) -> None:
    """A job that stopped after the point of no return gets its manifest, its deletions and its marker."""
    _stop(lake, "put", "manifests/" + OURS + ".json", lake.job().commit)
    assert lake.job().recover() == lake.job().manifest()
    assert _is_committed(lake)
    assert lake.staging() == []


def test_a_committed_job_is_not_rolled_back(lake: Lake) -> None:
    """Rollback is refused for a committed job, before and after it was cleaned up, and changes nothing."""
    _stop(lake, "put", "manifests/" + OURS + ".json", lake.job().commit)
    with pytest.raises(AlreadyCommitted):
        lake.job().recover(rollback=True)
    lake.job().recover()
    with pytest.raises(AlreadyCommitted):
        lake.job().recover(rollback=True)
    assert _is_committed(lake)


def test_a_cleaned_up_job_still_has_its_manifest(lake: Lake) -> None:
    """Recovering a committed job again returns the same manifest and changes nothing."""
    manifest = lake.job().commit()
    before = lake.everything()
    assert lake.job().recover() == manifest
    assert lake.everything() == before


@pytest.mark.parametrize(("verb", "ending"), [("abort_upload", ".parquet"), ("delete", "job.json")])
def test_an_abort_that_stopped_continues(lake: Lake, verb: str, ending: str) -> None:
    """A job left aborting, or aborted and not cleaned up, leaves nothing after recover."""
    _stop(lake, verb, ending, lake.job().abort)
    report = lake.job().recover()
    assert isinstance(report, AbortReport)
    assert report.state == "aborted"
    assert _is_untouched(lake)
    assert lake.staging() == []


@pytest.mark.parametrize("rollback", [False, True])
def test_a_job_whose_commit_has_not_begun_needs_no_recovery(lake: Lake, *, rollback: bool) -> None:
    """An open or sealed job is refused with the right action, and left unchanged."""
    lake.set_up(an_id("a-second-job"))
    before = lake.everything()
    with pytest.raises(JobClosed, match=r"is sealed.*s3commit commit.*s3commit abort"):
        lake.job().recover(rollback=rollback)
    with pytest.raises(JobClosed, match=r"is open.*s3commit abort"):
        lake.job(an_id("a-second-job")).recover(rollback=rollback)
    assert lake.everything() == before


def test_a_setup_that_stopped_is_told_from_an_unknown_job(lake: Lake) -> None:
    """A job with a record and no state is distinguished from an unknown one."""
    _stop(lake, "put", "job.json", lambda: lake.set_up(an_id("a-second-job")))
    with pytest.raises(JobClosed, match="Set it up again"):
        lake.job(an_id("a-second-job")).recover()


def test_an_unknown_job_cannot_be_recovered(lake: Lake) -> None:
    """Recovering an unknown job raises NoSuchJob."""
    with pytest.raises(NoSuchJob):
        lake.job("never-was").recover()


def test_an_aborted_job_stays_aborted(lake: Lake) -> None:
    """Recovering a job that was aborted and cleaned up says that it is aborted."""
    lake.job().abort()
    assert lake.job().recover() == AbortReport(uploads=0, objects=0, state="aborted")


def test_an_upload_that_is_gone_rolls_the_job_back(lake: Lake) -> None:
    """A recovery that finds an upload missing rolls back and says so."""
    job = _half_committed(lake)
    (left,) = lake.store.list_uploads(BUCKET, "")
    lake.store.abort_upload(BUCKET, left.key, left.upload_id)
    with pytest.raises(JobFailed):
        job.recover()
    assert _is_untouched(lake)


def test_a_job_that_another_process_committed_meanwhile_is_committed(lake: Lake) -> None:
    """A recovery that read committing, and then finds the job gone, returns the other process's manifest."""
    job = _half_committed(lake)
    other = lake.job(owner="another process")

    def overtake() -> None:
        lake.store.rest()
        other.commit()

    lake.store.after = once("get", "state.json", overtake)
    assert isinstance(job.recover(), ManifestRecord)
    assert _is_committed(lake)


def test_a_rollback_after_another_process_committed_is_refused(lake: Lake) -> None:
    """A rollback that read committing, while another process committed, says that the job is committed."""
    job = _half_committed(lake)
    other = lake.job(owner="another process")

    def overtake() -> None:
        lake.store.rest()
        other.commit()

    lake.store.after = once("get", "state.json", overtake)
    with pytest.raises(AlreadyCommitted):
        job.recover(rollback=True)
    assert _is_committed(lake)


def test_an_abort_that_another_process_began_meanwhile_is_finished(lake: Lake) -> None:
    """A recovery that read committing, while another process began to abort, continues the abort."""
    job = _half_committed(lake)
    other = lake.job(owner="another process")

    def overtake() -> None:
        lake.store.rest()
        _stop(lake, "put", "state.json", other.abort)

    lake.store.after = once("get", "state.json", overtake)
    assert isinstance(job.recover(), AbortReport)
    assert _is_untouched(lake)


@pytest.mark.parametrize("rollback", [False, True])
@pytest.mark.parametrize("died", ["before", "after", "lost"])
def test_a_recovery_that_stops_anywhere_is_recovered(died: str, *, rollback: bool) -> None:
    """If a recovery stops at any of its own reads or writes, the next one resumes it."""
    for stop in count(1):
        lake = Lake()
        lake.put(OLD)
        lake.sealed(FILES)
        job = _half_committed(lake)
        made = count(1)

        def watch(call: StoreCall, made: count[int] = made, stop: int = stop, lake: Lake = lake) -> None:
            if next(made) == stop:
                if died != "lost":
                    raise Crash
                if call.verb not in ("put", "complete_upload", "abort_upload", "delete"):
                    return
                raise OutcomeUnknown(f"the answer to {call} was lost")

        setattr(lake.store, "before" if died == "before" else "after", watch)
        try:
            job.recover(rollback=rollback)
        except (Crash, OutcomeUnknown):
            pass
        else:
            if next(made) <= stop:
                break
        lake.store.rest()
        try:
            lake.job().recover(rollback=rollback)
        except (NoSuchJob, AlreadyCommitted):
            assert lake.staging() == []
        assert _is_untouched(lake) if rollback else _is_committed(lake)
        assert lake.staging() == []
