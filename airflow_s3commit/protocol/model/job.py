"""A job: its options, those of its objects, its record, its state, and the reference to open it elsewhere."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct, field

from airflow_s3commit._format import seconds_of
from airflow_s3commit.exceptions import InvalidDestination, InvalidOption
from airflow_s3commit.protocol.model.codec import (
    Count,
    Generation,
    JobOwned,
    Line,
    Milliseconds,
    Plain,
    Prose,
    Text,
    from_plain,
)
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.store.base import METADATA_PREFIX

#: Maximum characters of a wrong value in an error's message.
_LONGEST_VALUE = 80

_NAMES = {str: "text", bool: "True or False", type(None): "None"}


class Checked(Struct, frozen=True, kw_only=True):
    """A struct that checks the types of its fields whenever it is created.

    Raises `InvalidOption` if a field has another type, or `check` refuses it.
    """

    def __post_init__(self) -> None:
        """Check each field's type, then the fields together."""
        for name, kind in _kinds(type(self)).items():
            value = getattr(self, name)
            if not _is_of(value, kind):
                shown = repr(value)[:_LONGEST_VALUE]
                raise InvalidOption(f"{name}={shown} is not {' or '.join(_choices(kind))}")
        self.check()

    def check(self) -> None:
        """Check the values of the fields.

        Raises `InvalidOption` if a value is invalid.
        """


def _is_of(value: object, kind: Any) -> bool:
    try:
        # The conversion would turn a dict into a struct, so compare the type of its result.
        return isinstance(value, type(msgspec.convert(value, kind)))
    except msgspec.ValidationError:
        return False


@lru_cache
def _kinds(kind: type[Struct]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _choices(kind: Any) -> list[str]:
    """Return the choices of a field of this type, as texts."""
    if get_origin(kind) in (Union, UnionType):
        return [choice for one in get_args(kind) for choice in _choices(one)]
    if get_origin(kind) is Annotated:
        return _choices(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return [repr(value) for value in get_args(kind)]
    if get_origin(kind) is dict:
        return ["a dict of text by text"]
    return [_NAMES.get(kind) or f"{kind.__name__}(…)"]


Encryption: TypeAlias = Literal["AES256", "aws:kms", "aws:kms:dsse"]

CannedAcl: TypeAlias = Literal[
    "private",
    "public-read",
    "public-read-write",
    "authenticated-read",
    "aws-exec-read",
    "bucket-owner-read",
    "bucket-owner-full-control",
]

#: ACLs that grant nothing beyond the two owners: a job's records get them too.
_AMONG_OWNERS = ("private", "bucket-owner-read", "bucket-owner-full-control")

#: Headers that a user may give to data, besides user metadata. ``content-type`` follows from the file.
_HEADERS = ("cache-control", "content-disposition", "content-encoding", "content-language", "expires")

#: Names of user metadata that are ours.
_RESERVED = "s3commit-"

#: What may follow the prefix in the name of a header of user metadata.
_METADATA_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")

# Nothing that could end a header and begin another.
_HEADER_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")


class ObjectOptions(Checked, frozen=True, kw_only=True, omit_defaults=True):
    """Options of the objects that a job writes. Omitted options take the bucket's default.

    Encryption, and an ACL that is limited to the owners, apply to data and records, because a bucket policy
    may require them. The other options apply to data only. Customer-provided keys (SSE-C) are not supported:
    every read of an object would need them.

    Storage classes, limits on tags and metadata, and whatever else the store can judge are left to the store:
    the setup of a job starts an upload with these options.

    Attributes:
        storage_class: ``STANDARD_IA``, ``INTELLIGENT_TIERING`` … as the store calls it.
        sse: Server-side encryption: ``AES256``, ``aws:kms`` or ``aws:kms:dsse``.
        sse_kms_key_id: ARN, id or alias of the KMS key; by default the account's own key for S3.
        sse_bucket_key: Whether ``aws:kms`` uses a bucket key, which saves requests to KMS.
        acl: A canned ACL, such as ``bucket-owner-full-control``.
        tags: Up to 10 tags by name.
        headers: ``Cache-Control``, ``Content-Disposition``, ``Content-Encoding``, ``Content-Language``,
            ``Expires`` and ``x-amz-meta-…``, by name in any case.
    """

    storage_class: str | None = None
    sse: Encryption | None = None
    sse_kms_key_id: str | None = None
    sse_bucket_key: bool | None = None
    acl: CannedAcl | None = None
    tags: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Check combinations and headers; convert header names to lower case."""
        if self.sse_kms_key_id is not None and self.sse not in ("aws:kms", "aws:kms:dsse"):
            raise InvalidOption(
                f"sse_kms_key_id goes with sse='aws:kms' or 'aws:kms:dsse', not sse={self.sse!r}"
            )
        if self.sse_bucket_key is not None and self.sse != "aws:kms":
            raise InvalidOption(f"sse_bucket_key goes with sse='aws:kms', not sse={self.sse!r}")
        if bad := next((tag for tag in self.tags.items() if not "".join(tag).isprintable()), None):
            raise InvalidOption(
                f"tag {bad[0][:80]!r}: its name or value has characters that are not printable"
            )
        lowered = {name.strip().lower(): value for name, value in self.headers.items()}
        if len(lowered) < len(self.headers):
            raise InvalidOption("headers names one header twice; case makes no difference")
        for name in lowered:
            _check_header_name(name)
        # Copies, because the caller may change its own.
        msgspec.structs.force_setattr(self, "headers", lowered)
        msgspec.structs.force_setattr(self, "tags", dict(self.tags))
        for name, value in self.of_data.items():
            if not _HEADER_VALUE.fullmatch(value):
                raise InvalidOption(f"{name}={value[:80]!r} is empty, or not of printable ASCII characters")
        if "expires" in lowered:
            # A store accepts any text here, but boto3 could then not parse responses about the object.
            try:
                parsedate_to_datetime(lowered["expires"])
            except (ValueError, OverflowError):
                raise InvalidOption(
                    f"header 'expires': {lowered['expires'][:80]!r} is no HTTP date"
                ) from None

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> ObjectOptions:
        """Build options from plain values of an operator or a command line.

        Raises `InvalidOption` if an entry is unknown or invalid.
        """
        unknown = [name for name in mapping if name not in cls.__struct_fields__]
        if unknown:
            names = ", ".join(cls.__struct_fields__)
            raise InvalidOption(f"object_options has no entry {unknown[0]!r}; its entries are {names}")
        return cls(**mapping)

    @property
    def of_records(self) -> dict[str, str]:
        """The headers of everything that a job writes, its records too."""
        acl = self.acl if self.acl in _AMONG_OWNERS else None
        bucket_key = None if self.sse_bucket_key is None else str(self.sse_bucket_key).lower()
        return _given(
            {
                "x-amz-acl": acl,
                "x-amz-server-side-encryption": self.sse,
                "x-amz-server-side-encryption-aws-kms-key-id": self.sse_kms_key_id,
                "x-amz-server-side-encryption-bucket-key-enabled": bucket_key,
            }
        )

    @property
    def of_data(self) -> dict[str, str]:
        """The headers of a job's data."""
        more = {
            "x-amz-acl": self.acl,
            "x-amz-storage-class": self.storage_class,
            "x-amz-tagging": urlencode(self.tags, quote_via=quote) or None,
        }
        return {**self.of_records, **_given(more), **self.headers}

    def or_else(self, other: ObjectOptions) -> ObjectOptions:
        """Return these options, with defaults from ``other``; the encryption options are taken together."""
        encryption = self if self.sse is not None else other
        return ObjectOptions(
            storage_class=self.storage_class or other.storage_class,
            sse=encryption.sse,
            sse_kms_key_id=encryption.sse_kms_key_id,
            sse_bucket_key=encryption.sse_bucket_key,
            acl=self.acl or other.acl,
            tags=self.tags or other.tags,
            headers=self.headers or other.headers,
        )


def _given(headers: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if value is not None}


def _check_header_name(name: str) -> None:
    if not name.startswith(METADATA_PREFIX):
        if name not in _HEADERS:
            raise InvalidOption(
                f"header {name[:80]!r} is not one of {', '.join(_HEADERS)} or {METADATA_PREFIX}…; encryption,"
                " storage class, ACL and tags have options of their own, and content-type is the file's"
            )
    elif not _METADATA_NAME.fullmatch(name, len(METADATA_PREFIX)):
        raise InvalidOption(f"header {name[:80]!r}: its name is no HTTP token")
    elif name.startswith(METADATA_PREFIX + _RESERVED):
        raise InvalidOption(f"header {name[:80]!r}: names that begin with {_RESERVED} are ours")


Committer: TypeAlias = Literal["directory", "partitioned", "magic"]
ConflictMode: TypeAlias = Literal["fail", "append", "replace", "as-written"]
Removal: TypeAlias = Literal["nothing", "partitions", "everything"]
#: Hadoop releases that can load the ETags that we write: ``hadoop-3.4.2`` and later, or 3.3 to 3.4.1.
PendingsetFormat: TypeAlias = Literal["hadoop-3.4.2", "hadoop-3.3"]
State: TypeAlias = Literal["open", "sealed", "committed", "aborted"]

#: The longest retention, in seconds.
_RETAIN_SECONDS = 100 * 366 * 86_400


class JobOptions(Checked, frozen=True, kw_only=True):
    """How a job commits. Fixed for a job: another setup with its id must have the same options.

    Attributes:
        committer: ``directory`` (conflicts are judged over the whole destination) or ``partitioned``
            (over each partition that gets data), both staged on local disk; ``magic`` (streamed, conflicts
            as ``partitioned``).
        conflict_mode: Treatment of existing data: ``fail``, ``append`` or ``replace``; or ``as-written``:
            what the save modes of Spark's own writes mean (``writer="spark"``); for any other writer
            ``append``.
        track_pending: Where a task records its uploads before its pendingset is written: in the memory of the
            ``task`` or, file by file, on ``s3``.
        staging: URI of another prefix for the job's records; by default they are below the destination.
        pendingset_format: Hadoop releases that can read the job's pending uploads: ``hadoop-3.4.2`` or
            later, or ``hadoop-3.3`` to 3.4.1, whose ETags have no checksums. This package reads both.
        object_options: Storage class, encryption, ACL, tags and headers of the objects that the job writes.
        retain: How long the files that the commit replaces stay before a sweep may delete them: ``7d``,
            ``36h``; at once with ``0s``. For tables read by generation: listings show old and new files.
        partition_success: Write a ``_SUCCESS`` in each partition too, for readers that wait for one. From
            then on every commit to the destination does. Excludes ``retain``: such readers list.
        publish: ``delta`` makes each commit a version of a Delta table, which other engines read at the
            destination. From then on every commit to the destination does. For Parquet files that this
            package wrote; a ``retain`` longer than the longest query keeps the files that a query reads.

    Raises:
        InvalidOption: A field has a wrong type or value, or contradicts another.
    """

    committer: Committer = "partitioned"
    conflict_mode: ConflictMode = "fail"
    track_pending: Literal["task", "s3"] = "task"
    staging: Line | None = None
    pendingset_format: PendingsetFormat = "hadoop-3.4.2"
    object_options: ObjectOptions = field(default_factory=ObjectOptions)
    retain: Line = "0s"
    partition_success: bool = False
    publish: Literal["delta"] | None = None

    def check(self) -> None:
        """Check the URI of the staging, and the retention."""
        if self.staging is not None:
            try:
                Destination.parse(self.staging)
            except InvalidDestination as error:
                raise InvalidOption(f"staging: {error}") from error
        try:
            seconds = seconds_of(self.retain)
        except ValueError as error:
            raise InvalidOption(f"retain: {error}") from error
        if seconds > _RETAIN_SECONDS:
            raise InvalidOption(f"retain={self.retain!r} is more than a hundred years")
        if seconds and self.partition_success:
            raise InvalidOption(
                f"retain={self.retain!r} and partition_success=True exclude each other: a reader that waits"
                " for the marker of a partition lists it, and sees the retained files too"
            )

    @property
    def retain_seconds(self) -> int:
        """Seconds that replaced files stay in place."""
        return math.ceil(seconds_of(self.retain))

    @property
    def only_adds(self) -> bool:
        """Whether the commit can neither replace anything, nor be refused because of data."""
        return self.conflict_mode == "append"

    def as_sealed(self, removes: Removal) -> JobOptions:
        """Return the options of the commit: ``as-written`` becomes what the writers asked to remove."""
        if self.conflict_mode != "as-written":
            return self
        if removes == "nothing":
            return msgspec.structs.replace(self, conflict_mode="append")
        whole = removes == "everything"
        committer: Committer = "directory" if whole else "partitioned"
        return msgspec.structs.replace(self, conflict_mode="replace", committer=committer)

    @property
    def whole_destination(self) -> bool:
        """Whether conflicts are judged over the whole destination."""
        return self.committer == "directory"


class JobReference(Plain, Struct, frozen=True, kw_only=True):
    """Id and URIs that open a job in another process. Holds no credentials.

    Attributes:
        job_id: The job's id.
        destination: URI of its destination.
        staging: URI of the directory of its pendingsets.
        sha256: Hexadecimal SHA-256 of the job's record; any other is refused. Empty if a person names the id.
    """

    job_id: Text
    destination: Text
    staging: Text
    sha256: Line = ""

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> JobReference:
        """Read what `to_dict` returned; an entry that is missing or no string is an `InvalidRecord`."""
        return from_plain(cls, mapping, "a job reference")


class Position(Struct, frozen=True):
    """An entry of a log by its number and the SHA-256 of its bytes; number 0 before the first entry.

    A record with a position pins the log: an entry with that number and other bytes belongs to another log.
    """

    number: Generation = 0
    sha256: Line = ""


#: Name in a job's context of the generation that its output was made from.
MADE_FROM = "s3commit_made_from"


class JobRecord(JobOwned, frozen=True, kw_only=True):
    """``_s3commit/open/<job id>/job.json``: a job that was set up and whose clean-up is not finished.

    Attributes:
        staging: URI of the directory of its pendingsets.
        options: How it commits.
        context: Facts of the orchestrator: DAG, run, task, partition.
        adopted: Hadoop wrote and named its output: only the job's sealed uploads say which files are its own.
        publishes: The job, or one before it, publishes the table: its files must have columns that Delta has.
        base: The newest entry of the log at setup. The job's own entry comes later.
        created: Time of the setup, in milliseconds since the epoch by that machine's clock, for people.
        nonce: Unique to each write.
    """

    options: JobOptions
    context: dict[Line, Prose] = field(default_factory=dict)
    adopted: bool = False
    publishes: bool = False
    base: Position = Position()
    created: Milliseconds
    nonce: Text

    @property
    def made_from(self) -> int | None:
        """The generation that its output was made from; None if none was given, 0 if it is no number."""
        text = self.context.get(MADE_FROM)
        return None if text is None else int(text[:20]) if text.isdecimal() else 0


class JobState(Plain, Struct, frozen=True, kw_only=True):
    """How far a job has got, by its records and by the log.

    Attributes:
        state: ``open``, ``sealed``, ``committed`` or ``aborted``.
        generation: Number of its commit's entry in the log; None if it is not committed.
        since: When it was set up, sealed or ended, in milliseconds since the epoch by the clock of the
            machine that did it. For display only.
        reason: Why it was aborted; empty if no reason was given.
        finished: It has ended and has no record of its own left: nothing remains to be cleaned up.
    """

    state: State
    generation: Generation | None = None
    since: Milliseconds
    reason: Prose = ""
    finished: bool = False


class AbortReport(Plain, Struct, frozen=True, kw_only=True):
    """Result of an abort.

    Attributes:
        uploads: Number of pending uploads that were aborted.
        objects: Number of published objects that were deleted.
    """

    uploads: Count
    objects: Count
