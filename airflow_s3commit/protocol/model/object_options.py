"""Storage class, encryption, ACL, tags and headers of the objects that a job writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct, field

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.store.headers import METADATA_PREFIX

#: Characters of a wrong value that an error repeats.
_LONGEST_VALUE = 80

_NAMES = {str: "text", bool: "True or False", type(None): "None"}


class Checked(Struct, frozen=True, kw_only=True):
    """A struct that checks the types of its fields whenever it is created.

    Raises:
        InvalidOption: A field has another type, or `check` refuses it.
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

        Raises:
            InvalidOption: A value is invalid.
        """


def _is_of(value: object, kind: Any) -> bool:
    try:
        # Of a dict it would make a struct.
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

#: S3's limit on user metadata, names and values together, and how much of it our own needs.
_METADATA_BYTES = 2048

_OWN_METADATA_BYTES = 256

#: All of a user's headers: S3 takes 8 KiB of a request, with its signature, token and our own.
_HEADERS_BYTES = 4096

#: S3's limits on tags.
_MAX_TAGS = 10

_TAG_KEY_LENGTH = 128

_TAG_VALUE_LENGTH = 256

_STORAGE_CLASS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)

_KMS_KEY = re.compile(r"[!-~]{1,2048}")

_TAG = re.compile(r"[\w +\-=.:/@]*")

_METADATA_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")

# Nothing that could end a header and begin another.
_HEADER_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")


class ObjectOptions(Checked, frozen=True, kw_only=True, omit_defaults=True):
    """Options of the objects that a job writes. Omitted options take the bucket's default.

    Encryption, and an ACL that is limited to the owners, apply to data and records, because a bucket policy
    may require them. The other options apply to data only. Customer-provided keys (SSE-C) are not supported:
    every read of an object would need them.

    Attributes:
        storage_class: ``STANDARD_IA``, ``INTELLIGENT_TIERING`` … as the store calls it; not checked here.
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
        """Check values and combinations; convert header names to lower case."""
        if self.storage_class is not None and not _STORAGE_CLASS.fullmatch(self.storage_class):
            raise InvalidOption(
                f"storage_class={self.storage_class[:80]!r} is no storage class; write it as STANDARD_IA"
            )
        self._check_encryption()
        _check_tags(self.tags)
        lowered = {name.strip().lower(): value for name, value in self.headers.items()}
        if len(lowered) < len(self.headers):
            raise InvalidOption("headers names one header twice; case makes no difference")
        _check_headers(lowered)
        # Copies, which nobody else changes.
        msgspec.structs.force_setattr(self, "headers", lowered)
        msgspec.structs.force_setattr(self, "tags", dict(self.tags))

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> ObjectOptions:
        """Build options from plain values of an operator or a command line.

        Args:
            mapping: Values by field.

        Raises:
            InvalidOption: An entry is unknown or invalid.
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
        """Return these options, with defaults from ``other``; the options of encryption go together."""
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

    def _check_encryption(self) -> None:
        key = self.sse_kms_key_id
        if key is not None and self.sse not in ("aws:kms", "aws:kms:dsse"):
            raise InvalidOption(
                f"sse_kms_key_id goes with sse='aws:kms' or 'aws:kms:dsse', not sse={self.sse!r}"
            )
        if key is not None and not _KMS_KEY.fullmatch(key):
            raise InvalidOption(
                "sse_kms_key_id is no ARN, id or alias of a key: it is empty or has white space"
            )
        if self.sse_bucket_key is not None and self.sse != "aws:kms":
            raise InvalidOption(f"sse_bucket_key goes with sse='aws:kms', not sse={self.sse!r}")


def _given(headers: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if value is not None}


def _check_tags(tags: Mapping[str, str]) -> None:
    if len(tags) > _MAX_TAGS:
        raise InvalidOption(f"tags has {len(tags)} entries; an object has {_MAX_TAGS} tags at most")
    for name, value in tags.items():
        if not 1 <= len(name) <= _TAG_KEY_LENGTH or len(value) > _TAG_VALUE_LENGTH:
            raise InvalidOption(
                f"tag {name[:80]!r}: a tag's name has 1 to {_TAG_KEY_LENGTH} characters, its value"
                f" {_TAG_VALUE_LENGTH} at most"
            )
        if not _TAG.fullmatch(name) or not _TAG.fullmatch(value) or name.lower().startswith("aws:"):
            raise InvalidOption(
                f"tag {name[:80]!r}: tags are of letters, digits, spaces and + - = . _ : / @, and their names"
                " do not begin with aws:"
            )


def _check_headers(headers: Mapping[str, str]) -> None:
    size = 0
    for name, value in headers.items():
        if not _HEADER_VALUE.fullmatch(value):
            raise InvalidOption(f"header {name[:80]!r}: its value is not of printable ASCII characters")
        if name.startswith(METADATA_PREFIX):
            _check_metadata_name(name.removeprefix(METADATA_PREFIX))
            size += len(name) - len(METADATA_PREFIX) + len(value)
        elif name not in _HEADERS:
            raise InvalidOption(
                f"header {name[:80]!r} is not one of {', '.join(_HEADERS)} or {METADATA_PREFIX}…; encryption,"
                " storage class, ACL and tags have options of their own, and content-type is the file's"
            )
    if size > _METADATA_BYTES - _OWN_METADATA_BYTES:
        raise InvalidOption(
            f"{METADATA_PREFIX}… headers have {size} bytes; S3 keeps {_METADATA_BYTES} of an object, of which"
            f" {_OWN_METADATA_BYTES} are for what this package writes there"
        )
    if sum(len(name) + len(value) for name, value in headers.items()) > _HEADERS_BYTES:
        raise InvalidOption(f"headers are longer than {_HEADERS_BYTES} bytes; S3 takes 8,192 with all others")
    if "expires" in headers:
        _check_date(headers["expires"])


def _check_metadata_name(name: str) -> None:
    if not _METADATA_NAME.fullmatch(name):
        raise InvalidOption(f"header {METADATA_PREFIX}{name[:80]}: the name is no HTTP token")
    if name.startswith(_RESERVED):
        raise InvalidOption(
            f"header {METADATA_PREFIX}{name[:80]}: names that begin with {_RESERVED} are ours"
        )


def _check_date(text: str) -> None:
    try:
        parsedate_to_datetime(text)
    except ValueError:
        raise InvalidOption(
            f"header 'expires': {text[:80]!r} is no HTTP date, such as Thu, 01 Dec 2033 16:00:00 GMT"
        ) from None
