from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from airflow_s3commit import history
from airflow_s3commit.exceptions import AlreadyCommitted, InvalidRecord, JobClosed, NoSuchJob
from airflow_s3commit.protocol.inspect import verify_job as module
from airflow_s3commit.protocol.inspect.verify_job import (
    ExpectedFile,
    ExpectedFiles,
    FileDifferences,
    VerifyReport,
    verify_job,
    verify_manifest,
    verify_pending,
)
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.table import Table
from airflow_s3commit.store.base import ObjectInfo
from airflow_s3commit.store.memory import MemoryStore
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Crash, Lake, apart, named, once

FILES = {"dt=1/part-0.parquet": b"one", "dt=1/part-1.parquet": b"two", "dt=2/part-0.parquet": b"seven!!"}


def _committed(lake: Lake, files: Mapping[str, bytes] = FILES, **options: object) -> Manifest:
    return lake.sealed(files, **options).commit()


def _report(lake: Lake, manifest: Manifest) -> VerifyReport:
    context = JobContext(lake.store, Layout.of(Destination.parse(lake.destination), manifest.job_id))
    return verify_manifest(context, manifest)


def test_a_dataset_as_it_was_committed_is_complete() -> None:
    """Listings alone, one for each partition, find every file intact."""
    lake = Lake()
    lake.put({"dt=9/old.parquet": b"beside", "dt=1/_hidden": b"", "dt=1/deeper/x.parquet": b"below"})
    with apart():
        manifest = _committed(lake)
    lake.store.calls.clear()
    report = _report(lake, manifest)
    assert (report.files, report.intact, report.generation) == (3, 3, manifest.generation)
    assert report.complete
    listed = [call.key.removeprefix(ROOT) for call in lake.store.calls if call.verb == "list_objects"]
    assert sorted(listed) == ["dt=1/", "dt=2/"]
    # The list of files is looked at once, for its size; the files are not.
    assert [call.key.rpartition(".")[2] for call in lake.store.calls if call.verb == "head"] == ["jsonl"]


def test_missing_and_changed_objects_are_named() -> None:
    """A deleted and an overwritten object are each found, even one of the same size."""
    lake = Lake()
    manifest = _committed(lake)
    gone, other, longer = (ROOT + named(path) for path in FILES)
    lake.store.delete(BUCKET, gone)
    lake.store.put(BUCKET, other, b"TWO")
    lake.store.put(BUCKET, longer, b"eight!!!")
    report = _report(lake, manifest)
    assert (report.intact, report.missing) == (0, [gone])
    assert [
        (changed.key, changed.expected_size, changed.size) for changed in sorted(report.changed, key=str)
    ] == [
        (other, 3, 3),
        (longer, 7, 8),
    ]
    assert not report.complete
    assert report.to_dict()["missing_count"] == 1


def test_what_a_later_job_replaced_is_not_missing() -> None:
    """The log tells which files are needed: after a replace some are not, and the others still are."""
    lake = Lake()
    manifest = _committed(lake)
    lake.sealed({"dt=1/part-0.parquet": b"new"}, job_id=THEIRS).commit()
    report = _report(lake, manifest)
    assert (report.complete, report.intact, report.removed) == (True, 1, 2)
    lake.store.delete(BUCKET, ROOT + named("dt=2/part-0.parquet"))
    assert _report(lake, manifest).missing_count == 1


def test_a_replace_while_files_are_compared_is_not_damage() -> None:
    """The log is read again before files are said to be missing."""
    lake = Lake()
    manifest = _committed(lake)
    lake.store.before = once(
        "list_objects", "dt=2/", lambda: lake.sealed({"dt=2/a": b"a"}, job_id=THEIRS).commit()
    )
    report = _report(lake, manifest)
    assert (report.complete, report.intact, report.removed) == (True, 2, 1)


def test_data_older_than_the_log_is_verified_as_any_commit() -> None:
    """Its files are known by their ETags."""
    lake = Lake()
    lake.put({"dt=1/older.parquet": b"older", "dt=2/older.parquet": b"older"})
    lake.set_up()
    (manifest,) = history(lake.store, lake.destination)
    report = _report(lake, manifest)
    assert (report.files, report.intact, report.generation) == (2, 2, 1)
    lake.put({"dt=1/older.parquet": b"OLDER"})
    assert _report(lake, manifest).changed_count == 1


class _Encrypting(MemoryStore):
    """Lists every object with an ETag that has nothing to do with its content, as under SSE-KMS."""

    opaque = False

    def list_objects(self, *args: object, **arguments: object):  # type: ignore[no-untyped-def,override]
        for info in super().list_objects(*args, **arguments):  # type: ignore[arg-type]
            yield ObjectInfo(info.key, info.size, "0" * 32 + "-1", info.modified) if self.opaque else info


def test_an_opaque_etag_is_settled_by_the_upload_id() -> None:
    """If ETags are not MD5 sums, the upload id in the metadata tells committed objects from foreign ones."""
    lake = Lake()
    store = _Encrypting((BUCKET,), min_part_bytes=1)
    lake.store = store  # type: ignore[assignment]
    manifest = _committed(lake)
    store.opaque = True
    assert _report(lake, manifest).intact == 3
    store.put(BUCKET, ROOT + named("dt=1/part-1.parquet"), b"TWO")
    report = _report(lake, manifest)
    assert (report.intact, report.changed_count) == (2, 1)


def test_a_changed_list_of_files_is_refused() -> None:
    """A list that the manifest does not name, or a manifest with other counts, is not compared."""
    lake = Lake()
    with apart():
        manifest = _committed(lake)
    counts = msgspec.structs.replace(manifest.counts, files=4)
    with pytest.raises(InvalidRecord, match="counts 4"):
        _report(lake, msgspec.structs.replace(manifest, counts=counts))
    (key,) = lake.keys(f"{ROOT}_s3commit/lists/{OURS}")
    lake.tamper(key, cut=1)
    with pytest.raises(InvalidRecord):
        _report(lake, manifest)


def test_findings_beyond_the_named_ones_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report does not grow with the damage."""
    monkeypatch.setattr(module, "MAX_NAMED", 1)
    lake = Lake()
    manifest = _committed(lake)
    for path in FILES:
        lake.store.delete(BUCKET, ROOT + named(path))
    report = _report(lake, manifest)
    assert (report.missing_count, len(report.missing)) == (3, 1)
    lake.put(dict.fromkeys(map(named, FILES), b"another"))
    report = _report(lake, manifest)
    assert (report.changed_count, len(report.changed)) == (3, 1)


def test_a_file_of_which_only_the_size_is_known_is_compared_by_it() -> None:
    """Its list has neither an ETag nor an upload id; with another size it is changed."""
    lake, report, table = Lake(), FileDifferences(), Table()
    table.live = {"dt=1": [1]}
    lake.put({"dt=1/a": b"abc", "dt=1/b": b"abcd"})
    with ExpectedFiles(lake.context(), report, lambda: table) as expected:
        for name in "ab":
            expected.add(f"{ROOT}dt=1/{name}", ExpectedFile(3, "", "", 1))
        assert expected.compare(list(lake.store.list_objects(BUCKET, ROOT))) == []
    assert (report.by_size, report.intact, [one.key for one in report.changed]) == (1, 0, [f"{ROOT}dt=1/b"])


def test_a_job_is_verified_by_what_it_is() -> None:
    """Before its commit a job's uploads are compared, after it the files that it committed."""
    lake = Lake()
    job = lake.sealed(FILES)
    before = verify_job(lake.store, lake.destination, OURS, threads=0)
    job.commit()
    after = verify_job(lake.store, lake.destination, OURS, threads=0)
    assert (before.kind, before.sound, before.files) == ("pending", True, 3)
    assert (after.kind, after.sound, after.files) == ("committed", True, 3)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_job_with_all_its_uploads_is_sound(*, sealed: bool) -> None:
    """An open or sealed job whose uploads are all pending and whole can be committed."""
    lake = Lake()
    job = lake.set_up()
    lake.run_stage(job, FILES)
    if sealed:
        job.seal()
    before = lake.everything()
    report = verify_pending(lake.context())
    assert report.sound
    assert (report.files, report.bytes, report.pending, report.completed) == (3, 13, 3, 0)
    assert lake.everything() == before


def test_an_upload_that_was_aborted_is_missing() -> None:
    """An upload that a lifecycle rule removed is named before a commit fails on it."""
    lake = Lake()
    lake.sealed(FILES)
    gone = ROOT + named("dt=1/part-1.parquet")
    lake.store.abort_upload(BUCKET, gone, _upload_of(lake, gone))
    report = verify_pending(lake.context())
    assert not report.sound
    assert [(finding.key, finding.problem) for finding in report.missing] == [
        (gone, "the upload is gone, and its key has no object")
    ]
    lake.store.put(BUCKET, gone, b"two")
    report = verify_pending(lake.context())
    assert (report.missing_count, report.sound) == (1, False)
    assert "another writer" in report.missing[0].problem


def test_uploads_that_are_already_complete_are_recognised() -> None:
    """In a half-committed job complete uploads are known by their id, and the others are pending."""
    lake = Lake()
    job = lake.sealed(FILES)
    lake.store.after = once("complete_upload", ".parquet", Crash(), nth=2)
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    report = verify_pending(lake.context())
    assert (report.state, report.completed, report.pending, report.sound) == ("sealed", 2, 1, True)


def test_a_damaged_pendingset_does_not_hide_the_others() -> None:
    """A pendingset that was changed after its seal is reported, and the rest is still compared."""
    lake = Lake()
    lake.sealed({"dt=1/a.parquet": b"a"}, {"dt=1/b.parquet": b"b"}, {"dt=1/c.parquet": b"c"})
    lake.tamper(lake.pendingset_key("00001"), old=b'"length":1', new=b'"length":2')
    report = verify_pending(lake.context())
    assert (report.files, report.pending, report.sound) == (2, 2, False)
    assert len(report.damaged) == 1
    assert "was changed" in report.damaged[0]
    assert report.unrecorded == 1


def test_a_damaged_pendingset_of_an_open_job_is_reported() -> None:
    """The uploads that it names are not known, and those of the others are."""
    lake = Lake()
    job = lake.set_up()
    lake.run_task(job, FILES)
    lake.run_task(job, {"dt=3/a.parquet": b"a"}, task="00001")
    lake.tamper(lake.pendingset_key("00001"), cut=5)
    report = verify_pending(lake.context())
    assert (report.state, report.files, len(report.damaged), report.sound) == ("open", 3, 1, False)


def test_a_damaged_seal_is_reported() -> None:
    """If the seal itself was changed nothing can be compared, and the report says so."""
    lake = Lake()
    lake.sealed(FILES)
    lake.tamper(lake.open_key("sealed.json"), cut=1)
    report = verify_pending(lake.context())
    assert (report.state, len(report.damaged)) == ("sealed", 1)


def test_uploads_of_attempts_that_do_not_count_are_counted_separately() -> None:
    """Uploads of a twin and of a running task count as unrecorded; another job's do not count."""
    lake = Lake()
    job = lake.set_up()
    counted = lake.run_task(job, FILES)
    lake.run_task(job, FILES, attempt="2")
    other = f"{ROOT}{named('dt=1/x.parquet', THEIRS)}"
    lake.store.create_upload(BUCKET, other, metadata={}, content_type="x")
    with job.task_attempt("spark", "1", "00007", "1", threads=0) as attempt:
        attempt.open("dt=1/z.parquet")
        assert verify_pending(lake.context()).unrecorded == 1
    job.seal_stage("spark", "1", [counted])
    job.seal()
    report = verify_pending(lake.context())
    assert (report.files, report.unrecorded, report.sound) == (3, 3, True)


class _ByExactKey(MemoryStore):
    """Lists uploads by their exact key only, as MinIO does."""

    def list_uploads(self, bucket: str, prefix: str, **_: object):  # type: ignore[no-untyped-def]
        return (upload for upload in super().list_uploads(bucket, prefix) if upload.key == prefix)


def test_a_listing_that_shows_nothing_proves_nothing() -> None:
    """On a store that lists by exact key, uploads are asked for one by one and found."""
    lake = Lake()
    lake.store = _ByExactKey((BUCKET,), min_part_bytes=1)  # type: ignore[assignment]
    lake.sealed(FILES, track_pending="s3")
    assert verify_pending(lake.context()).pending == 3


def test_an_ended_job_has_nothing_pending_to_verify() -> None:
    """Committed, unknown and aborted jobs are each refused with their own error, cleaned up or not."""
    lake = Lake()
    lake.sealed(FILES).commit()
    with pytest.raises(AlreadyCommitted):
        verify_pending(lake.context())
    with pytest.raises(NoSuchJob):
        verify_pending(lake.context("never-was"))
    lake.sealed(FILES, job_id=THEIRS)
    lake.store.die("put", "/_s3commit/jobs/" + THEIRS + ".json")
    with pytest.raises(Crash):
        lake.job(THEIRS).abort()
    lake.store.rest()
    with pytest.raises(JobClosed):
        verify_pending(lake.context(THEIRS))


@pytest.mark.parametrize("verb", ["commit", "abort"])
@pytest.mark.parametrize("moment", ["sealed.json", ".pendingset", "flights/"])
def test_a_job_that_ends_while_it_is_verified_is_not_damaged(verb: str, moment: str) -> None:
    """Uploads and records that its end has removed are not missing."""
    lake = Lake()
    job = lake.sealed(FILES)
    verb_of = "list_uploads" if moment == "flights/" else "get"
    lake.store.before = once(verb_of, moment, job.commit if verb == "commit" else job.abort)
    with pytest.raises(AlreadyCommitted if verb == "commit" else JobClosed):
        verify_pending(lake.context())


def _upload_of(lake: Lake, key: str) -> str:
    return next(upload.upload_id for upload in lake.store.list_uploads(BUCKET, key))
