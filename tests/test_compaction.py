"""Compaction: fewer, larger files, the same rows, and never somebody else's."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_s3commit import (
    DestinationChanged,
    DestinationNotEmpty,
    InvalidOption,
    Job,
    JobOptions,
    MemoryStore,
    compact,
    compaction,
    history,
    latest_manifest,
    manifest_files,
    rollback,
    sweep,
    verify,
    write_job,
    write_table,
)
from airflow_s3commit.protocol.model.delta import COMPACTION
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import partition_of
from airflow_s3commit.protocol.model.sealed_job import SparkField, SparkSchema, WrittenColumns
from airflow_s3commit.protocol.publication import publish_table
from airflow_s3commit.tables.columns import decoded, footer_text, from_text
from airflow_s3commit.tables.write import write_batches
from tests.protocol.building import Crash, WatchedStore
from tests.protocol.published import versions

HOME = Destination.parse("s3://lake/t/")
SPARK = "org.apache.spark.version"
DIRECTORIES = ("2013-01-01", "a/b", "50% off", None)


@pytest.fixture
def store() -> WatchedStore:
    """A store in memory with a bucket."""
    return WatchedStore(["lake"])


def append(store: MemoryStore, first: int, mode: Any = "append", **columns: pa.Array) -> None:
    """Commit one file of two rows for each partition."""
    names = [name for name in DIRECTORIES for _ in range(2)]
    ids = pa.array(range(first, first + len(names)), pa.int32())
    data = pa.table({"id": ids, "dt": pa.array(names, pa.string()), **columns})
    write_table(data, HOME, store=store, conflict_mode=mode, partition_by=["dt"])


def appended(store: MemoryStore, times: int = 4) -> None:
    """Make a table of so many files a partition."""
    for number in range(times):
        append(store, 100 * number)


def rows(store: MemoryStore) -> list[dict[str, Any]]:
    """Return all rows of the table as its files have them, with their partition, in the order of ``id``."""
    found = []
    for entry in history(store, HOME):
        for file in manifest_files(store, entry):
            if not any(info.key == file.key for info in store.list_objects("lake", file.key)):
                continue
            table = pq.ParquetFile(io.BytesIO(store.get("lake", file.key).body)).read()
            found += [{**row, "dt": partition_of(HOME.relative(file.key) or "")} for row in table.to_pylist()]
    return sorted(found, key=lambda row: row["id"])


def files(store: MemoryStore) -> list[str]:
    """Return the keys of the table's objects."""
    return [info.key for info in store.list_objects("lake", "t/dt=")]


def test_rows_are_the_same_in_fewer_files(store: WatchedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each partition has one file with the rows of all; its records have rows and columns as before."""
    monkeypatch.setattr(compaction, "_PARTITIONS", len(DIRECTORIES) - 1)
    appended(store)
    before, schemas = rows(store), latest_manifest(store, HOME).schemas
    done = compact(store, HOME)
    assert (len(files(store)), rows(store)) == (len(DIRECTORIES), before)
    assert (done.files, done.rows, done.left) == (len(DIRECTORIES), len(before), 0)
    manifest = latest_manifest(store, HOME)
    assert (manifest.generation, manifest.schemas) == (done.generation, schemas)
    assert (manifest.counts.rows, manifest.replaced.files) == (len(before), 16)
    assert manifest.counts.columns["id"].least == 0
    assert verify(store, HOME).sound
    assert list(store.list_uploads("lake", "")) == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.large_list(pa.null()), [None, None]),
        (pa.list_(pa.null(), 2), [None, None]),
        (pa.list_(pa.struct([("a", pa.null())])), [{"a": None}] * 3),
        (pa.map_(pa.string(), pa.null()), [("a", None), ("b", None)]),
    ],
)
def test_nulls_in_lists_are_written_and_compacted(
    store: WatchedStore, kind: pa.DataType, value: list[Any]
) -> None:
    """Their number stays, though Arrow's cast of such a list to its own type breaks it."""
    for number in range(4):
        append(store, 100 * number, nulls=pa.array([value, None] * len(DIRECTORIES), kind))
    before = rows(store)
    assert [row["nulls"] for row in before[:2]] == [value, None]
    assert compact(store, HOME).files == len(DIRECTORIES)
    assert rows(store) == before


def test_other_partitions_stay(store: WatchedStore) -> None:
    """Only the chosen partitions are replaced, even by a job that judges the whole destination."""
    appended(store)
    before = rows(store)
    compact(store, HOME, partitions=["dt=2013-01-01"], job_options=JobOptions(committer="directory"))
    assert rows(store) == before
    assert len(files(store)) == 4 * (len(DIRECTORIES) - 1) + 1


def test_a_compact_table_is_left_alone(store: WatchedStore) -> None:
    """A second compaction commits nothing, and one that at least halves no partition neither."""
    appended(store)
    compact(store, HOME)
    assert compact(store, HOME).generation is None
    append(store, 1_000)
    assert compact(store, HOME, target_bytes=100).generation is None


def test_a_dry_run_changes_nothing(store: WatchedStore) -> None:
    """It names partitions, files and bytes, and no object differs."""
    appended(store)
    before = {info.key: info.etag for info in store.list_objects("lake", "")}
    planned = compact(store, HOME, partitions=["dt=2013-01-01"], dry_run=True)
    (one,) = planned.partitions
    assert (one.partition, one.files, one.after) == ("dt=2013-01-01", 4, 1)
    for target, after in ((one.bytes - 1, [2]), (one.bytes // 2 - 1, [])):
        again = compact(store, HOME, partitions=[one.partition], target_bytes=target, dry_run=True)
        assert ([found.after for found in again.partitions], again.left) == (after, 1 - len(after))
    assert {info.key: info.etag for info in store.list_objects("lake", "")} == before


def test_files_end_at_the_target_size(store: WatchedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files are read in pieces, from disk, and the new ones are of the size that was asked for."""
    monkeypatch.setattr(compaction, "_PIECE", 1_000)
    monkeypatch.setattr(compaction, "_ROWS", 2_000)
    for number in range(8):
        ids = pa.array(range(number * 5_000, number * 5_000 + 5_000))
        write_table(
            pa.table({"id": ids, "text": pc.cast(ids, pa.string())}),
            HOME,
            store=store,
            conflict_mode="append",
        )
    before = rows(store)
    sizes = [info.size for info in store.list_objects("lake", "t/part-")]
    done = compact(store, HOME, target_bytes=sum(sizes) // 3)
    after = [info.size for info in store.list_objects("lake", "t/part-")]
    assert 2 <= len(after) == done.files <= 4
    assert latest_manifest(store, HOME).schemas
    assert rows(store) == before


def test_a_column_that_came_later_is_null_before(store: WatchedStore) -> None:
    """Files of older columns are written with those of all jobs, in the widest types."""
    append(store, 0)
    names = [name for name in DIRECTORIES for _ in range(2)]
    wider = pa.table({"id": pa.array(range(100, 108), pa.int64()), "dt": names, "new": ["x"] * 8})
    write_table(wider, HOME, store=store, conflict_mode="append", partition_by=["dt"])
    compact(store, HOME)
    found = rows(store)
    assert [row["new"] for row in found] == [None] * 8 + ["x"] * 8
    (text,) = latest_manifest(store, HOME).schemas
    assert '"long"' in text


def test_columns_in_another_order_keep_their_values(store: WatchedStore) -> None:
    """Columns of one type are told apart by their names, not by their places."""
    for columns in ({"id": [1, 2], "other": [10, 20]}, {"other": [30, 40], "id": [3, 4]}):
        write_table(pa.table(columns), HOME, store=store, conflict_mode="append")
    before = rows(store)
    compact(store, HOME)
    assert rows(store) == before


def test_the_job_is_the_callers(store: WatchedStore) -> None:
    """Options of its files, and facts about it, are kept beside those of a compaction."""
    appended(store)
    compact(store, HOME, options={"compression": "zstd"}, context={"who": "me"})
    context = latest_manifest(store, HOME).context
    assert (context["who"], context["name"]) == ("me", COMPACTION)
    assert all(key.endswith(".zstd.parquet") for key in files(store))


def test_retained_files_can_be_rolled_back_to(store: WatchedStore) -> None:
    """With the job's option ``retain`` the old files stay, and a rollback returns to them."""
    appended(store)
    before, old = rows(store), files(store)
    seen = latest_manifest(store, HOME).generation
    compact(store, HOME, job_options=JobOptions(retain="7d"))
    assert {*old} < {*files(store)}
    rollback(store, HOME, to=seen)
    assert sorted(files(store)) == sorted(old)
    assert rows(store) == before


def test_a_partition_has_many_spellings(store: WatchedStore) -> None:
    """A slash at its end, or an escape in another way, chooses the same partition."""
    appended(store)
    planned = compact(store, HOME, partitions=["dt=a%2fb/", "dt=a%2Fb"], dry_run=True)
    assert [one.partition for one in planned.partitions] == ["dt=a%2Fb"]


def test_every_directory_of_the_partition_is_chosen(store: WatchedStore) -> None:
    """Two directories may differ by an escape alone: what programs put there is one partition to readers."""
    names = ["dt=a b", "dt=a%20b"]
    for name in names * 2:
        _put(store, pa.table({"id": [1]}), directory=name)
    planned = compact(store, HOME, partitions=["dt=a b"], dry_run=True)
    assert [one.partition for one in planned.partitions] == names


def test_another_job_with_uploads_is_not_overtaken(store: WatchedStore) -> None:
    """A partition in which a job has uploads pending is refused, by the job's name; others are compacted."""
    appended(store)
    job = Job.setup(store, HOME, options=JobOptions(conflict_mode="append"))
    with job.task_attempt("s", "1", "0", "0", threads=0) as attempt:
        attempt.open("dt=2013-01-01/x.parquet").close()
        attempt.commit()
    with pytest.raises(
        DestinationNotEmpty, match=f"job {job.reference.job_id} has an upload pending in 'dt=2013"
    ):
        compact(store, HOME)
    assert compact(store, HOME, partitions=["dt=a%2Fb"]).files == 1
    store.create_upload("lake", "t/dt=50%25 off/x.parquet", metadata={}, content_type="")
    with pytest.raises(DestinationNotEmpty, match="another program has an upload pending in 'dt=50%25 off'"):
        compact(store, HOME, partitions=["dt=50%25 off"])


def test_an_object_of_another_program_stays(store: WatchedStore) -> None:
    """A replace would delete it; it is named, and nothing is changed."""
    appended(store)
    store.put("lake", "t/dt=2013-01-01/foreign.parquet", b"rows")
    before = files(store)
    for dry_run in (True, False):
        with pytest.raises(DestinationNotEmpty, match=r"foreign\.parquet is no file of the table"):
            compact(store, HOME, dry_run=dry_run)
    assert files(store) == before


def test_an_object_that_another_program_puts_meanwhile_stays(store: WatchedStore) -> None:
    """The compaction is refused and aborted when it would take the object from readers that list."""
    appended(store)
    before, key = files(store), "t/dt=2013-01-01/foreign.parquet"
    store.before = lambda call: _once_at(store, call, lambda: store.put("lake", key, b"rows"))
    with pytest.raises(DestinationChanged, match=r"foreign\.parquet there meanwhile"):
        compact(store, HOME)
    store.rest()
    assert store.get("lake", key).body == b"rows"
    store.delete("lake", key)
    assert files(store) == before


def test_a_commit_meanwhile_wins(store: WatchedStore) -> None:
    """Rows that another job adds while files are read are not lost: the compaction is refused and aborted."""
    appended(store)
    store.before = lambda call: _once_at(store, call, lambda: append(store, 900))
    with pytest.raises(DestinationChanged) as refused:
        compact(store, HOME)
    assert any(note.endswith("compact again") for note in refused.value.__notes__)
    store.rest()
    assert len(files(store)) == 5 * len(DIRECTORIES)
    assert {900, 907} < {row["id"] for row in rows(store)}
    assert list(store.list_uploads("lake", "")) == []
    assert verify(store, HOME).sound


@pytest.mark.parametrize("verb", ["head", "get_range"])
def test_a_replace_while_files_are_read_wins(store: WatchedStore, verb: str) -> None:
    """If a file that is to be read was replaced, the compaction is refused and aborted."""
    appended(store)

    def late(call: Any) -> None:
        if call.verb == verb and call.key.startswith("t/dt="):
            store.rest()
            append(store, 900, "replace")

    store.before = late
    with pytest.raises(DestinationChanged, match="is gone or changed") as refused:
        compact(store, HOME)
    assert any(note.endswith("compact again") for note in refused.value.__notes__)
    assert [row["id"] for row in rows(store)] == [*range(900, 908)]
    assert list(store.list_uploads("lake", "")) == []
    assert verify(store, HOME).sound


def test_a_commit_before_the_set_up_wins(store: WatchedStore) -> None:
    """Rows that are added between the read of the table and the set-up of the job are not lost."""
    appended(store)

    def late(call: Any) -> None:
        if call.verb == "list_uploads":
            store.rest()
            append(store, 900)

    store.before = late
    with pytest.raises(DestinationChanged):
        compact(store, HOME)
    assert {900, 907} < {row["id"] for row in rows(store)}
    assert len(files(store)) == 5 * len(DIRECTORIES)
    assert list(store.list_uploads("lake", "")) == []


def _once_at(store: WatchedStore, call: Any, act: Callable[[], object]) -> None:
    """Act at the first upload of a part by the compaction."""
    if call.verb == "create_upload":
        store.rest()
        act()


@pytest.mark.parametrize("counted", [1, 3])
def test_a_file_with_another_number_of_rows_is_refused(store: WatchedStore, counted: int) -> None:
    """What its job has counted is not what it is."""
    for _ in range(2):
        _put(store, pa.table({"id": [1, 2]}), counted=counted)
    with pytest.raises(DestinationChanged, match=f"has 2 rows; {counted} were committed"):
        compact(store, HOME)
    assert len(files(store)) == 2


def test_files_without_rows_are_left_alone(store: WatchedStore) -> None:
    """A partition of them would have no file, and be gone."""
    for _ in range(2):
        _put(store, pa.table({"id": pa.array([], pa.int64())}), counted=0)
    assert (compact(store, HOME).partitions, len(files(store))) == ([], 2)


def test_files_with_etags_that_are_no_digests_are_compacted(
    store: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under SSE-KMS: no record has the ETag that an object gets, and its name says whose it is."""
    monkeypatch.setattr("airflow_s3commit.store.memory._md5", hashlib.sha256)
    appended(store)
    before = rows(store)
    assert compact(store, HOME).files == len(DIRECTORIES)
    assert rows(store) == before


def test_a_file_that_was_written_over_is_refused(store: WatchedStore) -> None:
    """What is no longer as committed is not rewritten, also if it changes while it is read."""
    appended(store)
    key = files(store)[0]
    body = store.get("lake", key).body

    def late(call: Any) -> None:
        if call.verb == "get_range" and call.key == key:
            store.rest()
            store.put("lake", key, bytes(len(body)))

    store.before = late
    with pytest.raises(DestinationChanged, match="is gone or changed"):
        compact(store, HOME)
    for other in (b"shorter", body.replace(b"dt", b"td")[::-1]):
        store.put("lake", key, other)
        with pytest.raises(DestinationChanged, match="is not what was committed"):
            compact(store, HOME)
    assert list(store.list_uploads("lake", "")) == []


def _unknown(store: WatchedStore) -> None:
    with (
        write_job(HOME, store=store, conflict_mode="append") as writer,
        writer.open("dt=x/a.parquet") as file,
    ):
        file.write(b"no columns are recorded of these bytes")


def _by_spark(store: WatchedStore) -> None:
    columns = WrittenColumns(
        format="parquet",
        spark=SparkSchema(fields=[SparkField(name="id", type="integer")]),
        partitions=["dt"],
    )
    with write_job(HOME, store=store, conflict_mode="append") as writer:
        with writer.open("dt=x/a.parquet") as file:
            file.write(b"Spark's rows")
        writer.describe(1, columns.text())


def _other_type(store: WatchedStore) -> None:
    data = pa.table({"id": ["text"], "dt": ["2013-01-01"]})
    write_table(data, HOME, store=store, conflict_mode="append", partition_by=["dt"])


def _other_columns(store: WatchedStore) -> None:
    data = pa.table({"other": [1], "dt": ["2013-01-01"]})
    write_table(data, HOME, store=store, conflict_mode="append", partition_by=["dt"])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_unknown, "recorded no columns"),
        (_by_spark, "Spark's own writers"),
        (_other_type, "column 'id' is int32 and string"),
        (_other_columns, "no job has written all columns"),
    ],
)
def test_what_pyarrow_would_change_is_refused(
    store: WatchedStore, spoil: Callable[[WatchedStore], None], words: str
) -> None:
    """Columns that are unknown, or that no job has written all of, are refused before any upload."""
    appended(store)
    spoil(store)
    spoil(store)
    before = files(store)
    with pytest.raises(InvalidOption, match=words):
        compact(store, HOME)
    assert files(store) == before
    assert compact(store, HOME, partitions=["dt=a%2Fb"]).files == 1


@pytest.mark.parametrize(
    ("key", "how", "words"),
    [
        ("org.apache.spark.legacyINT96", {}, "legacyINT96"),
        ("org.apache.spark.legacyDateTime", {}, "legacyDateTime"),
        ("x", {"use_deprecated_int96_timestamps": True}, "INT96"),
        ("x", {}, ""),
    ],
)
def test_times_that_would_be_others_are_refused(
    store: WatchedStore, key: str, how: dict[str, Any], words: str
) -> None:
    """Files that were put may have what pyarrow writes otherwise, and Spark reads otherwise without a key."""
    made = pa.table({"at": pa.array([0], pa.timestamp("us"))}).replace_schema_metadata(
        {key: "", SPARK: "3.5"}
    )
    _put(store, made, **how)
    _put(store, made, **how)
    if words:
        with pytest.raises(InvalidOption, match=words):
            compact(store, HOME)
        assert len(files(store)) == 2
        return
    compact(store, HOME)
    (file,) = files(store)
    footer = pq.read_metadata(io.BytesIO(store.get("lake", file).body))
    assert footer.metadata == {SPARK.encode(): b"3.5"}


def _put(
    store: WatchedStore,
    made: pa.Table,
    recorded: pa.Table | None = None,
    directory: str = "dt=x",
    counted: int | None = None,
    **how: Any,
) -> None:
    """Commit a file that another program has written, with the columns of its footer."""
    bodies = []
    for one in (made, recorded or made):
        sink = io.BytesIO()
        pq.write_table(one, sink, **how)
        bodies.append(sink.getvalue())
    _put_bytes(store, bodies[0], bodies[1], directory, counted)


def _put_bytes(
    store: WatchedStore,
    made: bytes,
    recorded: bytes | None = None,
    directory: str = "dt=x",
    counted: int | None = None,
) -> None:
    with write_job(HOME, store=store, conflict_mode="append") as writer:
        with writer.open(f"{directory}/a.parquet") as file:
            file.write(made)
            file.close(rows=counted)
        writer.describe(1, footer_text(recorded or made, ["dt"]))


@pytest.mark.parametrize("put_first", [False, True])
def test_a_known_type_of_a_partition_column_is_kept(store: WatchedStore, *, put_first: bool) -> None:
    """A file that was put has its partition columns in its path alone, where they have no type."""
    jobs = [
        lambda: _put(store, pa.table({"id": [1]}), directory="dt=2013-01-01", counted=1),
        lambda: write_table(
            pa.table({"id": [2], "dt": [date(2013, 1, 1)]}),
            HOME,
            store=store,
            partition_by=["dt"],
            conflict_mode="append",
        ),
    ]
    for job in jobs if put_first else reversed(jobs):
        job()
    compact(store, HOME)
    (text,) = latest_manifest(store, HOME).schemas
    assert WrittenColumns.of(text, "here").spark.fields[-1] == SparkField(name="dt", type="date")


def test_a_column_that_is_in_no_record_is_not_dropped(store: WatchedStore) -> None:
    """A file that has more columns than its job has recorded is not written anew without them."""
    whole = pa.table({"id": [1], "more": [2]})
    for _ in range(2):
        _put(store, whole, whole.select(["id"]))
    with pytest.raises(InvalidOption, match="without a change of 'more'"):
        compact(store, HOME)
    assert len(files(store)) == 2


def test_a_type_that_pyarrow_does_not_compare_is_refused(store: WatchedStore) -> None:
    """Half floats of another program have no bounds there: the refusal says how Spark rewrites them."""
    for _ in range(2):
        _put(store, pa.table({"h": pa.array([np.float16(1.5)])}))
    with pytest.raises(InvalidOption, match=r"cannot be compacted by pyarrow: .*halffloat"):
        compact(store, HOME)
    assert len(files(store)) == 2


def test_texts_that_pyarrow_holds_otherwise_are_refused(store: WatchedStore) -> None:
    """Categories of pandas among texts are read as texts, and written anew by Spark alone."""
    _put(store, pa.table({"s": ["x"]}))
    _put(store, pa.table({"s": pa.array(["y"]).dictionary_encode()}))
    with pytest.raises(InvalidOption, match=r"compacted by pyarrow: .* incompatible types"):
        compact(store, HOME)
    assert len(files(store)) == 2


def _categories(number: int) -> pa.Array:
    return (
        pa.array([f"{number}-{row}" for row in range(100)])
        .dictionary_encode()
        .cast(pa.dictionary(pa.int8(), pa.string()))
    )


@pytest.mark.parametrize(
    "column",
    [
        _categories,
        lambda n: pa.LargeListArray.from_arrays(pa.array(range(101), pa.int64()), _categories(n)),
        lambda n: pa.StructArray.from_arrays([_categories(n)], names=["a"]),
        lambda _: pa.array(["x"] * 2_000, pa.string_view()),
        lambda _: pa.array([b"x"] * 2_000, pa.binary_view()),
        lambda _: pa.array(["x"] * 2_000).dictionary_encode(),
        lambda _: pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * 2_000, pa.binary(16))),
        lambda _: pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"] * 2_000)),
    ],
)
def test_columns_of_other_libraries_can_still_be_read(
    store: WatchedStore, column: Callable[[int], pa.Array]
) -> None:
    """The record says what the new file has: Parquet keeps no dictionary, and 300 codes are not 8 bits."""
    for number in range(3):
        _put(store, pa.table({"c": column(number)}))
    before = [row["c"] for number in range(3) for row in pa.table({"c": column(number)}).to_pylist()]
    compact(store, HOME)
    (key,) = files(store)
    made = pq.read_table(io.BytesIO(store.get("lake", key).body))
    (text,) = latest_manifest(store, HOME).schemas
    recorded = from_text(text, "here").files
    assert made.column("c").cast(recorded.field("c").type).to_pylist() == before
    assert made.schema.field("c").type in (recorded.field("c").type, decoded(recorded).field("c").type)
    assert "dictionary" not in str(recorded)


@pytest.mark.parametrize(
    ("column", "most"),
    [
        (pa.array(["x" * 2_000] * 5_000), 4_096),
        (pa.array([np.random.default_rng(seed).bytes(1 << 20) for seed in range(8)]), 5),
    ],
)
def test_rows_are_read_a_few_at_a_time(
    store: WatchedStore, monkeypatch: pytest.MonkeyPatch, column: pa.Array, most: int
) -> None:
    """One text that a dictionary gives to all rows is as long in each of them, and a row may be large."""
    seen: list[int] = []

    def watched(writer: Any, batches: Any, *rest: Any, **named: Any) -> Any:
        return write_batches(writer, (seen.append(one.num_rows) or one for one in batches), *rest, **named)

    monkeypatch.setattr(compaction, "write_batches", watched)
    for _ in range(2):
        _put(store, pa.table({"c": column}))
    assert compact(store, HOME).rows == sum(seen) == 2 * len(column)
    assert max(seen) <= most


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([1], pa.duration("us")), "duration"),
        (pa.array([{"d": 1}], pa.struct([("d", pa.duration("ns"))])), "duration"),
        (pa.array([[1]], pa.list_view(pa.int8())), "list_view"),
        (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1], pa.int8())), "extension<arrow.bool8"),
        ("interval 1 day", "Interval"),
        ("'01:02:03+02'::timetz", r"Time\(isAdjustedToUTC=true"),
        ("1::variant", "Variant"),
        ("'POINT(1 2)'::geometry", "geo"),
    ],
)
def test_types_that_pyarrow_would_write_as_others_are_refused(
    store: WatchedStore, tmp_path: Path, column: pa.Array | str, words: str
) -> None:
    """A duration would be a number for all other readers, an interval bytes, a geometry too."""
    made = tmp_path / "made.parquet"
    if isinstance(column, str):
        duckdb.sql(f"copy (select {column} c) to '{made}' (format parquet)")
    else:
        pq.write_table(pa.table({"c": column}), made)
    for _ in range(2):
        _put_bytes(store, made.read_bytes())
    with pytest.raises(InvalidOption, match=f"without a change of '{words}"):
        compact(store, HOME)
    assert len(files(store)) == 2


def test_names_like_those_of_types_are_compacted(store: WatchedStore) -> None:
    """Only types are refused, at any depth, whatever the columns are called."""
    names = ["duration", "Interval", "x (Geometry)", "Variant", "INT96", "list_view"]
    kind = pa.struct([(name, pa.int8()) for name in names])
    for _ in range(2):
        _put(store, pa.table({**{name: [1] for name in names}, "all": pa.array([{}], kind)}))
    assert compact(store, HOME).rows == 2


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([pa.table([[1], [2]], names=["a", "a"])] * 2, "duplicate field names"),
        (
            [pa.table({"at": pa.array([1], pa.timestamp(unit))}) for unit in ("ns", "us", "us")],
            "would lose data",
        ),
    ],
)
def test_what_arrow_refuses_is_no_bug(store: WatchedStore, tables: list[pa.Table], words: str) -> None:
    """Files whose columns pyarrow cannot unite, or whose values it cannot cast, are refused with advice."""
    for table in tables:
        _put(store, table)
    with pytest.raises(InvalidOption, match=f"compacted by pyarrow: .*{words}.* Have Spark"):
        compact(store, HOME)
    assert len(files(store)) == len(tables)


@pytest.mark.parametrize(
    ("arguments", "words"), [({"partitions": ["dt=no"]}, "'dt=no'"), ({"target_bytes": 0}, "above 0")]
)
def test_bad_input_is_named(store: WatchedStore, arguments: dict[str, Any], words: str) -> None:
    """An unknown partition and an impossible size are refused."""
    appended(store)
    with pytest.raises(InvalidOption, match=words):
        compact(store, HOME, **arguments)


@pytest.mark.slow
def test_a_kill_at_any_call_changes_no_row(store: WatchedStore) -> None:
    """Wherever the process dies, a sweep leaves the rows as they were, and nothing pending or foreign."""
    calls = 0
    while True:
        place = WatchedStore(["lake"])
        for first in (0, 100):
            data = pa.table({"id": [first], "dt": ["x"]})
            write_table(data, HOME, store=place, conflict_mode="append", partition_by=["dt"])
        before, left = rows(place), count(-calls)
        place.before = lambda _, place=place, left=left: place.crash() if next(left) == 0 else None
        try:
            compact(place, HOME)
        except Crash:
            place.rest()
            sweep(place, HOME, older_than=0, dry_run=False)
            assert rows(place) == before
            assert list(place.list_uploads("lake", "")) == []
            assert verify(place, HOME).sound
        else:
            break
        calls += 1
    assert calls > 20


def test_readers_of_delta_are_told_that_no_row_changed(store: WatchedStore) -> None:
    """The version of a compaction says so of each file, and that of any other commit does not."""
    append(store, 0)
    append(store, 100)
    publish_table(store, HOME)
    assert compact(store, HOME).partitions
    append(store, 200)
    said = [
        {one["dataChange"] for action in actions for one in action.values() if "dataChange" in one}
        for actions in versions(store, HOME.uri).values()
    ]
    assert said == [{True}, {False}, {True}]
