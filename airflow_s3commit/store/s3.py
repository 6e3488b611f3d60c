"""S3 and its kin through boto3: one honest attempt a request, and our own retries around it."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar

from airflow_s3commit.exceptions import AccessDenied, NoSuchKey, PreconditionFailed, StoreRejected
from airflow_s3commit.store.answers import described, etag_of, quoted
from airflow_s3commit.store.base import (
    Call,
    DeleteFailure,
    Doomed,
    Effort,
    Fetched,
    ObjectInfo,
    Outcome,
    Written,
)
from airflow_s3commit.store.bulk_delete import (
    MAX_DELETES,
    check_bulk,
    delete_in_bulk,
    delete_singly,
    fits_in_bulk,
    refuses_etags,
)
from airflow_s3commit.store.calls import with_threads
from airflow_s3commit.store.connection import S3Config, client_config, new_client, watch_keys
from airflow_s3commit.store.credentials import plain_endpoint
from airflow_s3commit.store.errors import Request
from airflow_s3commit.store.headers import parameters_of
from airflow_s3commit.store.lifecycle import abort_days
from airflow_s3commit.store.listing import OBJECTS
from airflow_s3commit.store.retry import RetryPolicy
from airflow_s3commit.store.s3_uploads import UploadVerbs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit.store.transport import CurlTransport

__all__ = ["MAX_DELETES", "S3Config", "S3Store", "TransportName", "client_config"]

TransportName: TypeAlias = Literal["auto", "curl", "boto3"]

#: Calls that are under way at once through libcurl: 3,000 a second at 170 ms of latency.
CONNECTIONS = 512

#: Below what S3 takes at least for one partitioned prefix: 3,500 writes a second.
REQUESTS_PER_SECOND = 3000.0

T = TypeVar("T")

log = logging.getLogger(__name__)


class S3Store(UploadVerbs):
    """An `ObjectStore` behind a boto3 client; safe to use from several threads.

    Every request is sent again by ``retry``; the client's own retries, if it has any, happen within one of
    our attempts and count as one.

    Args:
        client: A boto3 S3 client, best made with `client_config`; ``S3Hook(...).conn`` will do.
        retry: How often and how long a request is sent again.
        threads: How many calls `perform` makes at once through the client; no more than the client keeps
            connections open.
        transport: What `perform` sends with: ``curl``, which needs the extra ``fast``; ``boto3``, the client
            itself; ``auto``, the first where it can be had. Calls that libcurl cannot make as the client
            would (through a proxy, to a directory bucket) are made by the client.
        connections: How many calls `perform` makes at once through libcurl, at most.
        requests_per_second: How many requests `perform` sends through libcurl, at most; None for no bound.

    Raises:
        ModuleNotFoundError: ``transport="curl"`` and pycurl is not installed.
        StoreUnsuitable: The client's endpoint holds a user name or password.

    """

    def __init__(
        self,
        client: S3Client,
        *,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - immutable
        threads: int = 32,
        transport: TransportName = "auto",
        connections: int = CONNECTIONS,
        requests_per_second: float | None = REQUESTS_PER_SECOND,
    ) -> None:
        plain_endpoint(client.meta.endpoint_url, "of the client")
        watch_keys(client)
        super().__init__(client, retry)
        self._without_etags: set[str] = set()
        config: Any = client.meta.config  # its types don't name what a caller may have set
        self._threads = min(threads, config.max_pool_connections)
        self._curl = (
            None if transport == "boto3" else self._fast_path(transport, connections, requests_per_second)
        )

    @classmethod
    def connect(
        cls,
        config: S3Config = S3Config(),  # noqa: B008 - immutable
        *,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - immutable
        threads: int = 32,
        transport: TransportName = "auto",
        connections: int = CONNECTIONS,
        requests_per_second: float | None = REQUESTS_PER_SECOND,
    ) -> Self:
        """Return a store on a client of its own; nothing is sent yet.

        Raises:
            ModuleNotFoundError: ``transport="curl"`` and pycurl is not installed.
            AccessDenied: The profile does not exist, or the credentials are incomplete.
            StoreRejected: Another part of the configuration is not usable.
            StoreUnsuitable: The endpoint of the environment or profile holds a user name or password.

        """
        return cls(
            new_client(config),
            retry=retry,
            threads=threads,
            transport=transport,
            connections=connections,
            requests_per_second=requests_per_second,
        )

    @property
    def transport(self) -> str:
        """What `perform` sends with: ``curl`` or ``boto3``."""
        return "boto3" if self._curl is None else "curl"

    @property
    def effort(self) -> Effort:
        """See `ObjectStore.effort`."""
        if self._curl is None:
            return Effort(self._threads, self._sent_again)
        return Effort(self._curl.throttle.window, self._sent_again + self._curl.sent_again)

    def check_bucket(self, bucket: str) -> None:
        """See `ObjectStore.check_bucket`."""
        self._send(Request("HeadBucket", bucket), lambda: self._client.head_bucket(Bucket=bucket))

    def stale_upload_days(self, bucket: str, prefix: str) -> int | None:
        """See `ObjectStore.stale_upload_days`."""
        request = Request("GetBucketLifecycleConfiguration", bucket)
        try:
            answer = self._send(
                request, lambda: self._client.get_bucket_lifecycle_configuration(Bucket=bucket)
            )
        except (AccessDenied, StoreRejected):
            return None
        return abort_days(answer.get("Rules", ()), prefix)

    def head(self, bucket: str, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        request = Request("HeadObject", bucket, key)
        return self._send(
            request, lambda: described(request, self._client.head_object(Bucket=bucket, Key=key))
        )

    def get(self, bucket: str, key: str, *, limit: int | None = None) -> Fetched:
        """See `ObjectStore.get`."""
        request = Request("GetObject", bucket, key)

        def attempt() -> Fetched:
            answer = self._client.get_object(Bucket=bucket, Key=key)
            # Its own context manager would give the raw stream, which does not notice a missing end.
            with closing(answer["Body"]) as body:
                info = described(request, answer)
                # The client reads no more than the length that the answer tells.
                request.check_size(info.size, limit)
                return Fetched(info, body.read(), self._date(answer))

        return self._send(request, attempt)

    def get_range(self, bucket: str, key: str, first: int, size: int, *, etag: str) -> bytes:
        """See `ObjectStore.get_range`."""
        request = Request("GetObject", bucket, key)

        def attempt() -> bytes:
            answer = self._client.get_object(
                Bucket=bucket, Key=key, Range=f"bytes={first}-{first + size - 1}", IfMatch=quoted(etag)
            )
            with closing(answer["Body"]) as body:
                if "ContentRange" not in answer:
                    raise request.unanswered("the answer is no range of the object")
                return body.read()

        return self._send(request, attempt)

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
        """See `ObjectStore.put`."""
        request = Request("PutObject", bucket, key)
        options = parameters_of(headers)
        if if_none_match:
            options["IfNoneMatch"] = "*"
        if if_match is not None:
            options["IfMatch"] = quoted(if_match)

        def attempt() -> Written:
            answer = self._client.put_object(
                Bucket=bucket, Key=key, Body=body, ContentType=content_type, **options
            )
            return Written(etag_of(request, answer), self._date(answer))

        try:
            return self._send(request, attempt)
        except NoSuchKey as error:
            if if_match is None:
                raise
            # That an object which is not there has not the ETag asked for, AWS calls "not found".
            raise PreconditionFailed(str(error)) from error

    def delete(self, bucket: str, key: str, *, if_match: str | None = None) -> None:
        """See `ObjectStore.delete`."""
        conditions: dict[str, Any] = {} if if_match is None else {"IfMatch": quoted(if_match)}
        try:
            self._send(
                Request("DeleteObject", bucket, key),
                lambda: self._client.delete_object(Bucket=bucket, Key=key, **conditions),
            )
        except NoSuchKey:
            return
        except PreconditionFailed:
            # Some stores say this of an object that is not there, as after a lost answer to our own delete.
            if not self._is_absent(bucket, key):
                raise

    def delete_many(self, bucket: str, doomed: Sequence[Doomed]) -> list[DeleteFailure]:
        """See `ObjectStore.delete_many`. What cannot be deleted in bulk is deleted singly.

        That is everything with an ETag where the store refuses ETags in bulk, and keys that XML cannot hold.

        Raises:
            ValueError: More than `MAX_DELETES` objects.

        """
        check_bulk(bucket, doomed)
        if not doomed:
            return []
        unfit = [target for target in doomed if not fits_in_bulk(target)]
        if unfit:
            left = delete_singly(self, bucket, unfit, self._threads)
            return left + self.delete_many(bucket, [target for target in doomed if fits_in_bulk(target)])
        with_etags = any(target.etag is not None for target in doomed)
        if with_etags and bucket in self._without_etags:
            return delete_singly(self, bucket, doomed, self._threads)
        try:
            return delete_in_bulk(self._client, self._send, bucket, doomed)
        except StoreRejected as error:
            if not refuses_etags(error, doomed):
                raise
            left = delete_singly(self, bucket, doomed, self._threads)
            # Only now is it known that the ETags were at fault, and nothing else.
            self._without_etags.add(bucket)
            log.info("s3://%s takes no ETags in bulk deletes: objects are deleted singly", bucket)
            return left

    def list_objects(
        self, bucket: str, prefix: str, *, recursive: bool = True, start_after: str | None = None
    ) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_objects`.

        Raises:
            StoreRejected: The store breaks the listing off.

        """
        options: dict[str, Any] = {} if recursive else {"Delimiter": "/"}
        if start_after is not None:
            options["StartAfter"] = start_after
        request = Request("ListObjectsV2", bucket)
        for page in self._pages(
            request,
            OBJECTS,
            lambda at: self._client.list_objects_v2(Bucket=bucket, Prefix=prefix, **options, **at),
        ):
            for entry in page.get("Contents", ()):
                yield ObjectInfo(
                    entry["Key"], entry["Size"], entry["ETag"].strip('"'), entry["LastModified"].timestamp()
                )

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """See `ObjectStore.perform`."""
        if self._curl is not None:
            return self._curl.perform(calls)
        return with_threads(self, calls, self._threads)

    def _fast_path(
        self, wanted: TransportName, connections: int, per_second: float | None
    ) -> CurlTransport | None:
        try:
            from airflow_s3commit.store.line_settings import Unfit  # noqa: PLC0415 - optional
            from airflow_s3commit.store.transport import CurlTransport  # noqa: PLC0415 - optional
        except ModuleNotFoundError as error:
            if wanted == "auto" and error.name == "pycurl":
                return None
            raise
        try:
            return CurlTransport(
                self._client,
                self,
                retry=self._retry,
                threads=self._threads,
                connections=connections,
                per_second=per_second,
            )
        except Unfit as why:
            level = logging.DEBUG if wanted == "auto" else logging.WARNING
            log.log(level, "Requests are sent by boto3, not libcurl: %s", why)
            return None

    def _is_absent(self, bucket: str, key: str) -> bool:
        try:
            self.head(bucket, key)
        except NoSuchKey:
            return True
        return False
