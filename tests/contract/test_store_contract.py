"""What every store owes the commit protocol; exceptions are in `deviations`."""

from __future__ import annotations

import hashlib
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from airflow_s3commit.exceptions import (
    NoSuchBucket,
    NoSuchKey,
    NoSuchUpload,
    OutcomeUnknown,
    PreconditionFailed,
    S3CommitError,
    StoreRejected,
    TooLarge,
)
from airflow_s3commit.store.base import (
    MIN_PART_BYTES,
    Abort,
    Call,
    Complete,
    DeleteMany,
    Fetched,
    Get,
    Head,
    ObjectInfo,
    ObjectToDelete,
    Outcome,
    Written,
)
from airflow_s3commit.store.execute import in_threads, make_call
from tests.contract.conftest import STORES_AND_TRANSPORTS
from tests.contract.deviations import Behaviour

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_s3commit import ObjectStore
    from tests.contract.conftest import Subject

ABSENT_BUCKET = "there-is-no-such-bucket"

AWKWARD_NAMES = [
    "dt=2013-01-01/part-00000 (1).snappy.parquet",
    "city=Zürich/a+b&c=d%20e%2F.parquet",
    "it's/<x>*!~$,;:@.json",
    "日本/ü.parquet",
    "_s3commit/manifests/1.json",
]

#: Names in the order of their bytes, which is another one once they are quoted.
QUOTED_NAMES = [f"dt={number}/a+b c%20{name}" for number in range(3) for name in ("=", "d", "é")]

#: Every verb that can report a missing bucket, used on one.
VERBS: dict[str, Callable[[ObjectStore], object]] = {
    "check_bucket": lambda store: store.check_bucket(ABSENT_BUCKET),
    "stale_upload_days": lambda store: store.stale_upload_days(ABSENT_BUCKET, "p/"),
    "get": lambda store: store.get(ABSENT_BUCKET, "k"),
    "put": lambda store: store.put(ABSENT_BUCKET, "k", b""),
    "delete": lambda store: store.delete(ABSENT_BUCKET, "k"),
    "delete_many": lambda store: store.delete_many(ABSENT_BUCKET, [ObjectToDelete("k")]),
    "list_objects": lambda store: list(store.list_objects(ABSENT_BUCKET, "p/")),
    "create_upload": lambda store: store.create_upload(ABSENT_BUCKET, "k", metadata={}, content_type="a/b"),
    "upload_part": lambda store: store.upload_part(ABSENT_BUCKET, "k", "u", 1, b""),
    "complete_upload": lambda store: store.complete_upload(ABSENT_BUCKET, "k", "u", ["e"]),
    "abort_upload": lambda store: store.abort_upload(ABSENT_BUCKET, "k", "u"),
    "list_uploads": lambda store: list(store.list_uploads(ABSENT_BUCKET, "p/")),
    "list_parts": lambda store: list(store.list_parts(ABSENT_BUCKET, "k", "u")),
}


def md5(body: bytes) -> str:
    """Return the ETag of an object written in one piece."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def multipart_etag(*bodies: bytes) -> str:
    """Return the ETag of an object made of these parts."""
    joined = b"".join(bytes.fromhex(md5(body)) for body in bodies)
    return f"{md5(joined)}-{len(bodies)}"


class TestBuckets:
    def test_an_existing_bucket_answers(self, subject: Subject) -> None:
        """Checking an existing bucket returns."""
        subject.store.check_bucket(subject.bucket)

    @pytest.mark.parametrize("verb", sorted(VERBS))
    def test_a_missing_bucket_is_named(self, subject: Subject, verb: str) -> None:
        """Every verb reports a bucket that does not exist as missing."""
        with pytest.raises(NoSuchBucket, match=ABSENT_BUCKET):
            VERBS[verb](subject.store)

    def test_head_in_a_missing_bucket_finds_nothing(self, subject: Subject) -> None:
        """Describing an object of a missing bucket says that something is missing: bucket or object."""
        expected = NoSuchKey if subject.deviates(Behaviour.BUCKET_IS_NAMED_BY_HEAD) else NoSuchBucket
        with pytest.raises(expected):
            subject.store.head(ABSENT_BUCKET, "k")

    def test_without_a_rule_no_upload_grows_stale(self, subject: Subject) -> None:
        """A bucket without lifecycle rules keeps pending uploads indefinitely."""
        assert subject.store.stale_upload_days(subject.bucket, subject.prefix) is None


class TestObjects:
    @pytest.mark.parametrize("body", [b"{}", b"", b"\x00\xff" * 70_000], ids=["small", "empty", "binary"])
    def test_an_object_is_read_back(self, subject: Subject, body: bytes) -> None:
        """An object is read back byte for byte, with the ETag that its write returned."""
        key = subject.key("a.json")
        written = subject.store.put(subject.bucket, key, body)
        fetched = subject.store.get(subject.bucket, key)
        assert fetched.body == body
        assert written.etag == fetched.info.etag == md5(body)
        assert (fetched.info.key, fetched.info.size) == (key, len(body))

    def test_times_are_the_stores_own(self, subject: Subject) -> None:
        """Times of writing, reading and last change are one clock's, in seconds since the epoch."""
        key = subject.key("a.json")
        written = subject.store.put(subject.bucket, key, b"x")
        fetched = subject.store.get(subject.bucket, key)
        assert 1_600_000_000 < written.date <= fetched.date
        assert abs(fetched.info.modified - written.date) <= 2

    def test_head_says_what_get_says(self, subject: Subject) -> None:
        """HEAD and GET describe an object alike."""
        subject.put("a.json", b"12345")
        key = subject.key("a.json")
        assert subject.store.head(subject.bucket, key) == subject.store.get(subject.bucket, key).info

    def test_a_missing_object_is_named(self, subject: Subject) -> None:
        """Reading or describing a missing object names it."""
        for verb in (subject.store.get, subject.store.head):
            with pytest.raises(NoSuchKey, match=r"missing\.json"):
                verb(subject.bucket, subject.key("missing.json"))

    @pytest.mark.parametrize("name", AWKWARD_NAMES)
    def test_keys_come_back_as_they_went(self, subject: Subject, name: str) -> None:
        """A key with characters that URLs and XML quote is the same key in every verb."""
        etag = subject.put(name, name.encode())
        assert subject.store.get(subject.bucket, subject.key(name)).body == name.encode()
        assert subject.names() == [name]
        assert subject.store.delete_many(subject.bucket, [ObjectToDelete(subject.key(name), etag)]) == []
        assert subject.names() == []


#: Headers that every store keeps and tells.
TOLD_BY_ALL = {
    "cache-control": "max-age=60",
    "content-disposition": "attachment; filename=a.csv",
    "content-encoding": "gzip",
    "content-language": "de",
    "expires": "Thu, 01 Dec 2033 16:00:00 GMT",
    "x-amz-server-side-encryption": "AES256",
    "x-amz-storage-class": "STANDARD_IA",
}


class TestHeaders:
    @pytest.mark.parametrize("verb", ["put", "create_upload"])
    def test_headers_are_the_objects(self, subject: Subject, verb: str) -> None:
        """What describes an object when it is written, in one piece or several, HEAD and GET tell again."""
        key, store = subject.key("a.csv"), subject.store
        tags = {"x-amz-tagging": "team=data%20%2B%20maps&empty="}
        headers = {**TOLD_BY_ALL, **tags, "x-amz-acl": "private", "x-amz-meta-team": "maps"}
        if verb == "put":
            store.put(subject.bucket, key, b"1", headers=headers)
        else:
            upload_id = store.create_upload(
                subject.bucket, key, metadata={"s3commit-job": "j-1"}, content_type="a/b", headers=headers
            )
            etags = [store.upload_part(subject.bucket, key, upload_id, 1, b"1")]
            store.complete_upload(subject.bucket, key, upload_id, etags)
        ours = {"s3commit-job": "j-1"} if verb == "create_upload" else {}
        for info in (store.head(subject.bucket, key), store.get(subject.bucket, key).info):
            assert info.metadata == {"team": "maps", **ours}
            assert TOLD_BY_ALL.items() <= info.headers.items()
            assert info.headers.get("x-amz-tagging-count") == "2"
        assert subject.names() == ["a.csv"]

    def test_encryption_is_told(self, subject: Subject) -> None:
        """An object says how it is encrypted, so that a weaker encryption than requested shows."""
        key, headers = subject.key("a"), {"x-amz-server-side-encryption": "aws:kms:dsse"}
        subject.store.put(subject.bucket, key, b"1", headers=headers)
        told = subject.store.head(subject.bucket, key).headers
        assert told == ({} if subject.deviates(Behaviour.ENCRYPTS_AS_ASKED) else headers)

    def test_other_headers_are_rejected(self, subject: Subject) -> None:
        """A header that describes no object is never sent."""
        with pytest.raises(StoreRejected, match="x-amz-grant-read"):
            subject.store.put(subject.bucket, subject.key("a"), b"", headers={"x-amz-grant-read": "id=1"})
        assert subject.names() == []


class TestConditions:
    def test_create_only_meets_an_object(self, subject: Subject) -> None:
        """A create-only write over an existing object is refused and changes nothing."""
        key = subject.key("job.json")
        subject.store.put(subject.bucket, key, b"first", if_none_match=True)
        with pytest.raises(PreconditionFailed, match=r"job\.json"):
            subject.store.put(subject.bucket, key, b"second", if_none_match=True)
        assert subject.store.get(subject.bucket, key).body == b"first"

    def test_compare_and_swap(self, subject: Subject) -> None:
        """A write conditional on an ETag succeeds once; repeating it is refused."""
        key = subject.key("state.json")
        etag = subject.put("state.json", b"open")
        subject.store.put(subject.bucket, key, b"sealed", if_match=etag)
        with pytest.raises(PreconditionFailed):
            subject.store.put(subject.bucket, key, b"aborting", if_match=etag)
        assert subject.store.get(subject.bucket, key).body == b"sealed"

    def test_swap_of_nothing_is_refused(self, subject: Subject) -> None:
        """A write conditional on an ETag is refused if there is no object."""
        with pytest.raises(PreconditionFailed):
            subject.store.put(subject.bucket, subject.key("state.json"), b"x", if_match=md5(b"y"))
        assert subject.names() == []


class TestDeletes:
    def test_delete_is_repeatable(self, subject: Subject) -> None:
        """A deleted object is gone, and deleting it again is not an error."""
        subject.put("a")
        for _ in range(2):
            subject.store.delete(subject.bucket, subject.key("a"))
        assert subject.names() == []

    def test_delete_of_another_version_is_refused(self, subject: Subject) -> None:
        """A delete conditional on an ETag leaves an object that has another one."""
        etag = subject.put("a", b"1")
        with pytest.raises(PreconditionFailed):
            subject.store.delete(subject.bucket, subject.key("a"), if_match=md5(b"2"))
        assert subject.names() == ["a"]
        subject.store.delete(subject.bucket, subject.key("a"), if_match=etag)
        assert subject.names() == []

    def test_conditional_delete_of_nothing(self, subject: Subject) -> None:
        """An object that is not there is deleted already, whatever ETag it should have had."""
        subject.store.delete(subject.bucket, subject.key("a"), if_match=md5(b"1"))

    def test_bulk_delete(self, subject: Subject) -> None:
        """A bulk delete deletes what it names and nothing else; what is not there is no failure."""
        for name in ("a", "b", "c"):
            subject.put(name)
        objects = [ObjectToDelete(subject.key(name)) for name in ("a", "b", "missing")]
        assert subject.store.delete_many(subject.bucket, objects) == []
        assert subject.names() == ["c"]

    @pytest.mark.parametrize("character", ["\x01", "\x0b", "\x1f", "\ufffe"])
    def test_a_key_that_xml_cannot_hold_is_deleted(self, subject: Subject, character: str) -> None:
        """A bulk delete takes any key that the store took, by `delete_many` and by `perform`."""
        for act in (
            lambda objects: subject.store.delete_many(subject.bucket, objects),
            lambda objects: dict(subject.store.perform([(0, DeleteMany(subject.bucket, objects))]))[0],
        ):
            name = f"a{character}b"
            subject.put(name)
            subject.put("plain")
            assert act([ObjectToDelete(subject.key(name)), ObjectToDelete(subject.key("plain"))]) == []
            assert subject.names() == []

    def test_bulk_delete_of_nothing(self, subject: Subject) -> None:
        """A bulk delete that names nothing does nothing."""
        assert subject.store.delete_many(subject.bucket, []) == []

    def test_bulk_delete_heeds_etags(self, subject: Subject) -> None:
        """A bulk delete leaves, and reports, an object whose ETag is not the given one."""
        kept, gone = subject.key("changed"), subject.key("same")
        subject.put("changed", b"new")
        objects = [
            ObjectToDelete(kept, md5(b"old")),
            ObjectToDelete(gone, subject.put("same")),
            ObjectToDelete(gone + "x", md5(b"")),
        ]
        failures = subject.store.delete_many(subject.bucket, objects)
        if subject.deviates(Behaviour.BULK_DELETE_HEEDS_ETAG):
            assert (failures, subject.names()) == ([], [])
        else:
            assert [(failure.key, failure.code) for failure in failures] == [(kept, "PreconditionFailed")]
            assert subject.names() == ["changed"]


class TestListings:
    def test_all_below_a_prefix(self, subject: Subject) -> None:
        """A listing has every object below the prefix once, over as many pages as it takes, and no other."""
        names = [f"d{i % 3}/f{i}" for i in range(7)]
        etags = {subject.key(name): subject.put(name, name.encode()) for name in names}
        subject.store.put(subject.bucket, subject.prefix[:-1] + "0/other", b"")
        listed = list(subject.store.list_objects(subject.bucket, subject.prefix))
        assert sorted(info.key for info in listed) == sorted(etags)
        assert {info.key: info.etag for info in listed} == etags
        assert {info.size for info in listed} == {5}

    def test_pages_of_quoted_names(self, subject: Subject) -> None:
        """Names that URLs quote are listed once each, over several pages and from a key on."""
        for name in QUOTED_NAMES:
            subject.put(name)
        assert subject.names() == QUOTED_NAMES
        for number, name in enumerate(QUOTED_NAMES, start=1):
            found = subject.store.list_objects(subject.bucket, subject.prefix, start_after=subject.key(name))
            listed = [info.key.removeprefix(subject.prefix) for info in found]
            assert sorted(listed) == QUOTED_NAMES[number:]

    def test_a_listing_describes_as_head_does(self, subject: Subject) -> None:
        """Size, ETag and time in a listing are those of HEAD, also for an object made of parts."""
        upload_id, etags = subject.upload("a", b"123")
        subject.store.complete_upload(subject.bucket, subject.key("a"), upload_id, etags)
        (listed,) = subject.store.list_objects(subject.bucket, subject.prefix)
        head = subject.store.head(subject.bucket, subject.key("a"))
        assert (listed.key, listed.size, listed.etag) == (head.key, head.size, head.etag)
        assert abs(listed.modified - head.modified) < 1

    def test_one_level(self, subject: Subject) -> None:
        """A listing that does not recurse has only what is directly below the prefix."""
        for name in ("a", "d/b", "d/e/c", "z", "y"):
            subject.put(name)
        assert subject.names(recursive=False) == ["a", "y", "z"]

    def test_from_a_key_on(self, subject: Subject) -> None:
        """A listing that starts after a key has what comes behind it."""
        for name in ("a", "b", "c", "d", "e"):
            subject.put(name)
        listed = subject.store.list_objects(subject.bucket, subject.prefix, start_after=subject.key("b"))
        assert sorted(info.key for info in listed) == [subject.key(name) for name in ("c", "d", "e")]

    def test_of_nothing(self, subject: Subject) -> None:
        """A prefix without objects lists nothing."""
        assert subject.names() == []


class TestUploads:
    def test_pending_is_invisible(self, subject: Subject) -> None:
        """Until it is completed an upload's object is neither found nor listed, and the upload is."""
        upload_id, _ = subject.upload("a", b"1")
        with pytest.raises(NoSuchKey):
            subject.store.head(subject.bucket, subject.key("a"))
        assert subject.names() == []
        (pending,) = subject.store.list_uploads(subject.bucket, subject.prefix)
        assert (pending.key, pending.upload_id) == (subject.key("a"), upload_id)

    def test_completion_makes_the_object(self, subject: Subject) -> None:
        """A completed upload is one object of all its parts, with its metadata, and pending no more."""
        bodies = (b"a" * MIN_PART_BYTES, b"b")
        upload_id, etags = subject.upload("a", *bodies)
        etag = subject.store.complete_upload(subject.bucket, subject.key("a"), upload_id, etags)
        fetched = subject.store.get(subject.bucket, subject.key("a"))
        assert fetched.body == b"".join(bodies)
        assert etag == fetched.info.etag == multipart_etag(*bodies)
        assert fetched.info.metadata == {"s3commit-job": "j-1"}
        assert list(subject.store.list_uploads(subject.bucket, subject.prefix)) == []

    def test_an_upload_replaces(self, subject: Subject) -> None:
        """Completing an upload over an existing object replaces it at that moment and not before."""
        subject.put("a", b"old")
        upload_id, etags = subject.upload("a", b"new")
        assert subject.store.get(subject.bucket, subject.key("a")).body == b"old"
        subject.store.complete_upload(subject.bucket, subject.key("a"), upload_id, etags)
        assert subject.store.get(subject.bucket, subject.key("a")).body == b"new"

    def test_parts_are_listed(self, subject: Subject) -> None:
        """The parts of a pending upload are listed with number, ETag and size, over several pages."""
        bodies = [b"a", b"bb", b"ccc", b"dddd", b""]
        upload_id, etags = subject.upload("a", *bodies)
        parts = list(subject.store.list_parts(subject.bucket, subject.key("a"), upload_id))
        assert [part.number for part in parts] == [1, 2, 3, 4, 5]
        assert [part.etag for part in parts] == etags == [md5(body) for body in bodies]
        assert [part.size for part in parts] == [len(body) for body in bodies]

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_a_part_may_be_any_buffer(self, subject: Subject, kind: Callable[[bytes], bytes]) -> None:
        """Bytes, byte arrays and views upload the same part."""
        _, etags = subject.upload("a", kind(b"12345"))
        assert etags == [md5(b"12345")]

    def test_an_empty_part(self, subject: Subject) -> None:
        """An upload of one part without bytes makes an empty object."""
        upload_id, etags = subject.upload("a", b"")
        subject.store.complete_upload(subject.bucket, subject.key("a"), upload_id, etags)
        assert subject.store.head(subject.bucket, subject.key("a")).size == 0

    def test_a_part_sent_again_counts_once(self, subject: Subject) -> None:
        """If a part is sent twice, the object has the one whose ETag the completion names."""
        upload_id, _ = subject.upload("a", b"old")
        etag = subject.store.upload_part(subject.bucket, subject.key("a"), upload_id, 1, b"new")
        subject.store.complete_upload(subject.bucket, subject.key("a"), upload_id, [etag])
        assert subject.store.get(subject.bucket, subject.key("a")).body == b"new"

    def test_part_numbers_end(self, subject: Subject) -> None:
        """A part beyond the ten thousandth is rejected."""
        upload_id, _ = subject.upload("a")
        with pytest.raises(StoreRejected):
            subject.store.upload_part(subject.bucket, subject.key("a"), upload_id, 10_001, b"1")

    def test_a_wrong_part_is_rejected(self, subject: Subject) -> None:
        """Completion with another ETag, or with a missing part, fails and leaves the upload."""
        upload_id, etags = subject.upload("a", b"1")
        with pytest.raises(StoreRejected) as caught:
            subject.store.complete_upload(subject.bucket, subject.key("a"), upload_id, [md5(b"2")])
        assert caught.value.code == "InvalidPart"
        with pytest.raises(StoreRejected):
            subject.store.complete_upload(subject.bucket, subject.key("a"), upload_id, [*etags, md5(b"2")])
        subject.store.complete_upload(subject.bucket, subject.key("a"), upload_id, etags)
        assert subject.names() == ["a"]

    def test_a_small_part_is_rejected(self, subject: Subject) -> None:
        """Only the last part may be smaller than S3's limit."""
        upload_id, etags = subject.upload("a", b"1", b"2")
        with pytest.raises(StoreRejected) as caught:
            subject.store.complete_upload(subject.bucket, subject.key("a"), upload_id, etags)
        assert caught.value.code == "EntityTooSmall"

    def test_no_parts_are_rejected(self, subject: Subject) -> None:
        """An upload cannot be completed with no parts; it stays pending."""
        expected = NoSuchUpload if subject.deviates(Behaviour.NO_PARTS_IS_REJECTED) else StoreRejected
        upload_id, _ = subject.upload("a", b"1")
        with pytest.raises(expected):
            subject.store.complete_upload(subject.bucket, subject.key("a"), upload_id, [])
        assert len(list(subject.store.list_uploads(subject.bucket, subject.prefix))) == 1

    def test_completing_again_changes_nothing(self, subject: Subject) -> None:
        """A completion repeated while its object is there returns the same ETag."""
        upload_id, etags = subject.upload("a", b"1")
        complete = subject.store.complete_upload
        first = complete(subject.bucket, subject.key("a"), upload_id, etags)
        assert complete(subject.bucket, subject.key("a"), upload_id, etags) == first

    def test_completing_after_the_object_went(self, subject: Subject) -> None:
        """A completion repeated when its object was deleted brings nothing back."""
        upload_id, etags = subject.upload("a", b"1")
        subject.store.complete_upload(subject.bucket, subject.key("a"), upload_id, etags)
        subject.store.delete(subject.bucket, subject.key("a"))
        with pytest.raises(gone_upload(subject)):
            subject.store.complete_upload(subject.bucket, subject.key("a"), upload_id, etags)
        assert subject.names() == []

    def test_two_uploads_of_one_key(self, subject: Subject) -> None:
        """Two uploads of one key are both listed and completed independently; the last one is the object."""
        first, first_etags = subject.upload("a", b"1")
        second, second_etags = subject.upload("a", b"2")
        pending = subject.store.list_uploads(subject.bucket, subject.prefix)
        assert {upload.upload_id for upload in pending} == {first, second}
        subject.store.complete_upload(subject.bucket, subject.key("a"), second, second_etags)
        subject.store.complete_upload(subject.bucket, subject.key("a"), first, first_etags)
        assert subject.store.get(subject.bucket, subject.key("a")).body == b"1"

    def test_pending_uploads_are_listed_by_prefix(self, subject: Subject) -> None:
        """Every upload below a prefix is listed once, over several pages, and none beside it."""
        names = [f"d/{number}" for number in range(5)]
        begun = {subject.upload(name)[0] for name in names}
        subject.upload("e/other")
        listed = list(subject.store.list_uploads(subject.bucket, subject.key("d/")))
        assert sorted(upload.key for upload in listed) == [subject.key(name) for name in names]
        assert {upload.upload_id for upload in listed} == begun

    def test_pages_of_quoted_uploads(self, subject: Subject) -> None:
        """Uploads whose names URLs quote are listed once each, over several pages."""
        for name in QUOTED_NAMES:
            subject.upload(name)
        listed = [upload.key for upload in subject.store.list_uploads(subject.bucket, subject.key("dt="))]
        assert sorted(listed) == [subject.key(name) for name in QUOTED_NAMES]

    def test_an_upload_tells_its_age(self, subject: Subject) -> None:
        """A pending upload says when it was begun, by the store's clock."""
        written = subject.store.put(subject.bucket, subject.key("now"), b"")
        subject.upload("a")
        (upload,) = subject.store.list_uploads(subject.bucket, subject.prefix)
        is_true = abs(upload.initiated - written.date) <= 5
        assert is_true is not subject.deviates(Behaviour.INITIATED_IS_TRUE)


class TestAborts:
    def test_an_aborted_upload_is_gone(self, subject: Subject) -> None:
        """After an abort the upload is not listed, takes no part and cannot be completed."""
        upload_id, etags = subject.upload("a", b"1")
        key = subject.key("a")
        subject.store.abort_upload(subject.bucket, key, upload_id)
        assert list(subject.store.list_uploads(subject.bucket, subject.prefix)) == []
        with pytest.raises(gone_upload(subject)):
            subject.store.upload_part(subject.bucket, key, upload_id, 1, b"1")
        with pytest.raises(gone_upload(subject)):
            subject.store.complete_upload(subject.bucket, key, upload_id, etags)
        with pytest.raises(NoSuchUpload):
            list(subject.store.list_parts(subject.bucket, key, upload_id))
        assert subject.names() == []

    def test_abort_is_repeatable(self, subject: Subject) -> None:
        """Aborting an upload again, or one that never existed, is not an error."""
        upload_id, _ = subject.upload("a", b"1")
        for one in (upload_id, upload_id, uuid.uuid4().hex):
            subject.store.abort_upload(subject.bucket, subject.key("a"), one)

    def test_abort_after_completion_keeps_the_object(self, subject: Subject) -> None:
        """Aborting a completed upload leaves its object alone."""
        upload_id, etags = subject.upload("a", b"1")
        subject.store.complete_upload(subject.bucket, subject.key("a"), upload_id, etags)
        subject.store.abort_upload(subject.bucket, subject.key("a"), upload_id)
        assert subject.names() == ["a"]

    def test_an_id_is_good_for_its_key_only(self, subject: Subject) -> None:
        """Aborting an upload's id under another key leaves it pending."""
        upload_id, _ = subject.upload("a", b"1")
        subject.store.abort_upload(subject.bucket, subject.key("b"), upload_id)
        left = [upload.upload_id for upload in subject.store.list_uploads(subject.bucket, subject.prefix)]
        assert left == ([] if subject.deviates(Behaviour.UPLOAD_BELONGS_TO_KEY) else [upload_id])


class TestRanges:
    """Objects that are too long to be read at once."""

    def test_pieces_make_up_the_object(self, subject: Subject) -> None:
        """Ranges hold the bytes that they name, the last one what is left."""
        etag = subject.put("a", b"0123456789")
        pieces = [
            subject.store.get_range(subject.bucket, subject.key("a"), first, 4, etag=etag)
            for first in (0, 4, 8)
        ]
        assert pieces == [b"0123", b"4567", b"89"]

    def test_only_of_the_object_that_is_meant(self, subject: Subject) -> None:
        """A range of an object that was overwritten meanwhile, or is gone, is not read."""
        etag = subject.put("a", b"0123456789")
        subject.put("a", b"9876543210")
        with pytest.raises(PreconditionFailed):
            subject.store.get_range(subject.bucket, subject.key("a"), 0, 4, etag=etag)
        with pytest.raises(NoSuchKey):
            subject.store.get_range(subject.bucket, subject.key("b"), 0, 4, etag=etag)


def at_once(put: Callable[[bytes], Written]) -> dict[bytes, Any]:
    """Return what becomes of eight writes from threads of their own, by their bodies."""

    def outcome(body: bytes) -> Written | S3CommitError:
        try:
            return put(body)
        except S3CommitError as error:
            return error

    bodies = [str(number).encode() for number in range(8)]
    return dict(zip(bodies, in_threads(outcome, bodies, 8), strict=True))


@pytest.mark.parametrize("subject", STORES_AND_TRANSPORTS, indirect=True)
class TestManyCalls:
    def test_one_of_many_creates(self, subject: Subject) -> None:
        """Of concurrent create-only writes of one key exactly one goes through, and its content stays."""
        key = subject.key("state.json")
        made = at_once(lambda body: subject.store.put(subject.bucket, key, body, if_none_match=True))
        (winner,) = [body for body, outcome in made.items() if isinstance(outcome, Written)]
        fetched = subject.store.get(subject.bucket, key)
        assert (fetched.body, fetched.info.etag) == (winner, made.pop(winner).etag)
        assert {type(outcome) for outcome in made.values()} == {PreconditionFailed}

    def test_one_of_many_swaps(self, subject: Subject) -> None:
        """Of concurrent writes over one ETag exactly one goes through, and its content stays."""
        etag, key = subject.put("state.json"), subject.key("state.json")
        made = at_once(lambda body: subject.store.put(subject.bucket, key, body, if_match=etag))
        (winner,) = [body for body, outcome in made.items() if isinstance(outcome, Written)]
        assert subject.store.get(subject.bucket, key).body == winner

    def test_one_upload_completed_by_many(self, subject: Subject) -> None:
        """An upload that several processes complete at once is one object, with all of its content."""
        body = b"a" * 100_000
        for name in map(str, range(8)):
            upload_id, etags = subject.upload(name, body)
            key = subject.key(name)
            complete = Complete(subject.bucket, key, upload_id, etags)
            made = list(in_threads(partial(make_call, subject.store), [complete] * 4, 4))
            assert multipart_etag(body) in made
            assert {type(outcome) for outcome in made} <= {str, NoSuchUpload, OutcomeUnknown}
            assert subject.store.get(subject.bucket, key).body == body

    def test_every_call_has_its_outcome(self, subject: Subject) -> None:
        """Of many calls each one's tag comes back once, with its value, or its error as a value."""
        bucket = subject.bucket
        done, etags = subject.upload("done", b"1")
        dropped, _ = subject.upload("dropped", b"2")
        head_etag = subject.put("there", b"3")
        old_etag = subject.put("old", b"4")
        calls: dict[str, Call] = {
            "complete": Complete(bucket, subject.key("done"), done, etags),
            "abort": Abort(bucket, subject.key("dropped"), dropped),
            "head": Head(bucket, subject.key("there")),
            "get": Get(bucket, subject.key("there")),
            "missing": Get(bucket, subject.key("missing")),
            "delete": DeleteMany(
                bucket, [ObjectToDelete(subject.key("old"), old_etag), ObjectToDelete(subject.key("never"))]
            ),
        }
        outcomes: dict[str, Outcome] = dict(subject.store.perform(calls.items()))
        assert set(outcomes) == set(calls)
        assert outcomes["complete"] == multipart_etag(b"1")
        assert outcomes["abort"] is None
        assert isinstance(outcomes["head"], ObjectInfo)
        assert outcomes["head"].etag == head_etag
        assert isinstance(outcomes["get"], Fetched)
        assert isinstance(outcomes["missing"], NoSuchKey)
        assert outcomes["delete"] == []
        assert subject.names() == ["done", "there"]

    def test_no_more_is_read_than_wanted(self, subject: Subject) -> None:
        """An object that is longer than its reader's limit is refused by name and size, in verb and call."""
        size = 3 * 1024 * 1024
        subject.put("long", bytes(size))
        subject.put("short", b"12345")
        bucket, key = subject.bucket, subject.key("long")
        calls: dict[str, Call] = {
            "whole": Get(bucket, key, limit=size),
            "long": Get(bucket, key, limit=size - 1),
            "far too long": Get(bucket, key, limit=4),
            "short": Get(bucket, subject.key("short"), limit=5),
            "short, but too long": Get(bucket, subject.key("short"), limit=4),
            "missing": Get(bucket, subject.key("missing"), limit=4),
        }
        outcomes: dict[str, Outcome] = dict(subject.store.perform(calls.items()))
        bodies = {name: len(found.body) for name, found in outcomes.items() if isinstance(found, Fetched)}
        refused = {name: str(error) for name, error in outcomes.items() if isinstance(error, TooLarge)}
        assert bodies == {"whole": size, "short": 5}
        assert refused.keys() == {"long", "far too long", "short, but too long"}
        assert all(
            f"s3://{bucket}/{key} has {size} bytes" in refused[name] for name in ("long", "far too long")
        )
        assert isinstance(outcomes["missing"], NoSuchKey)
        with pytest.raises(TooLarge, match=f"has {size} bytes"):
            subject.store.get(bucket, key, limit=size - 1)

    @pytest.mark.parametrize("name", AWKWARD_NAMES)
    def test_keys_are_the_same_keys(self, subject: Subject, name: str) -> None:
        """A key with characters that URLs quote is in every call the key that it is in its verb."""
        upload_id, etags = subject.upload(name, name.encode())
        (completed,) = subject.store.perform(
            [("c", Complete(subject.bucket, subject.key(name), upload_id, etags))]
        )
        assert completed == ("c", multipart_etag(name.encode()))
        outcomes = dict(
            subject.store.perform(
                [
                    ("head", Head(subject.bucket, subject.key(name))),
                    ("get", Get(subject.bucket, subject.key(name))),
                ]
            )
        )
        assert outcomes["head"] == subject.store.head(subject.bucket, subject.key(name))
        assert isinstance(outcomes["get"], Fetched)
        assert outcomes["get"].body == name.encode()
        assert outcomes["get"].info == outcomes["head"]

    def test_every_error_is_the_verbs_own(self, subject: Subject) -> None:
        """What a verb would raise for a call is the call's outcome, of the same type."""
        upload_id, _ = subject.upload("a", b"1")
        key = subject.key("a")
        calls: list[Call] = [
            Complete(subject.bucket, key, upload_id, [md5(b"2")]),
            Complete(subject.bucket, key, upload_id, []),
            Complete(subject.bucket, key, uuid.uuid4().hex, [md5(b"2")]),
            Complete(ABSENT_BUCKET, key, upload_id, [md5(b"1")]),
            Abort(subject.bucket, key, uuid.uuid4().hex),
            Abort(ABSENT_BUCKET, key, upload_id),
            Head(subject.bucket, key),
            Head(ABSENT_BUCKET, key),
            Get(ABSENT_BUCKET, key),
            DeleteMany(ABSENT_BUCKET, [ObjectToDelete(key)]),
            DeleteMany(subject.bucket, []),
        ]
        outcomes = dict(subject.store.perform(enumerate(calls)))
        assert {number: type(outcome) for number, outcome in outcomes.items()} == {
            number: type(make_call(subject.store, call)) for number, call in enumerate(calls)
        }

    def test_calls_are_drawn_as_there_is_room(self, subject: Subject) -> None:
        """An endless source of calls is drawn from only as outcomes are taken, and no more after closing."""
        subject.put("a")
        drawn = 0

        def endless() -> Iterator[tuple[int, Call]]:
            nonlocal drawn
            while True:
                drawn += 1
                yield drawn, Head(subject.bucket, subject.key("a"))

        outcomes = subject.store.perform(endless())
        next(outcomes)
        outcomes.close()  # type: ignore[attr-defined]
        assert drawn <= 100


def gone_upload(subject: Subject) -> type[Exception]:
    """Return the error for using an upload that is gone."""
    return OutcomeUnknown if subject.deviates(Behaviour.GONE_UPLOAD_IS_NAMED) else NoSuchUpload
