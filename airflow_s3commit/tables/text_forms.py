"""How CSV and JSON files are encoded; plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_s3commit.tables.csv_rows import CsvRows
from airflow_s3commit.tables.formats import FORMATS
from airflow_s3commit.tables.json_rows import JsonRows
from airflow_s3commit.tables.text_file import RowLines, TextEncoder
from airflow_s3commit.tables.text_options import TextOptions

if TYPE_CHECKING:
    from airflow_s3commit.tables.sink import Sink

__all__ = ["TextForm"]

_ROWS: dict[str, Callable[[pa.Schema, TextOptions], RowLines]] = {"csv": CsvRows, "json": JsonRows}


@dataclass(frozen=True, slots=True)
class TextForm:
    """How the files of one write are encoded.

    Attributes:
        name: ``csv`` or ``json``.
        compression: A key of the format's codecs.
        options: How values become text.

    """

    name: str
    compression: str = "none"
    options: TextOptions = field(default_factory=TextOptions)

    @property
    def content_type(self) -> str:
        """Media type of the files."""
        return FORMATS[self.name].content_type

    @property
    def suffix(self) -> str:
        """The end of a file's name, such as ``.csv.gz``."""
        return FORMATS[self.name].suffix(self.compression)

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that the format has no text for.

        Raises:
            UnsupportedColumn: There is one.

        """
        _ROWS[self.name](schema, self.options)

    def encoder(self, sink: Sink, schema: pa.Schema) -> TextEncoder:
        """Start one file."""
        rows = _ROWS[self.name](schema, self.options)
        codec = FORMATS[self.name].codecs[self.compression].engine
        return TextEncoder(sink, schema, rows, codec, self.options.line_separator)
