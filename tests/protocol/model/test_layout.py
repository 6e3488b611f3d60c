"""Every key is built in one place, and is used for one thing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import (
    LOG,
    Layout,
    check_id,
    check_new_id,
    checkpoint_key,
    checkpoint_number,
    entry_key,
    entry_number,
    is_below,
    job_key,
    list_key,
    owner_of,
    partition_of,
    receipt_key,
    seal_key,
    unique_name,
)
from tests.cases import each
from tests.protocol.building import OURS, THEIRS

HERE = Destination("lake", "flights/")


LAYOUT = Layout.of(HERE, "j-1")


def test_the_keys_are_those_of_the_design() -> None:
    """Every record is where the protocol's description says."""
    staging = "flights/__magic_job-j-1/"
    assert LAYOUT.staging.uri == f"s3://lake/{staging}"
    assert LAYOUT.stage_seal("spark", "1") == f"{staging}stages/spark-1/sealed.json"
    assert LAYOUT.pendingset("spark", "1", "00007", "12") == (
        f"{staging}stages/spark-1/tasks/00007_12.pendingset"
    )
    assert job_key(HERE, "j-1") == "flights/_s3commit/open/j-1/job.json"
    assert seal_key(HERE, "j-1") == "flights/_s3commit/open/j-1/sealed.json"
    assert receipt_key(HERE, "j-1") == "flights/_s3commit/jobs/j-1.json"
    assert list_key(HERE, "j-1", "e3b0") == "flights/_s3commit/lists/j-1-e3b0.jsonl"
    assert HERE.key(LOG) == "flights/_s3commit/log/"
    assert entry_key(HERE, 7) == "flights/_s3commit/log/00000000000000000007.json"
    assert checkpoint_key(HERE, 13) == "flights/_s3commit/checkpoints/00000000000000000013.jsonl.gz"
    assert LAYOUT.success == "flights/_SUCCESS"
    assert LAYOUT.partition_success("dt=1") == "flights/dt=1/_SUCCESS"


@given(st.integers(1, 2**63 - 1), st.integers(1, 2**63 - 1))
def test_keys_of_the_log_sort_as_their_numbers_do(one: int, other: int) -> None:
    """A listing has the entries in order, and a key shows its number."""
    assert (entry_key(HERE, one) < entry_key(HERE, other)) is (one < other)
    assert entry_number(HERE, entry_key(HERE, one)) == one
    assert checkpoint_number(HERE, checkpoint_key(HERE, one)) == one
    assert checkpoint_number(HERE, entry_key(HERE, one)) is None


@pytest.mark.parametrize(
    "name",
    [
        "", "1.json", "00000000000000000000.json", "00000000000000000001", "00000000000000000001.jsonl",
        "000000000000000000001.json", "0000000000000000000a.json", "+0000000000000000001.json",
        "-0000000000000000001.json", "0000000000_000000001.json", "\u0660" * 19 + "\u0661.json",
        "00000000000000000001.json.json", "x/00000000000000000001.json",
    ],
)  # fmt: skip
def test_other_keys_in_the_log_are_not_entries(name: str) -> None:
    """Only a key that this package writes has a number."""
    assert entry_number(HERE, HERE.key(LOG) + name) is None
    assert entry_number(HERE, f"trains/_s3commit/log/{name or '00000000000000000001.json'}") is None


def test_staging_may_be_elsewhere() -> None:
    """With another staging root only what tasks and stages write moves; the marker stays."""
    layout = Layout.of(HERE, "j-1", Destination("private", "staging/"))
    assert layout.staging.uri == "s3://private/staging/__magic_job-j-1/"
    assert layout.stage_seal("spark", "1") == "staging/__magic_job-j-1/stages/spark-1/sealed.json"
    assert layout.success == LAYOUT.success
    assert not layout.is_below_destination
    assert LAYOUT.is_below_destination


def test_a_bucket_s_root_has_a_layout_too() -> None:
    """At the root of a bucket no key begins with a slash."""
    root = Destination("lake", "")
    layout = Layout.of(root, "j-1")
    assert layout.stages == "__magic_job-j-1/stages/"
    assert job_key(root, "j-1") == "_s3commit/open/j-1/job.json"
    assert layout.success == "_SUCCESS"


@pytest.mark.parametrize("value", ["", "-a", "_a", ".a", "a/b", "a b", "a\n", "ü", "..", "a.b", "x" * 129])
def test_a_job_id_is_fit_for_a_key(value: str) -> None:
    """Job ids only have letters, digits, ``-`` and ``_``, and begin with a letter or digit."""
    with pytest.raises(InvalidRecord, match="job id"):
        check_id(value)
    with pytest.raises(InvalidRecord):
        Layout.of(HERE, value)


@pytest.mark.parametrize("value", ["", "-", "a/b", "a b", "a\n", "../x", "x" * 129])
def test_ids_below_a_job_are_fit_for_a_key(value: str) -> None:
    """Stage, task and attempt ids that would lead elsewhere are refused wherever a key is built of them."""
    for stage, stage_attempt, task, attempt in (
        (value, "1", "t", "1"), ("s", value, "t", "1"), ("s", "1", value, "1"), ("s", "1", "t", value),
    ):  # fmt: skip
        with pytest.raises(InvalidRecord):
            LAYOUT.pendingset(stage, stage_attempt, task, attempt)


def test_ids_below_a_job_may_have_dots() -> None:
    """Stages and tasks may have the names that Airflow and Spark give them."""
    assert check_id("transform.load_0-1", "stage") == "transform.load_0-1"
    assert check_id("1.2", "task attempt") == "1.2"
    for value in ("1-2", "1_2"):
        with pytest.raises(InvalidRecord):
            check_id(value, "task attempt")


def test_what_lies_below_a_directory_begins_with_all_of_its_name() -> None:
    """A partition with a longer name lies beside it; everything is below the root."""
    assert is_below("dt=1", ["dt=0", "dt=1"])
    assert is_below("dt=1/hour=2", ["dt=1"])
    assert not is_below("dt=10", ["dt=1"])
    assert is_below("dt=1", [""])
    assert not is_below("dt=1", [])


def test_no_two_attempts_share_a_key() -> None:
    """Ids that contain separators do not collide: an attempt's id has neither ``-`` nor ``_``."""
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
        ("dt=U1/part.parquet", "dt=U1/part-U1.parquet"),
    ],
)
def test_names_are_made_unique_as_hadoop_does(path: str, unique: str) -> None:
    """The id goes before the first dot of the last element, unless it is already there."""
    assert unique_name(path, "U1") == unique
    assert unique_name(unique, "U1") == unique


@pytest.mark.parametrize(
    "name",
    [
        f"part-0-{OURS}",
        f"part-0-{OURS}.parquet",
        f"part-00000-{OURS}-c000.snappy.parquet",
        f"part-00000-{OURS}_00001.c000.snappy.parquet",
        f"part-00000-{OURS}.c000.snappy.parquet",
        f"export-{THEIRS}-{OURS}.parquet",
        f"export-{THEIRS}_00001-{OURS}.parquet",
        f"part-0-{OURS}.of-{THEIRS}.parquet",
    ],
)
def test_a_file_name_tells_its_job(name: str) -> None:
    """A name made unique for a job, and what Spark makes of it, belong to that job anywhere."""
    for directory in ("", "flights/", f"flights/dt={THEIRS}/", f"flights/x-{THEIRS}.d/"):
        assert owner_of(directory + name) == OURS


@each(
    "key",
    [
        "flights/dt=1/part-0.parquet",
        f"flights/dt={OURS}/part-0.parquet",
        f"flights/x-{OURS}/part-0.parquet",
        f"flights/x-{OURS}.d/part-0.parquet",
        f"flights/part-0-{OURS}1.parquet",
        f"flights/part-0-{OURS}-2.parquet",
        f"flights/part-0-{OURS}_x.parquet",
        f"flights/part-0-1{OURS}.parquet",
        f"flights/part{OURS}.parquet",
        f"flights/{OURS}.parquet",
        f"flights/part-0-{OURS.upper()}.parquet",
        f"flights/x_s3commit/lists/{OURS}-{'0' * 64}.jsonl",
        f"flights/_s3commit/lists/x-{OURS}1.jsonl",
        "flights/part-0-en.parquet",
    ],
)
def test_other_keys_belong_to_no_job(key: str) -> None:
    """A directory, a longer word, another spelling or an id that is not a UUID makes no key a job's."""
    assert owner_of(key) is None


def test_the_list_of_a_job_s_files_belongs_to_it() -> None:
    """The job's upload that is not data is known by its place; the list of older data is nobody's."""
    for home in (HERE, Destination("lake", "")):
        assert owner_of(list_key(home, OURS, "0" * 64)) == OURS
        assert owner_of(list_key(home, "older-data", "0" * 64)) is None
    layout = Layout.of(HERE, OURS)
    assert layout.is_own_upload(list_key(HERE, OURS, "0" * 64))
    assert layout.is_own_upload(layout.probe)
    assert not layout.is_own_upload(list_key(HERE, THEIRS, "0" * 64))


@pytest.mark.parametrize(
    ("job_id", "advice"),
    [
        ("2013-01-01", "name="),
        ("parquet", "name="),
        ("", "name="),
        (OURS.upper(), f"write it as {OURS}"),
        (OURS.replace("-", ""), f"write it as {OURS}"),
        (f"{{{OURS}}}", f"write it as {OURS}"),
        (f"{OURS}\n", "is not a UUID"),
    ],
)
def test_a_new_job_s_id_is_a_canonical_uuid(job_id: str, advice: str) -> None:
    """Any other id is refused, with the right alternative."""
    with pytest.raises(InvalidRecord, match=advice):
        check_new_id(job_id)
    assert check_new_id(OURS) == OURS


@pytest.mark.parametrize("staging", ["", "flights/", "flights/__magic_job-j-2/", "flights/x__magic_job-j-1/"])
def test_a_staging_is_named_after_its_job(staging: str) -> None:
    """A job's keys are never below a directory that is not its own, as that is removed at the end."""
    with pytest.raises(InvalidRecord, match="not the staging of job j-1"):
        Layout(HERE, Destination("lake", staging), "j-1")
