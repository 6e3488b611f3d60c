"""The account of a commit: complete, provable, and readable by Hadoop's tools."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.steps.file_list import WITHIN_BYTES
from airflow_s3commit.protocol.metadata.log import read_entry
from airflow_s3commit.protocol.metadata.manifests import (
    latest_manifest,
    manifest_files,
    read_manifest,
    read_success,
)
from airflow_s3commit.protocol.model.codec import decode
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.sealed_job import Counts
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, apart, named, once
from tests.protocol.model.test_records import golden

HERE = Destination(BUCKET, ROOT)
NEW = {"dt=1/a": b"1", "dt=1/b": b"22", "c": b"333"}
SUCCESS = f"{ROOT}_SUCCESS"
LIST = f"{HOME}manifests/{OURS}.jsonl"


def committed(**options: str) -> tuple[Lake, ManifestRecord]:
    """Commit a job of two tasks over some old data."""
    lake = Lake()
    lake.put({"dt=1/old": b"old!"})
    job = lake.set_up(said={"dag_id": "nightly"}, **options)
    lake.run_stage(job, {"dt=1/a": b"1", "dt=1/b": b"22"}, {"c": b"333"})
    job.seal()
    return lake, job.commit()


def test_the_manifest_adds_up_what_was_committed() -> None:
    """Counts, partitions, what was replaced and who asked for it are in the manifest."""
    lake, manifest = committed()
    assert manifest.job_id == OURS
    assert manifest.destination == lake.destination
    assert (manifest.committer, manifest.conflict_mode) == ("magic", "replace")
    counts = manifest.counts
    assert (counts.files, counts.bytes, counts.rows) == (3, 6, 6)
    assert {name: part.files for name, part in manifest.partitions.items()} == {"": 1, "dt=1": 2}
    assert manifest.replaced == Counts(files=1, bytes=4, rows=None)
    assert manifest.context == {"dag_id": "nightly"}
    assert manifest.committed == int(lake.clock.time() * 1000)
    assert read_manifest(lake.store, HERE, OURS) == latest_manifest(lake.store, HERE) == manifest


def test_the_list_names_every_file_as_it_is() -> None:
    """Each file is listed with the key, size, ETag and upload of its actual object."""
    lake, manifest = committed()
    entries = list(manifest_files(lake.store, manifest))
    assert [entry.key.removeprefix(ROOT) for entry in entries] == [named(path) for path in NEW]
    for entry in entries:
        info = lake.store.head(BUCKET, entry.key)
        assert (info.size, info.etag) == (entry.size, entry.etag)
        assert info.metadata["s3commit-upload"] == entry.upload
        assert entry.rows == entry.size
    assert [entry.partition for entry in entries] == ["dt=1", "dt=1", ""]


@pytest.mark.parametrize("is_apart", [False, True])
def test_an_empty_job_has_an_empty_list(is_apart: bool) -> None:
    """A job without output has a manifest whose list of files is empty, within it or as an object."""
    lake = Lake()
    with apart(is_apart):
        manifest = lake.sealed({}).commit()
    assert list(manifest_files(lake.store, manifest)) == []
    assert manifest.listed == (None if is_apart else b"")
    assert (lake.get(LIST) if is_apart else LIST in lake.keys("")) == (b"" if is_apart else False)


@apart()
def test_a_long_list_goes_up_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that is larger than a part is written as several, with the same content."""
    monkeypatch.setattr("airflow_s3commit.protocol.lifecycle.manifest._PART_BYTES", 700)
    lake = Lake()
    manifest = lake.sealed({f"dt={n % 3}/{n:03d}": b"x" * n for n in range(50)}).commit()
    assert lake.store.head(BUCKET, LIST).etag.partition("-")[2] > "1"
    assert manifest.files_sha256 == hashlib.sha256(lake.get(LIST)).hexdigest()
    assert [entry.size for entry in manifest_files(lake.store, manifest)] == list(range(50))
    assert lake.pending() == []


@apart()
def test_a_list_whose_writer_died_leaves_nothing_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies while the list goes up in parts leaves no upload of it behind."""
    monkeypatch.setattr("airflow_s3commit.protocol.lifecycle.manifest._PART_BYTES", 300)
    for nth in (1, 2, 3):
        lake = Lake()
        job = lake.sealed({f"{n:03d}": b"x" for n in range(10)})
        lake.store.die("upload_part", ".jsonl", nth=nth, after=True)
        with pytest.raises(Crash):
            job.commit()
        lake.store.rest()
        assert lake.pending() == [LIST]
        assert len(list(manifest_files(lake.store, lake.job().commit()))) == 10
        assert lake.pending() == []


@pytest.mark.parametrize(
    ("is_apart", "ending"),
    [
        *((True, ending) for ending in (".jsonl", f"{OURS}.json", "_SUCCESS", "state.json")),
        *((False, ending) for ending in (f"{1:020d}.json", f"{2:020d}.json", f"{OURS}.json", "_SUCCESS")),
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_another_process_writes_the_same_list(ending: str, is_apart: bool, after: bool) -> None:
    """A process that dies at any of these writes is followed by one with the same list and manifest."""
    with apart(is_apart):
        plain, expected = committed()
        lake = Lake()
        lake.put({"dt=1/old": b"old!"})
        job = lake.set_up(said={"dag_id": "nightly"})
        lake.run_stage(job, {"dt=1/a": b"1", "dt=1/b": b"22"}, {"c": b"333"})
        job.seal()
        lake.store.die("put", ending, after=after)
        with pytest.raises(Crash):
            job.commit()
        lake.store.rest()
        assert is_apart or LIST not in lake.keys("")
        manifest = lake.job().commit()
        assert manifest == lake.job().commit()
    assert manifest.listed == expected.listed
    assert not is_apart or lake.get(LIST) == plain.get(LIST)
    assert lake.keys(f"{HOME}manifests/") == plain.keys(f"{HOME}manifests/")
    assert (manifest.counts, manifest.partitions) == (expected.counts, expected.partitions)
    assert lake.data() == plain.data()


def test_an_existing_manifest_is_kept() -> None:
    """A second process that finishes the commit keeps the first one's manifest."""
    lake = Lake()
    job = lake.sealed(NEW)
    lake.store.die("put", f"{OURS}.json", after=True)
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    lake.clock.advance(3600)
    first = lake.get(f"{HOME}manifests/{OURS}.json")
    lake.job().commit()
    assert lake.get(f"{HOME}manifests/{OURS}.json") == first


def test_success_is_a_summary() -> None:
    """``_SUCCESS`` is in Hadoop's format, counts what was committed, and points to the manifest."""
    lake, manifest = committed()
    success = read_success(lake.store, HERE)
    assert success.success
    assert (success.jobId, success.committer) == (OURS, "magic")
    assert success.manifest_uri == f"s3://{BUCKET}/{HOME}manifests/{OURS}.json"
    assert success.filenames == [f"/{ROOT}{named(path)}" for path in NEW]
    assert success.timestamp == manifest.committed
    assert success.diagnostics["dag_id"] == "nightly"
    assert success.iostatistics is not None
    counters = success.iostatistics.counters
    assert counters["committer_commits_completed"] == 3
    assert counters["committer_bytes_committed"] == 6
    assert counters["committer_jobs_completed"] == 1


def test_success_names_at_most_a_hundred_files() -> None:
    """However many files there are, the marker stays small; the manifest has all of them."""
    lake = Lake()
    manifest = lake.sealed({f"{n:03d}": b"x" for n in range(101)}).commit()
    assert len(read_success(lake.store, HERE).filenames) == 100
    assert len(list(manifest_files(lake.store, manifest))) == 101


def test_a_context_cannot_hide_the_manifest() -> None:
    """Nothing in the orchestrator's context can replace the manifest's location."""
    lake = Lake()
    job = lake.set_up(said={"s3commit.manifest": "s3://elsewhere/x"})
    lake.run_stage(job, NEW)
    job.seal()
    job.commit()
    assert read_success(lake.store, HERE).manifest_uri == f"s3://{BUCKET}/{HOME}manifests/{OURS}.json"


def test_each_commit_keeps_its_manifest() -> None:
    """A later job writes its own manifest and marker, and the earlier manifest stays."""
    lake, first = committed()
    second = lake.sealed({"dt=1/x": b"x"}, job_id=THEIRS).commit()
    assert latest_manifest(lake.store, HERE) == second
    assert read_manifest(lake.store, HERE, OURS) == first
    assert read_manifest(lake.store, HERE, THEIRS) == second


def test_without_a_commit_there_is_nothing_to_read() -> None:
    """Before a commit neither marker nor manifest exists."""
    lake = Lake()
    lake.sealed(NEW)
    for read in (
        lambda: read_success(lake.store, HERE),
        lambda: latest_manifest(lake.store, HERE),
        lambda: read_manifest(lake.store, HERE, OURS),
    ):
        with pytest.raises(NoSuchKey):
            read()


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"PAR1", b'{"name":"something/1"}'])
def test_another_marker_is_refused(body: bytes) -> None:
    """The empty marker of the classic committer, and any other file of that name, is refused."""
    lake = Lake()
    lake.store.put(BUCKET, SUCCESS, body)
    for read in (read_success, latest_manifest):
        with pytest.raises(InvalidRecord, match="_SUCCESS"):
            read(lake.store, HERE)


def test_a_marker_of_hadoop_leads_to_no_manifest() -> None:
    """A marker that Hadoop wrote is read, and has no manifest to follow."""
    lake = Lake()
    lake.store.put(BUCKET, SUCCESS, golden("hadoop-success-1"))
    assert read_success(lake.store, HERE).committer == "directory"
    with pytest.raises(InvalidRecord, match="written by directory"):
        latest_manifest(lake.store, HERE)


@pytest.mark.parametrize("job_id", ["../../other", "", "a/b"])
def test_a_forged_marker_leads_nowhere(job_id: str) -> None:
    """The log is read whatever job a marker names; a marker without a generation is another program's."""
    lake, manifest = committed()
    marker = {**json.loads(lake.get(SUCCESS)), "jobId": job_id}
    lake.store.put(BUCKET, SUCCESS, json.dumps(marker).encode())
    assert latest_manifest(lake.store, HERE) == manifest
    del marker["diagnostics"]["s3commit.generation"]
    lake.store.put(BUCKET, SUCCESS, json.dumps(marker).encode())
    with pytest.raises(InvalidRecord):
        latest_manifest(lake.store, HERE)


@pytest.mark.parametrize("cut", [1, 100, 1 << 20])
@apart()
def test_a_list_that_changed_is_refused(cut: int) -> None:
    """A list of files that the manifest does not name is refused before its first file."""
    lake, manifest = committed()
    lake.tamper(LIST, cut=cut)
    with pytest.raises(InvalidRecord, match="is not the list"):
        next(manifest_files(lake.store, manifest))
    lake.store.delete(BUCKET, LIST)
    with pytest.raises(NoSuchKey):
        next(manifest_files(lake.store, manifest))


@pytest.mark.parametrize("cut", [1, 100, 1 << 20])
def test_a_manifest_that_is_cut_short_is_refused(cut: int) -> None:
    """An unreadable manifest is refused, even as the proof of a commit."""
    lake, _ = committed()
    lake.tamper(f"{HOME}manifests/{OURS}.json", cut=cut)
    before = lake.everything()
    for read in (
        lambda: read_manifest(lake.store, HERE, OURS),
        lambda: lake.job().commit(),
        lambda: lake.job().abort(),
        lake.set_up,
    ):
        with pytest.raises(InvalidRecord):
            read()
    assert lake.everything() == before


def test_an_older_job_does_not_take_the_marker_back() -> None:
    """A process that slept before it wrote the marker leaves a newer job's marker unchanged."""
    lake = Lake()
    job = lake.sealed(NEW, conflict_mode="append")
    theirs = lake.sealed({"x": b"x"}, job_id=THEIRS, conflict_mode="append")

    def sleep() -> None:
        lake.store.rest()
        lake.job(owner="another process").commit()
        theirs.commit()

    lake.store.before = once("put", "_SUCCESS", sleep)
    manifest = job.commit()
    assert manifest.counts.files == 3
    assert read_success(lake.store, HERE).jobId == THEIRS


def test_a_marker_of_another_writer_is_replaced() -> None:
    """A marker that another writer wrote meanwhile, readable or not, gives way to the job's own."""
    for body in (b"", golden("hadoop-success-1")):
        lake = Lake()
        job = lake.sealed(NEW)
        lake.store.before = once("put", "_SUCCESS", partial(lake.put, {"_SUCCESS": body}))
        job.commit()
        assert read_success(lake.store, HERE).jobId == OURS


def test_manifests_survive_plain_json() -> None:
    """Any JSON reader sees the same totals, and the same files in a short list."""
    lake, manifest = committed()
    plain = json.loads(lake.get(f"{HOME}manifests/{OURS}.json"))
    assert plain["counts"]["files"] == manifest.counts.files
    keys = [entry.key for entry in manifest_files(lake.store, manifest)]
    assert [entry["key"] for entry in plain.pop("within")] == keys
    bare = msgspec.structs.replace(manifest, within=msgspec.UNSET)
    assert msgspec.convert(plain, ManifestRecord) == bare


@apart()
def test_a_long_list_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that is longer than a piece is read piece by piece, and checked as a whole."""
    monkeypatch.setattr("airflow_s3commit.protocol.metadata.manifests._READ_BYTES", 100)
    lake, manifest = committed()
    assert len(lake.get(LIST)) > 200
    assert [entry.key for entry in manifest_files(lake.store, manifest)] == [
        json.loads(line)["key"] for line in lake.get(LIST).splitlines()
    ]
    lake.tamper(LIST, cut=1)
    with pytest.raises(InvalidRecord, match="is not the list"):
        next(manifest_files(lake.store, manifest))


@apart()
def test_a_list_that_changes_while_it_is_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of two lists are never combined."""
    monkeypatch.setattr("airflow_s3commit.protocol.metadata.manifests._READ_BYTES", 100)
    lake, manifest = committed()
    pieces = iter([0, 1])
    read = lake.store.get_range

    def change(*args: Any, **kwargs: Any) -> bytes:
        if next(pieces) == 1:
            lake.tamper(LIST, cut=1)
        return read(*args, **kwargs)

    lake.store.get_range = change  # type: ignore[method-assign]
    with pytest.raises(InvalidRecord, match="is not the list"):
        next(manifest_files(lake.store, manifest))


# A short list lies within the manifest, so within the entry.


def test_a_list_up_to_the_limit_lies_within(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of exactly the limit takes no object of its own; one more byte, and it does."""
    lake = Lake()
    listed = lake.sealed(NEW).commit().listed
    assert listed is not None
    assert len(listed) < WITHIN_BYTES == 16 * 1024
    for over in (0, 1):
        monkeypatch.setattr("airflow_s3commit.protocol.lifecycle.manifest.WITHIN_BYTES", len(listed) - over)
        lake = Lake()
        manifest = lake.sealed(NEW).commit()
        assert (LIST in lake.keys("")) == bool(over)
        assert manifest.listed == (None if over else listed)
        held = LIST if over else f"{HOME}manifests/{OURS}.json"
        assert manifest.files == f"s3://{BUCKET}/{held}"
        assert manifest.files_sha256 == hashlib.sha256(listed).hexdigest()
        assert [entry.size for entry in manifest_files(lake.store, manifest)] == [1, 2, 3]


def test_a_list_within_takes_no_request() -> None:
    """The manifest is enough to read its files; entry, object and the result of the commit have the same."""
    lake, manifest = committed()
    stored = read_manifest(lake.store, HERE, OURS)
    entry = read_entry(lake.store, HERE, manifest.generation)
    lake.store.calls.clear()
    for one in (manifest, stored, entry.manifest):
        assert one == manifest
        assert one is not None
        assert [entry.size for entry in manifest_files(lake.store, one)] == [1, 2, 3]
    assert lake.store.calls == []


def with_lines(manifest: ManifestRecord, change: Callable[[bytes], bytes], **fields: Any) -> ManifestRecord:
    """Return a manifest with another list within."""
    lines = [change(line) for line in (manifest.listed or b"").splitlines()]
    return msgspec.structs.replace(manifest, within=[msgspec.Raw(line) for line in lines], **fields)


def digest(manifest: ManifestRecord) -> str:
    """Return the SHA-256 of a list within."""
    return hashlib.sha256(manifest.listed or b"").hexdigest()


def test_a_list_within_that_changed_is_refused() -> None:
    """It is refused before its first file, whether a line is changed or missing, or a space is added."""
    lake, manifest = committed()
    assert manifest.within is not msgspec.UNSET
    shorter = msgspec.structs.replace(manifest, within=manifest.within[:-1])
    spaced = with_lines(manifest, lambda line: line.replace(b":", b": ", 1))
    for forged in (shorter, spaced, with_lines(manifest, lambda line: line.replace(b"dt=1", b"dt=2"))):
        with pytest.raises(InvalidRecord, match="is not the list"):
            next(manifest_files(lake.store, forged))


def test_a_list_within_leads_nowhere_else() -> None:
    """A file outside the destination, an invalid line and another place of the list are refused."""
    lake, manifest = committed()
    elsewhere = with_lines(manifest, lambda line: line.replace(ROOT.encode(), b"trains/"))
    broken = with_lines(manifest, lambda _: b'{"key":\n"flights/x"}')
    for forged, problem in ((elsewhere, "outside of s3://lake/flights/"), (broken, "is not a valid")):
        pinned = msgspec.structs.replace(forged, files_sha256=digest(forged))
        with pytest.raises(InvalidRecord, match=problem):
            list(manifest_files(lake.store, pinned))
    for uri in ("s3://lake/trains/m.json", f"s3://{BUCKET}/{LIST}"):
        with pytest.raises(InvalidRecord, match="where no job writes it"):
            next(manifest_files(lake.store, msgspec.structs.replace(manifest, files=uri)))


def test_a_version_that_knows_no_lists_within_refuses_one() -> None:
    """Without the field the list has a name that does not exist, so the manifest is refused."""
    lake, manifest = committed()
    older = msgspec.structs.replace(manifest, within=msgspec.UNSET)
    with pytest.raises(InvalidRecord, match="where no job writes it"):
        next(manifest_files(lake.store, older))


def test_a_list_within_does_not_hold_what_it_was_decoded_from() -> None:
    """The bytes of an entry are freed once it is decoded, whatever keeps its list."""
    body = golden("manifest-1-within")
    before = sys.getrefcount(body)
    manifest = decode(ManifestRecord, body, "x")
    assert manifest.within is not msgspec.UNSET
    assert sys.getrefcount(body) == before
