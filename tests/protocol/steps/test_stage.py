"""What a stage's seal refuses: it is the last look at each pendingset before files become visible."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_s3commit.exceptions import DuplicateOutput, InvalidRecord, JobClosed
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.codec import MAX_SCHEMAS
from airflow_s3commit.protocol.model.job import ObjectOptions
from airflow_s3commit.protocol.model.sealed_job import CommittedTask
from tests.cases import each
from tests.protocol.building import BUCKET, ROOT, THEIRS, Lake, named

#: Makes task results of a job that its stage must refuse.
Make = Callable[[Lake, Job], list[CommittedTask]]


def _two_attempts(lake: Lake, job: Job) -> list[CommittedTask]:
    return [lake.run_task(job, {"dt=1/a": b"1"}, attempt=attempt) for attempt in "12"]


def _one_key_of_two_tasks(lake: Lake, job: Job) -> list[CommittedTask]:
    return [lake.run_task(job, {"dt=1/a": b"1"}, task=task) for task in ("00000", "00001")]


def _of_another_stage(lake: Lake, job: Job) -> list[CommittedTask]:
    return [lake.run_task(job, {"dt=1/a": b"1"}, stage="other")]


def _elsewhere(lake: Lake, job: Job) -> list[CommittedTask]:
    return [replace_in(lake.run_task(job, {"dt=1/a": b"1"}), location=f"s3://{BUCKET}/{ROOT}elsewhere")]


def _with_other_totals(lake: Lake, job: Job) -> list[CommittedTask]:
    return [replace_in(lake.run_task(job, {"dt=1/a": b"1"}), bytes=2)]


def _of_another_job_by_name(lake: Lake, _: Job) -> list[CommittedTask]:
    return [lake.forge_task({ROOT + named("dt=1/a", THEIRS): BUCKET})]


def _of_nobody_by_name(lake: Lake, _: Job) -> list[CommittedTask]:
    return [lake.forge_task({f"{ROOT}dt=1/a": BUCKET})]


def replace_in(task: CommittedTask, **changes: Any) -> CommittedTask:
    """Return the result of a task with other facts."""
    return CommittedTask.from_dict({**task.to_dict(), **changes})


@each(
    ("make", "error", "match"),
    [
        (_two_attempts, DuplicateOutput, "occurs twice: attempts 1 and 2"),
        (_one_key_of_two_tasks, DuplicateOutput, "written twice; the second time by task 00001"),
        (_of_another_stage, InvalidRecord, "was committed in stage other-1"),
        (_elsewhere, InvalidRecord, "is at s3://lake/flights/elsewhere, not at"),
        (_with_other_totals, InvalidRecord, "task 00000 committed .* its pendingset has"),
        (_of_another_job_by_name, InvalidRecord, "does not have the job's id in its name"),
        (_of_nobody_by_name, InvalidRecord, "does not have the job's id in its name"),
    ],
)
def test_output_that_cannot_be_committed_is_not_sealed(
    make: Make, error: type[Exception], match: str
) -> None:
    """A stage with it is refused before its seal is written, and can be sealed without it."""
    lake = Lake()
    job = lake.set_up()
    tasks = make(lake, job)
    with pytest.raises(error, match=match):
        job.seal_stage("spark", "1", tasks)
    assert job.stage_seal("spark", "1") is None
    job.seal_stage("spark", "1", [])


def test_of_two_sealers_the_first_counts() -> None:
    """Two processes that seal a stage attempt at once agree, or the slower one is refused."""
    lake = Lake()
    job = lake.set_up()
    one, other = (lake.run_task(job, {"dt=1/a": b"1"}, attempt=attempt) for attempt in "12")
    for slow, is_refused in (([one], False), ([other], True)):
        lake.store.before = lambda call: _seal_first(lake, one) if call.key.endswith("sealed.json") else None
        if is_refused:
            with pytest.raises(JobClosed, match="sealed before, with other task attempts"):
                lake.job().seal_stage("spark", "1", slow)
        else:
            lake.job().seal_stage("spark", "1", slow)
        lake.store.rest()


def _seal_first(lake: Lake, task: CommittedTask) -> None:
    lake.store.rest()
    lake.job().seal_stage("spark", "1", [task])


@each(
    ("described", "known"),
    [
        ([["a"], ["a"]], ["a"]),
        ([["a"], ["b"]], ["a", "b"]),
        ([["a"], []], []),
        ([[f"{number}" for number in range(MAX_SCHEMAS + 1)]], []),
    ],
)
def test_the_schemas_of_a_stage_are_those_of_all_files(described: list[list[str]], known: list[str]) -> None:
    """If that of one file is unknown, or there are too many, a stage says that it knows none."""
    lake = Lake()
    job = lake.set_up()
    tasks = []
    for number, schemas in enumerate(described):
        with job.task_attempt("spark", "1", f"{number:05d}", "1", threads=0, min_part_bytes=1) as attempt:
            for index in range(max(len(schemas), 1)):
                attempt.open(f"dt=1/{number}-{index}").close()
            for schema in schemas:
                attempt.describe(1, schema)
            tasks.append(attempt.commit())
    job.seal_stage("spark", "1", tasks)
    job.seal()
    assert job.commit().schemas == known


def test_output_with_other_object_options_than_the_jobs_is_refused() -> None:
    """A task keeps the options that it gave its uploads; a seal does not take others than the job's."""
    lake = Lake()
    job = lake.set_up(object_options=ObjectOptions(storage_class="STANDARD_IA", tags={"team": "flights"}))
    plain, key = lake.run_task(job, {"dt=1/a": b"1"}), lake.open_key("job.json")
    record = json.loads(lake.store.get(BUCKET, key).body)
    record["options"]["object_options"]["storage_class"] = "GLACIER"
    lake.store.put(BUCKET, key, json.dumps(record).encode())
    with pytest.raises(InvalidRecord, match=r"has written with .*STANDARD_IA.* and the job has .*GLACIER"):
        lake.job().seal_stage("spark", "1", [plain])
