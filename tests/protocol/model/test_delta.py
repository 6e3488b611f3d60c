"""Versions of a Delta table: their columns, values and bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from airflow_s3commit import Destination
from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.protocol.model.delta import (
    SAME_ROWS,
    DeltaColumns,
    TableChange,
    columns_of,
    partition_values,
    version_lines,
)
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.sealed_job import ColumnStatistics, Counts
from airflow_s3commit.protocol.model.table import Commit, Entry, Table
from tests.cases import each
from tests.protocol.published import columns

HOME = Destination.parse("s3://lake/flights/")
PLAIN = (("id", "long"), ("dt", "date"))


def _entry(number: int = 3, published: int = 3, **more: Any) -> Entry:
    commit = Commit(mode="append", partitions={}, counts=Counts(), files_sha256="x")
    made: dict[str, Any] = {"kind": "commit", "commit": commit, "job_id": "a", **more}
    return Entry(
        destination=HOME.uri, number=number, prev="p", since=1000, nonce="n-1", published=published, **made
    )


def _file(path: str, **more: Any) -> FileEntry:
    directory = path.rpartition("/")[0]
    return FileEntry(key=HOME.prefix + path, size=9, etag="e", partition=directory, **more)


def _version(
    entry: Entry,
    before: DeltaColumns | None = None,
    after: DeltaColumns | None = None,
    *,
    removed: Iterable[FileEntry] = (),
    added: Iterable[FileEntry] = (),
) -> list[dict[str, Any]]:
    change = after and TableChange(entry, Table(), before, after, {}, removed, added)
    return [json.loads(line) for line in version_lines(HOME, entry, change)]


def test_the_first_version_has_the_guard_the_columns_and_all_files() -> None:
    """Its lines are those of Delta's protocol, and its guard keeps other writers away."""
    made = columns_of({columns(("id", "long"), ("dt", "date")): "a job"})
    file = _file("dt=2013-01-01/a b.parquet", rows=2)
    lines = _version(_entry(), None, made, added=[file])
    assert [next(iter(line)) for line in lines] == ["commitInfo", "protocol", "metaData", "txn", "add"]
    assert lines[0]["commitInfo"]["s3commit"] == {"generation": 3, "nonce": "n-1", "job": "a"}
    assert lines[1]["protocol"]["minReaderVersion"] == 1
    assert lines[1]["protocol"]["writerFeatures"] == ["airflowS3commit"]
    assert json.loads(lines[2]["metaData"]["schemaString"])["fields"][0]["name"] == "id"
    assert lines[2]["metaData"]["partitionColumns"] == ["dt"]
    assert lines[3]["txn"] == {"appId": "airflow-s3commit:s3://lake/flights/", "version": 3}
    assert lines[4]["add"]["path"] == "dt=2013-01-01/a%20b.parquet"
    assert lines[4]["add"]["partitionValues"] == {"dt": "2013-01-01"}
    assert json.loads(lines[4]["add"]["stats"]) == {"numRecords": 2}


def test_a_later_version_repeats_neither_guard_nor_columns() -> None:
    """Only what changes is said; an entry without files is a version without files."""
    made = columns_of({columns(*PLAIN): "a job"})
    before, after = _file("dt=2013-01-01/a"), _file("dt=2013-01-01/b")
    lines = _version(_entry(4), made, made, removed=[before], added=[after])
    assert [next(iter(line)) for line in lines] == ["commitInfo", "txn", "remove", "add"]
    assert "stats" not in lines[3]["add"]
    lines = _version(_entry(5, kind="abandon", commit=None))
    assert [next(iter(line)) for line in lines] == ["commitInfo", "txn"]


def test_new_columns_are_said_with_the_same_id() -> None:
    """The table's id follows from its URI; a type that readers must know asks for more of them."""
    before = columns_of({columns(*PLAIN): "1"})
    after = columns_of({columns(*PLAIN): "1", columns(*PLAIN, ("at", "timestamp_ntz")): "2"})
    first, second = (_version(_entry(), one, two) for one, two in ((None, before), (before, after)))
    assert [next(iter(line)) for line in second] == ["commitInfo", "protocol", "metaData", "txn"]
    assert first[2]["metaData"]["id"] == second[2]["metaData"]["id"]
    assert second[1]["protocol"]["minReaderVersion"] == 3
    assert second[1]["protocol"]["readerFeatures"] == ["timestampNtz"]
    assert [field["name"] for field in after.fields] == ["id", "at", "dt"]


@each(
    ("kind", "fault"),
    [
        ("uint8", "type uint8"),
        ("time64[us]", "type time64"),
        ("duration[us]", "type duration"),
        ("timestamp[ns]", "type timestamp\\[ns"),
        ("void", "type void"),
        ("decimal(50,3)", r"type decimal\(50,3\)"),
        ("decimal(5,-2)", r"type decimal\(5,-2\)"),
        ("decimal(3,5)", r"type decimal\(3,5\)"),
        ({"type": "array", "elementType": "uint64", "containsNull": True}, "type uint64"),
        ({"type": "struct", "fields": [{"name": "a b", "type": "long"}]}, "'a b'.*rename"),
        (
            {"type": "struct", "fields": [{"name": "a", "type": "long"}, {"name": "A", "type": "long"}]},
            "same",
        ),
        ({"type": "udt"}, "type of a udt"),
    ],
)
def test_types_that_delta_lacks_are_refused_by_name(kind: Any, fault: str) -> None:
    """At any depth; the error names the column and who wrote it."""
    with pytest.raises(InvalidOption, match=fault):
        columns_of({columns(("x", kind), ("dt", "date")): "job 7"})


@each("name", ["a b", "a,b", "a;b", "a{b", "a}b", "a(b", "a)b", "a\nb", "a\tb", "a=b"])
def test_names_that_delta_lacks_are_refused(name: str) -> None:
    """Readers would not find such a column."""
    with pytest.raises(InvalidOption, match="rename it"):
        columns_of({columns((name, "long"), partitions=()): "job 7"})


def test_everything_in_a_nested_type_may_be_null() -> None:
    """So the texts of two writers are the same for the same columns."""
    inner = {"name": "x", "type": "long", "nullable": False, "metadata": {"a": 1}}
    kinds = (
        {"type": "struct", "fields": [inner]},
        {"type": "array", "elementType": "long", "containsNull": False},
        {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": False},
    )
    made = columns_of({columns(("a", kinds[0]), ("b", kinds[1]), ("c", kinds[2]), partitions=()): "1"})
    assert "false" not in made.text


def test_two_writers_that_disagree_are_refused() -> None:
    """About a type, a name's case, the partition columns; the error names the older one."""
    older = columns(*PLAIN)
    for newer, fault in (
        (columns(("id", "double"), ("dt", "date")), "job 2.*double.*long.*job 1"),
        (columns(("ID", "long"), ("dt", "date")), "'ID' of job 2 is 'id' in job 1"),
        (columns(("id", "long"), ("hour", "date"), partitions=("hour",)), "partition columns"),
        (columns(*PLAIN, form="orc"), "job 2 writes orc"),
        (columns(("id", "long"), ("Id", "long"), ("dt", "date")), "'id' and 'Id' of job 2"),
    ):
        with pytest.raises(InvalidOption, match=fault):
            columns_of({older: "job 1", newer: "job 2"})


def test_an_unknown_type_of_a_partition_column_is_that_of_others_or_text() -> None:
    """A file that was put has its partition columns in its path alone."""
    unknown, known = columns(("id", "long"), ("dt", "void")), columns(*PLAIN)
    assert columns_of({unknown: "1"}).partitions == {"dt": "string"}
    assert columns_of({unknown: "1", known: "2"}).partitions == {"dt": "date"}
    assert columns_of({known: "2", unknown: "1"}).partitions == {"dt": "date"}


@each(
    ("kind", "directory", "value"),
    [
        ("date", "dt=2013-01-01", "2013-01-01"),
        ("string", "dt=__HIVE_DEFAULT_PARTITION__", None),
        ("date", "dt=__HIVE_DEFAULT_PARTITION__", None),
        ("string", "dt=us%2Feast", "us/east"),
        ("string", "dt=50%25 off", "50% off"),
        ("timestamp", "dt=2013-01-01 03%3A00%3A00.5", "2013-01-01 03:00:00.5"),
        ("decimal(4,2)", "dt=1.50", "1.50"),
        ("boolean", "dt=true", "true"),
        ("long", "dt=-7", "-7"),
        ("byte", "dt=-128", "-128"),
        ("integer", "dt=07", "07"),
        ("decimal(2,2)", "dt=-0.25", "-0.25"),
        ("decimal(20,0)", "dt=12", "12"),
        ("double", "dt=-Infinity", "-Infinity"),
        ("timestamp", "dt=2013-01-01T03%3A00%3A00Z", "2013-01-01T03:00:00Z"),
        ("double", "dt=1.0E10", "1.0E10"),
    ],
)
def test_values_of_partitions(kind: str, directory: str, value: str | None) -> None:
    """They are what the directory says, without its escapes."""
    made = columns_of({columns(("id", "long"), ("dt", kind)): "1"})
    assert partition_values(directory, made) == {"dt": value}


@each(
    ("kind", "directory"),
    [
        ("date", "dt=20130101"), ("date", "dt=2013-W01-1"), ("date", "dt=2013-02-30"), ("long", "dt=1_000"),
        ("long", "dt= 7"), ("byte", "dt=128"), ("long", "dt=9223372036854775808"), ("double", "dt=1_0"),
        ("decimal(4,2)", "dt=1.5"), ("decimal(4,2)", "dt=123.00"), ("decimal(4,2)", "dt=NaN"),
        ("timestamp", "dt=2013-01-01"), ("timestamp", "dt=2013-01-01T03%3A00%3A00"),
        ("timestamp_ntz", "dt=2013-01-01T03%3A00%3A00Z"), ("date", "dt=yesterday"),
        ("long", "dt=1.5"), ("boolean", "dt=yes"), ("decimal(4,2)", "dt=x"),
        ("string", "region=eu"), ("string", "dt"), ("string", ""), ("string", "dt=1/hour=2"),
    ],
)  # fmt: skip
def test_other_directories_are_refused(kind: str, directory: str) -> None:
    """A value that is not of its column's type would make the whole table unreadable."""
    made = columns_of({columns(("id", "long"), ("dt", kind)): "1"})
    with pytest.raises(InvalidOption, match="have no place"):
        partition_values(directory, made)


def test_directories_are_in_the_order_of_the_columns() -> None:
    """Iceberg's records of a partition have its values in that order, and no names."""
    kinds = (("id", "long"), ("dt", "date"), ("hour", "long"))
    made = columns_of({columns(*kinds, partitions=("dt", "hour")): "1"})
    assert list(partition_values("dt=2013-01-01/hour=2", made)) == ["dt", "hour"]
    with pytest.raises(InvalidOption, match="have no place"):
        partition_values("hour=2/dt=2013-01-01", made)


def test_a_removed_file_has_the_values_of_the_columns_that_it_was_added_with() -> None:
    """A commit that replaces the whole table may partition it by another column."""
    before = columns_of({columns(*PLAIN): "1"})
    after = columns_of({columns(("id", "long"), ("hour", "long"), partitions=("hour",)): "2"})
    lines = _version(_entry(4), before, after, removed=[_file("dt=2013-01-01/a")], added=[_file("hour=2/b")])
    assert lines[-2]["remove"]["partitionValues"] == {"dt": "2013-01-01"}
    assert lines[-1]["add"]["partitionValues"] == {"hour": "2"}


def test_a_column_that_becomes_one_of_directories_is_said() -> None:
    """The names and types may be the same as before, and readers take its values from elsewhere."""
    before, after = (columns_of({columns(*PLAIN, partitions=names): "1"}) for names in ((), ("dt",)))
    assert before.text == after.text
    (told,) = [line["metaData"] for line in _version(_entry(4), before, after) if "metaData" in line]
    assert told["partitionColumns"] == ["dt"]


def test_only_a_compaction_after_the_first_version_changes_no_row() -> None:
    """A streaming reader skips such a version, and begins with the files of the first one."""
    made, file = columns_of({columns(*PLAIN): "1"}), _file("dt=2013-01-01/a")
    compaction = _entry(4, context={**SAME_ROWS, "dag_id": "nightly"})
    for entry, before, changes in (
        (compaction, None, True),
        (compaction, made, False),
        (_entry(4), made, True),
    ):
        assert _version(entry, before, made, added=[file])[-1]["add"]["dataChange"] is changes


def test_statistics_are_in_the_words_of_delta() -> None:
    """Decimals keep their digits; what may order values otherwise, or is nested, has no bounds."""
    struct = {"type": "struct", "fields": [{"name": "x", "type": "long"}]}
    kinds = (
        ("i", "long"), ("d", "decimal(20,2)"), ("t", "timestamp"), ("b", "boolean"), ("s", "string"),
        ("n", struct), ("bin", "binary"), ("void", "integer"),
    )  # fmt: skip
    made = columns_of({columns(*kinds, partitions=()): "1"})
    text_of_a_time = "2013-01-01T00:00:00+00:00"
    moment = "2013-01-01T00:00:00.000001+00:00"
    known = {
        "i": ColumnStatistics(nulls=1, least=1, greatest=5),
        "d": ColumnStatistics(least="-1.50", greatest="123456789012345678.25", decimal=True),
        "t": ColumnStatistics(least=moment, greatest=moment),
        "b": ColumnStatistics(nulls=0, least=False, greatest=True),
        "s": ColumnStatistics(least=text_of_a_time, greatest=text_of_a_time),
        "n": ColumnStatistics(nulls=2),
        "bin": ColumnStatistics(least="x", greatest="y"),
        "void": ColumnStatistics(values=0, nulls=3),
        "gone": ColumnStatistics(nulls=2, least=1),
    }
    text = _version(_entry(), None, made, added=[_file("a", rows=3, statistics=known)])[-1]["add"]["stats"]
    assert '"d":123456789012345678.25' in text
    time = moment.replace("+00:00", "Z")
    others = {"t": time, "s": text_of_a_time}
    assert json.loads(text) == {
        "numRecords": 3,
        "nullCount": {"i": 1, "b": 0, "void": 3},
        "minValues": {"i": 1, "d": -1.5, "b": False, **others},
        "maxValues": {"i": 5, "d": 123456789012345678.25, "b": True, **others},
    }


TEXT = ColumnStatistics(nulls=0, least="a", greatest="b")


@pytest.mark.parametrize(
    "odd",
    [
        {"s": ColumnStatistics(nulls=0, least="x")},
        {"s": ColumnStatistics(nulls=0, greatest="x")},
        {"s": ColumnStatistics(nulls=0, values=1)},
        {},
        {"s": ColumnStatistics(nulls=0, least='1},"x":{', greatest="1e5", decimal=True)},
        {"s": ColumnStatistics(nulls=0, least="1", greatest="5", decimal=True)},
        {"s": TEXT, "i": ColumnStatistics(nulls=0, least="1", greatest="5")},
        {"s": TEXT, "i": ColumnStatistics(nulls=0, least=False, greatest=True)},
    ],
)
def test_a_file_has_bounds_of_all_columns_or_of_none(odd: dict[str, ColumnStatistics]) -> None:
    """A bound that is missing beside others would hide the file from filters, and a damaged one the table."""
    made = columns_of({columns(("i", "long"), ("s", "string"), partitions=()): "1"})
    known = {"i": ColumnStatistics(nulls=0, least=1, greatest=5), **odd}
    text = _version(_entry(), None, made, added=[_file("a", rows=1, statistics=known)])[-1]["add"]["stats"]
    assert json.loads(text) == {"numRecords": 1, "nullCount": dict.fromkeys(known, 0)}


def test_bounds_of_the_first_32_columns_are_enough() -> None:
    """So many does a reader expect by Delta's default, and a writer know."""
    made = columns_of({columns(*((f"c{number}", "long") for number in range(33)), partitions=()): "1"})
    for count in (31, 32):
        known = {f"c{number}": ColumnStatistics(least=1, greatest=5) for number in range(count)}
        stats = _version(_entry(), None, made, added=[_file("a", statistics=known)])[-1]["add"].get("stats")
        assert (stats is not None) is (count == 32)


def test_an_entry_is_published_since_one_before_it_or_itself() -> None:
    """Its version is how many entries came since the first that is published."""
    assert _entry(7, 3).delta_version == 4
    assert _entry(7, 0).delta_version is None
    with pytest.raises(ValueError, match="published since entry 8"):
        _entry(7, 8)
