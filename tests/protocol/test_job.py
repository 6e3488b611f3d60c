"""A job as its callers see it, from setup to manifest."""

from __future__ import annotations

import json
import pickle

import pytest

from airflow_s3commit.exceptions import AlreadyCommitted, InvalidOption, InvalidRecord, NoSuchJob
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.delta import SAME_ROWS
from airflow_s3commit.protocol.model.job import AbortReport, JobReference
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.sealed_job import CommittedTask
from airflow_s3commit.store.memory import MemoryStore
from tests.protocol.building import BUCKET, OURS, Crash, Lake, an_id, named, once

NEW = {"dt=1/a": b"1", "dt=2/b": b"22"}


def test_a_job_from_setup_to_manifest_with_the_defaults() -> None:
    """Only a store and a URI are given: part sizes, threads, a random id and the clock are real."""
    store = MemoryStore()
    job = Job.setup(store, "s3a://lake/flights")
    with job.task_attempt("spark", "1", "00000", "7") as attempt, attempt.open("dt=1/a.parquet") as file:
        file.write(b"x" * 100)
    with job.task_attempt("spark", "1", "00000", "8") as attempt:
        with attempt.open("dt=1/a.parquet") as file:
            file.write(b"y" * 100)
        task = attempt.commit()
    job.seal_stage("spark", "1", [task])
    job.seal()
    manifest = job.commit()
    assert manifest.counts.files == 1
    key = f"flights/dt=1/a-{job.reference.job_id}.parquet"
    assert store.get(BUCKET, key).body == b"y" * 100
    assert list(store.list_uploads(BUCKET, "")) == []


def test_every_job_has_an_id_of_its_own() -> None:
    """Without an id a job gets a new one."""
    store = MemoryStore()
    jobs = {Job.setup(store, "s3://lake/x").reference.job_id for _ in range(5)}
    assert len(jobs) == 5


def test_a_context_cannot_say_that_no_row_changes() -> None:
    """What a compaction says of its rows is refused in any other job, whose rows readers would skip."""
    store = MemoryStore()
    with pytest.raises(InvalidOption, match="context has s3commit_rows"):
        Job.setup(store, "s3://lake/x", context=SAME_ROWS)
    assert list(store.list_objects("lake", "")) == []


def test_a_reference_with_another_destination_is_refused() -> None:
    """A job found with another destination than its own does nothing there."""
    lake = Lake()
    lake.sealed(NEW)
    wrong = JobReference(
        job_id=OURS, destination=f"s3://{BUCKET}/elsewhere/", staging=lake.reference().staging
    )
    before = lake.everything()
    job = Job.at(lake.store, wrong)
    for step in (job.record, job.seal, job.preview, job.commit, job.recover):
        with pytest.raises(NoSuchJob, match="never set up"):
            step()
    assert lake.everything() == before


def test_a_record_that_took_the_place_of_the_jobs_is_refused_by_every_step() -> None:
    """The reference pins the record: with another one no step goes on, nothing is uploaded, abort ends it."""
    lake = Lake()
    job = lake.set_up()
    lake.run_stage(job, NEW)
    lake.job().seal()
    reference, key = job.reference, lake.open_key("job.json")
    record = json.loads(lake.store.get(BUCKET, key).body)
    record["options"]["conflict_mode"] = "replace"
    lake.store.put(BUCKET, key, json.dumps(record).encode())
    before = lake.everything()

    def opened() -> Job:
        return Job.at(lake.store, JobReference.from_dict(json.loads(json.dumps(reference.to_dict()))))

    for step in (
        lambda: opened().task_attempt("spark", "2", "0", "1"),
        lambda: opened().seal_stage("spark", "2", []),
        lambda: opened().seal([("spark", "1")]),
        lambda: opened().complete_part(0, 1),
        lambda: opened().preview(),
        lambda: opened().commit(),
        lambda: opened().recover(),
    ):
        with pytest.raises(InvalidRecord, match=r"job\.json was changed after it was written"):
            step()
    assert lake.everything() == before
    opened().abort()
    assert (lake.data(), lake.pending()) == ({}, [])


def test_a_reference_pins_the_record_once_it_was_read() -> None:
    """Setup pins the record, a reference by a person does not, and one that is passed on does again."""
    lake = Lake()
    pinned = Job.setup(lake.store, lake.destination, job_id=OURS).reference
    by_hand = JobReference(job_id=OURS, destination=pinned.destination, staging=pinned.staging)
    job = Job.at(lake.store, by_hand)
    assert job.reference.sha256 == ""
    job.record()
    assert job.reference == pinned
    assert len(pinned.sha256) == 64


def test_every_step_may_be_taken_by_another_process() -> None:
    """Processes that only know the reference take each step twice, and the outcome is one job's."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.set_up()
    task = lake.run_task(lake.job(), NEW)
    task = CommittedTask.from_dict(json.loads(json.dumps(pickle.loads(pickle.dumps(task)).to_dict())))
    for _ in range(2):
        lake.job().seal_stage("spark", "1", [task])
    for _ in range(2):
        seal = lake.job().seal()
    for _ in range(2):
        seen = lake.job().preview()
    assert (seen.objects, seen.partitions) == (1, ["dt=1"])
    for part in (1, 0, 1):
        lake.job().complete_part(part, 2)
    manifests = [lake.job().commit(seal_sha256=seal.sha256, generation=seen.generation) for _ in range(2)]
    assert manifests[0] == manifests[1] == lake.job().manifest()
    assert lake.data() == {named(path): body for path, body in NEW.items()}


@pytest.mark.parametrize("undo", [False, True])
def test_what_was_left_halfway_is_finished_or_undone(undo: bool) -> None:
    """A commit that died is finished by `recover`, or undone by `abort`, and then finished by `recover`."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    job = lake.sealed(NEW)
    lake.store.die("complete_upload", named("b"))
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    if undo:
        assert lake.job().abort().objects == 1
    outcome = lake.job().recover()
    assert isinstance(outcome, AbortReport if undo else Manifest)
    new = {named(path): body for path, body in NEW.items()}
    assert lake.data() == ({"dt=1/old": b"old"} if undo else new)
    assert (lake.pending(), lake.staging()) == ([], [])
    if not undo:
        with pytest.raises(AlreadyCommitted):
            lake.job().abort()


def test_a_job_whose_destination_was_deleted_can_be_aborted() -> None:
    """The process that set it up discards its uploads as any other does, after an overwrite from above."""
    lake = Lake()
    job = lake.sealed(NEW)
    for key in lake.keys(""):
        lake.store.delete(BUCKET, key)
    assert job.abort().uploads == 2
    assert (lake.pending(), lake.data()) == ([], {})
    assert job.abort().uploads == 0


def test_a_job_that_outlived_its_log_can_be_aborted() -> None:
    """Its destination was deleted right before its record was written: a commit says so, and abort works."""
    lake = Lake()

    def delete() -> None:
        lake.store.rest()
        for key in lake.keys(""):
            lake.store.delete(BUCKET, key)

    lake.store.before = once("put", "job.json", delete)
    job = lake.sealed(NEW)
    with pytest.raises(InvalidRecord, match="if the whole destination was deleted, abort the job"):
        job.commit()
    assert lake.job().abort().uploads == 2
    assert (lake.pending(), lake.data(), lake.left()) == ([], {}, [])


@pytest.mark.parametrize("reason", ["", "x" * 100_000, "\x00\u2028", "not decodable: \udcff"])
def test_a_job_is_aborted_whatever_the_reason(reason: str) -> None:
    """Text that no record can hold, as an argument of a command with undecodable bytes, is escaped or cut."""
    lake = Lake()
    assert lake.sealed(NEW).abort(reason=reason).uploads == 2
    state = lake.job().state()
    assert state is not None
    assert state.reason == reason[:65_536].replace("\udcff", "\\udcff")


def test_jobs_on_one_destination_follow_each_other() -> None:
    """Jobs that replace, append and fail on one destination each see what the earlier ones left."""
    lake = Lake()
    for number, mode in enumerate(["fail", "append", "replace", "append"]):
        lake.sealed({"dt=1/f": bytes([number])}, job_id=an_id(f"job-{number}"), conflict_mode=mode).commit()
    assert lake.data() == {named("dt=1/f", an_id(f"job-{n}")): bytes([n]) for n in (2, 3)}
    assert [entry["number"] for entry in lake.entries()] == [1, 2, 3, 4, 5]


def test_jobs_on_neighbouring_destinations_never_meet() -> None:
    """Replacing one whole destination leaves its neighbours, and what is above it, alone."""
    stores = [
        Lake(prefix=prefix) for prefix in ("out/dataset1/", "out/dataset10/", "out/", "out/dataset1/in/")
    ]
    for lake in stores[1:]:
        lake.store = stores[0].store
    for lake in stores:
        lake.put({"old": lake.prefix.encode()})
    stores[0].sealed({"new": b"new"}, committer="directory").commit()
    left = set(stores[0].visible())
    assert {"out/dataset10/old", "out/old"} <= left
    assert not {"out/dataset1/old", "out/dataset1/in/old"} & left
