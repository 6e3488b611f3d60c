"""Every way in which a record reaches a user: by looking at jobs and by acting on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from click.testing import CliRunner

from airflow_s3commit import (
    Destination,
    latest_manifest,
    manifest_files,
    read_manifest,
    verify,
    verify_job,
)
from airflow_s3commit.cli.app import program
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.protocol.hadoop.adopt import Adoption
from airflow_s3commit.protocol.hadoop.jobs import find_hadoop_jobs
from airflow_s3commit.protocol.inspect.jobs import describe_job, latest_endings, list_jobs, pending_uploads
from airflow_s3commit.protocol.inspect.verify_job import verify_pending
from airflow_s3commit.protocol.sweep import apply_sweep
from airflow_s3commit.protocol.sweep_plan import plan_sweep
from airflow_s3commit.protocol.watch import Criteria, ManifestFeed, Snapshot
from airflow_s3commit.reader.listing import PartitionColumns, UnreadablePartitions, find_table
from tests.hostile.scene import DEAD, GuardedLake

__all__ = ["ACTING", "COMMANDS", "READING", "Door", "run_command"]

#: What is done with a lake; it may only raise errors of our own tree.
Door = Callable[[GuardedLake], None]

#: A message is for people, whatever the record says.
_LONGEST_MESSAGE = 20_000

_WEEK = 7 * 86_400.0


def _place(lake: GuardedLake) -> Destination:
    return Destination.parse(lake.destination)


def _list(lake: GuardedLake) -> None:
    for job in list_jobs(lake.store, _place(lake)):
        json.dumps(job.to_dict())


def _describe(lake: GuardedLake) -> None:
    details = describe_job(lake.store, _place(lake), lake.job_id)
    json.dumps(details.to_dict())


def _endings(lake: GuardedLake) -> None:
    for job in latest_endings(lake.store, _place(lake), 10):
        json.dumps(job.to_dict())


def _pending(lake: GuardedLake) -> None:
    for upload in pending_uploads(lake.store, _place(lake), measure=True, threads=0):
        json.dumps(upload.to_dict())


def _plan_sweep(lake: GuardedLake) -> None:
    json.dumps(plan_sweep(lake.store, _place(lake), older_than=_WEEK, threads=0).to_dict())


def _verify(lake: GuardedLake) -> None:
    last = latest_manifest(lake.store, _place(lake))
    json.dumps(verify_job(lake.store, _place(lake), last.job_id, threads=0).to_dict())


def _verify_table(lake: GuardedLake) -> None:
    json.dumps(verify(lake.store, _place(lake)).to_dict())


def _verify_pending(lake: GuardedLake) -> None:
    json.dumps(verify_pending(lake.context(lake.job_id)).to_dict())


def _preview(lake: GuardedLake) -> None:
    json.dumps(_job(lake).preview().to_dict())


def _manifests(lake: GuardedLake) -> None:
    record = read_manifest(lake.store, _place(lake), lake.job_id)
    json.dumps(record.to_dict())
    for _ in manifest_files(lake.store, record):
        pass


def _dataset(lake: GuardedLake) -> None:
    table = find_table(lake.store, _place(lake))
    with suppress(UnreadablePartitions):
        PartitionColumns(table.directories)


def _sensor(lake: GuardedLake) -> None:
    view = Snapshot(lake.store, _place(lake), depth=3)
    wanted = Criteria.of(context={"dag_id": "x"}, newer_than="2020-01-01", partitions=["dt=1"], min_files=5)
    for _ in range(3):
        view.refresh()
        for one in (wanted, Criteria.of(job=lake.job_id)):
            view.search(one)


def _feed(lake: GuardedLake) -> None:
    for _ in ManifestFeed(lake.store, _place(lake), Criteria().unmet, {"number": 1, "sha256": ""}).look():
        pass


def _hadoop(lake: GuardedLake) -> None:
    find_hadoop_jobs(lake.store, _place(lake))


READING: dict[str, Door] = {
    "list_jobs": _list,
    "describe_job": _describe,
    "latest_endings": _endings,
    "pending_uploads": _pending,
    "plan_sweep": _plan_sweep,
    "verify_job": _verify,
    "verify": _verify_table,
    "verify_pending": _verify_pending,
    "preview": _preview,
    "manifests": _manifests,
    "dataset": _dataset,
    "sensor": _sensor,
    "feed": _feed,
    "find_hadoop_jobs": _hadoop,
}


def _job(lake: GuardedLake) -> Any:
    return lake.job(lake.job_id)


def _seal(lake: GuardedLake) -> None:
    _job(lake).seal()


def _write_more(lake: GuardedLake) -> None:
    job = _job(lake)
    job.seal_stage("more", "1", [lake.run_task(job, {"dt=3/more.csv": b"1"}, stage="more")])
    job.seal([("spark", "1"), ("more", "1")])


def _parts(lake: GuardedLake) -> None:
    job = _job(lake)
    for part in range(2):
        job.complete_part(part, 2)
    job.commit()


def _set_up(lake: GuardedLake) -> None:
    lake.set_up(lake.job_id)


def _abort_stage(lake: GuardedLake) -> None:
    _job(lake).abort_stage("spark", "1")


def _sweep(lake: GuardedLake) -> None:
    plan = plan_sweep(lake.store, _place(lake), older_than=_WEEK, threads=0)
    json.dumps(apply_sweep(lake.store, plan, clock=lake.clock, new_id=lake.new_id, threads=0).to_dict())


def _adopt(lake: GuardedLake) -> None:
    job = Adoption(lake.store, lake.destination, job_id=lake.job_id, clock=lake.clock, new_id=lake.new_id)
    job.commit()


def _adopt_to_abort(lake: GuardedLake) -> None:
    job = Adoption(
        lake.store,
        lake.destination,
        job_id=lake.job_id,
        force=True,
        clock=lake.clock,
        new_id=lake.new_id,
    )
    job.abort()


def _settle_the_dead(lake: GuardedLake) -> None:
    """Have another job commit beside it."""
    job_id = DEAD.replace("3333", "9999")
    lake.sealed({"dt=8/new.csv": b"new"}, job_id=job_id)
    lake.job(job_id).commit()


ACTING: dict[str, Door] = {
    "commit": lambda lake: _job(lake).commit() and None,
    "abort": lambda lake: _job(lake).abort() and None,
    "recover": lambda lake: _job(lake).recover() and None,
    "seal": _seal,
    "write and seal": _write_more,
    "parts": _parts,
    "set up again": _set_up,
    "abort_stage": _abort_stage,
    "sweep": _sweep,
    "adopt": _adopt,
    "adopt --abort": _adopt_to_abort,
    "another job's commit": _settle_the_dead,
}

#: Command lines that look, with ``{at}`` and ``{job}`` to be filled in.
COMMANDS: dict[str, tuple[str, ...]] = {
    "jobs": ("jobs", "{at}"),
    "show": ("show", "{at}", "{job}"),
    "pending": ("pending", "{at}"),
    "sweep": ("sweep", "{at}", "--older-than", "7d"),
    "verify": ("verify", "{at}"),
    "verify a job": ("verify", "{at}", "{job}"),
    "manifest": ("manifest", "{at}", "--files"),
    "adopt": ("adopt", "{at}"),
    "log": ("log", "{at}"),
}


def run_command(lake: GuardedLake, name: str) -> None:
    """Run a command as a script does, and as a user does.

    Raises:
        AssertionError: It broke, or wrote something else than one JSON object.
    """
    arguments = [part.format(at=lake.destination, job=lake.job_id) for part in COMMANDS[name]]
    for as_json in (["--json"], []):
        result = CliRunner().invoke(
            program, [*arguments, *as_json], env={"COLUMNS": "200"}, prog_name="s3commit"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code in (0, 1, 3, 4, 5), f"{name}: {result.exit_code}: {result.output[:2_000]}"
        if as_json:
            json.loads(result.stdout)


def only_ours(door: Door, lake: GuardedLake) -> None:
    """Go through a door, from which only errors of our own tree may come."""
    said = ""
    try:
        door(lake)
    except S3CommitError as error:
        said = str(error)
    assert len(said) < _LONGEST_MESSAGE, f"a message of {len(said)} characters"
