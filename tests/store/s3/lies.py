"""Lies of an S3 server, by name: the operations and the false responses."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from email.utils import formatdate
from operator import itemgetter
from urllib.parse import quote, unquote

from tests.store.s3 import lying
from tests.store.s3.wire import error_body

__all__ = ["LIES"]

_READS = ("HeadObject", "GetObject")
_WRITES = ("PutObject", "UploadPart", "CompleteMultipartUpload")
_REPEATABLE = (*_WRITES, "DeleteObject", "DeleteObjects", "AbortMultipartUpload")
_CHANGES = (*_REPEATABLE, "CreateMultipartUpload")
_LISTINGS = ("ListObjectsV2", "ListMultipartUploads", "ListParts")
_ON_KEYS = (
    *(*_WRITES, *_READS, *_LISTINGS, "DeleteObject", "DeleteObjects"),
    *("CreateMultipartUpload", "AbortMultipartUpload"),
)
_ERROR = error_body("InternalError")
_REVERSED = itemgetter(slice(None, None, -1))


def _next_key(key: str) -> str:
    """Return the key after one that ends with a digit."""
    return key[:-1] + chr(ord(key[-1]) + 1)


def _key_before(key: str) -> str:
    return key[:-1] + chr(ord(key[-1]) - 1)


#: The operations that each lie is about, and the lie.
LIES: dict[str, tuple[tuple[str, ...], lying.Lie]] = {
    # 200 for nothing
    "PutObject does nothing": (("PutObject",), lying.nothing(ETag='"0123456789abcdef0123456789abcdef"')),
    "DeleteObject does nothing": (("DeleteObject",), lying.nothing(204)),
    "DeleteObjects does nothing": (("DeleteObjects",), lying.unnamed),
    "CreateMultipartUpload does nothing": (
        ("CreateMultipartUpload",),
        lying.nothing(
            body=b"<InitiateMultipartUploadResult><UploadId>none</UploadId></InitiateMultipartUploadResult>"
        ),
    ),
    "UploadPart does nothing": (("UploadPart",), lying.nothing(ETag='"0123456789abcdef0123456789abcdef"')),
    "CompleteMultipartUpload does nothing": (
        ("CompleteMultipartUpload",),
        lying.nothing(
            body=b"<CompleteMultipartUploadResult><ETag>&quot;e-1&quot;</ETag></CompleteMultipartUploadResult>"
        ),
    ),
    "AbortMultipartUpload does nothing": (("AbortMultipartUpload",), lying.nothing(204)),
    # 200 with an error in its body
    **{
        f"{name} answers 200 with an error": ((name,), lying.nothing(body=_ERROR))
        for name in (*_CHANGES, *_LISTINGS)
    },
    # Done, and said to have failed
    **{f"{name} fails after it was done": ((name,), lying.says(500, _ERROR)) for name in _CHANGES},
    **{
        f"{name} fails once after it was done": ((name,), lying.first(lying.says(500, _ERROR)))
        for name in _REPEATABLE
    },
    # ETags
    **{
        f"{name} says {kind} ETag": ((name,), lying.etags(change))
        for name in (*_WRITES, *_READS, "ListObjectsV2", "ListParts")
        for kind, change in (
            ("no", lambda _: ""),
            ("an unquoted", lambda etag: etag),
            ("a weak", lambda etag: f'W/"{etag}"'),
            ("another", lambda etag: f'"{etag[::-1]}"'),
            ("an upper-case", lambda etag: f'"{etag.upper()}"'),
        )
    },
    "all ETags are weak": ((*_WRITES, *_READS, *_LISTINGS), lying.etags(lambda etag: f'W/"{etag}"')),
    "all ETags are unquoted": ((*_WRITES, *_READS, *_LISTINGS), lying.etags(lambda etag: etag)),
    # Listings
    "ListObjectsV2 misses the newest": (("ListObjectsV2",), lying.listed(b"Contents", lying.without(max))),
    "ListObjectsV2 misses the oldest": (("ListObjectsV2",), lying.listed(b"Contents", lying.without(min))),
    "ListMultipartUploads misses the newest": (
        ("ListMultipartUploads",),
        lying.listed(b"Upload", lying.without(max)),
    ),
    "ListMultipartUploads misses the oldest": (
        ("ListMultipartUploads",),
        lying.listed(b"Upload", lying.without(min)),
    ),
    "ListParts misses the last": (("ListParts",), lying.listed(b"Part", lying.without(max))),
    **{f"{name} is as it was before": ((name,), lying.stale) for name in (*_LISTINGS, *_READS)},
    **{f"{name} loops": ((name,), lying.loop) for name in _LISTINGS},
    "ListObjectsV2 is in reverse order": (("ListObjectsV2",), lying.listed(b"Contents", _REVERSED)),
    "ListMultipartUploads is in reverse order": (
        ("ListMultipartUploads",),
        lying.listed(b"Upload", _REVERSED),
    ),
    "ListParts is in reverse order": (("ListParts",), lying.listed(b"Part", _REVERSED)),
    "ListObjectsV2 lists what is elsewhere": (("ListObjectsV2",), lying.beyond),
    "ListObjectsV2 says another size": (("ListObjectsV2",), lying.edit(rb"<Size>\d+", b"<Size>12345")),
    "ListParts says another size": (("ListParts",), lying.edit(rb"<Size>\d+", b"<Size>12345")),
    "ListObjectsV2 says another time": (
        ("ListObjectsV2",),
        lying.edit(rb"<LastModified>.*?<", b"<LastModified>2010-11-10T20:48:33Z<"),
    ),
    "ListMultipartUploads says another time": (
        ("ListMultipartUploads",),
        lying.edit(rb"<Initiated>.*?<", b"<Initiated>2010-11-10T20:48:33Z<"),
    ),
    # Reads
    "HeadObject drops metadata": (("HeadObject",), lying.headers(lying.dropped)),
    "GetObject drops metadata": (("GetObject",), lying.headers(lying.dropped)),
    "HeadObject names metadata in capitals": (("HeadObject",), lying.headers(lying.capitals)),
    "HeadObject lowers metadata": (("HeadObject",), lying.headers(lying.lowered)),
    "HeadObject says another length": (
        ("HeadObject",),
        lambda _store, _seen, do: replace(said := do(), body=said.body + b"more"),
    ),
    "HeadObject says another time": (
        ("HeadObject",),
        lying.header("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
    ),
    "HeadObject says no time": (("HeadObject",), lying.header("Last-Modified", None)),
    "HeadObject finds what is not there": (
        ("HeadObject",),
        lambda _store, _seen, do: (
            said
            if (said := do()).status != 404
            else replace(
                said,
                status=200,
                body=b"",
                headers=said.headers | {"ETag": '"e"', "Last-Modified": said.headers["Date"]},
            )
        ),
    ),
    "HeadObject does not find what is there": (("HeadObject",), lying.nothing(404)),
    "GetObject does not find what is there": (("GetObject",), lying.nothing(404, error_body("NoSuchKey"))),
    "GetObject is short": (("GetObject",), lying.shorter),
    "GetObject answers 304": (("GetObject",), lying.nothing(304)),
    "GetObject answers 304 to a condition": (("GetObject",), lying.when("if-match", lying.nothing(304))),
    "GetObject ignores the range": (("GetObject",), lying.whole),
    "HeadBucket finds no bucket": (("HeadBucket",), lying.nothing(404)),
    # What is stored
    "PutObject stores less": (("PutObject",), lying.cut),
    "UploadPart stores less": (("UploadPart",), lying.cut),
    "CompleteMultipartUpload keeps the upload": (("CompleteMultipartUpload",), lying.twice),
    # Conditions
    "PutObject ignores If-None-Match": (("PutObject",), lying.ignoring("if-none-match")),
    "PutObject ignores If-Match": (("PutObject",), lying.ignoring("if-match")),
    "DeleteObject ignores If-Match": (("DeleteObject",), lying.ignoring("if-match")),
    "GetObject ignores If-Match": (("GetObject",), lying.ignoring("if-match")),
    "PutObject refuses If-None-Match and overwrites": (
        ("PutObject",),
        lying.refusing("if-none-match"),
    ),
    "PutObject refuses If-Match and overwrites": (("PutObject",), lying.refusing("if-match")),
    "DeleteObject refuses If-Match and deletes": (
        ("DeleteObject",),
        lying.refusing("if-match"),
    ),
    "DeleteObjects says that one failed": (("DeleteObjects",), lying.partly),
    **{
        f"{name} answers {status} to a false condition": (
            (name,),
            lying.instead_of_412(status, error_body(code) if code else b"", **headers),
        )
        for name, headers in (("PutObject", {"ETag": '"e"'}), ("DeleteObject", {}))
        for status, code in ((200, ""), (304, ""), (409, "ConditionalRequestConflict"), (404, "NoSuchKey"))
    },
    # Names
    **{
        f"names {what}": (_ON_KEYS, lying.named(change))
        for what, change in (
            ("are in lower case", str.lower),
            ("are decoded once more", unquote),
            ("have spaces for +", lambda name: name.replace("+", " ")),
            ("are decomposed", lambda name: unicodedata.normalize("NFD", name)),
            ("are ASCII", lambda name: name.encode("ascii", "replace").decode()),
        )
    },
    "names are found in any case": (_ON_KEYS, lying.folded),
    # Listings that end early, or do not end where they are asked to
    **{
        f"ListObjectsV2 ends after {entries}": (
            ("ListObjectsV2",),
            lying.listed(b"Contents", itemgetter(slice(entries))),
        )
        for entries in (1, 2)
    },
    "ListMultipartUploads ends after 1": (
        ("ListMultipartUploads",),
        lying.listed(b"Upload", itemgetter(slice(1))),
    ),
    **{
        f"{name} is cut off, and says not where": (
            (name,),
            lying.edit(rb"<IsTruncated>false", b"<IsTruncated>true"),
        )
        for name in _LISTINGS
    },
    # Effects on other objects
    "PutObject with If-Match creates what is missing": (("PutObject",), lying.risen),
    "CreateMultipartUpload removes the object": (("CreateMultipartUpload",), lying.removing),
    "AbortMultipartUpload removes the object": (("AbortMultipartUpload",), lying.removing),
    "DeleteObject deletes what begins with the key": (("DeleteObject",), lying.below),
    "ListMultipartUploads ignores the prefix": (("ListMultipartUploads",), lying.unasked("prefix")),
    # Pages of objects
    "ListObjectsV2 ends with its first page": (
        ("ListObjectsV2",),
        lying.edit(rb"<IsTruncated>true", b"<IsTruncated>false"),
    ),
    "ListObjectsV2 names no place to continue at": (
        ("ListObjectsV2",),
        lying.edit(rb"<NextContinuationToken>.*?</NextContinuationToken>", b""),
    ),
    "ListObjectsV2 skips a key between pages": (("ListObjectsV2",), lying.from_token(_next_key)),
    "ListObjectsV2 repeats a key on each page": (("ListObjectsV2",), lying.from_token(_key_before)),
    "ListObjectsV2 ignores the token": (("ListObjectsV2",), lying.from_token(lambda _: "")),
    "ListObjectsV2 ignores the token and says another one": (("ListObjectsV2",), lying.new_tokens),
    "ListObjectsV2 ignores the delimiter": (("ListObjectsV2",), lying.unasked("delimiter")),
    "ListObjectsV2 ignores where to start": (("ListObjectsV2",), lying.unasked("start-after")),
    "ListObjectsV2 names keys encoded": (
        ("ListObjectsV2",),
        lambda _store, _seen, do: replace(
            said := do(),
            body=re.sub(rb"(?<=<Key>).*?(?=</Key>)", lambda key: quote(key[0]).encode(), said.body),
        ),
    ),
    # Uploads
    "CompleteMultipartUpload keeps the first part only": (
        ("CompleteMultipartUpload",),
        lying.joined(lambda parts: parts[:1]),
    ),
    "CompleteMultipartUpload keeps the last part only": (
        ("CompleteMultipartUpload",),
        lying.joined(lambda parts: parts[-1:]),
    ),
    "CompleteMultipartUpload joins the last part first": (
        ("CompleteMultipartUpload",),
        lying.joined(lambda parts: parts[::-1]),
    ),
    "CreateMultipartUpload names the pending upload again": (("CreateMultipartUpload",), lying.same_upload),
    "AbortMultipartUpload aborts all of the key": (("AbortMultipartUpload",), lying.all_uploads),
    "UploadPart shows the object": (("UploadPart",), lying.shown),
    "DeleteObjects deletes the first only": (("DeleteObjects",), lying.only_first),
    "HeadObject says a time in the future": (
        ("HeadObject",),
        lying.header("Last-Modified", "Sat, 06 Nov 2094 08:49:37 GMT"),
    ),
    "ListObjectsV2 says a time in the future": (
        ("ListObjectsV2",),
        lying.edit(rb"<LastModified>.*?<", b"<LastModified>2094-11-10T20:48:33Z<"),
    ),
    "ListMultipartUploads says a time in the future": (
        ("ListMultipartUploads",),
        lying.edit(rb"<Initiated>.*?<", b"<Initiated>2094-11-10T20:48:33Z<"),
    ),
    # Clocks
    **{
        f"the clock is {name}": (
            (*_WRITES, *_READS, *_LISTINGS, "DeleteObject"),
            lambda store, _seen, do, by=by: replace(  # type: ignore[misc]
                said := do(),
                headers=said.headers | {"Date": formatdate(store.clock.time() + by, usegmt=True)},
            ),
        )
        for name, by in (("ahead", 7200.0), ("behind", -7200.0))
    },
    "no answer has a date": (
        (*_WRITES, *_READS, *_LISTINGS, "DeleteObject"),
        lying.header("Date", "not a date"),
    ),
}
