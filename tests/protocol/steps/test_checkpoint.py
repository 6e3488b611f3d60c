"""A checkpoint is the table of an entry, read line by line: a hostile one costs time and no memory."""

from __future__ import annotations

import gzip
import json
import logging
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_s3commit.exceptions import InvalidRecord, TooLarge, Unavailable
from airflow_s3commit.protocol.model.codec import MIB, encode, largest
from airflow_s3commit.protocol.model.layout import checkpoint_key
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.table import Table, UnownedObject
from airflow_s3commit.protocol.steps import checkpoint
from airflow_s3commit.protocol.steps.checkpoint import CheckpointStart, PartitionLine, from_bytes, to_bytes
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, Lake, an_id, once
from tests.protocol.steps.test_fold import HERE, STEPS, entry, fold, grown, live, played, write

WHERE = "s3://lake/there"


def again(table: Table) -> Table:
    """Return a table that went through a checkpoint."""
    return from_bytes(to_bytes(table, HERE.uri), HERE.uri, WHERE)


@given(STEPS, st.integers(0, 12))
def test_a_checkpoint_goes_on_where_it_ends(steps: list[tuple[Any, ...]], cut: int) -> None:
    """A log that is folded from a checkpoint in its middle gives the same table, byte for byte."""
    directory, table = played(steps)
    before = fold(directory.log[:cut])
    body = to_bytes(before, HERE.uri)
    read = from_bytes(body, HERE.uri, WHERE)
    assert to_bytes(read, HERE.uri) == body
    for name in ("head", "generation", "live", "newest_schemas", "retained", "freed"):
        assert getattr(read, name) == getattr(before, name), name
    assert read.sources.keys() == before.sources.keys()
    assert to_bytes(fold(directory.log[cut:], read), HERE.uri) == to_bytes(table, HERE.uri)


def test_a_checkpoint_keeps_all_that_a_table_knows() -> None:
    """Schemas, objects of other programs, adopted jobs and the place of each list survive it."""
    unowned = [UnownedObject(key=f"{ROOT}dt=1/x", etag="e", size=1)]
    table = fold(
        [
            entry(1, "dt=1", "dt=2", job_id=None, schemas=["old"]),
            entry(2, "dt=1", takes="partitions", retain=60, unowned=unowned, schemas=["new"]),
            entry(3, "dt=3", adopted=True),
            entry(4, kind="release", frees=[2]),
            entry(5, takes="everything", retain=90),
        ]
    )
    read = again(table)
    assert read.unowned_in_place() == {f"{ROOT}dt=1/x": "e"}
    assert read.jobs_in("dt=3") == {None, an_id("3")}
    assert read.schemas() == table.schemas() == ["new"]
    assert [(one.number, one.is_within, one.job_id) for one in read.sources.values()] == [
        (1, True, None), (2, False, an_id("2")), (3, True, an_id("3")),
    ]  # fmt: skip
    assert read.retained[5].seconds == 90


def test_a_partition_of_any_number_of_commits_has_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commits are on several lines, each of which readers accept; those that left it too."""
    widest = range(10**15, 10**15 + checkpoint._COMMITS)
    counts = dict.fromkeys(widest, Counts(files=10**9, bytes=10**15, rows=10**15))
    line = PartitionLine("x" * 1024, [*widest], {10**15: [*widest]}, counts)
    assert len(encode(line)) < largest(PartitionLine)
    monkeypatch.setattr(checkpoint, "_COMMITS", 3)
    entries = [entry(number, "dt=1", "dt=2") for number in range(1, 9)]
    for more in ([], [entry(9, "dt=1", takes="partitions", retain=60), entry(10, "dt=1")]):
        table = fold([*entries, *more])
        read = again(table)
        assert (read.live, read.retained) == (table.live, table.retained)
        assert to_bytes(read, HERE.uri) == to_bytes(table, HERE.uri)


def edited(*changes: tuple[int, Callable[[dict[str, Any]], object]], drop: int | None = None) -> bytes:
    """Return the checkpoint of two commits with some of its lines changed, and one left out."""
    body = to_bytes(fold([entry(1, "dt=1"), entry(2, "dt=1", "dt=2")]), HERE.uri)
    lines = [json.loads(line) for line in gzip.decompress(body).splitlines()]
    for number, change in changes:
        change(lines[number])
    kept = [line for number, line in enumerate(lines) if number != drop]
    return gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in kept))


def test_the_edits_of_these_tests_are_read_if_nothing_is_changed() -> None:
    """A checkpoint that went through another JSON encoder is the same table."""
    assert from_bytes(edited(), HERE.uri, WHERE).live == {"dt=1": [1, 2], "dt=2": [2]}


@each(
    ("body", "message"),
    [
        (b"", "is cut off"),
        (b"no gzip", "is not a checkpoint"),
        (gzip.compress(b""), "is not a checkpoint of the log of"),
        (gzip.compress(b"{}\n"), "line 1 of .* is not a valid CheckpointStart"),
        (gzip.compress(b"\n"), "has an empty line"),
        (edited()[:-9], "is cut off"),
        (edited()[:20], "is cut off"),
        (gzip.compress(gzip.decompress(edited()) + b"{}"), "is cut off"),
        (edited((0, lambda line: line.update(destination="s3://lake/x/"))), "is not a checkpoint of the log"),
        (edited((0, lambda line: line.update(version=2))), "is not a valid CheckpointStart"),
        (edited((0, lambda line: line.update(sources=3))), "more commits than its log has entries"),
        (edited((0, lambda line: line.update(generation=3))), "more commits than its log has entries"),
        (edited((0, lambda line: line.update(partitions=3))), "is not a valid PartitionLine"),
        (edited((0, lambda line: line.update(partitions=1))), "goes on after its last line"),
        (edited((0, lambda line: line.update(unowned=1))), "is not a valid UnownedLine"),
        (edited((0, lambda line: line.update(newest_schemas=[0]))), "names a schema that it does not have"),
        (edited((1, lambda line: line.pop("number"))), "is not a valid SourceLine"),
        (edited((1, lambda line: line.update(schemas=[7]))), "names a schema that it does not have"),
        (edited((1, lambda line: line.update(number=2))), "names the commit 1, and says nothing"),
        (edited((3, lambda line: line.update(live=[1, 2, 9]))), "names the commit 9, and says nothing"),
        (edited((3, lambda line: line.update(counts={}))), "names the commit 1, and says nothing"),
        (edited((3, lambda line: line.update(left={"2": [1]}))), "names the commit 2, and says nothing"),
        (edited(drop=1), "is not a valid"),
        (edited(drop=4), "is not a valid PartitionLine"),
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_is_refused(body: bytes, message: str) -> None:
    """Truncated, changed, copied or other content is an invalid record, and no other error."""
    with pytest.raises(InvalidRecord, match=message):
        from_bytes(body, HERE.uri, WHERE)


def bomb(line: bytes, times: int, *, head: dict[str, Any] | None = None) -> bytes:
    """Return a small checkpoint that has many equal lines."""
    first = json.loads(gzip.decompress(to_bytes(Table(), HERE.uri)))
    start = json.dumps({**first, **head}).encode() + b"\n" if head is not None else b""
    return gzip.compress(start + line * times)


SOURCE = b'{"number":1,"job_id":null,"files_sha256":"","is_within":true}\n'


@each(
    ("line", "times", "head"),
    [
        (b"\n", 64 * MIB, None),
        (b"x", 64 * MIB, None),
        (b"[", 64 * MIB, None),
        (SOURCE, 10**5, {"sources": 10**5}),
        (b'{"name":"dt=1"}\n', 10**5, {"partitions": 10**5}),
        (b"x" * 1_000, 64_000, {"partitions": 10**5}),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_a_hostile_checkpoint_takes_no_memory(line: bytes, times: int, head: dict[str, Any] | None) -> None:
    """However long it is when it is decompressed, reading it takes a few times the longest line."""
    body = bomb(line, times, head=head)
    tracemalloc.start()
    try:
        with suppress(InvalidRecord):
            from_bytes(body, HERE.uri, WHERE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(body) < MIB
    assert peak < 32 * MIB


def test_a_checkpoint_that_is_read_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of a large checkpoint are not copied again for each step of the decompression."""
    copied = count()
    real = zlib.decompressobj

    class Counting:
        def __init__(self, **how: Any) -> None:
            self._inner = real(**how)

        def decompress(self, waiting: bytes, most: int) -> bytes:
            for _ in range(len(waiting) // 1024):
                next(copied)
            piece: bytes = self._inner.decompress(waiting, most)
            return piece

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    # ETags do not compress well.
    unowned = [UnownedObject(key=f"{ROOT}{n}", etag=an_id(f"{n}"), size=1) for n in range(50_000)]
    table = fold([entry(1), entry(2, takes="everything", unowned=unowned, retain=60)])
    body = to_bytes(table, HERE.uri)
    assert len(body) > MIB
    assert len(from_bytes(body, HERE.uri, WHERE).unowned_in_place()) == 50_000
    assert next(copied) < 12 * len(body) // 1024


def test_what_no_reader_would_take_is_not_written() -> None:
    """A table whose checkpoint would have a line that is too long to be read again has none."""
    schemas = [f"{number:04d}".ljust(60_000, "x") for number in range(100)]
    table = fold(entry(number, "dt=1", schemas=[text]) for number, text in enumerate(schemas, start=1))
    with pytest.raises(TooLarge, match="a CheckpointStart"):
        to_bytes(table, HERE.uri)
    long = largest(CheckpointStart)
    fits = fold(entry(number, "dt=1", schemas=[schemas[number]]) for number in range(1, long // 60_100))
    assert again(fits).schemas() == fits.schemas()


# Where it lies.


@each(
    "damage",
    [
        lambda lake, key: lake.tamper(key, cut=5),
        lambda lake, key: lake.store.put(BUCKET, key, b""),
        lambda lake, key: lake.store.put(BUCKET, key, bytes(10)),
        lambda lake, key: lake.store.put(BUCKET, key, bomb(b"\n", 64 * MIB)),
        lambda lake, key: lake.store.put(BUCKET, key, lake.get(checkpoint_key(HERE, 13))),
        lambda lake, key: lake.store.delete(BUCKET, key),
    ],
)
def test_a_damaged_one_is_passed_over(damage: Callable[[Lake, str], object]) -> None:
    """The log is folded from an older checkpoint, or from its start: the table is the same."""
    lake = grown(44)
    expected = live(lake)
    for number in (39, 26, 13):
        damage(lake, checkpoint_key(HERE, number))
        assert live(lake) == expected


def test_a_damaged_one_gets_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The warning names the object."""
    lake = grown(13)
    lake.tamper(checkpoint_key(HERE, 13), cut=5)
    assert live(lake) == list(range(1, 14))
    assert f"passing over a checkpoint: s3://{BUCKET}/{checkpoint_key(HERE, 13)}" in caplog.text


def test_one_that_a_reader_may_not_read_is_passed_over() -> None:
    """Whatever the store answers for it, the table is read from the log."""
    lake = grown(14)
    lake.store.before = once("get", ".gz", Unavailable("slow down"))
    assert live(lake) == list(range(1, 15))


def test_one_of_another_log_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """If the log was deleted and began again, what is left of the old one is not believed."""
    lake = grown(13)
    for key in lake.keys(f"{HOME}log/"):
        lake.store.delete(BUCKET, key)
    digest = write(lake, [entry(1, "dt=1", nonce="of another log")])
    assert live(lake) == [1]
    more = (entry(number, "dt=1", takes="partitions", nonce=f"new {number}") for number in range(2, 40))
    write(lake, more, after=digest)
    with caplog.at_level(logging.WARNING):
        assert live(lake) == [39]
    assert f"{checkpoint_key(HERE, 13)}: it is not of this log" in caplog.text


def test_a_commit_writes_it_and_does_not_need_it() -> None:
    """The commit of the 13th entry succeeds where the checkpoint cannot be written."""
    for failure in (None, Unavailable("no checkpoint today")):
        lake = grown(12)
        job = lake.sealed({"dt=1/a": b"a"})
        if failure is not None:
            lake.store.before = once("put", ".gz", failure)
        assert job.commit().generation == 13
        assert bool(lake.keys(f"{HOME}checkpoints/")) == (failure is None)
        assert lake.job().commit().generation == 13
        assert lake.receipt_key(OURS) in lake.keys("")


def test_it_survives_what_others_remove() -> None:
    """A replacement of the whole destination leaves the checkpoints."""
    lake = grown(13)
    lake.sealed({"a": b"a"}, committer="directory").commit()
    assert lake.keys(f"{HOME}checkpoints/") == [checkpoint_key(HERE, 13)]
    assert live(lake) == [14]
