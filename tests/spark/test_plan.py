"""What is refused before any task starts, and what save mode ``overwrite`` replaces."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    GeographyType,
    GeometryType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimeType,
    VariantType,
    YearMonthIntervalType,
)

from airflow_s3commit import CommittedTask, Destination, Job, JobOptions, MemoryStore, latest_manifest
from airflow_s3commit.exceptions import InvalidOption, JobMismatch
from airflow_s3commit.spark import driver, foreach_batch, plan, stream, write_pending
from airflow_s3commit.spark.driver import Target, commit_write, ready_job, target_of
from airflow_s3commit.spark.options import WriteOptions, parse_options
from airflow_s3commit.spark.plan import (
    OVERWRITE_MODE,
    check_job_overwrite,
    check_layout,
    check_own_overwrite,
    check_rows,
    first_data_path,
    plan_table,
    sets_static,
)
from airflow_s3commit.store.credentials import StoreAddress
from airflow_s3commit.tables import UnsupportedColumn
from tests.protocol.building import OURS
from tests.spark.conftest import write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Lake


def schema(kind: DataType) -> StructType:
    """Return a schema with a column of this type beside another."""
    return StructType([StructField("id", LongType()), StructField("c", kind)])


def nested(kind: DataType) -> list[DataType]:
    """Return a type on its own, and at every place within others."""
    return [
        kind,
        ArrayType(kind),
        MapType(StringType(), kind),
        StructType([StructField("x", ArrayType(StructType([StructField("y", kind)])))]),
    ]


@pytest.mark.parametrize(
    "kind",
    [
        GeometryType(4326),
        GeographyType(4326),
        TimeType(6),
        VariantType(),
        YearMonthIntervalType(),
        CharType(3),
    ],
    ids=str,
)
def test_types_that_would_change_are_refused(kind: DataType) -> None:
    """A type that files cannot hold as Spark's own do is refused at any depth, with a remedy."""
    says = f"'c' has or holds the type {re.escape(kind.simpleString())}.*cast it.*use Spark's own writer"
    for each in nested(kind):
        with pytest.raises(UnsupportedColumn, match=says):
            plan_table(schema(each), parse_options({}, overwrite=False))


def test_ids_of_columns_are_not_lost() -> None:
    """Ids that Spark's own writer puts into files, at any depth, are refused with that writer's name."""
    inner = StructType([StructField("x", LongType(), True, {"parquet.field.id": 1})])
    with pytest.raises(UnsupportedColumn, match=r"columns have ids \(parquet.field.id\).*Spark's own writer"):
        plan_table(schema(ArrayType(inner)), parse_options({}, overwrite=False))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (ArrayType(NullType(), False), r"empty array without.*cast\(c as array<string>\)"),
        (MapType(NullType(), NullType(), False), r"empty map without.*cast\(c as map<string,string>\)"),
    ],
)
def test_an_empty_array_or_map_without_a_type_is_refused(kind: DataType, says: str) -> None:
    """`array()` has no element type, and the error shows a cast that gives it one."""
    for each in (kind, ArrayType(kind)):
        with pytest.raises(UnsupportedColumn, match=says if each is kind else "without a type"):
            plan_table(schema(each), parse_options({}, overwrite=False))


def test_a_struct_without_fields_and_a_frame_without_columns_are_refused() -> None:
    """Files need a column, and a struct a field, at any depth, which is checked before a task runs."""
    options = parse_options({}, overwrite=False)
    for each in nested(StructType([])):
        with pytest.raises(UnsupportedColumn, match=r"'c' has the type .*, a struct without fields, which"):
            plan_table(schema(each), options)
    with pytest.raises(UnsupportedColumn, match=r"the frame has no columns.*: select at least one"):
        plan_table(StructType([]), options)


@pytest.mark.parametrize("other", ["a", "A"])
def test_a_struct_with_two_fields_of_one_name_is_refused(other: str) -> None:
    """Spark cannot read such a file and ignores case in names; the error names the field, at any depth."""
    twice = StructType([StructField("a", LongType()), StructField(other, StringType())])
    for each in nested(twice):
        with pytest.raises(UnsupportedColumn, match=r"'c' has the type .*several fields 'a'.*rename one"):
            plan_table(schema(each), parse_options({}, overwrite=False))


@pytest.mark.parametrize("names", [("id", "ID"), ("a", "b", "A"), ("x", "x")])
def test_columns_that_differ_only_in_case_are_refused(names: tuple[str, ...]) -> None:
    """Spark cannot read a file with two columns of one name, and ignores case in names."""
    frame = StructType([StructField(name, LongType()) for name in names])
    with pytest.raises(UnsupportedColumn, match="have the same name to Spark"):
        plan_table(frame, parse_options({}, overwrite=False))


TABLE = "s3://lake/t/"


def options(mode: str = "overwrite", **given: str) -> WriteOptions:
    """Return the options of a write."""
    parsed = parse_options({"path": TABLE, **given}, overwrite=mode == "overwrite")
    return replace(parsed, conflict_mode="fail") if mode == "errorifexists" else parsed


def table(*paths: str) -> MemoryStore:
    """Return a store with a table of empty files."""
    store = MemoryStore()
    for path in paths:
        store.put("lake", f"t/{path}", b"")
    return store


def task(rows: int | None) -> CommittedTask:
    """Return a task that wrote rows."""
    return CommittedTask(
        stage="spark",
        stage_attempt="0",
        task="0",
        attempt="1",
        location="s3://lake/x",
        files=0,
        bytes=0,
        rows=rows,
        sha256="d",
    )


HIDDEN = ("_s3commit/log/1", "_SUCCESS", "__magic_job-1/x=1/file", "a/.part")


@pytest.mark.parametrize(
    ("paths", "given", "says"),
    [
        (["dt=1/f"], {}, r"the table is partitioned by dt, but the write is not partitioned.*such as dt=1/f"),
        (["f"], {"partitionBy": "dt"}, "the table is not partitioned, but the write is partitioned by dt"),
        (["dt=1/f"], {"partitionBy": "DT"}, "partitioned by dt, but the write is partitioned by DT"),
        (["dt=1/f"], {"partitionBy": "dt,h"}, "partitioned by dt, but the write is partitioned by dt, h"),
        (["dt=1/f"], {"partitionOverwriteMode": "dynamic"}, "partitioned by dt, but"),
        (["dt=1/f"], {"partitionOverwriteMode": "static"}, None),
        (["dt=1/f"], {"committer": "directory"}, None),
        (["dt=1/f"], {"partitionBy": "dt"}, None),
        (["a%3Ab=1/f"], {"partitionBy": "a:b"}, None),
        (["2013/01/f"], {}, None),
        (["f"], {}, None),
        ([], {"partitionBy": "dt"}, None),
    ],
)
def test_a_table_with_other_partition_columns_is_not_replaced_in_part(
    paths: list[str], given: dict[str, str], says: str | None
) -> None:
    """An overwrite that would leave old rows beside the new ones is refused, unless it replaces the table."""
    store = table(*HIDDEN, *paths)
    wanted = options(**given)
    if says is None:
        check_own_overwrite(store, TABLE, wanted, session_static=False)
    else:
        with pytest.raises(InvalidOption, match=says):
            check_own_overwrite(store, TABLE, wanted, session_static=False)
    check_own_overwrite(store, TABLE, options("append", partitionBy="x"), session_static=True)


def test_an_explicit_static_of_the_session_needs_a_choice() -> None:
    """A session's explicit static contradicts a partitioned write's default, and both choices are named."""
    store = table("dt=1/f")
    parted = options(partitionBy="dt")
    with pytest.raises(InvalidOption, match=r"session sets .*=static.* to dynamic to .* or to static to"):
        check_own_overwrite(store, TABLE, parted, session_static=True)
    for chosen in ("static", "DYNAMIC"):
        choice = options(partitionBy="dt", partitionOverwriteMode=chosen)
        check_own_overwrite(store, TABLE, choice, session_static=True)
        assert choice.replaces_table is (chosen == "static")
        assert choice.own_committer == ("directory" if chosen == "static" else "partitioned")
    assert options("append", partitionOverwriteMode="static").own_committer == "partitioned"
    assert sets_static({OVERWRITE_MODE: "Static"}.get)
    assert not sets_static({OVERWRITE_MODE: "dynamic"}.get)
    assert not sets_static({}.get)


@pytest.mark.parametrize(("mode", "whole"), [("append", False), ("replace", False), ("replace", True)])
def test_rows_without_partitions_join_no_partitioned_table(
    mode: Any, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not sealed with or without a job, unless the write replaces the whole table."""
    store = table("dt=1/h=2/f")
    monkeypatch.setattr(driver, "store_of_process", lambda _: store)
    committer: Any = "directory" if whole else "partitioned"
    job = Job.setup(store, TABLE, options=JobOptions(committer=committer, conflict_mode=mode))
    flat, parted = options("append"), options("append", partitionBy="dt,h")
    target = Target(job.reference, "load", "1", own=False, store=StoreAddress())
    owners = {"append": (target, replace(target, own=True)), "replace": (target,)}[mode]
    for each in () if whole else owners:
        with pytest.raises(InvalidOption, match=r"table is partitioned by dt, h .*partitionBy to dt,h, in"):
            commit_write(each, flat, [], job)
    assert job.stage_seal("load", "1") is None
    commit_write(target, flat if whole else parted, [], job)
    check_layout(table("2013/01/f"), TABLE, flat)
    check_layout(table(*HIDDEN), TABLE, flat)


@pytest.mark.parametrize(
    ("mode", "given", "looks"),
    [
        ("append", {}, 1),
        ("append", {"partitionBy": "dt"}, 0),
        ("overwrite", {"partitionOverwriteMode": "dynamic"}, 1),
        ("overwrite", {"partitionOverwriteMode": "static"}, 0),
        ("errorifexists", {}, 0),
    ],
)
def test_a_write_without_a_job_looks_at_its_table_once(
    mode: str, given: dict[str, str], looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set-up and commit together list the first data once, or never if the job settles the layout."""
    store, found = table(), []
    monkeypatch.setattr(driver, "store_of_process", lambda _: store)
    monkeypatch.setattr(plan, "first_data_path", lambda *_: found.append(1))
    wanted = options(mode, **given)
    target = target_of(wanted, OURS, {}.get)
    ready_job(target, wanted)
    commit_write(target, wanted, [])
    assert len(found) == looks


def test_a_stream_looks_at_its_table_at_its_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """No later batch of the process lists the table, and a first batch that is refused looks again."""
    store, found = table("dt=1/f"), []
    first_path = plan.first_data_path

    def look(*place: Any) -> str | None:
        found.append(place)
        return first_path(*place)

    def seal(frame: object, options: object, target: Target, job: Job, **_: object) -> object:
        return SimpleNamespace(seal=job.seal_stage(stream.STAGE, target.stage_attempt, []))

    monkeypatch.setattr(plan, "first_data_path", look)
    monkeypatch.setattr(stream, "store_of_process", lambda _: store)
    monkeypatch.setattr(stream, "write_frame", seal)
    context = SimpleNamespace(getLocalProperty=lambda _: None)
    session = SimpleNamespace(conf=SimpleNamespace(getAll={}), sparkContext=context)
    frame: Any = SimpleNamespace(sparkSession=session)
    batch = foreach_batch(destination=TABLE, stream="s")
    for _ in range(2):
        with pytest.raises(InvalidOption, match="is not partitioned, but the table is partitioned by dt"):
            batch(frame, 0)
    store.delete("lake", "t/dt=1/f")
    for number in range(3):
        batch(frame, number)
    assert len(found) == 3
    assert latest_manifest(store, TABLE).job_id == stream.Batch("s", "", TABLE, 2).job_id(0)


@pytest.mark.parametrize(("mode", "committer"), [("static", "magic"), ("dynamic", "directory")])
def test_a_committer_that_cannot_replace_like_this_is_refused(mode: str, committer: str) -> None:
    """The committer and the overwrite mode must agree on what is replaced."""
    with pytest.raises(InvalidOption, match=f"{mode} contradicts committer={committer}"):
        options(partitionOverwriteMode=mode, committer=committer)


@pytest.mark.parametrize(
    ("committer", "given", "static", "says"),
    [
        ("partitioned", {"partitionOverwriteMode": "static"}, False, "static contradicts job"),
        ("directory", {"partitionOverwriteMode": "dynamic"}, False, "dynamic contradicts .* whole table"),
        ("partitioned", {}, True, "static of the session contradicts"),
        ("partitioned", {"partitionOverwriteMode": "dynamic"}, True, None),
        ("directory", {}, True, None),
        ("partitioned", {}, False, None),
    ],
)
def test_a_job_decides_what_is_replaced(
    committer: Any, given: dict[str, str], static: bool, says: str | None
) -> None:
    """For another owner's job an overwrite mode that differs from the job's is refused; append never is."""
    job = Job.setup(
        MemoryStore(), TABLE, options=JobOptions(committer=committer, conflict_mode="replace")
    )  # fmt: skip
    wanted = options(partitionBy="dt", **given)
    check_job_overwrite(
        job, replace(wanted, conflict_mode=None, partition_overwrite=None), session_static=static
    )
    if says is None:
        check_job_overwrite(job, wanted, session_static=static)
    else:
        with pytest.raises(JobMismatch, match=says):
            check_job_overwrite(job, wanted, session_static=static)


def test_no_rows_replace_nothing_without_a_mode() -> None:
    """An overwrite without rows is refused if data exists and the write has not chosen a mode."""
    store, parted = table("dt=1/f"), options(partitionBy="dt")
    for wanted, says in ((parted, "would replace nothing"), (options(), "would empty the table")):
        with pytest.raises(InvalidOption, match=f"has no rows and {says}"):
            check_rows(store, TABLE, wanted, [task(0), task(0)])
        check_rows(table(*HIDDEN), TABLE, wanted, [task(0)])
    check_rows(store, TABLE, parted, [task(0), task(1)])
    check_rows(store, TABLE, parted, [task(None)])
    for chosen in ("static", "dynamic"):
        check_rows(store, TABLE, options(partitionBy="dt", partitionOverwriteMode=chosen), [])
    check_rows(store, TABLE, options("append", partitionBy="dt"), [])


def test_hidden_directories_are_skipped() -> None:
    """The first data file is found behind hidden directories with many objects, in few listings."""
    store = table(*(f"_s3commit/log/{n}" for n in range(50)), "_col=1/f", "z/g")
    assert first_data_path(store, Destination.parse(TABLE)) == "_col=1/f"
    assert first_data_path(table(*HIDDEN), Destination.parse(TABLE)) is None
    assert first_data_path(table(".hidden/a", "_x/b", "c"), Destination.parse(TABLE)) == "c"


@pytest.mark.spark
@pytest.mark.seaweedfs
@pytest.mark.xdist_group("spark")
def test_a_session_s_overwrites_empty_no_table_by_surprise(spark: SparkSession, lake: Lake) -> None:
    """Writes and a stream's batches refuse a surprising overwrite and keep what the option asks for."""
    frame = spark.range(4, numPartitions=1).selectExpr("id", "concat('d', id % 2) as dt")
    write(frame, lake, partitionBy="dt")
    later = frame.where("dt = 'd1'").selectExpr("id + 10 as id", "dt")
    none = frame.where("id < 0")
    before = lake.visible()

    def pend(**given: Any) -> None:
        chosen = {**lake.options, **given.pop("options", {})}
        write_pending(
            given.pop("frame", later), destination=lake.uri, options=chosen, mode="overwrite", **given
        )

    spark.conf.set(OVERWRITE_MODE, "static")
    try:
        with pytest.raises(Exception, match=r"the session sets .*partitionOverwriteMode=static"):
            write(later, lake, "overwrite", partitionBy="dt")
        with pytest.raises(InvalidOption, match="the session sets"):
            pend(partition_by=["dt"])
        batch = foreach_batch(
            destination=lake.uri, partition_by=["dt"], mode="overwrite", stream="s", options=lake.options
        )
        with pytest.raises(InvalidOption, match="the session sets"):
            batch(later, 0)
    finally:
        spark.conf.unset(OVERWRITE_MODE)
    with pytest.raises(Exception, match="has no rows and would replace nothing"):
        write(none, lake, "overwrite", partitionBy="dt")
    with pytest.raises(InvalidOption, match="the table is partitioned by dt, but the write is not"):
        pend()
    with pytest.raises(InvalidOption, match="is not partitioned, but the table is partitioned by dt"):
        write_pending(later, destination=lake.uri, options=lake.options, mode="append")
    assert lake.visible() == before
    assert lake.pending() == []
    write(none, lake, "overwrite", partitionBy="dt", partitionOverwriteMode="dynamic")
    assert lake.visible() == before
    pend(partition_by=["dt"], options={"partitionOverwriteMode": "static"})
    assert sorted(lake.table("dt")["id"].to_pylist()) == [11, 13]
    pend(frame=none, partition_by=["dt"], options={"partitionOverwriteMode": "static"})
    assert lake.visible() == []
