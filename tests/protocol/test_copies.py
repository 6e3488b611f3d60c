"""Nothing is destroyed without proof: copied datasets, planted records, ids that mean something else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from airflow_s3commit.protocol.metadata.manifests import manifest_files, manifest_of, read_manifest

from airflow_s3commit.exceptions import ForeignRecord, InvalidRecord, S3CommitError
from airflow_s3commit.protocol.inspect.jobs import list_jobs
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.sweep.apply import sweep
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Crash, Lake, an_id, apart, named

FILES = {"dt=1/a": b"1", "dt=1/b": b"22", "dt=2/c": b"333"}
OLD = {"dt=1/old": b"old 1", "dt=2/old": b"old 2"}
COPY = "copy/"
DAY = 86_400.0


def copied(lake: Lake, *, only: Callable[[str], bool] = lambda _: True) -> Lake:
    """Copy every object of the dataset, as a synchronising tool does, and return the copy as a lake."""
    for info in list(lake.store.list_objects(BUCKET, ROOT)):
        if only(info.key):
            body = lake.store.get(BUCKET, info.key).body
            lake.store.put(BUCKET, COPY + info.key.removeprefix(ROOT), body)
    copy = Lake(prefix=COPY)
    copy.store, copy.clock, copy.store_clock = lake.store, lake.clock, lake.store_clock
    copy._ids = iter(range(500, 10_000))  # type: ignore[assignment]
    return copy


def half_committed(**options: Any) -> Lake:
    """Return a lake whose job died after it completed some of its uploads; its lock has lapsed."""
    lake = Lake()
    lake.put(OLD)
    lake.sealed(FILES, **options)
    lake.store.die("complete_upload", named("dt=1/b"), after=True)
    with pytest.raises(Crash):
        lake.job().commit()
    lake.store.rest()
    lake.store_clock.advance(DAY)
    return lake


def snapshot(lake: Lake, prefix: str = ROOT) -> dict[str, bytes]:
    """Return every object below a prefix."""
    return {i.key: lake.store.get(BUCKET, i.key).body for i in list(lake.store.list_objects(BUCKET, prefix))}


def pending(lake: Lake, prefix: str = ROOT) -> list[tuple[str, str]]:
    """Return every pending upload below a prefix."""
    return sorted((u.key, u.upload_id) for u in lake.store.list_uploads(BUCKET, prefix))


def every_act(copy: Lake) -> Iterator[Callable[[], object]]:
    """Yield everything that can be done at the copy about the job that died at the original."""
    job = copy.job()
    yield job.commit
    yield job.plan
    yield job.recover
    yield lambda: job.recover(rollback=True)
    yield lambda: job.abort(force=True)
    yield job.abort_late
    yield lambda: job.abort_stage("spark", "1")
    yield lambda: job.abort_attempt("spark", "1", "00000", "1")
    yield lambda: sweep(
        copy.store, Destination.parse(copy.destination), older_than=0.0, dry_run=False, threads=0
    )


def test_a_copied_dataset_s_commit_leaves_the_original_alone() -> None:
    """A copied lock names the original's staging, which is left alone, and both datasets end up right."""
    lake = half_committed()
    before, uploads = snapshot(lake), pending(lake)
    copy = copied(lake)
    copy.sealed({"dt=1/new": b"new"}, job_id=THEIRS).commit()
    assert (snapshot(lake), pending(lake)) == (before, uploads)
    assert copy.data() == {named("dt=1/new", THEIRS): b"new", "dt=2/old": b"old 2"}
    lake.job().recover()
    assert lake.data() == {named(path): body for path, body in FILES.items()}


@each("gone", [(), ("job.json",), ("job.json", "state.json"), ("sealed.json",)])
@each("act", range(9))
def test_nothing_done_at_a_copy_reaches_the_original(act: int, gone: tuple[str, ...]) -> None:
    """Whichever of the dead job's records were copied, no step at the copy touches the original."""
    lake = half_committed()
    before, uploads = snapshot(lake), pending(lake)
    copy = copied(
        lake, only=lambda key: not key.endswith(tuple(f"__magic_job-{OURS}/{name}" for name in gone))
    )
    data = copy.data()
    with suppress(S3CommitError):
        list(every_act(copy))[act]()
    assert (snapshot(lake), pending(lake)) == (before, uploads)
    assert copy.data() == data
    lake.job().recover()
    assert lake.data() == {named(path): body for path, body in FILES.items()}


def test_a_copy_is_recognised() -> None:
    """A list of jobs and every step say that the job's record belongs to another place."""
    copy = copied(half_committed())
    (found,) = list_jobs(copy.store, Destination.parse(copy.destination))
    assert "s3://lake/flights/" in (found.problem or "")
    with pytest.raises(ForeignRecord, match="was copied here"):
        copy.job().recover()


def test_manifests_of_a_copy_are_not_its_history() -> None:
    """A copied manifest is neither a job of the copy nor read there; the original's still is."""
    lake = Lake()
    lake.sealed(FILES).commit()
    copy = copied(lake)
    there = Destination.parse(copy.destination)
    for look in (
        lambda: read_manifest(copy.store, there, OURS),
        lambda: manifest_of(copy.store, there, None),
        lambda: copy.job().manifest(),
    ):
        with pytest.raises(ForeignRecord, match="it was copied here"):
            look()
    copy.sealed({"dt=1/new": b"new"}, job_id=THEIRS, conflict_mode="append").commit()
    assert manifest_of(copy.store, there, None).job_id == THEIRS
    copy.store.delete(BUCKET, f"{COPY}_SUCCESS")
    assert manifest_of(copy.store, there, None).job_id == THEIRS
    assert lake.job().manifest() is not None


@pytest.mark.parametrize("mode", ["append", "replace", "fail"])
def test_the_log_of_a_copy_continues(mode: str) -> None:
    """Copied entries only take numbers: the copy's first commit follows them and conflicts with none."""
    lake = Lake()
    lake.sealed(FILES).commit()
    lake.set_up(THEIRS).abort()
    copy = copied(lake)
    job_id = an_id("first at the copy")
    job = copy.sealed({"dt=3/new": b"new"}, job_id=job_id, conflict_mode=mode)
    manifest = job.commit()
    assert manifest.generation == 4
    there = Destination.parse(copy.destination)
    assert manifest_of(copy.store, there, None) == manifest
    original = Destination.parse(lake.destination)
    assert manifest_of(lake.store, original, None).job_id == OURS
    assert lake.job().manifest() is not None


def test_a_directory_named_after_another_job_gives_it_nothing() -> None:
    """A commit spares the uploads of a living job whose partition, or whole path, has this job's id in it."""
    lake = Lake()
    theirs = lake.set_up(THEIRS, conflict_mode="append")
    paths = {f"dt={OURS}/a": b"1", f"x-{OURS}.d/b": b"2"}
    lake.run_stage(theirs, paths)
    lake.sealed(FILES, conflict_mode="append").commit()
    theirs.seal()
    theirs.commit()
    assert lake.data().keys() >= {named(path, THEIRS) for path in paths}


@pytest.mark.parametrize("what", ["list", "file"])
def test_a_manifest_leads_nowhere_else(what: str) -> None:
    """Neither a manifest's list nor a file in it is read outside the job's destination."""
    lake = Lake()
    with apart():
        manifest = lake.sealed(FILES).commit()
    body = lake.store.get(BUCKET, f"{ROOT}_s3commit/manifests/{OURS}.jsonl").body
    if what == "list":
        lake.store.put(BUCKET, "trains/list.jsonl", body)
        forged = msgspec.structs.replace(manifest, files="s3://lake/trains/list.jsonl")
    else:
        body = body.replace(ROOT.encode(), b"trains/")
        lake.store.put(BUCKET, f"{ROOT}_s3commit/manifests/{OURS}.jsonl", body)
        forged = msgspec.structs.replace(manifest, files_sha256=hashlib.sha256(body).hexdigest())
    with pytest.raises(InvalidRecord, match=r"where no job writes it|outside of s3://lake/flights/"):
        list(manifest_files(lake.store, forged))


@pytest.mark.parametrize("job_id", ["2013-01-01", "parquet", "dt", "en", "1", "", OURS.upper()])
def test_an_id_that_may_be_part_of_any_key_is_refused(job_id: str) -> None:
    """An id that is not a canonical UUID is refused, and the message offers a name for people."""
    lake = Lake()
    with pytest.raises(InvalidRecord, match=r"name=|write it as"):
        Job.setup(lake.store, lake.destination, job_id=job_id)
    assert lake.everything() == Lake().everything()


def test_a_job_s_name_for_people_is_kept() -> None:
    """The name is in the job's context, in its manifest and in its marker."""
    lake = Lake()
    job = Job.setup(
        lake.store, lake.destination, name="nightly flights", context={"dag_id": "d"}, clock=lake.clock,
        options=JobOptions(committer="magic"),
    )  # fmt: skip
    assert job.record().context == {"dag_id": "d", "name": "nightly flights"}
    lake.run_stage(job, FILES)
    job.seal()
    assert job.commit().context["name"] == "nightly flights"
    assert b"nightly flights" in lake.store.get(BUCKET, f"{ROOT}_SUCCESS").body


def test_a_pendingset_that_names_another_job_s_upload_aborts_nothing() -> None:
    """Where file names are unique an abort goes by them, whatever a record in its staging names."""
    lake = Lake()
    theirs = lake.set_up(THEIRS, conflict_mode="append")
    lake.run_stage(theirs, {"dt=1/x": b"1"})
    lake.set_up(conflict_mode="append")
    body = json.loads(lake.get(lake.pendingset_key(job_id=THEIRS)))
    forged = {**body, "jobId": OURS, "commits": [{**c, "jobId": OURS} for c in body["commits"]]}
    lake.store.put(BUCKET, lake.pendingset_key(), json.dumps(forged).encode())
    uploads = pending(lake)
    lake.job().abort()
    assert pending(lake) == uploads
    assert lake.staging() == []


@pytest.mark.parametrize("what", ["plan", "state"])
@pytest.mark.parametrize("way", ["finish", "undo"])
def test_a_damaged_state_or_plan_undoes_nothing(what: str, way: str) -> None:
    """A job whose other records are intact is left unchanged, and can be ended either way."""
    lake = half_committed()
    before = lake.visible()
    layout = lake.context().layout
    plan = layout.plan(json.loads(lake.get(layout.state))["plan_id"])
    lake.tamper({"plan": plan, "state": layout.state}[what], cut=10)
    with pytest.raises(InvalidRecord) as met:
        lake.job().commit()
    assert lake.visible() == before
    assert any("s3commit recover" in note for note in (str(met.value), *met.value.__notes__))
    if way == "undo":
        lake.job().recover(rollback=True)
        assert lake.data() == OLD
    else:
        lake.job().recover(keep_replaced=what == "plan")
        new = {named(path): body for path, body in FILES.items()}
        assert lake.data() == ({**OLD, **new} if what == "plan" else new)
    assert pending(lake) == []
    assert lake.staging() == []


def test_a_job_whose_own_record_is_damaged_is_aborted_by_its_state() -> None:
    """The copy in a half-committed job's state is enough to take its output back."""
    lake = half_committed()
    lake.tamper(f"{ROOT}__magic_job-{OURS}/job.json", cut=10)
    lake.job().abort()
    assert lake.data() == OLD
    assert pending(lake) == []
    assert lake.staging() == []


@pytest.mark.parametrize("records", [("state.json",), ("job.json", "state.json", "sealed.json")])
def test_damaged_records_leave_a_way_to_end_the_job(records: tuple[str, ...]) -> None:
    """With force a job is aborted and its output taken back, even if its records cannot be read."""
    lake = half_committed()
    for name in records:
        lake.tamper(f"{ROOT}__magic_job-{OURS}/{name}", cut=10)
    with pytest.raises(InvalidRecord):
        lake.job().abort()
    lake.job().abort(force=True)
    assert lake.data() == OLD
    assert pending(lake) == []
    assert lake.staging() == []


@pytest.mark.parametrize("track", ["task", "s3"])
def test_one_task_attempt_is_aborted_from_another_process(track: str) -> None:
    """What a dead attempt recorded is gone, its twin's output stays, and a sealed attempt is refused."""
    lake = Lake()
    options = {"conflict_mode": "append", "track_pending": track}
    job = lake.set_up(**options)
    lake.run_task(job, {"dt=1/dead": b"1"}, task="00000", attempt="1")
    lake.run_task(job, {"dt=1/twin": b"2"}, task="00000", attempt="2")
    assert lake.job().abort_attempt("spark", "1", "00000", "1") == 1
    assert lake.job().abort_attempt("spark", "1", "00000", "1") == 0
    assert [key for key, _ in pending(lake)] == [ROOT + named("dt=1/twin")]
    assert not [key for key in lake.staging() if "00000_1" in key]
