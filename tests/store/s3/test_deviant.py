"""Requests adapt to stores that deviate from AWS S3, and jobs run on each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import JobOptions, write_job
from airflow_s3commit.exceptions import NoSuchUpload, PreconditionFailed, StoreUnsuitable
from airflow_s3commit.store.base import Abort, DeleteMany, ObjectToDelete, StoreProfile
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.store import S3Store, TransportName
from tests.store.s3.deviant import DeviantStore, Deviation
from tests.store.s3.fault_server import FaultServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.loopback

TRANSPORTS: tuple[TransportName, ...] = ("boto3", "curl")

#: Deviations that cost no job anything.
HARMLESS: tuple[Deviation, ...] = (
    "bare etags",
    "bulk ignored",
    "delete ignored",
    "delete refused",
    "gone is 500",
    "gone is no key",
    "markers refused",
    "unknown is 400",
)


class Place:
    """A deviant store behind HTTP, and a client that gives up at once.

    Args:
        server: The server.
        deviant: Its objects.
        transport: What the client sends many calls with.
    """

    def __init__(
        self, server: FaultServer, deviant: DeviantStore, transport: TransportName = "boto3"
    ) -> None:
        if transport == "curl":
            pytest.importorskip("pycurl")
        self.server = server
        self.memory = deviant.memory
        self.store = S3Store.connect(server.config, retry=RetryPolicy(deadline=0.0), transport=transport)

    def upload(self, key: str) -> str:
        """Start an upload, and return its id."""
        return self.memory.create_upload("lake", key, metadata={}, content_type="a/b")

    def commit(self) -> None:
        """Replace the data of one partition."""
        options = JobOptions(committer="partitioned", conflict_mode="replace")
        with write_job("s3://lake/flights/", store=self.store, job_options=options) as job:
            file = job.open("dt=1/part.bin")
            file.write(b"content")
            file.close()

    def data(self) -> list[str]:
        """Return the keys of the data files."""
        return [info.key for info in self.memory.list_objects("lake", "flights/dt=")]


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Return a store with the deviations of the test's parameter."""
    deviations, page, transport = request.param
    deviant = DeviantStore(*deviations, page=page)
    with FaultServer(decide=deviant.answer) as server:
        yield Place(server, deviant, transport)


def on(*deviations: Deviation, page: int = 1000) -> pytest.MarkDecorator:
    """Run a test on a store with these deviations."""
    return pytest.mark.parametrize("place", [(deviations, page, "boto3")], indirect=True, ids=lambda _: "")


def by_both(*deviations: Deviation) -> pytest.MarkDecorator:
    """Run a test on a store with these deviations, by each transport."""
    return pytest.mark.parametrize(
        "place", [(deviations, 1000, way) for way in TRANSPORTS], indirect=True, ids=TRANSPORTS
    )


@on("bare etags")
def test_an_etag_is_sent_without_quotes(place: Place) -> None:
    """The right ETag is accepted, a wrong one is refused, and what was learned saves the next attempt."""
    first = place.store.put("lake", "a", b"1")
    second = place.store.put("lake", "a", b"2", if_match=first.etag)
    sent = len(place.server.seen)
    place.store.put("lake", "a", b"3", if_match=second.etag)
    assert len(place.server.seen) == sent + 1
    with pytest.raises(PreconditionFailed):
        place.store.put("lake", "a", b"4", if_match=first.etag)
    assert place.memory.get("lake", "a").body == b"3"
    assert place.store.profiles["lake"] == StoreProfile(bare_etags=True)


@on()
def test_a_profile_from_elsewhere_is_followed_and_corrected(place: Place) -> None:
    """A profile decides the first form of an ETag; one that is forgotten is learned again."""
    place.store.profiles["lake"] = StoreProfile(bare_etags=True, conditional_delete=False)
    etag = place.store.put("lake", "a", b"1").etag
    place.store.put("lake", "a", b"2", if_match=etag)
    assert place.server.seen[-1].headers["if-match"] == etag
    with pytest.raises(PreconditionFailed):
        place.store.delete("lake", "a", if_match=etag)
    assert place.memory.get("lake", "a").body == b"2"
    place.store.profiles["lake"] = StoreProfile()
    place.store.delete("lake", "a", if_match=place.memory.head("lake", "a").etag)
    assert list(place.memory.list_objects("lake", "")) == []


@on("match refused")
def test_a_store_that_refuses_every_etag(place: Place) -> None:
    """A condition that no form of the ETag fulfils is refused, and nothing is learned."""
    etag = place.store.put("lake", "a", b"1").etag
    with pytest.raises(PreconditionFailed):
        place.store.put("lake", "a", b"2", if_match=etag)
    assert place.store.profiles["lake"] == StoreProfile()


@on("delete refused")
def test_a_refused_delete_is_not_sent_again(place: Place) -> None:
    """A store without conditional deletes is asked for one once; the ETag is compared before each delete."""
    for _ in range(2):
        etag = place.store.put("lake", "a", b"1").etag
        with pytest.raises(PreconditionFailed):
            place.store.delete("lake", "a", if_match="0" * 32)
        place.store.delete("lake", "a", if_match=etag)
    methods = [seen.method for seen in place.server.seen]
    assert methods == ["PUT", "HEAD", "HEAD", "DELETE", "DELETE", "PUT", "HEAD", "HEAD", "DELETE"]
    assert place.store.profiles["lake"].conditional_delete is False


@by_both("bulk ignored", "delete ignored")
def test_bulk_deletes_follow_the_profile(place: Place) -> None:
    """Where no delete heeds an ETag, it is compared right before each delete."""
    place.store.profiles["lake"] = StoreProfile(bulk_etags=False, conditional_delete=False)
    kept = place.store.put("lake", "same", b"1").etag
    place.store.put("lake", "changed", b"1")
    doomed = [ObjectToDelete("same", kept), ObjectToDelete("changed", "0" * 32), ObjectToDelete("gone", kept)]
    ((_, left),) = place.store.perform([(0, DeleteMany("lake", doomed))])
    assert isinstance(left, list)
    assert [(failure.key, failure.code) for failure in left] == [("changed", "PreconditionFailed")]
    assert [info.key for info in place.memory.list_objects("lake", "")] == ["changed"]


@pytest.mark.parametrize("place", [(("markers refused",), 2, "boto3")], indirect=True, ids=[""])
def test_uploads_are_listed_past_the_first_page(place: Place) -> None:
    """Where a page's markers are refused, the listing continues at its key, with each upload once."""
    ours = sorted(place.upload(key) for key in ("p/a", "p/b", "p/b", "p/c", "p/d", "p/e"))
    place.upload("q/f")
    assert sorted(upload.upload_id for upload in place.store.list_uploads("lake", "p/")) == ours


@by_both("unknown is 400")
def test_an_unknown_upload_counts_as_aborted(place: Place) -> None:
    """Where a store finds fault with an id that it does not know, the upload is gone and nothing is wrong."""
    pending = place.upload("a")
    place.store.abort_upload("lake", "a", "never-there")
    calls = [(0, Abort("lake", "a", "never-there")), (1, Abort("lake", "a", pending))]
    assert dict(place.store.perform(calls)) == {0: None, 1: None}
    assert list(place.memory.list_uploads("lake", "")) == []


@on("gone is no key")
def test_the_parts_of_a_gone_upload(place: Place) -> None:
    """An upload that a store calls a missing key is a missing upload."""
    with pytest.raises(NoSuchUpload):
        list(place.store.list_parts("lake", "a", "never-there"))


@pytest.mark.parametrize(
    "place", [((kind,), 1000, "boto3") for kind in HARMLESS], indirect=True, ids=HARMLESS
)
def test_jobs_run(place: Place) -> None:
    """Three jobs replace each other's data, and nothing is left of the first two."""
    for _ in range(3):
        place.commit()
    assert len(place.data()) == 1
    assert list(place.memory.list_uploads("lake", "")) == []
    assert place.memory.head("lake", "flights/_SUCCESS").size


@pytest.mark.parametrize(
    "place",
    [((kind,), 1000, "boto3") for kind in ("create ignored", "match ignored", "match refused")],
    indirect=True,
    ids=lambda _: "",
)
def test_a_store_without_conditional_writes_is_refused(place: Place) -> None:
    """A store that ignores or refuses one of the two conditions gets no job, and keeps nothing of the try."""
    with pytest.raises(StoreUnsuitable, match="lake"):
        place.commit()
    assert place.data() == []
