"""How far a job is, by its records and the log, wherever its processes died."""

from __future__ import annotations

import pytest

from airflow_s3commit.exceptions import JobClosed
from airflow_s3commit.protocol.model.job import AbortReport
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.testing import StoreCall
from tests.cases import each
from tests.protocol.building import THEIRS, Crash, Lake

ENTRY = f"log/{2:020d}.json"


def _state(lake: Lake) -> tuple[str, int | None, bool]:
    state = lake.job().state()
    assert state is not None
    return state.state, state.generation, state.finished


@each("end", ["commit", "abort"])
@each(
    ("verb", "ending", "finished"),
    [("put", ENTRY, False), ("put", "jobs/", False), ("delete", "job.json", True)],
)
@each("later", [False, True])
def test_a_job_has_ended_from_its_entry_on(
    end: str, verb: str, ending: str, finished: bool, later: bool
) -> None:
    """With its entry it has ended, with or without a receipt; once its record is gone it is finished."""
    lake = Lake()
    assert lake.job().state() is None
    lake.set_up()
    assert _state(lake) == ("open", None, False)
    lake.run_stage(lake.job(), {"dt=1/a": b"1"})
    lake.job().seal()
    assert _state(lake) == ("sealed", None, False)
    lake.store.die(verb, lake.receipt_key() if ending == "jobs/" else ending, after=True)
    with pytest.raises(Crash):
        getattr(lake.job(), end)()
    lake.store.rest()
    if later:
        lake.sealed({"dt=1/b": b"2"}, job_id=THEIRS, conflict_mode="append").commit()
    generation = 2 if end == "commit" else None
    assert _state(lake) == ("committed" if end == "commit" else "aborted", generation, finished)
    assert isinstance(lake.job().recover(), Manifest if end == "commit" else AbortReport)
    assert _state(lake)[2]


@each("nth", [0, 1, 2])
def test_a_recovery_commits_what_has_begun_to_publish(nth: int) -> None:
    """A sealed job none of whose files is there has not begun; with one file it is committed."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"1", "dt=2/a": b"2"})
    if nth:
        lake.store.die("complete_upload", nth=nth, after=True)
        with pytest.raises(Crash):
            job.commit()
        lake.store.rest()
        assert isinstance(lake.job().recover(), Manifest)
        assert len(lake.data()) == 2
    else:
        with pytest.raises(JobClosed, match="neither begun to commit nor to abort"):
            lake.job().recover()
        assert _state(lake) == ("sealed", None, False)


def test_a_job_that_ends_while_it_is_looked_up_has_ended() -> None:
    """Whoever does not know where a job began reads the newest entry, and then the receipt."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"})

    def end() -> None:
        lake.store.rest()
        lake.job().commit()
        lake.set_up(THEIRS).abort()

    def after_the_record(call: StoreCall) -> None:
        if call.verb == "list_objects":
            end()

    lake.store.before = after_the_record
    assert lake.job().manifest() is not None
