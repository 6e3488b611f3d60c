"""Only sealed output can become visible, and a commit publishes exactly that."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from airflow_s3commit import Job, JobOptions
from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    DuplicateOutput,
    InvalidRecord,
    JobClosed,
    NoSuchJob,
    OutcomeUnknown,
)
from airflow_s3commit.protocol.metadata.sealed_job import stage_attempts
from airflow_s3commit.protocol.model.codec import decode
from airflow_s3commit.protocol.model.job import StateRecord
from airflow_s3commit.protocol.model.pendingset import PendingSet
from airflow_s3commit.protocol.model.sealed_job import CommittedTask, Counts
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Crash, Lake, named, once

A, B = {"dt=1/a": b"1"}, {"dt=2/b": b"22", "c": b"333"}


def committed(lake: Lake, *tasks: dict[str, bytes]) -> list[CommittedTask]:
    """Commit one task for each set of files."""
    return [lake.run_task(lake.job(), files, task=f"{n:05d}") for n, files in enumerate(tasks)]


def state(lake: Lake) -> StateRecord:
    """Return the state of the job."""
    standing = lake.job().state()
    assert standing is not None
    return standing


def refused(lake: Lake, error: type[Exception], step: Callable[[], object], match: str | None = None) -> None:
    """Check that a step is refused with this type of error and changes nothing."""
    before = lake.everything()
    with pytest.raises(error, match=match):
        step()
    assert lake.everything() == before


def test_a_stage_seal_lists_what_counts() -> None:
    """A stage's seal names each task's attempt and pendingset, and adds up files by partition."""
    lake = Lake()
    job = lake.set_up()
    tasks = committed(lake, A, B, {})
    seal = job.seal_stage("spark", "1", reversed(tasks))
    assert seal.counts == Counts(files=3, bytes=6, rows=6)
    assert seal.partitions == {
        "": Counts(files=1, bytes=3, rows=3),
        "dt=1": Counts(files=1, bytes=1, rows=1),
        "dt=2": Counts(files=1, bytes=2, rows=2),
    }
    assert seal.tasks == 3
    assert lake.store.head(BUCKET, seal.location.removeprefix(f"s3://{BUCKET}/")).etag == seal.etag
    assert job.stage_seal("spark", "1") == seal
    assert job.stage_seal("spark", "2") is None
    assert lake.visible() == {}


def test_sealing_a_stage_again_returns_the_same_seal() -> None:
    """With the same tasks, in any order, the same seal is returned and nothing is written."""
    lake = Lake()
    job = lake.set_up()
    tasks = committed(lake, A, B)
    seal = job.seal_stage("spark", "1", tasks)
    before = lake.everything()
    assert lake.job().seal_stage("spark", "1", tasks[::-1]) == seal
    job.seal()
    assert lake.job().seal_stage("spark", "1", tasks) == seal
    assert lake.everything()["other"] == before["other"]


def test_a_stage_is_sealed_once() -> None:
    """Sealed with some tasks, a stage attempt cannot be sealed with others, fewer or more."""
    lake = Lake()
    job = lake.set_up()
    tasks = committed(lake, A, B)
    job.seal_stage("spark", "1", tasks)
    twin = lake.run_task(job, A, attempt="2")
    for others in (tasks[:1], [twin, tasks[1]], []):
        refused(lake, JobClosed, lambda others=others: job.seal_stage("spark", "1", others), "sealed before")


def test_a_task_twice_is_refused() -> None:
    """Two attempts of one task cannot both count."""
    lake = Lake()
    job = lake.set_up()
    first, second = (lake.run_task(job, {f"f{n}": b"1"}, attempt=str(n)) for n in (1, 2))
    refused(
        lake,
        DuplicateOutput,
        lambda: job.seal_stage("spark", "1", [first, second]),
        "task 00000.*occurs twice",
    )
    job.seal_stage("spark", "1", [second])


def test_a_key_written_by_two_tasks_is_refused() -> None:
    """Two tasks of a stage that write one key cannot both count."""
    lake = Lake()
    job = lake.set_up()
    tasks = committed(lake, {"dt=1/same": b"1"}, {"dt=1/same": b"2"})
    refused(lake, DuplicateOutput, lambda: job.seal_stage("spark", "1", tasks), "written twice")
    job.seal_stage("spark", "1", tasks[:1])
    job.seal()
    job.commit()
    assert lake.data() == {named("dt=1/same"): b"1"}
    assert lake.pending() == []


def test_a_key_written_by_two_stages_is_refused() -> None:
    """Two stages that write one key cannot both count; either can."""
    lake = Lake()
    job = lake.set_up()
    lake.run_stage(job, {"x": b"1", "dt=1/same": b"1"}, stage="one")
    lake.run_stage(job, {"y": b"2", "dt=1/same": b"2"}, stage="two")
    refused(lake, DuplicateOutput, job.seal, "written twice")
    assert state(lake).state == "open"
    job.seal([("two", "1")])
    job.commit()
    assert lake.data() == {named("y"): b"2", named("dt=1/same"): b"2"}
    assert lake.pending() == []


@pytest.mark.parametrize(
    ("key", "bucket"),
    [
        (f"{ROOT}../x", BUCKET), (f"{ROOT}a/../../x", BUCKET), ("x", BUCKET), ("flights10/x", BUCKET),
        (f"{ROOT}x", "other"), (f"{ROOT}a\x00b", BUCKET), (f"{ROOT}a\nb", BUCKET),
        (f"{ROOT}_SUCCESS", BUCKET),
        (f"{ROOT}_s3commit/store.json", BUCKET), (f"{ROOT}__magic_job-{OURS}/state.json", BUCKET),
        (f"{ROOT}a//b", BUCKET), (ROOT, BUCKET), (f"{ROOT}{'x' * 1024}", BUCKET),
    ],
)  # fmt: skip
def test_a_key_outside_the_destination_is_refused(key: str, bucket: str) -> None:
    """A pendingset that names a key elsewhere, or one that is no data, is refused when it is sealed."""
    lake = Lake()
    job = lake.set_up()
    task = lake.forge_task({f"{ROOT}{named('fine')}": BUCKET, key: bucket})
    refused(lake, InvalidRecord, lambda: job.seal_stage("spark", "1", [task]))


@pytest.mark.parametrize(
    ("old", "new", "cut"),
    [(b'"length":1', b'"length":9', 0), (b"", b"", 1), (b"", b"", 60), (b"", b"", 1 << 20),
     (b'"version":3', b'"version":4', 0)],
    ids=["tampered", "truncated", "half", "empty", "version"],
)  # fmt: skip
def test_a_pendingset_that_changed_is_refused(old: bytes, new: bytes, cut: int) -> None:
    """A pendingset that differs from the one its task committed, even by one byte, is refused."""
    lake = Lake()
    job = lake.set_up()
    (task,) = committed(lake, A)
    lake.tamper(lake.pendingset_key(), old=old, new=new, cut=cut)
    refused(lake, InvalidRecord, lambda: job.seal_stage("spark", "1", [task]), "changed after it was written")


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"PAR1", b'{"version":3,"commits":[]}'])
def test_something_else_is_not_taken_for_a_pendingset(body: bytes) -> None:
    """Another object in a pendingset's place is refused, even with the expected ETag."""
    lake = Lake()
    job = lake.set_up()
    task = lake.place_task(body, 0)
    refused(lake, InvalidRecord, lambda: job.seal_stage("spark", "1", [task]))


def test_a_missing_pendingset_is_refused() -> None:
    """A task that counts needs its pendingset."""
    lake = Lake()
    job = lake.set_up()
    (task,) = committed(lake, A)
    lake.store.delete(BUCKET, lake.pendingset_key())
    refused(lake, InvalidRecord, lambda: job.seal_stage("spark", "1", [task]), "is missing")


def test_another_job_s_pendingset_is_refused() -> None:
    """A pendingset of another job is refused, in either job's place."""
    lake = Lake()
    job, theirs = lake.set_up(), lake.set_up(THEIRS)
    task = lake.run_task(theirs, A)
    refused(lake, InvalidRecord, lambda: job.seal_stage("spark", "1", [task]), "not at")
    body = lake.get(lake.pendingset_key(job_id=THEIRS))
    copied = lake.place_task(body, 1)
    refused(
        lake, InvalidRecord, lambda: job.seal_stage("spark", "1", [copied]), "is not the pendingset of task"
    )


def test_another_task_s_pendingset_is_refused() -> None:
    """A pendingset that was copied to another task's place is refused, so its uploads do not count twice."""
    lake = Lake()
    job = lake.set_up()
    (task,) = committed(lake, A)
    copied = lake.place_task(lake.get(lake.pendingset_key()), 1, "00001")
    refused(
        lake,
        InvalidRecord,
        lambda: job.seal_stage("spark", "1", [task, copied]),
        "not the pendingset of task",
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"stage": "other"}, {"stage_attempt": "2"}, {"task": "00001"}, {"attempt": "2"},
        {"location": "s3://x/y"},
        {"location": f"s3://other/{ROOT}__magic_job-{OURS}/stages/spark-1/tasks/00000_1.pendingset"},
        {"task": "../00000"}, {"files": 2}, {"bytes": 2}, {"rows": None}, {"etag": "0" * 32},
    ],
)  # fmt: skip
def test_a_task_with_false_claims_is_refused(fields: dict[str, Any]) -> None:
    """A task's claims must agree with where its pendingset is and what is in it."""
    lake = Lake()
    job = lake.set_up()
    (task,) = committed(lake, A)
    wrong = msgspec.structs.replace(task, **fields)
    refused(lake, InvalidRecord, lambda: job.seal_stage("spark", "1", [wrong]))


@pytest.mark.parametrize("end", ["seal", "commit", "abort"])
def test_a_job_that_ended_accepts_no_stage(end: str) -> None:
    """A late stage is refused, and nothing of it becomes visible."""
    lake = Lake()
    job = lake.set_up()
    lake.run_stage(job, A)
    late = lake.run_task(job, B, stage="late")
    job.seal() if end != "abort" else job.abort()
    if end == "commit":
        job.commit()
    refused(
        lake,
        NoSuchJob if end == "abort" else AlreadyCommitted if end == "commit" else JobClosed,
        lambda: job.seal_stage("late", "1", [late]),
    )


@pytest.mark.parametrize("tasks", [[], [{}], [{}, {}]], ids=str)
def test_a_stage_without_output_is_sealed(tasks: list[dict[str, bytes]]) -> None:
    """A stage whose tasks wrote nothing, or that had no tasks, gets a seal too."""
    lake = Lake()
    job = lake.set_up()
    seal = job.seal_stage("spark", "1", committed(lake, *tasks))
    assert (seal.counts, seal.partitions, seal.tasks) == (Counts(), {}, len(tasks))


def test_a_job_s_seal_lists_its_stages() -> None:
    """The job's seal pins every stage's seal and adds them up, and closes the job."""
    lake = Lake()
    job = lake.set_up()
    lake.run_stage(job, A, stage="one")
    lake.run_stage(job, B, {"dt=1/z": b"4444"}, stage="two", stage_attempt="7")
    seal = job.seal()
    assert seal.counts == Counts(files=4, bytes=10, rows=10)
    assert seal.partitions["dt=1"] == Counts(files=2, bytes=5, rows=5)
    assert seal.tasks == 3
    assert (state(lake).state, state(lake).seal_etag) == ("sealed", seal.etag)
    assert lake.job().seal() == seal
    assert lake.job().seal([("two", "7"), ("one", "1")]) == seal


def test_two_attempts_of_a_stage_cannot_both_count() -> None:
    """With two sealed attempts of a stage the caller has to choose, and only the chosen one is visible."""
    lake = Lake()
    job = lake.set_up()
    lake.run_stage(job, A, stage_attempt="1")
    lake.run_stage(job, B, stage_attempt="2")
    refused(lake, DuplicateOutput, job.seal, "several sealed attempts of stage spark")
    refused(lake, DuplicateOutput, lambda: job.seal([("spark", "1"), ("spark", "2")]))
    refused(lake, DuplicateOutput, lambda: job.seal([("spark", "1"), ("spark", "1")]))
    job.seal([("spark", "2")])
    job.commit()
    assert lake.data() == {named(path): body for path, body in B.items()}
    assert lake.pending() == []


def test_a_job_is_sealed_once() -> None:
    """Sealed with some stages, a job cannot be sealed with others."""
    lake = Lake()
    job = lake.set_up()
    lake.run_stage(job, A, stage="one")
    lake.run_stage(job, B, stage="two")
    job.seal([("one", "1")])
    for others in (None, [("two", "1")], []):
        refused(lake, JobClosed, lambda others=others: job.seal(others), "sealed before")


@pytest.mark.parametrize("stages", [[("spark", "2")], [("other", "1")]])
def test_a_stage_that_was_not_sealed_cannot_count(stages: list[tuple[str, str]]) -> None:
    """A stage without a seal is refused."""
    lake = Lake()
    job = lake.set_up()
    lake.run_stage(job, A)
    refused(lake, InvalidRecord, lambda: job.seal(stages), "was not sealed")


@pytest.mark.parametrize("cut", [1, 50, 1 << 20])
def test_a_damaged_stage_seal_is_refused(cut: int) -> None:
    """A stage's seal that cannot be read is refused, and the job stays open."""
    lake = Lake()
    job = lake.set_up()
    lake.run_stage(job, A)
    lake.tamper(lake.context().layout.stage_seal("spark", "1"), cut=cut)
    refused(lake, InvalidRecord, lake.job().seal)
    assert state(lake).state == "open"


def test_another_s_stage_seal_is_refused() -> None:
    """A stage seal of another job or another stage, copied here, is refused."""
    lake = Lake()
    job, theirs = lake.set_up(), lake.set_up(THEIRS)
    lake.run_stage(theirs, A)
    lake.run_stage(job, A, stage="one")
    ours = lake.context().layout
    sources = (
        (lake.context(THEIRS).layout.stage_seal("spark", "1"), "is of job"),
        (ours.stage_seal("one", "1"), "is the seal of another stage attempt"),
    )
    for source, reason in sources:
        lake.store.put(BUCKET, ours.stage_seal("spark", "1"), lake.get(source))
        refused(lake, InvalidRecord, lambda: job.seal([("spark", "1")]), reason)


@pytest.mark.parametrize("verb", ["put", "get"])
def test_a_seal_that_stopped_halfway_is_resumed(verb: str) -> None:
    """After a crash at any record a second seal closes the job with the same output."""
    for nth in range(1, 6):
        for after in (False, True):
            lake = Lake()
            lake.set_up()
            tasks = committed(lake, A, B)
            lake.store.die(verb, ".json", nth=nth, after=after)
            with suppress(Crash):
                lake.job().seal_stage("spark", "1", tasks)
                lake.job().seal()
            lake.store.rest()
            lake.job().seal_stage("spark", "1", tasks)
            seal = lake.job().seal()
            assert (state(lake).state, state(lake).seal_etag) == ("sealed", seal.etag)
            assert seal.counts.files == 3


@pytest.mark.parametrize("ending", ["stages/spark-1/sealed.json", f"{OURS}/sealed.json", "state.json"])
def test_lost_answers_while_sealing_are_resolved(ending: str) -> None:
    """After a lost response to any write of a seal, the seal is found and kept."""
    lake = Lake()
    job = lake.set_up()
    tasks = committed(lake, A)
    lake.store.after = once("put", ending, OutcomeUnknown("lost"))
    job.seal_stage("spark", "1", tasks)
    seal = job.seal()
    assert (state(lake).state, state(lake).seal_etag) == ("sealed", seal.etag)


def test_an_abort_during_the_seal_wins() -> None:
    """If the job is aborted while it is sealed, the seal is refused and nothing is left of the job."""
    lake = Lake()
    job = lake.set_up()
    lake.run_stage(job, A)

    def abort() -> None:
        lake.store.rest()
        lake.job().abort()

    lake.store.before = once("put", f"{OURS}/sealed.json", abort)
    with pytest.raises((JobClosed, NoSuchJob)):
        job.seal()
    assert (lake.left(), lake.pending()) == ([], [])


def test_a_rewritten_seal_is_not_committed() -> None:
    """It is refused even if the caller names it, because another seal closed the job."""
    lake = Lake()
    lake.sealed(A)
    key = lake.context().layout.seal
    found = json.loads(lake.get(key))
    etag = lake.store.put(BUCKET, key, json.dumps({**found, "created": found["created"] + 1}).encode()).etag
    with pytest.raises(InvalidRecord, match="is not the seal the job was closed with"):
        lake.job().commit(seal_etag=etag)
    assert lake.data() == {}


def test_two_different_seals_close_no_job() -> None:
    """A process whose seal differs from the one that closed the job says so."""
    lake = Lake()
    lake.run_stage(lake.set_up(), A)
    key = lake.context().layout.seal

    def close() -> None:
        lake.store.rest()
        lake.job().seal()
        found = json.loads(lake.get(key))
        lake.store.put(BUCKET, key, json.dumps({**found, "created": found["created"] + 1}).encode())

    lake.store.before = once("put", f"{OURS}/sealed.json", close)
    with pytest.raises(InvalidRecord, match="is not the seal the job was closed with"):
        lake.job().seal()


def test_two_that_seal_at_once_agree() -> None:
    """Two processes that seal one job at once end with the same seal."""
    lake = Lake()
    lake.run_stage(lake.set_up(), A)
    seals: list[Any] = []

    def meanwhile() -> None:
        lake.store.rest()
        seals.append(lake.job().seal())

    lake.store.before = once("put", f"{OURS}/sealed.json", meanwhile)
    seals.append(lake.job().seal())
    assert seals[0] == seals[1]
    assert state(lake).seal_etag == seals[0].etag


def test_stage_attempts_are_found() -> None:
    """Every attempt with anything in the staging is listed, sealed or not, whatever dashes its name has."""
    lake = Lake()
    job = lake.set_up()
    lake.run_stage(job, A, stage="a-b", stage_attempt="1")
    lake.run_task(job, B, stage="a", stage_attempt="2")
    assert sorted(stage_attempts(lake.context())) == [("a", "2", False), ("a-b", "1", True)]


def test_sealing_reads_every_pendingset_once() -> None:
    """Sealing a stage asks for each pendingset once."""
    lake = Lake()
    job = lake.set_up()
    tasks = committed(lake, *({f"dt={n}/a": b"1"} for n in range(70)))
    lake.store.calls.clear()
    assert job.seal_stage("spark", "1", tasks).counts.files == 70
    read = [call.key for call in lake.store.calls if call.verb == "get" and call.key.endswith(".pendingset")]
    assert len(read) == len(set(read)) == 70


def test_a_pendingset_does_not_change() -> None:
    """Sealing changes no pendingset."""
    lake = Lake()
    job = lake.set_up()
    tasks = committed(lake, A)
    before = lake.get(lake.pendingset_key())
    job.seal_stage("spark", "1", tasks)
    job.seal()
    assert lake.get(lake.pendingset_key()) == before
    assert decode(PendingSet, before, "x").commits[0].destinationKey == ROOT + named("dt=1/a")


def own(lake: Lake) -> Job:
    """Return a job that this process alone seals and commits."""
    options = JobOptions(committer="magic", conflict_mode="append")
    return Job.setup(
        lake.store, lake.destination, options=options, job_id=OURS, clock=lake.clock, new_id=lake.new_id,
        assume="own",
    )  # fmt: skip


def test_the_seal_of_an_own_job_holds_those_of_its_stages() -> None:
    """Its stage's seal is not an object, and any process commits the job by the seal that holds it."""
    lake = Lake()
    job = own(lake)
    lake.run_stage(job, A, B)
    assert "sealed.json" not in {key.rpartition("/")[2] for key in lake.staging()}
    reference = job.stage_seal("spark", "1")
    assert reference is not None
    assert reference.location == f"{lake.destination}__magic_job-{OURS}/sealed.json"
    assert reference.counts == Counts(files=3, bytes=6, rows=6)
    assert job.sealed_stages() == [("spark", "1")]
    job.seal()
    assert [key for key in lake.staging() if key.endswith("sealed.json")] == ["sealed.json"]
    assert lake.job().commit().counts == Counts(files=3, bytes=6, rows=6)
    assert (lake.staging(), lake.pending()) == ([], [])


def test_an_own_job_s_stage_cannot_be_sealed_with_other_tasks() -> None:
    """The same tasks give the same seal; others are refused, and so is an abort of the stage attempt."""
    lake = Lake()
    job = own(lake)
    tasks = lake.run_stage(job, A, B)
    assert job.seal_stage("spark", "1", tasks) == job.stage_seal("spark", "1")
    refused(lake, JobClosed, lambda: job.seal_stage("spark", "1", tasks[:1]), "with other task attempts")
    refused(lake, JobClosed, lambda: job.abort_stage("spark", "1"), "is sealed")
    seal = job.seal()
    assert job.seal([("spark", "1")]) == seal
    refused(lake, JobClosed, lambda: lake.job().abort_stage("spark", "1"), "is sealed")


def test_another_process_continues_from_an_own_job_s_seal() -> None:
    """A process that died between its seal and the new state has sealed the job for others."""
    lake = Lake()
    job = own(lake)
    lake.run_stage(job, A)
    lake.store.die("put", "state.json")
    with pytest.raises(Crash):
        job.seal()
    lake.store.rest()
    assert state(lake).state == "open"
    assert lake.job().sealed_stages() == [("spark", "1")]
    seal = lake.job().seal()
    assert lake.job().seal([("spark", "1")]) == seal
    assert lake.job().commit().counts.files == 1


def test_a_long_stage_seal_of_an_own_job_is_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's seal names it by its digests, as in any other job."""
    monkeypatch.setattr("airflow_s3commit.protocol.lifecycle.seal._WITHIN_BYTES", 100)
    lake = Lake()
    job = own(lake)
    lake.run_stage(job, A)
    assert [key for key in lake.staging() if key.endswith("sealed.json")] == ["stages/spark-1/sealed.json"]
    assert job.commit(stages=[("spark", "1")]).counts.files == 1
    assert lake.staging() == []


@pytest.mark.parametrize(("old", "new"), [(b'"spark"', b'"other"'), (OURS.encode(), THEIRS.encode())])
def test_another_s_stage_seal_within_a_seal_is_refused(old: bytes, new: bytes) -> None:
    """A seal that holds another job's or stage's seal is refused, and nothing is published."""
    lake = Lake()
    job = own(lake)
    lake.run_stage(job, A)
    job.seal()
    key = lake.context().layout.seal
    body = lake.get(key)
    at = body.index(b'"within"')
    changed = body[:at] + body[at:].replace(old, new)
    etag = lake.store.put(BUCKET, key, changed).etag
    lake.tamper(lake.context().layout.state, old=state(lake).seal_etag.encode(), new=etag.encode())
    with pytest.raises(InvalidRecord, match=r"another stage attempt|is of job"):
        lake.job().commit()
    assert lake.visible() == {}


def test_an_own_job_that_was_ended_and_set_up_again_is_not_committed() -> None:
    """A process that slept meanwhile is refused, because its job ended before the new records."""
    lake = Lake()
    job = own(lake)
    lake.run_stage(job, A)
    lake.job().abort()
    Job.setup(lake.store, lake.destination, job_id=THEIRS).commit(stages=[])

    lake.store.before = once("get", f"manifests/{OURS}.json", Crash())
    with suppress(Crash):
        own(lake)
    lake.store.rest()
    assert state(lake).state == "open"
    with pytest.raises(JobClosed, match="set up again since"):
        job.commit(stages=[("spark", "1")])
    assert lake.visible().keys() <= {f"{ROOT}_SUCCESS"}


@pytest.mark.parametrize("end", ["commit", "abort", "abort that dies before its clean-up"])
def test_a_slow_stage_seal_of_a_job_that_has_ended_is_refused_and_removed(end: str) -> None:
    """A process that slept before it wrote the seal of a stage is refused, and leaves no record behind."""
    lake = Lake()
    job = lake.set_up(conflict_mode="append")
    lake.run_stage(job, {"dt=1/a": b"1"})
    late = lake.run_task(lake.job(), {"dt=1/b": b"2"}, stage_attempt="2")

    def meanwhile() -> None:
        lake.store.rest()
        if end == "commit":
            lake.job().commit(stages=[("spark", "1")])
        elif end == "abort":
            lake.job().abort()
        else:
            lake.store.die("delete", "/job.json")
            with pytest.raises(Crash):
                lake.job().abort()
            lake.store.rest()

    lake.store.before = once("put", "spark-2/sealed.json", meanwhile)
    with pytest.raises(AlreadyCommitted if end == "commit" else (NoSuchJob, JobClosed)):
        lake.job().seal_stage("spark", "2", [late])
    assert (lake.staging(), lake.pending()) == ([], [])
