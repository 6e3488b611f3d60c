"""A preview says what the commit takes, and changes nothing."""

from __future__ import annotations

import pytest

from airflow_s3commit.exceptions import AlreadyCommitted, DestinationNotEmpty, JobClosed
from airflow_s3commit.protocol.model.job import Removal
from airflow_s3commit.protocol.steps.commit import replaced_files
from airflow_s3commit.protocol.steps.seal import seal_stage
from tests.cases import each
from tests.protocol.building import ROOT, THEIRS, Lake, an_id, named

OLD = {"dt=1/old": b"old", "dt=2/old": b"older"}


@each("mode", ["append", "replace"])
@each("committer", ["magic", "directory"])
@each("retain", ["0s", "1d"])
def test_a_preview_is_what_the_commit_takes(mode: str, committer: str, retain: str) -> None:
    """Files of the table, and of other programs: exactly those that the commit then takes from readers."""
    lake = Lake()
    lake.put(OLD)
    lake.sealed({"dt=1/b": b"22"}, job_id=THEIRS, conflict_mode="append").commit()
    lake.put({"dt=1/added": b"added"})
    job = lake.sealed(
        {"dt=1/a": b"1"},
        conflict_mode=mode,
        committer=committer,
        retain=retain if mode == "replace" else "0s",
    )
    before, data = lake.everything(), lake.data()
    seen = job.preview()
    files = {file.key: file.size for file in replaced_files(job._recorded())}
    assert lake.everything() == before
    expected = {
        path: body
        for path, body in data.items()
        if mode == "replace" and (committer == "directory" or path.startswith("dt=1/"))
    }
    assert files == {ROOT + path: len(body) for path, body in expected.items()}
    assert (seen.objects, seen.bytes) == (len(expected), sum(map(len, expected.values())))
    assert seen.partitions == sorted({path.partition("/")[0] for path in expected})
    manifest = job.commit(generation=seen.generation)
    assert (manifest.replaced.files, manifest.replaced.bytes) == (seen.objects, seen.bytes)
    gone = data.keys() - lake.data().keys()
    assert gone == (set() if retain == "1d" else expected.keys())


def test_a_preview_lists_all_below_an_overwritten_directory() -> None:
    """What a Spark job overwrites with a directory is shown, also in partitions that it does not write."""
    lake = Lake()
    lake.put({"dt=1/h=1/old": b"old", "dt=2/h=1/old": b"old"})
    job = lake.set_up(conflict_mode="as-written", committer="partitioned")
    task = lake.run_task(job, {"dt=1/h=0/a": b"1"})
    seal_stage(job._recorded(), "spark", "1", [task], removes="partitions", replaced=["dt=1"])
    job.seal()
    assert job.preview().partitions == ["dt=1/h=1"]


@each("removes", ["nothing", "partitions", "everything"])
def test_a_preview_goes_by_what_the_writers_asked_to_remove(removes: Removal) -> None:
    """In conflict mode as-written it says what the commit takes, by the seal and not by the job's options."""
    lake = Lake()
    lake.put(OLD)
    job = lake.set_up(conflict_mode="as-written", committer="partitioned")
    task = lake.run_task(job, {"dt=1/a": b"1"})
    seal_stage(job._recorded(), "spark", "1", [task], removes=removes)
    job.seal()
    seen, data = job.preview(), lake.data()
    files = {file.key for file in replaced_files(job._recorded())}
    manifest = job.commit(generation=seen.generation)
    assert files == {ROOT + path for path in data.keys() - lake.data().keys()}
    assert seen.objects == manifest.replaced.files == len(files)
    assert len(files) == {"partitions": 1, "everything": 2}.get(removes, 0)


def test_a_job_that_could_only_fail_is_told_so_before_it_publishes() -> None:
    """A preview refuses what the commit would refuse, and the job stays as it is."""
    lake = Lake()
    lake.put(OLD)
    job = lake.sealed({"dt=1/a": b"1"}, conflict_mode="fail")
    beside = lake.sealed({"dt=3/a": b"1"}, job_id=THEIRS, conflict_mode="fail")
    before = lake.everything()
    with pytest.raises(DestinationNotEmpty, match="dt=1"):
        job.preview()
    assert lake.everything() == before
    assert beside.preview().objects == 0


@each("end", ["commit", "abort"])
@each("later", [False, True])
def test_a_job_that_has_ended_has_no_preview(end: str, later: bool) -> None:
    """It is refused for its end, and not for the records that went with it."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"1"})
    getattr(job, end)()
    if later:
        lake.sealed({named("dt=1/b"): b"2"}, job_id=an_id("later")).commit()
    with pytest.raises(AlreadyCommitted if end == "commit" else JobClosed, match=f"is {end}"):
        lake.job().preview()
