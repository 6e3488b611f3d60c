"""The options of ``df.write.format("s3commit")``, parsed once on the driver."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from airflow_s3commit.exceptions import InvalidOption, StoreUnsuitable
from airflow_s3commit.protocol.model.codec import MIB
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import Committer, ConflictMode, JobOptions, ObjectOptions
from airflow_s3commit.store.credentials import StoreAddress
from airflow_s3commit.tables.options import (
    FORMATS,
    TABLE_OPTIONS,
    Option,
    TableOptions,
    one_of,
    options_of,
    parse_bytes,
    parse_flag,
    parse_region,
    read_fields,
    set_by,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

#: What an overwrite replaces, by Spark's names: the whole table, or the partitions that get rows.
PartitionOverwriteMode: TypeAlias = Literal["static", "dynamic"]

#: Spark's save modes, by Spark's names.
SaveMode: TypeAlias = Literal["append", "overwrite", "errorifexists", "error", "ignore"]

CONFLICT_MODES: dict[str, ConflictMode] = {
    "append": "append", "overwrite": "replace", "errorifexists": "fail", "error": "fail", "ignore": "fail",
}  # fmt: skip

#: Spark's own default mode.
DEFAULT_MODE: SaveMode = "errorifexists"

#: Options that are arguments of `write_pending`.
ARGUMENTS = {"path": "destination", "partitionby": "partition_by", "format": "format"}

#: Who writes what this package cannot write in Python.
OTHER_WRITER = (
    "use Spark's own writer: write_pending(df, engine='spark', format=…), commit_job(spark, destination), or"
    " writer='spark' of committer_conf and the Spark operator"
)

#: Size of an uploaded part; smaller if many open files fill memory. Half the default of `Job.task_attempt`:
#: an executor has a Python worker per core, and all share what Spark leaves beside the JVM.
PART_BYTES = 16 * MIB


def _texts(value: str) -> dict[str, str]:
    """Parse a JSON object of strings."""
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or not all(isinstance(text, str) for text in parsed.values()):
        raise ValueError('not a JSON object of strings, such as {"team": "flights"}')
    return parsed


def _path(value: str) -> str:
    if value != value.strip():
        raise ValueError("whitespace at its start or end: remove it")
    if (pattern := re.search(r"[*?{}\[\]]", value)) is not None:
        raise ValueError(
            f"{pattern[0]!r} is for templates and patterns, and Spark reads no such path: name one place"
        )
    return Destination.parse(value).uri


def _parquet(value: str) -> str:
    if value.lower() != "parquet":
        raise ValueError(f"s3commit writes only parquet in Python; {OTHER_WRITER}")
    return "parquet"


#: The options of files that apply to Parquet.
_FILE_OPTIONS: tuple[Option, ...] = (
    Option(
        "format", _parquet, "Only parquet; Spark's own writer has the others.",
        default="parquet", field="format",
    ),
    *(option for option in TABLE_OPTIONS if option.name not in ("format", "compression", "header")),
    Option(
        "compression", one_of(*FORMATS["parquet"].codecs),
        "snappy, gzip, zstd, lz4_raw, brotli or none.", default="snappy", field="compression",
    ),
)  # fmt: skip

#: The store's address.
_STORE_OPTIONS: tuple[Option, ...] = (
    Option(
        "endpointUrl", str, "The store's address, if it is not AWS.",
        default="boto3's choice", field="endpoint_url",
    ),
    Option("region", parse_region, "The store's region.", default="boto3's choice", field="region"),
    Option(
        "pathStyle", parse_flag, "Put the bucket into the path, not the host name.",
        default="boto3's choice", field="path_style",
    ),
)  # fmt: skip

#: Encryption, storage class, ACL, tags and headers of the files.
_OBJECT_OPTIONS: tuple[Option, ...] = (
    Option(
        "storageClass", str, "Storage class of the files.",
        default="fs.s3a.create.storage.class, or the bucket's", field="storage_class",
    ),
    Option(
        "sse", str, "Server-side encryption: AES256, aws:kms or aws:kms:dsse.",
        default="fs.s3a.encryption.algorithm, or the bucket's", field="sse",
    ),
    Option(
        "sseKmsKeyId", str, "The KMS key of sse.",
        default="fs.s3a.encryption.key, or the account's own", field="sse_kms_key_id",
    ),
    Option(
        "sseBucketKey", parse_flag, "Save KMS requests with a bucket key.",
        default="the bucket's", field="sse_bucket_key",
    ),
    Option(
        "acl", str, "Canned ACL, such as bucket-owner-full-control.",
        default="fs.s3a.acl.default, or none", field="acl",
    ),
    Option("objectTags", _texts, "Tags of the files: a JSON object.", default="none", field="tags"),
    Option(
        "objectHeaders", _texts, "Headers of the files, such as Cache-Control, x-amz-meta-…: a JSON object.",
        default="none", field="headers",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of writing a DataFrame.

    Attributes:
        table: The options of the files.
        conflict_mode: What the save mode means: None for ``append``, which contradicts no job.
        object_options: Encryption, storage class, ACL, tags and headers of the files.
        store: The store's address.
        given: The fields of all options that are given, whatever their values.
    """

    destination: str | None = set_by(
        None, "path", _path, "The destination, if save() does not name it.", default="the job's"
    )
    committer: Committer = set_by(
        "partitioned", "committer", one_of(*cast("tuple[str, ...]", get_args(Committer))),
        "Committer of a write without a job: magic uploads while rows are written, directory and"
        " partitioned write to local disk first; directory checks the whole table for conflicts.",
    )  # fmt: skip
    partition_overwrite: PartitionOverwriteMode | None = set_by(
        None, "partitionOverwriteMode", one_of(*cast("tuple[str, ...]", get_args(PartitionOverwriteMode))),
        "What save mode overwrite replaces: dynamic the partitions that get rows, static the whole table.",
        default="dynamic, but refused if the session sets static",
    )  # fmt: skip
    publish: Literal["delta"] | None = set_by(
        None, "publish", one_of("delta"),
        "delta makes each commit a version of a Delta table, from this write on.",
        default="none, unless the table is published",
    )  # fmt: skip
    upload_bytes: int = set_by(
        80 * MIB, "uploadBytes", parse_bytes,
        "Encoded bytes that a task buffers until they are uploaded.", "bytes",
    )  # fmt: skip
    table: TableOptions = field(default_factory=TableOptions)
    conflict_mode: ConflictMode | None = None
    object_options: ObjectOptions = field(default_factory=ObjectOptions)
    store: StoreAddress = field(default_factory=StoreAddress)
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def own_job(self, object_options: ObjectOptions | None = None) -> JobOptions:
        """Return the options of a write's own job."""
        # Mode ``fail`` is about the whole table, which only the committer directory checks.
        whole = self.conflict_mode == "fail"
        static = self.conflict_mode == "replace" and self.partition_overwrite == "static"
        return JobOptions(
            committer="directory" if whole or static else self.committer,
            conflict_mode=self.conflict_mode or "append",
            object_options=object_options or self.object_options,
            publish=self.publish,
        )

    @property
    def in_flight_bytes(self) -> int:
        """The limit on bytes of parts in flight; the writer waits above it."""
        return max(self.upload_bytes // 2, PART_BYTES)


_DESTINATION, *_WRITE = options_of(WriteOptions)

#: Every option of a write.
WRITE_OPTIONS = (_DESTINATION, *_FILE_OPTIONS, *_WRITE, *_OBJECT_OPTIONS, *_STORE_OPTIONS)

_OBJECT_FIELDS = {option.field: option.name for option in _OBJECT_OPTIONS}


def _taken(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: found.pop(name) for name in names if name in found}


def parse_options(
    options: Mapping[str, str], *, overwrite: bool, store_defaults: StoreAddress | None = None
) -> WriteOptions:
    """Parse the options of a write. Their names are not case-sensitive.

    Args:
        overwrite: Whether the save mode is ``overwrite``; otherwise it is ``append``.
        store_defaults: The session's store settings, for options that are not set.

    Raises:
        InvalidOption: An option is unknown, malformed, or does not fit the format, another, or the save mode.
    """
    # The format first, so that the error for another format is not one about its unknown options.
    in_order = sorted(options.items(), key=lambda option: option[0].lower() != "format")
    found = read_fields(dict(in_order), WRITE_OPTIONS)
    given = frozenset(found)
    try:
        store = StoreAddress(**_taken(found, [known.name for known in fields(StoreAddress)]))
    except StoreUnsuitable as error:
        raise InvalidOption(f"option endpointUrl of s3commit: {error}") from error
    of_objects = _taken(found, _OBJECT_FIELDS)
    try:
        object_options = ObjectOptions(**of_objects)
    except InvalidOption as error:
        names = ", ".join(_OBJECT_FIELDS[name] for name in of_objects)
        raise InvalidOption(f"option {names} of s3commit: {error}") from error
    own = _taken(found, [known.name for known in fields(WriteOptions)])
    parsed = WriteOptions(
        **own,
        table=TableOptions(**found),
        conflict_mode="replace" if overwrite else None,
        object_options=object_options,
        store=store.or_else(store_defaults or StoreAddress()),
        given=given,
    )
    clash = {"static": "magic", "dynamic": "directory"}.get(parsed.partition_overwrite or "")
    if clash is not None and parsed.committer == clash:
        raise InvalidOption(
            f"partitionOverwriteMode={parsed.partition_overwrite} contradicts committer={clash}: only the"
            " committer directory replaces the whole table; leave committer out"
        )
    encoded = max(parsed.upload_bytes - parsed.in_flight_bytes, PART_BYTES)
    return replace(parsed, table=replace(parsed.table, encoded_bytes=encoded))


def refuse_arguments(options: Iterable[str], **arguments: str) -> None:
    """Refuse options that are arguments of the function that was called, regardless of their names' case."""
    for name in options:
        if (argument := arguments.get(name.lower())) is not None:
            raise InvalidOption(f"pass {name} as the argument {argument}")


def quoted(name: str) -> str:
    """Return a column's name quoted as in SQL."""
    return "`" + name.replace("`", "``") + "`"
