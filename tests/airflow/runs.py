"""Runs as tasks see them, and what stages leave on the store."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_s3commit import Job, JobReference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_s3commit import MemoryStore

FLIGHTS = "s3://lake/flights/"
DAY = "dt=2013-01-01"


class TaskStateStore(dict):
    """What Airflow passes to a task as ``task_state_store``: it outlives tries and clears."""

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        if value is None:
            raise ValueError("Cannot set value as None")
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


def rendered(kind: type, task_id: str, **arguments: Any) -> Any:
    """Return a task whose arguments were templates in the DAG's file, and have these values in a run."""
    task = kind(task_id=task_id, **dict.fromkeys(arguments, "{{ params.it }}"))
    for name, value in arguments.items():
        setattr(task, name, value)
    return task


class XComs(dict):
    """The XComs that a task pushed by name."""

    def xcom_push(self, key: str, value: Any) -> None:
        self[key] = value


def new_context(
    try_number: int = 1, state_store: TaskStateStore | None = None, **facts: Any
) -> dict[str, Any]:
    """Return the context of a task's try, with what our tasks use of it."""
    pushed = XComs()
    run = {
        "run_id": "scheduled__2013-01-02",
        "run_type": "scheduled",
        "conf": {},
        "logical_date": None,
        **facts.pop("dag_run", {}),
    }
    return {
        "ti": SimpleNamespace(
            dag_id="nightly",
            run_id=run["run_id"],
            task_id="refresh.task",
            try_number=try_number,
            id=f"{try_number:08d}-0000-7000-8000-000000000000",
            map_index=facts.pop("map_index", -1),
            xcom_push=pushed.xcom_push,
            pushed=pushed,
            stats_tags={},
        ),
        "dag_run": SimpleNamespace(dag_id="nightly", **run),
        "run_id": run["run_id"],
        "partition_key": "2013-01-01",
        "params": {},
        "task_state_store": TaskStateStore() if state_store is None else state_store,
        **facts,
    }


def set_up(store: MemoryStore, **facts: str) -> dict[str, str]:
    """Set a job up and return its reference as XCom holds it."""
    known = {"dag_id": "nightly", "run_id": "scheduled__2013-01-02", **facts}
    return Job.setup(store, FLIGHTS, context=known).reference.to_dict()


def write_stage(
    store: MemoryStore,
    reference: Mapping[str, str],
    *,
    stage: str = "spark_submit",
    attempt: str = "1",
    files: Mapping[str, bytes] | None = None,
    seal: bool = True,
) -> dict[str, str]:
    """Write files as one task of a stage attempt would, and return the stage task's XCom."""
    job = Job.at(store, JobReference.from_dict(reference))
    with job.task_attempt(stage, attempt, "00000", "0") as writing:
        for path, body in ({f"{DAY}/part-00000.parquet": b"rows"} if files is None else files).items():
            output = writing.open(path)
            output.write(body)
            output.close(rows=1)
        committed = writing.commit()
    if seal:
        job.seal_stage(stage, attempt, [committed])
    return {"stage": stage, "stage_attempt": attempt}


def commit(store: MemoryStore, **facts: str) -> dict[str, str]:
    """Commit a job of one file and return its reference."""
    reference = set_up(store, **facts)
    files = {f"{facts.get('partition', DAY)}/part-00000.parquet": b"rows"}
    write_stage(store, reference, files=files)
    job = Job.at(store, JobReference.from_dict(reference))
    job.seal()
    job.commit()
    return reference


def commit_at(store: MemoryStore, destination: str) -> dict[str, str]:
    """Commit the day's partition to another destination and return the job's reference."""
    job = Job.setup(store, destination)
    reference = job.reference.to_dict()
    write_stage(store, reference)
    job.seal()
    job.commit()
    return reference


def cut_commit_off(
    store: MemoryStore, job: Job, monkeypatch: pytest.MonkeyPatch, *, before: str = "_SUCCESS"
) -> None:
    """Cut a job's commit off, its data visible: after its entry in the log, or before it (``log/``)."""
    put = store.put

    def cut_off(bucket: str, key: str, *arguments: Any, **options: Any) -> object:
        if before in key:
            raise KeyboardInterrupt
        return put(bucket, key, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(store, "put", cut_off)
        with pytest.raises(KeyboardInterrupt):
            job.commit()


def visible(store: MemoryStore) -> list[str]:
    """Keys of the data files that readers of the dataset see."""
    keys = (info.key for info in store.list_objects("lake", "flights/"))
    return [key for key in keys if not any(part.startswith("_") for part in key.split("/"))]


def pending(store: MemoryStore) -> list[str]:
    """Keys of uploads that are neither completed nor aborted."""
    return [upload.key for upload in store.list_uploads("lake", "")]


def at(year: int, month: int, day: int) -> datetime:
    """Return a moment in UTC."""
    return datetime(year, month, day, tzinfo=UTC)
