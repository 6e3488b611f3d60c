from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow.fs import FileSelector

from airflow_s3commit.exceptions import DestinationChanged, InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.reader import UnreadablePartitions, dataset
from airflow_s3commit.reader.listing import find_table
from airflow_s3commit.reader.table import CommittedFiles, s3_filesystem
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.store.s3.store import S3Store
from tests.protocol.building import OURS, THEIRS, apart

if TYPE_CHECKING:
    from tests.reader.conftest import Table


def numbers(*values: int) -> pa.Table:
    """Return a table of these numbers and a text for each."""
    return pa.table({"n": pa.array(values, pa.int64()), "s": [f"row {value}" for value in values]})


def test_only_what_was_committed_is_read(table: Table) -> None:
    """Files of every commit, or of one, are read, with partition columns; foreign ones are not."""
    both = {"dt=2013-01-01/a.parquet": numbers(1, 2), "dt=2013-01-02/a.parquet": numbers(3)}
    table.commit(both)
    table.commit({"dt=2013-01-03/b.parquet": numbers(4)}, THEIRS)
    table.lake.put({"dt=2013-01-01/foreign.parquet": b"no Parquet at all"})
    added = table.read(job_id=THEIRS).to_table().to_pylist()
    assert added == [{"n": 4, "s": "row 4", "dt": dt.date(2013, 1, 3)}]
    assert sorted(table.read().to_table()["n"].to_pylist()) == [1, 2, 3, 4]
    rows = table.read(job_id=OURS).to_table(columns=["n", "dt"]).sort_by("n").to_pylist()
    assert rows == [
        {"n": 1, "dt": dt.date(2013, 1, 1)},
        {"n": 2, "dt": dt.date(2013, 1, 1)},
        {"n": 3, "dt": dt.date(2013, 1, 2)},
    ]


def test_a_filter_on_partitions_opens_only_their_files(table: Table, opened: list[str]) -> None:
    """Files of other partitions are not touched, nulls included."""
    table.commit(
        {
            "region=eu/a.parquet": numbers(1),
            "region=us%2Feast/a.parquet": numbers(2),
            "region=__HIVE_DEFAULT_PARTITION__/a.parquet": numbers(3),
        }
    )
    found = table.read()
    opened.clear()
    assert found.to_table(filter=pc.field("region") == "us/east")["n"].to_pylist() == [2]
    assert {path.split("/")[2] for path in opened} == {"region=us%2Feast"}
    opened.clear()
    assert found.to_table(filter=pc.field("region").is_null()).to_pylist() == [
        {"n": 3, "s": "row 3", "region": None}
    ]
    assert {path.split("/")[2] for path in opened} == {"region=__HIVE_DEFAULT_PARTITION__"}


def test_a_file_that_is_gone_is_named(table: Table) -> None:
    """The error has key, job and the next action, and comes at the reading, not before."""
    manifest = table.commit({"dt=1/a.parquet": numbers(1), "dt=2/a.parquet": numbers(2)})
    found = table.read()
    key = f"{table.lake.prefix}dt=2/a-{OURS}.parquet"
    table.local(key).unlink()
    assert found.to_table(filter=pc.field("dt") == 1).num_rows == 1
    with pytest.raises(NoSuchKey) as caught:
        found.to_table()
    message = str(caught.value)
    assert f"s3://lake/{key}, committed by job {manifest.job_id}, is gone" in message
    assert f"s3commit verify {table.lake.destination} {OURS}" in message


@pytest.mark.parametrize("more", [1, -1])
def test_a_file_of_another_size_is_named(table: Table, more: int) -> None:
    """The error has both sizes, key, job and the next action."""
    table.commit({"a.parquet": numbers(1), "b.parquet": numbers(2)})
    found = table.read()
    path = table.local(f"{table.lake.prefix}b-{OURS}.parquet")
    size = path.stat().st_size
    path.write_bytes((path.read_bytes() + b"x")[: size + more])
    with pytest.raises(
        DestinationChanged, match=rf"b-{OURS}.parquet has {size + more} bytes; job {OURS} committed {size}"
    ):
        found.to_table()


def test_a_file_that_may_not_be_read_is_not_gone(table: Table) -> None:
    """The store's refusal is what a reader sees, and no advice about later commits."""
    table.commit({"a.parquet": numbers(1)})
    (file,) = find_table(table.lake.store, Destination.of(table.lake.destination)).files.values()

    def refuse(_path: str) -> None:
        raise PermissionError("access denied")

    guard = CommittedFiles(SimpleNamespace(open_input_file=refuse), {file.path: file}, "s3://lake/flights/")
    with pytest.raises(PermissionError, match="access denied"):
        guard.open_input_file(file.path)


def test_the_file_system_of_a_dataset_only_reads(table: Table) -> None:
    """Whoever takes it from the dataset cannot change or list the table, nor read what was not committed."""
    table.commit({"a.parquet": numbers(1)})
    found = table.read()
    (path,), files = found.files, found.filesystem
    changes = [files.delete_file, files.create_dir, files.delete_dir, files.open_output_stream]
    for change in (*changes, lambda one: files.move(one, one), lambda one: files.copy_file(one, one)):
        with pytest.raises(NotImplementedError, match="cannot be listed or changed"):
            change(path)
    with pytest.raises(NotImplementedError, match="cannot be listed or changed"):
        files.get_file_info(FileSelector("lake"))
    table.local(path.removeprefix("lake/")).write_bytes(b"")
    with pytest.raises(DestinationChanged, match="has 0 bytes"):
        files.open_input_stream(path)


def test_files_that_differ_are_read_under_a_given_schema(table: Table, opened: list[str]) -> None:
    """A column that a file lacks is null; by default the first file's columns are read."""
    table.commit({"a.parquet": numbers(1), "b.parquet": numbers(2).append_column("x", [[True]])})
    schema = pa.schema([("n", pa.int64()), ("x", pa.bool_())])
    found = table.read(schema=schema)
    assert opened == []
    rows = found.to_table().sort_by("n").to_pylist()
    assert rows == [{"n": 1, "x": None}, {"n": 2, "x": True}]
    assert table.read().schema.names == ["n", "s"]


def test_a_directory_s_value_goes_before_that_of_its_files(table: Table) -> None:
    """A partition column that other programs' files have too is there once, as in Spark."""
    table.commit({"dt=2013-01-01/a.parquet": numbers(1).append_column("dt", [["another"]])})
    assert table.read().to_table().to_pylist() == [{"n": 1, "s": "row 1", "dt": dt.date(2013, 1, 1)}]


def test_a_job_that_wrote_nothing_is_an_empty_dataset(table: Table) -> None:
    """There is no row, and no column but those that are given."""
    table.commit({})
    assert table.read().to_table().num_rows == 0
    schema = pa.schema([("n", pa.int64())])
    assert table.read(schema=schema, partition_schema=pa.schema([("dt", pa.date32())])).schema.names == [
        "n",
        "dt",
    ]


def test_partition_types_may_be_given(table: Table) -> None:
    """A code that looks like a number stays text, and filters as text."""
    table.commit({"zip=01234/a.parquet": numbers(1), "zip=98765/a.parquet": numbers(2)})
    found = table.read(partition_schema=pa.schema([("zip", pa.string())]))
    assert found.to_table(filter=pc.field("zip") == "01234")["n"].to_pylist() == [1]
    with pytest.raises(UnreadablePartitions):
        table.read(partition_schema=pa.schema([("zip", pa.date32())]))


def test_a_manifest_that_leads_elsewhere_is_refused(table: Table) -> None:
    """A list that was changed to name a file of another program is refused."""
    with apart():
        table.commit({"a.parquet": numbers(1)})
    (key,) = table.lake.keys(f"{table.lake.prefix}_s3commit/lists/{OURS}-")
    table.lake.tamper(key, old=b"flights/a", new=b"secrets/a")
    with pytest.raises(InvalidRecord, match="is not the list"):
        table.read()


def test_the_dataset_stays_what_it_was(table: Table) -> None:
    """A later commit changes nothing in a dataset that was opened before it."""
    table.commit({"dt=1/a.parquet": numbers(1)})
    before = table.read()
    table.commit({"dt=2/a.parquet": numbers(2)}, THEIRS)
    after = table.read()
    assert before.to_table()["n"].to_pylist() == [1]
    assert sorted(after.to_table()["n"].to_pylist()) == [1, 2]


def test_a_store_alone_needs_a_filesystem(table: Table) -> None:
    """What a store was connected with is its own secret; the error says what to give."""
    with pytest.raises(ValueError, match="pass a filesystem"):
        dataset(table.lake.store, table.lake.destination)


def test_a_filesystem_that_is_given_is_read_with(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a config too, as for a profile, which pyarrow cannot use."""
    table.commit({"a.parquet": numbers(1)})
    monkeypatch.setattr(S3Store, "connect", lambda _: table.lake.store)
    found = dataset(S3Config(profile="night"), table.lake.destination, filesystem=table.copy())
    assert found.count_rows() == 1


KEYS = {"access_key": "AK", "secret_key": "sk", "session_token": "st"}
AWS = {"scheme": "https", "region": "eu-west-1"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, AWS),
        (KEYS, AWS | KEYS),
        ({"path_style": True}, {**AWS, "endpoint_override": "s3.eu-west-1.amazonaws.com",
                                "force_virtual_addressing": False}),
        (
            {"endpoint_url": "http://here:1/below", "verify": "ca.pem"},
            {"scheme": "http", "region": "eu-west-1", "endpoint_override": "here:1/below",
             "force_virtual_addressing": False, "tls_ca_file_path": "ca.pem"},
        ),
        (
            {"endpoint_url": "https://here", "path_style": False},
            {**AWS, "endpoint_override": "here", "force_virtual_addressing": True},
        ),
    ],
)  # fmt: skip
def test_pyarrow_is_told_what_the_store_is_told(
    given: dict[str, Any], wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Address, keys with their session, certificate and spelling of buckets are those of the config."""
    config = S3Config(region="eu-west-1", **given)
    address = config.endpoint_url or "https://s3.eu-west-1.amazonaws.com"
    monkeypatch.setattr("airflow_s3commit.reader.table.S3FileSystem", dict)
    assert s3_filesystem(config, SimpleNamespace(endpoint=address, region="us-east-1")) == wanted


@pytest.mark.parametrize(
    ("config", "remedy"),
    [(S3Config(profile="night"), "AWS_PROFILE"), (S3Config(verify=False), "verify")],
)
def test_what_pyarrow_cannot_do_is_refused(
    table: Table, config: S3Config, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile by name and an unchecked certificate are errors that name the way out."""
    (tmp_path / "config").write_text("[profile night]\nregion = eu-west-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(ValueError, match=remedy):
        dataset(config, table.lake.destination)
