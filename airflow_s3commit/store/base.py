"""The interface between the commit protocol and an object store.

`ObjectStore` has the operations that the protocol needs and no others. They are S3's: multipart uploads,
ETags, conditional writes. A method returns only when the store has confirmed the effect. Otherwise it raises
one of `airflow_s3commit.exceptions`, whose type says whether the effect may have happened. Implementations
retry by themselves; a caller sees only the final outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from airflow_s3commit.exceptions import S3CommitError, StoreRejected

#: A multipart upload has at most this many parts, numbered from 1 (S3's limit).
MAX_PARTS = 10_000

#: Every part but the last has at least this many bytes (S3's limit).
MIN_PART_BYTES = 5 * 1024 * 1024

#: Prefix of user metadata headers.
METADATA_PREFIX = "x-amz-meta-"

#: The response header with the number of an object's tags.
TAG_COUNT = "x-amz-tagging-count"


class ObjectInfo(Struct, frozen=True):
    """Description of one object.

    Attributes:
        size: Its length in bytes.
        etag: Its ETag without the quotes.
        modified: When it was written, in seconds since the epoch by the store's clock.
        metadata: User metadata, with names in lower case. Empty in listings.
        headers: Other headers that describe it, names in lower case, such as the storage class, as far as the
            store returns them. Empty in listings.
    """

    key: str
    size: int
    etag: str
    modified: float
    metadata: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}


class Fetched(Struct, frozen=True):
    """An object's content, and the time of the response by the store's clock, in seconds since the epoch."""

    info: ObjectInfo
    body: bytes
    date: float


class Written(Struct, frozen=True):
    """Result of a write: the ETag, and the response's time by the store's clock (seconds since the epoch)."""

    etag: str
    date: float


class Upload(Struct, frozen=True):
    """A multipart upload that is neither completed nor aborted; ``initiated`` in seconds since the epoch."""

    key: str
    upload_id: str
    initiated: float


class Part(Struct, frozen=True):
    """One uploaded part of a pending upload; ``size`` in bytes."""

    number: int
    etag: str
    size: int


class DeleteFailure(Struct, frozen=True):
    """An object that a bulk delete did not delete, with the store's error."""

    key: str
    code: str
    message: str


#: Outcome of a call: the value that its method returns, or the error that it raises.
Outcome: TypeAlias = str | ObjectInfo | Fetched | list[DeleteFailure] | S3CommitError | None

T = TypeVar("T")


class StoreProfile(Struct, frozen=True, kw_only=True):
    """How a bucket answers the requests that suitable stores treat differently.

    Each store object learns this from responses and keeps its own copy. Nothing depends on a vendor's name.

    Attributes:
        bare_etags: The store compares ``If-Match`` with the ETag without quotes, so it refuses the quoted
            form; None until a write with ``If-Match`` has succeeded.
        conditional_delete: The store refuses a delete with ``If-Match`` if the object has another ETag; None
            if that is not known: the ETag is then also compared right before the delete.
        bulk_etags: A bulk delete leaves objects whose ETag differs from the given one.
    """

    bare_etags: bool | None = None
    conditional_delete: bool | None = None
    bulk_etags: bool = True


class Load(Struct, frozen=True):
    """The load that a client puts on its store.

    Attributes:
        concurrency: Calls of `ObjectStore.perform` that may be in flight at present.
        retries: Retried requests since the client was created.
    """

    concurrency: int
    retries: int


class ObjectStore(Protocol):
    """An S3-like object store.

    Buckets, keys and prefixes are plain text, neither quoted nor with a leading ``/``; an upload has the key
    of its object. Every method may raise `Unavailable` (it did not happen), `AccessDenied`, `NoSuchBucket`
    and `StoreRejected` (refused). Methods that change something may also raise `OutcomeUnknown` (it may have
    happened). Each documents its further errors, and whether repeating it after an unknown outcome is safe.
    """

    @property
    def load(self) -> Load:
        """Current concurrency and the retries so far; sends no request."""

    @property
    def endpoint(self) -> str:
        """The store's address; sends no request."""

    @property
    def profiles(self) -> MutableMapping[str, StoreProfile]:
        """How each bucket behaves, learned from responses or set by the caller; it shapes the requests."""

    def check_bucket(self, bucket: str) -> None:
        """Check that a bucket exists and that these credentials may use it.

        Raises:
            NoSuchBucket: The bucket does not exist.
        """

    def stale_upload_days(self, bucket: str, prefix: str) -> int | None:
        """Return the smallest number of days after which a lifecycle rule aborts uploads below a prefix.

        None if no rule does, or the store refuses to show its rules.
        """

    def head(self, bucket: str, key: str) -> ObjectInfo:
        """Return an object's size, ETag, time, metadata and headers.

        Raises:
            NoSuchKey: The object does not exist.
        """

    def get(self, bucket: str, key: str, limit: int | None = None) -> Fetched:
        """Read a whole object, of at most ``limit`` bytes, into memory: records and pendingsets, never data.

        Raises:
            NoSuchKey: The object does not exist.
            TooLarge: The object is longer than ``limit``.
        """

    def get_range(self, bucket: str, key: str, first: int, size: int, *, etag: str) -> bytes:
        """Read ``size`` bytes of an object from offset ``first``; fewer at its end.

        Raises:
            NoSuchKey: The object does not exist.
            PreconditionFailed: The object has another ETag than ``etag``.
        """

    def put(
        self,
        bucket: str,
        key: str,
        body: bytes,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Written:
        """Write a small object in one request; repeatable without a condition.

        Args:
            if_none_match: Write only if the object does not exist.
            if_match: Write only if the object has this ETag.
            headers: Further headers that describe the object, as for `create_upload`.

        Raises:
            PreconditionFailed: The condition was false. If an earlier attempt's response was lost, the object
                may be the caller's own write: read it back and compare.
        """

    def delete(self, bucket: str, key: str, *, if_match: str | None = None) -> None:
        """Delete an object; repeatable, since a missing object counts as deleted.

        Raises:
            PreconditionFailed: The object has another ETag than ``if_match``. If the store cannot compare
                ETags, they were compared right before the delete.
        """

    def delete_many(self, bucket: str, objects: Sequence[ObjectToDelete]) -> list[DeleteFailure]:
        """Delete up to 1,000 objects in one request, and return those that were not deleted; repeatable.

        A missing object counts as deleted. On stores that compare ETags, an object with another ETag is
        returned with the code ``PreconditionFailed``.
        """

    def list_objects(
        self,
        bucket: str,
        prefix: str,
        *,
        recursive: bool = True,
        start_after: str | None = None,
        page: int | None = None,
    ) -> Iterator[ObjectInfo]:
        """Yield the objects whose key begins with ``prefix``, in the store's order, fetched on demand.

        Args:
            recursive: False yields only keys without another ``/`` after the prefix.
            start_after: Yield only keys after this one.
            page: Maximum objects to fetch with one request; None for the store's own limit.
        """

    def create_upload(
        self,
        bucket: str,
        key: str,
        *,
        metadata: Mapping[str, str],
        content_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Start a multipart upload and return its id. Each call starts a new upload.

        Args:
            headers: Further S3 headers of the object, names in lower case: storage class, encryption, ACL,
                tags, ``cache-control`` and the like, ``x-amz-meta-…``. None sends defaults of `with_headers`.
        """

    def upload_part(
        self, bucket: str, key: str, upload_id: str, number: int, body: bytes | bytearray | memoryview
    ) -> str:
        """Upload part ``number``, from 1 to `MAX_PARTS`, and return its ETag, without quotes.

        Repeatable: a part that is uploaded again replaces the earlier one.

        Raises:
            NoSuchUpload: The upload was completed or aborted, or never existed.
        """

    def complete_upload(self, bucket: str, key: str, upload_id: str, etags: Sequence[PartEtag]) -> str:
        """Create the object from the parts of an upload, numbered from 1, and return its ETag.

        Not every store can complete an upload again: after an unknown outcome, check the object.

        Raises:
            NoSuchUpload: The upload was completed or aborted, or never existed.
        """

    def abort_upload(self, bucket: str, key: str, upload_id: str) -> None:
        """Discard a pending upload and its parts; repeatable, since an unknown upload counts as discarded."""

    def list_uploads(self, bucket: str, prefix: str, *, page: int | None = None) -> Iterator[Upload]:
        """Yield the pending uploads whose key begins with ``prefix``, in the store's order.

        At most ``page`` are fetched with one request.
        """

    def list_parts(self, bucket: str, key: str, upload_id: str) -> Iterator[Part]:
        """Yield the parts of a pending upload.

        Raises:
            NoSuchUpload: The upload was completed or aborted, or never existed.
        """

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make many calls concurrently; yield each call's tag with its outcome, in any order.

        Errors are yielded as outcomes, not raised. Calls are drawn as capacity allows, so a long iterable
        costs no memory. Closing the iterator draws no further call and waits for those in flight.
        """


# Structs, not dataclasses: one is created per file, and a frozen dataclass takes microseconds. They hold only
# text, so they cannot be part of a cycle, and the garbage collector need not track them. ``verb`` is the name
# of the method of `ObjectStore` that makes the call; the fields are its arguments, in order.
class ObjectToDelete(Struct, frozen=True, gc=False):
    """An object to delete; with an ETag, stores that compare ETags delete it only if it has that ETag."""

    key: str
    etag: str | None = None


class CheckedEtag(Struct, frozen=True, gc=False):
    """A part's ETag with its checksum, which completing an upload with checksums requires.

    ``algorithm`` is S3's name for it, such as ``CRC32C``; ``checksum`` is in Base64.
    """

    etag: str
    algorithm: str
    checksum: str


#: How a completion names a part.
PartEtag: TypeAlias = str | CheckedEtag


class Complete(Struct, frozen=True, gc=False):
    """A call of `ObjectStore.complete_upload`."""

    verb: ClassVar[str] = "complete_upload"
    bucket: str
    key: str
    upload_id: str
    etags: Sequence[PartEtag]


class Abort(Struct, frozen=True, gc=False):
    """A call of `ObjectStore.abort_upload`."""

    verb: ClassVar[str] = "abort_upload"
    bucket: str
    key: str
    upload_id: str


class Head(Struct, frozen=True, gc=False):
    """A call of `ObjectStore.head`."""

    verb: ClassVar[str] = "head"
    bucket: str
    key: str


class Get(Struct, frozen=True, gc=False):
    """A call of `ObjectStore.get`."""

    verb: ClassVar[str] = "get"
    bucket: str
    key: str
    limit: int | None = None


class DeleteMany(Struct, frozen=True, gc=False):
    """A call of `ObjectStore.delete_many`."""

    verb: ClassVar[str] = "delete_many"
    bucket: str
    objects: Sequence[ObjectToDelete]


Call: TypeAlias = Complete | Abort | Head | Get | DeleteMany

#: Headers of a write, and boto3's names for them.
_PARAMETERS = {
    "cache-control": "CacheControl", "content-disposition": "ContentDisposition",
    "content-encoding": "ContentEncoding", "content-language": "ContentLanguage", "expires": "Expires",
    "x-amz-acl": "ACL", "x-amz-storage-class": "StorageClass", "x-amz-tagging": "Tagging",
    "x-amz-server-side-encryption": "ServerSideEncryption",
    "x-amz-server-side-encryption-aws-kms-key-id": "SSEKMSKeyId",
    "x-amz-server-side-encryption-bucket-key-enabled": "BucketKeyEnabled",
}  # fmt: skip

#: Boolean headers.
_FLAGS = frozenset({"x-amz-server-side-encryption-bucket-key-enabled"})

#: Headers that a read returns. ACL and tags are only sent; of the tags, a read returns the number.
_RETURNED = (_PARAMETERS.keys() - {"x-amz-acl", "x-amz-tagging"}) | {TAG_COUNT}


def boto3_parameters(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return headers, names in lower case, as parameters of a boto3 call that writes an object.

    Raises `StoreRejected` if a header does not describe an object.
    """
    parameters: dict[str, Any] = {}
    entries = {}
    for name, value in headers.items():
        if name.startswith(METADATA_PREFIX):
            entries[name.removeprefix(METADATA_PREFIX)] = value
        elif name not in _PARAMETERS:
            raise StoreRejected(f"header {name} does not describe an object", code="InvalidArgument")
        else:
            parameters[_PARAMETERS[name]] = value == "true" if name in _FLAGS else value
    if entries:
        parameters["Metadata"] = entries
    return parameters


def object_headers(headers: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the user metadata in a response's headers, and the other headers that describe the object."""
    prefix = METADATA_PREFIX
    metadata = {
        name.removeprefix(prefix): value for name, value in headers.items() if name.startswith(prefix)
    }
    return metadata, {name: value for name, value in headers.items() if name in _RETURNED}
