"""The seal of a job: which stage attempts count, decided once."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    DuplicateOutput,
    ForeignRecord,
    InvalidOption,
    InvalidRecord,
    JobClosed,
    NoSuchJob,
)
from airflow_s3commit.protocol.model.job import Removal
from airflow_s3commit.protocol.steps.seal import seal_stage
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Lake, named, once


def _stages(files: Mapping[tuple[str, str], str]) -> Lake:
    """Return a lake with a job whose stage attempts, each of one task, are sealed."""
    lake = Lake()
    job = lake.set_up(conflict_mode="append")
    for (stage, attempt), path in files.items():
        lake.run_stage(job, {path: b"1"}, stage=stage, stage_attempt=attempt)
    return lake


def test_of_a_stage_one_attempt_counts() -> None:
    """Of two sealed attempts somebody says which one counts; the files of the other never appear."""
    lake = _stages({("spark", "1"): "dt=1/a", ("spark", "2"): "dt=1/b"})
    with pytest.raises(DuplicateOutput, match="several sealed attempts of stage spark"):
        lake.job().seal()
    lake.job().seal([("spark", "2"), ("spark", "2")])
    lake.job().commit()
    assert lake.data().keys() == {named("dt=1/b")}
    assert lake.pending() == []


def test_the_seal_of_another_stage_attempt_is_refused() -> None:
    """Put in the place of one that was never sealed, it does not count twice or under another name."""
    lake = _stages({("one", "1"): "dt=1/a"})
    stages = f"{ROOT}__magic_job-{OURS}/stages"
    for place in ("one-2", "two-1"):
        lake.store.put(BUCKET, f"{stages}/{place}/sealed.json", lake.get(f"{stages}/one-1/sealed.json"))
        stage, _, attempt = place.partition("-")
        with pytest.raises(InvalidRecord, match="is the seal of another stage attempt"):
            lake.job().seal([(stage, attempt)])


def test_the_stage_seal_of_another_job_is_refused() -> None:
    """Put in the place of one of this job, its task attempts do not count here."""
    lake = _stages({})
    lake.run_stage(lake.set_up(THEIRS), {"dt=1/a": b"1"})
    seal = f"{ROOT}__magic_job-{THEIRS}/stages/spark-1/sealed.json"
    lake.store.put(BUCKET, seal.replace(THEIRS, OURS), lake.get(seal))
    with pytest.raises(ForeignRecord, match=f"is of job {THEIRS}, not of {OURS}"):
        lake.job().seal()


def test_a_seal_whose_job_ends_meanwhile_says_so() -> None:
    """Its stages are gone with the job, which is the reason, and not a stage that is missing."""
    lake = _stages({("one", "1"): "dt=1/a"})
    lake.store.before = once("get", "one-1/sealed.json", lake.job().abort)
    with pytest.raises(JobClosed, match="is aborted"):
        lake.job().seal()


def test_stages_share_no_key() -> None:
    """Two stages that wrote one key are refused: one would overwrite the other."""
    lake = _stages({("one", "1"): "dt=1/a", ("two", "1"): "dt=1/a"})
    with pytest.raises(DuplicateOutput, match="written twice"):
        lake.job().seal()
    lake.job().seal([("two", "1")])


def test_a_job_is_sealed_once() -> None:
    """The same stages give the same seal, others are refused, and the first seal counts."""
    lake = _stages({("one", "1"): "dt=1/a", ("two", "1"): "dt=2/a"})
    seal = lake.job().seal([("one", "1")])
    assert lake.job().seal([("one", "1")]) == seal
    for others in ([("two", "1")], [("one", "1"), ("two", "1")], []):
        with pytest.raises(JobClosed, match="sealed before, with other stages"):
            lake.job().seal(others)
    lake.job().commit(seal_sha256=seal.sha256)
    assert lake.data().keys() == {named("dt=1/a")}


def test_a_seal_that_comes_after_the_commit_takes_nothing_back() -> None:
    """Another process has sealed and committed the job meanwhile: its files stay, and nothing is left."""
    lake = _stages({("one", "1"): "dt=1/a"})

    def overtake() -> None:
        lake.store.rest()
        lake.job().seal()
        lake.job().commit()

    lake.store.before = once("put", lake.open_key("sealed.json"), overtake)
    with pytest.raises(AlreadyCommitted):
        lake.job().seal()
    assert lake.data().keys() == {named("dt=1/a")}
    assert lake.keys(lake.open_key("")) == []


def test_a_stage_whose_job_ends_meanwhile_says_so() -> None:
    """Its pendingsets are gone with the job, which is the reason, and not a damaged record."""
    lake = Lake()
    job = lake.set_up()
    task = lake.run_task(job, {"dt=1/a": b"1"})
    lake.store.before = once("get", ".pendingset", lake.job().abort)
    with pytest.raises(JobClosed, match="is aborted"):
        job.seal_stage("spark", "1", [task])


def test_a_stage_that_comes_after_the_seal_is_refused() -> None:
    """The commit would lose it without a word; one that was sealed before the job may be sealed again."""
    lake = _stages({("one", "1"): "dt=1/a"})
    sealed = lake.run_stage(lake.job(), {"dt=2/a": b"1"}, stage="two")
    lake.job().seal([("one", "1")])
    lake.job().seal_stage("two", "1", sealed)
    with pytest.raises(
        JobClosed, match=r"sealed before stage two-2, whose output it leaves out.*clear setup"
    ):
        lake.run_stage(lake.job(), {"dt=2/a": b"1"}, stage="two", stage_attempt="2")
    lake.job().commit()
    assert (lake.data().keys(), lake.pending()) == ({named("dt=1/a")}, [])


def test_a_job_that_was_never_set_up_is_not_sealed() -> None:
    """Nothing is written for it, also if it is to have no stage."""
    lake = Lake()
    lake.set_up(THEIRS)
    before = lake.everything()
    with pytest.raises(NoSuchJob, match="never set up"):
        lake.job().seal([])
    assert lake.everything() == before


def test_a_job_without_stages_is_sealed_on_request_alone() -> None:
    """A job that nobody wrote for is not sealed by chance; asked for, it commits no files."""
    lake = _stages({})
    with pytest.raises(JobClosed, match=r"has no sealed stage: .*Job\.seal_stage.*seal --empty.*Airflow"):
        lake.job().seal()
    assert lake.keys(lake.open_key("sealed.json")) == []
    assert lake.job().commit(stages=[]).counts.files == 0


def test_a_stage_that_is_not_sealed_is_refused() -> None:
    """A seal names stages that are sealed, each by the digest that the caller knows."""
    lake = _stages({("one", "1"): "dt=1/a"})
    with pytest.raises(InvalidRecord, match="stage two-1 was not sealed"):
        lake.job().seal([("one", "1"), ("two", "1")])
    with pytest.raises(InvalidRecord, match="changed after it was written"):
        lake.job().seal([("one", "1")], digests={("one", "1"): "0" * 64})
    lake.job().seal([("one", "1")])


@each(
    ("asked", "mode"),
    [
        (("nothing", "nothing"), "append"),
        (("partitions", "partitions"), "replace"),
        (("everything", "nothing"), "replace everything"),
        (("partitions", "nothing"), "refused"),
    ],
)
def test_writers_decide_together_what_a_commit_removes(asked: tuple[Removal, Removal], mode: str) -> None:
    """One commit adds to partitions, overwrites them or overwrites all, as its stages asked; never a mix."""
    lake = Lake()
    lake.put({"dt=1/old": b"old", "dt=3/old": b"old"})
    job = lake.set_up(conflict_mode="as-written", committer="partitioned")
    for number, removes in enumerate(asked, start=1):
        task = lake.run_task(job, {f"dt={number}/a": b"1"}, stage=f"stage{number}")
        seal_stage(job._recorded(), f"stage{number}", "1", [task], removes=removes)
    if mode == "refused":
        with pytest.raises(InvalidOption, match="stage stage2 adds to partition 'dt=2'"):
            job.seal()
        assert lake.keys(lake.open_key("sealed.json")) == []
        return
    job.seal()
    job.commit()
    left = {"append": {"dt=1/old", "dt=3/old"}, "replace": {"dt=3/old"}, "replace everything": set[str]()}
    assert lake.data().keys() == left[mode] | {named("dt=1/a"), named("dt=2/a")}
