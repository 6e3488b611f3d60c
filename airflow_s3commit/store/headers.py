"""Headers that describe an object: sent when it is written, and returned by a HEAD."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_s3commit.exceptions import StoreRejected
from airflow_s3commit.store.forwarding import ForwardingStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_s3commit.store.base import ObjectStore

#: Prefix of user metadata headers.
METADATA_PREFIX = "x-amz-meta-"

#: The response header with the number of an object's tags.
TAG_COUNT = "x-amz-tagging-count"

#: Headers of a write, and boto3's names of them.
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

#: Boolean headers.
_FLAGS = frozenset({"x-amz-server-side-encryption-bucket-key-enabled"})

#: Sent, but not returned.
_NOT_RETURNED = frozenset({"x-amz-acl", "x-amz-tagging"})

_RETURNED = (_PARAMETERS.keys() - _NOT_RETURNED) | {TAG_COUNT}


def boto3_parameters(
    headers: Mapping[str, str] | None, metadata: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return headers, names in lower case, and metadata as parameters of a boto3 call that writes an object.

    Raises:
        StoreRejected: A header does not describe an object.
    """
    parameters: dict[str, Any] = {}
    entries = dict(metadata or {})
    for name, value in (headers or {}).items():
        if name.startswith(METADATA_PREFIX):
            entries[name.removeprefix(METADATA_PREFIX)] = value
        elif name not in _PARAMETERS:
            raise StoreRejected(f"header {name} does not describe an object", code="InvalidArgument")
        else:
            parameters[_PARAMETERS[name]] = value == "true" if name in _FLAGS else value
    if entries:
        parameters["Metadata"] = entries
    return parameters


def object_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a response that describe the object, without user metadata."""
    return {name: value for name, value in headers.items() if name in _RETURNED}


def with_headers(store: ObjectStore, headers: Mapping[str, str]) -> ObjectStore:
    """Return a store that sends these headers with each write that has none of its own.

    They replace default headers set before; an empty mapping returns the store unchanged.
    """
    if not headers:
        return store
    return ForwardingStore(store_without_headers(store), dict(headers))


def store_without_headers(store: ObjectStore) -> ObjectStore:
    """Undo `with_headers`; any other store is returned unchanged."""
    return store.inner if isinstance(store, ForwardingStore) and store.headers is not None else store
