"""What is refused before any task starts, and what save mode ``overwrite`` replaces."""

from __future__ import annotations

import re
from dataclasses import replace
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

from airflow_s3commit import Destination, Job, JobOptions, MemoryStore
from airflow_s3commit.exceptions import DestinationNotEmpty, InvalidOption, JobMismatch
from airflow_s3commit.spark import driver, foreach_batch, write_pending
from airflow_s3commit.spark.driver import (
    OVERWRITE_MODE,
    Target,
    check_rows,
    check_table,
    commit_write,
    first_data_path,
    own_target,
    ready_job,
    target_of,
)
from airflow_s3commit.spark.options import WriteOptions, parse_options
from airflow_s3commit.spark.task import plan_table
from airflow_s3commit.store.credentials import StoreAddress
from airflow_s3commit.tables import UnsupportedColumn
from tests.protocol.building import OURS
from tests.spark.conftest import write

if TYPE_CHECKING:
    from collections.abc import Callable

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
        with pytest.raises(UnsupportedColumn, match=r"'c' has the type .*, which has no fields"):
            plan_table(schema(each), options)
    with pytest.raises(UnsupportedColumn, match=r"the frame has no fields.*: add one"):
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
    with pytest.raises(UnsupportedColumn, match=r"the frame has several fields .* to Spark"):
        plan_table(frame, parse_options({}, overwrite=False))


TABLE = "s3://lake/t/"


OWN = own_target(TABLE, OURS, StoreAddress())


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Callable[..., MemoryStore]:
    """Return what makes a store with a table of empty files, the store of every write from then on."""

    def fill(*paths: str) -> MemoryStore:
        store = filled(*paths)
        monkeypatch.setattr(driver, "store_of_process", lambda _: store)
        return store

    return fill


def options(mode: str = "overwrite", **given: str) -> WriteOptions:
    """Return the options of a write."""
    parsed = parse_options({"path": TABLE, **given}, overwrite=mode == "overwrite")
    return replace(parsed, conflict_mode="fail") if mode == "errorifexists" else parsed


def filled(*paths: str) -> MemoryStore:
    """Return a store with a table of empty files."""
    store = MemoryStore()
    for path in paths:
        store.put("lake", f"t/{path}", b"")
    return store


HIDDEN = ("_s3commit/log/1", "_SUCCESS", "__magic_job-1/x=1/file", "a/.part")


@pytest.mark.parametrize(
    ("paths", "given", "says"),
    [
        (["dt=1/f"], {}, r"is not partitioned, but the table is partitioned by dt .*such as dt=1/f"),
        (["f"], {"partitionBy": "dt"}, "is partitioned by dt, but the table is not partitioned"),
        (["dt=1/f"], {"partitionBy": "DT"}, "is partitioned by DT, but the table is partitioned by dt"),
        (["dt=1/f"], {"partitionBy": "dt,h"}, "partitioned by dt, h, but the table is partitioned by dt"),
        (["dt=1/f"], {"partitionOverwriteMode": "dynamic"}, "but the table is partitioned by dt"),
        (["dt=1/f"], {"partitionOverwriteMode": "static"}, None),
        (["dt=1/f"], {"committer": "directory"}, None),
        (["dt=1/f"], {"partitionBy": "dt"}, None),
        (
            ["dt=1/h=2/f"],
            {"partitionBy": "h,dt"},
            "partitioned by h, dt, but the table is partitioned by dt, h",
        ),
        (["a%3Ab=1/f"], {"partitionBy": "a:b"}, None),
        (["2013/01/f"], {}, None),
        (["f"], {}, None),
        ([], {"partitionBy": "dt"}, None),
    ],
)
def test_a_table_with_other_partition_columns_is_not_replaced_in_part(
    paths: list[str], given: dict[str, str], says: str | None, table: Callable[..., MemoryStore]
) -> None:
    """An overwrite that would leave old rows beside the new ones is refused, unless it replaces the table."""
    table(*HIDDEN, *paths)
    wanted = options(**given)
    if says is None:
        check_table(OWN, wanted)
    else:
        with pytest.raises(InvalidOption, match=says):
            check_table(OWN, wanted)
    check_table(replace(OWN, session_static=True), options("append", partitionBy="x"))


def test_an_explicit_static_of_the_session_needs_a_choice(table: Callable[..., MemoryStore]) -> None:
    """A session's explicit static contradicts a partitioned write's default, and both choices are named."""
    table("dt=1/f")
    static = replace(OWN, session_static=True)
    parted = options(partitionBy="dt")
    with pytest.raises(InvalidOption, match=r"session sets .*=static.* to dynamic to .* or to static to"):
        check_table(static, parted)
    flat = options()
    table("f")
    check_table(static, flat)
    table("dt=1/f")
    for chosen in ("static", "DYNAMIC"):
        choice = options(partitionBy="dt", partitionOverwriteMode=chosen)
        check_table(static, choice)
        assert choice.own_job().committer == ("directory" if chosen == "static" else "partitioned")
    assert options("append", partitionOverwriteMode="static").own_job().committer == "partitioned"
    for conf, is_static in (
        ({OVERWRITE_MODE: "Static"}, True),
        ({OVERWRITE_MODE: "dynamic"}, False),
        ({}, False),
    ):
        assert target_of(parted, OURS, conf).session_static is is_static


@pytest.mark.parametrize("committer", ["partitioned", "directory"])
@pytest.mark.parametrize("mode", ["append", "replace"])
def test_rows_without_partitions_join_no_partitioned_table(
    mode: Any, committer: Any, table: Callable[..., MemoryStore]
) -> None:
    """They are not sealed with or without a job, unless the write replaces the whole table."""
    store, whole = table("dt=1/h=2/f"), (mode, committer) == ("replace", "directory")
    job = Job.setup(store, TABLE, options=JobOptions(committer=committer, conflict_mode=mode))
    flat, parted = options("append"), options("append", partitionBy="dt,h")
    target = Target(job.reference, "load", "1", own=False, store=StoreAddress())
    says = r"table is partitioned by dt, h .*partitionBy to dt,h, in"
    if not whole:
        with pytest.raises(InvalidOption, match=says):
            commit_write(target, flat, [], job)
        with pytest.raises(InvalidOption, match=says):
            check_table(OWN, flat)
    assert job.stage_seal("load", "1") is None
    commit_write(target, flat if whole else parted, [], job)
    for paths in (["2013/01/f"], HIDDEN):
        table(*paths)
        check_table(OWN, flat)


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
    mode: str,
    given: dict[str, str],
    looks: int,
    table: Callable[..., MemoryStore],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Set-up and commit together list the first data once, or never if the job settles the layout."""
    table()
    found: list[int] = []
    monkeypatch.setattr(driver, "first_data_path", lambda *_: found.append(1))
    wanted = options(mode, **given)
    target = target_of(wanted, OURS, {})
    for _ in range(2):  # a task that comes later finds the job
        ready_job(target, wanted)
    commit_write(target, wanted, [])
    assert len(found) == looks


def test_a_write_s_own_job_is_where_and_as_its_options_say(
    table: Callable[..., MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option comes before the session's address, and every record is encrypted as the files are."""
    store, sent = table(), []
    put = store.put
    monkeypatch.setattr(
        store, "put", lambda *what, **how: sent.append(how.get("headers")) or put(*what, **how)
    )
    wanted = options("append", endpointUrl="http://own:1", sse="AES256")
    session = {"spark.s3commit.endpoint.url": "http://other:1", "spark.s3commit.endpoint.region": "eu-west-1"}
    target = target_of(wanted, OURS, session)
    assert target.store == StoreAddress("http://own:1", "eu-west-1")
    ready_job(target, wanted)
    commit_write(target, wanted, [])
    assert len(sent) > 3
    assert all(headers == {"x-amz-server-side-encryption": "AES256"} for headers in sent)


@pytest.mark.parametrize("committer", ["magic", "partitioned", "directory"])
def test_a_table_that_must_be_empty_is_checked_as_a_whole(
    committer: str, table: Callable[..., MemoryStore]
) -> None:
    """Errorifexists and ignore find data in any partition, whatever the committer."""
    table("dt=1/f")
    wanted = options("errorifexists", committer=committer, partitionBy="dt")
    with pytest.raises(DestinationNotEmpty):
        ready_job(target_of(wanted, OURS, {}), wanted)


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
    target = Target(job.reference, "load", "1", own=False, store=StoreAddress(), session_static=static)
    wanted = options(partitionBy="dt", **given)
    ready_job(target, replace(wanted, conflict_mode=None, partition_overwrite=None), job)
    adding = Job.setup(MemoryStore(), TABLE, options=JobOptions(committer=committer, conflict_mode="append"))
    ready_job(replace(target, reference=adding.reference), replace(wanted, conflict_mode=None), adding)
    if says is None:
        ready_job(target, wanted, job)
    else:
        with pytest.raises(JobMismatch, match=says):
            ready_job(target, wanted, job)


def test_no_rows_replace_nothing_without_a_mode(table: Callable[..., MemoryStore]) -> None:
    """An overwrite without rows is refused if data exists and the write has not chosen a mode."""
    table("dt=1/f")
    parted = options(partitionBy="dt")
    for wanted, says in ((parted, "would replace nothing"), (options(), "would empty the table")):
        with pytest.raises(InvalidOption, match=f"has no rows and {says}"):
            check_rows(OWN, wanted, 0)
    check_rows(OWN, parted, 1)
    check_rows(OWN, parted, None)
    for chosen in ("static", "dynamic"):
        check_rows(OWN, options(partitionBy="dt", partitionOverwriteMode=chosen), 0)
    check_rows(OWN, options("append", partitionBy="dt"), 0)
    check_rows(OWN, options(partitionBy="dt", committer="directory"), 0)
    table(*HIDDEN)
    check_rows(OWN, parted, 0)


def test_hidden_directories_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first data file is found behind hidden directories with many objects, of which one is listed."""
    store, seen = filled(*(f"_a/log/{n}" for n in range(50)), "_col=1/f", "z/g"), []
    listing = store.list_objects
    monkeypatch.setattr(
        store, "list_objects", lambda *what, **how: (seen.append(one) or one for one in listing(*what, **how))
    )
    assert first_data_path(store, Destination.parse(TABLE)) == "_col=1/f"
    assert len(seen) == 2
    assert first_data_path(filled("a/.part", "a/f"), Destination.parse(TABLE)) == "a/f"
    assert first_data_path(filled(*HIDDEN), Destination.parse(TABLE)) is None
    assert first_data_path(filled(".hidden/a", "_x/b", "c"), Destination.parse(TABLE)) == "c"


@pytest.mark.spark
@pytest.mark.seaweedfs
@pytest.mark.xdist_group("spark")
def test_a_session_s_overwrites_empty_no_table_by_surprise(spark: SparkSession, lake: Lake) -> None:
    """Writes and batches refuse a surprising overwrite; a column is named by text or in a list."""
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
            destination=lake.uri, partition_by="dt", mode="overwrite", stream="s", options=lake.options
        )
        with pytest.raises(InvalidOption, match="the session sets"):
            batch(later, 0)
    finally:
        spark.conf.unset(OVERWRITE_MODE)
    with pytest.raises(Exception, match="has no rows and would replace nothing"):
        write(none, lake, "overwrite", partitionBy="dt")
    with pytest.raises(InvalidOption, match="is not partitioned, but the table is partitioned by dt"):
        pend()
    with pytest.raises(InvalidOption, match="is not partitioned, but the table is partitioned by dt"):
        write_pending(later, destination=lake.uri, options=lake.options, mode="append")
    assert lake.visible() == before
    assert lake.pending() == []
    write(none, lake, "overwrite", partitionBy="dt", partitionOverwriteMode="dynamic")
    assert lake.visible() == before
    pend(partition_by="dt", options={"partitionOverwriteMode": "static"})
    assert sorted(lake.table("dt")["id"].to_pylist()) == [11, 13]
    pend(frame=none, partition_by=["dt"], options={"partitionOverwriteMode": "static"})
    assert lake.visible() == []
