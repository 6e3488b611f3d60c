"""Commits as snapshots of an Iceberg table, read back by pyiceberg."""

from __future__ import annotations

import threading
from decimal import Decimal
from shutil import copyfile

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.expressions import GreaterThan

from airflow_s3commit import InvalidOption, InvalidRecord, JobOptions, rollback, sweep, write_table
from airflow_s3commit.compaction import compact
from airflow_s3commit.iceberg import publish_iceberg
from airflow_s3commit.testing import Crash
from tests.iceberg.conftest import NAME, PARTITIONS, open_catalog, rows, shown
from tests.iceberg.stopping import Stop, StoppingCatalog, StoppingIO

pytestmark = [pytest.mark.seaweedfs]


def test_each_generation_is_equal(lake, catalog) -> None:
    """After each kind of commit pyiceberg reads the rows that this package reads, also by generation."""
    published = []

    def publish() -> None:
        published.extend(publish_iceberg(lake.store, lake.uri, catalog, NAME).published)
        assert shown(catalog) == lake.truth()

    lake.write(rows(0))
    publish()
    lake.write(rows(100))
    publish()
    lake.write(rows(200, PARTITIONS[1:3]), "replace")
    publish()
    lake.abort()
    publish()
    lake.write(rows(300, PARTITIONS[:1], extra=pa.array(["new", None])))
    publish()
    rollback(lake.store, lake.uri, to=3, retain="1d")
    publish()
    lake.write(rows(400, PARTITIONS[3:]), "replace")
    publish()
    before = lake.truth()
    assert compact(lake.store, lake.uri, job_options=JobOptions(retain="1d")).partitions
    publish()
    assert shown(catalog) == before
    assert published == [2, 3, 4, 6, 7, 8, 9]
    for generation in published:
        assert shown(catalog, generation) == lake.truth(generation)
    assert publish_iceberg(lake.store, lake.uri, catalog, NAME).published == []


def test_a_table_with_a_history_begins_with_the_newest_generation(lake, catalog) -> None:
    """Files that older generations had may be gone: they are in no snapshot."""
    lake.write(rows(0), retain="0s")
    lake.write(rows(100), "replace", retain="0s")
    lake.abort()
    report = publish_iceberg(lake.store, lake.uri, catalog, NAME)
    assert (report.generation, report.published) == (3, [3])
    assert shown(catalog) == lake.truth()


def test_files_that_a_sweep_has_deleted_are_in_no_newer_snapshot(lake, catalog) -> None:
    """A publication that comes after the retention has passed is right at the newest generation."""
    lake.write(rows(0))
    publish_iceberg(lake.store, lake.uri, catalog, NAME)
    lake.write(rows(100), "replace", retain="1s")
    lake.write(rows(200), "replace", retain="0s")
    while not sweep(lake.store, lake.uri, older_than=0, dry_run=False).replaced:
        pass
    lake.write(rows(300))
    assert len(publish_iceberg(lake.store, lake.uri, catalog, NAME).published) == 3
    assert shown(catalog) == lake.truth()


def test_a_table_that_a_replace_has_emptied_is_empty(lake, catalog) -> None:
    """A commit without files is a snapshot, also where nothing is left."""
    lake.write(rows(0))
    lake.write(rows(100, PARTITIONS[:1]))
    publish_iceberg(lake.store, lake.uri, catalog, NAME)
    lake.write(rows(0)[:0])
    assert publish_iceberg(lake.store, lake.uri, catalog, NAME).published == [4]
    assert shown(catalog) == lake.truth()


def test_nothing_is_published_before_the_first_commit(lake, catalog) -> None:
    """A destination without a commit has no columns: no table is created."""
    lake.abort()
    report = publish_iceberg(lake.store, lake.uri, catalog, NAME)
    assert (report.generation, report.published) == (0, [])
    assert not catalog.table_exists(NAME)


def test_files_are_not_opened_and_are_skipped_by_their_bounds(lake, seaweed, tmp_path) -> None:
    """Rows, nulls, values and bounds come from the log."""
    catalog = open_catalog(
        seaweed.config, tmp_path, StoppingCatalog, **{"py-io-impl": f"{StoppingIO.__module__}.StoppingIO"}
    )
    catalog.create_namespace("lake")
    lake.write(rows(0))
    lake.write(rows(100))
    StoppingIO.stop = Stop()
    publish_iceberg(lake.store, lake.uri, catalog, NAME)
    assert StoppingIO.stop.reads
    assert not [one for one in StoppingIO.stop.reads if one.endswith(".parquet")]
    table = catalog.load_table(NAME)
    assert len(list(table.scan().plan_files())) == 2 * len(PARTITIONS)
    assert len(list(table.scan(row_filter=GreaterThan("id", 99)).plan_files())) == len(PARTITIONS)
    files = table.inspect.files().to_pylist()
    assert {one["record_count"] for one in files} == {2}
    assert all(one["readable_metrics"]["amount"]["lower_bound"] is not None for one in files)
    assert all(one["readable_metrics"]["seen"]["upper_bound"] is not None for one in files)


@pytest.mark.all
def test_a_process_may_stop_at_any_call(lake, seaweed, tmp_path) -> None:
    """Stopped before or after any call that writes, it leaves a generation whole, and goes on later."""

    def catalog() -> StoppingCatalog:
        io = {"py-io-impl": f"{StoppingIO.__module__}.StoppingIO"}
        return open_catalog(seaweed.config, tmp_path, StoppingCatalog, **io)

    def publish(stop: Stop) -> list[int]:
        StoppingIO.stop = stop
        try:
            return publish_iceberg(lake.store, lake.uri, catalog(), NAME).published
        finally:
            StoppingIO.stop = Stop()

    catalog().create_namespace("lake")
    empty, one = tmp_path / "empty", tmp_path / "one"
    copyfile(tmp_path / "catalog.db", empty)
    lake.write(rows(0))
    truths = {None: None, 2: lake.truth(2)}
    publish(Stop())
    copyfile(tmp_path / "catalog.db", one)
    lake.write(rows(100))
    lake.write(rows(200, PARTITIONS[1:]), "replace")
    truths |= {number: lake.truth(number) for number in (3, 4)}
    for before in (empty, one):
        copyfile(before, tmp_path / "catalog.db")
        whole = Stop()
        publish(whole)
        assert len(whole.calls) > 5
        for at in range(1, len(whole.calls) + 1):
            for after in (False, True):
                copyfile(before, tmp_path / "catalog.db")
                with pytest.raises(Crash):
                    publish(Stop(at, after=after))
                if catalog().table_exists(NAME) and (left := catalog().load_table(NAME).current_snapshot()):
                    assert shown(catalog()) == truths[int(left.summary["s3commit.generation"])]
                publish(Stop())
                assert shown(catalog()) == truths[4]


def test_two_publishers_publish_each_generation_once(lake, catalog) -> None:
    """Both have read the table before either changes it, also where neither has found one."""

    class Slow:
        waited = False

        def __getattr__(self, name):
            return getattr(catalog, name)

        def load_table(self, identifier):
            try:
                return catalog.load_table(identifier)
            finally:
                if not self.waited:
                    self.waited = True
                    gate.wait(30)

    def publish() -> None:
        done.append(publish_iceberg(lake.store, lake.uri, Slow(), NAME))

    for first in (0, 100):
        lake.write(rows(first))
        lake.write(rows(first + 50, PARTITIONS[:2]), "replace")
        gate, done = threading.Barrier(2), []
        threads = [threading.Thread(target=publish) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 2
        assert shown(catalog) == lake.truth()
    snapshots = [one.summary["s3commit.generation"] for one in catalog.load_table(NAME).snapshots()]
    assert snapshots == ["3", "4", "5"]


def test_another_programs_changes_are_refused(lake, catalog) -> None:
    """A table that another program has written to, or has made, is not touched."""
    lake.write(rows(0))
    publish_iceberg(lake.store, lake.uri, catalog, NAME)
    catalog.create_table("lake.other", pa.schema([("id", pa.int64())]), location=f"{lake.uri}x")
    with pytest.raises(InvalidOption, match=r"lake\.other is in the catalog already, and is not"):
        publish_iceberg(lake.store, lake.uri, catalog, "lake.other")
    table = catalog.load_table(NAME)
    table.append(table.scan().to_arrow())
    with pytest.raises(InvalidOption, match=r"current snapshot of lake\.flights .* another program"):
        publish_iceberg(lake.store, lake.uri, catalog, NAME)


def test_a_namespace_that_is_missing_is_named(lake, sql_catalog) -> None:
    """The refusal says what to create; a catalog may also create it."""
    lake.write(rows(0))
    with pytest.raises(InvalidOption, match=r"no namespace for nowhere\.flights"):
        publish_iceberg(lake.store, lake.uri, sql_catalog, "nowhere.flights")


def test_what_iceberg_cannot_have_is_refused_by_name(lake, catalog) -> None:
    """The table in the catalog stays at the generation before, and has no other columns."""
    lake.write(rows(0))
    publish_iceberg(lake.store, lake.uri, catalog, NAME)
    other = rows(100)
    lake.write(other.set_column(1, "small", pa.array(["x"] * len(other))), "replace")
    with pytest.raises(InvalidOption, match=r"generation 3 .* has columns that lake\.flights cannot get"):
        publish_iceberg(lake.store, lake.uri, catalog, NAME)
    assert shown(catalog) == lake.truth(2)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.array([Decimal("1.50")]), pa.array([Decimal("1.505")])),
        (pa.array(["a"]), pa.array([b"\xff"])),
        (pa.array([[1]]), pa.array([{"a": 1}])),
    ],
)
def test_a_column_that_the_catalogs_type_cannot_hold_is_refused(before, after, lake, sql_catalog) -> None:
    """Not rounded or misread: pyiceberg takes decimals of another scale, and texts for bytes, or stops."""
    sql_catalog.create_namespace("lake")
    options = JobOptions(conflict_mode="replace", committer="directory", retain="1d")
    write_table(pa.table({"x": before}), lake.uri, store=lake.store, job_options=options)
    publish_iceberg(lake.store, lake.uri, sql_catalog, NAME)
    write_table(pa.table({"x": after}), lake.uri, store=lake.store, job_options=options)
    with pytest.raises(InvalidOption, match=r"columns that lake\.flights cannot get"):
        publish_iceberg(lake.store, lake.uri, sql_catalog, NAME)
    assert sql_catalog.load_table(NAME).scan().to_arrow()["x"].to_pylist() == before.to_pylist()


def test_a_partition_column_that_was_wider_is_published(lake, sql_catalog) -> None:
    """Values of files that leave are read in the type that they were written in."""
    sql_catalog.create_namespace("lake")
    options = JobOptions(conflict_mode="replace", committer="directory", retain="1d")
    for value, kind in ((2**40, pa.int64()), (7, pa.int32())):
        data = pa.table({"id": [1], "p": pa.array([value], kind)})
        write_table(data, lake.uri, store=lake.store, partition_by=["p"], job_options=options)
        publish_iceberg(lake.store, lake.uri, sql_catalog, NAME)
        assert sql_catalog.load_table(NAME).scan().to_arrow()["p"].to_pylist() == [value]


def test_names_that_are_one_to_iceberg_are_refused(lake, sql_catalog) -> None:
    """A column that has the name of a field of another one is named, and no table is created."""
    sql_catalog.create_namespace("lake")
    write_table(pa.table({"a": [{"b": 1}], "a.b": [2]}), lake.uri, store=lake.store)
    with pytest.raises(InvalidOption, match=r"two columns of the table have the name 'a\.b'"):
        publish_iceberg(lake.store, lake.uri, sql_catalog, NAME)
    assert not sql_catalog.table_exists(NAME)


def test_metadata_that_is_gone_is_named(lake, sql_catalog, bucket) -> None:
    """The refusal says how to begin anew, and that works."""
    sql_catalog.create_namespace("lake")
    lake.write(rows(0))
    publish_iceberg(lake.store, lake.uri, sql_catalog, NAME)
    for info in list(lake.store.list_objects(bucket, lake.uri.removeprefix(f"s3://{bucket}/") + "_iceberg/")):
        lake.store.delete(bucket, info.key)
    with pytest.raises(InvalidOption, match=r"metadata of lake\.flights is gone .* drop it"):
        publish_iceberg(lake.store, lake.uri, sql_catalog, NAME)
    sql_catalog.drop_table(NAME)
    publish_iceberg(lake.store, lake.uri, sql_catalog, NAME)
    assert shown(sql_catalog) == lake.truth()


def test_a_log_that_was_begun_anew_is_refused(lake, catalog, bucket) -> None:
    """Numbers alone do not say which commits the catalog has."""
    lake.write(rows(0))
    publish_iceberg(lake.store, lake.uri, catalog, NAME)
    for info in list(lake.store.list_objects(bucket, lake.uri.partition(f"{bucket}/")[2])):
        if "/_iceberg/" not in info.key:
            lake.store.delete(bucket, info.key)
    for first in (0, 100):
        lake.write(rows(first))
    with pytest.raises(InvalidRecord, match="begun anew"):
        publish_iceberg(lake.store, lake.uri, catalog, NAME)
