"""A snapshot is the sum of a log's commits, wherever checkpoints interrupt the summing."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.model import log as module
from airflow_s3commit.protocol.model.log import Baseline, LiveCommit, LogEntry, Release, Removal
from airflow_s3commit.protocol.model.snapshot import TableSnapshot
from tests.cases import each
from tests.protocol.building import an_id
from tests.protocol.metadata.test_log import HERE, entry

THERE = "s3://lake/trains/"

#: Partition and name of each file of a commit, and what the commit removes; None for an aborted job.
Commit = tuple[frozenset[tuple[str, str]], Removal] | None

FILES = st.frozensets(st.tuples(st.sampled_from(["", "dt=1", "dt=2"]), st.sampled_from(["a", "b"])))
COMMITS = st.lists(
    st.none() | st.tuples(FILES, st.sampled_from(["nothing", "partitions", "everything"])), max_size=12
)


def entries(commits: list[Commit]) -> list[LogEntry]:
    """Return the log of these commits, each of its own job; every other one has its list within."""
    made = []
    for number, commit in enumerate(commits, start=1):
        job_id = an_id(str(number))
        if commit is None:
            made.append(entry(number, job_id, kind="abandon"))
        else:
            files, removes = commit
            one = entry(number, job_id, *sorted({p for p, _ in files}), removes=removes)
            made.append(within(one) if number % 2 else one)
    return made


def within(one: LogEntry) -> LogEntry:
    """Return a commit whose list of files lies within its entry."""
    return replace(one, manifest=replace(one.manifest, within=[]))


def fold(log: list[LogEntry], begun: TableSnapshot | None = None) -> TableSnapshot:
    """Return the snapshot after these entries."""
    snapshot = begun or TableSnapshot(HERE.uri)
    for one in log:
        snapshot.apply(one)
    return snapshot


def files_of(commits: list[Commit], live: list[LiveCommit]) -> dict[tuple[str, str], int]:
    """Return the commit of each file, as a reader combines the lists of files."""
    found: dict[tuple[str, str], int] = {}
    for commit in live:
        known = commits[commit.number - 1]
        assert known is not None
        found |= {file: commit.number for file in known[0] if file[0] in commit.partitions}
    return found


def applied(commits: list[Commit]) -> dict[tuple[str, str], int]:
    """Return the commit of each file, as a directory would hold them after each commit in turn."""
    table: dict[tuple[str, str], int] = {}
    for number, commit in enumerate(commits, start=1):
        if commit is None:
            continue
        files, removes = commit
        touched = {partition for partition, _ in files}
        if removes == "everything":
            table = {}
        elif removes == "partitions":
            table = {file: by for file, by in table.items() if file[0] not in touched}
        table |= dict.fromkeys(files, number)
    return table


@given(COMMITS)
def test_a_snapshot_has_the_files_that_the_commits_leave(commits: list[Commit]) -> None:
    """Each file of the table appears once, as the last commit that wrote it left it, and no other file."""
    snapshot = fold(entries(commits))
    table = applied(commits)
    assert files_of(commits, snapshot.commits()) == table
    assert set(snapshot.partitions) == {partition for partition, _ in table}
    made = [number for number, commit in enumerate(commits, start=1) if commit is not None]
    assert (snapshot.number, snapshot.generation) == (len(commits), max(made, default=0))


@given(COMMITS, st.integers(0, 12))
def test_files_since_a_generation_are_those_of_later_commits(commits: list[Commit], since: int) -> None:
    """Files since a generation are exactly the table's files of later commits."""
    found = files_of(commits, fold(entries(commits)).commits(since))
    assert found == {file: number for file, number in applied(commits).items() if number > since}


@given(COMMITS, st.integers(0, 12))
def test_a_checkpoint_continues_where_it_ends(commits: list[Commit], cut: int) -> None:
    """A log folded from a checkpoint in its middle gives the snapshot of the whole log, byte for byte."""
    log = entries(commits)
    before = fold(log[:cut])
    number = before.number
    if not number:
        return
    body = before.to_bytes()
    again = TableSnapshot.from_bytes(body, HERE.uri, number, "s3://lake/there")
    assert (again, again.to_bytes()) == (before, body)
    assert fold(log[cut:], again).to_bytes() == fold(log).to_bytes()


@given(COMMITS, st.integers(0, 12))
def test_a_checkpoint_keeps_what_is_retained(commits: list[Commit], cut: int) -> None:
    """Retained and released files survive a checkpoint; the table is that of a log without retention."""
    log = [retaining(one) for one in entries(commits)]
    before = fold(log[:cut])
    if not before.number:
        return
    again = TableSnapshot.from_bytes(before.to_bytes(), HERE.uri, before.number, "s3://lake/there")
    assert (again, again.retained()) == (before, before.retained())
    whole = fold(log)
    assert fold(log[cut:], again).to_bytes() == whole.to_bytes()
    assert whole.commits() == fold(entries(commits)).commits()


def retaining(one: LogEntry) -> LogEntry:
    """Return a commit that retains what it removes; for an abort, return a release."""
    if one.kind == "commit":
        return replace(one, retain=60, retaining=True)
    release = Release(commits=list(range(1, one.number, 2)), finished=max(one.number - 3, 0), since=0)
    return replace(one, kind="release", aborted=None, release=release)


def test_retained_files_are_released_once_and_then_forgotten() -> None:
    """A release names the commits that removed files; the next one says that they are deleted."""
    snapshot = TableSnapshot(HERE.uri)
    snapshot.apply(entry(1, an_id("1"), "dt=1", "dt=2"))
    snapshot.apply(retaining(entry(2, an_id("2"), "dt=1", removes="partitions")))
    snapshot.apply(retaining(entry(3, an_id("3"), removes="everything")))
    kept = [(one.number, one.partitions, one.removed, one.released) for one in snapshot.retained()]
    assert kept == [(1, ["dt=1"], 2, 0), (1, ["dt=2"], 3, 0), (2, ["dt=1"], 3, 0)]
    for number, (commits, finished) in enumerate([([2], 0), ([2, 3], 4), ([], 5)], start=4):
        release = Release(commits=commits, finished=finished, since=0)
        abandon = entry(number, an_id(str(number)), kind="abandon")
        snapshot.apply(replace(abandon, kind="release", aborted=None, release=release))
        kept = [(one.removed, one.released) for one in snapshot.retained()]
        assert kept == {4: [(2, 4), (3, 0), (3, 0)], 5: [(3, 5), (3, 5)], 6: []}[number]


def test_restored_files_have_their_schemas() -> None:
    """A rollback, even after a checkpoint, restores the schemas of the files."""

    def described(one: LogEntry, schema: str) -> LogEntry:
        return replace(one, manifest=replace(one.manifest, schemas=[schema]))

    snapshot = TableSnapshot(HERE.uri)
    snapshot.apply(described(entry(1, an_id("1"), "dt=1"), "old"))
    [live] = snapshot.commits()
    second = described(entry(2, an_id("2"), "dt=1", removes="partitions"), "new")
    snapshot.apply(replace(second, retain=60))
    again = TableSnapshot.from_bytes(snapshot.to_bytes(), HERE.uri, 2, "s3://lake/there")
    assert again == snapshot
    again.apply(replace(entry(3, an_id("3"), "dt=1", removes="partitions"), restores=[live], retain=60))
    assert ([one.schema for one in again.schemas()], again.without_schemas()) == (["old"], [])
    assert [(one.number, one.removed) for one in again.retained()] == [(2, 3)]


def test_the_place_of_a_list_goes_with_its_commit() -> None:
    """It stays with a retained, checkpointed or rolled back commit."""
    snapshot = fold([within(entry(1, an_id("1"), "dt=1", "dt=2"))])
    [first] = snapshot.commits()
    snapshot.apply(replace(entry(2, an_id("2"), "dt=1", removes="partitions"), retain=60))
    assert [(one.number, one.within) for one in snapshot.commits()] == [(1, True), (2, False)]
    again = TableSnapshot.from_bytes(snapshot.to_bytes(), HERE.uri, 2, "s3://lake/there")
    assert again == snapshot
    assert [(one.number, one.within) for one in again.retained()] == [(1, True)]
    roll_back = entry(3, an_id("3"), "dt=1", removes="partitions")
    again.apply(replace(roll_back, restores=[replace(first, partitions=["dt=1"])], retain=60))
    assert [(one.number, one.within) for one in again.commits()] == [(1, True)]
    assert [(one.number, one.within) for one in again.retained()] == [(2, False)]


def test_copied_entries_are_not_history() -> None:
    """A copy of another table begins without files: those that its copied entries name are elsewhere."""
    copied = [entry(1, an_id("1"), "dt=1", uri=THERE), entry(2, an_id("2"), "dt=2", uri=THERE)]
    assert fold(copied).generation == 0
    own = fold([*copied, entry(3, an_id("3"), "dt=1")])
    assert [commit.number for commit in own.commits()] == [3]


def test_a_baseline_holds_until_everything_is_removed() -> None:
    """A checkpoint keeps the partitions whose baseline files were all removed by commits."""
    begun = TableSnapshot(HERE.uri)
    begun.apply(entry(1, an_id("1"), "dt=1"))
    baseline = Baseline(reason="data", since=0)
    job_id = an_id("2")
    place = {"job_id": job_id, "destination": HERE.uri, "staging": f"{HERE.uri}__magic_job-{job_id}/"}
    begun.apply(LogEntry(**place, number=2, kind="baseline", epoch=2, baseline=baseline, nonce="n"))
    assert (begun.baseline, begun.commits()) == (2, [])
    begun.apply(entry(3, an_id("3"), "dt=1", removes="partitions"))
    begun.apply(entry(4, an_id("4"), "dt=2"))
    again = TableSnapshot.from_bytes(begun.to_bytes(), HERE.uri, 4, "s3://lake/there")
    assert (again, again.baseline, again.removed) == (begun, 2, {"dt=1"})
    again.apply(entry(5, an_id("5"), removes="everything"))
    assert (again.baseline, again.removed) == (0, set())


def checkpoint(**changes: Any) -> bytes:
    """Return a checkpoint with two commits, edited as text."""
    text = gzip.decompress(fold(entries([(frozenset({("dt=1", "a")}), "nothing")] * 2)).to_bytes())
    for old, new in changes.pop("text", ()):
        assert old in text
        text = text.replace(old, new)
    return gzip.compress(text)


@each(
    ("body", "message"),
    [
        (b"", "is truncated"),
        (b"no gzip", "cannot be decompressed"),
        (checkpoint()[:-9], "is truncated"),
        (checkpoint(text=[(b'"commits":2', b'"commits":3')]), "has 2 commits; it names 3"),
        (checkpoint(text=[(b'"number":1', b'"number":2')]), "names commit 2 after 2"),
        (checkpoint(text=[(b'"number":1', b'"number":3')]), "names commit 3 after 0"),
        (checkpoint(text=[(b'"version":1', b'"version":2')]), "is not a valid CheckpointHead"),
        (checkpoint(text=[(b'"job_id"', b'"job"')]), "line 1 of .* is not a valid LiveCommit"),
        (checkpoint(text=[(an_id("1").encode(), b"../x")]), "job id"),
        (checkpoint(text=[(HERE.uri.encode(), THERE.encode())]), "is the checkpoint of entry 2 of"),
        (gzip.compress(b""), "is empty"),
    ],
)
def test_a_damaged_checkpoint_is_refused(body: bytes, message: str) -> None:
    """Truncated, changed, copied or other content is an invalid record, and no other error."""
    with pytest.raises(InvalidRecord, match=message):
        TableSnapshot.from_bytes(body, HERE.uri, 2, "s3://lake/there")


def test_a_checkpoint_of_another_entry_is_refused() -> None:
    """A checkpoint that was moved to another number is not the snapshot there."""
    with pytest.raises(InvalidRecord, match="is the checkpoint of entry 2"):
        TableSnapshot.from_bytes(checkpoint(), HERE.uri, 3, "s3://lake/there")


def test_decompressing_a_checkpoint_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small object that would fill the memory is refused first."""
    monkeypatch.setattr(module, "_TEXT_BYTES", 1_000)
    with pytest.raises(InvalidRecord, match="no more than 1000 are read"):
        TableSnapshot.from_bytes(gzip.compress(bytes(2_000)), HERE.uri, 2, "s3://lake/there")


def test_a_partition_that_is_named_twice_counts_once() -> None:
    """Another writer's checkpoint cannot make a later removal fail."""
    body = checkpoint(text=[(b'["dt=1"]', b'["dt=1","dt=1"]')])
    snapshot = TableSnapshot.from_bytes(body, HERE.uri, 2, "s3://lake/there")
    snapshot.apply(entry(3, an_id("3"), "dt=1", removes="partitions"))
    assert [commit.number for commit in snapshot.commits()] == [3]
