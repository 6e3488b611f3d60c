"""Tables of plain Python, through a task attempt, to files and back."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
import re
from collections import Counter
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from airflow_s3commit.exceptions import InvalidOption, JobClosed
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.steps.fold import manifest_files
from airflow_s3commit.protocol.write_job import write_table
from airflow_s3commit.store.memory import MemoryStore
from airflow_s3commit.tables import write as write_module
from airflow_s3commit.tables.columns import UnsupportedColumn, UnsupportedPartition, stored_schema
from airflow_s3commit.tables.encoder import Encoder, check_columns
from airflow_s3commit.tables.options import FORMATS, TableOptions
from airflow_s3commit.tables.write import file_stem
from airflow_s3commit.testing import FaultyStore
from tests.cases import each
from tests.protocol.building import OURS

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = pa.table({"dt": ["a", "b", "a"], "x": [1, 2, 3]})


@pytest.fixture
def store() -> MemoryStore:
    """Return an empty store."""
    return MemoryStore()


@pytest.fixture(params=["magic", "directory", "partitioned"])
def job(request: pytest.FixtureRequest, store: MemoryStore) -> Job:
    """Return a job of each committer."""
    options = JobOptions(committer=request.param, conflict_mode="append")
    return Job.setup(store, "s3://lake/t", options=options, job_id=OURS)


def write(job: Job, *tables: Any, **arguments: Any) -> dict[str, bytes]:
    """Write tables in one attempt, commit, and return the visible files."""
    with job.task_attempt("load", "1", "map.7", "1") as attempt:
        for table in tables:
            attempt.write_table(table, **arguments)
        job.seal_stage("load", "1", [attempt.commit()])
    job.seal()
    manifest = job.commit()
    store, bucket = job._context.store, "lake"
    entries = manifest_files(store, manifest)
    return {entry.key.removeprefix("t/"): store.get(bucket, entry.key).body for entry in entries}


def rows(files: dict[str, bytes]) -> Counter[tuple[str, Any]]:
    """Count the values of x by directory."""
    found: Counter[tuple[str, Any]] = Counter()
    for path, body in files.items():
        for value in pq.read_table(io.BytesIO(body))["x"].to_pylist():
            found[path.rpartition("/")[0], value] += 1
    return found


def test_tables_of_one_attempt_share_directories(job: Job) -> None:
    """A second table goes to further files, and what is committed has the rows of both."""
    files = write(job, TABLE, TABLE.slice(0, 1), partition_by=["dt"])
    assert rows(files) == Counter({("dt=a", 1): 2, ("dt=a", 3): 1, ("dt=b", 2): 1})
    assert [path.rpartition(".c")[2] for path in sorted(files)] == [
        "000.snappy.parquet", "001.snappy.parquet", "000.snappy.parquet",
    ]  # fmt: skip
    assert all("/part-map_7_" in path and f"-load-{OURS}.c" in path for path in files)


class OneBatch:
    """A table of a library that has a single batch."""

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        """Return the batch."""
        return TABLE.to_batches()[0].__arrow_c_array__(requested_schema)


class Frame(pd.DataFrame):
    """A table of a library that extends pandas."""


def _tables() -> Iterator[Any]:
    frame = pd.DataFrame({"dt": ["a", "b", "a"], "x": [1, 2, 3]}, index=["p", "q", "r"])
    yield pytest.param(TABLE, id="table")
    yield pytest.param(TABLE.to_batches()[0], id="batch")
    yield pytest.param(OneBatch(), id="array")
    yield pytest.param(frame, id="pandas")
    yield pytest.param(Frame(frame), id="a subclass")
    yield pytest.param(frame.astype({"dt": "category"}), id="categories")
    # As polars hands over a categorical.
    views = pa.array(["a", "b"]).cast(pa.string_view())
    looked_up = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.uint32()), views)
    yield pytest.param(pa.table([looked_up, TABLE["x"]], names=["dt", "x"]), id="views of categories")
    yield pytest.param(
        pa.table([TABLE["dt"].cast(pa.string_view()), TABLE["x"]], names=["dt", "x"]), id="views"
    )


@pytest.mark.parametrize("table", list(_tables()))
def test_every_library_speaks_arrow(job: Job, table: Any) -> None:
    """Tables of any library end in the same files, an index left out."""
    files = write(job, table, partition_by=["dt"])
    assert rows(files) == Counter({("dt=a", 1): 1, ("dt=a", 3): 1, ("dt=b", 2): 1})
    assert {tuple(pq.read_schema(io.BytesIO(body)).names) for body in files.values()} == {("x",)}


def test_one_name_is_one_partition_column(job: Job) -> None:
    """A text in the place of a list of names is one name, not one for each character."""
    table = TABLE.append_column("d", TABLE["dt"]).append_column("t", TABLE["dt"])
    assert {path.rpartition("/")[0] for path in write(job, table, partition_by="dt")} == {"dt=a", "dt=b"}


def test_python_objects_of_polars_are_refused(job: Job) -> None:
    """Arrow's interface has their addresses in this process, as bytes."""
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame([polars.Series("o", [{1}], polars.Object)])
    with (
        job.task_attempt("load", "1", "0", "1") as attempt,
        pytest.raises(UnsupportedColumn, match="objects"),
    ):
        attempt.write_table(frame)


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary(), pa.string_view()])
def test_wide_rows_of_one_batch_are_cast_a_few_at_a_time(
    store: MemoryStore, kind: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text takes as much memory as it has bytes, so rows are counted by them, from any place on."""
    monkeypatch.setattr(write_module, "_BYTES", 1_000)
    table = pa.table({"x": pa.array([f"{number:0400}" for number in range(9)]).cast(kind)})
    schema = stored_schema(table.schema)
    batches = list(write_module._stored_rows(table.to_reader(), schema))
    assert max(batch.num_rows for batch in batches) == 2
    assert pa.Table.from_batches(batches).equals(table.cast(schema))


def test_a_relation_and_a_reader_are_read_once_and_streamed(job: Job) -> None:
    """DuckDB's relations and readers of batches are written as they come."""
    relation = duckdb.sql("select 'a' as dt, range::bigint as x from range(5000)")
    reader = pa.RecordBatchReader.from_batches(TABLE.schema, iter(TABLE.to_batches()))
    files = write(job, relation, reader, partition_by=["dt"])
    expected = Counter(("dt=a", n) for n in range(5000))
    expected.update([("dt=a", 1), ("dt=a", 3), ("dt=b", 2)])
    assert rows(files) == expected


def test_a_file_s_name_is_one_element_of_a_path() -> None:
    """Whatever tasks and stages are called, and two of them never share a name."""
    names = ["load", "load/1", "load 1", "load.1", "ö", ""]
    stems = [file_stem(task, stage, OURS) for task in names for stage in [*names, None]]
    assert len({*stems}) == len(stems)
    assert all(re.fullmatch(f"part-[A-Za-z0-9_-]*{OURS}", stem) for stem in stems)


def test_formats_are_read_back_by_others(job: Job) -> None:
    """Each format's files hold the rows, and are named as Spark names them."""
    with job.task_attempt("load", "1", "0", "1") as attempt:
        attempt.write_table(TABLE, format="orc")
        attempt.write_table(TABLE, format="csv", options={"header": "true", "compression": "gzip"})
        attempt.write_table(TABLE, format="json")
        job.seal_stage("load", "1", [attempt.commit()])
    job.seal()
    job.commit()
    found = {
        info.key.partition(".")[2]: job._context.store.get("lake", info.key).body
        for info in job._context.store.list_objects("lake", "t/part-")
    }
    assert sorted(found) == ["c000.zstd.orc", "c001.csv.gz", "c002.json"]
    assert pyarrow.orc.read_table(io.BytesIO(found["c000.zstd.orc"])).to_pydict() == TABLE.to_pydict()
    assert gzip.decompress(found["c001.csv.gz"]) == b'"dt","x"\n"a",1\n"b",2\n"a",3\n'
    lines = found["c002.json"].decode().splitlines()
    assert [json.loads(line) for line in lines] == TABLE.to_pylist()


@each("name", FORMATS["orc"].codecs)
def test_an_orc_file_has_the_compression_that_its_name_says(name: str) -> None:
    """Each codec is the one of that name in the file's own footer."""
    sink = io.BytesIO()
    encoder = Encoder(sink, TABLE.schema, TableOptions(format="orc", compression=name))
    encoder.write(TABLE)
    encoder.close()
    found = pyarrow.orc.ORCFile(io.BytesIO(sink.getvalue())).compression.lower()
    assert FORMATS["orc"].suffix(name) == (".orc" if found == "uncompressed" else f".{found}.orc")


_DAY = 86_400_000_000


@each(
    ("kind", "edge", "step"),
    [
        (pa.date32(), -141_427, 1),
        (pa.timestamp("us"), -141_427 * _DAY, 1_000_000),
        (pa.timestamp("us", "UTC"), 0, 1),
        (pa.timestamp("us"), -1_000_000, 1),
    ],
)
def test_orc_has_no_time_that_spark_reads_as_another(kind: pa.DataType, edge: int, step: int) -> None:
    """From 1582-10-15 on days are written, and before 1970 whole seconds; what comes before is refused."""

    def encode(value: int) -> None:
        table = pa.table(
            {"t": pa.array([None, value], pa.int32() if kind == pa.date32() else None).cast(kind)}
        )
        encoder = Encoder(io.BytesIO(), table.schema, TableOptions(format="orc"))
        encoder.write(table)
        encoder.close()

    encode(edge)
    with pytest.raises(UnsupportedColumn, match=r"column 't' has (dates|times) before"):
        encode(edge - step)


@each("kind", [pa.uint8(), pa.null(), pa.time32("s"), pa.list_(pa.int8()), pa.map_(pa.string(), pa.int8())])
def test_types_that_orc_lacks_are_refused(kind: pa.DataType) -> None:
    """They would come back as others, or not as they were."""
    with pytest.raises(UnsupportedColumn, match=r"'x' has the type .* cannot write to ORC"):
        check_columns(pa.schema([("x", kind)]), "orc")


def test_an_empty_table_is_a_file_with_its_schema(job: Job) -> None:
    """Readers find the columns; a partitioned table of nothing has no file."""
    (body,) = write(job, TABLE.slice(0, 0)).values()
    assert pq.read_schema(io.BytesIO(body)) == TABLE.schema


def test_columns_of_nulls_are_rows_too(job: Job) -> None:
    """Rows that take no memory are counted and written."""
    (body,) = write(job, pa.table({"x": pa.nulls(3)})).values()
    assert pq.read_table(io.BytesIO(body)).num_rows == 3


def test_directories_are_named_as_asked_and_take_types_that_files_lack(job: Job) -> None:
    """As in Spark the name's case is the caller's, and only the other columns have to suit the format."""
    table = pa.table({"dt": pa.array([7], pa.uint8()), "x": [1]})
    (path,) = write(job, table, partition_by=["DT"], format="orc")
    assert path.startswith("DT=7/part-")


def test_types_become_what_readers_know_without_rounding(job: Job) -> None:
    """Times are microseconds, dictionaries their values; what would lose digits is refused."""
    table = pa.table(
        {
            "x": pa.array([1], pa.uint32()),
            "ms": pa.array([dt.datetime(2020, 1, 1)], pa.timestamp("ms")),
            "ns": pa.array([1_000], pa.timestamp("ns", "UTC")),
            "n": pa.array([[Decimal("1.5")]], pa.large_list(pa.decimal256(20, 2))),
            "half": pa.array([1.5], pa.float16()),
            "day": pa.array([dt.date(2020, 1, 1)], pa.date64()),
            "s": pa.array([dt.time(1)], pa.time32("s")),
            "t": pa.array([dt.time(1)], pa.time64("ns")),
        }
    )
    (body,) = write(job, table).values()
    schema = pq.read_schema(io.BytesIO(body))
    assert schema.types[:3] == [pa.uint32(), pa.timestamp("us"), pa.timestamp("us", "UTC")]
    assert schema.types[3:] == [
        pa.list_(pa.field("element", pa.decimal128(20, 2))),
        pa.float32(),
        pa.date32(),
        *[pa.time64("us")] * 2,
    ]
    with job.task_attempt("more", "1", "0", "1") as attempt:
        for kind, form in product((pa.timestamp("ns"), pa.time64("ns")), ("parquet", "json")):
            with pytest.raises(UnsupportedColumn, match=r"'ns' .*would lose data"):
                attempt.write_table(pa.table({"ns": pa.array([1_001], kind)}), format=form)


def test_types_of_other_libraries_are_replaced_at_any_depth(job: Job) -> None:
    """Keys and values of maps, fields and items become what readers know, with their values."""
    looked_up = pa.dictionary(pa.int8(), pa.string())
    twice = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(["a"], looked_up))
    kinds = [
        pa.map_(pa.string_view(), pa.large_string()),
        pa.struct([("a", looked_up)]),
        pa.list_(pa.large_list(pa.binary(1)), 1),
    ]
    values = [[("k", "v")], {"a": "x"}, [[b"y", None]]]
    columns = [twice, *(pa.array([value], kind) for value, kind in zip(values, kinds, strict=True))]
    (body,) = write(job, pa.table(columns, names=list("tmsl"))).values()
    found = pq.read_table(io.BytesIO(body))
    assert found.to_pylist() == [dict(zip("tmsl", ["a", *values], strict=True))]
    inner = pa.list_(pa.field("element", pa.list_(pa.field("element", pa.binary()))))
    assert found.schema.types == [
        pa.string(), pa.map_(pa.string(), pa.string()), pa.struct([("a", pa.string())]), inner
    ]  # fmt: skip


@each(
    ("table", "arguments", "says"),
    [
        (pa.table({"x": pa.array([1], pa.uint8())}), {}, "'x' of job .* type uint8"),
        (pa.table({"t": [dt.time(1)]}), {}, "'t' of job .* type time64"),
        (pa.table({"s": [{"a b": 1}]}), {}, "'a b' of job .* no names with"),
        (pa.table({"x": [1], "n": pa.nulls(1)}), {"partition_by": ["x"]}, "'n' of job .* type"),
        (pa.table({"x": [1]}), {"format": "orc"}, "orc files"),
        (pa.table({"x": [1]}), {"format": "csv"}, "are unknown: write Parquet"),
    ],
)
@each("published", [False, True])
def test_columns_that_delta_lacks_are_refused_before_any_upload(
    table: pa.Table, arguments: Any, says: str, published: bool
) -> None:
    """Of a job that publishes its table, and of any job of a table that is published."""
    store, options = FaultyStore(MemoryStore()), JobOptions(publish="delta")
    if published:
        write_table(pa.table({"y": [1]}), "s3://lake/t/", store=store, job_options=options)
        store.calls.clear()
        options = JobOptions(conflict_mode="append")
    with pytest.raises(InvalidOption, match=says):
        write_table(table, "s3://lake/t/", store=store, job_options=options, **arguments)
    assert not [call for call in store.calls if call.verb == "create_upload" and "/part-" in call.key]


@pytest.mark.parametrize(
    ("table", "arguments", "error", "says"),
    [
        (TABLE, {"options": {"header": "true"}}, InvalidOption, "header is only for csv"),
        (TABLE, {"partition_by": ["day"]}, UnsupportedPartition, "'day' is not among dt, x"),
        (TABLE, {"partition_by": ["dt", "x"]}, UnsupportedPartition, "none is left for the files"),
        ([1, 2], {}, TypeError, "list is not a table"),
        *((one, {}, TypeError, "is not a table") for one in (pd.Series([1]), TABLE["x"])),
        *(
            (table, {"format": form}, UnsupportedColumn, "has no columns")
            for form in FORMATS
            for table in (pa.table({}), pd.DataFrame(index=[1, 2]))
        ),
        *(
            (TABLE, {"options": {name: value}}, InvalidOption, f"option {name} is .*: give it as text")
            for name, value in (("maxRecordsPerFile", 1_000), ("compression", None), ("openFiles", True))
        ),
        (
            pa.table({"d": pa.array([None], pa.decimal128(5, -2))}), {},
            UnsupportedColumn, r"'d' has the type decimal128\(5, -2\)",
        ),
        (pa.table({"d": pa.array([1], pa.duration("s"))}), {}, UnsupportedColumn, r"duration\[s\]"),
        (pa.table({"l": [[1]]}), {"format": "csv"}, UnsupportedColumn, "cannot write to CSV"),
        (pa.table({"t": [dt.time(1)]}), {"format": "orc"}, UnsupportedColumn, "cannot write to ORC"),
        (pa.table({"s": [{"x": 1}]}), {"format": "orc"}, UnsupportedColumn, "'s' .* cannot write to ORC"),
        *(
            (pa.table({"m": pa.array([None], kind)}), {"format": "json"}, UnsupportedColumn, "write to JSON")
            for kind in (
                pa.map_(pa.int64(), pa.int64()),
                pa.list_(pa.struct([("a", pa.map_(pa.int8(), pa.int8()))])),
                pa.map_(pa.string(), pa.map_(pa.date32(), pa.int8())),
            )
        ),
        (pa.table({"deep": [[{"a": dt.timedelta(1)}]]}), {}, UnsupportedColumn, "'deep' has the type dur"),
        *(
            (pa.table({"d": pa.DictionaryArray.from_arrays(pa.array(at), pa.array(of), safe=False)}), {},
             UnsupportedColumn, f"'d' cannot be written .*{says}")
            for at, of, says in (([5], ["a"], "out of bounds"), ([0], [[1]], "Unsupported cast"))
        ),
        *(
            (pa.table({"v": pa.array([None], kind)}), {}, UnsupportedColumn, f"'v' has the type {says}")
            for kind, says in (
                (pa.list_view(pa.int8()), "list_view<"),
                (pa.struct([("inner", pa.list_view(pa.int8()))]), "list_view<"),
                (pa.run_end_encoded(pa.int32(), pa.string()), "run_end_encoded<"),
                (pa.list_(pa.struct([])), ".*write to PARQUET"),
            )
        ),
        (
            pa.table({"b": [b"\xff"]}), {"format": "csv"},
            UnsupportedColumn, "CSV cannot hold a value .*UTF8",
        ),
        (pa.table([[1], [2]], names=["a", "a"]), {}, UnsupportedColumn, "two columns have the same name"),
        (
            pa.table({"d": pa.array([Decimal(1)], pa.decimal256(39, 0))}), {},
            UnsupportedColumn, "'d' has decimals of more than 38 digits",
        ),
        (
            pa.table({"t": pa.array([-1], pa.timestamp("us", "UTC"))}), {"format": "orc"},
            UnsupportedColumn, "before 1970 with fractions",
        ),
        (
            pa.table({"t": pa.array([-150_000], pa.int32()).cast(pa.date32())}), {"format": "orc"},
            UnsupportedColumn, "dates before 1582-10-15",
        ),
        (
            pa.table({"t": pa.array([3_000_000], pa.int32()).cast(pa.date32())}), {"format": "json"},
            UnsupportedColumn, "JSON cannot hold a value",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused_and_leaves_nothing(  # noqa: PLR0917
    job: Job, store: MemoryStore, table: Any, arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    """The message names the column or option, and the attempt that fails leaves no upload."""
    with pytest.raises(error, match=says), job.task_attempt("load", "1", "0", "1") as attempt:
        attempt.write_table(table, **arguments)
    assert list(store.list_uploads("lake", "t/")) == []


@pytest.mark.parametrize("fails_late", [False, True])
def test_a_part_of_a_table_is_never_committed(job: Job, store: MemoryStore, *, fails_late: bool) -> None:
    """An attempt whose write failed between its files commits nothing; before the first, nothing is lost."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"x": [1]})
        yield pa.record_batch({"x": [2]})
        raise OSError("the source broke")

    source = pa.RecordBatchReader.from_batches(pa.schema([("x", pa.int64())]), batches())
    arguments = {"options": {"maxRecordsPerFile": "1", "rowBytes": "1"}} if fails_late else {"format": "no"}
    with job.task_attempt("load", "1", "0", "1") as attempt:
        with pytest.raises(OSError if fails_late else InvalidOption):
            attempt.write_table(source, **arguments)
        assert list(store.list_uploads("lake", "t/")) == []
        attempt.write_table(TABLE)
        if fails_late:
            with pytest.raises(JobClosed, match="whose write failed"):
                attempt.commit()
        else:
            assert attempt.commit().rows == len(TABLE)


def test_an_attempt_that_ended_takes_no_table(job: Job) -> None:
    """After its commit an attempt refuses more rows, so that none are lost unseen."""
    with job.task_attempt("load", "1", "0", "1") as attempt:
        attempt.commit()
        with pytest.raises(JobClosed):
            attempt.write_table(TABLE)


def test_files_end_near_the_size_that_is_asked_for(job: Job) -> None:
    """With a target size no file but the last is smaller, and none much larger."""
    table = pa.table({"x": pa.array(range(50_000), pa.int64())})
    files = write(job, table, options={"targetFileBytes": "64k", "compression": "none"})
    sizes = [len(files[path]) for path in sorted(files)]
    assert len(sizes) > 3
    assert all(64 << 10 <= size <= 100 << 10 for size in sizes[:-1])
    found = pa.concat_tables(pq.read_table(io.BytesIO(files[path])) for path in sorted(files))
    assert found["x"].to_pylist() == list(range(50_000))
