"""A job begins once: the same id is the same job, and a job that cannot end well does not begin."""

from __future__ import annotations

from collections import Counter
from threading import Event
from typing import Any, get_args

import pytest

from airflow_s3commit.exceptions import (
    AccessDenied,
    AlreadyCommitted,
    DestinationNotEmpty,
    InvalidDestination,
    InvalidOption,
    InvalidRecord,
    JobClosed,
    JobMismatch,
    NoSuchBucket,
    NoSuchJob,
    OutcomeUnknown,
    StoreUnsuitable,
    Unavailable,
)
from airflow_s3commit.protocol.inspect.verify_table import verify
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.metadata.context import find_job
from airflow_s3commit.protocol.model.job import Committer, JobOptions
from airflow_s3commit.protocol.steps.files import files_in
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.protocol.steps.setup import load_job, set_up
from airflow_s3commit.store.forwarding import CountingStore
from airflow_s3commit.testing import FaultyStore, MemoryStore, StoreCall
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, an_id, apart, named, once

#: What a first set-up of a table may send.
MOST_REQUESTS = 12

FIRST = "log/00000000000000000001.json"


def refused(lake: Lake, error: type[Exception], match: str, **options: Any) -> None:
    """Check that a setup is refused and leaves nothing of the job."""
    before = lake.visible()
    with pytest.raises(error, match=match):
        lake.set_up(**options)
    assert lake.visible() == before
    assert (lake.left() == list(before), lake.pending()) == (True, [])


def test_a_job_is_recorded() -> None:
    """The store has the job's record and the first entry of the log, and nothing else."""
    lake = Lake()
    job = lake.set_up(said={"dag_id": "nightly"}, committer="directory", conflict_mode="append")
    record = job.record()
    assert (record.job_id, record.destination) == (OURS, lake.destination)
    assert record.staging == f"{lake.destination}__magic_job-{OURS}/"
    assert record.options == JobOptions(committer="directory", conflict_mode="append")
    assert record.context == {"dag_id": "nightly"}
    assert record.base.number == 1
    assert lake.left() == [lake.open_key()]
    assert lake.pending() == []


def test_a_repeated_setup_returns_the_same_job() -> None:
    """Set up again with the same id and options, the job is found unchanged, open or sealed."""
    lake = Lake()
    first = lake.set_up().record()
    assert lake.set_up(said={"other": "context"}).record() == first
    lake.run_stage(lake.job(), {"a": b"1"})
    lake.job().seal()
    before = lake.everything()
    assert lake.set_up().record() == first
    assert lake.everything() == before


@each("end", ["commit", "abort"])
@each("later", [False, True])
def test_a_spent_id_is_refused(end: str, later: bool) -> None:
    """The id of a job that has ended is not used again, whether other jobs have ended since or not."""
    lake = Lake()
    getattr(lake.sealed({"a": b"1"}), end)()
    if later:
        lake.sealed({"b": b"2"}, job_id=THEIRS).commit()
    before = lake.everything()
    with pytest.raises(AlreadyCommitted if end == "commit" else JobClosed):
        lake.set_up()
    assert lake.everything() == before


@each("end", ["commit", "abort"])
def test_an_id_without_a_receipt_yet_is_spent(end: str) -> None:
    """The process that ended the job died right after its entry, which is the newest of the log."""
    lake = Lake()
    job = lake.sealed({"a": b"1"})
    lake.store.die("put", f"log/{2:020d}.json", after=True)
    with pytest.raises(Crash):
        getattr(job, end)()
    lake.store.rest()
    before = lake.everything()
    with pytest.raises(AlreadyCommitted if end == "commit" else JobClosed):
        lake.set_up()
    assert lake.everything() == before


@pytest.mark.parametrize(
    "options", [{"conflict_mode": "append"}, {"committer": "directory"}, {"track_pending": "s3"}]
)
def test_the_same_id_with_other_options_is_refused(options: dict[str, Any]) -> None:
    """A job id belongs to one job with one set of options."""
    lake = Lake()
    lake.set_up()
    before = lake.everything()
    with pytest.raises(JobMismatch, match="another id"):
        lake.set_up(**options)
    assert lake.everything() == before


def test_the_same_id_elsewhere_is_another_job() -> None:
    """Jobs on two destinations may share an id and are independent of each other."""
    lake, other = Lake(), Lake(prefix="flights10/")
    other.store = lake.store
    lake.set_up()
    other.sealed({"a": b"1"}).commit()
    assert lake.open_key() in lake.keys(ROOT)
    assert lake.data() == {}


@each("first", [None, ()])
def test_a_job_of_hadoop_and_one_of_ours_share_no_id(first: tuple[str, ...] | None) -> None:
    """Whose names the files have is part of what a job is: the second setup is refused, whichever it is."""
    lake, options = Lake(), JobOptions(conflict_mode="append")
    set_up(lake.context(), options, {}, adopting=first)
    set_up(lake.context(), options, {}, adopting=first)
    with pytest.raises(JobMismatch):
        set_up(lake.context(), options, {}, adopting=() if first is None else None)


def test_a_setup_that_comes_late_leaves_the_record_of_another() -> None:
    """As long as it is there, somebody finds what is left to do for the job that has ended."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"})

    def end() -> None:
        lake.store.rest()
        lake.store.die("put", f"jobs/{OURS}.json", after=True)
        with pytest.raises(Crash):
            lake.job().abort()
        lake.store.rest()

    lake.store.before = once("put", "job.json", end)
    with pytest.raises(JobClosed):
        lake.set_up()
    assert lake.keys(f"{HOME}open/") == [lake.open_key(), lake.open_key("sealed.json")]
    lake.job().abort()
    assert (lake.keys(f"{HOME}open/"), lake.pending()) == ([], [])


def test_staging_may_be_in_another_bucket() -> None:
    """A job with its own staging keeps what tasks and stages write there, and commits as usual."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    options = JobOptions(committer="magic", conflict_mode="replace", staging="s3://other/private")
    job = Job.setup(lake.store, lake.destination, options=options, job_id=OURS, clock=lake.clock)
    assert job.reference.staging == f"s3://other/private/__magic_job-{OURS}/"
    again = Job.at(lake.store, job.reference, clock=lake.clock)
    with again.task_attempt("s", "1", "t", "1", part_bytes=1, threads=0, min_part_bytes=1) as attempt:
        attempt.open("dt=1/a").close()
        again.seal_stage("s", "1", [attempt.commit()])
    again.seal()
    assert lake.staging() == []
    assert len(list(lake.store.list_objects("other", "private/"))) == 2
    again.commit()
    assert lake.data() == {named("dt=1/a"): b""}
    assert [info.key for info in lake.store.list_objects("other", "")] == []
    assert lake.keys(f"{HOME}open/") == []


def test_the_staging_of_a_job_is_that_of_its_record() -> None:
    """A reference that names another staging than the job's record opens the job all the same."""
    lake = Lake()
    options = JobOptions(committer="magic", conflict_mode="replace", staging="s3://other/private")
    Job.setup(lake.store, lake.destination, options=options, job_id=OURS)
    lake.run_stage(lake.job(), {"dt=1/a": b"1"})
    assert lake.staging() == []
    lake.job().seal()
    lake.job().commit()
    assert lake.data() == {named("dt=1/a"): b"1"}
    assert [info.key for info in lake.store.list_objects("other", "")] == []


def test_a_destination_that_is_an_object_is_refused() -> None:
    """Data goes into a directory: if an object has the destination's name, nothing begins."""
    for prefix, key in ((ROOT, "flights"), ("a/b/", "a/b")):
        lake = Lake(prefix=prefix)
        lake.store.put(BUCKET, key, b"an object")
        refused(lake, InvalidDestination, "is an object")
        assert lake.entries() == []


def test_credentials_for_the_destination_alone_are_enough() -> None:
    """Without access to the name beside the directory, and to any above, a job is set up and committed."""
    lake = Lake()
    lake.put({"dt=1/old": b"0"})

    def deny(call: StoreCall) -> None:
        if call.key and not call.key.startswith(ROOT):
            raise AccessDenied("not below the prefix")

    lake.store.before = deny
    lake.sealed({"a": b"1"}).commit()
    assert StoreCall("head", BUCKET, ROOT.rstrip("/")) in lake.store.calls
    assert lake.data() == {"dt=1/old": b"0", named("a"): b"1"}


def test_a_directory_marker_is_not_an_object() -> None:
    """The empty object that consoles make for a directory is not data and does no harm."""
    lake = Lake()
    lake.store.put(BUCKET, ROOT, b"")
    lake.sealed({"a": b"1"}, conflict_mode="fail", committer="directory").commit()
    assert lake.data() == {"": b"", named("a"): b"1"}


@each("committer", get_args(Committer))
@each("mode", ["fail", "append", "replace"])
def test_only_a_failing_directory_refuses_data_at_setup(committer: str, mode: str) -> None:
    """Only ``fail`` over the whole destination can tell at once that there is data."""
    lake = Lake()
    lake.put({"dt=9/deep/old": b"old", "_hidden": b"h"})
    if (committer, mode) == ("directory", "fail"):
        refused(lake, DestinationNotEmpty, "dt=9/deep", committer=committer, conflict_mode=mode)
    else:
        lake.set_up(committer=committer, conflict_mode=mode)


def test_a_failing_directory_refuses_what_the_table_has() -> None:
    """The whole table counts at setup, and not what its newest entry wrote."""
    lake = Lake()
    fail = {"committer": "directory", "conflict_mode": "fail"}
    lake.sealed({"dt=1/a": b"1"}, job_id=THEIRS).commit()
    lake.set_up(an_id("aborted")).abort()
    refused(lake, DestinationNotEmpty, "dt=1", **fail)
    lake.store.delete(BUCKET, f"{ROOT}{named('dt=1/a', THEIRS)}")
    lake.sealed(job_id=an_id("empties"), committer="directory").commit()
    lake.set_up(**fail)


@each("uri", ["s3://nowhere/x", "s3://lake/x"])
def test_a_missing_bucket_is_reported(uri: str) -> None:
    """If the bucket of the data or of the staging is missing, nothing begins, and no job is left."""
    lake = Lake()
    with pytest.raises(NoSuchBucket):
        Job.setup(lake.store, uri, job_id=OURS, options=JobOptions(staging="s3://nowhere/y"))
    assert lake.keys("") == []


@pytest.mark.parametrize("uri", ["flights", "s3://lake/a/../b", "s3://lake/a\x00", "http://lake/x"])
def test_a_destination_that_is_not_a_uri_is_refused(uri: str) -> None:
    """A URI that is not a directory on S3 is refused before the store is asked."""
    lake = Lake()
    with pytest.raises(InvalidDestination):
        Job.setup(lake.store, uri, job_id=OURS)
    assert lake.store.calls == []


@pytest.mark.parametrize("job_id", ["a/b", "..", "a b", "x" * 129, "a\n", "nightly"])
def test_a_job_id_that_is_not_a_uuid_is_refused(job_id: str) -> None:
    """It leaves nothing: file names are searched for ids, and only a UUID cannot be mistaken."""
    lake = Lake()
    with pytest.raises(InvalidRecord):
        Job.setup(lake.store, lake.destination, job_id=job_id)
    assert (lake.left(), lake.entries(), lake.pending()) == ([], [], [])


def test_a_store_without_conditions_is_refused() -> None:
    """Setup names the bucket and the condition that is not honoured, and leaves nothing of the job."""
    refused(Lake(conditions=False), StoreUnsuitable, f"in bucket {BUCKET} a write with If-None-Match")


@each("after", [False, True])
@each(
    ("verb", "ending"),
    [("put", "job.json"), ("put", FIRST), ("create_upload", ""), ("abort_upload", "")],
)
def test_a_setup_that_stopped_is_resumed(verb: str, ending: str, after: bool) -> None:
    """Wherever a setup dies, a second one makes the job."""
    lake = Lake()
    lake.store.die(verb, ending, after=after)
    with pytest.raises(Crash):
        lake.set_up()
    lake.store.rest()
    lake.set_up()
    lake.run_stage(lake.job(), {"a": b"1"})
    lake.job().seal()
    lake.job().commit()
    assert lake.data() == {named("a"): b"1"}
    assert [entry["number"] for entry in lake.entries()] == [1, 2]


@pytest.mark.parametrize("ending", ["job.json", FIRST])
def test_lost_answers_are_resolved(ending: str) -> None:
    """A record whose answer was lost is found in the store."""
    lake = Lake()
    lake.store.after = once("put", ending, OutcomeUnknown("lost"))
    lake.set_up()
    assert lake.left() == [lake.open_key()]
    assert len(lake.entries()) == 1


@pytest.mark.parametrize("ending", ["job.json", FIRST])
def test_two_concurrent_setups_make_one_job(ending: str) -> None:
    """Two processes that set one job up at once both have the same job."""
    lake = Lake()
    records: list[Any] = []

    def meanwhile() -> None:
        lake.store.rest()
        records.append(lake.set_up().record())

    lake.store.before = once("put", ending, meanwhile)
    records.append(lake.set_up().record())
    assert records[0] == records[1]
    assert len(lake.entries()) == 1


def test_one_of_two_setups_with_other_options_is_refused() -> None:
    """Of two processes that set one id up with different options at once, the slower one is refused."""
    lake = Lake()

    def meanwhile() -> None:
        lake.store.rest()
        lake.set_up(conflict_mode="append")

    lake.store.before = once("put", "job.json", meanwhile)
    with pytest.raises(JobMismatch):
        lake.set_up()
    assert lake.job().record().options.conflict_mode == "append"


@each("end", ["commit", "abort"])
@each("newer", [False, True])
def test_a_setup_that_slept_while_its_job_ended_withdraws(end: str, newer: bool) -> None:
    """A process that writes the record after the job has ended finds the receipt, and leaves nothing."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})

    def meanwhile() -> None:
        lake.store.rest()
        getattr(lake.sealed({"a": b"1"}), end)()
        if newer:
            lake.sealed({"b": b"2"}, job_id=THEIRS).commit()

    lake.store.before = once("put", "job.json", meanwhile)
    with pytest.raises(AlreadyCommitted if end == "commit" else JobClosed):
        lake.set_up()
    assert lake.keys(lake.open_key("")) == []


def test_a_setup_whose_last_look_fails_may_have_happened() -> None:
    """The record is there by then, so nobody may say that nothing happened; a repetition finds it."""
    lake = Lake()
    lake.set_up(THEIRS)
    lake.store.before = once("get", lake.receipt_key(), Unavailable("the store is down"), nth=2)
    with pytest.raises(OutcomeUnknown, match=r"has written its record.*the store is down"):
        lake.set_up()
    lake.store.rest()
    lake.set_up()


def test_an_abort_of_an_id_that_is_being_set_up_is_found_out() -> None:
    """A job whose id was spent while its setup looked at the store does not begin."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}, job_id=THEIRS).commit()
    # Another process's: it has not looked at the bucket yet.
    store = FaultyStore(lake.store.inner, after=once("create_upload", OURS, lake.job().abort))
    options = JobOptions(committer="magic", conflict_mode="append")
    with pytest.raises(JobClosed):
        Job.setup(store, lake.destination, options=options, clock=lake.clock, job_id=OURS)
    assert lake.left() == sorted([ROOT + named("dt=1/a", THEIRS), f"{ROOT}_SUCCESS"])


def test_a_first_setup_looks_and_reads_at_the_same_time() -> None:
    """The look at uploads takes no time of its own: it ends while the log is being listed."""
    has_looked, waits = Event(), list[bool]()
    store = FaultyStore(
        MemoryStore((BUCKET,)),
        before=once("list_objects", "log/", lambda: waits.append(has_looked.wait(timeout=20))),
        after=lambda call: has_looked.set() if call.verb == "abort_upload" else None,
    )
    Job.setup(store, f"s3://{BUCKET}/t/", options=JobOptions(conflict_mode="append"))
    assert waits == [True]


def test_a_job_is_found_by_its_record() -> None:
    """A missing job is None to `find_job` and an error to `load_job`."""
    lake = Lake()
    assert find_job(lake.context()) is None
    with pytest.raises(NoSuchJob, match="Set up"):
        load_job(lake.context())
    lake.set_up()
    stored = find_job(lake.context())
    assert stored is not None
    assert load_job(lake.context()) == stored.record


@each("mode", ["fail", "append", "replace"])
@each("committer", get_args(Committer))
def test_the_first_setup_of_a_table_sends_few_requests(committer: Any, mode: Any) -> None:
    """A process that never saw the store sets up the first job of a table with twelve requests at most."""
    store = CountingStore(MemoryStore((BUCKET,)))
    options = JobOptions(committer=committer, conflict_mode=mode)
    Job.setup(store, f"s3://{BUCKET}/t/", options=options, job_id=OURS)
    assert sum(store.counters.values()) <= MOST_REQUESTS


@each("is_given", [True, False])
def test_later_setups_send_a_constant_number_of_requests(is_given: bool) -> None:
    """However long the log is, a job reads its newest entry, and the receipt of an id that it was given."""
    store = CountingStore(MemoryStore((BUCKET,)))
    sent = set()
    for number in range(30):
        before = Counter(store.counters)
        job_id = an_id(f"{number}") if is_given else None
        job = Job.setup(store, f"s3://{BUCKET}/t/", job_id=job_id)
        if number:
            sent.add(tuple(sorted((Counter(store.counters) - before).items())))
        job.commit(stages=[])
    gets = 3 if is_given else 1
    assert sent == {
        (("action_http_get_request", gets), ("object_list_request", 1), ("object_put_requests", 1)),
    }


@each("cut", [1, 100, 1 << 20])
def test_a_damaged_job_record_stops_every_step_but_an_abort(cut: int) -> None:
    """An unreadable record is not taken for an absent one, not even by a setup."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.sealed({"dt=1/a": b"1"})
    lake.tamper(lake.open_key(), cut=cut)
    before = lake.everything()
    for step in (lake.set_up, lake.job().seal, lake.job().preview, lake.job().commit, lake.job().recover):
        with pytest.raises(InvalidRecord):
            step()
    assert lake.everything() == before
    lake.job().abort()
    assert (lake.data(), lake.pending(), lake.keys(lake.open_key(""))) == ({"dt=1/old": b"old"}, [], [])


def test_another_s_job_record_is_refused() -> None:
    """A record of another job or another destination in this job's place is refused by every step."""
    lake, other = Lake(), Lake(prefix="flights10/")
    other.store = lake.store
    other.set_up()
    lake.set_up(THEIRS)
    for source in (other.open_key(), lake.open_key(job_id=THEIRS)):
        lake.store.put(BUCKET, lake.open_key(), lake.get(source))
        before = lake.everything()
        for step in (lake.set_up, lake.job().seal, lake.job().commit, lambda: load_job(lake.context())):
            with pytest.raises(InvalidRecord, match="it was copied here"):
                step()
        assert lake.everything() == before


# The first entry of the log.


def test_a_long_list_of_older_data_can_be_read() -> None:
    """It is an object beside the log, which says that nobody has counted the rows."""
    lake = Lake()
    lake.put({"dt=1/old": b"old", "root": b"r"})
    with apart():
        lake.set_up()
    home = lake.context().layout.destination
    table = read_table(lake.store, home)
    assert [file.key for file in files_in(lake.store, home, table.sources, table.live)] == [
        f"{ROOT}dt=1/old",
        f"{ROOT}root",
    ]
    assert lake.entries()[0]["commit"]["counts"]["rows"] is None


@each("mode", ["append", "replace", "fail"])
def test_the_log_begins_with_what_is_there(mode: str) -> None:
    """The first setup lists older data as one commit of nobody; later ones find it, and add nothing."""
    lake = Lake()
    lake.put({"dt=1/old": b"old", "root": b"r", "_hidden": b"h", "dt=1/.crc": b"c", "dt=2/": b""})
    lake.set_up(conflict_mode=mode)
    lake.put({"dt=1/later": b"later"})
    lake.set_up(THEIRS, conflict_mode=mode)
    (first,) = lake.entries()
    assert (first["kind"], first["commit"]["mode"], first.get("job_id")) == ("commit", "older-data", None)
    assert [line["key"] for line in first["commit"]["within"]] == [f"{ROOT}dt=1/old", f"{ROOT}root"]
    assert {name: one["files"] for name, one in first["commit"]["partitions"].items()} == {"": 1, "dt=1": 1}


def test_an_empty_destination_has_a_first_entry_too() -> None:
    """It lists nothing, so no file of a job is ever taken for older data."""
    lake = Lake()
    jobs = [lake.sealed({f"dt={n}/a": b"1"}, job_id=an_id(f"{n}"), conflict_mode="append") for n in range(3)]
    for job in jobs:
        job.complete_part(0, 2)
    for job in jobs:
        job.commit()
    assert [entry["commit"]["counts"]["files"] for entry in lake.entries()] == [0, 1, 1, 1]


def test_an_abort_keeps_a_reason_that_is_no_text() -> None:
    """It may have bytes of a file name, which JSON cannot hold as they are."""
    lake = Lake()
    lake.set_up().abort(reason="no such file: \udcff")
    assert lake.entries()[1]["why"] == "no such file: \\udcff"


def test_an_abort_begins_the_log_too() -> None:
    """Also of an id that nobody has set up, and older data is listed before it."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.job().abort()
    assert [entry["kind"] for entry in lake.entries()] == ["commit", "abandon"]
    assert lake.entries()[0]["commit"]["counts"]["files"] == 1


def test_another_dataset_below_is_refused() -> None:
    """Its files would be taken for older data; the message names it, and nothing is written."""
    lake, below = Lake(), Lake(prefix=f"{ROOT}archive/")
    below.store = lake.store
    below.sealed({"dt=1/a": b"1"}, job_id=THEIRS).commit()
    before = lake.everything()
    with pytest.raises(InvalidDestination, match="such as s3://lake/flights/archive/"):
        lake.set_up()
    assert lake.everything() == before


def test_a_directory_of_a_table_is_no_destination() -> None:
    """A job there would take the table's files for its own; the message names it, and nothing is written."""
    lake, inside = Lake(), Lake(prefix=f"{ROOT}dt=1/")
    inside.store = lake.store
    lake.sealed({"dt=1/a": b"1"}).commit()
    before = lake.everything()
    for act in (inside.set_up, inside.job(THEIRS).abort):
        with (
            apart(),
            pytest.raises(InvalidDestination, match=r"dt=1/a\S* is of the table s3://lake/flights/"),
        ):
            act()
    assert lake.everything() == before
    beside = Lake(prefix=f"{ROOT}dt=2/")
    beside.store = lake.store
    beside.put({"old": b"old"})
    beside.sealed({"a": b"2"}, job_id=THEIRS, conflict_mode="replace").commit()
    assert beside.data() == {named("a", THEIRS): b"2"}


@pytest.mark.parametrize("is_above", [False, True])
def test_a_replace_takes_no_file_of_a_table_above_or_below(*, is_above: bool) -> None:
    """Two destinations that came to share a directory keep their files: the job that would take some ends."""
    lakes = [Lake(), Lake(prefix=f"{ROOT}dt=1/")]
    lakes[0].store = lakes[1].store
    lakes[0].sealed({"dt=2/a": b"1"}).commit()
    lakes[1].sealed({"a": b"2"}, job_id=THEIRS).commit()
    ours, theirs = lakes if is_above else reversed(lakes)
    if not is_above:
        theirs.sealed({"dt=1/b": b"3"}, job_id=an_id("append"), conflict_mode="append").commit()
    before = ours.data(), theirs.data()
    job = ours.sealed({"dt=1/c" if is_above else "c": b"4"}, job_id=an_id("replace"), conflict_mode="replace")
    with pytest.raises(InvalidDestination, match=f"is of the table {theirs.destination}"):
        job.commit()
    assert (ours.data(), theirs.data()) == before
    assert ours.pending() == theirs.pending() == []


def test_a_replace_of_everything_is_refused_above_a_table() -> None:
    """Whatever lies there, in that table or not, stays."""
    lake, below = Lake(), Lake(prefix=f"{ROOT}archive/")
    below.store = lake.store
    lake.sealed({"dt=1/a": b"1"}).commit()
    below.sealed({"b": b"2"}, job_id=THEIRS).commit()
    before = lake.data()
    job = lake.sealed({"dt=1/c": b"3"}, job_id=an_id("replace"), committer="directory")
    with pytest.raises(InvalidDestination, match="below it are datasets of their own"):
        job.commit()
    assert lake.data() == before


def test_a_replace_takes_no_older_data_of_a_table_below() -> None:
    """Files that are older than the log of a table below, and name no job, stay with that table."""
    lake, below = Lake(), Lake(prefix=f"{ROOT}dt=1/")
    below.store = lake.store
    lake.sealed({"dt=2/a": b"1"}).commit()
    lake.put({"dt=1/old": b"old"})
    below.sealed({"h=1/b": b"2"}, job_id=THEIRS, conflict_mode="append").commit()
    job = lake.sealed({"dt=1/c": b"3"}, job_id=an_id("replace"), conflict_mode="replace")
    with pytest.raises(InvalidDestination, match=r"dt=1/old is of the table s3://lake/flights/dt=1/"):
        job.commit()
    assert verify(below.store, below.destination).sound


def test_a_table_is_not_begun_among_the_files_of_a_commit_that_is_under_way() -> None:
    """They belong to the table above, whose log does not name them yet."""
    lake, inside = Lake(), Lake(prefix=f"{ROOT}dt=1/")
    inside.store = lake.store
    lake.sealed({"dt=2/a": b"1"}, conflict_mode="append").commit()
    job = lake.sealed({"dt=1/b": b"2"}, job_id=THEIRS, conflict_mode="append")
    job.complete_part(0, 1)
    with pytest.raises(InvalidDestination, match="is of the table s3://lake/flights/"):
        inside.set_up(an_id("inside"))
    job.commit()
    assert verify(lake.store, lake.destination).sound


@each("path", ["dt=1//a", "/a", "dt=1/a\\b", "dt=1/a\tb"])
def test_older_data_that_no_table_can_name_is_refused(path: str) -> None:
    """The log does not begin with a file that readers of the table would refuse; the object is named."""
    lake = Lake()
    lake.put({"dt=0/ok": b"1", path: b"2"})
    before = lake.everything()
    with pytest.raises(InvalidDestination, match="cannot be a file of a table"):
        lake.set_up()
    assert lake.everything() == before


def test_a_copied_log_is_refused() -> None:
    """A dataset that was copied with its records begins anew once they are removed, and not before."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}).commit()
    copy = Lake(prefix="copy/")
    copy.store = lake.store
    for key in lake.keys(ROOT):
        lake.store.put(BUCKET, key.replace(ROOT, "copy/", 1), lake.get(key))
    with pytest.raises(InvalidRecord, match=r"this dataset is a copy.*Remove s3://lake/copy/_s3commit/"):
        copy.set_up(THEIRS)
    for key in copy.keys("copy/_s3commit/"):
        copy.store.delete(BUCKET, key)
    copy.sealed({"dt=1/b": b"2"}, job_id=THEIRS, conflict_mode="append").commit()
    assert [entry["commit"]["counts"]["files"] for entry in copy.entries()] == [1, 1]


@each("options", [{"retain": "7"}, {"retain": "1000000w"}, {"retain": f"{'9' * 400}d"}, {"retain": 7}])
def test_retain_is_a_duration(options: dict[str, Any]) -> None:
    """Only durations are accepted, of a hundred years at most."""
    with pytest.raises(InvalidOption, match=r"is not a duration|a hundred years|is not text"):
        JobOptions(conflict_mode="replace", **options)
