"""The account of a commit: complete, provable, and readable by Hadoop's tools."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.model.codec import decode
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import entry_key
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.table import Entry
from airflow_s3commit.protocol.steps.files import WITHIN_BYTES
from airflow_s3commit.protocol.steps.fold import (
    latest_manifest,
    manifest_files,
    read_manifest,
    read_success,
)
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, apart, named
from tests.protocol.model.test_records import golden

HERE = Destination(BUCKET, ROOT)
NEW = {"dt=1/a": b"1", "dt=1/b": b"22", "c": b"333"}
SUCCESS = f"{ROOT}_SUCCESS"


def committed(**options: str) -> tuple[Lake, Manifest]:
    """Commit a job of two tasks over some old data."""
    lake = begun(**options)
    return lake, lake.job().commit()


def begun(**options: str) -> Lake:
    """Return a lake with some old data and a sealed job of two tasks."""
    lake = Lake()
    lake.put({"dt=1/old": b"old!"})
    job = lake.set_up(said={"dag_id": "nightly"}, **options)
    lake.run_stage(job, {"dt=1/a": b"1", "dt=1/b": b"22"}, {"c": b"333"})
    job.seal()
    return lake


def lists(lake: Lake) -> list[str]:
    """Return the keys of the lists of files."""
    return lake.keys(f"{HOME}lists/")


def listed(manifest: Manifest) -> bytes:
    """Return the lines of a list that lies within a manifest."""
    assert manifest.within is not None
    return b"".join(bytes(line) + b"\n" for line in manifest.within)


def test_a_manifest_names_the_receipt_that_has_its_facts() -> None:
    """The URI of a job's manifest is that of its receipt; data that is older than the log has none."""
    lake, manifest = committed()
    assert manifest.uri == f"s3://{BUCKET}/{lake.receipt_key()}"
    assert Manifest.of(decode(Entry, lake.get(lake.receipt_key()), manifest.uri)) == manifest
    assert Manifest.of(decode(Entry, lake.get(entry_key(HERE, 1)), "entry 1")).uri == ""


def test_the_manifest_adds_up_what_was_committed() -> None:
    """Counts, partitions, what was replaced and who asked for it are in the manifest."""
    lake, manifest = committed()
    assert manifest.job_id == OURS
    assert manifest.destination == lake.destination
    assert (manifest.conflict_mode, manifest.mode, manifest.tasks) == ("replace", "replace", 2)
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
    assert manifest.within == (None if is_apart else [])
    assert [lake.get(key) for key in lists(lake) if OURS in key] == ([b""] if is_apart else [])


@apart()
def test_a_long_list_goes_up_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that is larger than a part is written as several, with the same content."""
    monkeypatch.setattr("airflow_s3commit.protocol.steps.files._PART_BYTES", 700)
    lake = Lake()
    manifest = lake.sealed({f"dt={n % 3}/{n:03d}": b"x" * n for n in range(50)}).commit()
    [_, key] = sorted(lists(lake), key=lambda key: OURS in key)
    assert lake.store.head(BUCKET, key).etag.partition("-")[2] > "1"
    assert manifest.files_sha256 == hashlib.sha256(lake.get(key)).hexdigest()
    assert [entry.size for entry in manifest_files(lake.store, manifest)] == list(range(50))
    assert lake.pending() == []


@apart()
def test_a_list_whose_writer_died_leaves_nothing_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies while the list goes up in parts leaves no upload of it behind."""
    monkeypatch.setattr("airflow_s3commit.protocol.steps.files._PART_BYTES", 300)
    for nth in (1, 2, 3):
        lake = Lake()
        job = lake.sealed({f"{n:03d}": b"x" for n in range(10)})
        lake.store.die("upload_part", ".jsonl", nth=nth, after=True)
        with pytest.raises(Crash):
            job.commit()
        lake.store.rest()
        [key] = lake.pending()
        assert key.startswith(f"{HOME}lists/{OURS}-")
        assert len(list(manifest_files(lake.store, lake.job().commit()))) == 10
        assert lake.pending() == []


@pytest.mark.parametrize(
    ("is_apart", "ending"),
    [
        *((True, ending) for ending in (".jsonl", f"{OURS}.json", "_SUCCESS")),
        *((False, ending) for ending in (f"{2:020d}.json", f"{OURS}.json", "_SUCCESS")),
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_another_process_writes_the_same_list(ending: str, is_apart: bool, after: bool) -> None:
    """A process that dies at any of these writes is followed by one with the same list and manifest."""
    with apart(is_apart):
        plain, expected = committed()
        lake = begun()
        lake.store.die("put", ending, after=after)
        with pytest.raises(Crash):
            lake.job().commit()
        lake.store.rest()
        manifest = lake.job().commit()
        assert manifest == lake.job().commit()
    assert (manifest.within, manifest.files_sha256) == (expected.within, expected.files_sha256)
    assert lists(lake) == lists(plain)
    assert (manifest.counts, manifest.partitions) == (expected.counts, expected.partitions)
    assert lake.data() == plain.data()


def test_an_existing_entry_is_kept() -> None:
    """A second process that finishes the commit has the first one's manifest."""
    lake = Lake()
    job = lake.sealed(NEW)
    lake.store.die("put", f"{OURS}.json", after=True)
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    lake.clock.advance(3600)
    first = lake.get(lake.receipt_key())
    assert lake.job().commit().committed == int(lake.clock.time() - 3600) * 1000
    assert lake.get(lake.receipt_key()) == first == lake.get(entry_key(HERE, 2))


def test_success_is_a_summary() -> None:
    """``_SUCCESS`` is in Hadoop's format, counts what was committed, and points to the receipt."""
    lake, manifest = committed()
    success = read_success(lake.store, HERE)
    assert success.success
    assert (success.jobId, success.generation) == (OURS, 2)
    assert success.manifest_uri == f"s3://{BUCKET}/{lake.receipt_key()}"
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
    assert read_success(lake.store, HERE).manifest_uri == f"s3://{BUCKET}/{lake.receipt_key()}"


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


def test_data_that_is_older_than_the_log_is_no_job_s() -> None:
    """The first entry is a commit, but no job's: there is no last job before one has committed."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.set_up()
    with pytest.raises(NoSuchKey, match=r"no job has committed to s3://lake/flights/.*s3commit jobs"):
        latest_manifest(lake.store, HERE)


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"PAR1", b'{"name":"something/1"}'])
def test_another_marker_is_refused(body: bytes) -> None:
    """The empty marker of the classic committer, and any other file of that name, is refused."""
    lake, manifest = committed()
    lake.store.put(BUCKET, SUCCESS, body)
    with pytest.raises(InvalidRecord, match="_SUCCESS"):
        read_success(lake.store, HERE)
    assert latest_manifest(lake.store, HERE) == manifest


@pytest.mark.parametrize("cut", [1, 100, 1 << 20])
@apart()
def test_a_list_that_changed_is_refused(cut: int) -> None:
    """A list of files that the manifest does not name is refused before its first file."""
    lake, manifest = committed()
    [key] = [key for key in lists(lake) if OURS in key]
    lake.tamper(key, cut=cut)
    with pytest.raises(InvalidRecord, match="is not the list"):
        next(manifest_files(lake.store, manifest))
    lake.store.delete(BUCKET, key)
    with pytest.raises(InvalidRecord, match="is gone"):
        next(manifest_files(lake.store, manifest))


@pytest.mark.parametrize("cut", [1, 100, 1 << 20])
def test_a_receipt_that_is_cut_short_is_refused(cut: int) -> None:
    """An unreadable receipt is refused as the proof of a commit; the newest entry needs none."""
    lake, _ = committed()
    theirs = lake.sealed({"dt=1/x": b"x"}, job_id=THEIRS).commit()
    for job_id in (OURS, THEIRS):
        lake.tamper(lake.receipt_key(job_id), cut=cut)
    assert read_manifest(lake.store, HERE, THEIRS) == theirs
    before = lake.everything()
    for read in (
        lambda: read_manifest(lake.store, HERE, OURS),
        lambda: lake.job().commit(),
        lambda: lake.job().abort(),
    ):
        with pytest.raises(InvalidRecord, match=rf"_s3commit/jobs/{OURS}\.json"):
            read()
    assert lake.everything() == before


def test_manifests_survive_plain_json() -> None:
    """Any JSON reader sees the same totals, and the same files in a short list."""
    lake, manifest = committed()
    plain = json.loads(lake.get(lake.receipt_key()))["commit"]
    assert plain["counts"]["files"] == manifest.counts.files
    keys = [entry.key for entry in manifest_files(lake.store, manifest)]
    assert [entry["key"] for entry in plain["within"]] == keys


@apart()
def test_a_long_list_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that is longer than a piece is read piece by piece, and checked as a whole."""
    monkeypatch.setattr("airflow_s3commit.protocol.steps.files._READ_BYTES", 100)
    lake, manifest = committed()
    [key] = [key for key in lists(lake) if OURS in key]
    assert len(lake.get(key)) > 200
    assert [entry.key for entry in manifest_files(lake.store, manifest)] == [
        json.loads(line)["key"] for line in lake.get(key).splitlines()
    ]
    lake.tamper(key, cut=1)
    with pytest.raises(InvalidRecord, match="is not the list"):
        next(manifest_files(lake.store, manifest))


@apart()
def test_a_list_that_changes_while_it_is_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of two lists are never combined."""
    monkeypatch.setattr("airflow_s3commit.protocol.steps.files._READ_BYTES", 100)
    lake, manifest = committed()
    [key] = [key for key in lists(lake) if OURS in key]
    pieces = iter([0, 1])
    read = lake.store.get_range

    def change(*args: Any, **kwargs: Any) -> bytes:
        if next(pieces) == 1:
            lake.tamper(key, cut=1)
        return read(*args, **kwargs)

    lake.store.get_range = change  # type: ignore[method-assign]
    with pytest.raises(InvalidRecord, match="was changed while it was read"):
        next(manifest_files(lake.store, manifest))


# A short list lies within the entry.


def test_a_list_up_to_the_limit_lies_within(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of exactly the limit takes no object of its own; one more byte, and it does."""
    lines = listed(Lake().sealed(NEW).commit())
    assert len(lines) < WITHIN_BYTES == 16 * 1024
    for over in (0, 1):
        monkeypatch.setattr("airflow_s3commit.protocol.steps.files.WITHIN_BYTES", len(lines) - over)
        lake = Lake()
        manifest = lake.sealed(NEW).commit()
        assert len(lists(lake)) == over
        assert (manifest.within is None) == bool(over)
        assert manifest.files_sha256 == hashlib.sha256(lines).hexdigest()
        assert [entry.size for entry in manifest_files(lake.store, manifest)] == [1, 2, 3]


def test_a_list_within_takes_one_request() -> None:
    """The entry is enough to read the files of a commit."""
    lake, manifest = committed()
    lake.store.calls.clear()
    assert [entry.size for entry in manifest_files(lake.store, manifest)] == [1, 2, 3]
    assert [call.key for call in lake.store.calls] == [entry_key(HERE, 2)]


def pinned(lake: Lake, change: Callable[[bytes], bytes], *, digest: bool = True) -> Manifest:
    """Change each line of the newest entry's list, and with ``digest`` its digest too."""
    entry = decode(Entry, lake.get(entry_key(HERE, 2)), "x")
    assert entry.commit is not None
    lines = [change(line) for line in listed(Manifest.of(entry)).splitlines()]
    whole = hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()
    commit = msgspec.structs.replace(
        entry.commit,
        within=[msgspec.Raw(line) for line in lines],
        files_sha256=whole if digest else entry.commit.files_sha256,
    )
    entry = msgspec.structs.replace(entry, commit=commit)
    lake.store.put(BUCKET, entry_key(HERE, 2), msgspec.json.encode(entry))
    return Manifest.of(entry)


@pytest.mark.parametrize(("old", "new"), [(b"dt=1", b"dt=2"), (b":", b": "), (b'"size":1', b'"size":2')])
def test_a_list_within_that_changed_is_refused(old: bytes, new: bytes) -> None:
    """It is refused before its first file, whether a line is changed, or a space is added."""
    lake, _ = committed()
    with pytest.raises(InvalidRecord, match="is not the list"):
        next(manifest_files(lake.store, pinned(lake, lambda line: line.replace(old, new, 1), digest=False)))


def test_a_list_within_leads_nowhere_else() -> None:
    """A file outside the destination, and an invalid line, are refused."""
    lake, _ = committed()
    elsewhere = pinned(lake, lambda line: line.replace(ROOT.encode(), b"trains/"))
    with pytest.raises(InvalidRecord, match="outside of s3://lake/flights/"):
        list(manifest_files(lake.store, elsewhere))
    lake, _ = committed()
    with pytest.raises(InvalidRecord, match="is not a valid"):
        list(manifest_files(lake.store, pinned(lake, lambda _: b'{"key":1}')))


def test_a_list_that_moved_out_of_its_entry_is_refused() -> None:
    """An entry that listed its files and no longer does is not the one that was read before."""
    lake, manifest = committed()
    entry = decode(Entry, lake.get(entry_key(HERE, 2)), "x")
    assert entry.commit is not None
    bare = msgspec.structs.replace(entry, commit=msgspec.structs.replace(entry.commit, within=msgspec.UNSET))
    lake.store.put(BUCKET, entry_key(HERE, 2), msgspec.json.encode(bare))
    with pytest.raises(InvalidRecord, match="lists no files; it did before"):
        next(manifest_files(lake.store, manifest))


def test_a_list_within_does_not_hold_what_it_was_decoded_from() -> None:
    """The bytes of an entry are freed once it is decoded, whatever keeps its list."""
    body = golden("entry-1-commit")
    before = sys.getrefcount(body)
    entry = decode(Entry, body, "x")
    assert entry.commit is not None
    assert entry.commit.within is not msgspec.UNSET
    assert sys.getrefcount(body) == before
