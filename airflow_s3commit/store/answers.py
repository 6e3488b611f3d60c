"""What a store's answers say, as botocore parsed them, in our terms."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from airflow_s3commit.store.base import DeleteFailure, ObjectInfo
from airflow_s3commit.store.headers import told

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_s3commit.store.errors import Request

__all__ = ["answered_at", "described", "etag_of", "left_in_place", "quoted", "retry_after"]


def answered_at(answer: Mapping[str, Any]) -> float | None:
    """Return the time of an answer by the store's clock, in seconds since the epoch; None if it has none."""
    return _http_date(_header(answer, "date"))


def retry_after(answer: Mapping[str, Any]) -> float | None:
    """Return the seconds that an answer asks to wait before the next try; None if it asks nothing.

    The header holds a number of seconds or a date; a date is measured by the answer's own.
    """
    asked = _header(answer, "retry-after").strip()
    if asked.isdecimal() and asked.isascii():
        return float(asked)
    until, now = _http_date(asked), answered_at(answer)
    return None if until is None or now is None else max(0.0, until - now)


def etag_of(request: Request, answer: Mapping[str, Any]) -> str:
    """Return the ETag of an answer, without quotes.

    Raises:
        OutcomeUnknown: A request that changes something was not confirmed: the answer has no ETag.
        Unavailable: The same, of a request that only reads.

    """
    raw = str(answer.get("ETag", ""))
    etag = raw.strip('"')
    # One quote without the other is what headers look like that were cut off.
    if not etag or raw.startswith('"') != raw.endswith('"'):
        raise request.unanswered("the answer has no ETag")
    return etag


def quoted(etag: str) -> str:
    """Return an ETag as HTTP wants it, whether it has its quotes or not."""
    return '"{}"'.format(etag.strip('"'))


def described(request: Request, answer: Mapping[str, Any]) -> ObjectInfo:
    """Return what the answer to a HEAD or a GET says of its object.

    Raises:
        Unavailable: It says too little: headers are missing.

    """
    if "ContentLength" not in answer or "LastModified" not in answer:
        raise request.unanswered("the answer has no length or time")
    return ObjectInfo(
        request.key or "",
        answer["ContentLength"],
        etag_of(request, answer),
        answer["LastModified"].timestamp(),
        {name.lower(): value for name, value in answer.get("Metadata", {}).items()},
        told(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})),
    )


def left_in_place(
    request: Request, deleted: Sequence[Mapping[str, Any]], errors: Sequence[Mapping[str, Any]]
) -> list[DeleteFailure]:
    """Return the objects that a bulk delete left, by what its answer says of each.

    Raises:
        OutcomeUnknown: It names no object at all.

    """
    if not errors and not deleted:
        raise request.unanswered("the answer names no object")
    return [
        DeleteFailure(error.get("Key", ""), error.get("Code", ""), error.get("Message", ""))
        for error in errors
        if error.get("Code") != "NoSuchKey"
    ]


def _header(answer: Mapping[str, Any], name: str) -> str:
    return str(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get(name, ""))


def _http_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None
