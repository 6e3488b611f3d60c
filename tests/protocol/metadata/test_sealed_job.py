"""What was sealed is read again only if it is still the same, byte for byte."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from airflow_s3commit.exceptions import InvalidRecord, JobClosed, Unavailable
from airflow_s3commit.protocol.metadata.sealed_job import (
    committed_attempts,
    each_pendingset,
    find_seal,
    load_seal,
    load_stage_seal,
    sealed_tasks,
)
from airflow_s3commit.protocol.model.codec import MIB, encode, sha256
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload, TaskExtra, UploadExtra
from airflow_s3commit.protocol.model.sealed_job import Counts, SealedTask, SealRecord, StageSealRecord
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Lake, named, once

A, B = {"dt=1/a": b"1"}, {"dt=2/b": b"22"}


def sealed_lake(**options: Any) -> tuple[Lake, SealRecord]:
    """Return a lake with old data and a sealed job of two tasks."""
    lake = Lake()
    lake.put({"dt=1/old": b"old", "_SUCCESS": b"marker"})
    lake.sealed(A, B, **options)
    return lake, load_seal(lake.context())


def refused(lake: Lake, error: type[Exception], step: Callable[[], object], match: str | None = None) -> None:
    """Check that a step is refused with this type of error and changes nothing."""
    before = lake.everything()
    with pytest.raises(error, match=match):
        step()
    assert lake.everything() == before


def read(lake: Lake, seal: SealRecord) -> list[str]:
    """Read every pendingset that was sealed and return the keys in them."""
    return [
        upload.destinationKey
        for _, pendingset in each_pendingset(lake.context(), sealed_tasks(lake.context(), seal))
        for upload in pendingset.commits
    ]


def test_what_was_sealed_is_read() -> None:
    """Pendingsets come in the order of their seal, with their task."""
    lake, seal = sealed_lake()
    tasks = sealed_tasks(lake.context(), seal)
    assert [task.task for task, _ in each_pendingset(lake.context(), tasks)] == ["00000", "00001"]
    assert len(read(lake, seal)) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"jobId": "another"}, {"jobId": ""}, {"jobId": None}, {"s3commit": None}, {"stage": "s"},
        {"stage_attempt": "2"}, {"task": "00005"}, {"attempt": "13"},
    ],
)  # fmt: skip
def test_a_pendingset_in_another_s_place_is_refused(fields: dict[str, Any]) -> None:
    """A pendingset is accepted only for the job and task attempt that it was written for."""
    lake, seal = sealed_lake()
    ((key, sealed), _) = sealed_tasks(lake.context(), seal)
    known = json.loads(lake.store.get(BUCKET, key, limit=MIB).body)
    own = fields.keys() & {"jobId", "s3commit"}
    changed = {**known, **(fields if own else {"s3commit": {**known["s3commit"], **fields}})}
    body = json.dumps(changed).encode()
    lake.store.put(BUCKET, key, body)
    task = msgspec.structs.replace(sealed, sha256=sha256(body))
    with pytest.raises(InvalidRecord, match=f"{key} is not the pendingset of task 00000"):
        list(each_pendingset(lake.context(), [(key, task)]))


def test_a_pendingset_of_another_stage_attempt_is_none_of_this_one() -> None:
    """Copied there, it would count for a writer that keeps no results of its own."""
    lake = Lake()
    lake.run_task(lake.set_up(track_pending="s3"), A, stage_attempt="2")
    other = lake.pendingset_key().replace("/spark-1/", "/spark-2/")
    lake.store.put(BUCKET, lake.pendingset_key(), lake.get(other))
    assert [one.task for one in committed_attempts(lake.context(), "spark", "2")] == ["00000"]
    with pytest.raises(InvalidRecord, match="is not a pendingset of stage spark-1"):
        committed_attempts(lake.context(), "spark", "1")


def test_a_seal_is_known_by_its_digest() -> None:
    """The seal with the expected SHA-256 is read; any other is refused, by every step that is given one."""
    lake, seal = sealed_lake()
    stored = find_seal(lake.context())
    assert stored is not None
    assert load_seal(lake.context(), stored.sha256) == seal == stored.record
    for step in (
        lambda: load_seal(lake.context(), "0" * 64),
        lambda: lake.job().commit(seal_sha256="0" * 64),
        lambda: lake.job().complete_part(0, 1, seal_sha256="0" * 64),
    ):
        refused(lake, InvalidRecord, step, "is not the seal that was handed over")


def test_a_file_named_as_another_job_s_is_not_committed() -> None:
    """A task that forges its pendingset and its stage's seal cannot write over a file of the table."""
    lake = Lake()
    lake.sealed(A, job_id=THEIRS, conflict_mode="append").commit()
    (task,) = lake.run_stage(lake.set_up(conflict_mode="append"), A)
    forged = lake.forge_task({ROOT + named("dt=1/a", THEIRS): BUCKET})
    stage_seal = lake.context().layout.stage_seal("spark", "1")
    lake.tamper(stage_seal, old=task.sha256.encode(), new=forged.sha256.encode())
    lake.job().seal()
    before = lake.data()
    with pytest.raises(InvalidRecord, match="does not have the job's id in its name"):
        lake.job().commit()
    assert lake.data() == before


def test_a_missing_seal_says_so() -> None:
    """Without a seal the message says what to do."""
    lake = Lake()
    lake.set_up()
    with pytest.raises(JobClosed, match="seal it first, or abort it"):
        load_seal(lake.context())


def test_another_job_s_seal_is_refused() -> None:
    """A seal copied from another job is refused by every step, and nothing changes."""
    lake, _ = sealed_lake()
    lake.sealed(B, job_id=THEIRS)
    lake.store.put(BUCKET, lake.open_key("sealed.json"), lake.get(lake.open_key("sealed.json", THEIRS)))
    for step in (lake.job().preview, lake.job().commit, lambda: lake.job().complete_part(0, 1)):
        refused(lake, InvalidRecord, step, f"is of job {THEIRS}")


@each(
    ("record", "old", "new", "cut"),
    [
        (f"{OURS}/sealed.json", b"", b"", 1),
        (f"{OURS}/sealed.json", b"", b"", 1 << 20),
        (f"{OURS}/sealed.json", b'"sha256":"', b'"sha256":"0', 0),
        ("spark-1/sealed.json", b'"nonce":"', b'"nonce":"x', 0),
        ("spark-1/sealed.json", b'"task":"00001"', b'"task":"00002"', 0),
        ("spark-1/sealed.json", b"", b"", 30),
        ("spark-1/sealed.json", b"", b"", 1 << 20),
        ("00000_1.pendingset", b'"length":1', b'"length":2', 0),
        ("00000_1.pendingset", b"dt=1/a", b"dt=9/a", 0),
    ],
)  # fmt: skip
def test_what_changed_after_the_seal_is_refused(record: str, old: bytes, new: bytes, cut: int) -> None:
    """A seal, stage seal or pendingset that was changed or cut short stops the commit before it begins."""
    lake, _ = sealed_lake()
    (key,) = [key for key in lake.keys("") if key.endswith(record)]
    lake.tamper(key, old=old, new=new, cut=cut)
    refused(lake, InvalidRecord, lake.job().commit)
    refused(lake, InvalidRecord, lambda: lake.job().complete_part(0, 1))
    if f"{OURS}/" not in record:
        state = lake.job().state()
        assert state is not None
        assert state.state == "sealed"


@each("change", ["cut", "empty", "gone"])
def test_what_changed_behind_the_first_files_aborts_the_job(change: str) -> None:
    """A pendingset that is found changed after other files were published undoes them, and the job."""
    lake, _ = sealed_lake()
    before = lake.visible()
    key = lake.pendingset_key("00001")
    if change == "gone":
        lake.store.delete(BUCKET, key)
    else:
        lake.tamper(key, cut=1 if change == "cut" else 1 << 20)
    with pytest.raises(InvalidRecord, match=r"00001_1\.pendingset"):
        lake.job().commit()
    assert lake.visible() == before
    assert (lake.pending(), lake.staging()) == ([], [])
    assert [entry["kind"] for entry in lake.entries()] == ["commit", "abandon"]


@pytest.mark.parametrize("record", [f"{OURS}/sealed.json", "spark-1/sealed.json", "00000_1.pendingset"])
def test_what_is_missing_after_the_seal_is_refused(record: str) -> None:
    """A seal, stage seal or pendingset that is gone stops the commit before it begins."""
    lake, _ = sealed_lake()
    (key,) = [key for key in lake.keys("") if key.endswith(record)]
    lake.store.delete(BUCKET, key)
    if record == f"{OURS}/sealed.json":
        refused(lake, JobClosed, lake.job().commit, "is not sealed")
    else:
        refused(lake, InvalidRecord, lake.job().commit, "missing")


def test_swapped_pendingsets_are_refused() -> None:
    """Two pendingsets that traded places are refused, although their content is unchanged."""
    lake, _ = sealed_lake()
    first, second = lake.pendingset_key("00000"), lake.pendingset_key("00001")
    bodies = lake.get(first), lake.get(second)
    lake.store.put(BUCKET, first, bodies[1])
    lake.store.put(BUCKET, second, bodies[0])
    refused(lake, InvalidRecord, lake.job().commit)


def test_a_second_pendingset_of_a_task_does_not_count() -> None:
    """A pendingset that is not sealed is not read for publishing, and its uploads are aborted."""
    lake, _ = sealed_lake()
    body = lake.get(lake.pendingset_key()).replace(b'"attempt":"1"', b'"attempt":"2"')
    lake.store.put(BUCKET, lake.pendingset_key(attempt="2"), body.replace(b"dt=1/a", b"dt=7/a"))
    lake.job().commit()
    assert sorted(lake.data()) == sorted(f"{path}-{OURS}" for path in ("dt=1/a", "dt=2/b"))


def test_output_replaced_together_with_what_names_it_is_refused() -> None:
    """A forged pendingset and a stage seal that names it do not match the job's seal."""
    lake, _ = sealed_lake()
    key = lake.pendingset_key()
    lake.tamper(key, old=b'"created":', new=b'"text":"x","created":')
    stage = lake.context().layout.stage_seal("spark", "1")
    seal = json.loads(lake.get(stage))
    seal["tasks"][0] |= {"sha256": sha256(lake.get(key))}
    lake.store.put(BUCKET, stage, json.dumps(seal).encode())
    refused(lake, InvalidRecord, lake.job().commit, "was changed after it was written")


@pytest.mark.parametrize("record", ["spark-1/sealed.json", "00000_1.pendingset"])
def test_the_digest_alone_catches_a_forged_etag(record: str) -> None:
    """Other bytes with the ETag that a seal names are refused by their SHA-256."""
    lake, _ = sealed_lake()
    (key,) = [key for key in lake.keys("") if key.endswith(record)]
    objects = lake.store.inner._buckets[BUCKET].objects
    objects[key] = replace(objects[key], body=lake.get(key) + b" ")
    before = lake.data()
    with pytest.raises(InvalidRecord, match="its SHA-256 is not"):
        lake.job().commit()
    assert lake.data() == before


def test_a_store_that_fails_is_not_a_tampered_record() -> None:
    """An error of the store while reading is raised unchanged."""
    lake, seal = sealed_lake()
    lake.store.before = once("get", ".pendingset", Unavailable("slow down"))
    with pytest.raises(Unavailable):
        read(lake, seal)


def test_a_stage_seal_without_digest_is_checked_too() -> None:
    """With or without an expected SHA-256, a stage's seal must belong to that job and stage."""
    lake, _ = sealed_lake()
    stored = load_stage_seal(lake.context(), "spark", "1", None)
    assert load_stage_seal(lake.context(), "spark", "1", stored.sha256) == stored
    with pytest.raises(InvalidRecord, match="was not sealed"):
        load_stage_seal(lake.context(), "spark", "2", None)
    with pytest.raises(InvalidRecord, match="changed after"):
        load_stage_seal(lake.context(), "spark", "1", "0" * 64)


def big_set(lake: Lake, files: int) -> Any:
    """Upload many tiny files, and commit them as one task; return its `CommittedTask`."""
    store, commits = lake.store.inner, []
    for number in range(files):
        key = f"{ROOT}dt={number % 30}/part-{number:06d}-{OURS}.parquet"
        upload = f"u-{number}"
        metadata = {"s3commit-job": OURS, "s3commit-upload": upload}
        upload_id = store.create_upload(BUCKET, key, metadata=metadata, content_type="x")
        etag = store.upload_part(BUCKET, key, upload_id, 1, b"x")
        commits.append(
            PendingUpload(
                uri=f"s3://{BUCKET}/{key}", uploadId=upload_id, bucket=BUCKET, destinationKey=key,
                etags=[etag], length=1, partCount=1, jobId=OURS, s3commit=UploadExtra(upload=upload, rows=1),
            )
        )  # fmt: skip
    extra = TaskExtra(stage="spark", stage_attempt="1", task="00000", attempt="1", nonce="n")
    return lake.place_task(encode(PendingSet(jobId=OURS, commits=commits, s3commit=extra)), files)


@each("place", ["elsewhere", "other bucket"])
def test_a_forged_stage_seal_reaches_no_further(place: str) -> None:
    """Whoever may write in the staging makes no commit complete an upload outside of the destination."""
    lake = Lake()
    job = lake.set_up()
    bucket, prefix = (BUCKET, "elsewhere/") if place == "elsewhere" else ("other", ROOT)
    key = f"{prefix}a-{OURS}.parquet"
    lake.store.create_upload(bucket, key, metadata={}, content_type="x")
    forged, counts = lake.forge_task({key: bucket}), Counts(files=1, bytes=1, rows=1)
    layout = lake.context().layout
    tasks = [SealedTask(task="00000", attempt="1", counts=counts, sha256=forged.sha256)]
    seal = StageSealRecord(
        **layout.place, stage="spark", stage_attempt="1", tasks=tasks, counts=counts,
        partitions={"": counts}, created=0, nonce="forged",
    )  # fmt: skip
    lake.store.put(BUCKET, layout.stage_seal("spark", "1"), encode(seal))
    job.seal()
    with pytest.raises(InvalidRecord, match="outside the destination"):
        job.commit()
    assert not [call for call in lake.store.calls if call.verb == "complete_upload"]
    lake.job().abort()
    assert len(list(lake.store.list_uploads(bucket, prefix))) == 1


@pytest.mark.slow
def test_a_task_of_ten_thousand_files_is_committed() -> None:
    """A pendingset of 10,000 entries works from seal to manifest, and is held only once."""
    lake, files = Lake(), 10_000
    job = lake.set_up()
    task = big_set(lake, files)
    size = len(lake.get(lake.pendingset_key()))
    tracemalloc.start()
    try:
        job.seal_stage("spark", "1", [task])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * size
    job.seal()
    manifest = job.commit()
    assert (manifest.counts.files, manifest.counts.rows, len(manifest.partitions)) == (files, files, 30)
    assert len(lake.data()) == files
    assert lake.pending() == []
    assert lake.staging() == []
