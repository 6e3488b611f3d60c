"""A stage of Spark's own writers: the writes of its newest driver count, in order, as Spark means them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from airflow_s3commit.exceptions import DestinationChanged, InvalidOption, InvalidRecord, JobClosed
from airflow_s3commit.protocol.model.codec import sha256
from airflow_s3commit.protocol.model.sealed_job import CommittedTask
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, THEIRS, Lake, named, once

STAGE = ("spark", "1")


def write(
    lake: Lake,
    number: int,
    *tasks: CommittedTask,
    replaced: tuple[str, ...] = (),
    dynamic: bool = False,
    driver: str = "000001-first",
    **changes: Any,
) -> None:
    """Record, as a driver does, which task attempts of a write count."""
    record = {
        "version": 1,
        "job_id": OURS,
        "stage": STAGE[0],
        "stage_attempt": STAGE[1],
        "application": "app",
        "spark": "4.0.2",
        "write": number,
        "directory": "",
        "dynamic": dynamic,
        "replaced": list(replaced),
        "tasks": [
            {"task": task.task, "attempt": task.attempt, "sha256": task.sha256}
            | {"files": task.files, "bytes": task.bytes, "rows": task.rows}
            for task in tasks
        ],
        **changes,
    }
    key = f"{lake.prefix}__magic_job-{OURS}/stages/spark-1/spark/{driver}/{number:06d}.json"
    lake.store.put(BUCKET, key, json.dumps(record).encode())


def new_job(mode: str = "as-written") -> Lake:
    """Return a lake with old data in two partitions, and an open job."""
    lake = Lake()
    lake.put({"dt=1/h=0/old": b"1", "dt=1/h=1/old": b"2", "dt=2/h=0/old": b"3"})
    lake.set_up(conflict_mode=mode, committer="partitioned")
    return lake


def commit(lake: Lake) -> set[str]:
    """Collect the stage, commit the job, and return the paths of the data."""
    job = lake.job()
    sealed = job.seal_stage(*STAGE)
    assert lake.job().seal_stage(*STAGE) == sealed
    job.seal()
    assert job.commit().counts == sealed.counts
    assert lake.pending() == []
    return set(lake.data())


OLD = {"dt=1/h=0/old", "dt=1/h=1/old", "dt=2/h=0/old"}


@each(
    "mode",
    {
        "append": ({}, OLD),
        "static": ({"replaced": ("",)}, set()),
        "partition": ({"replaced": ("dt=1",)}, {"dt=2/h=0/old"}),
        "dynamic": ({"dynamic": True}, {"dt=1/h=1/old", "dt=2/h=0/old"}),
    }.values(),
)
def test_the_save_mode_decides_what_is_replaced(mode: tuple[dict[str, Any], set[str]]) -> None:
    """A commit as written replaces nothing, everything, a directory, or the partitions that get files."""
    said, kept = mode
    lake = new_job()
    lake.put({"dt=3/h=0/added": b"5"})
    write(lake, 1, lake.run_task(lake.job(), {"dt=1/h=0/new": b"4"}), **said)
    assert commit(lake) == {named("dt=1/h=0/new"), *kept, *({"dt=3/h=0/added"} if kept else ())}


def test_a_named_conflict_mode_decides_alone() -> None:
    """A job whose conflict mode is append keeps what the application overwrites."""
    lake = new_job("append")
    write(lake, 1, lake.run_task(lake.job(), {"dt=1/h=0/new": b"4"}), replaced=("",))
    assert commit(lake) == {named("dt=1/h=0/new"), *OLD}


@each("second", [{"replaced": ("",)}, {"replaced": ("dt=1",)}, {"dynamic": True}])
def test_a_later_write_discards_what_it_overwrites(second: dict[str, Any]) -> None:
    """Files of an earlier write in overwritten directories never become visible; the others do."""
    lake = new_job()
    job = lake.job()
    write(lake, 1, lake.run_task(job, {"dt=1/h=0/a": b"1", "dt=2/h=0/a": b"2"}, task="a"), replaced=("",))
    write(lake, 2, lake.run_task(job, {"dt=1/h=0/b": b"3"}, task="b"), **second)
    kept = set() if second.get("replaced") == ("",) else {named("dt=2/h=0/a")}
    assert commit(lake) == {named("dt=1/h=0/b"), *kept}


def register(lake: Lake, driver: str, record: str = "driver") -> None:
    """Write what a driver writes before its first write, or what it writes at its end."""
    key = f"{lake.prefix}__magic_job-{OURS}/stages/spark-1/spark/{driver}/{record}.json"
    lake.store.put(BUCKET, key, b'{"version":1}')


def test_only_the_newest_driver_counts(caplog: pytest.LogCaptureFixture) -> None:
    """A commit aborts what a driver sealed before another took the next number, and says so."""
    lake = new_job()
    job = lake.job()
    for number, path in ((9, "dt=3/a"), (10, "dt=3/b")):
        register(lake, f"{number:06d}-zebra" if number == 9 else f"{number:06d}-ant")
        task = lake.run_task(job, {path: b"1"}, task=path[-1])
        write(lake, 1, task, driver="000009-zebra" if number == 9 else "000010-ant")
    assert commit(lake) == {named("dt=3/b"), *OLD}
    assert "output of driver 000009-zebra is discarded" in caplog.text


@each(
    "case",
    {
        "submissions": ([{"application": "local-1"}, {"application": "local-2"}], True),
        "one name": ([{"application": "mine"}, {"application": "mine"}], True),
        "other applications of YARN": (
            [{"application": f"application_1_{number}", "application_attempt": "1"} for number in (1, 2)],
            True,
        ),
        "attempts of YARN": ([{"application_attempt": "1"}, {"application_attempt": "2"}], False),
    }.values(),
)
def test_a_driver_that_was_not_killed_is_not_discarded(case: tuple[list[dict[str, str]], bool]) -> None:
    """A stage is refused if an earlier driver ended by itself, unless YARN started the next in its place."""
    said, refused = case
    lake = new_job()
    job = lake.job()
    drivers = ("000001-first", "000002-second")
    for driver, path, more in zip(drivers, ("dt=3/a", "dt=3/b"), said, strict=True):
        register(lake, driver)
        write(lake, 1, lake.run_task(job, {path: b"1"}, task=path[-1]), driver=driver, **more)
        register(lake, driver, "ended")
    if refused:
        with pytest.raises(JobClosed, match="000001-first and 000002-second have both written"):
            job.seal_stage(*STAGE)
        assert job.stage_seal(*STAGE) is None
    else:
        assert commit(lake) == {named("dt=3/b"), *OLD}


def test_all_writes_of_one_driver_count() -> None:
    """Writes that a driver made in several contexts, one after the other, are committed together."""
    lake = new_job()
    job = lake.job()
    register(lake, "000001-first")
    write(lake, 1, lake.run_task(job, {"dt=3/a": b"1"}, task="a"), application="local-1")
    write(lake, 2, lake.run_task(job, {"dt=3/b": b"1"}, task="b"), application="local-2")
    assert commit(lake) == {named("dt=3/a"), named("dt=3/b"), *OLD}


def test_drivers_that_began_at_once_are_refused() -> None:
    """Of two drivers with one number nobody can tell which counts, so the stage is not sealed."""
    lake = new_job()
    job = lake.job()
    for driver in ("000001-first", "000001-second"):
        register(lake, driver)
        write(lake, 1, lake.run_task(job, {"dt=3/a": b"1"}, task=driver[7:]), driver=driver)
    with pytest.raises(JobClosed, match="2 Spark drivers began to write at once"):
        job.seal_stage(*STAGE)


def test_a_driver_that_finished_no_write_is_refused() -> None:
    """If the newest driver has begun a write and sealed none, an older one's output does not count for it."""
    lake = new_job()
    job = lake.job()
    register(lake, "000001-first")
    write(lake, 1, lake.run_task(job, {"dt=3/a": b"1"}, task="a"))
    register(lake, "000002-second")
    with pytest.raises(JobClosed, match="000002-second, has begun to write"):
        job.seal_stage(*STAGE)


@each("dynamic", [False, True])
def test_rows_are_those_that_spark_counted(dynamic: bool) -> None:
    """Uploads of S3A have no rows: a stage has as many as Spark counted in its tasks, a partition none."""
    lake = new_job()
    task = lake.run_task(lake.job(), {"dt=1/h=0/a": b"1"})
    record = json.loads(lake.get(lake.pendingset_key()))
    for upload in record["commits"]:
        del upload["s3commit"]
    body = json.dumps(record).encode()
    lake.store.put(BUCKET, lake.pendingset_key(), body)
    write(lake, 1, replace(task, rows=7, sha256=sha256(body)), dynamic=dynamic)
    sealed = lake.job().seal_stage(*STAGE)
    assert sealed.counts.rows == 7
    assert sealed.partitions["dt=1/h=0"].rows is None


def test_rows_without_a_file_are_refused() -> None:
    """A task whose rows Spark counted and whose pendingset is empty is an error, and nothing is sealed."""
    lake = new_job()
    write(lake, 1, replace(lake.run_task(lake.job(), {}), rows=7))
    with pytest.raises(InvalidRecord, match=r"counts 7 rows of task .* lists no file"):
        lake.job().seal_stage(*STAGE)


def test_a_mixture_is_refused() -> None:
    """One commit cannot both add to partitions and overwrite others, and nothing is sealed."""
    lake = new_job()
    job = lake.job()
    write(lake, 1, lake.run_task(job, {"dt=1/h=0/a": b"1"}, task="a"))
    write(lake, 2, lake.run_task(job, {"dt=2/h=0/b": b"3"}, task="b"), dynamic=True)
    with pytest.raises(InvalidOption, match="added to 'dt=1/h=0' and overwrote 'dt=2/h=0'"):
        job.seal_stage(*STAGE)
    assert job.stage_seal(*STAGE) is None


@each("mode", ["append", "replace"])
def test_a_mixture_is_committed_as_the_job_says(mode: str) -> None:
    """With a conflict mode of its own the job adds to all partitions, or overwrites them all."""
    lake = new_job(mode)
    job = lake.job()
    write(lake, 1, lake.run_task(job, {"dt=1/h=0/a": b"1"}, task="a"))
    write(lake, 2, lake.run_task(job, {"dt=2/h=0/b": b"3"}, task="b"), dynamic=True)
    old = {"dt=1/h=1/old"} | ({"dt=1/h=0/old", "dt=2/h=0/old"} if mode == "append" else set())
    assert commit(lake) == {*old, named("dt=1/h=0/a"), named("dt=2/h=0/b")}


def test_stages_that_contradict_each_other_are_refused() -> None:
    """A stage that overwrites and one that adds to other partitions cannot share a job."""
    lake = new_job()
    job = lake.job()
    write(lake, 1, lake.run_task(job, {"dt=1/h=0/a": b"1"}), dynamic=True)
    job.seal_stage(*STAGE)
    lake.run_stage(job, {"dt=2/h=0/b": b"2"}, stage="python")
    with pytest.raises(InvalidOption, match="stage python adds to partition 'dt=2/h=0'"):
        job.seal()


def test_an_application_whose_job_ends_meanwhile_is_named_for_that() -> None:
    """What its driver wrote is gone with the job, which is the reason, and not that no driver has written."""
    lake = new_job()
    write(lake, 1, lake.run_task(lake.job(), {"dt=1/h=0/a": b"1"}))
    lake.store.before = once("get", "stages/spark-1/sealed.json", lake.job().abort)
    with pytest.raises(JobClosed, match="is aborted"):
        lake.job().seal_stage(*STAGE)


def test_an_application_that_wrote_nothing_is_reported() -> None:
    """Without a driver's seal there is nothing to collect, and the error says what the application lacks."""
    with pytest.raises(JobClosed, match="no Spark application has written for stage spark-1"):
        new_job().job().seal_stage(*STAGE)


@each("harm", ["changed", "missing", "foreign"])
def test_damaged_records_are_refused(harm: str) -> None:
    """A pendingset that the driver does not name, or a driver's seal of another job, is refused."""
    lake = new_job()
    task = lake.run_task(lake.job(), {"dt=1/h=0/a": b"1"})
    write(lake, 1, task, **({"job_id": "another"} if harm == "foreign" else {}))
    if harm == "changed":
        lake.tamper(lake.pendingset_key(), old=b"3", new=b"4")
    elif harm == "missing":
        lake.store.delete(BUCKET, lake.pendingset_key())
    with pytest.raises(InvalidRecord):
        lake.job().seal_stage(*STAGE)


def test_a_changed_pendingset_is_refused_before_a_part_of_it_is_kept() -> None:
    """What a later write leaves of a task attempt is written anew only from the sealed pendingset."""
    lake = new_job()
    job = lake.job()
    write(lake, 1, lake.run_task(job, {"dt=1/h=0/a": b"1", "dt=2/h=0/a": b"2"}, task="a"), replaced=("",))
    write(lake, 2, lake.run_task(job, {"dt=1/h=0/b": b"3"}, task="b"), replaced=("dt=1",))
    lake.tamper(lake.pendingset_key(task="a"), old=b"dt=2/h=0", new=b"dt=2/h=9")
    before = lake.everything()
    with pytest.raises(InvalidRecord, match="SHA-256"):
        lake.job().seal_stage(*STAGE)
    assert lake.everything() == before


def test_records_of_s3a_beside_a_pendingset_do_not_abort_its_uploads() -> None:
    """A commit treats a pendingset's uploads as sealed, although S3A recorded each below ``__base`` too."""
    lake = new_job()
    task = lake.run_task(lake.job(), {"dt=1/h=0/a": b"1"})
    upload = json.loads(lake.get(lake.pendingset_key()))["commits"][0]
    base = lake.pendingset_key().removesuffix(".pendingset") + "/__base/dt=1/h=0/a.pending"
    lake.store.put(BUCKET, base, json.dumps({**upload, "jobId": "", "s3commit": None}).encode())
    write(lake, 1, task)
    assert commit(lake) == {named("dt=1/h=0/a"), *OLD}


@each("theirs", ["a job", "another program"])
def test_an_overwritten_directory_leaves_as_it_is_at_the_entry(theirs: str) -> None:
    """What comes below an overwritten directory between the seal and the commit leaves the table too."""
    lake, late = new_job(), {"dt=1/h=9/late": b"5", "dt=2/h=9/late": b"6"}
    job = lake.job()
    write(lake, 1, lake.run_task(job, {"dt=1/h=0/new": b"4"}), replaced=("dt=1",))
    job.seal_stage(*STAGE)
    job.seal()
    seen = job.preview()
    assert seen.partitions == ["dt=1/h=0", "dt=1/h=1"]
    if theirs == "a job":
        lake.sealed(late, job_id=THEIRS, conflict_mode="append").commit()
        with pytest.raises(DestinationChanged):
            lake.job().commit(generation=seen.generation)
        kept = named("dt=2/h=9/late", THEIRS)
    else:
        lake.put(late)
        kept = "dt=2/h=9/late"
    assert lake.job().preview().partitions == ["dt=1/h=0", "dt=1/h=1", "dt=1/h=9"]
    assert lake.job().commit().counts.files == 1
    assert lake.data().keys() == {named("dt=1/h=0/new"), "dt=2/h=0/old", kept}


def test_an_overwritten_directory_takes_what_other_stages_write_below_it() -> None:
    """A stage that only writes below a directory that another one overwrites shares its job."""
    lake = new_job()
    job = lake.job()
    write(lake, 1, lake.run_task(job, {"dt=1/h=0/a": b"1"}), replaced=("dt=1",))
    job.seal_stage(*STAGE)
    lake.run_stage(job, {"dt=1/h=7/b": b"2"}, stage="python")
    job.seal()
    job.commit()
    assert lake.data().keys() == {named("dt=1/h=0/a"), named("dt=1/h=7/b"), "dt=2/h=0/old"}
