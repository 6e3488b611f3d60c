"""Nothing is destroyed without proof: copied datasets, planted records, ids that mean something else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from airflow_s3commit.exceptions import ForeignRecord, InvalidRecord, S3CommitError
from airflow_s3commit.protocol.inspect.jobs import list_jobs
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.repair import repair
from airflow_s3commit.protocol.steps.fold import latest_manifest, manifest_files, read_manifest
from airflow_s3commit.protocol.sweep import sweep
from airflow_s3commit.protocol.table_rollback import rollback
from airflow_s3commit.store.base import METADATA_PREFIX
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Crash, Lake, apart, by_s3a, named

FILES = {"dt=1/a": b"1", "dt=1/b": b"22", "dt=2/c": b"333"}
OLD = {"dt=1/old": b"old 1", "dt=2/old": b"old 2"}
COPY = "copy/"
DAY = 86_400.0


def copied(lake: Lake, *, only: Callable[[str], bool] = lambda _: True) -> Lake:
    """Copy every object of the dataset and its metadata, as tools do, and return the copy as a lake."""
    for info in list(lake.store.list_objects(BUCKET, ROOT)):
        if only(info.key):
            body, metadata = lake.store.get(BUCKET, info.key).body, lake.store.head(BUCKET, info.key).metadata
            headers = {f"{METADATA_PREFIX}{name}": value for name, value in metadata.items()}
            lake.store.put(BUCKET, COPY + info.key.removeprefix(ROOT), body, headers=headers)
    copy = Lake(prefix=COPY)
    copy.store, copy.clock, copy.store_clock = lake.store, lake.clock, lake.store_clock
    copy._ids = iter(range(500, 10_000))  # type: ignore[assignment]
    return copy


@pytest.fixture(autouse=True, params=[False, True], ids=["ours", "by S3A"])
def s3a(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Return whether objects carry nothing of their job, as those of Spark's own writers."""
    with by_s3a(request.param):
        yield request.param


def half_committed(**options: Any) -> Lake:
    """Return a lake whose job died after it completed some of its uploads."""
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
    """Yield everything that can be done at the copy, about the job that died at the original and others."""
    job, there = copy.job(), Destination.parse(copy.destination)
    yield job.commit
    yield job.preview
    yield job.recover
    yield job.abort
    yield lambda: job.abort_stage("spark", "1")
    yield lambda: job.abort_attempt("spark", "1", "00000", "1")
    yield copy.job(THEIRS).abort
    yield lambda: copy.set_up(THEIRS)
    yield lambda: sweep(copy.store, there, older_than=0.0, dry_run=False, threads=0)
    yield lambda: repair(copy.store, there, dry_run=False, threads=0)
    yield lambda: rollback(copy.store, there, to=1, threads=0)


@each("gone", [(), ("job.json",), ("sealed.json",), ("job.json", "sealed.json")])
@each("act", range(11))
def test_nothing_done_at_a_copy_reaches_the_original(act: int, gone: tuple[str, ...]) -> None:
    """Whichever of the dead job's records were copied, no step at the copy touches either's data."""
    lake = half_committed()
    before, uploads = snapshot(lake), pending(lake)
    copy = copied(lake, only=lambda key: not key.endswith(tuple(f"open/{OURS}/{name}" for name in gone)))
    data = copy.data()
    with suppress(S3CommitError):
        list(every_act(copy))[act]()
    assert (snapshot(lake), pending(lake)) == (before, uploads)
    assert copy.data() == data
    lake.job().recover()
    assert lake.data() == {named(path): body for path, body in FILES.items()}


def test_a_copy_is_recognised() -> None:
    """A list of jobs and every step say that the record or the log is of another place, and what to do."""
    copy = copied(half_committed())
    (found,) = list_jobs(copy.store, Destination.parse(copy.destination))
    assert "s3://lake/flights/" in (found.problem or "")
    for step in (copy.job().recover, copy.job().abort, copy.job(THEIRS).abort, lambda: copy.set_up(THEIRS)):
        with pytest.raises(InvalidRecord, match=r"copied here|this dataset is a copy"):
            step()


def test_a_record_that_names_no_staging_prevents_no_abort() -> None:
    """It is as good as a damaged one: the job is aborted, and its output taken back."""
    lake = half_committed()
    key = lake.open_key("job.json")
    record = json.loads(lake.store.get(BUCKET, key).body)
    lake.store.put(BUCKET, key, json.dumps({**record, "staging": "no place"}).encode())
    with pytest.raises(InvalidRecord, match="names no staging"):
        lake.job().commit()
    lake.job().abort()
    assert (lake.data(), pending(lake), lake.staging()) == (OLD, [], [])


def test_a_copied_record_aborts_nothing() -> None:
    """Where a job's record was copied without a log, an abort is refused, and begins no log."""
    copy = copied(half_committed(), only=lambda key: key.endswith(f"open/{OURS}/job.json"))
    before = snapshot(copy, copy.prefix)
    with pytest.raises(ForeignRecord, match="it was copied here"):
        copy.job().abort()
    assert snapshot(copy, copy.prefix) == before


def test_a_copy_begins_a_log_of_its_own() -> None:
    """Without the copied records its first job lists the files; both datasets go on by themselves."""
    lake = half_committed()
    before, uploads = snapshot(lake), pending(lake)
    copy = copied(lake, only=lambda key: "/_s3commit/" not in key and "/__magic_job-" not in key)
    assert copy.sealed({"dt=1/new": b"new"}, job_id=THEIRS).commit().generation == 2
    assert (snapshot(lake), pending(lake)) == (before, uploads)
    kept = {path: body for path, body in lake.data().items() if path.startswith("dt=2")}
    assert copy.data() == {named("dt=1/new", THEIRS): b"new", **kept}
    lake.job().recover()
    assert lake.data() == {named(path): body for path, body in FILES.items()}


def test_files_that_are_copied_into_a_table_are_of_none_of_its_jobs() -> None:
    """Their names and metadata have ids of jobs at the original: no sweep or abort here deletes them."""
    lake = Lake()
    lake.sealed(FILES).commit()
    copy = copied(lake, only=lambda _: False)
    copy.sealed({"dt=1/ours": b"1"}, job_id=THEIRS).commit()
    copied(lake, only=lambda key: key.endswith(OURS))
    before = copy.data()
    assert len(before) == 4
    copy.store_clock.advance(DAY)
    copy.sweep(older_than=0.0)
    copy.job().abort()
    copy.sealed({"dt=9/x": b"1"}, job_id="33333333-aaaa-4bbb-8ccc-000000000003").abort()
    assert copy.data() == before


def test_an_abort_at_a_copy_keeps_files_that_carry_the_id() -> None:
    """Files of a job that committed at the original are older data of the copy, whose abort keeps them."""
    lake = Lake()
    lake.sealed(FILES).commit()
    copy = copied(lake, only=lambda key: "/_s3commit/" not in key)
    data = copy.data()
    assert copy.job().abort().objects == 0
    assert copy.data() == data
    assert lake.job().manifest() is not None


def test_manifests_of_a_copy_are_not_its_history() -> None:
    """A copied commit is neither one of the copy nor read there; the original's still is."""
    lake = Lake()
    lake.sealed(FILES).commit()
    copy = copied(lake)
    there = Destination.parse(copy.destination)
    for look in (
        lambda: read_manifest(copy.store, there, OURS),
        lambda: latest_manifest(copy.store, there),
        lambda: copy.job().manifest(),
    ):
        with pytest.raises(InvalidRecord):
            look()
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


def test_a_list_of_files_leads_nowhere_else() -> None:
    """No file of a list is read outside the job's destination, even if the manifest has the list's digest."""
    lake = Lake()
    with apart():
        manifest = lake.sealed(FILES).commit()
    [key] = lake.keys(f"{ROOT}_s3commit/lists/{OURS}")
    body = lake.get(key).replace(ROOT.encode(), b"trains/")
    digest = hashlib.sha256(body).hexdigest()
    lake.store.put(BUCKET, f"{ROOT}_s3commit/lists/{OURS}-{digest}.jsonl", body)
    forged = msgspec.structs.replace(manifest, files_sha256=digest)
    with pytest.raises(InvalidRecord, match=r"outside of s3://lake/flights/"):
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


def test_a_damaged_seal_undoes_nothing() -> None:
    """A commit of the job is refused and leaves everything; an abort takes back what it had published."""
    lake = half_committed()
    before = lake.visible()
    lake.tamper(lake.open_key("sealed.json"), cut=10)
    with pytest.raises(InvalidRecord):
        lake.job().commit()
    assert lake.visible() == before
    lake.job().abort()
    assert (lake.data(), pending(lake), lake.staging()) == (OLD, [], [])


@pytest.mark.parametrize("names", [("job.json",), ("sealed.json",), ("job.json", "sealed.json")])
def test_damaged_records_leave_a_way_to_end_the_job(names: tuple[str, ...], s3a: bool) -> None:
    """A job is aborted and its output taken back, even if its records cannot be read.

    Without any record nothing tells output of Spark's own writers from copies, so it stays.
    """
    lake = half_committed()
    for name in names:
        lake.tamper(lake.open_key(name), cut=10)
    before = lake.data()
    lake.job().abort()
    left = before if s3a and len(names) == 2 else OLD
    assert (lake.data(), pending(lake), lake.staging()) == (left, [], [])
    assert lake.keys(lake.open_key("")) == []


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
