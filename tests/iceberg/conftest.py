"""A table on the S3 server of the tests, a catalog of pyiceberg, and what both say of a generation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_s3commit import JobOptions, dataset, write_job, write_table
from tests.iceberg.rest_catalog import server, wait_until_it_answers

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_s3commit import Manifest, S3Config, S3Store

NAME = "lake.flights"

#: Partition columns, outermost first.
BY = ("day", "place", "at")

NOON = datetime(2013, 1, 1, 12, 30, 0, 250000, tzinfo=UTC)

#: A partition for each kind of value: a date, a time, a null, and texts with a slash, a percent and a space.
PARTITIONS: list[tuple[date | None, str | None, datetime | None]] = [
    (date(2013, 1, 1), "us/east", NOON),
    (date(2013, 1, 2), "50%2F", NOON.replace(microsecond=0)),
    (date(1969, 12, 31), "a b", datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
    (None, None, None),
]

PARTITION_SCHEMA = pa.schema(
    [("day", pa.date32()), ("place", pa.string()), ("at", pa.timestamp("us", "UTC"))]
)


def rows(first: int, partitions: list[Any] = PARTITIONS, **more: pa.Array) -> pa.Table:
    """Return two rows for each partition, with ids from the first on, and columns of most types."""
    count = 2 * len(partitions)
    ids = range(first, first + count)
    values = list(zip(*(one for one in partitions for _ in range(2)), strict=True))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "small": pa.array([one % 7 for one in ids], pa.int8()),
            "name": [None if one % 5 == 0 else f"row {one}" for one in ids],
            "amount": pa.array([Decimal(one) / 4 for one in ids], pa.decimal128(12, 2)),
            "ratio": [one / 8 for one in ids],
            "late": [one % 2 == 0 for one in ids],
            "seen": pa.array([NOON] * count, pa.timestamp("us", "UTC")),
            "tags": [[str(one)] for one in ids],
            "inner": [{"a": one, "b": {"c": "x"}} for one in ids],
            **more,
            **{
                field.name: pa.array(column, field.type)
                for field, column in zip(PARTITION_SCHEMA, values, strict=True)
            },
        }
    )


class Lake:
    """A table at a destination, and its name in a catalog.

    Attributes:
        store: The store.
        uri: The destination.
    """

    def __init__(self, config: S3Config, store: S3Store, uri: str) -> None:
        self._config = config
        self.store = store
        self.uri = uri

    def write(self, data: pa.Table, mode: str = "append", **options: Any) -> Manifest:
        """Commit rows, and keep what they replace."""
        options = {"retain": "1d", **options}
        return write_table(
            data,
            self.uri,
            store=self.store,
            partition_by=BY,
            job_options=JobOptions(conflict_mode=mode, **options),
        )

    def abort(self) -> None:
        """Write rows, and abort the job: its entry in the log is no generation."""
        with (
            suppress(ZeroDivisionError),
            write_job(self.uri, store=self.store, conflict_mode="append") as job,
        ):
            job.write_table(rows(900), partition_by=BY)
            raise ZeroDivisionError

    def truth(self, generation: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of a generation by the reader of this package."""
        place = PARTITION_SCHEMA.get_field_index("at")
        # A directory does not name its time zone.
        types = PARTITION_SCHEMA.set(place, pa.field("at", pa.timestamp("us")))
        found = dataset(self._config, self.uri, generation=generation, partition_schema=types)
        return in_order(found.to_table())


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows by their id, without columns that are null in all of them, and times in UTC."""
    kept = [name for name in table.column_names if table[name].null_count < table.num_rows or name == "at"]
    found = table.select(sorted(kept)).sort_by("id").to_pylist()
    return [
        {**row, "seen": row["seen"].timestamp(), "at": row["at"] and row["at"].replace(tzinfo=UTC)}
        for row in found
    ]


def shown(catalog: Catalog, generation: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of a generation by pyiceberg."""
    table = catalog.load_table(NAME)
    of = {one.summary["s3commit.generation"]: one.snapshot_id for one in table.snapshots() if one.summary}
    return in_order(table.scan(snapshot_id=of[str(generation)] if generation else None).to_arrow())


def properties(config: S3Config) -> dict[str, str]:
    """Return what pyiceberg needs to reach the store."""
    return {
        "s3.endpoint": config.endpoint_url or "",
        "s3.access-key-id": config.access_key or "",
        "s3.secret-access-key": config.secret_key or "",
        "s3.region": config.region or "us-east-1",
    }


@pytest.fixture
def lake(seaweed: Any, seaweed_store: S3Store, bucket: str, prefix: str) -> Lake:
    """Return a table that no other test uses."""
    return Lake(seaweed.config, seaweed_store, f"s3://{bucket}/{prefix}flights/")


@pytest.fixture(params=["sql", pytest.param("rest", marks=pytest.mark.all)])
def catalog(request: pytest.FixtureRequest) -> Iterator[Catalog]:
    """Return a catalog in a SQLite database, or behind Iceberg's own REST server, with a namespace."""
    catalog = request.getfixturevalue(f"{request.param}_catalog")
    catalog.create_namespace("lake")
    yield catalog
    catalog.close()


@pytest.fixture
def sql_catalog(seaweed: Any, tmp_path: Path) -> Catalog:
    """Return a catalog in a SQLite database."""
    return open_catalog(seaweed.config, tmp_path)


@pytest.fixture(scope="session")
def rest_server(seaweed: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of Iceberg's own REST server."""
    program, address = server(seaweed.config, "s3://lake/warehouse", tmp_path_factory.mktemp("rest"))
    with program:
        wait_until_it_answers(program, address)
        yield address


@pytest.fixture
def rest_catalog(seaweed: Any, rest_server: str) -> Iterator[Catalog]:
    """Return an empty catalog behind the REST server."""
    from pyiceberg.catalog.rest import RestCatalog  # noqa: PLC0415 - not everywhere

    catalog = RestCatalog("tests", uri=rest_server, **properties(seaweed.config))
    yield catalog
    for table in catalog.list_tables("lake"):
        catalog.drop_table(table)
    catalog.drop_namespace("lake")


def open_catalog(config: S3Config, folder: Path, kind: type[Catalog] | None = None, **more: str) -> Catalog:
    """Return a catalog as a process sees it that has just been started."""
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - not everywhere

    uri = f"sqlite:///{folder}/catalog.db"
    return (kind or SqlCatalog)("tests", uri=uri, **properties(config), **more)
