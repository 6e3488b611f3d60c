"""An S3 server that lies about some operations, and the ways in which it can lie: see `lies` for the lies."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from tests.store.s3.deviant import DeviantStore
from tests.store.s3.fault_server import Say, Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def _place(seen: Seen) -> tuple[str, str]:
    """Return the bucket and the key of a request."""
    bucket, _, key = unquote(urlsplit(seen.path).path).removeprefix("/").partition("/")
    return bucket, key


def operation(seen: Seen) -> str:
    """Return S3's name of a request's operation."""
    parts = urlsplit(seen.path)
    _, key = _place(seen)
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
    """The server's objects and its answers, except that the answers to one operation are lies.

    Args:
        name: The lie's name.
        operations: Which operations it is about.
        lie: What is said of them.

    Attributes:
        name: The lie's name.
        told: How many lies were told.
        memo: What a lie remembers of each path.
    """

    def __init__(self, name: str, operations: Iterable[str], lie: Lie) -> None:
        super().__init__()
        self.name = name
        self._operations = frozenset(operations)
        self._lie = lie
        self.told = 0
        self.memo: dict[str, Any] = {}

    def keys(self, bucket: str) -> list[str]:
        """Return the keys of all objects of a bucket."""
        return [info.key for info in self.memory.list_objects(bucket, "")]

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


def nothing(status: int = 200, body: bytes = b"", **headers: str) -> Lie:
    """Claim success, and do nothing."""
    return lambda store, _seen, _do: _date(store, Say(status, body, headers))


def etags(change: Callable[[str], str]) -> Lie:
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


def listed(pattern: bytes, change: Callable[[list[bytes]], list[bytes]]) -> Lie:
    """List other entries, or in another order."""

    def lie(_store: LyingStore, _seen: Seen, do: Callable[[], Say]) -> Say:
        said = do()
        entries = re.findall(b"<%s>.*?</%s>" % (pattern, pattern), said.body)
        bare = said.body
        for entry in entries:
            bare = bare.replace(entry, b"", 1)
        return replace(said, body=re.sub(rb"(</\w+>)$", lambda end: b"".join(change(entries)) + end[1], bare))

    return lie


def _stamp(entry: bytes) -> bytes:
    stamp = re.search(rb"<(?:LastModified|Initiated|PartNumber)>(.*?)<", entry)
    return stamp[1] if stamp else b""


def without(which: Callable[..., bytes]) -> Callable[[list[bytes]], list[bytes]]:
    """Leave out the newest entry, which is the ``max``, or the oldest one."""
    order = lambda entry: (_stamp(entry), entry)  # noqa: E731
    return lambda entries: [entry for entry in entries if entry != which(entries, key=order)]


def edit(pattern: bytes, by: bytes) -> Lie:
    """Replace something in the body."""
    return lambda _store, _seen, do: replace(said := do(), body=re.sub(pattern, by, said.body))


def headers(change: Callable[[str, str], Iterator[tuple[str, str]]]) -> Lie:
    """Say other headers."""

    def lie(_store: LyingStore, _seen: Seen, do: Callable[[], Say]) -> Say:
        said = do()
        return replace(said, headers=dict(pair for item in said.headers.items() for pair in change(*item)))

    return lie


def header(name: str, value: str | None) -> Lie:
    """Say a header otherwise, or not at all."""

    def change(said: str, text: str) -> Iterator[tuple[str, str]]:
        if said != name:
            yield said, text
        elif value is not None:
            yield said, value

    return headers(change)


def says(status: int, body: bytes = b"") -> Lie:
    """Do it, and say something else."""
    return lambda _store, _seen, do: replace(do(), status=status, body=body)


def when(header: str, then: Lie) -> Lie:
    """Lie to requests with a header only."""
    return lambda store, seen, do: then(store, seen, do) if header in seen.headers else do()


def refusing(header: str) -> Lie:
    """Refuse if a condition is false, but do it anyway."""

    def lie(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
        said = do()
        if header in seen.headers and said.status == 412:
            DeviantStore.answer(store, _without_header(seen, header))
        return said

    return lie


def _without_header(seen: Seen, header: str) -> Seen:
    return replace(seen, headers={name: text for name, text in seen.headers.items() if name != header})


def ignoring(header: str) -> Lie:
    """Do what a request asks for, without its condition."""
    return lambda store, seen, _do: DeviantStore.answer(store, _without_header(seen, header))


def first(lie: Lie, times: int = 1) -> Lie:
    """Lie once for each path, and say the truth from then on."""

    def some(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
        before = store.memo.get(seen.path, 0)
        store.memo[seen.path] = before + 1
        return lie(store, seen, do) if before < times else do()

    return some


def stale(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Answer a read as the one before it."""
    now = do()
    before: Say = store.memo.get(seen.path, now)
    store.memo[seen.path] = now
    return before


def twice(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Complete an upload, and keep it pending."""
    bucket, key = _place(seen)
    uploads = store.memory._buckets[bucket].uploads
    kept = dict(uploads)
    said = do()
    uploads.update({name: pending for name, pending in kept.items() if pending.key == key})
    return said


def cut(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Store what is asked for, without its last byte."""
    return DeviantStore.answer(store, replace(seen, body=seen.body[:-1])) if seen.body else do()


def capitals(name: str, value: str) -> Iterator[tuple[str, str]]:
    """Say the name of metadata in capitals."""
    yield (name.upper() if name.startswith("x-amz-meta-") else name), value


def dropped(name: str, value: str) -> Iterator[tuple[str, str]]:
    """Leave out the metadata."""
    if not name.startswith("x-amz-meta-"):
        yield name, value


def lowered(name: str, value: str) -> Iterator[tuple[str, str]]:
    """Say the value of metadata in lower case."""
    yield name, value.lower() if name.startswith("x-amz-meta-") else value


def partly(_store: LyingStore, _seen: Seen, do: Callable[[], Say]) -> Say:
    """Name the last deleted object as failed."""
    said = do()
    head, found, tail = said.body.rpartition(b"<Deleted>")
    if not found:
        return said
    key, _, rest = tail.partition(b"</Deleted>")
    error = b"<Error>" + key + b"<Code>InternalError</Code><Message>try again</Message></Error>"
    return replace(said, body=head + error + rest)


def unnamed(store: LyingStore, seen: Seen, _do: Callable[[], Say]) -> Say:
    """Claim that all objects were deleted, and delete none."""
    keys = re.findall(rb"<Key>.*?</Key>", seen.body)
    deleted = b"".join(b"<Deleted>" + key + b"</Deleted>" for key in keys)
    return _date(store, Say(body=b"<DeleteResult>" + deleted + b"</DeleteResult>"))


def loop(store: LyingStore, seen: Seen, _do: Callable[[], Say]) -> Say:
    """Say that there is another page, at the same place for ever."""
    said = DeviantStore.answer(
        store, replace(seen, path=re.sub(r"(key-marker|upload-id-marker)=[^&]*", "", seen.path))
    )
    body = said.body.replace(b"<IsTruncated>false</IsTruncated>", b"<IsTruncated>true</IsTruncated>")
    again = b"<NextContinuationToken>t</NextContinuationToken><NextPartNumberMarker>1</NextPartNumberMarker>"
    markers = b"<NextKeyMarker>k</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>"
    return replace(said, body=re.sub(rb"(</\w+>)$", again + markers + rb"\1", body))


def beyond(_store: LyingStore, _seen: Seen, do: Callable[[], Say]) -> Say:
    """List a key that was not asked for."""
    said = do()
    entry = (
        b"<Contents><Key>elsewhere/file</Key><Size>1</Size><ETag>&quot;e&quot;</ETag>"
        b"<LastModified>2020-01-01T00:00:00Z</LastModified></Contents>"
    )
    return replace(said, body=re.sub(rb"(</\w+>)$", entry + rb"\1", said.body))


def from_token(change: Callable[[str], str]) -> Lie:
    """Continue a listing elsewhere than where its last page ended."""

    def lie(store: LyingStore, seen: Seen, _do: Callable[[], Say]) -> Say:
        path, _, query = seen.path.partition("?")
        asked = [
            (name, change(value) if name == "continuation-token" else value)
            for name, value in parse_qsl(query, keep_blank_values=True)
        ]
        return DeviantStore.answer(store, replace(seen, path=f"{path}?{urlencode(asked)}"))

    return lie


def new_tokens(store: LyingStore, seen: Seen, _do: Callable[[], Say]) -> Say:
    """Name a new continuation marker on each page, and always start over."""
    store.memo["pages"] = store.memo.get("pages", 0) + 1
    said = from_token(lambda _: "")(store, seen, Say)
    token = b"<NextContinuationToken>%d<" % store.memo["pages"]
    return replace(said, body=re.sub(rb"<NextContinuationToken>.*?<", token, said.body))


def whole(_store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Answer a request for a range with the whole object, and 206."""
    if "range" not in seen.headers:
        return do()
    said = DeviantStore.answer(_store, _without_header(seen, "range"))
    length = len(said.body)
    return replace(
        said, status=206, headers=said.headers | {"Content-Range": f"bytes 0-{length - 1}/{length}"}
    )


def shorter(_store: LyingStore, _seen: Seen, do: Callable[[], Say]) -> Say:
    """Read without the last byte."""
    return replace(said := do(), body=said.body[:-1])


def named(change: Callable[[str], str]) -> Lie:
    """Take a key for another one, in requests; answers then name that one."""

    def lie(store: LyingStore, seen: Seen, _do: Callable[[], Say]) -> Say:
        parts = urlsplit(seen.path)
        query = parse_qsl(parts.query, keep_blank_values=True)
        renamed = [(n, change(v) if n in ("prefix", "start-after") else v) for n, v in query]
        bucket, key = _place(seen)
        path = quote(f"/{bucket}/{change(key)}" if key else parts.path)
        body = seen.body
        if b"<Delete" in body:
            body = re.sub(rb"(?<=<Key>).*?(?=</Key>)", lambda key: change(key[0].decode()).encode(), body)
        asked = urlencode(renamed)
        return DeviantStore.answer(store, replace(seen, path=f"{path}?{asked}" if asked else path, body=body))

    return lie


def folded(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Find an object by its name in another case, and keep the name that it was written with."""
    bucket, key = _place(seen)
    if not key:
        return do()
    known = {info.key.casefold(): info.key for info in store.memory.list_objects(bucket, "")}
    fold = unicodedata.normalize("NFC", key).casefold()
    return named(lambda name: known.get(fold, name))(store, seen, do)


def unasked(name: str) -> Lie:
    """Ignore a parameter of the request."""

    def lie(store: LyingStore, seen: Seen, _do: Callable[[], Say]) -> Say:
        path, _, query = seen.path.partition("?")
        kept = "&".join(pair for pair in query.split("&") if not pair.startswith(f"{name}="))
        return DeviantStore.answer(store, replace(seen, path=f"{path}?{kept}"))

    return lie


def joined(change: Callable[[list[bytes]], list[bytes]]) -> Lie:
    """Complete an upload of several parts with others of them, or in another order."""

    def lie(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
        bucket, key = _place(seen)
        asked = dict(parse_qsl(urlsplit(seen.path).query))
        pending = store.memory._buckets[bucket].uploads.get(asked.get("uploadId", ""))
        said = do()
        if pending is not None and len(pending.parts) > 1:
            bodies = [body for _, (_, body) in sorted(pending.parts.items())]
            store.memory.put(bucket, key, b"".join(change(bodies)))
        return said

    return lie


def same_upload(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Start no second upload of a key: name the pending one again."""
    bucket, key = _place(seen)
    for upload in store.memory.list_uploads(bucket, key):
        if upload.key == key:
            said = f"<InitiateMultipartUploadResult><UploadId>{upload.upload_id}</UploadId>"
            return _date(store, Say(body=f"{said}</InitiateMultipartUploadResult>".encode()))
    return do()


def all_uploads(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Abort every upload of the key."""
    bucket, key = _place(seen)
    said = do()
    for upload in list(store.memory.list_uploads(bucket, key)):
        if upload.key == key:
            store.memory.abort_upload(bucket, key, upload.upload_id)
    return said


def risen(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Write an object that is not there in spite of a condition on its ETag."""
    bucket, key = _place(seen)
    if "if-match" in seen.headers and key not in store.keys(bucket):
        return DeviantStore.answer(store, _without_header(seen, "if-match"))
    return do()


def removing(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Begin an upload, or end a pending one, and remove the object that is there."""
    bucket, key = _place(seen)
    upload_id = dict(parse_qsl(urlsplit(seen.path).query)).get("uploadId")
    if upload_id is None or upload_id in store.memory._buckets[bucket].uploads:
        store.memory.delete(bucket, key)
    return do()


def below(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Delete everything whose key begins with the object's."""
    bucket, key = _place(seen)
    said = do()
    for name in store.keys(bucket) if said.status == 204 else ():
        if name.startswith(key):
            store.memory.delete(bucket, name)
    return said


def shown(store: LyingStore, seen: Seen, do: Callable[[], Say]) -> Say:
    """Show an object as soon as its first part is sent."""
    bucket, key = _place(seen)
    store.memory.put(bucket, key, seen.body)
    return do()


def only_first(store: LyingStore, seen: Seen, _do: Callable[[], Say]) -> Say:
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


def instead_of_412(status: int, body: bytes = b"", **headers: str) -> Lie:
    """Answer otherwise where a condition is false, and do nothing."""
    return lambda _store, _seen, do: (
        said if (said := do()).status != 412 else Say(status, body, {"Date": said.headers["Date"]} | headers)
    )
