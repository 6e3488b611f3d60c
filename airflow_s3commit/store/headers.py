"""Headers that describe an object: sent when it is written, and told again by a HEAD of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from airflow_s3commit.exceptions import StoreRejected

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_s3commit.store.base import ObjectStore

__all__ = ["METADATA_PREFIX", "TAG_COUNT", "parameters_of", "store_without_headers", "told", "with_headers"]

#: Begins the header of an entry of user metadata.
METADATA_PREFIX = "x-amz-meta-"

#: The header in which a store says how many tags an object has.
TAG_COUNT = "x-amz-tagging-count"

#: What S3 takes when an object is written, and how boto3 calls it.
_PARAMETERS = {
    "cache-control": "CacheControl",
    "content-disposition": "ContentDisposition",
    "content-encoding": "ContentEncoding",
    "content-language": "ContentLanguage",
    "expires": "Expires",
    "x-amz-acl": "ACL",
    "x-amz-server-side-encryption": "ServerSideEncryption",
    "x-amz-server-side-encryption-aws-kms-key-id": "SSEKMSKeyId",
    "x-amz-server-side-encryption-bucket-key-enabled": "BucketKeyEnabled",
    "x-amz-storage-class": "StorageClass",
    "x-amz-tagging": "Tagging",
}

#: Headers whose value is true or false.
_FLAGS = frozenset({"x-amz-server-side-encryption-bucket-key-enabled"})

#: Sent, but never told again.
_UNTOLD = frozenset({"x-amz-acl", "x-amz-tagging"})

_TOLD = (_PARAMETERS.keys() - _UNTOLD) | {TAG_COUNT}


def parameters_of(
    headers: Mapping[str, str] | None, metadata: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return headers as the parameters of a boto3 call that writes an object.

    Args:
        headers: By name, in lower case.
        metadata: The object's user metadata, besides what the headers have of it.

    Raises:
        StoreRejected: A header is none of those that describe an object.

    """
    parameters: dict[str, Any] = {}
    entries = dict(metadata or {})
    for name, value in (headers or {}).items():
        if name.startswith(METADATA_PREFIX):
            entries[name.removeprefix(METADATA_PREFIX)] = value
        elif name not in _PARAMETERS:
            raise StoreRejected(f"header {name} is none that describes an object", code="InvalidArgument")
        else:
            parameters[_PARAMETERS[name]] = value == "true" if name in _FLAGS else value
    if entries:
        parameters["Metadata"] = entries
    return parameters


def told(headers: Mapping[str, str]) -> dict[str, str]:
    """Return those headers of an answer that describe the object, but for its user metadata."""
    return {name: value for name, value in headers.items() if name in _TOLD}


class _HeaderStore:
    """An `ObjectStore` that passes every call on, and sends headers with each write that names none."""

    def __init__(self, inner: ObjectStore, headers: Mapping[str, str]) -> None:
        self.inner = inner
        self._headers = dict(headers)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.inner, verb)

    def put(self, *args: Any, headers: Mapping[str, str] | None = None, **kwargs: Any) -> Any:
        return self.inner.put(*args, headers=self._headers if headers is None else headers, **kwargs)

    def create_upload(self, *args: Any, headers: Mapping[str, str] | None = None, **kwargs: Any) -> Any:
        return self.inner.create_upload(
            *args, headers=self._headers if headers is None else headers, **kwargs
        )


def with_headers(store: ObjectStore, headers: Mapping[str, str]) -> ObjectStore:
    """Return a store that sends these headers with each write whose caller names none.

    A store that does so already sends these instead; without any headers it is left as it is.
    """
    if not headers:
        return store
    wrapped: Any = _HeaderStore(store_without_headers(store), headers)
    return cast("ObjectStore", wrapped)


def store_without_headers(store: ObjectStore) -> ObjectStore:
    """Return the store below one that `with_headers` made; any other is returned as it is."""
    return store.inner if isinstance(store, _HeaderStore) else store
