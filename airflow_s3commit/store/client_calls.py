"""Calls to a boto3 client: one honest attempt each, and our own retries around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from airflow_s3commit.store.answers import answered_at
from airflow_s3commit.store.errors import CLIENT_ERRORS, Request, translate
from airflow_s3commit.store.listing import Listing, Page, pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit.store.retry import RetryPolicy

__all__ = ["ClientCalls"]

T = TypeVar("T")


class ClientCalls:
    """What the verbs of a store on a boto3 client are made with.

    Args:
        client: The client.
        retry: How often and how long a request is sent again.

    """

    def __init__(self, client: S3Client, retry: RetryPolicy) -> None:
        self._client = client
        self._retry = retry
        self._sent_again = 0

    def _send(self, request: Request, attempt: Callable[[], T]) -> T:
        is_first = True

        def honest() -> T:
            nonlocal is_first
            self._sent_again += not is_first
            is_first = False
            try:
                return attempt()
            except CLIENT_ERRORS as error:
                failure = translate(error, request)
            # Not chained to the client's own error: that may show headers, and with them a session token.
            raise failure

        return self._retry.run(honest)

    def _pages(
        self, request: Request, listing: Listing, fetch: Callable[[dict[str, Any]], Any]
    ) -> Iterator[Page]:
        def page(markers: dict[str, Any]) -> Page:
            answer: Page = fetch(markers)
            if "IsTruncated" not in answer:
                raise request.unanswered("the answer is no listing")
            return answer

        return pages(request, listing, lambda markers: self._send(request, lambda: page(markers)))

    def _date(self, answer: Mapping[str, Any]) -> float:
        # An answer without a date counts as made when it arrived (RFC 9110, section 6.6.1).
        date = answered_at(answer)
        return self._retry.clock.time() if date is None else date
