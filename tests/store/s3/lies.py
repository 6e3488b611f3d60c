"""An S3 server that lies in one respect: each lie, and the store that tells it."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from tests.store.s3.deviant import DeviantStore
from tests.store.s3.fault_server import Say, Seen
from tests.store.s3.wire import error_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["LIES", "LyingStore", "operation"]


def operation(seen: Seen) -> str:
    """Return S3's name of a request's operation."""
    parts = urlsplit(seen.path)
    key = unquote(parts.path).removeprefix("/").partition("/")[2]
    if "uploadId" in parts.query:
        return {
            "PUT": "UploadPart",
            "POST": "CompleteMultipartUpload",
            "DELETE": "AbortMultipartUpload",
            "GET": "ListParts",
        }[seen.method]
    if "uploads" in parts.query:
        return "CreateMultipartUpload" if seen.method == "POST" else "ListMultipartUploads"
    if "lifecycle" in parts.query:
        return "GetBucketLifecycleConfiguration"
    if not key:
        return {"HEAD": "HeadBucket", "POST": "DeleteObjects", "GET": "ListObjectsV2"}[seen.method]
    return {"PUT": "PutObject", "DELETE": "DeleteObject", "HEAD": "HeadObject", "GET": "GetObject"}[
        seen.method
    ]


#: A lie about one operation: what is said, given the store, the request, and what does the truth.
Lie: TypeAlias = "Callable[[LyingStore, Seen, Callable[[], Say]], Say]"


class LyingStore(DeviantStore):
    """The server's objects, and its answers, of which those to one operation are lies.

    Args:
        name: Which of `LIES`.

    Attributes:
        name: Which one.
        told: How many lies were told.
        memo: What a lie remembers of each path.

    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._operations, self._lie = LIES[name]
        self.told = 0
        self.memo: dict[str, Any] = {}

    def answer(self, seen: Seen) -> Say:
        """Answer a request, with a lie or not."""
        truth = super().answer
        if operation(seen) not in self._operations:
            return truth(seen)
        said = self._lie(self, seen, lambda: truth(seen))
        self.told += 1
        return said


def _date(store: LyingStore, said: Say) -> Say:
    return replace(said, headers={"Date": formatdate(store.clock.time(), usegmt=True)} | said.headers)


def _nothing(status: int = 200, body: bytes = b"", **headers: str) -> Lie:
    """Claim success, and do nothing."""
    return lambda store, _seen, _do: _date(store, Say(status, body, headers))


def _etags(change: Callable[[str], str]) -> Lie:
    """Say other ETags, in headers and bodies."""

    def lie(_store: LyingStore, _seen: Seen, do: Callable[[], Say]) -> Say:
        said = do()
        headers = {n: change(v.strip('"')) if n == "ETag" else v for n, v in said.headers.items()}
        body = re.sub(
            rb"(?<=<ETag>)&quot;(.*?)&quot;(?=</ETag>)",
            lambda found: change(found[1].decode()).replace('"', "&quot;").encode(),
            said.body,
        )
        return replace(said, headers={n: v for n, v in headers.items() if v}, body=body)

    return lie


def _without(pattern: bytes, *, newest: bool = True) -> Lie:
    """Leave the newest entry, or the oldest one, out of a listing."""

    def lie(_store: LyingStore, _seen: Seen, do: Callable[[], Say]) -> Say:
        said = do()
        entries = re.findall(b"<%s>.*?</%s>" % (pattern, pattern), said.body)
        if not entries:
            return said
        stamps = [re.search(rb"<(?:LastModified|Initiated|PartNumber)>(.*?)<", entry) for entry in entries]
        order = sorted(zip([stamp[1] if stamp else b"" for stamp in stamps], entries, strict=True))
        return replace(said, body=said.body.replace(order[-1 if newest else 0][1], b""))

    return lie


def _edit(pattern: bytes, by: bytes) -> Lie:
    """Replace something in the body."""
    return lambda _store, _seen, do: replace(said := do(), body=re.sub(pattern, by, said.body))


def _headers(change: Callable[[str, str], Iterator[tuple[str, str]]]) -> Lie:
    """Say other headers."""

    def lie(_store: LyingStore, _seen: Seen, do: Callable[[], Say]) -> Say:
        said = do()
        return replace(said, headers=dict(pair for item in said.headers.items() for pair in change(*item)))

    return lie


def _header(name: str, value: str | None) -> Lie:
    """Say a header otherwise, or not at all."""

    def lie(_store: LyingStore, _seen: Seen, do: Callable[[], Say]) -> Say:
        said = do()
        if name not in said.headers:
            return said
        others = {n: v for n, v in said.headers.items() if n != name}
        return replace(said, headers=others | ({} if value is None else {name: value}))

    return lie


def _says(status: int, body: bytes = b"") -> Lie:
    """Do it, and say something else."""
    return lambda _store, _seen, do: replace(do(), status=status, body=body)


def _when(header: str, then: Lie) -> Lie:
    """Lie to requests with a header only."""
    return lambda store, seen, do: then(store, seen, do) if header in seen.headers else do()


def _refusing(header: str) -> Lie:
    """Refuse, where a condition is false, and do it all the same."""

    def lie(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
        said = do()
        if header in seen.headers and said.status == 412:
            DeviantStore.answer(store, _without_header(seen, header))
        return said

    return lie


def _without_header(seen: Seen, header: str) -> Seen:
    return replace(seen, headers={name: text for name, text in seen.headers.items() if name != header})


def _ignoring(header: str) -> Lie:
    """Do what a request asks for, without its condition."""
    return lambda store, seen, _do: DeviantStore.answer(store, _without_header(seen, header))


def _first(lie: Lie, times: int = 1) -> Lie:
    """Lie once for each path, and say the truth from then on."""

    def some(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
        before = store.memo.get(seen.path, 0)
        store.memo[seen.path] = before + 1
        return lie(store, seen, do) if before < times else do()

    return some


def _stale(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Answer a read as the one before it."""
    now = do()
    before: Say = store.memo.get(seen.path, now)
    store.memo[seen.path] = now
    return before


def _twice(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Complete an upload, and keep it pending."""
    bucket, _, key = unquote(urlsplit(seen.path).path).removeprefix("/").partition("/")
    uploads = store.memory._buckets[bucket].uploads
    kept = dict(uploads)
    said = do()
    uploads.update({name: pending for name, pending in kept.items() if pending.key == key})
    return said


def _cut(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Store what is asked for, without its last byte."""
    return DeviantStore.answer(store, replace(seen, body=seen.body[:-1])) if seen.body else do()


def _capitals(name: str, value: str) -> Iterator[tuple[str, str]]:
    yield (name.upper() if name.startswith("x-amz-meta-") else name), value


def _dropped(name: str, value: str) -> Iterator[tuple[str, str]]:
    if not name.startswith("x-amz-meta-"):
        yield name, value


def _lowered(name: str, value: str) -> Iterator[tuple[str, str]]:
    yield name, value.lower() if name.startswith("x-amz-meta-") else value


def _partly(_store: LyingStore, _seen: Seen, do: Callable[[], Say]) -> Say:
    """Name the last deleted object as failed."""
    said = do()
    head, found, tail = said.body.rpartition(b"<Deleted>")
    if not found:
        return said
    key, _, rest = tail.partition(b"</Deleted>")
    error = b"<Error>" + key + b"<Code>InternalError</Code><Message>try again</Message></Error>"
    return replace(said, body=head + error + rest)


def _unnamed(store: LyingStore, seen: Seen, _do: Callable[[], Say]) -> Say:
    """Claim that all objects were deleted, and delete none."""
    keys = re.findall(rb"<Key>.*?</Key>", seen.body)
    deleted = b"".join(b"<Deleted>" + key + b"</Deleted>" for key in keys)
    return _date(store, Say(body=b"<DeleteResult>" + deleted + b"</DeleteResult>"))


def _loop(store: LyingStore, seen: Seen, _do: Callable[[], Say]) -> Say:
    """Say that there is another page, at the same place for ever."""
    said = DeviantStore.answer(
        store, replace(seen, path=re.sub(r"(key-marker|upload-id-marker)=[^&]*", "", seen.path))
    )
    body = said.body.replace(b"<IsTruncated>false</IsTruncated>", b"<IsTruncated>true</IsTruncated>")
    again = b"<NextContinuationToken>t</NextContinuationToken><NextPartNumberMarker>1</NextPartNumberMarker>"
    markers = b"<NextKeyMarker>k</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>"
    return replace(said, body=re.sub(rb"(</\w+>)$", again + markers + rb"\1", body))


def _reversed(pattern: bytes) -> Lie:
    """List in the reverse order."""

    def lie(_store: LyingStore, _seen: Seen, do: Callable[[], Say]) -> Say:
        said = do()
        entries = re.findall(b"<%s>.*?</%s>" % (pattern, pattern), said.body)
        bare = said.body
        for entry in entries:
            bare = bare.replace(entry, b"", 1)
        return replace(said, body=re.sub(rb"(</\w+>)$", b"".join(reversed(entries)) + rb"\1", bare))

    return lie


def _beyond(_store: LyingStore, _seen: Seen, do: Callable[[], Say]) -> Say:
    """List a key that was not asked for."""
    said = do()
    entry = (
        b"<Contents><Key>elsewhere/file</Key><Size>1</Size><ETag>&quot;e&quot;</ETag>"
        b"<LastModified>2020-01-01T00:00:00Z</LastModified></Contents>"
    )
    return replace(said, body=re.sub(rb"(</\w+>)$", entry + rb"\1", said.body))


def _whole(_store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Answer a request for a range with the whole object, and 206."""
    if "range" not in seen.headers:
        return do()
    said = DeviantStore.answer(_store, _without_header(seen, "range"))
    length = len(said.body)
    return replace(
        said, status=206, headers=said.headers | {"Content-Range": f"bytes 0-{length - 1}/{length}"}
    )


def _shorter(_store: LyingStore, _seen: Seen, do: Callable[[], Say]) -> Say:
    """Read without the last byte."""
    return replace(said := do(), body=said.body[:-1])


def _named(change: Callable[[str], str]) -> Lie:
    """Take a key for another one, in requests; answers then name that one."""

    def lie(store: LyingStore, seen: Seen, _do: Callable[[], Say]) -> Say:
        parts = urlsplit(seen.path)
        query = parse_qsl(parts.query, keep_blank_values=True)
        renamed = [(n, change(v) if n in ("prefix", "start-after") else v) for n, v in query]
        bucket, _, key = unquote(parts.path).removeprefix("/").partition("/")
        path = quote(f"/{bucket}/{change(key)}" if key else parts.path)
        body = seen.body
        if b"<Delete" in body:
            body = re.sub(rb"(?<=<Key>).*?(?=</Key>)", lambda key: change(key[0].decode()).encode(), body)
        asked = urlencode(renamed)
        return DeviantStore.answer(store, replace(seen, path=f"{path}?{asked}" if asked else path, body=body))

    return lie


def _folded(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Find an object by its name in another case, and keep the name that it was written with."""
    bucket, _, key = unquote(urlsplit(seen.path).path).removeprefix("/").partition("/")
    if not key:
        return do()
    known = {info.key.casefold(): info.key for info in store.memory.list_objects(bucket, "")}
    fold = unicodedata.normalize("NFC", key).casefold()
    return _named(lambda name: known.get(fold, name))(store, seen, do)


def _few(entries: int, pattern: bytes) -> Lie:
    """End a listing after some entries, and say that it is whole."""

    def lie(_store: LyingStore, _seen: Seen, do: Callable[[], Say]) -> Say:
        said = do()
        body = said.body
        for entry in re.findall(b"<%s>.*?</%s>" % (pattern, pattern), body)[entries:]:
            body = body.replace(entry, b"", 1)
        return replace(said, body=body)

    return lie


def _unasked(name: str) -> Lie:
    """Ignore a parameter of the request."""

    def lie(store: LyingStore, seen: Seen, _do: Callable[[], Say]) -> Say:
        path, _, query = seen.path.partition("?")
        kept = "&".join(pair for pair in query.split("&") if not pair.startswith(f"{name}="))
        return DeviantStore.answer(store, replace(seen, path=f"{path}?{kept}"))

    return lie


def _joined(change: Callable[[list[bytes]], list[bytes]]) -> Lie:
    """Complete an upload of several parts with others of them, or in another order."""

    def lie(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
        bucket, _, key = unquote(urlsplit(seen.path).path).removeprefix("/").partition("/")
        asked = dict(parse_qsl(urlsplit(seen.path).query))
        pending = store.memory._buckets[bucket].uploads.get(asked.get("uploadId", ""))
        said = do()
        if pending is not None and len(pending.parts) > 1:
            bodies = [body for _, (_, body) in sorted(pending.parts.items())]
            store.memory.put(bucket, key, b"".join(change(bodies)))
        return said

    return lie


def _same_upload(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Start no second upload of a key: name the pending one again."""
    bucket, _, key = unquote(urlsplit(seen.path).path).removeprefix("/").partition("/")
    for upload in store.memory.list_uploads(bucket, key):
        if upload.key == key:
            said = f"<InitiateMultipartUploadResult><UploadId>{upload.upload_id}</UploadId>"
            return _date(store, Say(body=f"{said}</InitiateMultipartUploadResult>".encode()))
    return do()


def _all_uploads(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Abort every upload of the key."""
    bucket, _, key = unquote(urlsplit(seen.path).path).removeprefix("/").partition("/")
    said = do()
    for upload in list(store.memory.list_uploads(bucket, key)):
        if upload.key == key:
            store.memory.abort_upload(bucket, key, upload.upload_id)
    return said


def _shown(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Show an object as soon as its first part is sent."""
    bucket, _, key = unquote(urlsplit(seen.path).path).removeprefix("/").partition("/")
    store.memory.put(bucket, key, seen.body)
    return do()


def _only_first(store: LyingStore, seen: Seen, _do: Callable[[], Say]) -> Say:
    """Delete the first object only, and name no failure."""
    _, *others = re.findall(rb"<Object>.*?</Object>", seen.body)
    body = seen.body
    for other in others:
        body = body.replace(other, b"")
    said = DeviantStore.answer(store, replace(seen, body=body))
    deleted = b"".join(
        b"<Deleted>" + re.findall(rb"<Key>.*?</Key>", one)[0] + b"</Deleted>" for one in others
    )
    return replace(said, body=re.sub(rb"(</DeleteResult>)$", deleted + rb"\1", said.body))


def _instead_of_412(status: int, body: bytes = b"", **headers: str) -> Lie:
    """Answer otherwise where a condition is false, and do nothing."""
    return lambda _store, _seen, do: (
        said if (said := do()).status != 412 else Say(status, body, {"Date": said.headers["Date"]} | headers)
    )


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

# fmt: off
#: What each lie is told of, and the lie.
LIES: dict[str, tuple[tuple[str, ...], Lie]] = {
    # 200 for nothing
    "PutObject does nothing": (("PutObject",), _nothing(ETag='"0123456789abcdef0123456789abcdef"')),
    "DeleteObject does nothing": (("DeleteObject",), _nothing(204)),
    "DeleteObjects does nothing": (("DeleteObjects",), _unnamed),
    "CreateMultipartUpload does nothing": (
        ("CreateMultipartUpload",),
        _nothing(
            body=b"<InitiateMultipartUploadResult><UploadId>none</UploadId></InitiateMultipartUploadResult>"
        ),
    ),
    "UploadPart does nothing": (("UploadPart",), _nothing(ETag='"0123456789abcdef0123456789abcdef"')),
    "CompleteMultipartUpload does nothing": (
        ("CompleteMultipartUpload",),
        _nothing(
            body=b"<CompleteMultipartUploadResult><ETag>&quot;e-1&quot;</ETag></CompleteMultipartUploadResult>"
        ),
    ),
    "AbortMultipartUpload does nothing": (("AbortMultipartUpload",), _nothing(204)),
    # 200 with an error in its body
    **{
        f"{name} answers 200 with an error": ((name,), _nothing(body=_ERROR))
        for name in (*_CHANGES, *_LISTINGS)
    },
    # Done, and said to have failed
    **{
        f"{name} fails after it was done": ((name,), _says(500, _ERROR))
        for name in _CHANGES
    },
    **{
        f"{name} fails once after it was done": ((name,), _first(_says(500, _ERROR)))
        for name in _REPEATABLE
    },
    # ETags
    **{
        f"{name} says {kind} ETag": ((name,), _etags(change))
        for name in (*_WRITES, *_READS, "ListObjectsV2", "ListParts")
        for kind, change in (
            ("no", lambda _: ""),
            ("an unquoted", lambda etag: etag),
            ("a weak", lambda etag: f'W/"{etag}"'),
            ("another", lambda etag: f'"{etag[::-1]}"'),
            ("an upper-case", lambda etag: f'"{etag.upper()}"'),
        )
    },
    "all ETags are weak": ((*_WRITES, *_READS, *_LISTINGS), _etags(lambda etag: f'W/"{etag}"')),
    "all ETags are unquoted": ((*_WRITES, *_READS, *_LISTINGS), _etags(lambda etag: etag)),
    # Listings
    "ListObjectsV2 misses the newest": (("ListObjectsV2",), _without(b"Contents")),
    "ListObjectsV2 misses the oldest": (("ListObjectsV2",), _without(b"Contents", newest=False)),
    "ListMultipartUploads misses the newest": (("ListMultipartUploads",), _without(b"Upload")),
    "ListMultipartUploads misses the oldest": (("ListMultipartUploads",), _without(b"Upload", newest=False)),
    "ListParts misses the last": (("ListParts",), _without(b"Part")),
    **{f"{name} is as it was before": ((name,), _stale) for name in (*_LISTINGS, *_READS)},
    **{f"{name} loops": ((name,), _loop) for name in _LISTINGS},
    "ListObjectsV2 is in reverse order": (("ListObjectsV2",), _reversed(b"Contents")),
    "ListMultipartUploads is in reverse order": (("ListMultipartUploads",), _reversed(b"Upload")),
    "ListParts is in reverse order": (("ListParts",), _reversed(b"Part")),
    "ListObjectsV2 lists what is elsewhere": (("ListObjectsV2",), _beyond),
    "ListObjectsV2 says another size": (("ListObjectsV2",), _edit(rb"<Size>\d+", b"<Size>12345")),
    "ListParts says another size": (("ListParts",), _edit(rb"<Size>\d+", b"<Size>12345")),
    "ListObjectsV2 says another time": (
        ("ListObjectsV2",),
        _edit(rb"<LastModified>.*?<", b"<LastModified>2010-11-10T20:48:33Z<"),
    ),
    "ListMultipartUploads says another time": (
        ("ListMultipartUploads",),
        _edit(rb"<Initiated>.*?<", b"<Initiated>2010-11-10T20:48:33Z<"),
    ),
    # Reads
    "HeadObject drops metadata": (("HeadObject",), _headers(_dropped)),
    "GetObject drops metadata": (("GetObject",), _headers(_dropped)),
    "HeadObject names metadata in capitals": (("HeadObject",), _headers(_capitals)),
    "HeadObject lowers metadata": (("HeadObject",), _headers(_lowered)),
    "HeadObject says another length": (
        ("HeadObject",),
        lambda _store, _seen, do: replace(said := do(), body=said.body + b"more"),
    ),
    "HeadObject says another time": (
        ("HeadObject",),
        _header("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
    ),
    "HeadObject says no time": (("HeadObject",), _header("Last-Modified", None)),
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
    "HeadObject does not find what is there": (("HeadObject",), _nothing(404)),
    "GetObject does not find what is there": (("GetObject",), _nothing(404, error_body("NoSuchKey"))),
    "GetObject is short": (("GetObject",), _shorter),
    "GetObject answers 304": (("GetObject",), _nothing(304)),
    "GetObject answers 304 to a condition": (("GetObject",), _when("if-match", _nothing(304))),
    "GetObject ignores the range": (("GetObject",), _whole),
    "HeadBucket finds no bucket": (("HeadBucket",), _nothing(404)),
    # What is stored
    "PutObject stores less": (("PutObject",), _cut),
    "UploadPart stores less": (("UploadPart",), _cut),
    "CompleteMultipartUpload keeps the upload": (("CompleteMultipartUpload",), _twice),
    # Conditions
    "PutObject ignores If-None-Match": (("PutObject",), _ignoring("if-none-match")),
    "PutObject ignores If-Match": (("PutObject",), _ignoring("if-match")),
    "DeleteObject ignores If-Match": (("DeleteObject",), _ignoring("if-match")),
    "GetObject ignores If-Match": (("GetObject",), _ignoring("if-match")),
    "PutObject refuses If-None-Match and overwrites": (
        ("PutObject",),
        _refusing("if-none-match"),
    ),
    "PutObject refuses If-Match and overwrites": (("PutObject",), _refusing("if-match")),
    "DeleteObject refuses If-Match and deletes": (
        ("DeleteObject",),
        _refusing("if-match"),
    ),
    "DeleteObjects says that one failed": (("DeleteObjects",), _partly),
    **{
        f"{name} answers {status} to a false condition": (
            (name,),
            _instead_of_412(status, error_body(code) if code else b"", **headers),
        )
        for name, headers in (("PutObject", {"ETag": '"e"'}), ("DeleteObject", {}))
        for status, code in ((200, ""), (304, ""), (409, "ConditionalRequestConflict"), (404, "NoSuchKey"))
    },
    # Names
    **{
        f"names {what}": (_ON_KEYS, _named(change))
        for what, change in (
            ("are in lower case", str.lower),
            ("are decoded once more", unquote),
            ("have spaces for +", lambda name: name.replace("+", " ")),
            ("are decomposed", lambda name: unicodedata.normalize("NFD", name)),
            ("are ASCII", lambda name: name.encode("ascii", "replace").decode()),
        )
    },
    "names are found in any case": (_ON_KEYS, _folded),
    # Listings that end early, or do not end where they are asked to
    **{
        f"ListObjectsV2 ends after {entries}": (("ListObjectsV2",), _few(entries, b"Contents"))
        for entries in (1, 2)
    },
    "ListMultipartUploads ends after 1": (("ListMultipartUploads",), _few(1, b"Upload")),
    **{
        f"{name} is cut off, and says not where": (
            (name,),
            _edit(rb"<IsTruncated>false", b"<IsTruncated>true"),
        )
        for name in _LISTINGS
    },
    "ListObjectsV2 ignores the delimiter": (("ListObjectsV2",), _unasked("delimiter")),
    "ListObjectsV2 ignores where to start": (("ListObjectsV2",), _unasked("start-after")),
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
        _joined(lambda parts: parts[:1]),
    ),
    "CompleteMultipartUpload keeps the last part only": (
        ("CompleteMultipartUpload",),
        _joined(lambda parts: parts[-1:]),
    ),
    "CompleteMultipartUpload joins the last part first": (
        ("CompleteMultipartUpload",),
        _joined(lambda parts: parts[::-1]),
    ),
    "CreateMultipartUpload names the pending upload again": (("CreateMultipartUpload",), _same_upload),
    "AbortMultipartUpload aborts all of the key": (("AbortMultipartUpload",), _all_uploads),
    "UploadPart shows the object": (("UploadPart",), _shown),
    "DeleteObjects deletes the first only": (("DeleteObjects",), _only_first),
    "HeadObject says a time in the future": (
        ("HeadObject",),
        _header("Last-Modified", "Sat, 06 Nov 2094 08:49:37 GMT"),
    ),
    "ListObjectsV2 says a time in the future": (
        ("ListObjectsV2",),
        _edit(rb"<LastModified>.*?<", b"<LastModified>2094-11-10T20:48:33Z<"),
    ),
    "ListMultipartUploads says a time in the future": (
        ("ListMultipartUploads",),
        _edit(rb"<Initiated>.*?<", b"<Initiated>2094-11-10T20:48:33Z<"),
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
        _header("Date", "not a date"),
    ),
}
# fmt: on
