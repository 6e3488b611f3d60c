"""The destination of a job, its record in a registry, and the names of its partitions.

A destination is a dataset's directory. Its trailing slash keeps ``out/data1`` from matching ``out/data10``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any, TypeVar
from urllib.parse import quote

from airflow_s3commit.exceptions import InvalidDestination, InvalidPath, InvalidRecord
from airflow_s3commit.protocol.model.codec import Line, Text, Versioned, text_digest
from airflow_s3commit.store.credentials import without_userinfo

Given = TypeVar("Given")

#: S3's limit on a key, in bytes of UTF-8.
MAX_KEY_BYTES = 1024

_URI = re.compile(r"(?:s3|s3a|s3n)://([^/]+)(?:/(.*))?", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
#: Characters that ``java.net.URI`` allows in a path beside letters, digits and ``-._~``.
_URI_PATH = "/!$&'()*+,;=:@"
#: Endings of the keys of empty objects that stand for directories.
_MARKERS = ("/", "_$folder$")
# S3 keeps nearly any text. Not these: XML 1.0 cannot represent all of them, so no listing would name the key
# as it is, and lone surrogates cannot be encoded. Spark escapes those that partition values may have.
_NOT_IN_KEYS = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def split_uri(uri: str) -> tuple[str, str]:
    """Split ``s3://bucket/key`` (or ``s3a://``, ``s3n://``) into bucket and key; the key may be empty.

    Raises `InvalidDestination` if it is not such a URI.
    """
    matched = _URI.fullmatch(uri)
    if matched is None:
        shown = without_userinfo(uri)
        raise InvalidDestination(f"{shown!r} is not an S3 URI; write it as s3://bucket/prefix/")
    bucket, key = matched[1], matched[2] or ""
    if not _BUCKET.fullmatch(bucket):
        # Older Hadoop releases took credentials here, as in s3a://KEY:SECRET@bucket/: never show them.
        raise InvalidDestination(f"{without_userinfo(uri)!r} names no valid bucket before the first slash")
    return bucket, key


def join_uri(bucket: str, key: str) -> str:
    """Return the ``s3://`` URI of a key, for people and for `split_uri`: the key in it is not encoded."""
    return f"s3://{bucket}/{key}"


def hadoop_uri(bucket: str, key: str) -> str:
    """Return the ``s3a://`` URI of a key as ``java.net.URI`` parses it: percent-encoded UTF-8."""
    return f"s3a://{bucket}/{quote(key, safe=_URI_PATH)}"


def is_hidden(relative_path: str) -> bool:
    """Return whether readers of datasets skip this path: an element begins with ``.`` or ``_``.

    ``_column=value`` is a partition directory, not a hidden one, and a name that ends with ``._COPYING_`` is
    a file that ``hadoop fs -put`` is writing: as in Spark's ``HadoopFSUtils.shouldFilterOutPathName``.
    """
    return any(
        element.startswith(".")
        or (element.startswith("_") and "=" not in element)
        or element.endswith("._COPYING_")
        for element in relative_path.split("/")
    )


def is_data(relative_path: str) -> bool:
    """Return whether an object at this path below a destination is data, which readers do not skip.

    Not data are hidden objects, such as ``_SUCCESS`` and all records; directory markers, whose names end with
    a slash; and those of EMRFS and older Hadoop releases, whose names end with ``_$folder$``.
    """
    return bool(relative_path) and not relative_path.endswith(_MARKERS) and not is_hidden(relative_path)


def check_relative_path(path: str) -> None:
    """Raise `InvalidPath` if no data file may have this path below a destination.

    It could leave the destination, is ambiguous, is hidden from readers, or cannot be named by a listing.
    """
    elements = path.split("/")
    if not path or "" in elements:
        raise InvalidPath(f"path {path!r} has an empty element; leave it out")
    if "." in elements or ".." in elements:
        raise InvalidPath(f"path {path!r} has an element '.' or '..'; leave it out")
    found = _NOT_IN_KEYS.search(path)
    if found is not None or "\\" in path:
        sign = "a backslash" if found is None else f"the control character U+{ord(found[0]):04X}"
        raise InvalidPath(
            f"path {path!r} has {sign}, which stores or their listings cannot name; replace it, or escape it"
            f" as Spark does: %{ord(found[0] if found else chr(92)):02X}"
        )
    if not is_data(path):
        raise InvalidPath(
            f"path {path!r} is hidden from readers: an element begins with '_' or '.', or the name ends as a"
            " directory marker's or an unfinished copy's; rename it"
        )


@dataclass(frozen=True, slots=True)
class Destination:
    """The directory of a dataset on S3.

    Attributes:
        bucket: The bucket.
        prefix: Empty for the bucket's root; otherwise it ends with ``/``.
        uri: The directory as ``s3://bucket/prefix/``.
    """

    bucket: str
    prefix: str
    uri: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Make the URI once."""
        object.__setattr__(self, "uri", join_uri(self.bucket, self.prefix))

    @classmethod
    def parse(cls, uri: str) -> Destination:
        """Parse ``s3://bucket/prefix/``; ``s3a://`` and ``s3n://`` too. A missing trailing slash is added.

        Raises:
            InvalidDestination: It is no S3 URI; or its path is too long, or has a backslash, a control
                character, or an element that is empty, ``.`` or ``..``.
        """
        bucket, key = split_uri(uri)
        prefix = key.rstrip("/")
        if prefix:
            elements = prefix.split("/")
            if "" in elements or "." in elements or ".." in elements:
                meant = "/".join(element for element in elements if element not in ("", ".", ".."))
                raise InvalidDestination(
                    f"{uri!r} has an empty element, '.' or '..' in its path; is s3://{bucket}/{meant}/ meant?"
                )
            if _NOT_IN_KEYS.search(prefix) or "\\" in prefix:
                raise InvalidDestination(f"{uri!r} has a control character or a backslash in its path")
            if len(prefix.encode()) > MAX_KEY_BYTES - 256:
                raise InvalidDestination(
                    f"{uri!r} leaves no room for file names: keys end at {MAX_KEY_BYTES}"
                )
            prefix += "/"
        return cls(bucket, prefix)

    @classmethod
    def of(cls, destination: str | Destination) -> Destination:
        """Return a `Destination`; a URI is parsed, and fails as in `parse`."""
        return destination if isinstance(destination, Destination) else cls.parse(destination)

    def key(self, relative_path: str) -> str:
        """Return the key of ``relative_path``, a path below this destination."""
        return self.prefix + relative_path

    def relative(self, key: str) -> str | None:
        """Return the path of ``key`` below this destination; None outside of it, and for its root."""
        if len(key) > len(self.prefix) and key.startswith(self.prefix):
            return key[len(self.prefix) :]
        return None

    def below(self, name: str) -> Destination:
        """Return the directory ``name`` of this destination."""
        return Destination(self.bucket, f"{self.prefix}{name.strip('/')}/")

    def check_data_key(self, bucket: str, key: str) -> str:
        """Return the relative path of a data file that a record names.

        Raises:
            InvalidRecord: The key is in another bucket, or outside the destination.
            InvalidPath: No data file can have the key, as for `check_relative_path`, or it is too long.
        """
        relative = self.relative(key)
        if bucket != self.bucket or relative is None:
            raise InvalidRecord(f"{join_uri(bucket, key)!r} lies outside the destination {self.uri}")
        check_relative_path(relative)
        if (size := len(key.encode())) > MAX_KEY_BYTES:
            raise InvalidPath(
                f"the key {key[:80]!r}… has {size} bytes, and S3's keys end at {MAX_KEY_BYTES}: shorten the"
                " partition values or the file's name, or use a destination with a shorter path"
            )
        return relative


def directories_above(bucket: str, keys: Collection[str]) -> list[Destination]:
    """Return every directory above some keys; none without keys."""
    above = {
        prefix for key in keys for prefix in accumulate(["", *(f"{one}/" for one in key.split("/")[:-1])])
    }
    return [Destination(bucket, prefix) for prefix in sorted(above)]


def is_pattern(uri: str) -> bool:
    """Return whether a URI is a pattern for destinations: it has ``*``, ``?`` or ``[``."""
    return any(sign in uri for sign in "*?[")


def as_uri(destination: Given | Destination) -> Given | str:
    """Return the URI of a `Destination`; anything else, such as a URI that is still a template, as it is."""
    return destination.uri if isinstance(destination, Destination) else destination


class RegisteredDestination(Versioned, frozen=True, kw_only=True):
    """``<registry><digest>.json``: a destination, and how its jobs reach it.

    Every writer writes the same bytes. It says where to look, not what is there, so it destroys nothing.

    Attributes:
        aws_conn_id: The store's Airflow connection; None outside Airflow, or for boto3's default credentials.
        staging: URI of the root of the jobs' staging; None if it is the destination.
    """

    destination: Text
    aws_conn_id: Line | None = None
    staging: Line | None = None

    @property
    def name(self) -> str:
        """The file name: a digest of the fields, so that a changed or copied record shows."""
        fields = (self.destination, self.aws_conn_id or "", self.staging or "")
        return text_digest("\0".join(fields)).hex() + ".json"

    @property
    def place(self) -> Destination:
        """The destination."""
        return Destination.parse(self.destination)

    @property
    def staging_root(self) -> Destination | None:
        """The root of the jobs' staging; None if it is the destination."""
        return Destination.parse(self.staging) if self.staging is not None else None


def matches(uri: str, pattern: str) -> bool:
    """Return whether the URI of a destination matches a pattern, in which ``*`` matches slashes too."""
    return fnmatchcase(uri, pattern) or fnmatchcase(uri.rstrip("/"), pattern)


#: The directory of Hive and Spark for a null, and for an empty string.
NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"

# Control characters, and characters with a meaning in some file system or in Hive's syntax.
_SPECIAL = re.compile("[\x01-\x1f\"#%'*/:=?\\\\\x7f{\\[\\]^]")
_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")


def escape(text: str) -> str:
    """Escape a column name or value for a path, as Spark's ``escapePathName``: ``:`` becomes ``%3A``."""
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text)


def unescape(text: str) -> str:
    """Undo Spark's escaping of a column name or value in a path: ``%3A`` becomes ``:``."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def partition_form(name: str) -> str:
    """Return the form in which names of partitions are compared, whether a name is escaped or not.

    ``dt=2013-01-01T03:00:00`` and ``dt=2013-01-01T03%3A00%3A00/`` have the same form. A ``%`` with two
    hexadecimal digits in a name is always an escape.
    """
    parts = (unescape(part) for part in name.strip("/").split("/"))
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)


def check_partition_names(names: Iterable[Any], what: str) -> list[str]:
    """Return names of partitions, such as ``dt=2013-01-01``, without slashes around them.

    Raises `ValueError`, which says ``what`` has them, if a name is not text, or if a name or a column's value
    is empty or ``None``, as templates and shell variables without a value render.
    """
    checked = []
    for name in names:
        if not isinstance(name, str):
            raise ValueError(  # noqa: TRY004 - as any other name that cannot be used
                f"{what} has {name!r}, which is not text: write names such as dt=2013-01-01; native rendering"
                " turns text such as 20130101 into a number"
            )
        values = [part.rpartition("=")[2].strip() for part in name.strip("/").split("/")]
        if not all(value and value != "None" for value in values):
            raise ValueError(
                f"{what} has {name!r}, which names no partition: a template or variable in it has no value"
            )
        checked.append(name.strip("/"))
    return checked


def check_directories(path: str, what: str) -> None:
    """Raise `ValueError` for a file's path with a directory such as ``dt=None``, whose value got lost."""
    check_partition_names([part for part in path.split("/")[:-1] if "=" in part], what)


def hive_values(path: str) -> dict[str, str]:
    """Return the columns and unescaped values of a Hive path such as ``dt=2013-01-01/region=eu``.

    Raises `ValueError` if a part of the path is not ``column=value``.
    """
    values: dict[str, str] = {}
    for part in path.strip("/").split("/"):
        column, equals, value = part.partition("=")
        if not equals or not column:
            raise ValueError(f"{path!r} is not a Hive path: {part!r} is not column=value")
        values[unescape(column)] = unescape(value)
    return values
