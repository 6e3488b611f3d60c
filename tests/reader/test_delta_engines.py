"""Engines that read Delta see each generation of a published table whole, and their writers are refused."""

from __future__ import annotations

import datetime as dt
import json
import operator as op
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import fs

from airflow_s3commit import JobOptions, MemoryStore, dataset, rollback, sweep, write_job, write_table
from airflow_s3commit.protocol.steps import publish
from airflow_s3commit.testing import FaultyStore
from tests.fakes import ManualClock
from tests.protocol.published import versions

deltalake = pytest.importorskip("deltalake")
polars = pytest.importorskip("polars")

URI = "s3://lake/flights/"
PARTITIONS = ["day", "region", "at"]
NOON = dt.datetime(2013, 1, 1, 12, 30)

#: A null, a slash, a percent sign and a space beside dates and times.
REGIONS = (None, "us/east", "50% off", "a b")


class Lake:
    """A published table, and what the engines of this process see of it."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(("lake",), min_part_bytes=1, now=self.clock.time)
        self.path = path
        self._copies = 0

    def write(self, first: int, day: dt.date, mode: str = "append", store: Any = None, **more: Any) -> None:
        """Commit a row for each region, with ids from a first one on."""
        columns = more.pop("columns", {})
        rows = [
            {"id": first + number, "price": 1.5 * first, "day": day, "region": region, "at": NOON, **columns}
            for number, region in enumerate(REGIONS)
        ]
        options = JobOptions(conflict_mode=mode, publish="delta", **more)  # type: ignore[arg-type]
        table = pa.Table.from_pylist(rows)
        write_table(table, URI, store=store or self.store, partition_by=PARTITIONS, job_options=options)

    def copied(self) -> str:
        """Return the path of a copy of all objects on the local disk."""
        self._copies += 1
        copy = self.path / str(self._copies)
        for info in list(self.store.list_objects("lake", "flights/")):
            file = copy / "lake" / info.key
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self.store.get("lake", info.key, limit=10**9).body)
        return str(copy / "lake" / "flights")

    def truth(self, generation: int | None = None) -> list[dict[str, Any]]:
        """Return the rows by this package's own reader."""
        disk = fs.SubTreeFileSystem(str(Path(self.copied()).parents[1]), fs.LocalFileSystem())
        types = pa.schema([("day", pa.date32()), ("region", pa.string()), ("at", pa.timestamp("us"))])
        read = dataset(self.store, URI, generation=generation, partition_schema=types, filesystem=disk)
        return _sorted(read.to_table())


def _sorted(table: pa.Table) -> list[dict[str, Any]]:
    rows = [{name: row[name] for name in sorted(row)} for row in table.to_pylist()]
    return sorted(rows, key=lambda row: row["id"])


def _by_deltalake(path: str, version: int | None) -> list[dict[str, Any]]:
    return _sorted(deltalake.DeltaTable(path, version=version).to_pyarrow_table())


def _by_polars(path: str, version: int | None) -> list[dict[str, Any]]:
    return _sorted(polars.read_delta(path, version=version).to_arrow())


ENGINES: dict[str, Callable[[str, int | None], list[dict[str, Any]]]] = {
    "deltalake": _by_deltalake,
    "polars": _by_polars,
}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a lake without a table."""
    return Lake(tmp_path)


def _history(lake: Lake) -> Iterator[str]:
    """Change the table in every way, and yield after each change what it was."""
    first, second = dt.date(2013, 1, 1), dt.date(2013, 1, 2)
    lake.write(0, first)
    yield "append"
    lake.write(10, second)
    yield "append"
    lake.write(20, first, "replace", retain="2h")
    yield "replace"
    with pytest.raises(RuntimeError), write_job(URI, store=lake.store, conflict_mode="append"):
        raise RuntimeError("the write fails")
    yield "abort"
    lake.write(30, second, columns={"carrier": "UA", "seen": dt.datetime(2013, 1, 1, tzinfo=dt.UTC)})
    yield "added column"
    rollback(lake.store, URI, to=3, retain="1s", clock=lake.clock)
    yield "rollback"
    lake.clock.advance(86_400)
    sweep(lake.store, URI, older_than=60, dry_run=False, clock=lake.clock)
    yield "retention"


@pytest.mark.parametrize("engine", [*ENGINES])
def test_each_generation_is_equal_row_by_row(engine: str, lake: Lake) -> None:
    """After every kind of change, at the newest version and, while files are retained, at older ones."""
    read, kept = ENGINES[engine], list[list[dict[str, Any]]]()
    for what in _history(lake):
        path = lake.copied()
        assert read(path, None) == lake.truth(), what
        kept.append(lake.truth())
        for version, rows in enumerate(kept if what in ("abort", "added column", "rollback") else []):
            assert read(path, version) == rows, (what, version)
    assert [len(rows) for rows in kept] == [4, 8, 8, 8, 12, 8, 8]
    assert len(versions(lake.store, URI)) == 7


def test_a_reader_sees_the_old_or_the_new_rows_at_every_moment(lake: Lake) -> None:
    """Whatever a replace has just done: whoever reads then with a retention sees all of one generation."""
    lake.write(0, dt.date(2013, 1, 1))
    seen, store = [], FaultyStore(lake.store)
    older = lake.truth()
    store.after = lambda _: seen.append(_by_deltalake(lake.copied(), None))
    lake.write(10, dt.date(2013, 1, 1), "replace", store=store, retain="2h")
    newer = lake.truth()
    assert len(seen) > 20
    assert all(rows in (older, newer) for rows in seen)
    assert seen[0] == older
    assert seen[-1] == newer


@pytest.mark.parametrize("write", ["append", "overwrite", "delete", "update", "vacuum", "compact", "restore"])
def test_other_writers_are_refused(write: str, lake: Lake) -> None:
    """The table's feature is one that they do not have; nothing of the table changes."""
    lake.write(0, dt.date(2013, 1, 1))
    lake.write(10, dt.date(2013, 1, 1), "replace", retain="2h")
    path = lake.copied()
    table = deltalake.DeltaTable(path)
    rows = table.to_pyarrow_table()
    before = sorted(file for file in Path(path).rglob("*") if file.is_file())
    acts: dict[str, Callable[[], object]] = {
        "append": lambda: deltalake.write_deltalake(table, rows, mode="append"),
        "overwrite": lambda: deltalake.write_deltalake(table, rows, mode="overwrite"),
        "delete": lambda: table.delete("id = 1"),
        "update": lambda: table.update({"id": "7"}),
        "vacuum": lambda: table.vacuum(0, dry_run=False, enforce_retention_duration=False),
        "compact": table.optimize.compact,
        "restore": lambda: table.restore(0),
    }
    with pytest.raises(deltalake.exceptions.DeltaError):
        acts[write]()
    assert sorted(file for file in Path(path).rglob("*") if file.is_file()) == before


def test_a_checkpoint_stands_for_the_versions_before_it(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written now and then, and named when it is there; readers that find it see the same."""
    monkeypatch.setattr(publish, "LOOK_EVERY", 2)
    monkeypatch.setattr(publish, "MOST_VERSIONS", 4)
    put, log, made = lake.store.put, "flights/_delta_log/", []

    def watched(bucket: str, key: str, *args: Any, **kwargs: Any) -> Any:
        if key.startswith(log) and not key.endswith(".json"):
            made.append(key)
        return put(bucket, key, *args, **kwargs)

    monkeypatch.setattr(lake.store, "put", watched)
    for number in range(6):
        lake.write(10 * number, dt.date(2013, 1, 1 + number))
    assert made == [f"{log}{4:020}.checkpoint.parquet", f"{log}_last_checkpoint"]
    for version in range(4):
        lake.store.delete("lake", f"{log}{version:020}.json")
    for read in ENGINES.values():
        assert read(lake.copied(), None) == lake.truth()


def test_a_checkpoint_keeps_nothing_of_another_program(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that somebody wrote ahead is in no checkpoint: moved away, nothing of it is left."""
    monkeypatch.setattr(publish, "LOOK_EVERY", 2)
    monkeypatch.setattr(publish, "MOST_VERSIONS", 2)
    lake.write(0, dt.date(2013, 1, 1))
    lake.write(10, dt.date(2013, 1, 2))
    first = versions(lake.store, URI)[0]
    (gone, *_) = (action["add"] for action in first if "add" in action)
    foreign = {"remove": {"path": gone["path"], "dataChange": True, "deletionTimestamp": 0}}
    key = f"flights/_delta_log/{3:020}.json"
    lake.store.put("lake", key, json.dumps(foreign).encode())
    lake.write(20, dt.date(2013, 1, 3))
    lake.store.delete("lake", key)
    lake.write(30, dt.date(2013, 1, 4))
    assert lake.store.head("lake", f"flights/_delta_log/{2:020}.checkpoint.parquet")
    for read in ENGINES.values():
        assert read(lake.copied(), None) == lake.truth()


#: Bounds of NaN and infinity are unknown, those of long texts cut, and nulls alone have none.
ODD_FILES: tuple[dict[str, list[Any]], ...] = (
    {"f": [1.0, 2.0], "s": ["a", "b"], "b": [False, False], "d": [Decimal("1.10"), Decimal("9.99")]},
    {"f": [2.0, float("inf")], "s": ["a", "z" * 200], "b": [False, True], "d": [Decimal("-1.10"), None]},
    {"f": [float("nan"), 1.0], "s": ["\uffff", "\U0001f600"], "b": [None, True], "d": [None, None]},
    {"f": [None, None], "s": ["", None], "b": [None, None], "d": [Decimal("0.00"), Decimal("5.00")]},
    {"d": [Decimal("2.00"), None], "b": [True, False], "s": ["b", "c"], "f": [-0.0, 5.0]},
    {"s": ["y" * 200, "y" * 128], "f": [3.0, 4.0], "b": [True, True], "d": [None, Decimal("3.00")]},
)


def test_no_engine_loses_rows_to_a_filter(tmp_path: Path) -> None:
    """Engines skip files by their bounds, and find what they would without, whatever a filter compares."""
    lake, kinds = (
        Lake(tmp_path),
        {"f": pa.float64(), "s": pa.string(), "b": pa.bool_(), "d": pa.decimal128(9, 2)},
    )
    files = []
    for number, columns in enumerate(ODD_FILES):
        rows = {name: pa.array(values, kinds[name]) for name, values in columns.items()}
        files.append(pa.table({"id": [2 * number, 2 * number + 1], **rows}))
        options = JobOptions(conflict_mode="append", publish="delta")
        write_table(files[-1], URI, store=lake.store, job_options=options)
    whole = pa.concat_tables(file.select(["id", *kinds]) for file in files)
    path = lake.copied()
    by_arrow = deltalake.DeltaTable(path).to_pyarrow_dataset()
    by_polars, plain = polars.scan_delta(path), polars.from_arrow(whole)
    for name, compare in product(kinds, (op.lt, op.le, op.eq, op.ge, op.gt, op.ne)):
        # NaN compared with NaN is each engine's own affair.
        for value in (one for one in whole.column(name).drop_null().unique() if one == one):  # noqa: PLR0124
            passes = compare(pc.field(name), value)
            wanted = whole.filter(passes)["id"].to_pylist()
            assert sorted(by_arrow.to_table(filter=passes)["id"].to_pylist()) == wanted, (
                name,
                compare,
                value,
            )
            also = compare(polars.col(name), polars.lit(value.as_py(), dtype=plain.schema[name]))
            found = by_polars.filter(also).collect()["id"].sort().to_list()
            assert found == plain.filter(also)["id"].to_list(), (name, compare, value)
    for name in kinds:
        absent = pc.field(name).is_null()
        assert (
            sorted(by_arrow.to_table(filter=absent)["id"].to_pylist())
            == whole.filter(absent)["id"].to_pylist()
        )
