"""Finishing and aborting jobs that Hadoop's S3A committers left, from files as Hadoop writes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import Any, Literal, cast
from uuid import uuid4

import pytest

from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    AuditFailed,
    DestinationChanged,
    DestinationNotEmpty,
    DuplicateOutput,
    InvalidDestination,
    InvalidOption,
    InvalidRecord,
    JobClosed,
    JobFailed,
    JobMismatch,
    NoSuchJob,
    S3CommitError,
)
from airflow_s3commit.protocol.hadoop.adopt import Adoption
from airflow_s3commit.protocol.hadoop.jobs import HadoopJob
from airflow_s3commit.protocol.hadoop.jobs import find_hadoop_jobs as find_jobs
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import AbortReport, ConflictMode, JobOptions, JobReference
from airflow_s3commit.protocol.model.layout import owner_of
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.steps.files import files_in
from airflow_s3commit.protocol.steps.fold import latest_manifest, manifest_files, read_table
from airflow_s3commit.protocol.sweep import sweep
from airflow_s3commit.protocol.table_rollback import rollback
from airflow_s3commit.protocol.write_job import write_job
from airflow_s3commit.store.base import ObjectStore, PartEtag
from airflow_s3commit.store.memory import MemoryStore
from airflow_s3commit.store.s3.store import S3Store
from airflow_s3commit.testing import Crash, Fault, FaultyStore, StoreCall
from tests.cases import each
from tests.fakes import ManualClock
from tests.protocol.building import an_id
from tests.protocol.hadoop.dead_jobs import (
    BUCKET,
    MAGIC,
    ROOT,
    TASKS,
    UPLOADS_DIR,
    UUID,
    DeadJob,
    crc32,
    task_id,
)
from tests.protocol.published import columns

LAYOUTS = pytest.mark.parametrize("layout", ["magic", "staging"])


def dead_job(layout: str, **settings: Any) -> DeadJob:
    """Return a job that died with three committed tasks and a leftover."""
    return DeadJob.magic(**settings) if layout == "magic" else DeadJob.staging(**settings)


def place(dead: DeadJob, layout: str) -> dict[str, Any]:
    """Return where the job's pendingsets are."""
    where = {} if layout == "magic" else {"pendingsets_uri": dead.pendingsets_uri}
    return {"job_id": UUID, **where}


def finish(dead: DeadJob, layout: str = "magic", **arguments: Any) -> Manifest:
    """Adopt the job and commit it."""
    return Adoption(dead.store, dead.destination, **{**place(dead, layout), **arguments}).commit()


def give_up(dead: DeadJob, layout: str = "magic", **arguments: Any) -> AbortReport:
    """Adopt the job and abort it."""
    return Adoption(dead.store, dead.destination, **{**place(dead, layout), **arguments}).abort()


def find_hadoop_jobs(dead: DeadJob) -> list[HadoopJob]:
    """Find the jobs at the destination."""
    return find_jobs(dead.store, Destination.parse(dead.destination))


@LAYOUTS
@pytest.mark.parametrize("checksums", [False, True], ids=["3.4.1", "3.5.0"])
@pytest.mark.parametrize("repeat_complete", ["ok", "gone"])
def test_a_dead_job_is_finished(layout: str, repeat_complete: str, checksums: bool) -> None:
    """Every file of every committed task exists byte for byte, nothing else does, and nothing is pending."""
    dead = dead_job(layout, repeat_complete=repeat_complete, checksums=checksums)
    manifest = finish(dead, layout)
    assert dead.visible() == dead.contents
    assert dead.pending_keys() == []
    assert dead.keys(MAGIC) == []
    assert (manifest.job_id, manifest.counts.files, manifest.counts.bytes) == (UUID, 3, 23)
    assert manifest.counts.rows is None
    assert {name: counts.files for name, counts in manifest.partitions.items()} == {"day=17": 2, "day=18": 1}


def _salted(content: bytes) -> Any:
    return hashlib.md5(b"salt" + content, usedforsecurity=False)


@pytest.mark.parametrize(
    ("digest", "sse"), [(hashlib.md5, "AES256"), (hashlib.sha256, "AES256"), (_salted, "aws:kms")]
)
def test_files_of_hadoop_leave_with_their_partition(
    digest: Any, sse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replace deletes them whatever the store makes their ETags of, and not what was written over them."""
    monkeypatch.setattr("airflow_s3commit.store.memory._md5", digest)
    create = partialmethod(MemoryStore.create_upload, headers={"x-amz-server-side-encryption": sse})
    with monkeypatch.context() as encrypted:
        encrypted.setattr(MemoryStore, "create_upload", create)
        dead = dead_job("magic")
    finish(dead)
    over = dead.put(f"{ROOT}day=17/part-00001.parquet", b"later")
    with (
        write_job(dead.destination, store=dead.store, conflict_mode="replace") as writer,
        writer.open("day=17/new") as file,
    ):
        file.write(b"new")
    new = f"{ROOT}day=17/new-{writer.job.reference.job_id}"
    assert dead.visible().keys() == {new, over, f"{ROOT}day=18/part-00000.parquet"}


DAY_17 = f"{ROOT}day=17/part-00000.parquet"


def adopt_file(store: MemoryStore, body: bytes) -> None:
    """Adopt a job of its own that wrote one file, always at the same key."""
    dead = DeadJob()
    dead.store, job_id = store, str(uuid4())
    commit = dead.pending("day=17/part-00000.parquet", (body,), job=job_id)
    directory = f"{ROOT}__magic_job-{job_id}/job-{job_id}/00/"
    dead.put(f"{directory}{task_id(0)}.pendingset", dead.pendingset([commit], job=job_id))
    finish(dead, job_id=job_id)


def replace_file(store: ObjectStore, retain: str = "0s") -> None:
    """Replace the partition of that file."""
    options = JobOptions(conflict_mode="replace", retain=retain)
    with (
        write_job(f"s3://{BUCKET}/{ROOT}", store=store, job_options=options) as writer,
        writer.open("day=17/new") as file,
    ):
        file.write(b"new")


@each("is_replaced", [False, True])
def test_a_sweep_keeps_a_file_at_the_key_of_one_that_another_has_deleted(*, is_replaced: bool) -> None:
    """A later job of Hadoop's may write at a key that a release freed: its file stays, live or retained."""
    clock = ManualClock()
    store = MemoryStore((BUCKET,), min_part_bytes=1, now=clock.time)
    adopt_file(store, b"one")
    replace_file(store, "1h")
    clock.advance(7200)
    assert sweep(store, f"s3://{BUCKET}/{ROOT}", older_than=60, dry_run=False, threads=0).replaced == 1
    adopt_file(store, b"two")
    if is_replaced:
        replace_file(store, "1h")
    assert sweep(store, f"s3://{BUCKET}/{ROOT}", older_than=60, dry_run=False, threads=0).replaced == 0
    assert store.get(BUCKET, DAY_17).body == b"two"


@pytest.mark.parametrize(("later", "sse"), [(b"one", "AES256"), (b"two", "aws:kms")])
def test_a_commit_that_is_finished_late_keeps_a_newer_file_at_the_key_of_one_it_took(
    later: bytes, sse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replace died after its deletions, and a job of Hadoop's wrote there again: the same ETag or size."""
    create = partialmethod(MemoryStore.create_upload, headers={"x-amz-server-side-encryption": sse})
    monkeypatch.setattr(MemoryStore, "create_upload", create)
    clock = ManualClock()
    store = MemoryStore((BUCKET,), min_part_bytes=1, now=clock.time)
    adopt_file(store, b"one")
    with pytest.raises(Crash):
        replace_file(FaultyStore(store, Fault("crash-before", verb="put", key="*_SUCCESS")))
    adopt_file(store, later)
    clock.advance(7200)
    assert len(sweep(store, f"s3://{BUCKET}/{ROOT}", older_than=60, dry_run=False, threads=0).jobs) == 1
    assert store.get(BUCKET, DAY_17).body == later


def test_an_abort_that_finds_no_files_any_more_says_that_the_job_is_committed() -> None:
    """Another process has committed it after this one's look at the log, and removed its files."""
    dead = dead_job("magic")

    def commit(call: StoreCall) -> None:
        if call.verb == "list_objects" and call.key.startswith(MAGIC):
            watched.before = lambda _: None
            finish(dead)

    watched = FaultyStore(dead.store, before=commit)
    with pytest.raises(AlreadyCommitted):
        Adoption(watched, dead.destination, UUID).abort()
    assert dead.visible() == dead.contents


@LAYOUTS
def test_the_checksums_of_parts_are_named_when_they_are_completed(layout: str) -> None:
    """An upload that was started with checksums can only be completed with them."""
    dead = dead_job(layout, checksums=True)
    complete, named = dead.store.complete_upload, {}

    def watch(bucket: str, key: str, upload_id: str, etags: Sequence[PartEtag]) -> str:
        if key in dead.contents:  # and no probe from the set-up
            named[key] = etags
        return complete(bucket, key, upload_id, etags)

    dead.store.complete_upload = watch
    finish(dead, layout)
    parts = {ROOT + path: parts for files in TASKS.values() for path, parts in files.items()}
    assert {key: [etag.checksum for etag in etags] for key, etags in named.items()} == {
        key: [crc32(part) for part in its] for key, its in parts.items()
    }
    assert {etag.algorithm for etags in named.values() for etag in etags} == {"CRC32"}


@LAYOUTS
def test_the_manifest_of_an_adopted_job_names_its_files_and_source(layout: str) -> None:
    """``_SUCCESS`` leads to a manifest with every file and its ETag, and names the origin of the job."""
    dead = dead_job(layout)
    finish(dead, layout)
    manifest = latest_manifest(dead.store, Destination.parse(dead.destination))
    entries = {entry.key: entry for entry in manifest_files(dead.store, manifest)}
    assert {key: entry.etag for key, entry in entries.items()} == {
        key: dead.store.head(BUCKET, key).etag for key in dead.contents
    }
    assert manifest.context["adopted_from"].endswith(MAGIC if layout == "magic" else UPLOADS_DIR)


@LAYOUTS
@pytest.mark.parametrize("checksums", [False, True], ids=["3.4.1", "3.5.0"])
def test_a_dead_job_is_aborted(layout: str, checksums: bool) -> None:
    """No upload of the job stays pending, leftovers of unfinished attempts included, and nothing appears."""
    dead = dead_job(layout, checksums=checksums)
    report = give_up(dead, layout)
    assert (report.uploads, report.objects) == (4, 0)
    assert dead.visible() == {}
    assert dead.pending_keys() == []
    assert dead.keys(MAGIC) == []


@LAYOUTS
def test_uploads_of_others_are_left_alone(layout: str) -> None:
    """An upload that no file of the job names stays pending, after a commit and after an abort."""
    for end in (finish, give_up):
        dead = dead_job(layout)
        other = dead.store.create_upload(BUCKET, f"{ROOT}day=17/other", metadata={}, content_type="x")
        end(dead, layout)
        assert [upload.upload_id for upload in dead.store.list_uploads(BUCKET, "")] == [other]


@LAYOUTS
def test_adopting_again_changes_nothing(layout: str) -> None:
    """A second commit returns the same manifest, and an abort after it is refused."""
    dead = dead_job(layout)
    manifest, after = finish(dead, layout), dead.everything()
    assert finish(dead, layout) == manifest
    with pytest.raises(AlreadyCommitted):
        give_up(dead, layout)
    assert dead.everything() == after


@LAYOUTS
def test_an_aborted_job_stays_aborted(layout: str) -> None:
    """A second abort finds nothing pending, and nothing of the job can be finished."""
    dead = dead_job(layout)
    give_up(dead, layout)
    after = dead.keys()
    assert give_up(dead, layout) == AbortReport(uploads=0, objects=0)
    with pytest.raises(JobClosed, match="is aborted"):
        finish(dead, layout)
    assert dead.visible() == {}
    assert dead.keys() == after


@LAYOUTS
def test_a_half_published_job_whose_record_is_damaged_is_taken_back(layout: str) -> None:
    """What the staging names goes, by its content alone: another writer's object at such a key stays."""
    dead = dead_job(layout)
    theirs = f"{ROOT}day=18/part-00000.parquet"
    faulty = FaultyStore(dead.store)
    faulty.before = lambda call: faulty.crash() if call.verb == "put" and f"log/{2:020}" in call.key else None
    with pytest.raises(Crash):
        Adoption(faulty, dead.destination, **place(dead, layout)).commit()
    assert len(dead.visible()) == 3
    dead.store.put(BUCKET, theirs, b"newer")
    dead.store.put(BUCKET, f"{ROOT}_s3commit/open/{UUID}/job.json", b"{damaged")
    staging = f"s3://{BUCKET}/{MAGIC}"
    reference = JobReference(job_id=UUID, destination=f"s3://{BUCKET}/{ROOT}", staging=staging)
    assert Job.at(dead.store, reference).abort().objects == 2
    assert dead.visible() == {theirs: b"newer"}
    assert (dead.pending_keys(), dead.keys(MAGIC), dead.keys(f"{ROOT}_s3commit/open/")) == ([], [], [])


def test_what_is_left_after_an_abort_is_aborted_too() -> None:
    """A second abort handles a pendingset that a surviving Hadoop task writes after the first."""
    dead = DeadJob.magic()
    give_up(dead)
    dead.commit_magic_task(5, {"late": (b"late",)})
    with pytest.raises(JobClosed):
        finish(dead)
    assert give_up(dead).uploads == 1
    assert dead.pending_keys() == []
    assert dead.keys(MAGIC) == []


def test_a_commit_that_dies_is_recovered_or_counts_each_upload_once() -> None:
    """An adopted job that has begun to publish is recovered as any other, and an abort counts no copy."""
    for end in ("recover", "abort"):
        dead = DeadJob.magic()
        faulty = FaultyStore(dead.store, Fault("crash-after", verb="complete_upload"))
        with pytest.raises(Crash):
            Adoption(faulty, dead.destination, UUID).commit()
        adopted = Adoption(dead.store, dead.destination, UUID)
        if end == "abort":
            assert adopted.abort() == AbortReport(uploads=4, objects=1)
        else:
            staging = f"s3://{BUCKET}/{MAGIC}"
            reference = JobReference(job_id=UUID, destination=f"s3://{BUCKET}/{ROOT}", staging=staging)
            assert isinstance(Job.at(dead.store, reference).recover(), Manifest)
        assert len(dead.visible()) == (0 if end == "abort" else len(dead.contents))
        assert dead.pending_keys() == []


def test_an_upload_that_is_named_and_listed_is_counted_once() -> None:
    """With unique file names Hadoop's names have the job's id, so a listing shows what its files name."""
    dead = DeadJob()
    dead.commit_staging_task(0, {f"day=17/part-00000-{UUID}.parquet": (b"1",)})
    assert give_up(dead, "staging").uploads == 1
    assert dead.pending_keys() == []


@each("asked", [None, "delta"])
def test_a_dead_job_beside_a_published_table_can_only_be_aborted(asked: Literal["delta"] | None) -> None:
    """Its files have no known columns, so it is refused before any change; an abort and a sweep end it."""
    for end in ("abort", "sweep"):
        dead = DeadJob.magic()
        if asked is None:
            writer = write_job(dead.destination, store=dead.store, job_options=JobOptions(publish="delta"))
            with writer as written:
                written.describe(0, columns(("x", "long"), ("day", "integer")))
        before = dead.everything()
        options = JobOptions(committer="magic", conflict_mode="append", publish=asked)
        with pytest.raises(InvalidOption, match="records no columns"):
            finish(dead, options=options)
        assert dead.everything() == before
        if end == "abort":
            give_up(dead)
        else:
            sweep(dead.store, dead.destination, older_than=0.0, dry_run=False, threads=0)
        assert (dead.pending_keys(), dead.keys(MAGIC), dead.keys(f"{ROOT}day=")) == ([], [], [])


def test_a_job_of_ours_is_not_adopted() -> None:
    """An abort, and what it would do, refuse it alike: it is ended by its own commands."""
    store, job_id = MemoryStore((BUCKET,), min_part_bytes=1), an_id("ours")
    job = Job.setup(store, f"s3://{BUCKET}/{ROOT}", job_id=job_id)
    adoption = Adoption(store, f"s3://{BUCKET}/{ROOT}", job_id)
    assert isinstance(adoption.refusal(commit=False), JobMismatch)
    with pytest.raises(JobMismatch, match="is no job of Hadoop's"):
        adoption.abort()
    assert job.state().state == "open"


def test_a_job_that_left_nothing_is_not_known() -> None:
    """A wrong id, or a wrong destination, is an error that says where it looked."""
    dead = DeadJob()
    with pytest.raises(NoSuchJob, match="no files in s3://lake/sales/__magic_job-"):
        finish(dead)
    assert dead.keys() == []


def test_a_staging_directory_is_left_to_its_owner() -> None:
    """The pendingsets that were copied to S3 are read and kept."""
    dead = DeadJob.staging()
    before = dead.keys(UPLOADS_DIR)
    finish(dead, "staging")
    assert dead.keys(UPLOADS_DIR) == before


def test_jobs_are_found_with_what_they_would_publish() -> None:
    """A listing shows tasks, uploads and bytes that count, and uploads that do not; it changes nothing."""
    dead = DeadJob.magic()
    Job.setup(dead.store, dead.destination, job_id=an_id("ours"))
    before = dead.everything()
    (found,) = find_hadoop_jobs(dead)
    assert dead.everything() == before
    assert (found.job_id, found.prefix) == (UUID, f"s3://{BUCKET}/{MAGIC}")
    assert (found.pendingsets, found.uploads, found.bytes, found.others) == (3, 3, 23, 1)
    assert (found.gaps, found.damaged, found.application_attempt) == (0, (), 0)


def test_jobs_that_are_damaged_are_found_too() -> None:
    """A listing shows a job whose files cannot be read, and says which ones."""
    dead = DeadJob.magic()
    key = dead.put(f"{MAGIC}job-{UUID}/00/{task_id(7)}.pendingset", b'{"version":3,"jobId"')
    (found,) = find_hadoop_jobs(dead)
    assert (found.pendingsets, found.uploads, found.gaps) == (4, 3, 4)
    assert key in found.damaged[0]


def _damage(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def damage(body: bytes) -> bytes:
        record = json.loads(body)
        change(record)
        return json.dumps(record).encode()

    return damage


def _commit(**changes: Any) -> Callable[[bytes], bytes]:
    return _damage(lambda record: record["commits"][0].update(changes))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated": lambda body: body[:-40],
    "no json": lambda _: b"PAR1",
    "set version": _damage(lambda record: record.update(version=2)),
    "commit version": _commit(version=1),
    "other job": _damage(lambda record: record.update(jobId="another")),
    "other bucket": _commit(bucket="other"),
    "outside": _commit(destinationKey="sales2/part-0"),
    "upwards": _commit(destinationKey=f"{ROOT}../part-0"),
    "hidden": _commit(destinationKey=f"{ROOT}_s3commit/store.json"),
    "control": _commit(destinationKey=f"{ROOT}part\n"),
    "no upload id": _commit(uploadId=""),
    "negative length": _commit(length=-1),
    "empty etag": _commit(etags=[""]),
    "no etags": _damage(lambda record: record["commits"][0].pop("etags")),
    "key twice": _damage(lambda record: record["commits"].append(record["commits"][0])),
}


@LAYOUTS
@pytest.mark.parametrize("end", [finish, give_up], ids=["commit", "abort"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_file_is_named_and_nothing_is_changed(
    layout: str, end: Callable[..., object], damage: Callable[[bytes], bytes]
) -> None:
    """One pendingset that cannot be trusted stops the adoption before its first write."""
    dead = dead_job(layout)
    directory = f"{MAGIC}job-{UUID}/00/" if layout == "magic" else UPLOADS_DIR
    key = next(key for key in dead.keys(directory) if task_id(0) in key)
    dead.put(key, damage(dead.store.get(BUCKET, key).body))
    before = dead.everything()
    with pytest.raises(InvalidRecord, match=task_id(0)):
        end(dead, layout)
    assert dead.everything() == before


def test_an_unreadable_leftover_stops_a_commit_without_force() -> None:
    """Its upload would be forgotten; ``force`` accepts that."""
    dead = DeadJob.magic()
    leftover = next(key for key in dead.keys(MAGIC) if key.endswith(".pending"))
    dead.put(leftover, b"{}")
    with pytest.raises(InvalidRecord, match=r"part-00001\.parquet\.pending"):
        finish(dead)
    finish(dead, force=True)
    assert dead.visible() == dead.contents
    assert dead.pending_keys() == [f"{ROOT}day=17/part-00001.parquet"]


@LAYOUTS
def test_a_forced_abort_skips_what_cannot_be_read(layout: str) -> None:
    """Uploads in readable records are aborted; only an upload that no record names is left."""
    dead = dead_job(layout)
    lost = dead.commit_magic_task(9, {"x": (b"x",)}) if layout == "magic" else None
    lost = lost or dead.commit_staging_task(9, {"x": (b"x",)})
    dead.put(lost, b"{")
    give_up(dead, layout, force=True)
    assert dead.pending_keys() == [f"{ROOT}x"]


@pytest.mark.parametrize("end", [finish, give_up], ids=["commit", "abort"])
def test_data_in_a_magic_directory_is_not_cleaned_away(end: Callable[..., object]) -> None:
    """A file that was written there as an ordinary object (magic was off) is data, forced or not."""
    dead = DeadJob.magic()
    dead.put(f"{dead.magic_attempt(3)}__base/part-3.parquet", b"rows")
    before = dead.everything()
    with pytest.raises(InvalidRecord, match=r"part-3\.parquet is no file of Hadoop"):
        end(dead, force=True)
    assert dead.everything() == before


def test_a_staging_file_that_is_not_a_pendingset_is_refused() -> None:
    """Like Hadoop, adoption takes every file there that is not hidden for a pendingset."""
    dead = DeadJob.staging()
    dead.put(f"{UPLOADS_DIR}notes.txt", b"remember the milk")
    with pytest.raises(InvalidRecord, match=r"notes\.txt is not a valid PendingSet"):
        finish(dead, "staging")


@LAYOUTS
def test_a_key_written_by_two_tasks_is_refused(layout: str) -> None:
    """Hadoop would complete both and keep the last; here it is an error before anything is written."""
    dead = dead_job(layout)
    again = {"day=18/part-00000.parquet": (b"b",)}
    dead.commit_magic_task(3, again) if layout == "magic" else dead.commit_staging_task(3, again)
    before = dead.everything()
    with pytest.raises(DuplicateOutput, match=task_id(3)):
        finish(dead, layout)
    assert dead.everything() == before


def test_a_task_with_two_pendingsets_is_refused() -> None:
    """A name with and without its suffix is one task."""
    dead = DeadJob.staging()
    dead.put(f"{UPLOADS_DIR}{task_id(2)}.pendingset", dead.pendingset([], job=""))
    with pytest.raises(DuplicateOutput, match="two pendingsets"):
        finish(dead, "staging")


def test_an_upload_without_parts_can_only_be_aborted() -> None:
    """Hadoop loads an empty list of ETags, but no store completes such an upload: a commit is refused."""
    dead = DeadJob.magic()
    dead.commit_magic_task(3, {"none": ()}, etags=[])
    assert find_hadoop_jobs(dead)[0].uploads == 4
    before = dead.everything()
    with pytest.raises(InvalidRecord, match="has no parts"):
        finish(dead)
    assert dead.everything() == before
    give_up(dead)
    assert dead.pending_keys() == []


def test_fields_that_hadoop_may_add_or_leave_null_are_accepted() -> None:
    """Unknown fields are ignored and nulls accepted, as in Hadoop's own loader."""
    dead = DeadJob()
    dead.commit_magic_task(
        0, {"a": (b"a",)}, date=None, text=None, extraData=None, jobId=None, taskId=None, novelty=[1]
    )
    finish(dead)
    assert dead.visible() == {f"{ROOT}a": b"a"}


OLD = {f"{ROOT}day=17/old.parquet": b"old", f"{ROOT}day=16/old.parquet": b"older"}


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        ({}, []),
        ({"options": JobOptions(committer="magic", conflict_mode="append")}, []),
        (
            {"options": JobOptions(committer="partitioned", conflict_mode="replace")},
            [f"{ROOT}day=17/old.parquet"],
        ),
        ({"options": JobOptions(committer="directory", conflict_mode="replace")}, list(OLD)),
    ],
    ids=["default", "append", "partitions", "directory"],
)
def test_conflicts_are_resolved_as_the_caller_says(options: dict[str, Any], gone: list[str]) -> None:
    """An adopted job has all conflict modes, unlike one of the magic committer, and appends by default."""
    dead = DeadJob.magic()
    for key, body in OLD.items():
        dead.put(key, body)
    finish(dead, **options)
    kept = {key: body for key, body in OLD.items() if key not in gone}
    assert dead.visible() == {**kept, **dead.contents}


@pytest.mark.parametrize("committer", ["partitioned", "directory"])
def test_mode_fail_refuses_before_anything_is_written(committer: Any) -> None:
    """A refused job can still be adopted in another mode."""
    dead = DeadJob.magic()
    dead.put(f"{ROOT}day=17/old.parquet", b"old")
    before = dead.everything()
    with pytest.raises(DestinationNotEmpty):
        finish(dead, options=JobOptions(committer=committer, conflict_mode="fail"))
    assert dead.everything() == before
    finish(dead)


@LAYOUTS
@pytest.mark.parametrize("has_record", [False, True])
def test_an_abort_is_not_refused_because_of_data(layout: str, has_record: bool) -> None:
    """Options that refuse a commit do not keep a job from being aborted, taken over before or not."""
    dead = dead_job(layout)
    options = JobOptions(committer="directory", conflict_mode="fail")
    if has_record:
        adoption = Adoption(dead.store, dead.destination, **place(dead, layout), options=options)
        adoption._take_over()
        dead.store.delete(BUCKET, f"{ROOT}_s3commit/open/{UUID}/sealed.json")
    dead.put(f"{ROOT}day=17/old.parquet", b"old")
    assert give_up(dead, layout, options=options).uploads
    assert dead.visible() == {f"{ROOT}day=17/old.parquet": b"old"}
    assert list(dead.store.list_uploads(BUCKET, "")) == []


TAKEN = f"{ROOT}day=18/part-00000.parquet"


def write_over(dead: DeadJob) -> None:
    """Put an object of another writer at a key of the job."""
    dead.put(TAKEN, b"old")


def run_again(dead: DeadJob) -> None:
    """Write and complete the same bytes at the same key, as a rerun with Hadoop's names does."""
    upload_id = dead.store.create_upload(BUCKET, TAKEN, metadata={}, content_type="x")
    (parts,) = (parts for files in TASKS.values() for path, parts in files.items() if ROOT + path == TAKEN)
    etags = [dead.store.upload_part(BUCKET, TAKEN, upload_id, n, part) for n, part in enumerate(parts, 1)]
    dead.store.complete_upload(BUCKET, TAKEN, upload_id, etags)


@LAYOUTS
@pytest.mark.parametrize("mode", ["append", "replace"])
@pytest.mark.parametrize("occupy", [write_over, run_again])
def test_a_key_that_is_taken_refuses_the_commit(
    occupy: Callable[[DeadJob], None], mode: ConflictMode, layout: str
) -> None:
    """Names of Hadoop may repeat, and a completion would overwrite: nothing changes until the key is free."""
    dead = dead_job(layout)
    occupy(dead)
    before, options = dead.everything(), JobOptions(committer="magic", conflict_mode=mode)
    with pytest.raises(DestinationNotEmpty, match=rf"writes s3://{BUCKET}/{TAKEN}, and an object"):
        finish(dead, layout, options=options)
    assert dead.everything() == before
    dead.store.delete(BUCKET, TAKEN)
    finish(dead, layout, options=options)
    assert dead.visible() == dead.contents


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_a_key_that_is_taken_after_the_seal_refuses_the_commit(mode: ConflictMode) -> None:
    """A job that was adopted and not yet committed looks at its keys again, and keeps its uploads."""
    dead, options = DeadJob.magic(), JobOptions(committer="magic", conflict_mode=mode)
    store = FaultyStore(dead.store, Fault("crash-after", verb="put", key=f"*/open/{UUID}/sealed.json"))
    with pytest.raises(Crash):
        Adoption(store, dead.destination, job_id=UUID, options=options).commit()
    dead.put(TAKEN, b"old")
    pending = dead.pending_keys()
    with pytest.raises(DestinationNotEmpty, match="an object of another writer is there"):
        finish(dead, options=options)
    assert dead.pending_keys() == pending
    assert dead.visible() == {TAKEN: b"old"}


@pytest.mark.parametrize("end", [finish, give_up], ids=["commit", "abort"])
def test_what_an_adoption_has_published_is_no_success_of_hadoop(end: Callable[..., object]) -> None:
    """All is published, and the marker is another job's: a sweep leaves it, and an adoption ends it."""
    dead = DeadJob.magic()
    dead.mark("another")
    store = FaultyStore(dead.store, Fault("crash-before", verb="put", key=f"*/log/{2:020d}.json"))
    with pytest.raises(Crash):
        Adoption(store, dead.destination, UUID).commit()
    assert sweep(dead.store, dead.destination, older_than=0.0, dry_run=False, threads=0).jobs == []
    assert dead.visible() == dead.contents
    end(dead)
    assert dead.visible() == (dead.contents if end is finish else {})
    assert dead.pending_keys() == []


def test_a_file_of_the_table_is_not_listed_twice() -> None:
    """A rerun was adopted: the first run, whose upload is gone, is not taken for the writer of its file."""
    first, again = "8f3c1c0e-2b8e-4b0a-9d0c-0d6a2b9b7a22", DeadJob()
    again.commit_magic_task(0, {"part-0": (b"rows",)})
    finish(again)
    commit = again.pending("part-0", (b"rows",), job=first)
    directory = f"{ROOT}__magic_job-{first}/job-{first}/00/"
    again.put(f"{directory}{task_id(0)}.pendingset", again.pendingset([commit], job=first))
    again.store.abort_upload(BUCKET, f"{ROOT}part-0", again.uploads[f"{ROOT}part-0"][-1])
    again.store.delete(BUCKET, f"{ROOT}_SUCCESS")
    before = again.everything()
    with pytest.raises(DestinationNotEmpty, match=f"it is a file of the table, of job {UUID}"):
        finish(again, job_id=first)
    assert again.everything() == before


@pytest.mark.parametrize("replaced_by", ["a job", "a rollback"])
def test_a_job_is_not_committed_beside_one_that_replaces_its_partitions(replaced_by: str) -> None:
    """That one may have taken the files for older data, and delete them: the adopted job is rolled back."""
    dead = DeadJob.magic()
    done: list[str] = []

    def write(body: bytes, mode: ConflictMode) -> None:
        writing = write_job(dead.destination, store=dead.store, conflict_mode=mode)
        with writing as job, job.open("day=17/new.parquet") as file:
            file.write(body)

    def replace_partition(call: StoreCall) -> None:
        if call.verb == "put" and call.key.endswith(f"/log/{number:020d}.json") and not done:
            done.append(call.key)
            if replaced_by == "a job":
                write(b"new", "replace")
            else:
                rollback(dead.store, dead.destination, to=2, threads=0)

    kept, number = b"new", 2
    if replaced_by == "a rollback":
        kept, number = b"kept", 4
        write(b"kept", "append")
        write(b"gone", "append")
    with pytest.raises(DestinationChanged, match="replaced files beside it"):
        Adoption(FaultyStore(dead.store, before=replace_partition), dead.destination, job_id=UUID).commit()
    assert dead.pending_keys() == []
    assert list(dead.visible().values()) == [kept]


def test_a_job_is_committed_beside_one_that_appends_to_its_partitions() -> None:
    """That one deletes nothing, and both are in the table."""
    dead = DeadJob.magic()

    def append(call: StoreCall) -> None:
        if call.verb == "put" and call.key.endswith("/log/00000000000000000002.json") and not done:
            done.append(call.key)
            writing = write_job(dead.destination, store=dead.store, conflict_mode="append")
            with writing as job, job.open("day=17/new.parquet") as file:
                file.write(b"new")

    done: list[str] = []
    Adoption(FaultyStore(dead.store, before=append), dead.destination, job_id=UUID).commit()
    assert sorted(dead.visible().values()) == sorted([b"new", *dead.contents.values()])


def test_an_adopted_job_keeps_its_options() -> None:
    """A commit that began with some options cannot continue with others."""
    dead = DeadJob.magic()
    Job.setup(dead.store, dead.destination, job_id=UUID, options=JobOptions(committer="magic"))
    with pytest.raises(JobMismatch):
        finish(dead)
    assert len(dead.pending_keys()) == 4


@LAYOUTS
@pytest.mark.parametrize("repeat_complete", ["ok", "gone"])
@pytest.mark.parametrize("published", [1, 2, 3])
def test_a_job_commit_that_hadoop_began_is_finished(
    layout: str, repeat_complete: str, published: int
) -> None:
    """Uploads that are already complete are recognised by the ETag that follows from their parts."""
    dead = dead_job(layout, repeat_complete=repeat_complete)
    for key in list(dead.contents)[:published]:
        dead.complete(key)
    finish(dead, layout)
    assert dead.visible() == dead.contents
    assert dead.pending_keys() == []


@LAYOUTS
def test_a_job_commit_that_hadoop_began_is_taken_back(layout: str) -> None:
    """An abort removes what the dead driver published, and nothing else."""
    dead = dead_job(layout)
    dead.put(f"{ROOT}day=17/part-9.parquet", b"another's")
    for key in list(dead.contents)[:2]:
        dead.complete(key)
    assert give_up(dead, layout).objects == 2
    assert dead.visible() == {f"{ROOT}day=17/part-9.parquet": b"another's"}
    assert dead.pending_keys() == []


def test_the_same_object_of_another_run_is_not_taken_back() -> None:
    """If a later run with fixed names wrote identical objects, they stay; a sweep finds the dead upload."""
    dead = DeadJob()
    dead.commit_magic_task(0, TASKS[0])
    key = f"{ROOT}day=18/part-00000.parquet"
    dead.upload("day=18/part-00000.parquet", (b"a",))
    dead.complete(key, number=1)
    for _ in range(2):
        give_up(dead)
        assert dead.visible() == {key: b"a"}
        assert dead.pending_keys() == [key]
    assert sweep(dead.store, dead.destination, older_than=0.0, dry_run=False, threads=0).uploads == 1
    assert dead.visible() == {key: b"a"}


def test_a_missing_upload_fails_the_commit() -> None:
    """If a lifecycle rule removed an upload, the commit fails before it begins; the table is unchanged."""
    dead = DeadJob.magic()
    dead.put(f"{ROOT}day=17/old.parquet", b"old")
    key = f"{ROOT}day=18/part-00000.parquet"
    dead.store.abort_upload(BUCKET, key, dead.uploads[key][0])
    with pytest.raises(JobFailed, match=rf"the upload of s3://{BUCKET}/{key} is gone"):
        finish(dead)
    assert dead.visible() == {f"{ROOT}day=17/old.parquet": b"old"}
    assert dead.pending_keys() == []


def test_only_the_last_run_of_the_application_counts() -> None:
    """A restarted application repeats every task, so a commit aborts the earlier run's uploads."""
    dead = DeadJob()
    dead.commit_magic_task(0, {"part-0": (b"first run",)}, run=0)
    dead.commit_magic_task(0, {"part-0": (b"second run",)}, run=1)
    assert find_hadoop_jobs(dead)[0].application_attempt == 1
    finish(dead)
    assert dead.visible() == {f"{ROOT}part-0": b"second run"}
    assert dead.pending_keys() == []


def test_a_task_whose_directory_was_not_removed_counts_once() -> None:
    """A crash between the pendingset and the clean-up of the attempt leaves every upload named twice."""
    dead = DeadJob()
    dead.commit_magic_task(0, {"part-0": (b"rows",)})
    body = dead.store.get(BUCKET, f"{MAGIC}job-{UUID}/00/{task_id(0)}.pendingset").body
    commit = json.dumps(json.loads(body)["commits"][0]).encode()
    dead.put(f"{dead.magic_attempt(0)}__base/part-0.pending", commit)
    (found,) = find_hadoop_jobs(dead)
    assert (found.uploads, found.others) == (1, 0)
    finish(dead)
    assert dead.visible() == {f"{ROOT}part-0": b"rows"}


def test_the_number_of_tasks_can_be_required() -> None:
    """A job that had not finished is not committed by accident."""
    dead = DeadJob.magic()
    before = dead.everything()
    with pytest.raises(AuditFailed, match="3 tasks committed"):
        finish(dead, expect_tasks=4)
    assert dead.everything() == before
    finish(dead, expect_tasks=3)


def test_a_job_without_committed_tasks_can_only_be_aborted() -> None:
    """Committing nothing would abort everything."""
    dead = DeadJob()
    dead.leave_magic_attempt(0, {"part-0": (b"rows",)})
    with pytest.raises(JobClosed, match="nothing to commit"):
        finish(dead)
    assert len(dead.pending_keys()) == 1
    assert give_up(dead).uploads == 1
    assert dead.pending_keys() == []


def test_a_job_without_output_is_finished() -> None:
    """A job whose tasks wrote nothing still commits."""
    dead = DeadJob()
    dead.commit_magic_task(0, {})
    assert finish(dead).counts.files == 0
    assert dead.visible() == {}


def test_an_ordinary_abort_does_not_forget_what_hadoop_left() -> None:
    """The clean-up of the magic directory, its staging, first aborts the uploads that its files name."""
    dead = DeadJob.magic()
    staging = f"s3://{BUCKET}/{MAGIC}"
    reference = JobReference(job_id=UUID, destination=f"s3://{BUCKET}/{ROOT}", staging=staging)
    assert Job.at(dead.store, reference).abort().uploads == 4
    assert dead.pending_keys() == []
    assert dead.keys(MAGIC) == []


def test_a_mapreduce_job_id_is_accepted() -> None:
    """Without Spark the id is that of the Hadoop job."""
    dead = DeadJob()
    job_id = "job_202502170001_0003"
    commit = dead.pending("part-0", (b"rows",), job=job_id)
    directory = f"{ROOT}__magic_job-{job_id}/job-{job_id}/01/"
    dead.put(f"{directory}{task_id(0)}.pendingset", dead.pendingset([commit], job=job_id))
    assert finish(dead, job_id=job_id).job_id == job_id
    assert dead.visible() == {f"{ROOT}part-0": b"rows"}


def test_any_directory_of_pendingsets_is_accepted() -> None:
    """The shared ``__magic`` directory of Hadoop before 3.3.7 is adopted by its URI and the job's id."""
    dead = DeadJob()
    commit = dead.pending("part-0", (b"rows",), job=UUID)
    directory = f"{ROOT}__magic/job-{UUID}/00/"
    dead.put(f"{directory}{task_id(0)}.pendingset", dead.pendingset([commit], job=UUID))
    finish(dead, pendingsets_uri=f"s3://{BUCKET}/{directory}")
    assert dead.store.get(BUCKET, f"{ROOT}part-0").body == b"rows"
    assert dead.pending_keys() == []


def test_pendingsets_and_records_may_be_elsewhere() -> None:
    """The caller chooses where the pendingsets are and where our records go."""
    dead = DeadJob.staging()
    for key in dead.keys(UPLOADS_DIR):
        dead.store.put("other", key, dead.store.get(BUCKET, key).body)
        dead.store.delete(BUCKET, key)
    options = JobOptions(conflict_mode="append", staging="s3://other/records/")
    finish(dead, "staging", pendingsets_uri=f"s3://other/{UPLOADS_DIR}", options=options)
    assert dead.visible() == dead.contents
    assert [info.key for info in dead.store.list_objects("other", "records/")] == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"job_id": "a/b"}, InvalidRecord),
        ({"options": JobOptions(staging=f"s3://{BUCKET}/records/")}, InvalidDestination),
        ({"pendingsets_uri": "hdfs://namenode/tmp/staging"}, InvalidDestination),
        ({"pendingsets_uri": f"s3://{BUCKET}/tmp/staging/etl/{UUID}/staging-uploads/"}, NoSuchJob),
    ],
)
def test_what_cannot_be_adopted_is_refused_at_once(
    arguments: dict[str, Any], error: type[S3CommitError]
) -> None:
    """A job with no name, a bad name, or the wrong location changes nothing."""
    dead = DeadJob.staging()
    before = dead.everything()
    with pytest.raises(error):
        finish(dead, "magic", **arguments)
    assert dead.everything() == before


@pytest.mark.seaweedfs
@pytest.mark.parametrize("end", [finish, give_up], ids=["commit", "abort"])
def test_a_real_store_shows_which_of_hadoops_uploads_are_complete(
    seaweed_store: S3Store, end: Callable[..., object]
) -> None:
    """On an S3 server: one upload was completed by the dead driver, the others are pending."""
    dead = DeadJob()
    dead.store = cast("MemoryStore", seaweed_store)
    files = {f"day=17/part-{number}.parquet": (b"rows %d" % number,) for number in range(3)}
    dead.commit_magic_task(0, files)
    dead.leave_magic_attempt(1, {"day=18/part-9.parquet": (b"a twin",)})
    dead.complete(f"{ROOT}day=17/part-1.parquet")
    end(dead)
    published = {f"{ROOT}{path}": parts[0] for path, parts in files.items()}
    assert dead.visible() == (published if end is finish else {})
    assert list(seaweed_store.list_uploads(BUCKET, ROOT)) == []
    assert dead.keys(MAGIC) == []
    for key in dead.keys(ROOT):
        seaweed_store.delete(BUCKET, key)


def written(dead: DeadJob) -> None:
    """Commit a file of ours beside what was there before the log."""
    dead.store.put(BUCKET, f"{ROOT}day=1/older", b"older")
    job = write_job(dead.destination, store=dead.store, conflict_mode="append")
    with job as writer, writer.open("day=1/ours") as file:
        file.write(b"ours")


def test_a_rollback_removes_a_file_whose_name_lacks_its_job_only_as_it_was_listed() -> None:
    """If another program has written at its key since, that object stays."""
    dead = dead_job("staging")
    written(dead)
    finish(dead, "staging")
    dead.put(TAKEN, b"newer")
    rollback(dead.store, dead.destination, to=2, threads=0)
    before = {f"{ROOT}day=1/older": b"older", TAKEN: b"newer"}
    assert {key: body for key, body in dead.visible().items() if owner_of(key) is None} == before


def test_what_hadoop_published_is_no_older_data() -> None:
    """The first entry of the log leaves it to the job, which lists it once, or deletes it."""
    for end in (finish, give_up):
        dead = DeadJob.magic()
        dead.complete(TAKEN)
        dead.put(f"{ROOT}day=18/old", b"old")
        end(dead)
        assert listed(dead, 1) == {f"{ROOT}day=18/old"}
        assert dead.visible() == {f"{ROOT}day=18/old": b"old", **(dead.contents if end is finish else {})}


def test_what_another_job_has_listed_as_older_data_stays() -> None:
    """If the log was begun before the adoption, the published files are in the table: an abort keeps them."""
    dead = DeadJob.magic()
    dead.complete(TAKEN)
    written(dead)
    before = dead.everything()
    with pytest.raises(DestinationNotEmpty, match="it is a file of the table, older than its log"):
        finish(dead)
    assert dead.everything() == before
    assert give_up(dead).objects == 0
    assert TAKEN in dead.visible()
    assert dead.pending_keys() == []


@pytest.mark.parametrize("published", [False, True])
def test_a_job_that_replaces_keeps_its_own_files(*, published: bool) -> None:
    """Its names show nobody's id, and still it does not take its files for those of other programs."""
    dead = DeadJob.magic()
    dead.put(f"{ROOT}day=18/old", b"old")
    if published:
        dead.complete(TAKEN)
    manifest = finish(dead, options=JobOptions(committer="magic", conflict_mode="replace"))
    assert dead.visible() == dead.contents
    assert manifest.replaced.files == 1


def listed(dead: DeadJob, number: int) -> set[str]:
    """Return the keys of the files that the table has after an entry."""
    home = Destination.parse(dead.destination)
    table = read_table(dead.store, home, number)
    return {file.key for file in files_in(dead.store, home, table.sources, table.live)}
