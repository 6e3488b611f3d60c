"""A job that ended leaves nothing in its staging, and what remains during the removal is readable."""

from __future__ import annotations

import pytest

from airflow_s3commit.exceptions import StoreRejected
from airflow_s3commit.protocol.metadata.removal import clean_staging
from airflow_s3commit.store.base import DeleteFailure
from airflow_s3commit.testing import StoreCall
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, named

NEW = {"dt=1/a": b"1", "dt=2/b": b"22"}


@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("track", ["task", "s3"])
def test_nothing_is_left_of_the_staging(end: str, track: str) -> None:
    """After a job has ended, all of its staging is gone, and other jobs' stagings stay."""
    lake = Lake()
    lake.run_task(lake.set_up(THEIRS), NEW)
    theirs = lake.staging(THEIRS)
    lake.sealed(NEW, track_pending=track).plan()
    lake.store.put(BUCKET, f"{ROOT}__magic_job-{OURS}/stages/spark-1/tasks/rubbish", b"?")
    lake.store.put(BUCKET, f"{ROOT}__magic_job-{OURS}/", b"")  # as Hadoop's mkdirs does
    getattr(lake.job(), end)()
    assert lake.staging() == []
    assert lake.staging(THEIRS) == theirs


def test_the_job_s_record_goes_first_and_the_state_last() -> None:
    """While the staging is removed, a state without a record says that the job has ended."""
    lake = Lake()
    lake.sealed(NEW)
    lake.store.calls.clear()
    clean_staging(lake.context())
    deleted = [call.key.rpartition("/")[2] for call in lake.store.calls if call.verb == "delete"]
    assert deleted[0] == "job.json"
    assert deleted[-1] == "state.json"
    assert len(deleted) == len(set(deleted)) + 1  # two seals with one file name
    clean_staging(lake.context())
    assert lake.staging() == []


@pytest.mark.parametrize("nth", range(1, 6))
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_cleanup_that_stopped_is_resumed(end: str, nth: int) -> None:
    """Wherever a cleanup dies, the next one finishes it, and says how the job ended."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.sealed(NEW)

    def count_down(call: StoreCall) -> None:
        if call.verb == "delete" and "__magic_job-" in call.key:
            left.append(call.key)
            if len(left) == nth:
                lake.store.crash()

    left: list[str] = []
    lake.store.before = count_down
    with pytest.raises(Crash):
        getattr(lake.job(), end)()
    lake.store.rest()
    ended = getattr(lake.job(), end)()
    assert lake.staging() == []
    assert lake.pending() == []
    new = {named(path): body for path, body in NEW.items()}
    assert lake.data() == (new if end == "commit" else {"dt=1/old": b"old"})
    assert (f"{HOME}manifests/{OURS}.json" in lake.keys("")) is (end == "commit")
    assert ended.job_id == OURS if end == "commit" else ended.objects == 0


def test_an_object_that_cannot_be_deleted_is_reported() -> None:
    """If the store keeps an object, the error names it and the state stays."""
    lake = Lake()
    lake.sealed(NEW)
    kept = f"{ROOT}__magic_job-{OURS}/sealed.json"
    lake.store.delete_many = lambda *_: [DeleteFailure(kept, "AccessDenied", "no")]  # type: ignore[method-assign]
    with pytest.raises(StoreRejected, match=r"sealed\.json: AccessDenied no"):
        clean_staging(lake.context())
    assert "state.json" in lake.staging()


def test_a_staging_without_proof_is_left() -> None:
    """The staging's name alone does not prove whose it is."""
    lake = Lake()
    lake.forge_task({ROOT + named("dt=1/a"): BUCKET})
    before = lake.everything()
    clean_staging(lake.context())
    assert lake.everything() == before
