"""Versions of a Delta table: what is published, what is refused, and what it costs."""

from __future__ import annotations

import json
import logging
from typing import Any

import pyarrow as pa
import pytest

from airflow_s3commit import (
    Destination,
    Job,
    JobOptions,
    MemoryStore,
    repair,
    rollback,
    sweep,
    verify,
    write_job,
)
from airflow_s3commit.exceptions import InvalidOption, InvalidRecord, NoSuchKey, OutcomeUnknown
from airflow_s3commit.protocol.inspect import verify_log
from airflow_s3commit.protocol.model import delta
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.publication import publish_table
from airflow_s3commit.protocol.steps.fold import entries_after
from airflow_s3commit.protocol.steps.publish import is_of
from airflow_s3commit.testing import Crash, Fault, FaultyStore, StoreCall
from tests.cases import each
from tests.fakes import ManualClock
from tests.protocol.published import columns, generations, replayed, versions

URI = "s3://lake/flights/"
LOG = "flights/_delta_log/"
LONG = columns(("x", "long"), ("dt", "integer"))


class Lake:
    """A dataset, and the jobs of one process that write to it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(("lake",), min_part_bytes=1, now=self.clock.time)

    def write(
        self,
        *paths: str,
        mode: str = "append",
        schema: str | None = LONG,
        store: Any = None,
        publish: Any = "delta",
        **options: Any,
    ) -> Any:
        """Commit files, and return their manifest."""
        made = JobOptions(conflict_mode=mode, publish=publish, **options)  # type: ignore[arg-type]
        with write_job(URI, store=store or self.store, job_options=made, clock=self.clock) as writer:
            for path in paths:
                with writer.open(path) as file:
                    file.write(b"rows")
            writer.describe(len(paths), schema)
        return writer.manifest

    def put(self, key: str, body: bytes = b"older") -> None:
        self.store.put("lake", f"flights/{key}", body)

    def check(self) -> list[set[str]]:
        """Check that the versions are those of the log, and that verify finds nothing; return the tables."""
        tables = replayed(self.store, URI)
        assert tables == generations(self.store, URI)
        report = verify(self.store, URI)
        assert report.sound, report
        return tables


@pytest.mark.parametrize("first", ["publish", "markers"])
def test_markers_and_publication_are_kept_whichever_comes_first(first: str) -> None:
    """What one entry has turned on, all later ones have: commits and aborts of jobs that ask for neither."""
    lake = Lake()
    both: list[dict[str, Any]] = [{"publish": "delta"}, {"publish": None, "partition_success": True}]
    for number, options in enumerate(both if first == "publish" else reversed(both)):
        lake.write(f"dt={number}/a.parquet", **options)
    lake.write("dt=2/a.parquet", publish=None)
    with pytest.raises(RuntimeError), write_job(URI, store=lake.store, conflict_mode="append"):
        raise RuntimeError("the write fails")
    lake.write("dt=0/b.parquet", mode="replace", publish=None)
    entries = [read.entry for read in entries_after(lake.store, Destination.parse(URI), Position())]
    begun = next(one.number for one in entries if one.marks and one.published)
    assert [(one.marks, bool(one.published)) for one in entries[begun - 1 :]] == [(True, True)] * 4
    assert begun == 3
    lake.check()
    for name in ("dt=0", "dt=2"):
        assert lake.store.head("lake", f"flights/{name}/_SUCCESS")


def test_each_entry_is_a_version() -> None:
    """After append, replace, abort, rollback and retention, versions are gapless and add up to the table."""
    lake = Lake()
    lake.write("dt=1/a.parquet", "dt=2/a.parquet")
    lake.write("dt=1/b.parquet", mode="replace", retain="2h")
    with pytest.raises(RuntimeError), write_job(URI, store=lake.store, conflict_mode="append"):
        raise RuntimeError("the write fails")
    lake.write(
        "dt=3/c.parquet", publish=None, schema=columns(("x", "long"), ("y", "string"), ("dt", "integer"))
    )
    rollback(lake.store, URI, to=3, clock=lake.clock)
    rollback(lake.store, URI, to=2, retain="1s", clock=lake.clock)
    lake.clock.advance(86_400)
    sweep(lake.store, URI, older_than=60, dry_run=False, clock=lake.clock)
    tables = lake.check()
    assert [len(table) for table in tables] == [2, 2, 2, 3, 2, 2, 2]
    found = versions(lake.store, URI)
    changed = [version for version, actions in found.items() if any("metaData" in one for one in actions)]
    assert changed == [0, 3, 4]
    kinds = [actions[0]["commitInfo"]["operationParameters"]["mode"] for actions in found.values()]
    assert kinds == ["append", "replace", "abandon", "append", "rollback", "rollback", "release"]


def test_a_table_with_history_is_published() -> None:
    """The first version has all of its files; once more nothing happens; what is missing is written again."""
    lake = Lake()
    lake.write("dt=1/a.parquet", publish=None)
    lake.write("dt=2/b.parquet", publish=None)
    report = publish_table(lake.store, URI)
    assert (report.generation, report.version, report.written) == (4, 0, 1)
    assert publish_table(lake.store, URI).written == 0
    lake.write("dt=3/c.parquet", publish=None)
    assert [len(table) for table in lake.check()] == [2, 3]
    for version in (0, 1):
        lake.store.delete("lake", f"{LOG}{version:020}.json")
    report = publish_table(lake.store, URI)
    assert (report.version, report.written) == (1, 2)
    lake.check()


@each("version", [0, 1, 2])
def test_verify_says_what_is_missing_and_repair_writes_it(version: int) -> None:
    """Each version whose job is finished must be there."""
    lake = Lake()
    for name in "abc":
        lake.write(f"dt=1/{name}.parquet")
    lake.store.delete("lake", f"{LOG}{version:020}.json")
    (finding,) = verify(lake.store, URI).log
    assert finding.where == f"s3://lake/{LOG}{version:020}.json"
    assert finding.problem == "is missing"
    assert repair(lake.store, URI, dry_run=False).is_sound
    lake.check()


def test_a_version_of_another_program_is_found_and_left() -> None:
    """Verify names it, a commit that comes upon it stops, and nobody writes over it."""
    lake = Lake()
    lake.write("dt=1/a.parquet")
    lake.put(f"_delta_log/{1:020}.json", b'{"commitInfo":{"operation":"WRITE"}}\n')
    with pytest.raises(OutcomeUnknown, match="is not the version of entry 3: another program wrote it"):
        lake.write("dt=1/b.parquet")
    (finding,) = (one for one in verify(lake.store, URI).log if "_delta_log" in one.where)
    assert "move it away" in finding.remedy
    assert not repair(lake.store, URI, dry_run=False).is_sound
    lake.put(f"_delta_log/{1:020}.json", lake.store.get("lake", f"{LOG}{0:020}.json").body)
    with pytest.raises(InvalidRecord, match=r"is not the version of entry 3.*s3commit publish"):
        lake.write("dt=1/c.parquet")
    lake.store.delete("lake", f"{LOG}{1:020}.json")
    assert repair(lake.store, URI, dry_run=False).is_sound
    lake.check()


@each("when", ["a setup", "a commit", "the same commit"])
def test_a_first_version_that_comes_meanwhile_is_no_other_program_s(when: str) -> None:
    """Jobs that begin the publication at once, and processes that commit the same one, are not refused."""
    lake, jobs = Lake(), []
    lake.write("dt=1/a.parquet", publish=None)

    def meanwhile(call: StoreCall) -> None:
        if call.verb == "list_objects" and call.key == LOG:
            store.before = lambda _: None
            if when == "the same commit":
                Job.at(lake.store, jobs[0].reference).commit()
            else:
                lake.write("dt=1/b.parquet")

    store = FaultyStore(lake.store)
    store.before = meanwhile if when == "a setup" else store.before
    options = JobOptions(conflict_mode="append", publish="delta")
    with write_job(URI, store=store, job_options=options, clock=lake.clock) as writer:
        jobs.append(writer.job)
        with writer.open("dt=1/c.parquet") as file:
            file.write(b"rows")
        writer.describe(1, LONG)
        store.before = meanwhile
    assert writer.manifest is not None
    assert len(lake.check()[-1]) == (2 if when == "the same commit" else 3)


def test_an_abort_by_a_receipt_of_an_older_log_publishes_nothing() -> None:
    """Versions for other engines follow from the log that is there, not from what is left of an older one."""
    lake = Lake()
    lake.write("dt=1/a.parquet")
    job = Job.setup(lake.store, URI, clock=lake.clock)
    job.abort()
    for prefix in ("flights/_s3commit/log/", LOG):
        for info in list(lake.store.list_objects("lake", prefix)):
            lake.store.delete("lake", info.key)
    lake.write("dt=1/b.parquet", publish=None)
    late = f"flights/dt=1/late-{job.reference.job_id}.parquet"
    lake.store.create_upload("lake", late, metadata={}, content_type="x")
    job.abort()
    assert list(lake.store.list_uploads("lake", "")) == []
    assert versions(lake.store, URI) == {}


def test_what_other_engines_would_read_beyond_the_log_is_found() -> None:
    """Verify names a version of no entry and a missing checkpoint; publish stops at another's version."""
    lake = Lake()
    lake.write("dt=1/a.parquet")
    lake.put(f"_delta_log/{2:020}.json")
    lake.put("_delta_log/_last_checkpoint", b'{"version":7}')
    found = {one.where.rpartition("/")[2]: one.problem for one in verify(lake.store, URI).log}
    last = {"_last_checkpoint": "names checkpoint 7, which is not there"}
    assert found == {f"{2:020}.json": "is of no entry of the log", **last}
    lake.store.delete("lake", f"{LOG}{2:020}.json")
    lake.store.delete("lake", f"{LOG}_last_checkpoint")
    lake.put(f"_delta_log/{0:020}.json")
    with pytest.raises(InvalidRecord, match="is not the version of entry 2"):
        publish_table(lake.store, URI)


@each("cut", ["a line", "some bytes", "the first line"])
@each("version", [0, 2])
def test_a_version_that_is_cut_off_is_found(cut: str, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify counts the files of a version, however long it is; without the rest a repair writes it anew."""
    lake = Lake()
    lake.write("dt=1/a.parquet", "dt=2/a.parquet", partition_success=True)
    lake.write("dt=1/b.parquet")
    lake.write("dt=1/c.parquet", mode="replace")
    lake.write("dt=3/d.parquet")
    monkeypatch.setattr(verify_log, "START_BYTES", 100)
    monkeypatch.setattr(verify_log, "_PIECE", 300)
    lake.check()
    key = f"{LOG}{version:020}.json"
    lines = lake.store.get("lake", key).body.splitlines(keepends=True)
    kept = {"a line": lines[:-1], "some bytes": [*lines[:-1], lines[-1][:-1]], "the first line": lines[:1]}
    lake.store.put("lake", key, b"".join(kept[cut]))
    (finding,) = verify(lake.store, URI).log
    assert finding.where == f"s3://lake/{key}"
    assert finding.problem == f"is not all of the version of entry {version + 2}"
    assert not repair(lake.store, URI, dry_run=False).is_sound
    lake.store.delete("lake", key)
    assert repair(lake.store, URI, dry_run=False).is_sound
    lake.check()


@each("body", [b"", b"no Parquet", b"PAR1", b"PAR1....PAR1", b"PAR1" + b"." * 9 + b"\x09\0\0\0PAR1"])
def test_a_checkpoint_that_is_cut_off_is_found(body: bytes) -> None:
    """Verify names one that does not begin and end as a Parquet file; one that does is left alone."""
    lake = Lake()
    lake.write("dt=1/a.parquet")
    key = f"_delta_log/{0:020}.checkpoint.parquet"
    lake.put(key, body)
    found = [finding.problem for finding in verify(lake.store, URI).log]
    assert found == ([] if len(body) == 21 else ["is no whole Parquet file"])


@each("name", ["{}.json.bak", "{}.00000000000000000009.compacted.json", "{}.crc"])
def test_only_a_checkpoint_stands_for_versions(name: str) -> None:
    """A copy that somebody has kept beside a version that is gone does not, nor what else Delta writes."""
    lake = Lake()
    for one in "abc":
        lake.write(f"dt=1/{one}.parquet")
    lake.put("_delta_log/" + name.format(f"{1:020}"))
    lake.store.delete("lake", f"{LOG}{1:020}.json")
    (finding,) = verify(lake.store, URI).log
    assert finding.problem == "is missing"
    assert publish_table(lake.store, URI).written == 1
    lake.store.delete("lake", LOG + name.format(f"{1:020}"))
    lake.check()


def test_a_checkpoint_beyond_the_log_stands_for_no_version() -> None:
    """Another program wrote it, so what is missing before it is written again."""
    lake = Lake()
    for one in "ab":
        lake.write(f"dt=1/{one}.parquet")
    lake.put(f"_delta_log/{9:020}.checkpoint.parquet")
    lake.store.delete("lake", f"{LOG}{0:020}.json")
    assert publish_table(lake.store, URI).written == 1
    lake.store.delete("lake", f"{LOG}{9:020}.checkpoint.parquet")
    lake.check()


@each("foreign", [b"", b'{"commitInfo":{"operation":"WRITE"}}\n{"txn":"n-1"}', b"no json"])
def test_a_version_says_which_entry_it_is_of(foreign: bytes) -> None:
    """By its first line; that of another program does not."""
    assert is_of(b'{"commitInfo":{"s3commit":{"nonce":"n-1"}}}\n{}', "n-1")
    assert not is_of(foreign, "n-1")


def _untouched(lake: Lake, before: list[str]) -> None:
    """Check that nothing was uploaded, and nothing entered the table."""
    assert [info.key for info in lake.store.list_objects("lake", "flights/") if "/dt=" in info.key] == before
    assert not list(lake.store.list_uploads("lake", "flights/"))
    assert not list(lake.store.list_objects("lake", LOG))


def test_setup_refuses_what_is_known_then() -> None:
    """Older files whose columns nobody recorded, another Delta table, and Hadoop's jobs."""
    lake = Lake()
    lake.put("dt=1/older.parquet")
    with pytest.raises(InvalidOption, match=r"older than the log.*generation 1.*are unknown"):
        lake.write("dt=1/a.parquet")
    _untouched(lake, ["flights/dt=1/older.parquet"])
    lake.write("dt=1/a.parquet", mode="replace")
    lake.check()
    lake = Lake()
    lake.put(f"_delta_log/{0:020}.json")
    with pytest.raises(InvalidOption, match="of another program"):
        lake.write("dt=1/a.parquet")


def test_a_replace_must_leave_no_unknown_file() -> None:
    """It is refused before its first file is completed, and the job that it was leaves no trace."""
    lake = Lake()
    lake.put("dt=2/older.parquet")
    with pytest.raises(InvalidOption, match=r"generation 1.*are unknown"):
        lake.write("dt=1/a.parquet", mode="replace")
    _untouched(lake, ["flights/dt=2/older.parquet"])


@each(
    ("path", "schema", "fault"),
    [
        ("dt=1/a.parquet", None, "are unknown"),
        ("dt=1/a.parquet", columns(("x", "uint8"), ("dt", "integer")), "type uint8"),
        ("dt=1/a.parquet", columns(("x", "long"), ("dt", "integer"), form="orc"), "orc files"),
        ("dt=one/a.parquet", LONG, "have no place"),
        ("a.parquet", LONG, "the root' have no place"),
    ],
)
@each("published", [False, True])
def test_a_commit_refuses_what_delta_cannot_have(path: str, schema: Any, fault: str, published: bool) -> None:
    """Before its first file is completed, of a job that asks for publication or of a published table."""
    lake = Lake()
    if published:
        lake.write("dt=7/z.parquet")
    refused = FaultyStore(lake.store)
    with pytest.raises(InvalidOption, match=fault):
        lake.write(path, schema=schema, store=refused, publish=None if published else "delta")
    assert not [call for call in refused.calls if call.verb == "complete_upload"]
    assert len(replayed(lake.store, URI)) == (2 if published else 0)
    assert not list(lake.store.list_uploads("lake", "flights/"))


def test_a_widened_column_is_refused_while_older_files_stay() -> None:
    """The error names the older job; a commit that replaces them all is published."""
    lake, wide = Lake(), columns(("x", "double"), ("dt", "integer"))
    older = lake.write("dt=1/a.parquet")
    with pytest.raises(InvalidOption, match=f"type double, and long in the files of job {older.job_id}"):
        lake.write("dt=2/b.parquet", schema=wide)
    lake.write("dt=1/b.parquet", mode="replace", schema=wide, retain="1d")
    lake.check()
    # Back to the older type, and to a table of both.
    rollback(lake.store, URI, to=2, retain="1d", clock=lake.clock)
    assert replayed(lake.store, URI) == generations(lake.store, URI)


def test_a_type_of_a_partition_column_must_fit_the_files_that_stay() -> None:
    """A column of unknown type is text, until a job knows better; a replace of the whole table is free."""
    lake, date = Lake(), columns(("x", "long"), ("dt", "date"))
    lake.write("dt=20130101/a.parquet", schema=columns(("x", "long"), ("dt", "void")))
    with pytest.raises(InvalidOption, match="'dt=20130101' have no place"):
        lake.write("dt=2013-01-02/b.parquet", schema=date)
    lake.write("dt=2013-01-02/b.parquet", schema=date, mode="replace", committer="directory")
    assert [len(table) for table in lake.check()] == [1, 1, 1]


def test_a_preview_of_a_rollback_refuses_what_the_rollback_would() -> None:
    """Of a table that was not published at that generation, and had files that Delta does not have."""
    lake = Lake()
    csv = columns(("x", "long"), ("dt", "integer"), form="csv")
    lake.write("dt=1/a.csv", schema=csv, publish=None)
    lake.write("dt=1/a.parquet", mode="replace", retain="7d")
    for dry_run in (True, False):
        with pytest.raises(InvalidOption, match="csv files"):
            rollback(lake.store, URI, to=2, clock=lake.clock, dry_run=dry_run)


def test_publication_that_begins_beside_a_job_refuses_it() -> None:
    """A job that was set up before, with files that Delta cannot have, is aborted at its commit."""
    lake, other = Lake(), columns(("x", "uint8"), ("dt", "integer"))
    lake.write("dt=1/a.parquet", publish=None)

    def overtaken() -> None:
        with write_job(URI, store=lake.store, conflict_mode="append") as writer:
            with writer.open("dt=2/b.parquet") as file:
                file.write(b"rows")
            writer.describe(1, other)
            publish_table(lake.store, URI)

    with pytest.raises(InvalidOption, match="type uint8"):
        overtaken()
    assert [len(table) for table in lake.check()] == [1, 1]


def test_a_table_without_columns_is_published_once_it_has_some() -> None:
    """A commit of nothing makes no version that readers could not read."""
    lake = Lake()
    with pytest.raises(NoSuchKey, match="no log"):
        publish_table(lake.store, URI)
    lake.write(schema=None)
    assert versions(lake.store, URI) == {}
    with pytest.raises(InvalidOption, match="no columns yet"):
        publish_table(lake.store, URI)
    lake.write("dt=1/a.parquet")
    lake.write("dt=1/b.parquet", mode="replace", committer="directory")
    lake.write(mode="replace", committer="directory", schema=None)
    assert [len(table) for table in lake.check()] == [1, 1, 0]


def test_a_table_that_is_not_published_costs_nothing() -> None:
    """No request names the Delta log, and no entry speaks of it; publication costs one PUT a commit."""
    lake, puts = Lake(), []
    store = FaultyStore(lake.store)
    for publish in (None, "delta"):
        lake.write("dt=1/a.parquet", store=store, publish=None)
        store.calls.clear()
        lake.write("dt=1/b.parquet", store=store, publish=publish)
        calls = [call for call in store.calls if LOG in call.key]
        puts.append(sum(call.verb == "put" for call in store.calls))
        assert bool(calls) == (publish is not None)
    assert puts[1] == puts[0] + 1
    body = lake.store.get("lake", f"flights/_s3commit/log/{3:020}.json").body
    assert b"published" not in body


def test_a_dead_commit_is_published_by_the_next_one() -> None:
    """Whoever creates an entry writes the version of the newest one first."""
    lake = Lake()
    lake.write("dt=1/a.parquet")
    dying = FaultyStore(lake.store, Fault("crash-before", "put", f"*{LOG}*"))
    with pytest.raises(Crash):
        lake.write("dt=1/b.parquet", mode="replace", store=dying)
    assert verify(lake.store, URI).log == []
    assert len(replayed(lake.store, URI)) == 1
    assert replayed(lake.store, URI)[-1] <= {info.key for info in lake.store.list_objects("lake", "flights/")}
    lake.write("dt=2/c.parquet")
    assert [len(table) for table in replayed(lake.store, URI)] == [1, 1, 2]


def test_a_publication_that_fails_after_its_entry_may_have_happened() -> None:
    """The error says that the table is published, and what to do; to publish it again completes it."""
    lake = Lake()
    lake.write("dt=1/a.parquet", publish=None)
    failing = FaultyStore(lake.store, Fault("refuse", "list_objects", f"*{LOG}", nth=3))
    with pytest.raises(OutcomeUnknown, match=r"published, as entry 3 of its log.*publish it again"):
        publish_table(failing, URI)
    assert failing.struck
    assert publish_table(lake.store, URI).generation == 3
    lake.check()


def test_a_dead_release_is_published_by_the_next_sweep() -> None:
    """No job is found for its entry, and nothing need be left to release."""
    lake = Lake()
    lake.write("dt=1/a.parquet")
    lake.write("dt=1/b.parquet", mode="replace", retain="1s")
    lake.clock.advance(10)
    dying = FaultyStore(lake.store, Fault("crash-before", "put", f"*{LOG}*"))
    with pytest.raises(Crash):
        sweep(dying, URI, older_than=3600, dry_run=False, clock=lake.clock, threads=0)
    assert len(replayed(lake.store, URI)) == 2
    assert sweep(lake.store, URI, older_than=3600, dry_run=False, clock=lake.clock).replaced == 1
    assert [len(table) for table in lake.check()] == [1, 1, 1]


def test_a_lost_answer_is_read_back() -> None:
    """The version is there, or the commit is to be finished again."""
    lake = Lake()
    lake.write("dt=1/a.parquet", store=FaultyStore(lake.store, Fault("lose-answer", "put", f"*{LOG}*")))
    lake.check()
    with pytest.raises(OutcomeUnknown, match="is committed, as entry 3"):
        lake.write("dt=1/b.parquet", store=FaultyStore(lake.store, Fault("deny", "put", f"*{LOG}*")))
    lake.write("dt=1/c.parquet")
    assert len(replayed(lake.store, URI)) == 3


def test_very_many_files_are_published_without_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows are enough to count them."""
    monkeypatch.setattr(delta, "MOST_WITH_BOUNDS", 1)
    lake = Lake()
    for days in ([1], [2, 3]):
        options = JobOptions(conflict_mode="append", publish="delta")
        with write_job(URI, store=lake.store, job_options=options) as writer:
            writer.write_table(pa.table({"x": days, "dt": days}), partition_by=["dt"])
    said = ["minValues" in json.dumps(one) for one in versions(lake.store, URI).values()]
    assert said == [True, False]


def test_a_short_retention_is_said_to_cut_queries_off(caplog: pytest.LogCaptureFixture) -> None:
    """The setup of a job that may replace files warns of queries that still read them."""
    lake = Lake()
    with caplog.at_level(logging.WARNING):
        lake.write("dt=1/a.parquet")
        lake.write("dt=1/b.parquet", mode="replace", retain="2h")
        assert not caplog.messages
        lake.write("dt=1/c.parquet", mode="replace", retain="59m")
    assert "a query of another engine fails if it still reads files" in caplog.messages[0]
