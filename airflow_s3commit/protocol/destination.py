"""Where a job's data goes: a directory of a dataset, kept with its trailing slash.

The trailing slash is what keeps ``out/dataset1`` from ever reaching ``out/dataset10``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from airflow_s3commit.exceptions import InvalidDestination, InvalidRecord
from airflow_s3commit.store.credentials import without_userinfo

__all__ = [
    "MAX_KEY_BYTES",
    "Destination",
    "check_relative_path",
    "hadoop_uri",
    "is_hidden",
    "join_uri",
    "split_uri",
]

#: S3's limit on a key, in bytes of UTF-8.
MAX_KEY_BYTES = 1024

_URI = re.compile(r"(?:s3|s3a|s3n)://([^/]+)(?:/(.*))?", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
#: What ``java.net.URI`` lets stand in a path beside letters, digits and ``-._~``.
_URI_PATH = "/!$&'()*+,;=:@"
# Lone surrogates cannot be encoded, so no store can be asked for them.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def split_uri(uri: str) -> tuple[str, str]:
    """Split ``s3://bucket/key`` (or ``s3a://``, ``s3n://``) into bucket and key; the key may be empty.

    Raises:
        InvalidDestination: It is not such a URI.

    """
    matched = _URI.fullmatch(uri)
    if matched is None:
        shown = without_userinfo(uri)
        raise InvalidDestination(f"{shown!r} is not an S3 URI; write it as s3://bucket/prefix/")
    bucket, key = matched[1], matched[2] or ""
    if not _BUCKET.fullmatch(bucket):
        # Older Hadoops took keys there, as in s3a://KEY:SECRET@bucket/: they are shown to nobody.
        raise InvalidDestination(f"{without_userinfo(uri)!r} names no valid bucket before the first slash")
    return bucket, key


def join_uri(bucket: str, key: str) -> str:
    """Return the ``s3://`` URI of a key, for people and for `split_uri`: the key in it is not encoded."""
    return f"s3://{bucket}/{key}"


def hadoop_uri(bucket: str, key: str) -> str:
    """Return the ``s3a://`` URI of a key as ``java.net.URI`` parses it: percent-encoded UTF-8."""
    return f"s3a://{bucket}/{quote(key, safe=_URI_PATH)}"


def is_hidden(relative_path: str) -> bool:
    """Tell whether readers of datasets skip this path: an element begins with ``.`` or ``_``.

    ``_column=value`` is a partition directory, not a hidden one, as in Spark's
    ``HadoopFSUtils.shouldFilterOutPathName``.
    """
    return any(
        element.startswith(".") or (element.startswith("_") and "=" not in element)
        for element in relative_path.split("/")
    )


def check_relative_path(path: str) -> None:
    """Accept a path of a data file below a destination, or say what is wrong with it.

    Raises:
        InvalidRecord: It could leave the destination, be misread by a store, or be hidden from readers.

    """
    elements = path.split("/")
    if not path or "" in elements:
        raise InvalidRecord(f"path {path!r} has an empty element")
    if "." in elements or ".." in elements:
        raise InvalidRecord(f"path {path!r} has an element '.' or '..'")
    if _CONTROL.search(path) or "\\" in path:
        raise InvalidRecord(f"path {path!r} has a control character or a backslash")
    if is_hidden(path):
        raise InvalidRecord(f"path {path!r} is hidden from readers: an element begins with '_' or '.'")


@dataclass(frozen=True, slots=True)
class Destination:
    """A bucket and a prefix that is empty (the bucket's root) or ends with ``/``."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, uri: str) -> Destination:
        """Read a destination from its URI; a missing trailing slash is added.

        Raises:
            InvalidDestination: It is no S3 URI, or has elements that no dataset path may have.

        """
        bucket, key = split_uri(uri)
        prefix = key.rstrip("/")
        if prefix:
            elements = prefix.split("/")
            if "" in elements or "." in elements or ".." in elements:
                raise InvalidDestination(f"{uri!r} has an empty element, '.' or '..' in its path")
            if _CONTROL.search(prefix) or "\\" in prefix:
                raise InvalidDestination(f"{uri!r} has a control character or a backslash in its path")
            if len(prefix.encode()) > MAX_KEY_BYTES - 256:
                raise InvalidDestination(
                    f"{uri!r} leaves no room for file names: keys end at {MAX_KEY_BYTES}"
                )
            prefix += "/"
        return cls(bucket, prefix)

    @property
    def uri(self) -> str:
        """The destination as ``s3://bucket/prefix/``."""
        return join_uri(self.bucket, self.prefix)

    @property
    def console_path(self) -> str:
        """The bucket and prefix, escaped for use in a URL path."""
        return quote(f"{self.bucket}/{self.prefix}")

    def key(self, relative_path: str) -> str:
        """Return the key of a path below this destination."""
        return self.prefix + relative_path

    def relative(self, key: str) -> str | None:
        """Return a key's path below this destination, or None where it lies outside or is the root itself."""
        if len(key) > len(self.prefix) and key.startswith(self.prefix):
            return key[len(self.prefix) :]
        return None

    def below(self, name: str) -> Destination:
        """Return the directory ``name`` of this destination."""
        return Destination(self.bucket, f"{self.prefix}{name.strip('/')}/")

    def check_data_key(self, bucket: str, key: str) -> str:
        """Return the relative path of a data file that a record names, or refuse the record.

        Raises:
            InvalidRecord: The key is in another bucket or outside the destination, is hidden from readers,
                or has elements that could be read as another path.

        """
        relative = self.relative(key)
        if bucket != self.bucket or relative is None:
            raise InvalidRecord(f"{join_uri(bucket, key)!r} lies outside the destination {self.uri}")
        check_relative_path(relative)
        if len(key.encode()) > MAX_KEY_BYTES:
            raise InvalidRecord(f"the key {key[:80]!r}… is longer than {MAX_KEY_BYTES} bytes")
        return relative
