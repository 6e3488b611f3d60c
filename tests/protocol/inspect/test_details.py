"""The details of one job: in every state they show what exists, and change nothing."""

from __future__ import annotations

import pytest

from airflow_s3commit.exceptions import AlreadyCommitted, DestinationNotEmpty, JobClosed, NoSuchJob
from airflow_s3commit.protocol.inspect.details import JobDetails, describe_job, preview_commit
from airflow_s3commit.protocol.metadata.sealed_job import find_plan
from airflow_s3commit.protocol.metadata.state import require_state
from airflow_s3commit.protocol.model.destination import Destination
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Crash, Lake

FLIGHTS = Destination(BUCKET, ROOT)
FILES = {"dt=1/part-0.parquet": b"one", "dt=2/part-0.parquet": b"seven!!"}

REPLACING = {"dt=1/part-0.parquet": b"new", "dt=2/part-0.parquet": b"newer"}
OLD = {
    "dt=1/part-0.parquet": b"old 1",
    "dt=1/other.parquet": b"old",
    "dt=3/x.parquet": b"old 3",
    "root": b"r",
}


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
    assert (details.preview.replaced, details.preview.replaced_bytes) == (1, 3)


def test_a_job_left_in_its_commit_shows_its_progress() -> None:
    """Half of it is complete."""
    lake = Lake()
    lake.sealed(FILES)
    lake.store.die("complete_upload", after=True)
    with pytest.raises(Crash):
        lake.job().commit()
    lake.store.rest()
    lake.store_clock.advance(500)
    details = _details(lake)
    assert details.summary.state == "committing"
    assert details.uploads is not None
    assert (details.uploads.pending, details.uploads.completed) == (1, 1)


def test_a_committed_job_is_known_by_its_manifest() -> None:
    """After the clean-up only the manifest is left, and it is enough."""
    lake = Lake()
    lake.sealed(FILES).commit()
    details = _details(lake)
    assert (details.summary.state, details.summary.staging) == ("committed", None)
    assert (details.summary.output.files, details.summary.output.rows) == (2, 10)
    assert details.stages == []
    assert details.to_dict()["uploads"] is None


def test_a_damaged_record_is_a_problem_not_an_error() -> None:
    """Whatever can be read is still shown."""
    lake = Lake()
    lake.sealed(FILES)
    lake.tamper(lake.context().layout.seal, cut=20)
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


@each("committer", ["directory", "partitioned", "magic"])
@each("mode", ["fail", "append", "replace"])
def test_a_preview_agrees_with_the_plan(committer: str, mode: str) -> None:
    """For every committer and conflict mode the preview has the plan's counts, or names its obstacle."""
    lake = Lake()
    job = lake.sealed(REPLACING, committer=committer, conflict_mode=mode)
    lake.put(OLD)
    before = lake.everything()
    preview = preview_commit(lake.context())
    assert lake.everything() == before
    assert (preview.files, preview.bytes, preview.partitions, preview.planned) == (2, 8, 2, False)
    if preview.conflict is not None:
        with pytest.raises(DestinationNotEmpty):
            job.plan()
        return
    job.plan()
    stored = find_plan(lake.context(), require_state(lake.context(), "sealed").record)
    if mode == "append":
        # Nothing is replaced, and no plan written.
        assert (stored, preview.replaced) == (None, 0)
        return
    assert stored is not None
    plan = stored.record
    assert (preview.replaced, preview.replaced_bytes) == (plan.objects, plan.bytes)
    planned = preview_commit(lake.context())
    assert (planned.planned, planned.replaced, planned.replaced_bytes) == (True, plan.objects, plan.bytes)


def test_a_commit_that_has_begun_keeps_to_its_plan() -> None:
    """Later objects are not in the preview, because the commit does not replace them."""
    lake = Lake()
    lake.put({"dt=1/old.parquet": b"old"})
    lake.sealed(REPLACING)
    lake.store.die("complete_upload")
    with pytest.raises(Crash):
        lake.job().commit()
    lake.store.rest()
    lake.put({"dt=1/late.parquet": b"late"})
    preview = preview_commit(lake.context())
    assert (preview.planned, preview.replaced, preview.replaced_bytes) == (True, 1, 3)


def test_only_a_sealed_job_has_a_preview() -> None:
    """There is no preview before the seal or after the commit."""
    lake = Lake()
    with pytest.raises(NoSuchJob):
        preview_commit(lake.context())
    job = lake.set_up()
    with pytest.raises(JobClosed):
        preview_commit(lake.context())
    lake.run_stage(job, REPLACING)
    job.seal()
    assert preview_commit(lake.context()).to_dict()["files"] == 2
    job.commit()
    with pytest.raises(AlreadyCommitted):
        preview_commit(lake.context())
