"""Limits of records allow the largest jobs, and nothing beyond them is read."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from airflow_s3commit.exceptions import InvalidRecord, TooLarge
from airflow_s3commit.protocol.metadata.context import fetch_listed
from airflow_s3commit.protocol.metadata.pending_uploads import tracked_uploads
from airflow_s3commit.protocol.metadata.store_check import read_time
from airflow_s3commit.protocol.model import (
    codec,
    destination,
    job,
    manifest,
    pendingset,
    sealed_job,
    table,
)
from airflow_s3commit.protocol.model.codec import decode_lines, encode, from_plain, largest
from airflow_s3commit.protocol.model.layout import list_key
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.pendingset import PendingUpload, UploadExtra
from airflow_s3commit.protocol.model.sealed_job import ColumnStatistics, CommittedTask, Counts, SealedTask
from airflow_s3commit.protocol.model.table import Commit, UnownedObject
from airflow_s3commit.protocol.steps import checkpoint
from airflow_s3commit.protocol.steps.fold import manifest_files, read_manifest
from tests.protocol.building import BUCKET, OURS, THEIRS, Lake, apart
from tests.protocol.model.test_records import of_job

KEY = "k" * 1_000

#: The most that our own writers record of a file's columns: 32 of them, bounds of up to 128 characters.
STATISTICS = {
    f"a_column_with_a_name_{number:02d}": ColumnStatistics(
        values=10**9, nulls=10**6, least="2013-01-01T00:00:00.000000", greatest="2013-12-31T23:59:59.999999"
    )
    for number in range(32)
}
FILE = PendingUpload(
    uri=f"s3://lake/{KEY}", uploadId="u" * 200, bucket="lake", destinationKey=KEY, etags=["e" * 32],
    created=10**12, saved=10**12, date="Sun Nov 22 15:00:00 UTC 2026", jobId=OURS, taskId="t" * 40,
    length=5 * 2**40, partCount=1, s3commit=UploadExtra(upload=OURS, rows=10**9),
)  # fmt: skip


def weight(record: msgspec.Struct) -> int:
    """Return the bytes that one more record of this kind adds to a list."""
    return len(msgspec.json.encode(record)) + 1


class TestRoom:
    """The largest jobs stay below every limit."""

    def test_a_task_attempt(self) -> None:
        """A pendingset holds 300,000 files with the longest keys, or 100,000 with statistics as well."""
        full = msgspec.structs.replace(FILE, s3commit=UploadExtra(upload=OURS, rows=1, statistics=STATISTICS))
        assert 300_000 * weight(FILE) < codec.LARGEST["PendingSet"]
        assert 100_000 * weight(full) < codec.LARGEST["PendingSet"]

    def test_an_upload_of_all_parts(self) -> None:
        """An upload of 10,000 parts can be recorded, in Hadoop's spelling with checksums too."""
        whole = msgspec.structs.replace(FILE, etags=["e" * 68] * 10_000)
        assert len(encode(whole)) + 10_000 * 200 < codec.LARGEST["PendingUpload"]

    def test_seals(self) -> None:
        """100,000 partitions with long names, 1,000 with statistics, and a million tasks have room."""
        counts = Counts(files=10**6, bytes=10**18, rows=10**12)
        partition = weight(counts) + len(KEY) + 4
        with_columns = partition + weight(msgspec.structs.replace(counts, columns=STATISTICS))
        task = weight(SealedTask(task="0" * 20, attempt="1" * 20, counts=counts, sha256="d" * 64))
        assert 100_000 * partition + 1_000 * with_columns < codec.LARGEST["SealRecord"]
        assert 100_000 * partition + 10**6 * task < codec.LARGEST["StageSealRecord"]

    def test_an_entry_of_the_log(self) -> None:
        """An entry has room for the totals of the largest seal, and for 50,000 objects that it takes."""
        taken = weight(UnownedObject(key=KEY, etag="e" * 40, size=2**60))
        assert codec.LARGEST["SealRecord"] + 50_000 * taken < codec.LARGEST["Entry"]

    def test_lists(self) -> None:
        """A list of files has a million of them."""
        entry = FileEntry(
            key=KEY, size=2**60, etag="e" * 40, partition=KEY, upload=OURS, statistics=STATISTICS
        )
        assert weight(entry) < codec.LINE_BYTES
        assert 10**6 * weight(entry) < codec.LIST_BYTES


class TestTooLarge:
    """A record above its kind's limit is refused by its listed size or the answer's headers."""

    @pytest.fixture
    def lake(self) -> Lake:
        """Return a lake with a sealed job, and a committed one."""
        lake = Lake()
        lake.sealed({"dt=1/a.csv": b"1"}, job_id=THEIRS).commit()
        lake.sealed({"dt=1/b.csv": b"22"})
        return lake

    def test_a_record_is_refused_by_name_and_size(self, lake: Lake) -> None:
        """A job's record of 9 MiB is an invalid record, whose place and size are named."""
        key = lake.open_key()
        lake.store.put(BUCKET, key, bytes(9 * codec.MIB))
        with pytest.raises(InvalidRecord, match=rf"s3://{BUCKET}/{key} has {9 * codec.MIB} bytes"):
            lake.job().commit()

    def test_few_large_records_are_held_at_once(self, lake: Lake) -> None:
        """Of records that are large together only some are read before the first is used."""
        store, context = lake.store, lake.context()
        for number in range(4):
            lake.put({f"big/{number}": bytes(30 * codec.MIB)})
        listed = list(store.list_objects(BUCKET, f"{lake.prefix}big/"))
        store.calls.clear()
        found = fetch_listed(store, context.bucket, listed, lambda _: codec.GIB)
        next(iter(found))
        assert len([call.key for call in store.calls if call.verb == "get"]) <= 2

    def test_uploads_of_a_long_record_are_unknown(self, lake: Lake) -> None:
        """A ``.pending`` beyond its limit counts as unreadable, and hides no other record."""
        tasks = lake.pendingset_key().rpartition("/")[0]
        lake.store.put(BUCKET, f"{tasks}/x_1/000001.pending", bytes(17 * codec.MIB))
        uploads = list(tracked_uploads(lake.context()))
        assert [upload is None for upload in uploads] == [False, True]

    def test_the_time_is_read_from_small_records(self, lake: Lake) -> None:
        """The store's time is read with a small record, not with a ``_SUCCESS`` that is too large."""
        lake.put({"_SUCCESS": bytes(5 * codec.MIB)})
        lake.store.calls.clear()
        assert read_time(lake.store, lake.context().layout.destination) is not None

    def test_a_marker_that_is_too_long_does_no_harm_after_the_commit(self, lake: Lake) -> None:
        """A ``_SUCCESS`` that was blown up while a commit ran is overwritten."""
        lake.store.before = lambda call: (
            lake.put({"_SUCCESS": bytes(5 * codec.MIB)})
            if call.verb == "put" and "/log/" in call.key
            else None
        )
        lake.job().commit()
        assert OURS.encode() in lake.get(f"{lake.prefix}_SUCCESS")


class TestLines:
    """Lists of records are checked line by line."""

    @pytest.mark.parametrize(
        "line",
        [
            b"{",
            b"null",
            b'{"key": 1}',
            b'{"key":"k","size":-1,"etag":"e"}',
            b"[" * 100_000,
        ],
    )
    def test_an_invalid_line_is_named(self, line: bytes) -> None:
        """An unreadable line is named by its number, and the list by its URI."""
        good = msgspec.json.encode(UnownedObject(key="k", size=1, etag="e"))
        with pytest.raises(InvalidRecord, match="line 2 of s3://lake/list"):
            list(decode_lines(UnownedObject, [good, line], "s3://lake/list"))

    def test_a_manifest_with_an_invalid_list_is_refused(self) -> None:
        """A list with the right digest but an invalid line is refused like a record."""
        lake = Lake()
        with apart():
            lake.sealed({"dt=1/a.csv": b"1"}).commit()
        home = lake.context().layout.destination
        manifest = read_manifest(lake.store, home, OURS)
        lake.store.put(BUCKET, list_key(home, OURS, manifest.files_sha256), b'{"key": 1}\n')
        with pytest.raises(InvalidRecord, match="is not the list"):
            list(manifest_files(lake.store, manifest))
        digest = hashlib.sha256(b'{"key": 1}\n').hexdigest()
        key = list_key(home, OURS, digest)
        lake.store.put(BUCKET, key, b'{"key": 1}\n')
        with pytest.raises(InvalidRecord, match=f"line 1 of s3://{BUCKET}/{key}"):
            list(manifest_files(lake.store, msgspec.structs.replace(manifest, files_sha256=digest)))


class TestPlain:
    @pytest.mark.parametrize(
        "changes",
        [
            {"files": -1},
            {"files": 2**63},
            {"bytes": 1e308},
            {"task": "\ud800"},
            {"task": "x" * 10**6},
            {"sha256": None},
        ],
    )
    def test_oversized_values_from_an_xcom_are_refused(self, changes: dict[str, object]) -> None:
        """Plain values beyond a limit, or that no record could hold, are refused with a short message."""
        task = CommittedTask(
            stage="s",
            stage_attempt="1",
            task="0",
            attempt="1",
            location="s3://b/k",
            files=1,
            bytes=1,
            sha256="d",
        )
        with pytest.raises(InvalidRecord) as refusal:
            from_plain(CommittedTask, task.to_dict() | changes, "a committed task")
        assert len(str(refusal.value)) < 2_000


def test_an_oversized_record_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is too large to be read again is refused when it is saved."""
    monkeypatch.setattr(codec, "LARGEST", {**codec.LARGEST, "Entry": 1_000_000})
    unowned = [UnownedObject(key="k" * 8_000, etag="e", size=1)] * 124
    commit = Commit(
        mode="replace", takes="everything", unowned=unowned, partitions={}, counts=Counts(), files_sha256="d"
    )
    assert len(encode(of_job("commit", commit=commit))) < 1_000_000
    commit = msgspec.structs.replace(commit, unowned=unowned * 2)
    with pytest.raises(TooLarge, match="a Entry that is to be saved"):
        encode(of_job("commit", commit=commit))


def test_every_record_has_a_limit() -> None:
    """The table only names existing types, and none is read without a bound."""
    kinds = {
        name: value
        for module in (destination, table, pendingset, job, manifest, sealed_job, checkpoint)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, msgspec.Struct)
    }
    assert codec.LARGEST.keys() <= kinds.keys()
    assert all(largest(kind) > 0 for name, kind in kinds.items() if name.endswith(("Record", "Line")))
