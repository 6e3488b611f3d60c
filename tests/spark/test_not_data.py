"""What lies beside the data: markers and hidden objects, which no step, check or reader takes for data."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

import airflow_s3commit
from airflow_s3commit import Destination, JobOptions, Manifest, rollback, verify
from airflow_s3commit.protocol.hadoop.adopt import Adoption
from airflow_s3commit.protocol.inspect.audit import commit_before
from airflow_s3commit.protocol.model.table import Table
from airflow_s3commit.protocol.publication import _has_files
from airflow_s3commit.protocol.steps.log import read_entry
from airflow_s3commit.reader.listing import find_table
from airflow_s3commit.spark.driver import first_data_path
from tests.protocol.building import BUCKET, ROOT, THEIRS, Lake, an_id
from tests.protocol.hadoop.dead_jobs import ROOT as THEIRS_ROOT
from tests.protocol.hadoop.dead_jobs import UUID, DeadJob
from tests.protocol.steps.test_collect import write

#: Beside a table and in a partition of it: EMRFS's and other markers, what other programs write, and what
#: ``hadoop fs -put`` is writing.
BESIDE = {
    "dt=1_$folder$": b"",
    "dt=1/": b"",
    "dt=1/_$folder$": b"",
    "dt=1/nested_$folder$": b"",
    "dt=1/_SUCCESS": b"",
    "dt=1/_metadata": b"PAR1",
    "dt=1/.part-0.crc": b"crc",
    "dt=1/part-0._COPYING_": b"PA",
    "dt=2_$folder$": b"",
}

HOME = Destination(BUCKET, ROOT)


def commit_where_nothing_may_be(lake: Lake) -> object:
    """Commit to partitions that must be empty, and to a whole table that must be."""
    lake.sealed({"dt=1/a": b"1"}, conflict_mode="fail").commit()
    return lake.sealed({"dt=3/b": b"3"}, job_id=THEIRS, conflict_mode="fail").commit().counts.files


def replace_older_data(lake: Lake) -> object:
    """Replace a partition of a table that is older than its log; return what the preview found."""
    lake.put({"dt=1/old": b"old", "dt=2/old": b"old"})
    job = lake.sealed({"dt=1/a": b"1"})
    found = job.preview()
    job.commit()
    return found.objects


def read_older_data(lake: Lake) -> object:
    """Read a table with files that are older than its log."""
    lake.put({"dt=1/old": b"old"})
    lake.sealed({"dt=2/a": b"1"}, conflict_mode="append").commit()
    return sorted(file.path for file in find_table(lake.store, HOME).files.values())


def verify_a_table(lake: Lake) -> object:
    """Verify a table, and one of its jobs."""
    lake.put({"dt=1/old": b"old"})
    lake.sealed({"dt=1/a": b"1"}, conflict_mode="append").commit()
    return verify(lake.store, HOME).to_dict()


def list_older_data(lake: Lake) -> object:
    """Begin the log of a table with files that are older."""
    lake.put({"dt=1/old": b"old"})
    lake.set_up()
    return read_entry(lake.store, HOME, 1).entry.commit


def sweep_a_table(lake: Lake) -> object:
    """Sweep a table whose retained files have been kept long enough."""
    for name in "ab":
        lake.sealed({f"dt=1/{name}": b"1"}, job_id=an_id(name), retain="1d").commit()
        for clock in (lake.clock, lake.store_clock):
            clock.advance(172_800.0)
    report = lake.sweep()
    return (report.replaced, report.uploads, sorted(lake.data().keys() - BESIDE.keys()))


def seal_what_a_driver_replaces(lake: Lake) -> object:
    """Collect an unchanged Spark write that replaces whatever partitions a directory has."""
    lake.put({"dt=1/h=0/old": b"1"})
    job = lake.set_up(conflict_mode="as-written", committer="partitioned")
    write(lake, 0, lake.run_task(job, {"dt=1/h=1/new": b"2"}), replaced=("dt=1",))
    job.seal_stage("spark", "1")
    sealed = job.seal()
    return sorted(sealed.partitions)


def roll_back(lake: Lake) -> object:
    """Return a table to an older generation."""
    lake.sealed({"dt=1/a": b"1"}, conflict_mode="append").commit()
    lake.sealed({"dt=1/b": b"2"}, job_id=THEIRS, conflict_mode="append").commit()
    rollback(lake.store, HOME, to=2, clock=lake.clock, new_id=lake.new_id, threads=0)
    return sorted(file.path for file in find_table(lake.store, HOME).files.values())


def audit_against_the_commit_before(lake: Lake) -> object:
    """Find the commit that an audit compares with, in a table without any."""
    before = commit_before(lake.store, HOME, ["dt=1"])
    return before.job_id if isinstance(before, Manifest) else before


def plan_a_spark_write(lake: Lake) -> object:
    """Find the first data file by which Spark's write tells the partition columns."""
    return first_data_path(lake.store, HOME)


def remove_from_a_catalog(lake: Lake) -> object:
    """Tell whether a partition that left the table has files of others."""
    return _has_files(lake.store, HOME, Table(), "dt=1")


PLACES = [
    commit_where_nothing_may_be,
    replace_older_data,
    read_older_data,
    verify_a_table,
    list_older_data,
    sweep_a_table,
    seal_what_a_driver_replaces,
    roll_back,
    audit_against_the_commit_before,
    plan_a_spark_write,
    remove_from_a_catalog,
]


@pytest.mark.parametrize("act", PLACES, ids=lambda act: act.__name__)
def test_no_place_takes_it_for_data(act: Callable[[Lake], object]) -> None:
    """Every place finds and does the same with markers and hidden objects as without, and leaves them."""
    bare, lake = Lake(), Lake()
    lake.put(BESIDE)
    assert act(lake) == act(bare)
    assert {path: body for path, body in lake.data().items() if path in BESIDE} == BESIDE


def test_a_job_of_hadoops_is_adopted_beside_it() -> None:
    """A job of Hadoop's committers that wants empty partitions is finished where only markers are."""
    dead = DeadJob.magic()
    for path in ("day=17_$folder$", "day=17/", "day=18/_SUCCESS"):
        dead.put(THEIRS_ROOT + path, b"")
    options = JobOptions(committer="magic", conflict_mode="fail")
    manifest = Adoption(dead.store, dead.destination, job_id=UUID, options=options).commit()
    assert isinstance(manifest, Manifest)
    assert manifest.counts.files == 3


def test_every_place_asks_one_predicate() -> None:
    """Only what also needs the directories that readers skip asks for less than `is_data`."""
    root = Path(airflow_s3commit.__file__).parent
    asking = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and "is_hidden" in {alias.name for alias in node.names}
    }
    assert asking == {"protocol/metadata/removal.py", "protocol/steps/files.py", "spark/driver.py"}
