"""Doctor finds what a store lacks and how to fix it, raises nothing and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from threading import current_thread, main_thread
from typing import Any

import msgspec
import pytest

from airflow_s3commit.exceptions import AccessDenied, StoreRejected
from airflow_s3commit.protocol.doctor import probes
from airflow_s3commit.protocol.doctor.examine import Check, Diagnosis, examine
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions, ObjectOptions
from airflow_s3commit.protocol.write_job import JobWriter, write_job
from airflow_s3commit.store.base import (
    DeleteFailure,
    ObjectInfo,
    ObjectToDelete,
    Upload,
    Written,
)
from airflow_s3commit.store.memory import MemoryStore
from airflow_s3commit.store.s3.store import S3Store
from airflow_s3commit.testing.faulty_store import Fault, FaultyStore, StoreCall
from tests.fakes import ManualClock
from tests.store.s3.deviant import DeviantStore
from tests.store.s3.fault_server import FaultServer

#: The most requests that a run may send.
MOST_REQUESTS = 450

FLIGHTS = Destination("lake", "flights/")
STAGING = Destination("records", "jobs/")


class Lacking(MemoryStore):
    """A store that lacks some things.

    Args:
        what: ``prefixes``: uploads are listed by exact key only. ``listing``: not at all. ``ages``: all
            uploads began in 2010. ``pages``: no page of uploads but the first is listed. ``metadata``:
            uploads lose theirs. ``conditional delete``: deletes ignore conditions, bulk ones too; ``delete
            headers``: conditional deletes are rejected; ``bulk headers``: bulk ones are.
        denied: Verbs that the credentials are not allowed.
    """

    def __init__(self, *what: str, denied: tuple[str, ...] = (), **settings: Any) -> None:
        self.clock = ManualClock()
        super().__init__(("lake", "records"), now=self.clock.time, stale_upload_days=7, **settings)
        self._what = what
        self._denied = denied

    def __getattribute__(self, name: str) -> Any:
        if name in object.__getattribute__(self, "__dict__").get("_denied", ()):
            return self._deny
        return super().__getattribute__(name)

    @staticmethod
    def _deny(*_args: Any, **_kwargs: Any) -> Any:
        raise AccessDenied("not allowed")

    def list_uploads(self, bucket: str, prefix: str, *, page: int | None = None) -> Iterator[Upload]:
        """List uploads as far as this store can."""
        found = super().list_uploads(bucket, prefix)
        for upload in islice(found, page) if "pages" in self._what else found:
            if "prefixes" in self._what and upload.key != prefix:
                continue
            if "listing" in self._what:
                continue
            yield Upload(upload.key, upload.upload_id, 1e9) if "ages" in self._what else upload

    def create_upload(self, bucket: str, key: str, **arguments: Any) -> str:
        """Begin an upload, and perhaps lose its metadata."""
        if "metadata" in self._what:
            arguments["metadata"] = {}
        return super().create_upload(bucket, key, **arguments)

    def delete(self, bucket: str, key: str, *, if_match: str | None = None) -> None:
        """Delete, perhaps whatever exists there."""
        told = self.profiles[bucket].conditional_delete
        if "delete headers" in self._what and if_match is not None and told:
            raise StoreRejected("no conditional deletes here", code="NotImplemented")
        super().delete(bucket, key, if_match=None if "conditional delete" in self._what else if_match)

    def delete_many(self, bucket: str, objects: Sequence[ObjectToDelete]) -> list[DeleteFailure]:
        """Delete objects that have the requested ETag, or refuse to check ETags."""
        if "bulk headers" in self._what:
            raise StoreRejected("no conditional bulk deletes here", code="NotImplemented")
        return super().delete_many(bucket, objects)

    def everything(self) -> dict[str, Any]:
        """Return all keys of all objects and all uploads."""
        return {
            name: (sorted(b.objects), sorted(u.key for u in b.uploads.values()))
            for name, b in self._buckets.items()
        }


class Racing(Lacking):
    """A store that first checks a condition and writes later, as S3Mock does.

    Args:
        condition: The condition of the writes that race.
    """

    def __init__(self, condition: str) -> None:
        super().__init__()
        self._condition = condition

    def put(self, bucket: str, key: str, body: bytes, **conditions: Any) -> Written:
        """Write all that is written at once, because when its condition was checked nothing was there."""
        if current_thread() is not main_thread() and conditions.get(self._condition):
            conditions = {}
        return super().put(bucket, key, body, **conditions)


def _examined(store: Lacking, staging: Destination | None = None) -> Diagnosis:
    return examine(store, FLIGHTS, staging, clock=store.clock)


def _check(diagnosis: Diagnosis, name: str) -> Check:
    return next(check for check in diagnosis.checks if check.name == name)


def test_a_good_store_is_healthy() -> None:
    """On a good store every check says ok, and the checks leave nothing in either bucket."""
    store = Lacking()
    store.put("lake", "flights/old.parquet", b"old")
    before = store.everything()
    diagnosis = _examined(store, STAGING)
    assert {(check.name, check.verdict) for check in diagnosis.checks if check.verdict != "ok"} == set()
    assert diagnosis.healthy
    assert {check.place for check in diagnosis.checks} == {FLIGHTS.uri, STAGING.uri}
    assert store.everything() == before


@pytest.mark.parametrize(
    ("lack", "name", "verdict", "remedy"),
    [
        ("prefixes", "list uploads", "warning", 'track_pending="s3"'),
        ("listing", "list uploads", "warning", 'track_pending="s3"'),
        ("ages", "ages of uploads", "warning", "lifecycle"),
        ("metadata", "complete uploads", "failed", "another store"),
        ("conditional delete", "conditional delete", "warning", "no other writers"),
        ("delete headers", "conditional delete", "warning", "no other writers"),
        ("pages", "list uploads", "warning", 'track_pending="s3"'),
        ("metadata", "whole jobs", "skipped", ""),
        ("bulk headers", "bulk delete", "failed", "does not support"),
    ],
)
def test_what_a_store_lacks_is_named_with_a_remedy(lack: str, name: str, verdict: str, remedy: str) -> None:
    """Each lack is found by the check for it, and by no other check that would fail the place."""
    store = Lacking(lack)
    diagnosis = _examined(store)
    check = _check(diagnosis, name)
    assert check.verdict == verdict
    assert (check.remedy is not None) == (verdict != "skipped")
    assert remedy in (check.remedy or "")
    assert diagnosis.healthy == (verdict == "warning")
    if lack != "listing":
        assert store.everything() == {"lake": ([], []), "records": ([], [])}


def test_whole_jobs_are_rehearsed() -> None:
    """Two appends, a replace, an abort and a sweep enter the log, and the verdict is on all of them."""
    store = FaultyStore(Lacking())
    diagnosis = examine(store, FLIGHTS, clock=store.inner.clock)  # type: ignore[attr-defined]
    assert _check(diagnosis, "whole jobs").verdict == "ok"
    entries = [call for call in store.calls if call.verb == "put" and "/rehearsal/_s3commit/log/" in call.key]
    assert len(entries) == 6  # the first entry, three commits, the ends of the aborted and the dead job


def test_a_job_commits_beside_a_doctor() -> None:
    """The destination of the jobs on trial is hidden: nobody would take their files."""
    store, writers = Lacking(), list[JobWriter]()

    def write(call: StoreCall) -> None:
        if call.key.endswith("rehearsal/_SUCCESS") and not writers:
            options = JobOptions(committer="directory", conflict_mode="replace")
            with write_job(FLIGHTS, store=store, job_options=options, clock=ManualClock()) as writer:
                writers.append(writer)

    watched = FaultyStore(store, after=write)
    assert examine(watched, FLIGHTS, clock=store.clock).healthy
    assert [writer.manifest is not None for writer in writers] == [True]


@pytest.mark.loopback
def test_the_number_of_requests_is_bounded() -> None:
    """A store that takes a tenth of a second for each request is examined in a minute."""
    deviant = DeviantStore()
    with FaultServer(decide=deviant.answer) as server:
        assert examine(S3Store.connect(server.config), FLIGHTS, clock=deviant.clock).healthy
    assert len(server.seen) <= MOST_REQUESTS


@pytest.mark.parametrize(
    ("condition", "header"), [("if_none_match", "If-None-Match: *"), ("if_match", "If-Match")]
)
def test_a_store_that_compares_before_it_writes_is_not_fit(condition: str, header: str) -> None:
    """If concurrent writes both win, the check says so."""
    store = Racing(condition)
    check = _check(_examined(store), "fencing")
    assert check.verdict == "failed"
    assert f"writes with {header} are refused, or several" in check.says
    assert "another store" in str(check.remedy)


def test_a_store_without_conditional_writes_is_not_fit() -> None:
    """Both conditions are tried, and the remedy is another store."""
    diagnosis = _examined(Lacking(conditions=False))
    check = _check(diagnosis, "fencing")
    assert check.verdict == "failed"
    assert "If-None-Match" in check.says
    assert "If-Match" in check.says
    assert "another store" in str(check.remedy)
    assert not diagnosis.healthy


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("head", "objects"),
        ("get", "objects"),
        ("put", "objects"),
        ("list_objects", "objects"),
        ("delete_many", "bulk delete"),
        ("create_upload", "complete uploads"),
        ("upload_part", "complete uploads"),
        ("complete_upload", "complete uploads"),
        ("list_parts", "abort uploads"),
        ("stale_upload_days", "lifecycle rule"),
        ("list_uploads", "list uploads"),
        ("abort_upload", "abort uploads"),
        ("delete", "objects"),
    ],
)
def test_a_missing_permission_fails_the_check_that_needs_it(verb: str, name: str) -> None:
    """No missing right goes unnoticed, the policy is pointed out, and what can be removed is."""
    store = Lacking(denied=(verb,))
    diagnosis = _examined(store)
    assert _check(diagnosis, name).verdict == "failed"
    assert "--policy" in str(_check(diagnosis, name).remedy)
    left = _check(diagnosis, "nothing left behind").verdict
    empty = store.everything() == {"lake": ([], []), "records": ([], [])}
    assert (left == "ok") == empty or verb == "list_uploads"


def test_credentials_that_may_not_list_at_all_fail_at_the_bucket() -> None:
    """If HEAD and listing of the bucket both fail, nothing else is tried and the policy is pointed out."""
    diagnosis = _examined(Lacking(denied=("check_bucket", "list_objects")))
    assert _check(diagnosis, "bucket").verdict == "failed"
    assert "--policy" in str(_check(diagnosis, "bucket").remedy)
    assert {check.verdict for check in diagnosis.checks[1:]} <= {"skipped", "failed"}


def test_rights_below_the_destination_are_enough() -> None:
    """Credentials that cannot see the whole bucket, or the name beside the directory, can run jobs."""

    class Narrow(Lacking):
        def head(self, bucket: str, key: str) -> ObjectInfo:
            if key == "flights":
                raise AccessDenied("not below flights/")
            return super().head(bucket, key)

    assert _examined(Narrow(denied=("check_bucket",))).healthy


def test_a_bucket_refused_for_no_reason_is_listed_for_one() -> None:
    """The 400 of a HEAD names no reason: the list of the bucket shows that the credentials have expired."""

    class Expired(Lacking):
        def check_bucket(self, bucket: str) -> None:
            raise StoreRejected(f"HeadBucket of s3://{bucket}/: 400", code="400")

    check = _check(_examined(Expired(denied=("list_objects",))), "bucket")
    assert check.says == "AccessDenied: not allowed"
    assert _check(_examined(Expired()), "bucket").verdict == "ok"


def test_a_staging_root_needs_no_rights_to_uploads() -> None:
    """The policy lets nobody list the uploads of its bucket if that is another one: jobs have none there."""

    class Narrow(Lacking):
        def list_uploads(self, bucket: str, prefix: str, *, page: int | None = None) -> Iterator[Upload]:
            if bucket == STAGING.bucket:
                raise AccessDenied("not there")
            return super().list_uploads(bucket, prefix, page=page)

    assert _examined(Narrow(), STAGING).healthy


def test_what_cannot_be_tried_is_skipped() -> None:
    """Without the bucket nothing else can be tried, and the checks say so instead of failing one by one."""
    diagnosis = examine(MemoryStore(("other",)), FLIGHTS)
    assert _check(diagnosis, "bucket").verdict == "failed"
    assert {check.verdict for check in diagnosis.checks[1:]} == {"skipped"}


@pytest.mark.parametrize(("days", "verdict"), [(None, "warning"), (1, "warning"), (7, "ok")])
def test_a_lifecycle_rule_should_be_there_and_not_too_short(days: int | None, verdict: str) -> None:
    """Without a rule orphans are billed forever; a rule of one day aborts uploads that jobs need."""
    clock = ManualClock()
    store = MemoryStore(now=clock.time, stale_upload_days=days)
    assert _check(examine(store, FLIGHTS, clock=clock), "lifecycle rule").verdict == verdict


@pytest.mark.parametrize(
    ("fault", "every"),
    [
        pytest.param("lose-answer", 4, marks=pytest.mark.slow),
        ("refuse", 4),
        pytest.param("lose-answer", 1, marks=pytest.mark.all),
        pytest.param("refuse", 1, marks=pytest.mark.all),
    ],
)
def test_a_fault_at_any_call_is_reported_and_not_raised(
    fault: Any, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever call fails or loses its answer, a diagnosis comes and names what is left behind."""
    # Small parts make the same calls, and most of the time goes into checksums of large ones.
    monkeypatch.setattr(probes, "MIN_PART_BYTES", 1)
    if every > 1:
        # The quick loop races writers once, because the rest of the time goes into their threads.
        monkeypatch.setattr(probes, "_ROUNDS", 1)
    calls = FaultyStore(Lacking(min_part_bytes=1))
    examine(calls, FLIGHTS, STAGING, clock=ManualClock())
    assert len(calls.calls) > 60
    for at in range(1, len(calls.calls) + 1, every):
        inner = Lacking(min_part_bytes=1)
        diagnosis = examine(FaultyStore(inner, Fault(fault, nth=at)), FLIGHTS, STAGING, clock=inner.clock)
        if inner.everything() != {"lake": ([], []), "records": ([], [])}:
            tidy = [check.verdict for check in diagnosis.checks if check.name == "nothing left behind"]
            assert "failed" in tidy, f"call {at} left something unsaid"


def test_a_diagnosis_is_plain_data() -> None:
    """Scripts get every check, and the verdict on all of them."""
    plain = _examined(Lacking("prefixes")).to_dict()
    assert plain["healthy"] is True
    assert {"name", "place", "verdict", "says", "remedy"} == set(plain["checks"][0])


class Careless(Lacking):
    """A store that takes headers and drops some of them.

    Args:
        dropped: Their names.
        refused: A header that the credentials may not send.
    """

    def __init__(self, *dropped: str, refused: str = "") -> None:
        super().__init__()
        self._dropped = dropped
        self._refused = refused

    def create_upload(self, bucket: str, key: str, **arguments: Any) -> str:
        """Begin an upload without the headers that this store drops."""
        sent = dict(arguments.pop("headers", None) or {})
        if self._refused in sent:
            raise AccessDenied(f"may not send {self._refused}")
        kept = {name: value for name, value in sent.items() if name not in self._dropped}
        return super().create_upload(bucket, key, headers=kept, **arguments)


ASKED = ObjectOptions(
    storage_class="STANDARD_IA",
    sse="aws:kms",
    sse_kms_key_id="1234abcd",
    sse_bucket_key=True,
    acl="bucket-owner-full-control",
    tags={"team": "flights"},
    headers={"cache-control": "no-store", "x-amz-meta-source": "bts"},
)


def _asked(store: Lacking) -> Check:
    diagnosis = examine(store, FLIGHTS, STAGING, object_options=ASKED, clock=store.clock)
    return _check(diagnosis, "object options")


def test_object_options_are_tried_and_removed() -> None:
    """An upload with all options gets a line, and nothing of it is left."""
    store = Lacking()
    assert _asked(store).verdict == "ok"
    assert store.everything() == Lacking().everything()


@pytest.mark.parametrize(
    ("header", "verdict", "says"),
    [
        ("x-amz-server-side-encryption", "failed", "x-amz-server-side-encryption is None"),
        ("x-amz-server-side-encryption-aws-kms-key-id", "failed", "key-id is None"),
        ("x-amz-server-side-encryption-bucket-key-enabled", "warning", "key-enabled is None"),
        ("x-amz-storage-class", "warning", "x-amz-storage-class is None"),
        ("x-amz-tagging", "warning", "x-amz-tagging-count is None"),
        ("cache-control", "warning", "cache-control is None"),
        ("x-amz-meta-source", "warning", "x-amz-meta-source is None"),
    ],
)
def test_an_ignored_object_option_is_found_at_the_object(header: str, verdict: str, says: str) -> None:
    """What the store drops is reported, and nothing else; lost encryption is a failure."""
    found = _asked(Careless(header))
    assert (found.verdict, bool(found.remedy)) == (verdict, True)
    assert found.says == f"accepted, but on the object {found.says.rpartition('object ')[2]}"
    assert says in found.says


@pytest.mark.parametrize("header", ["x-amz-storage-class", "x-amz-acl", "x-amz-tagging"])
def test_a_denied_object_option_has_a_remedy(header: str) -> None:
    """The remedy is the policy, which names the missing permission."""
    asked = msgspec.structs.replace(ASKED, acl="public-read")
    store = Careless(refused=header)
    found = _check(examine(store, FLIGHTS, object_options=asked, clock=store.clock), "object options")
    assert found.verdict == "failed"
    assert "--policy" in (found.remedy or "")
