"""An existing job: found by its reference, and the steps of the processes that write its output."""

from __future__ import annotations

import json
from functools import partial

import pytest

from airflow_s3commit.exceptions import (
    InvalidDestination,
    InvalidOption,
    InvalidRecord,
    JobClosed,
    NoSuchJob,
)
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.job import JobReference
from airflow_s3commit.store.memory import MemoryStore
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Crash, Lake

NEW = {"dt=1/a": b"1", "dt=2/b": b"22"}


def test_a_job_is_found_by_its_reference() -> None:
    """A reference that went through XCom finds the job, without asking the store."""
    lake = Lake()
    reference = lake.set_up().reference
    plain = json.loads(json.dumps(reference.to_dict()))
    lake.store.calls.clear()
    job = Job.at(lake.store, JobReference.from_dict(plain))
    assert lake.store.calls == []
    assert job.reference == reference
    assert job.record().options.conflict_mode == "replace"


@pytest.mark.parametrize(
    "staging",
    [
        f"s3://{BUCKET}/{ROOT}__magic_job-{THEIRS}/", f"s3://{BUCKET}/{ROOT}", f"s3://{BUCKET}/",
        f"s3://{BUCKET}/{ROOT}x__magic_job-{OURS}/", f"s3://{BUCKET}/{ROOT}__magic_job-{OURS}/deeper/",
    ],
)  # fmt: skip
def test_a_reference_with_another_staging_is_refused(staging: str) -> None:
    """A reference cannot send a job to another job's records, or anywhere else."""
    reference = JobReference(job_id=OURS, destination=f"s3://{BUCKET}/{ROOT}", staging=staging)
    with pytest.raises(InvalidRecord, match="is not the staging of job"):
        Job.at(MemoryStore(), reference)


@pytest.mark.parametrize("field", ["job_id", "destination", "staging"])
def test_an_invalid_reference_is_refused(field: str) -> None:
    """Ids and URIs in a reference are checked like those of a setup."""
    good = Lake().reference().to_dict()
    reference = JobReference.from_dict({**good, field: "../x"})
    with pytest.raises((InvalidRecord, InvalidDestination)):
        Job.at(MemoryStore(), reference)


def test_an_unknown_job_is_none_or_an_error() -> None:
    """A job that never existed has no state and no manifest, and its record is an error."""
    job = Lake().job()
    assert job.state() is None
    assert job.manifest() is None
    assert job.stage_seal("spark", "1") is None
    for step in (job.record, job.seal, job.preview, job.commit):
        with pytest.raises(NoSuchJob):
            step()


def test_reading_a_job_costs_one_request() -> None:
    """A job's record never changes, so it is read once, however often it is needed."""
    lake = Lake()
    lake.set_up()
    job = Job.at(lake.store, lake.reference())
    lake.store.calls.clear()
    records = [job.record() for _ in range(3)]
    assert records[0] == records[2]
    assert [call.verb for call in lake.store.calls] == ["get"]


def test_a_stage_is_sealed_once() -> None:
    """The sealed stage attempts are those that were sealed, and each has one set of tasks."""
    lake = Lake()
    job = lake.set_up()
    one, other = (lake.run_task(job, {"dt=1/a": b"1"}, attempt=attempt) for attempt in "12")
    assert job.sealed_stages() == []
    seal = job.seal_stage("spark", "1", [one])
    assert job.seal_stage("spark", "1", [one]) == seal == job.stage_seal("spark", "1")
    with pytest.raises(JobClosed):
        job.seal_stage("spark", "1", [other])
    assert job.sealed_stages() == [("spark", "1")]


def test_a_job_whose_records_were_deleted_is_unknown_to_processes_that_know_it() -> None:
    """Its steps say that there is no such job, not that a step before is missing."""
    lake = Lake()
    written, sealed = lake.set_up(), lake.sealed(NEW, job_id=THEIRS)
    task = lake.run_task(written, NEW)
    sealed.record()
    for key in lake.keys(ROOT):
        lake.store.delete(BUCKET, key)
    for step in (
        partial(written.seal_stage, "spark", "1", [task]), partial(written.commit, stages=[("spark", "1")]),
        written.seal, sealed.preview, sealed.commit, partial(sealed.complete_part, 0, 1),
    ):  # fmt: skip
        with pytest.raises(NoSuchJob, match="a program deleted its record"):
            step()


def test_a_driver_learns_that_its_job_was_aborted() -> None:
    """A process that asks nobody after each step asks when it misses what its tasks wrote."""
    lake = Lake()
    job = Job.setup(lake.store, lake.destination, alone="driver")
    task = lake.run_task(lake.job(job.reference.job_id), NEW)
    lake.job(job.reference.job_id).abort()
    with pytest.raises(JobClosed, match="is aborted"):
        job.seal_stage("spark", "1", [task])


def test_a_part_goes_by_the_seal_that_was_handed_over() -> None:
    """A part of a commit completes nothing if the job has another seal than the one that was reviewed."""
    lake = Lake()
    lake.sealed(NEW)
    with pytest.raises(InvalidRecord, match="is not the seal that was handed over"):
        lake.job().complete_part(0, 1, seal_sha256="0" * 64)
    assert lake.data() == {}


def test_a_part_completes_nothing_of_a_job_that_has_ended() -> None:
    """A part that comes after the receipt of an abort that died is refused, and nothing becomes visible."""
    lake = Lake()
    lake.sealed(NEW)
    lake.store.die("put", lake.receipt_key(), after=True)
    with pytest.raises(Crash):
        lake.job().abort()
    lake.store.rest()
    with pytest.raises(JobClosed, match="is aborted"):
        lake.job().complete_part(0, 1)
    assert lake.data() == {}


def test_an_attempt_whose_process_is_gone_is_aborted_by_another() -> None:
    """Its recorded uploads are aborted, again and even after the job, and it cannot be sealed any more."""
    lake = Lake()
    job = lake.set_up()
    dead = lake.run_task(job, {"dt=1/a": b"1"}, attempt="1")
    assert lake.job().abort_attempt("spark", "1", "00000", "1") == 1
    assert lake.pending() == []
    with pytest.raises(InvalidRecord):
        lake.job().seal_stage("spark", "1", [dead])
    assert lake.job().abort_attempt("spark", "1", "00000", "1") == 0
    lake.job().abort()
    assert lake.job().abort_attempt("spark", "1", "00000", "1") == 0


@each("part", [(2, 2), (-1, 2), (0, 0)])
def test_a_part_that_no_commit_has_is_refused(part: tuple[int, int]) -> None:
    """Nothing is completed: a number that is off by one would leave a part to nobody."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"1"})
    with pytest.raises(InvalidOption, match="parts are numbered from 0"):
        job.complete_part(*part)
    assert lake.data() == {}


def test_an_attempt_whose_record_is_damaged_is_left() -> None:
    """Without it nobody would find the attempt's uploads, so it stays, and the error names it."""
    lake = Lake()
    lake.run_task(lake.set_up(), {"dt=1/a": b"1"})
    lake.tamper(lake.pendingset_key(), cut=9)
    before = lake.everything()
    with pytest.raises(InvalidRecord, match=r"00000_1\.pendingset, or a record beside it, cannot be read"):
        lake.job().abort_attempt("spark", "1", "00000", "1")
    assert lake.everything() == before


def test_what_is_sealed_is_not_aborted() -> None:
    """A commit may complete uploads of a sealed stage attempt or its task attempts, so neither is aborted."""
    lake = Lake()
    job = lake.set_up()
    lake.run_stage(job, {"dt=1/a": b"1"})
    with pytest.raises(JobClosed):
        lake.job().abort_stage("spark", "1")
    with pytest.raises(JobClosed):
        lake.job().abort_attempt("spark", "1", "00000", "1")
    assert len(lake.pending()) == 1
