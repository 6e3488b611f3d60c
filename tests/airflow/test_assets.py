"""The asset events of a commit, and the partition keys of its consumers' runs."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

import pytest
from airflow import plugins_manager
from airflow.partition_mappers.chain import ChainMapper as CoreChainMapper
from airflow.sdk import (
    DAG,
    Asset,
    ChainMapper,
    PartitionedAssetTimetable,
    StartOfMonthMapper,
)
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.serialization.serialized_objects import DagSerialization

from airflow_s3commit import Counts, Manifest
from airflow_s3commit.assets import HivePathMapper, announce, event_extra, hive_values

PATH = "dt=2013-01-01/region=eu"


def manifest(partitions: dict[str, int]) -> Manifest:
    """Return a manifest with a number of files in each partition."""
    counts = {name: Counts(files=files, bytes=10 * files, rows=files) for name, files in partitions.items()}
    return Manifest(
        job_id="11111111-1111-4111-8111-111111111111",
        destination="s3://lake/flights/",
        conflict_mode="append",
        committed=1,
        counts=Counts(files=1, bytes=1, rows=1),
        partitions=counts,
        replaced=Counts(files=0, bytes=0, rows=None),
        files_sha256="0",
        within=[],
        schemas=[],
        context={},
        metrics={},
        generation=2,
        tasks=1,
        rolled_back_to=0,
    )


@pytest.mark.parametrize(
    ("template", "key", "found"),
    [
        (None, PATH, PATH),
        (None, f"/{PATH}/", PATH),
        ("{dt}", PATH, "2013-01-01"),
        ("{region}/{dt}", PATH, "eu/2013-01-01"),
        ("day {dt}", "dt=2013-01-01", "day 2013-01-01"),
        ("{name}", "name=a%2Fb%3Dc", "a/b=c"),
        ("{region}", "region=__HIVE_DEFAULT_PARTITION__", "__HIVE_DEFAULT_PARTITION__"),
    ],
)
def test_a_path_becomes_a_key(template, key, found) -> None:
    """The template's columns are taken from the path, unescaped."""
    assert HivePathMapper(template).to_downstream(key) == found


@pytest.mark.parametrize("key", ["2013-01-01", "", "dt=1/x", "=1", "region=eu"])
def test_a_path_that_does_not_fit_is_refused(key) -> None:
    """Airflow logs it with the asset's event instead of starting a run of another key."""
    with pytest.raises(ValueError, match=r"is not a Hive path|has no column"):
        HivePathMapper("{dt}").to_downstream(key)


@pytest.mark.parametrize(
    "arguments",
    [
        {"template": "day"},
        {"template": "{}"},
        {"template": "{dt.year}"},
        {"template": "{dt!r}"},
        {"template": "{dt}/{"},
        {"template": "{dt}}"},
        {"template": "{dt:>4}"},
        {"template": "{dt}", "date_column": "day"},
        {"date_column": "dt"},
        {"template": "{dt}", "max_downstream_keys": 0},
    ],
)
def test_a_typo_is_found_when_the_dag_is_parsed(arguments) -> None:
    """A template that cannot be right is refused before any event comes."""
    with pytest.raises(ValueError, match=r"template|max_downstream_keys"):
        HivePathMapper(**arguments)


def test_a_key_may_have_a_date() -> None:
    """The consumer's run gets the date as its partition date, and a key without one has none."""
    mapper = HivePathMapper("{region}.{dt}", date_column="dt", date_format="%Y%m%d")
    assert mapper.to_partition_date("eu.20130102") == datetime(2013, 1, 2, tzinfo=UTC)
    assert HivePathMapper("{dt}").to_partition_date("2013-01-02") is None
    for key in ("eu.2013", "20130102", "eu-20130102"):
        with pytest.raises(ValueError, match=r"does not match|is no key"):
            mapper.to_partition_date(key)


@pytest.mark.parametrize("separator", ["-", "_", ".", "/"])
@pytest.mark.parametrize("order", ["{{region}}{0}{{dt}}", "of {{dt}}{0}{{region}}{0}"])
@pytest.mark.parametrize(
    ("date_format", "dt"), [("%Y-%m-%d", "2013-01-02"), ("%Y_%m_%d", "2013_01_02"), ("%d.%m.%y", "2.1.13")]
)
@pytest.mark.parametrize("region", ["eu-west-1", "eu_west.1", "12-34"])
def test_the_date_of_every_key_is_found(
    order: str, separator: str, date_format: str, dt: str, region: str
) -> None:
    """The separator of a template may be in the date, and in the value of another column, too."""
    mapper = HivePathMapper(order.format(separator), date_column="dt", date_format=date_format)
    key = mapper.to_downstream(f"dt={dt}/region={region}")
    assert mapper.to_partition_date(key) == datetime(2013, 1, 2, tzinfo=UTC)


def test_the_scheduler_has_the_whole_mapper() -> None:
    """It makes the mapper anew from plain values."""
    mapper = HivePathMapper("{dt}", date_column="dt", date_format="%Y%m%d", max_downstream_keys=5)
    assert vars(HivePathMapper.deserialize(json.loads(json.dumps(mapper.serialize())))) == vars(mapper)


def test_hive_values() -> None:
    """Columns and values of a path, both unescaped."""
    assert hive_values("/a%20b=1/c=x%25/") == {"a b": "1", "c": "x%"}


def test_the_plugin_registers_it() -> None:
    """Airflow finds the mapper by its name, as the scheduler does."""
    assert HivePathMapper in plugins_manager.get_partition_mapper_plugins().values()


@pytest.mark.parametrize(
    ("mapper", "key"),
    [
        (HivePathMapper("{dt}", date_column="dt", max_downstream_keys=7), "2013-01-01"),
        (ChainMapper(HivePathMapper("{dt}"), StartOfMonthMapper(input_format="%Y-%m-%d")), "2013-01"),
    ],
)
def test_the_scheduler_reads_what_the_dag_wrote(mapper, key) -> None:
    """A DAG with the mapper survives serialization, and its timetable maps as the DAG said."""
    days = Asset("flight_days")
    with DAG(
        "report", schedule=PartitionedAssetTimetable(assets=days, default_partition_mapper=mapper)
    ) as dag:
        pass
    known = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    found = known.timetable.get_partition_mapper(name="flight_days", uri=days.uri)
    assert isinstance(found, (HivePathMapper, CoreChainMapper))
    assert found.to_downstream(PATH) == key
    if isinstance(found, HivePathMapper):
        assert found.serialize() == mapper.serialize()
        assert found.max_downstream_keys == 7


def test_an_event_has_counts_of_at_most_a_thousand_partitions() -> None:
    """The manifest has them all, and an event's row in the database stays small."""
    extra = event_extra(manifest({f"n={number:04}": 1 for number in range(1_200)}))
    assert (extra["partitions"], len(extra["partition_counts"])) == (1_200, 1_000)
    assert extra["partition_counts"]["n=0000"] == {"files": 1, "bytes": 10, "rows": 1}


def test_the_events_of_many_partitions_stay_small() -> None:
    """Airflow stores the extra once for each partition, so it has no counts of the others."""
    days, flights, events = Asset("flight_days"), Asset("flights"), OutletEventAccessors()
    many = manifest({f"dt={number:05}": 1 for number in range(5_000)})
    announce(events, many, tables=[flights], partitions=days)
    assert len(events[days].partition_keys) == 5_000
    assert "partition_counts" not in events[days].extra
    assert len(json.dumps(events[days].extra)) < 1_000
    assert events[days].extra["partitions"] == 5_000
    assert len(events[flights].extra["partition_counts"]) == 1_000


def test_the_event_of_a_single_partition_has_its_counts() -> None:
    """A consumer of a nightly partition finds the counts in the event."""
    days, events = Asset("flight_days"), OutletEventAccessors()
    announce(events, manifest({"dt=1": 3}), tables=[], partitions=days)
    assert events[days].extra["partition_counts"]["dt=1"]["files"] == 3


def test_what_cannot_be_a_key_is_left_out(caplog) -> None:
    """The root, partitions without files and names that are too long make no events, and no error."""
    days, events = Asset("flight_days"), OutletEventAccessors()
    longest = f"name={'x' * 245}"
    long = f"{longest}x"
    with caplog.at_level(logging.WARNING):
        announce(events, manifest({"": 1, longest: 1, "dt=2": 0, long: 1}), tables=[], partitions=days)
    assert events[days].partition_keys == {longest}
    assert "for 1 partitions with names over 250 characters" in caplog.text
