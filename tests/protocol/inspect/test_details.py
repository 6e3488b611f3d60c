"""The details of one job: in every state they show what exists, and change nothing."""

from __future__ import annotations

import pytest

from airflow_s3commit import Job, JobOptions
from airflow_s3commit.exceptions import NoSuchJob
from airflow_s3commit.protocol.inspect.jobs import JobDetails, describe_job
from airflow_s3commit.protocol.model.destination import Destination
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Crash, Lake, once

FLIGHTS = Destination(BUCKET, ROOT)
FILES = {"dt=1/part-0.parquet": b"one", "dt=2/part-0.parquet": b"seven!!"}


def _details(lake: Lake, job_id: str = OURS) -> JobDetails:
    before = lake.everything()
    details = describe_job(lake.store, FLIGHTS, job_id)
    assert lake.everything() == before
    return details


def test_an_open_job_shows_its_stages_and_uploads() -> None:
    """An unsealed stage is counted by its pendingsets, and it is unknown whether it counts."""
    lake = Lake()
    job = lake.set_up()
    lake.run_task(job, FILES)
    details = _details(lake)
    stage = details.stages[0]
    assert (stage.stage, stage.attempt, stage.sealed, stage.counts, stage.tasks) == (
        "spark",
        "1",
        False,
        None,
        1,
    )
    assert stage.output is None
    assert details.uploads is not None
    assert (details.uploads.pending, details.uploads.bytes) == (2, 10)
    assert (details.preview, details.problems) == (None, [])


def test_a_sealed_job_shows_which_stage_attempt_counts() -> None:
    """Of two attempts of a stage the sealed one counts, and the other's uploads are listed separately."""
    lake = Lake()
    lake.put({"dt=1/old.parquet": b"old"})
    job = lake.set_up()
    lake.run_stage(job, FILES)
    lake.run_stage(job, FILES, stage_attempt="2")
    job.seal([("spark", "2")])
    details = _details(lake)
    assert [(stage.attempt, stage.counts, stage.tasks) for stage in details.stages] == [
        ("1", False, 1),
        ("2", True, 1),
    ]
    assert details.stages[1].output is not None
    assert details.stages[1].output.bytes == 10
    assert details.uploads is not None
    assert (details.uploads.pending, details.uploads.unrecorded) == (2, 2)
    assert details.preview is not None
    assert (details.preview.objects, details.preview.bytes) == (1, 3)


def test_a_job_left_in_its_commit_shows_its_progress() -> None:
    """Half of it is complete."""
    lake = Lake()
    lake.sealed(FILES)
    lake.store.die("complete_upload", after=True)
    with pytest.raises(Crash):
        lake.job().commit()
    lake.store.rest()
    details = _details(lake)
    assert details.summary.state == "sealed"
    assert details.uploads is not None
    assert (details.uploads.pending, details.uploads.completed) == (1, 1)


def test_an_ended_job_is_known_by_the_log() -> None:
    """After the clean-up only its entry is left, and it is enough."""
    lake = Lake()
    lake.sealed(FILES).commit()
    details = _details(lake)
    assert (details.summary.state, details.summary.staging) == ("committed", None)
    assert (details.summary.output.files, details.summary.output.rows) == (2, 10)
    assert details.stages == []
    assert details.to_dict()["uploads"] is None
    lake.set_up(THEIRS).abort(reason="why not")
    assert _details(lake, THEIRS).summary.reason == "why not"


def test_a_damaged_record_is_a_problem_not_an_error() -> None:
    """Whatever can be read is still shown."""
    lake = Lake()
    lake.sealed(FILES)
    lake.tamper(lake.open_key("sealed.json"), cut=20)
    details = _details(lake)
    assert details.summary.state == "sealed"
    assert details.problems
    assert "sealed.json" in details.problems[0]


def test_a_damaged_pendingset_is_found() -> None:
    """An intact seal does not hide a damaged pendingset."""
    lake = Lake()
    lake.sealed(FILES)
    lake.tamper(lake.pendingset_key(), cut=20)
    details = _details(lake)
    assert details.uploads is not None
    assert not details.uploads.sound


def test_a_missing_job_is_refused() -> None:
    """The error for an unknown job without leftovers says so."""
    lake = Lake()
    lake.set_up(THEIRS)
    with pytest.raises(NoSuchJob, match=OURS):
        describe_job(lake.store, FLIGHTS, OURS)


def test_a_conflict_is_told_before_the_commit() -> None:
    """A sealed job that would be refused says why, and has no preview."""
    lake = Lake()
    lake.put({"dt=1/old.parquet": b"old"})
    lake.sealed(FILES, conflict_mode="fail")
    details = _details(lake)
    assert details.preview is None
    assert "conflict mode is fail" in (details.conflict or "")
    assert details.problems == []


def test_a_job_that_ends_meanwhile_is_a_problem_not_an_error() -> None:
    """What was read of it before is shown."""
    lake = Lake()
    job = lake.sealed(FILES)
    lake.store.before = once("list_uploads", ROOT, job.abort)
    details = describe_job(lake.store, FLIGHTS, OURS)
    assert (details.summary.state, len(details.stages), details.uploads) == ("sealed", 1, None)
    assert "aborted" in details.problems[0]


def test_a_job_with_its_staging_elsewhere_is_found_by_its_record() -> None:
    """Nobody has to say where the staging is."""
    lake = Lake()
    options = JobOptions(staging="s3://other/staging/")
    job = Job.setup(lake.store, FLIGHTS.uri, job_id=OURS, options=options)
    lake.run_task(job, FILES)
    details = _details(lake)
    assert details.uploads is not None
    assert (len(details.stages), details.uploads.pending) == (1, 2)
