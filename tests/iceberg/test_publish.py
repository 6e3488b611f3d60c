"""Commits as snapshots of an Iceberg table, read back by pyiceberg."""

from __future__ import annotations

import io
import threading
from decimal import Decimal
from shutil import copyfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.expressions import GreaterThan

from airflow_s3commit import (
    InvalidOption,
    InvalidRecord,
    JobOptions,
    OutcomeUnknown,
    Unavailable,
    rollback,
    sweep,
    write_job,
    write_table,
)
from airflow_s3commit.compaction import compact
from airflow_s3commit.iceberg import GENERATION, publish_iceberg
from airflow_s3commit.tables.columns import footer_text
from airflow_s3commit.testing import Crash
from tests.iceberg.conftest import NAME, NOON, PARTITIONS, open_catalog, rows, shown
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
    report = publish_iceberg(lake.store, lake.uri, catalog, NAME)
    assert (report.generation, report.published) == (9, [])


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
    for prepare in (list, lake.abort):
        prepare()
        report = publish_iceberg(lake.store, lake.uri, catalog, NAME)
        assert (report.generation, report.published) == (0, [])
        assert not catalog.table_exists(NAME)


def test_what_other_programs_need_to_know_is_in_the_catalog(lake, sql_catalog) -> None:
    """Who only adds says so, each snapshot has its job, fields differ, and no program may delete files."""
    sql_catalog.create_namespace("lake")
    jobs = []
    for mode in ("append", "append", "replace"):
        jobs.append(lake.write(rows(0), mode).job_id)
        publish_iceberg(lake.store, lake.uri, sql_catalog, NAME)
    table = sql_catalog.load_table(NAME)
    assert table.properties["gc.enabled"] == "false"
    assert [one.summary["s3commit.job"] for one in table.snapshots()] == jobs
    assert [one.summary.operation.value for one in table.snapshots()] == ["append", "append", "overwrite"]
    assert [field.field_id for field in table.spec().fields] == [1000, 1001, 1002]


@pytest.mark.parametrize("answer", [CommitStateUnknownException, CommitFailedException])
def test_a_catalog_that_does_not_say_or_will_not(answer, lake, sql_catalog, monkeypatch) -> None:
    """A lost answer is unknown, one change after another is unavailable; both are published later."""
    sql_catalog.create_namespace("lake")
    lake.write(rows(0))
    publish_iceberg(lake.store, lake.uri, sql_catalog, NAME)
    lake.write(rows(100))

    def fail(*_args, **_more):
        raise answer("no")

    monkeypatch.setattr(type(sql_catalog), "commit_table", fail)
    with pytest.raises(OutcomeUnknown if answer is CommitStateUnknownException else Unavailable):
        publish_iceberg(lake.store, lake.uri, sql_catalog, NAME)
    monkeypatch.undo()
    assert publish_iceberg(lake.store, lake.uri, sql_catalog, NAME).published == [3]
    assert shown(sql_catalog) == lake.truth()


def test_files_are_not_opened_and_are_skipped_by_their_bounds(lake, seaweed, tmp_path, bucket) -> None:
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
    for one in files:
        body = lake.store.get(bucket, one["file_path"].removeprefix(f"s3://{bucket}/")).body
        found, told = pq.read_table(io.BytesIO(body)), one["readable_metrics"]
        bounds = [told["id"][which] for which in ("lower_bound", "upper_bound")]
        assert (one["file_size_in_bytes"], bounds) == (len(body), found["id"].to_pylist())
        counts = (told["name"]["value_count"], told["name"]["null_value_count"])
        assert (counts, told["id"]["null_value_count"]) == ((2, found["name"].null_count), 0)
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
    for name, place, known in (("lake.a", f"{lake.uri}x", {GENERATION: "0"}), ("lake.b", lake.uri, {})):
        catalog.create_table(name, pa.schema([("id", pa.int64())]), location=place, properties=known)
        with pytest.raises(InvalidOption, match=f"{name} is in the catalog already, and is not"):
            publish_iceberg(lake.store, lake.uri, catalog, name)
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
        (pa.array([b"\xff"]), pa.array(["a"])),
        (pa.array([{"a": Decimal("1.50")}]), pa.array([{"a": Decimal("1.505")}])),
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


@pytest.mark.parametrize("by", [["a"], ["b", "a"]])
def test_other_partition_columns_are_refused(by, lake, sql_catalog) -> None:
    """Fewer of them, and another order, are named; the table in the catalog stays as it is."""
    sql_catalog.create_namespace("lake")
    options = JobOptions(conflict_mode="replace", committer="directory", retain="1d")
    data = pa.table({"id": [1], "a": [1], "b": [2]})
    for columns in (["a", "b"], by):
        write_table(data, lake.uri, store=lake.store, partition_by=columns, job_options=options)
        if columns != by:
            publish_iceberg(lake.store, lake.uri, sql_catalog, NAME)
    with pytest.raises(
        InvalidOption, match=f"generation 3 .* has the partition columns {by}".replace("[", r"\[")
    ):
        publish_iceberg(lake.store, lake.uri, sql_catalog, NAME)
    assert sql_catalog.load_table(NAME).scan().to_arrow().to_pylist() == data.to_pylist()


def test_times_of_directories_are_those_of_their_zone(lake, sql_catalog) -> None:
    """A directory does not name its zone: the record does; two zones of one column are refused."""
    sql_catalog.create_namespace("lake")
    for zone in ("Asia/Tokyo", "UTC"):
        at = pa.array([NOON], pa.timestamp("us", zone))
        data = pa.table({"id": [1], "at": at, "local": at.cast(pa.timestamp("us"))})
        write_table(data, lake.uri, store=lake.store, partition_by=["at", "local"], conflict_mode="append")
        if zone == "Asia/Tokyo":
            publish_iceberg(lake.store, lake.uri, sql_catalog, NAME)
            (row,) = sql_catalog.load_table(NAME).scan().to_arrow().to_pylist()
            assert (row["at"], row["local"]) == (NOON, NOON.replace(tzinfo=None))
    with pytest.raises(InvalidOption, match=r"'at' .* has times of Asia/Tokyo and of UTC"):
        publish_iceberg(lake.store, lake.uri, sql_catalog, NAME)


def test_maps_are_published(lake, sql_catalog) -> None:
    """Their keys and values have types of their own, at any depth."""
    sql_catalog.create_namespace("lake")
    kind = pa.map_(pa.string(), pa.struct([("a", pa.list_(pa.int64()))]))
    data = pa.table({"m": pa.array([[("k", {"a": [1, None]})], []], kind)})
    write_table(data, lake.uri, store=lake.store)
    publish_iceberg(lake.store, lake.uri, sql_catalog, NAME)
    assert sql_catalog.load_table(NAME).scan().to_arrow().to_pylist() == data.to_pylist()


def test_files_whose_rows_were_not_counted_are_refused(lake, sql_catalog) -> None:
    """Iceberg must know their number; the key is named, and no table is created."""
    sql_catalog.create_namespace("lake")
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": [1]}), sink)
    with write_job(lake.uri, store=lake.store) as job:
        with job.open("a.parquet") as file:
            file.write(sink.getvalue())
        job.describe(1, footer_text(sink.getvalue(), []))
    with pytest.raises(InvalidOption, match=r"the rows of s3://.*\.parquet were not counted"):
        publish_iceberg(lake.store, lake.uri, sql_catalog, NAME)
    assert not sql_catalog.table_exists(NAME)


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
