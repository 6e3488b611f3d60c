"""The options of ``df.write.format("s3commit")``: read once, on the driver, into plain data."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, cast, get_args

from airflow_s3commit.exceptions import StoreUnsuitable
from airflow_s3commit.protocol.destination import Destination
from airflow_s3commit.protocol.layout import check_id
from airflow_s3commit.protocol.records import Committer, ConflictMode, ObjectOptions
from airflow_s3commit.spark.session import StoreSettings
from airflow_s3commit.store.base import MIN_PART_BYTES
from airflow_s3commit.tables.option_values import (
    InvalidOption,
    one_of,
    parse_bytes,
    parse_columns,
    parse_flag,
)
from airflow_s3commit.tables.options import TABLE_OPTIONS, Option, TableOptions, read_options, table_options

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "WRITE_OPTIONS", "InvalidOption", "WriteOptions", "parse_bytes", "parse_columns", "parse_options",
]  # fmt: skip

_MIB = 1024 * 1024

#: Of the encoded bytes that a task may hold, one part in so many is on its way.
_IN_FLIGHT_SHARE = 2


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a DataFrame is written.

    Attributes:
        destination: URI of the destination; None takes the job's.
        table: How its files are written.
        conflict_mode: What the user asked for; None where nothing was said and the job decides.
        overwrite: Whether the save mode is ``overwrite``.
        committer: Committer of a job that the write sets up by itself.
        stage: Name of this write within its job; None takes the conf's.
        object_options: How the store keeps what is written, as far as the user said.
        part_bytes: Size of an uploaded part.
        upload_bytes: Bytes that a task holds after they are encoded, until the store has them.
        store: How to reach the store.

    """

    destination: str | None = None
    table: TableOptions = field(default_factory=TableOptions)
    conflict_mode: ConflictMode | None = None
    overwrite: bool = False
    committer: Committer = "partitioned"
    stage: str | None = None
    object_options: ObjectOptions = field(default_factory=ObjectOptions)
    part_bytes: int = 16 * _MIB
    upload_bytes: int = 80 * _MIB
    store: StoreSettings = field(default_factory=StoreSettings)

    @property
    def own_conflict_mode(self) -> ConflictMode:
        """Conflict mode of a job that the write sets up by itself."""
        return self.conflict_mode or ("replace" if self.overwrite else "append")

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of parts on their way before the writer waits."""
        return max(self.upload_bytes // _IN_FLIGHT_SHARE, self.part_bytes)


def parse_options(
    options: Mapping[str, str], *, overwrite: bool, store_defaults: StoreSettings | None = None
) -> WriteOptions:
    """Read the options of a write; their names are not case-sensitive.

    Args:
        options: As Spark hands them over.
        overwrite: Whether the save mode is ``overwrite`` (else it is ``append``).
        store_defaults: Store settings of the session, for options that are not given.

    Raises:
        InvalidOption: An option is unknown, malformed, not one of the files' format, or contradicts another
            or the save mode.

    """
    found = read_options(options, WRITE_OPTIONS)
    try:
        store = StoreSettings(**{name: found.pop(name) for name in _STORE_FIELDS & found.keys()})
    except StoreUnsuitable as error:
        raise InvalidOption(str(error)) from error
    kept = ObjectOptions(**{name: found.pop(name) for name in _OBJECT_FIELDS & found.keys()})
    own = {name: found.pop(name) for name in _WRITE_FIELDS & found.keys()}
    parsed = WriteOptions(
        **own,
        table=table_options(found),
        overwrite=overwrite,
        object_options=kept,
        store=store.or_else(store_defaults or StoreSettings()),
    )
    if overwrite and parsed.conflict_mode not in (None, "replace"):
        raise InvalidOption(
            f"save mode overwrite contradicts conflictMode={parsed.conflict_mode}; "
            f'use .mode("append") with it, or leave it out'
        )
    encoded = max(parsed.upload_bytes - parsed.in_flight_bytes, parsed.part_bytes)
    return replace(parsed, table=replace(parsed.table, encoded_bytes=encoded))


def _part_bytes(value: str) -> int:
    size = parse_bytes(value)
    if size < MIN_PART_BYTES:
        raise ValueError(f"S3 takes no parts under {MIN_PART_BYTES} bytes")
    return size


def _texts(value: str) -> dict[str, str]:
    """Read a JSON object of texts."""
    read = json.loads(value)
    if not isinstance(read, dict) or not all(isinstance(text, str) for text in read.values()):
        raise ValueError('not a JSON object of strings, such as {"team": "flights"}')
    return read


def _path(value: str) -> str:
    return Destination.parse(value).uri


def _stage(value: str) -> str:
    return check_id(value, "stage")


#: Every option of a write.
WRITE_OPTIONS: tuple[Option, ...] = (
    Option("path", "destination", _path, "The destination, if it is not given to save().", "the job's"),
    *TABLE_OPTIONS,
    Option(
        "committer", "committer", one_of(*cast("tuple[str, ...]", get_args(Committer))),
        "How a write without a job commits: magic uploads while rows come, directory and partitioned write"
        " to local disk first; directory judges conflicts by the whole table.", "partitioned",
    ),
    Option(
        "conflictMode", "conflict_mode", one_of(*cast("tuple[str, ...]", get_args(ConflictMode))),
        "What becomes of data that is there: fail, append or replace.",
        "append, or replace in save mode overwrite",
    ),
    Option("stage", "stage", _stage, "Name of this write in its job.", "the conf's, or spark"),
    Option(
        "partBytes", "part_bytes", _part_bytes,
        "Size of an uploaded part; less where memory runs short with many files open.", "16m", "bytes",
    ),
    Option(
        "uploadBytes", "upload_bytes", parse_bytes,
        "What a task holds after it is encoded, until the store has it.", "80m", "bytes",
    ),
    Option(
        "storageClass", "storage_class", str, "Storage class of the files.",
        "fs.s3a.create.storage.class, or the bucket's",
    ),
    Option(
        "sse", "sse", str, "Server-side encryption: AES256, aws:kms or aws:kms:dsse.",
        "fs.s3a.encryption.algorithm, or the bucket's",
    ),
    Option(
        "sseKmsKeyId", "sse_kms_key_id", str, "The KMS key of sse.",
        "fs.s3a.encryption.key, or the account's own",
    ),
    Option(
        "sseBucketKey", "sse_bucket_key", parse_flag, "Spare KMS requests with a bucket key.",
        "the bucket's",
    ),
    Option(
        "acl", "acl", str, "Canned ACL, such as bucket-owner-full-control.",
        "fs.s3a.acl.default, or none",
    ),
    Option("objectTags", "tags", _texts, "Tags of the files: a JSON object.", "none"),
    Option(
        "objectHeaders", "headers", _texts,
        "Cache-Control and its like, and x-amz-meta-… of the files: a JSON object.", "none",
    ),
    Option("endpointUrl", "endpoint_url", str, "The store's address, if it is not AWS.", "boto3's choice"),
    Option("region", "region", str, "The store's region.", "boto3's choice"),
    Option(
        "pathStyle", "path_style", parse_flag, "Put the bucket into the path and not the host name.",
        "boto3's choice",
    ),
)  # fmt: skip

_OBJECT_FIELDS = set(ObjectOptions.__struct_fields__)
_STORE_FIELDS = {known.name for known in fields(StoreSettings)}
_WRITE_FIELDS = {known.name for known in fields(WriteOptions)}
