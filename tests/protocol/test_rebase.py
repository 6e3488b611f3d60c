"""A rebase takes over the history of a copied table, if every file is proven to exist there."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from airflow_s3commit import HmacSigner, Job, JobOptions, RebaseReport, rebase, repair, rollback
from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey, NotReversible, SignatureRefused
from airflow_s3commit.protocol.inspect.history import history
from airflow_s3commit.protocol.inspect.verify_table import TableReport, verify
from airflow_s3commit.protocol.metadata.log import read_entries
from airflow_s3commit.protocol.metadata.manifests import manifest_of, read_success
from airflow_s3commit.protocol.metadata.snapshot import live_files, read_snapshot
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.ownership import UPLOAD_METADATA
from airflow_s3commit.protocol.model.snapshot import TableSnapshot
from airflow_s3commit.protocol.rebase import have_same_md5
from tests.cases import each
from tests.protocol.building import BUCKET, ROOT, THEIRS, Crash, Lake, an_id, apart, named
from tests.protocol.metadata.test_snapshot import NEW, OLD, OLD2, THIRD, two_generations

COPY = "copy/"


def copied(lake: Lake, *, metadata: bool = True, bucket: str = BUCKET, prefix: str = COPY) -> Lake:
    """Copy the dataset in key order, as tools do; ETags are those of plain objects."""
    for info in list(lake.store.list_objects(BUCKET, ROOT)):
        found = lake.store.get(BUCKET, info.key)
        kept = dict(lake.store.head(BUCKET, info.key).metadata) if metadata else {}
        _put(lake, bucket, prefix + info.key.removeprefix(ROOT), found.body, kept)
    copy = Lake(prefix=prefix)
    copy.store, copy.clock, copy.store_clock = lake.store, lake.clock, lake.store_clock
    copy._ids = iter(range(500, 10_000))  # type: ignore[assignment]
    return copy


def _put(lake: Lake, bucket: str, key: str, body: bytes, metadata: dict[str, str]) -> None:
    upload = lake.store.create_upload(bucket, key, metadata=metadata, content_type="x")
    etag = lake.store.upload_part(bucket, key, upload, 1, body)
    lake.store.complete_upload(bucket, key, upload, [etag])


def rebased(copy: Lake, destination: str = f"s3://{BUCKET}/{COPY}", **asked: Any) -> RebaseReport:
    """Rebase the copy."""
    asked = {"dry_run": False, **asked}
    ids = asked.pop("new_id", lambda: an_id(copy.new_id()))
    return rebase(copy.store, destination, clock=copy.clock, new_id=ids, threads=0, **asked)


def table(lake: Lake, uri: str = f"s3://{BUCKET}/{COPY}", generation: int | None = None) -> set[str]:
    """Return the files of the table, relative to its destination."""
    home = Destination.parse(uri)
    snapshot = read_snapshot(lake.store, home, generation)
    assert snapshot is not None
    lists = live_files(lake.store, home, snapshot.commits(), FileEntry)
    return {entry.key.removeprefix(home.prefix) for _, entries in lists for entry in entries}


def checked(lake: Lake, uri: str = f"s3://{BUCKET}/{COPY}") -> TableReport:
    """Verify the table."""
    report = verify(lake.store, uri, threads=0)
    assert isinstance(report, TableReport)
    return report


@each("metadata", [True, False])
@each("is_apart", [True, False])
def test_a_copy_continues_the_history(metadata: bool, is_apart: bool) -> None:
    """Its newest and retained generations can be read, verified and restored, and jobs go on committing."""
    with apart(is_apart):
        copy = copied(two_generations(), metadata=metadata)
    report = rebased(copy, accept_sizes=not metadata)
    assert (report.acceptable, report.generation, report.origin) == (True, 3, f"s3://{BUCKET}/{ROOT}")
    assert table(copy) == table(copy, generation=2) == {NEW, OLD2}
    assert table(copy, generation=1) == {OLD, OLD2}
    whole = checked(copy)
    assert whole.log == []
    assert (whole.sound, whole.log, whole.retained, whole.foreign) == (True, [], 1, [])
    success = read_success(copy.store, Destination.parse(copy.destination))
    assert success.generation == 3
    assert manifest_of(copy.store, Destination.parse(copy.destination), None).counts.files == 2
    assert [m.generation for m in history(copy.store, copy.destination)] == [3, 2, 1]
    snapshot = read_snapshot(copy.store, Destination.parse(copy.destination))
    assert snapshot is not None
    assert snapshot.commits(since=2) == []
    copy.sealed({"dt=1/a": b"at the copy"}, job_id=THIRD, retain="7d").commit()
    assert table(copy) == {named("dt=1/a", THIRD), OLD2}
    rollback(
        copy.store, copy.destination, to=1, clock=copy.clock, new_id=lambda: an_id(copy.new_id()), threads=0
    )
    assert table(copy) == {OLD, OLD2}
    assert checked(copy).sound


def test_a_copy_in_a_bucket_of_its_own() -> None:
    """If the prefix is the same, keys are too, and the original is left alone."""
    lake = two_generations()
    before = lake.everything()["lake"]
    copied(lake, bucket="other", prefix=ROOT)
    there = f"s3://other/{ROOT}"
    assert rebased(lake, there).generation == 3
    assert table(lake, there) == {NEW, OLD2}
    assert checked(lake, there).sound
    assert lake.everything()["lake"] == before


@each("is_apart", [True, False])
def test_a_copy_of_a_copy(is_apart: bool) -> None:
    """A rebased copy can be copied and rebased again, with all of its history."""
    with apart(is_apart):
        copy = copied(two_generations())
    rebased(copy)
    for info in list(copy.store.list_objects(BUCKET, COPY)):
        body = copy.store.get(BUCKET, info.key).body
        _put(
            copy,
            BUCKET,
            "third/" + info.key.removeprefix(COPY),
            body,
            dict(copy.store.head(BUCKET, info.key).metadata),
        )
    third = f"s3://{BUCKET}/third/"
    assert rebased(copy, third).origin == f"s3://{BUCKET}/{COPY}"
    assert table(copy, third) == {NEW, OLD2}
    assert table(copy, third, 1) == {OLD, OLD2}
    assert checked(copy, third).sound


@each("harm", ["missing", "foreign", "same bytes", "retained"])
def test_a_copy_that_differs_is_refused(harm: str) -> None:
    """A missing file, or another under its key, is named, and nothing is written."""
    copy = copied(two_generations())
    key = COPY + (OLD if harm == "retained" else NEW)
    body = copy.get(key)
    copy.store.delete(BUCKET, key)
    if harm == "same bytes":
        _put(copy, BUCKET, key, body, {UPLOAD_METADATA: "of another upload"})
    if harm == "foreign":
        copy.store.put(BUCKET, key, b"another")
    before = copy.everything()
    report = rebased(copy)
    assert (report.acceptable, report.generation) == (False, None)
    assert [*report.missing, *(one.key for one in report.changed)] == [key]
    assert {k: v for k, v in copy.everything().items() if "_s3commit/time" not in k}.keys() == before.keys()


def test_extra_files_are_not_part_of_the_table() -> None:
    """They do not stop the rebase, and verify names them as foreign."""
    copy = copied(two_generations())
    copy.store.put(BUCKET, f"{COPY}dt=1/extra", b"x")
    assert rebased(copy).acceptable
    assert table(copy) == {NEW, OLD2}
    assert [one.key for one in checked(copy).foreign] == [f"{COPY}dt=1/extra"]


def test_a_copy_made_while_a_job_was_publishing() -> None:
    """Files that the job had published are not in the copy's table, and the copy's next jobs commit."""
    lake = two_generations()
    lake.sealed({"dt=5/a": b"1", "dt=5/b": b"2"}, job_id=THEIRS, conflict_mode="append")
    lake.store.die("complete_upload", "", after=True)
    with pytest.raises(Crash):
        lake.job(THEIRS).commit()
    lake.store.rest()
    copy = copied(lake)
    assert rebased(copy).acceptable
    assert table(copy) == {NEW, OLD2}
    assert checked(copy).foreign_count == 1
    copy.sealed({"dt=6/a": b"6"}, job_id=THIRD, conflict_mode="append").commit()
    assert table(copy) == {NEW, OLD2, named("dt=6/a", THIRD)}


def test_a_dry_run_writes_nothing() -> None:
    """A dry run only reports what it compared."""
    copy = copied(two_generations())
    before = copy.everything()
    report = rebased(copy, dry_run=True)
    assert (report.files, report.intact, report.generation) == (3, 3, None)
    assert copy.everything() == before


def test_a_rebase_that_dies_anywhere_is_run_again() -> None:
    """After a crash before or after any write a second run ends with the same table."""
    for nth in range(1, 40):
        copy = copied(two_generations())
        copy.store.die("put", "", nth=nth, after=nth % 2 == 0)
        died = False
        try:
            rebased(copy)
        except Crash:
            died = True
        copy.store.rest()
        rebased(copy)
        assert table(copy) == {NEW, OLD2}
        assert table(copy, generation=1) == {OLD, OLD2}
        assert checked(copy).sound
        assert len(list(history(copy.store, copy.destination))) == 3
        if not died:
            assert nth > 5
            return


def test_a_second_rebase_changes_nothing() -> None:
    """The history is the copy's already."""
    copy = copied(two_generations())
    rebased(copy)
    log = copy.keys(f"{COPY}_s3commit/log/")
    report = rebased(copy)
    assert (report.acceptable, report.generation) == (True, None)
    assert copy.keys(f"{COPY}_s3commit/log/") == log


def test_the_first_commit_names_the_rebase() -> None:
    """It is refused beside retained files and names the rebase, after which it proceeds."""
    copy = copied(two_generations())
    job = copy.sealed({"dt=1/a": b"x"}, job_id=THIRD)
    with pytest.raises(InvalidRecord, match="--rebase --apply"):
        job.commit()
    rebased(copy)
    copy.job(THIRD).commit()
    assert table(copy) == {named("dt=1/a", THIRD), OLD2}


def test_what_cannot_be_rebased() -> None:
    """A table without a log or commit, with its own history, or with files older than the log is refused."""
    lake = Lake()
    with pytest.raises(NoSuchKey, match="no log"):
        rebased(lake, lake.destination)
    lake.sealed({"dt=1/a": b"x"}).commit()
    with pytest.raises(NotReversible, match="history of its own"):
        rebased(lake, lake.destination)
    older = Lake()
    older.put({"dt=1/old": b"old"})
    older.sealed({"dt=2/a": b"x"}, conflict_mode="append").commit()
    copy = copied(older)
    with pytest.raises(NotReversible, match="older than its log"):
        rebased(copy)


def test_a_generation_that_was_not_retained() -> None:
    """Its files are gone from the original, and the copy says so instead of reading part of it."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1", "dt=2/a": b"2"}).commit()
    lake.sealed({"dt=1/a": b"3"}, job_id=THEIRS).commit()
    copy = copied(lake)
    rebased(copy)
    assert table(copy) == {named("dt=1/a", THEIRS), named("dt=2/a")}
    with pytest.raises(NoSuchKey, match="files of generation 1"):
        read_snapshot(copy.store, Destination.parse(copy.destination), 1)


def test_files_of_which_only_the_size_is_known() -> None:
    """A copy in other parts without metadata proves nothing, and is accepted only on request."""
    copy = copied(two_generations(), metadata=False)
    key = COPY + NEW
    body = copy.store.get(BUCKET, key).body
    upload = copy.store.create_upload(BUCKET, key, metadata={}, content_type="x")
    parts = [
        copy.store.upload_part(BUCKET, key, upload, n, piece)
        for n, piece in enumerate((body[:1], body[1:]), 1)
    ]
    copy.store.complete_upload(BUCKET, key, upload, parts)
    report = rebased(copy)
    assert (report.acceptable, report.unproven, report.generation) == (False, [key], None)
    assert rebased(copy, accept_sizes=True).generation == 3
    assert checked(copy).sound


def test_a_signed_dataset() -> None:
    """Its copied entries are checked and the new one is signed; without the key it is refused."""
    signer = HmacSigner(b"k" * 32)
    lake = Lake()
    job = Job.setup(lake.store, lake.destination, options=JobOptions(committer="magic"), signer=signer)
    lake.run_stage(job, {"dt=1/a": b"1"})
    job.seal()
    job.commit()
    copy = copied(lake)
    with pytest.raises(SignatureRefused):
        rebased(copy)
    with pytest.raises(SignatureRefused):
        rebased(copy, signer=HmacSigner(b"x" * 32))
    assert rebased(copy, signer=signer).generation == 2
    report = verify(copy.store, copy.destination, threads=0, signer=signer)
    assert isinstance(report, TableReport)
    assert report.sound


@each(
    ("one", "other", "same"),
    [
        ("d41d8cd98f00b204e9800998ecf8427e", "d41d8cd98f00b204e9800998ecf8427e", True),
        ("d41d8cd98f00b204e9800998ecf8427e", "59adb24ef3cdbe0297f05b395827453f-1", True),
        ("59adb24ef3cdbe0297f05b395827453f-1", "d41d8cd98f00b204e9800998ecf8427e", True),
        ("59adb24ef3cdbe0297f05b395827453f-2", "d41d8cd98f00b204e9800998ecf8427e", False),
        ("", "", False),
    ],
)
def test_etags_of_one_part_prove_the_bytes(one: str, other: str, same: bool) -> None:
    """The ETag of an upload of one part is the MD5 of the MD5 of its bytes."""
    assert have_same_md5(one, other) is same


def test_each_file_is_checked_once() -> None:
    """A rebase sends one HEAD for each file, and writes its lists from the answers."""
    copy = copied(two_generations())
    copy.store.calls.clear()
    assert rebased(copy).files == 3
    heads = Counter(call.key for call in copy.store.calls if call.verb == "head")
    assert {key: count for key, count in heads.items() if "/dt=" in key} == {
        f"{COPY}{path}": 1 for path in (OLD, OLD2, NEW)
    }


def test_a_rebase_that_others_followed_is_finished_unchanged() -> None:
    """A second run after a commit and an abort changes nothing of theirs."""
    copy = copied(two_generations())
    rebased(copy)
    copy.sealed({"dt=3/a": b"3"}, job_id=THIRD, conflict_mode="append").commit()
    copy.set_up(THEIRS).abort()
    success = copy.get(f"{COPY}_SUCCESS")
    assert rebased(copy).generation is None
    assert copy.get(f"{COPY}_SUCCESS") == success
    assert checked(copy).sound


def test_a_copy_that_was_repaired_first_is_complete() -> None:
    """A repair makes no checkpoint of copied entries, and an existing one is skipped."""
    lake = two_generations()
    for number in range(11):
        lake.sealed({"dt=3/a": b"3"}, job_id=an_id(f"{number}"), conflict_mode="append").commit()
    assert lake.keys(f"{ROOT}_s3commit/checkpoints/") == [
        f"{ROOT}_s3commit/checkpoints/00000000000000000013.jsonl.gz"
    ]
    copy = copied(lake)
    before = copy.everything()
    report = repair(copy.store, copy.destination, dry_run=False, clock=copy.clock, threads=0)
    assert (report.repaired, report.original) == ([], lake.destination)
    assert copy.everything() == before
    forged = TableSnapshot(copy.destination)
    for entry, _ in read_entries(copy.store, Destination.parse(copy.destination), 0):
        forged.apply(entry)
    copy.store.put(BUCKET, f"{COPY}_s3commit/checkpoints/00000000000000000013.jsonl.gz", forged.to_bytes())
    rebased(copy)
    assert table(copy) == table(copy, generation=13) == table(lake, lake.destination)
    assert len(table(copy)) == 13
    assert checked(copy).log == []
