"""The log of commits: entries in one order, each written by a process that has read the earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
import pytest

from airflow_s3commit.exceptions import InvalidRecord, OutcomeUnknown
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.endings import record_ending
from airflow_s3commit.protocol.metadata.log import Log, newest_commit, read_entry
from airflow_s3commit.protocol.metadata.log_end import find_head
from airflow_s3commit.protocol.metadata.manifests import latest_manifest
from airflow_s3commit.protocol.model.codec import encode
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import AbortedRecord, JobOptions, JobRecord
from airflow_s3commit.protocol.model.layout import Layout, checkpoint_key, entry_key
from airflow_s3commit.protocol.model.log import Baseline, LogEntry, Removal
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.store.base import ObjectInfo
from airflow_s3commit.testing import StoreCall
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Lake, an_id, once

HERE = Destination(BUCKET, ROOT)
NOTHING = Counts(files=0, bytes=0, rows=0)


def entry(
    number: int,
    job_id: str,
    *partitions: str,
    kind: Literal["commit", "abandon"] = "commit",
    uri: str = HERE.uri,
    removes: Removal = "nothing",
) -> LogEntry:
    """Return an entry of a job that committed to partitions, or that was aborted."""
    place = {"job_id": job_id, "destination": uri, "staging": f"{uri}__magic_job-{job_id}/"}
    manifest = ManifestRecord(
        **place,
        committer="magic",
        conflict_mode="append",
        committed=0,
        counts=NOTHING,
        partitions=dict.fromkeys(partitions, Counts(files=1, bytes=1, rows=1)),
        replaced=NOTHING,
        files=f"{uri}_s3commit/manifests/{job_id}.jsonl",
        files_sha256="e3b0",
        generation=number,
        nonce=f"manifest of {job_id}",
    )
    aborted = AbortedRecord(**place, since=0)
    ending: dict[str, Any] = {"manifest": manifest} if kind == "commit" else {"aborted": aborted}
    nonce = f"entry {number} of {job_id}"
    return LogEntry(**place, number=number, kind=kind, epoch=1, removes=removes, nonce=nonce, **ending)


def write(lake: Lake, *entries: LogEntry, conditional: bool = True) -> None:
    """Write entries as another process does."""
    for one in entries:
        lake.store.put(BUCKET, entry_key(HERE, one.number), encode(one), if_none_match=conditional)


def filled(lake: Lake, count: int) -> None:
    """Write entries that differ only in their numbers."""
    first = encode(entry(1, THEIRS, kind="abandon"))
    for number in range(1, count + 1):
        body = first.replace(b'"number":1', b'"number":%d' % number)
        lake.store.inner.put(BUCKET, entry_key(HERE, number), body)


def of_job(lake: Lake, job_id: str = OURS, *, position: int | None = 0) -> Log:
    """Return the log as a job's process begins with it; without a position it has no record of the job."""
    context = lake.context(job_id)
    record = JobRecord(**context.layout.place, options=JobOptions(), created=0, log=position or 0, nonce="n")
    return Log(lake.context(job_id, record=record if position is not None else None))


def append(log: Log, job_id: str = OURS, *partitions: str, kind: Any = "commit") -> LogEntry | None:
    """Append a job's entry."""
    return log.append(lambda number: entry(number, job_id, *partitions, kind=kind))


def calls(lake: Lake, act: Callable[[], object]) -> list[StoreCall]:
    """Return the calls of an act."""
    lake.store.calls.clear()
    act()
    return list(lake.store.calls)


class TestAppend:
    def test_entries_are_numbered_in_their_order(self) -> None:
        """Each job's entry follows the one before it, and is read back as appended."""
        lake = Lake()
        jobs = [an_id(str(number)) for number in range(4)]
        appended = [append(of_job(lake, job_id), job_id) for job_id in jobs]
        assert [one.number for one in appended if one is not None] == [1, 2, 3, 4]
        assert [read_entry(lake.store, HERE, number) for number in range(1, 5)] == appended
        assert find_head(lake.store, HERE) == 4

    def test_a_job_has_one_entry(self) -> None:
        """A process that finds its job's entry gets that one, whichever kind it wants to append."""
        lake = Lake()
        first = append(of_job(lake))
        for kind in ("commit", "abandon"):
            assert append(of_job(lake), kind=kind) == first
        assert lake.keys(f"{HOME}log/") == [entry_key(HERE, 1)]

    def test_a_lost_race_is_read_and_tried_again(self) -> None:
        """If another job was faster nothing is appended, its entry is known, and the next try succeeds."""
        lake = Lake()
        log = of_job(lake)
        log.read()
        write(lake, entry(1, THEIRS, "dt=1"))
        assert append(log) is None
        assert (log.position, log.ending()) == (1, None)
        assert log.was_added_to(["dt=1"], since=0)
        mine = append(log)
        assert mine is not None
        assert mine.number == 2

    def test_a_race_that_another_process_of_the_job_won(self) -> None:
        """An entry that another process of the job has just created is the job's, and the only one."""
        lake = Lake()
        log = of_job(lake)
        log.read()
        theirs = msgspec.structs.replace(entry(1, OURS, kind="abandon"), nonce="of the other process")
        write(lake, theirs)
        assert append(log) == theirs
        assert lake.keys(f"{HOME}log/") == [entry_key(HERE, 1)]

    def test_the_winner_is_read_by_its_key(self) -> None:
        """A listing that lags does not make a lost race look like a missing entry."""
        lake = Lake()
        log = of_job(lake)
        log.read()
        write(lake, entry(1, THEIRS))
        made = calls(lake, lambda: append(log))
        assert [call.key for call in made if call.verb == "list_objects"] == []

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_a_lost_response(self, moment: str) -> None:
        """An entry whose response was lost is found again; without an entry the error says so."""
        lake = Lake()
        setattr(lake.store, moment, once("put", entry_key(HERE, 1), OutcomeUnknown("lost")))
        log = of_job(lake)
        if moment == "before":
            with pytest.raises(OutcomeUnknown):
                append(log)
        mine = append(log)
        assert mine is not None
        assert mine.number == 1
        assert lake.keys(f"{HOME}log/") == [entry_key(HERE, 1)]

    @pytest.mark.parametrize("kind", ["commit", "abandon"])
    def test_the_newest_entry_is_recorded_before_the_next_one(self, kind: str) -> None:
        """An entry's manifest or abort record is stored as the entry has it, before another follows."""
        lake = Lake()
        write(lake, entry(1, THEIRS, kind=kind))
        layout, is_commit = Layout.of(HERE, THEIRS), kind == "commit"
        key = layout.manifest if is_commit else layout.aborted
        made = [call.key for call in calls(lake, lambda: append(of_job(lake))) if call.verb == "put"]
        assert made == [key, entry_key(HERE, 2)]
        held = read_entry(lake.store, HERE, 1)
        assert lake.get(key) == encode(held.manifest if is_commit else held.aborted)

    def test_a_race_s_winner_is_recorded_too(self) -> None:
        """After a lost race the winner's record is written before the next try's entry."""
        lake = Lake()
        log = of_job(lake)
        log.read()
        write(lake, entry(1, THEIRS))
        assert append(log) is None
        append(log)
        assert Layout.of(HERE, THEIRS).manifest in lake.keys(HOME)

    def test_an_existing_record_is_kept(self) -> None:
        """What an earlier process recorded is not written again."""
        lake = Lake()
        context, newest = lake.context(), entry(1, THEIRS)
        key = Layout.of(HERE, THEIRS).manifest
        lake.store.put(BUCKET, key, b"kept")
        record_ending(context, newest)
        assert lake.get(key) == b"kept"


class TestRead:
    def test_a_job_reads_what_follows_its_setup(self) -> None:
        """Its own entry is newer than its record, so nothing before that is read."""
        lake = Lake()
        filled(lake, 20)
        log = of_job(lake, position=18)
        made = calls(lake, log.read)
        assert log.position == 20
        assert [call.key for call in made if call.verb == "get"] == [entry_key(HERE, 19), entry_key(HERE, 20)]

    def test_a_process_without_the_record_reads_the_newest_entry(self) -> None:
        """Only the newest entry may lack its record."""
        lake = Lake()
        filled(lake, 20)
        log = of_job(lake, position=None)
        made = calls(lake, log.read)
        assert log.position == 20
        assert [call.key for call in made if call.verb == "get"] == [entry_key(HERE, 20)]

    def test_reading_again_reads_what_is_new(self) -> None:
        """A second read continues where the first one ended."""
        lake = Lake()
        log = of_job(lake)
        assert log.read() == 0
        filled(lake, 2)
        assert log.read() == 2
        assert [call.verb for call in calls(lake, log.read)] == ["list_objects"]
        assert log.position == 2

    def test_whether_others_added_files(self) -> None:
        """Commits of other jobs count, in the requested partitions and after the given entry."""
        lake = Lake()
        write(
            lake, entry(1, an_id("a"), "dt=1"), entry(2, an_id("b"), "dt=2", "dt=3"), entry(3, OURS, "dt=4")
        )
        write(lake, entry(4, an_id("c"), kind="abandon"), entry(5, an_id("d")))
        log = of_job(lake)
        log.read()
        assert log.was_added_to(["dt=1"], since=0)
        assert not log.was_added_to(["dt=1"], since=1)
        assert log.was_added_to(["dt=1", "dt=3"], since=1)
        assert not log.was_added_to(["dt=4"], since=0)
        assert log.was_added_to(None, since=1)
        assert not log.was_added_to(None, since=2)

    def test_copied_entries_are_not_history(self) -> None:
        """Entries of another place only take numbers: they are not commits, and no record is written."""
        lake = Lake()
        copied = [entry(n, job_id, "dt=1", uri="s3://lake/trains/") for n, job_id in ((1, THEIRS), (2, OURS))]
        write(lake, *copied)
        log = of_job(lake)
        assert (log.read(), log.ending()) == (2, None)
        assert not log.was_added_to(None, since=0)
        mine = append(log)
        assert mine is not None
        assert mine.number == 3
        assert lake.keys(f"{HOME}manifests/") == []
        assert newest_commit(lake.store, HERE) == mine

    def test_a_missing_entry_is_refused(self) -> None:
        """A log with a gap is not read past it, and the error names the missing entry."""
        lake = Lake()
        write(lake, entry(1, THEIRS), entry(3, an_id("c")))
        with pytest.raises(InvalidRecord, match=r"0002\.json is missing, .*0003\.json is there"):
            of_job(lake).read()
        with pytest.raises(InvalidRecord, match=r"0002\.json is missing, .*0003\.json is there"):
            of_job(lake, position=1).read()

    @each("position", [0, None])
    def test_a_moved_entry_is_refused(self, position: int | None) -> None:
        """Every reader refuses and names an entry under another one's number."""
        lake = Lake()
        lake.store.put(BUCKET, entry_key(HERE, 1), encode(entry(2, THEIRS)))
        reads: list[Callable[[], object]] = [
            of_job(lake, position=position).read,
            lambda: append(of_job(lake, position=position)),
            lambda: newest_commit(lake.store, HERE),
        ]
        for read in reads:
            with pytest.raises(InvalidRecord, match=r"s3://lake/flights/.*0001\.json has the number 2"):
                read()

    @each(
        "body",
        [b"", b"{", b"null", encode(entry(1, THEIRS))[:-9], encode(entry(1, "../other"))],
    )
    def test_a_damaged_entry_is_refused_by_name(self, body: bytes) -> None:
        """No reader skips an entry that cannot be read, as its content may matter."""
        lake = Lake()
        write(lake, entry(2, an_id("b")))
        lake.store.put(BUCKET, entry_key(HERE, 1), body)
        with pytest.raises(InvalidRecord, match=r"s3://lake/flights/_s3commit/log/0{19}1\.json"):
            of_job(lake).read()
        with pytest.raises(InvalidRecord, match=r"s3://lake/flights/_s3commit/log/0{19}1\.json"):
            read_entry(lake.store, HERE, 1)

    def test_a_damaged_winner_of_a_race_is_refused_by_name(self) -> None:
        """An entry that came first and cannot be read stops the job that lost to it."""
        lake = Lake()
        log = of_job(lake)
        log.read()
        lake.store.put(BUCKET, entry_key(HERE, 1), b"{")
        with pytest.raises(InvalidRecord, match=r"s3://lake/flights/_s3commit/log/0{19}1\.json"):
            append(log)

    def test_other_objects_in_the_log_are_not_entries(self) -> None:
        """Objects that people or tools leave there, even in its directories, are skipped."""
        lake = Lake()
        write(lake, entry(1, THEIRS))
        for name in ("", "README", "2.json", f"{2:020d}.json.bak", f"x/{2:020d}.json", f"{0:020d}.json"):
            lake.put({f"_s3commit/log/{name}": b"x"})
        assert of_job(lake).read() == find_head(lake.store, HERE) == 1


class TestHead:
    def test_an_empty_log(self) -> None:
        """Before the first entry there is no head and no commit."""
        lake = Lake()
        assert find_head(lake.store, HERE) == 0
        assert newest_commit(lake.store, HERE) is None

    def test_a_long_log_takes_three_requests(self) -> None:
        """The marker shows the end of a log that is longer than a page."""
        lake = Lake()
        filled(lake, 2_500)
        mark(lake, 2_499)
        made = calls(lake, lambda: find_head(lake.store, HERE))
        assert [call.verb for call in made] == ["list_objects", "get", "list_objects"]
        assert find_head(lake.store, HERE) == 2_500

    @pytest.mark.parametrize("after", [0, 1, 12])
    def test_the_newest_of_ten_thousand_takes_three_requests(self, after: int) -> None:
        """It takes the marker, one listing and the entry, even if the marker is of an older generation."""
        lake = Lake()
        filled(lake, 9_999)
        write(lake, entry(10_000, OURS, "dt=1"))
        mark(lake, 10_000 - after)
        made = calls(lake, lambda: latest_manifest(lake.store, HERE))
        assert [call.verb for call in made] == ["get", "list_objects", "get"]
        assert made[-1].key == entry_key(HERE, 10_000)

    @pytest.mark.parametrize("generation", [None, 0, 7, 1_000, 2_500, 2_501, 10**18])
    def test_no_marker_misleads(self, generation: int | None) -> None:
        """Whatever entry the marker names, existing or not, the head is the last one that exists."""
        lake = Lake()
        filled(lake, 2_500)
        if generation is not None:
            mark(lake, generation)
        assert find_head(lake.store, HERE) == 2_500

    @pytest.mark.parametrize(("checkpoint", "listed"), [(2_496, 1_006), (7, 2_501), (9_999, 2_501)])
    def test_without_a_marker_a_checkpoint_shows_the_end(
        self, checkpoint: int, listed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While a job publishes, the newest checkpoint replaces the marker; a false one is detected."""
        lake = Lake()
        seen: list[str] = []
        filled(lake, 2_500)
        lake.store.put(BUCKET, checkpoint_key(HERE, checkpoint), b"never read")
        listing = lake.store.list_objects

        def counted(*args: Any, **options: Any) -> Iterator[ObjectInfo]:
            for info in listing(*args, **options):
                seen.append(info.key)
                yield info

        monkeypatch.setattr(lake.store, "list_objects", counted)
        assert find_head(lake.store, HERE) == 2_500
        assert len(seen) == listed

    @each("body", [b"", b"PAR1", bytes(5 << 20)])
    def test_an_unreadable_marker_does_no_harm(self, body: bytes) -> None:
        """If the marker is another program's, the log is listed to its end."""
        lake = Lake()
        filled(lake, 1_001)
        lake.put({"_SUCCESS": body})
        assert find_head(lake.store, HERE) == 1_001

    @pytest.mark.parametrize("count", [999, 1_000, 1_001])
    def test_a_log_of_about_a_page(self, count: int) -> None:
        """Neither a full page nor one entry more or less hides the end."""
        lake = Lake()
        filled(lake, count)
        assert find_head(lake.store, HERE) == of_job(lake, position=None).read() == count

    def test_aborted_jobs_are_skipped(self) -> None:
        """The newest commit is the last entry of that kind."""
        lake = Lake()
        write(lake, entry(1, an_id("a")), entry(2, OURS), entry(3, THEIRS, kind="abandon"))
        newest = newest_commit(lake.store, HERE)
        assert newest is not None
        assert (newest.job_id, newest.number) == (OURS, 2)

    def test_many_aborted_jobs_in_a_row_are_skipped(self) -> None:
        """However many follow it, the last commit is found; before a baseline there is none."""
        lake = Lake()
        aborted = [entry(number, an_id(f"{number}"), kind="abandon") for number in range(2, 41)]
        write(lake, entry(1, OURS), *aborted)
        newest = newest_commit(lake.store, HERE)
        assert newest is not None
        assert newest.number == 1
        place = {"job_id": THEIRS, "destination": HERE.uri, "staging": f"{HERE.uri}__magic_job-{THEIRS}/"}
        baseline = Baseline(reason="data", since=0)
        write(lake, LogEntry(**place, number=41, kind="baseline", epoch=41, baseline=baseline, nonce="n"))
        assert newest_commit(lake.store, HERE) is None

    def test_a_copied_log_has_no_commit(self) -> None:
        """Copied entries are not history, nor are aborts that followed the copy."""
        lake = Lake()
        write(lake, entry(1, OURS, uri="s3://lake/trains/"), entry(2, THEIRS, kind="abandon"))
        assert newest_commit(lake.store, HERE) is None

    def test_a_gap_hides_no_commit(self) -> None:
        """A missing entry may have been the newest commit, so an older one is not taken for it."""
        lake = Lake()
        write(lake, entry(1, OURS), entry(3, THEIRS, kind="abandon"))
        with pytest.raises(InvalidRecord, match=r"0002\.json is missing"):
            newest_commit(lake.store, HERE)


def mark(lake: Lake, generation: int) -> None:
    """Write a marker that names an entry."""
    name = "org.apache.hadoop.fs.s3a.commit.files.SuccessData/1"
    plain = {"name": name, "diagnostics": {"s3commit.generation": str(generation)}}
    lake.put({"_SUCCESS": msgspec.json.encode(plain)})


def test_a_whole_commit_leaves_the_next_job_nothing_to_read() -> None:
    """A job that is set up after a commit notes that entry, and only reads what comes later."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}).commit()
    job = lake.sealed({"dt=2/b": b"2"}, job_id=THEIRS)
    context: JobContext = lake.context(THEIRS, record=job.record())
    assert job.record().log == 1
    made = calls(lake, Log(context).read)
    assert [call.verb for call in made] == ["list_objects"]
