"""The options of the data source."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_s3commit import JobReference
from airflow_s3commit.exceptions import InvalidOption, StoreUnsuitable
from airflow_s3commit.spark import committer_conf
from airflow_s3commit.spark.options import WRITE_OPTIONS, WriteOptions, parse_options
from airflow_s3commit.spark.session import store_from_conf
from airflow_s3commit.store.credentials import StoreAddress
from airflow_s3commit.tables.options import parse_bytes, parse_columns
from tests.secret_shapes import MARK, URLS, leaks, shown


def test_defaults_are_append_with_snappy_and_no_partitions() -> None:
    """With only a path, a write appends to it."""
    options = parse_options({"path": "s3a://lake/flights"}, overwrite=False)
    assert options == WriteOptions(destination="s3://lake/flights/")
    assert options.own_job().conflict_mode == "append"


def test_names_are_not_case_sensitive_and_values_are_typed() -> None:
    """Options may come in any case, and become numbers, flags and tuples."""
    options = parse_options(
        {
            "PATH": "s3://lake/t",
            "partitionBy": "dt, region",
            "compression": "ZSTD",
            "maxRecordsPerFile": "1000",
            "parquet.block.size": "128m",
            "openFiles": "3",
            "endpointUrl": "http://127.0.0.1:1",
            "pathStyle": "true",
        },
        overwrite=True,
    )
    table = options.table
    assert table.partition_by == ("dt", "region")
    assert (table.compression, table.max_records_per_file, table.open_files) == ("zstd", 1000, 3)
    assert table.row_group_bytes == 128 << 20
    assert options.store == StoreAddress(endpoint_url="http://127.0.0.1:1", path_style=True)
    assert options.own_job().conflict_mode == "replace"
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("partition_by", "dt", "no option partition_by"),
        ("compression", "rar", "not one of .*snappy"),
        ("openFiles", "0", "less than 1"),
        ("maxRecordsPerFile", "x", "maxRecordsPerFile"),
        ("conflictMode", "fail", "no option conflictMode"),
        ("pathStyle", "perhaps", "neither true nor false"),
        ("stage", "load", "no option stage"),
        ("partitionBy", "dt,,x", "empty"),
        ("partitionBy", "dt,DT", "twice"),
        ("partitionBy", "[1]", "JSON list"),
    ],
)
def test_wrong_options_are_refused_by_name(name: str, value: str, says: str) -> None:
    """An unknown or malformed option is refused with a message that names it."""
    with pytest.raises(InvalidOption, match=says):
        parse_options({"path": "s3://lake/t", name: value}, overwrite=False)


def test_the_bytes_of_a_task_are_shared_by_parts_in_flight_and_open_files() -> None:
    """The bound on encoded bytes covers everything that waits in files or is in flight."""
    options = parse_options({"uploadBytes": "120m"}, overwrite=False)
    assert options.in_flight_bytes + options.table.encoded_bytes == 120 << 20


def test_every_option_is_documented_with_its_default() -> None:
    """Each option that is read has a sentence in the list, which states its actual default."""
    assert len({option.name.lower() for option in WRITE_OPTIONS}) == len(WRITE_OPTIONS)
    assert all(option.meaning.endswith(".") and option.default for option in WRITE_OPTIONS)
    said = {"none", "no limit", "nothing", "\\n"}
    for option in WRITE_OPTIONS:
        plain = option.default in said or " " in option.default or "'" in option.default
        if plain:
            continue
        given = parse_options({option.name: option.default}, overwrite=False)
        # The default of the codec is that of the format.
        assert replace(given, table=replace(given.table, compression=None)) == parse_options(
            {}, overwrite=False
        )
        assert given.table.codec == "snappy"


def test_given_store_settings_override_the_session_s() -> None:
    """An option overrides what the session's registration found, which fills the rest."""
    session = StoreAddress("http://127.0.0.1:1", "eu-west-1", path_style=True)
    given = {"region": "us-east-1", "pathStyle": "false"}
    options = parse_options(given, overwrite=False, store_defaults=session)
    assert options.store == StoreAddress("http://127.0.0.1:1", "us-east-1", path_style=False)


def test_columns_with_commas_are_given_as_json() -> None:
    """A JSON list accepts any column name."""
    assert parse_columns('["a,b", "c"]') == ("a,b", "c")
    assert parse_columns(" ") == ()


def test_sizes_have_units() -> None:
    """Sizes are in bytes or have a binary unit."""
    sizes = [parse_bytes(text) for text in ("7", "1k", "1KB", "2MiB", "1g")]
    assert sizes == [7, 1024, 1024, 2 << 20, 1 << 30]


@pytest.mark.parametrize("url", URLS)
def test_no_password_of_an_endpoint_is_accepted_anywhere(url: str) -> None:
    """Options of writes, a session's conf and `committer_conf` refuse it without repeating it."""
    reference = JobReference(job_id="job", destination="s3://lake/a/", staging="s3://lake/b/")
    doors: list[Callable[[], object]] = [
        lambda: parse_options({"endpointUrl": url}, overwrite=False),
        lambda: store_from_conf({"spark.s3commit.endpoint.url": url}.get),
        lambda: committer_conf(reference, "spark", "1", endpoint_url=url),
        lambda: StoreAddress(endpoint_url=url),
    ]
    for door in doors:
        with pytest.raises((StoreUnsuitable, InvalidOption), match="endpoint") as caught:
            door()
        assert leaks(shown(caught.value)) == []


@pytest.mark.parametrize("userinfo", [f"KEY:{MARK}", f"KEY:{MARK}/x+", f"KEY%3A{MARK}"])
def test_no_keys_in_a_path_are_accepted(userinfo: str) -> None:
    """Keys in a path, as old Hadoops accepted them, are refused and not repeated."""
    path = f"s3a://{userinfo}@lake/flights/"
    with pytest.raises(InvalidOption) as caught:
        parse_options({"path": path}, overwrite=False)
    assert leaks(shown(caught.value)) == []
