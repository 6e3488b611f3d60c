"""`ObjectStore` on S3 and compatible stores, through boto3 and, for many small calls, libcurl."""

from __future__ import annotations

import logging
import re
from contextlib import closing, suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypedDict, TypeVar, Unpack

from airflow_s3commit.exceptions import (
    REFUSALS,
    AccessDenied,
    NoSuchKey,
    PreconditionFailed,
    StoreRejected,
    TooLarge,
)
from airflow_s3commit.store.base import (
    Call,
    DeleteFailure,
    Fetched,
    Load,
    ObjectInfo,
    ObjectToDelete,
    Outcome,
    Written,
    boto3_parameters,
)
from airflow_s3commit.store.credentials import plain_endpoint
from airflow_s3commit.store.execute import RetryPolicy, Throttle, in_threads, with_threads
from airflow_s3commit.store.s3.client import ENDLESS, OBJECTS, RetryingStore, pages
from airflow_s3commit.store.s3.config import S3Config, UnsupportedClient, guard_client, new_client
from airflow_s3commit.store.s3.request import (
    NOT_KNOWN,
    Request,
    content_md5,
    entries,
    etag_of,
    object_info,
    quoted,
    unquoted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from mypy_boto3_s3.client import S3Client

TransportName: TypeAlias = Literal["auto", "curl", "boto3"]

#: Maximum requests in flight through boto3.
_THREADS = 32

#: Maximum requests in flight through libcurl: 3,000 per second at 170 ms of latency.
CONNECTIONS = 512

#: Below S3's guaranteed rate for one partitioned prefix: 3,500 writes per second.
REQUESTS_PER_SECOND = 3000.0

#: Maximum objects per bulk delete (S3's limit).
MAX_DELETES = 1000

# XML 1.0 cannot represent these, not even as references (https://www.w3.org/TR/xml/#charsets).
_is_not_xml = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]").search

#: The end of the name of a directory bucket, which has no Object Lock and takes no Content-MD5.
DIRECTORY_BUCKET = "--x-s3"

T = TypeVar("T")

log = logging.getLogger(__name__)


class StoreOptions(TypedDict, total=False):
    """Arguments of `S3Store` that do not depend on its client."""

    retry: RetryPolicy
    transport: TransportName
    connections: int
    requests_per_second: float | None


class S3Store(RetryingStore):
    """An `ObjectStore` behind a boto3 client; safe to use from several threads.

    ``retry`` retries every request. The client's own retries, if any, happen within one attempt. Errors and
    repeatability of each method are those of `ObjectStore`.

    Args:
        client: A boto3 S3 client, best created with `client_config`; ``S3Hook(...).conn`` works too.
        retry: How often and how long a request is retried.
        transport: What sends the calls of `perform`, starts of uploads and small parts: ``curl``, which needs
            the extra ``fast``; ``boto3``, the client; ``auto``, curl where it is installed. Calls that
            libcurl cannot make as the client would (by a proxy, to a directory bucket) go through the client.
        connections: Maximum concurrent calls of `perform` through libcurl.
        requests_per_second: Maximum requests per second that `perform` sends with libcurl; None for no bound.
        origin: Where the client's address and credentials come from, for errors.
        make: Makes another such client for processes forked later; else they reconnect the given one.

    Raises:
        ModuleNotFoundError: ``transport="curl"`` and pycurl is not installed.
        StoreUnsuitable: The client's endpoint holds a user name or password.
    """

    def __init__(
        self,
        client: S3Client,
        *,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - immutable
        transport: TransportName = "auto",
        connections: int = CONNECTIONS,
        requests_per_second: float | None = REQUESTS_PER_SECOND,
        origin: str = "",
        make: Callable[[], S3Client] | None = None,
    ) -> None:
        plain_endpoint(client.meta.endpoint_url, "of the client")
        super().__init__(guard_client(client), retry, origin, make)
        config: Any = client.meta.config  # its types don't name what a caller may have set
        self._threads = min(_THREADS, config.max_pool_connections)
        if transport == "boto3":
            return
        try:
            from airflow_s3commit.store.s3.connections import most_connections  # noqa: PLC0415 - optional
            from airflow_s3commit.store.s3.fast_path import FastPath  # noqa: PLC0415

            most = most_connections(connections)
            throttle = Throttle(retry.clock, most=most, per_second=requests_per_second)
            self._curl = FastPath(client, self, self._threads, throttle)
        except ModuleNotFoundError as error:
            if transport == "curl" or error.name != "pycurl":
                raise
        except UnsupportedClient as why:
            level = logging.DEBUG if transport == "auto" else logging.WARNING
            log.log(level, "Requests are sent by boto3, not libcurl: %s", why)

    @classmethod
    def connect(
        cls,
        config: S3Config = S3Config(),  # noqa: B008 - immutable
        **options: Unpack[StoreOptions],
    ) -> Self:
        """Return a store with its own client; ``options`` are arguments of the class. Sends no request.

        Raises:
            ModuleNotFoundError: ``transport="curl"`` and pycurl is not installed.
            AccessDenied: The profile does not exist, or the credentials are incomplete.
            StoreRejected: Another part of the configuration is invalid.
            StoreUnsuitable: The endpoint of the environment or profile holds a user name or password.
        """

        def make() -> S3Client:
            return guard_client(new_client(config))

        return cls(make(), make=make, **options)

    @property
    def transport(self) -> str:
        """The transport that `perform` uses: ``curl`` or ``boto3``."""
        return "boto3" if self._curl is None else "curl"

    @property
    def load(self) -> Load:
        """Implement `ObjectStore.load`."""
        if self._curl is None:
            return Load(self._threads, self._retries)
        return Load(self._curl.throttle.window, self._retries + self._curl.retries)

    def check_bucket(self, bucket: str) -> None:
        """Implement `ObjectStore.check_bucket`."""
        self._ask(Request("HeadBucket", bucket), bool)

    def stale_upload_days(self, bucket: str, prefix: str) -> int | None:
        """Implement `ObjectStore.stale_upload_days`."""
        request = Request("GetBucketLifecycleConfiguration", bucket)
        try:
            return self._ask(request, lambda response: abort_days(response.get("Rules", ()), prefix))
        except (AccessDenied, StoreRejected):
            return None

    def head(self, bucket: str, key: str) -> ObjectInfo:
        """Implement `ObjectStore.head`."""
        request = Request("HeadObject", bucket, key)
        try:
            return self._ask(request, partial(object_info, request))
        except StoreRejected as error:
            # Without a body the response names no reason, such as expired credentials; that to a GET does.
            if error.code == "400":
                with suppress(TooLarge):
                    self.get(bucket, key, limit=-1)
            raise

    def get(self, bucket: str, key: str, limit: int | None = None) -> Fetched:
        """Implement `ObjectStore.get`."""
        request = Request("GetObject", bucket, key)

        def read(response: Any) -> Fetched:
            # The body's own context manager returns the raw stream, which does not notice truncation.
            with closing(response["Body"]) as body:
                info = object_info(request, response)
                if limit is not None and info.size > limit:
                    raise TooLarge.of(f"s3://{bucket}/{key}", info.size, limit)
                content = body.read(info.size + 1)
                if len(content) != info.size:
                    raise request.unconfirmed("the response is not as long as it says")
                return Fetched(info, content, self._date(response))

        return self._ask(request, read)

    def get_range(self, bucket: str, key: str, first: int, size: int, *, etag: str) -> bytes:
        """Implement `ObjectStore.get_range`."""
        request = Request("GetObject", bucket, key)

        def read(response: Any) -> bytes:
            with closing(response["Body"]) as body:
                # Some stores ignore the range, or the condition.
                if not response.get("ContentRange", "").startswith(f"bytes {first}-"):
                    raise request.unconfirmed(
                        "the response is not the range of the object that was asked for"
                    )
                if etag_of(request, response) != unquoted(etag):
                    raise PreconditionFailed(f"{request}: the object has another ETag")
                content: bytes = body.read(size + 1)
                if len(content) != response.get("ContentLength") or len(content) > size:
                    raise request.unconfirmed("the response is not as long as it says, or as the range")
                return content

        return self._ask_if_match(request, etag, read, Range=f"bytes={first}-{first + size - 1}")

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
        """Implement `ObjectStore.put`."""
        request = Request("PutObject", bucket, key)
        options = {**boto3_parameters(headers or {}), "Body": body, "ContentType": content_type}
        if if_none_match:
            options["IfNoneMatch"] = "*"
        if not bucket.endswith(DIRECTORY_BUCKET):
            options["ContentMD5"] = content_md5(body)

        def read(response: Any) -> Written:
            return Written(etag_of(request, response), self._date(response))

        if if_match is None:
            return self._ask(request, read, **options)
        try:
            return self._ask_if_match(request, if_match, read, **options)
        except NoSuchKey as error:
            # AWS returns "not found" for If-Match on a missing object.
            raise PreconditionFailed(str(error)) from error

    def delete(self, bucket: str, key: str, *, if_match: str | None = None) -> None:
        """Implement `ObjectStore.delete`."""
        request = Request("DeleteObject", bucket, key)
        known = self.profiles[bucket].conditional_delete
        with suppress(NoSuchKey):
            # Some stores delete regardless of the condition, and no response shows it.
            if if_match is not None and not known and self.head(bucket, key).etag != unquoted(if_match):
                raise PreconditionFailed(f"{request}: the object has another ETag")
            if if_match is None or known is False:
                self._ask(request, bool)
                return
            try:
                self._ask_if_match(request, if_match, bool)
            except StoreRejected as error:
                if known or error.code not in NOT_KNOWN:
                    raise
                self.delete(bucket, key)
                self._learn(bucket, "has no conditional deletes", conditional_delete=False)

    def delete_many(self, bucket: str, objects: Sequence[ObjectToDelete]) -> list[DeleteFailure]:
        """Implement `ObjectStore.delete_many`.

        One by one it deletes keys that XML cannot hold, and objects with ETags if bulk deletes refuse those.

        Raises `ValueError` for more than `MAX_DELETES` objects.
        """
        if len(objects) > MAX_DELETES:
            raise ValueError(f"one bulk delete takes {MAX_DELETES} objects, not {len(objects)}")
        bulk_etags = self.profiles[bucket].bulk_etags
        single, bulk = list[ObjectToDelete](), list[ObjectToDelete]()
        for target in objects:
            Request("DeleteObject", bucket, target.key)  # refuses an empty key
            fits_in_bulk = (target.etag is None or bulk_etags) and not _is_not_xml(target.key)
            (bulk if fits_in_bulk else single).append(target)
        left = self._delete_singly(bucket, single)
        if not bulk:
            return left
        try:
            return left + self._delete_in_bulk(bucket, bulk)
        except StoreRejected as error:
            if error.code not in NOT_KNOWN or all(target.etag is None for target in bulk):
                raise
        left += self._delete_singly(bucket, bulk)
        # Only now is it certain that the ETags were the cause.
        self._learn(bucket, "refuses ETags in bulk deletes: objects are deleted one by one", bulk_etags=False)
        return left

    def _delete_in_bulk(self, bucket: str, objects: Sequence[ObjectToDelete]) -> list[DeleteFailure]:
        request = Request("DeleteObjects", bucket)
        targets = [
            {"Key": target.key} if target.etag is None else {"Key": target.key, "ETag": quoted(target.etag)}
            for target in objects
        ]

        def read(response: Any) -> list[DeleteFailure]:
            errors = response.get("Errors", ())
            if not errors and not response.get("Deleted"):
                raise request.unconfirmed("the response names no object")
            return [
                DeleteFailure(error.get("Key", ""), error.get("Code", ""), error.get("Message", ""))
                for error in errors
                if error.get("Code") != "NoSuchKey"
            ]

        # Not quiet: an empty response to a quiet request looks like one that was cut off.
        return self._ask(request, read, Delete={"Objects": targets})

    def _delete_singly(self, bucket: str, objects: Sequence[ObjectToDelete]) -> list[DeleteFailure]:
        def delete(target: ObjectToDelete) -> list[DeleteFailure]:
            try:
                self.delete(bucket, target.key, if_match=target.etag)
            except PreconditionFailed as error:
                return [DeleteFailure(target.key, "PreconditionFailed", str(error))]
            return []

        return [*chain.from_iterable(in_threads(delete, objects, self._threads))]

    def list_objects(
        self,
        bucket: str,
        prefix: str,
        *,
        recursive: bool = True,
        start_after: str | None = None,
        page: int | None = None,
    ) -> Iterator[ObjectInfo]:
        """Implement `ObjectStore.list_objects`."""
        given = {"Delimiter": None if recursive else "/", "StartAfter": start_after, "MaxKeys": page}
        options = {name: value for name, value in given.items() if value is not None}
        request = Request("ListObjectsV2", bucket, prefix=prefix)
        first: str | None = None
        for found in pages(request, OBJECTS, lambda at: self._page(request, Prefix=prefix, **options, **at)):
            listed = list(entries(request, found, "Contents", ("Key", "Size", "ETag", "LastModified")))
            if first is not None and listed and listed[0]["Key"] == first:
                # With a new token each time, it would never end.
                raise StoreRejected(f"{request}: the listing repeats {first}", code=ENDLESS)
            first = listed[0]["Key"] if listed else first
            for entry in listed:
                yield ObjectInfo(
                    entry["Key"], entry["Size"], entry["ETag"].strip('"'), entry["LastModified"].timestamp()
                )

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Implement `ObjectStore.perform`."""
        return self._curl.perform(calls) if self._curl else with_threads(self, calls, self._threads)

    def _ask_if_match(self, request: Request, etag: str, read: Callable[[Any], T], **parameters: Any) -> T:
        """Send a request conditional on an ETag, with or without quotes, as the store compares it.

        Some stores refuse the right ETag in quotes. So if the object of a refused request has the ETag, the
        request is sent again in the other form, which is no less conditional. If that cannot be found out, a
        change has an unknown outcome: an earlier attempt may have made it, and so changed the ETag.
        """
        bare = self.profiles[request.bucket].bare_etags
        forms = (unquoted, quoted) if bare else (quoted, unquoted)
        try:
            result = self._ask(request, read, IfMatch=forms[0](etag), **parameters)
        except PreconditionFailed:
            if bare is not None and request.operation == "PutObject":
                # An earlier write has shown the form.
                raise
            try:
                # Some stores refuse the condition for a missing object too; this then raises `NoSuchKey`.
                if self.head(request.bucket, request.key or "").etag != unquoted(etag):
                    raise
                result, bare = self._ask(request, read, IfMatch=forms[1](etag), **parameters), not bare
            except REFUSALS as error:
                raise request.unconfirmed(f"the condition was refused, and then {error}") from error
        if request.operation == "PutObject" and self.profiles[request.bucket].bare_etags is not bool(bare):
            how = "without" if bare else "in"
            self._learn(
                request.bucket, f"compares If-Match with the ETag {how} quotes", bare_etags=bool(bare)
            )
        return result


def abort_days(rules: Iterable[Mapping[str, Any]], prefix: str) -> int | None:
    """Return after how many days lifecycle rules abort pending uploads below ``prefix``; None for never.

    Of the rules that cover all of ``prefix``, the shortest counts. Rules on tags or sizes do not apply to
    pending uploads, which have neither.
    """
    found = []
    for rule in rules:
        days = rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation")
        selection = rule.get("Filter", {})
        selection = selection.get("And", selection)
        below = selection.get("Prefix", rule.get("Prefix", ""))
        is_for_all = not selection.keys() - {"Prefix"} and prefix.startswith(below)
        if days is not None and rule.get("Status") == "Enabled" and is_for_all:
            found.append(int(days))
    return min(found, default=None)
