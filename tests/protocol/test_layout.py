"""Every key is built in one place, and no two things share one."""

from __future__ import annotations

import pytest

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.destination import Destination
from airflow_s3commit.protocol.layout import (
    Layout,
    check_attempt_id,
    check_id,
    holds_job_id,
    partition_of,
    unique_name,
)
from tests.protocol.building import OURS, THEIRS

HERE = Destination("lake", "flights/")
LAYOUT = Layout.of(HERE, "j-1")


def test_the_keys_are_those_of_the_design() -> None:
    """Every record is where the protocol's description says."""
    staging = "flights/__magic_job-j-1/"
    assert LAYOUT.staging.uri == f"s3://lake/{staging}"
    assert LAYOUT.job == f"{staging}job.json"
    assert LAYOUT.state == f"{staging}state.json"
    assert LAYOUT.seal == f"{staging}sealed.json"
    assert LAYOUT.stage_seal("spark", "1") == f"{staging}stages/spark-1/sealed.json"
    assert LAYOUT.pendingset("spark", "1", "00007", "12") == (
        f"{staging}stages/spark-1/tasks/00007_12.pendingset"
    )
    assert LAYOUT.plan == f"{staging}plan/summary.json"
    assert LAYOUT.plan_part("p", 3).startswith(f"{staging}plan/")
    assert LAYOUT.plan_part("p", 3).endswith("/3.jsonl")
    assert LAYOUT.success == "flights/_SUCCESS"
    assert LAYOUT.manifest == "flights/_s3commit/manifests/j-1.json"
    assert LAYOUT.manifest_files == "flights/_s3commit/manifests/j-1.jsonl"
    assert LAYOUT.lock == "flights/_s3commit/lock.json"


def test_staging_may_be_elsewhere() -> None:
    """With another staging root only the job's own records move; the manifest, marker and lock stay."""
    layout = Layout.of(HERE, "j-1", Destination("private", "staging/"))
    assert layout.staging.uri == "s3://private/staging/__magic_job-j-1/"
    assert layout.job == "staging/__magic_job-j-1/job.json"
    assert (layout.lock, layout.manifest, layout.success) == (LAYOUT.lock, LAYOUT.manifest, LAYOUT.success)


def test_a_bucket_s_root_has_a_layout_too() -> None:
    """At the root of a bucket no key begins with a slash."""
    layout = Layout.of(Destination("lake", ""), "j-1")
    assert layout.job == "__magic_job-j-1/job.json"
    assert layout.success == "_SUCCESS"
    assert layout.lock == "_s3commit/lock.json"


def test_records_of_one_upload_are_beside_their_pendingset() -> None:
    """The record of an upload is in a directory named for its task attempt, and is no pendingset."""
    pending = LAYOUT.pending("spark", "1", "7", "12", 3)
    assert pending == "flights/__magic_job-j-1/stages/spark-1/tasks/7_12/000003.pending"
    assert not pending.endswith(".pendingset")


@pytest.mark.parametrize("value", ["", "-a", "_a", ".a", "a/b", "a b", "a\n", "ü", "..", "a.b", "x" * 129])
def test_a_job_id_is_fit_for_a_key(value: str) -> None:
    """Job ids have letters, digits, ``-`` and ``_`` only, and begin with a letter or digit."""
    with pytest.raises(InvalidRecord, match="job id"):
        check_id(value)
    with pytest.raises(InvalidRecord):
        Layout.of(HERE, value)


@pytest.mark.parametrize("value", ["", "-", "a/b", "a b", "a\n", "../x", "x" * 129])
def test_ids_below_a_job_are_fit_for_a_key(value: str) -> None:
    """Stage, task and attempt ids that would lead elsewhere are refused wherever a key is made of them."""
    for stage, stage_attempt, task, attempt in (
        (value, "1", "t", "1"), ("s", value, "t", "1"), ("s", "1", value, "1"), ("s", "1", "t", value),
    ):  # fmt: skip
        with pytest.raises(InvalidRecord):
            LAYOUT.pendingset(stage, stage_attempt, task, attempt)


def test_ids_below_a_job_may_have_dots() -> None:
    """Stages and tasks may be named as Airflow and Spark name theirs."""
    assert check_id("transform.load_0-1", "stage") == "transform.load_0-1"
    assert check_attempt_id("1.2", "task attempt") == "1.2"
    for value in ("1-2", "1_2"):
        with pytest.raises(InvalidRecord):
            check_attempt_id(value, "task attempt")


def test_no_two_attempts_share_a_key() -> None:
    """Ids with the separators in them don't collide: an attempt's id has neither ``-`` nor ``_``."""
    ids = ["a", "a-1", "a_1", "a.1", "1", "11"]
    attempts = ["1", "11", "1.1"]
    keys = [
        LAYOUT.pendingset(stage, stage_attempt, task, attempt)
        for stage in ids
        for stage_attempt in attempts
        for task in ids
        for attempt in attempts
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("path", "partition"),
    [("a.parquet", ""), ("dt=1/a.parquet", "dt=1"), ("dt=1/h=2/a", "dt=1/h=2")],
)
def test_a_file_s_partition_is_its_directory(path: str, partition: str) -> None:
    """The partition is the leaf directory; files at the root are in partition ``""``."""
    assert partition_of(path) == partition


@pytest.mark.parametrize(
    ("path", "unique"),
    [
        ("part-0.parquet", "part-0-U1.parquet"),
        ("dt=1/part-0.c000.snappy.parquet", "dt=1/part-0-U1.c000.snappy.parquet"),
        ("dt=1.5/part-0", "dt=1.5/part-0-U1"),
        ("dt=1.5/part.gz", "dt=1.5/part-U1.gz"),
        ("part-U1.parquet", "part-U1.parquet"),
        ("dt=U1/part.parquet", "dt=U1/part.parquet"),
    ],
)
def test_names_are_made_unique_as_hadoop_does(path: str, unique: str) -> None:
    """The id goes before the first dot of the last element, unless the path has it already."""
    assert unique_name(path, "U1") == unique
    assert unique_name(unique, "U1") == unique


def test_a_key_tells_whose_it_is() -> None:
    """A key made unique for one job belongs to that job and to no other."""
    key = f"flights/dt=1/part-0-{OURS}.c000.parquet"
    assert holds_job_id(key, OURS)
    assert not holds_job_id(key, THEIRS)
    assert not holds_job_id("flights/dt=1/part-0.parquet", OURS)


@pytest.mark.parametrize("longer", [f"{OURS}1", f"{OURS}-2", f"{OURS}_2", f"1{OURS}"])
def test_a_longer_id_is_another_job_s(longer: str) -> None:
    """A key of a job whose id merely contains this one does not belong to this job."""
    assert not holds_job_id(f"flights/part-0-{longer}.parquet", OURS)
    assert holds_job_id(f"flights/part-0-{longer}.parquet", longer)
