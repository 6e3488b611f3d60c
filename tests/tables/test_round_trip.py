"""Any table, written through a task and read back, is the same multiset of rows."""

from __future__ import annotations

import datetime as dt
import io
from collections import Counter
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.destination import NULL_DIRECTORY
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.store.memory import MemoryStore
from tests.protocol.building import OURS

#: Characters that no key may have.
_NOT_IN_KEYS = "\x00" + "".join(map(chr, range(0x80, 0xA0)))
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=_NOT_IN_KEYS), max_size=6)
_MOMENTS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
_WHOLE = st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2200, 1, 1))

#: Types of columns, with such values of them as all formats can hold.
_KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), _TEXT),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.decimal128(12, 3), st.decimals(-(10**8), 10**8, places=3)),
    (pa.date32(), st.dates(dt.date(1582, 10, 15))),
    (pa.timestamp("us"), _MOMENTS),
    (pa.timestamp("us", "Asia/Tokyo"), _WHOLE),
    (pa.binary(), st.binary(max_size=6)),
    (pa.list_(pa.int32()), st.lists(st.none() | st.integers(0, 9), max_size=3)),
    (pa.struct([("a", pa.string()), ("b", pa.list_(pa.float64()))]),
     st.fixed_dictionaries({"a": st.none() | _TEXT, "b": st.none() | st.lists(st.floats(), max_size=2)})),
    (pa.map_(pa.string(), pa.int64()),
     st.dictionaries(_TEXT, st.none() | st.integers(0, 9), max_size=2).map(lambda d: list(d.items()))),
]  # fmt: skip

#: Types that a directory has a text for.
_PARTITION_KINDS = [kind for kind in _KINDS[:10] if not pa.types.is_floating(kind[0])]

#: Types, with such values of them as pyarrow can write to ORC.
_ORC_KINDS = [*_KINDS[:8], (pa.timestamp("us"), _WHOLE), *_KINDS[9:11]]

_NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5)


@st.composite
def tables(draw: st.DrawFn, *, partitions: int, only: list[Any] | None = None) -> pa.Table:
    """Draw a table whose first columns can be partition columns."""
    named = _NAMES if not partitions else _NAMES.filter(lambda name: not name.startswith("."))
    names = draw(st.lists(named, min_size=partitions + 1, max_size=partitions + 4, unique_by=str.lower))
    count = draw(st.integers(0, 12))
    columns = []
    for number in range(len(names)):
        kinds = _PARTITION_KINDS if number < partitions else only or _KINDS
        kind, values = draw(st.sampled_from(kinds))
        found = draw(st.lists(st.none() | values, min_size=count, max_size=count))
        columns.append(pa.array(found, kind))
    return pa.table(columns, names=names)


def multiset(rows: list[dict[str, Any]]) -> Counter[str]:
    """Count rows by their values, with NaN and both zeros as values of their own."""
    return Counter(repr(sorted((name, in_utc(value)) for name, value in row.items())) for row in rows)


def in_utc(value: Any) -> Any:
    """Return a time in the zone of all times in files."""
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo else value


def written(table: pa.Table, **arguments: Any) -> list[tuple[str, bytes]]:
    """Write a table through a job, and return its visible files with their directories."""
    store = MemoryStore()
    job = Job.setup(store, "s3://lake/t", options=JobOptions(conflict_mode="append"), job_id=OURS)
    with job.task_attempt("s", "1", "0", "1", threads=0) as attempt:
        attempt.write_table(table, **arguments)
        job.seal_stage("s", "1", [attempt.commit()])
    job.seal()
    job.commit()
    assert not list(store.list_uploads("lake", ""))
    keys = [info.key for info in store.list_objects("lake", "t/") if "/part-" in info.key]
    return [(key[2:].rpartition("/")[0], store.get("lake", key).body) for key in keys]


@settings(max_examples=60, deadline=None)
@given(tables(partitions=0), st.sampled_from([{}, {"maxRecordsPerFile": "3"}, {"compression": "zstd"}]))
def test_parquet_has_every_row_as_it_was(table: pa.Table, options: dict[str, str]) -> None:
    """Whatever the types and nulls, the rows of all files are those of the table."""
    files = written(table, options=options)
    found = pa.concat_tables(pq.read_table(io.BytesIO(body)) for _, body in files)
    assert found.column_names == table.column_names
    assert multiset(found.to_pylist()) == multiset(table.to_pylist())


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2).flatmap(lambda count: st.tuples(st.just(count), tables(partitions=count))))
def test_directories_and_files_together_have_every_row(drawn: tuple[int, pa.Table]) -> None:
    """The text of a row's directory, with the row of its file, has everything that the table had."""
    count, table = drawn
    names = table.column_names[:count]
    found: Counter[str] = Counter()
    for directory, body in written(table, partition_by=names):
        told = dict(each.split("=", 1) for each in directory.split("/"))
        values = [unquote(text) for text in told.values()]
        assert [unquote(name) for name in told] == names
        rest = pq.read_table(io.BytesIO(body))
        assert rest.column_names == table.column_names[count:]
        for rows, times in multiset(rest.to_pylist()).items():
            found[repr((values, rows))] += times
    expected: Counter[str] = Counter()
    for row in table.to_pylist():
        values = [_text(row.pop(name)) for name in names]
        expected[repr((values, next(iter(multiset([row])))))] += 1
    assert found == expected


@settings(max_examples=40, deadline=None)
@given(tables(partitions=0, only=_ORC_KINDS), st.sampled_from([{}, {"maxRecordsPerFile": "3"}]))
def test_orc_has_every_row_as_it_was(table: pa.Table, options: dict[str, str]) -> None:
    """ORC's files have the rows too, of columns that are not nested."""
    found = pa.concat_tables(
        pyarrow.orc.read_table(io.BytesIO(body)).rename_columns(table.column_names).cast(table.schema)
        for _, body in written(table, format="orc", options=options)
    )
    assert multiset(found.to_pylist()) == multiset(table.to_pylist())


def _text(value: Any) -> str:
    """Return a partition value as Spark casts it to string, by other means than the writer's."""
    if value is None or value == "":
        return NULL_DIRECTORY
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        text = value.strftime("%H:%M:%S.%f").rstrip("0").rstrip(".")
        return f"{value.year:04d}-{value.month:02d}-{value.day:02d} {text}"
    if isinstance(value, Decimal):
        return f"{value:f}"
    return str(value)
