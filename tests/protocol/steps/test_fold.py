"""A table is the sum of a log's entries, whatever comes between them, and takes few requests to read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey, NotReversible
from airflow_s3commit.protocol.model.codec import encode, sha256
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import Removal
from airflow_s3commit.protocol.model.layout import checkpoint_key, entry_key
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.table import Commit, Entry, Left, Pieces, Table, UnownedObject
from airflow_s3commit.protocol.steps.fold import (
    CHECKPOINT_EVERY,
    entries_after,
    read_table,
    table_before,
    write_checkpoint,
)
from airflow_s3commit.protocol.steps.log import read_entry
from airflow_s3commit.protocol.table_rollback import change_between
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, ROOT, Lake, an_id

HERE = Destination(BUCKET, ROOT)
EMPTY = sha256(b"")


def entry(number: int, *partitions: str, **facts: Any) -> Entry:
    """Return an entry of a job of its own, by default a commit with a file in each of these partitions."""
    counts = Counts(files=1, bytes=1, rows=1)
    commit: dict[str, Any] = {
        "mode": "append",
        "partitions": dict.fromkeys(partitions, counts),
        "counts": Counts.total([counts] * len(partitions)),
        "files_sha256": EMPTY,
        "within": [] if number % 2 else UNSET,
    }
    fields: dict[str, Any] = {
        "destination": HERE.uri,
        "number": number,
        "kind": "commit",
        "prev": "" if number == 1 else "d",
        "since": 0,
        "job_id": None if facts.get("kind") == "release" else an_id(str(number)),
        "nonce": f"entry {number}",
    }
    fields |= {name: value for name, value in facts.items() if name in Entry.__struct_fields__}
    commit |= {name: value for name, value in facts.items() if name not in fields}
    if fields["kind"] == "commit":
        fields["commit"] = Commit(**commit)
    return Entry(**fields)


def write(lake: Lake, entries: Iterable[Entry], *, after: str = "") -> str:
    """Write entries as the log has them, each with the digest of the one before; return the last digest."""
    for one in entries:
        body = encode(replace(one, prev=after))
        lake.store.inner.put(BUCKET, entry_key(HERE, one.number), body)
        after = sha256(body)
    return after


#: A file: its partition, its name, and the generation that wrote it.
File = tuple[str, str, int]

PARTITIONS = ("", "dt=1", "dt=2")
RETAIN = st.sampled_from([True, True, False])
FILES = st.frozensets(st.tuples(st.sampled_from(PARTITIONS), st.sampled_from("ab")))
COMMITS = st.tuples(
    st.just("commit"), FILES, st.sampled_from(["partitions", "everything", "nothing"]), RETAIN
)
#: So many that most logs roll back, and a fifth releases something.
STEPS = st.lists(
    st.one_of(
        COMMITS,
        COMMITS,
        st.just(("abandon",)),
        st.tuples(st.just("release"), st.integers(0, 7)),
        st.tuples(st.just("rollback"), st.integers(0, 12), RETAIN),
    ),
    min_size=8,
    max_size=16,
)


@dataclass
class Directory:
    """A directory that each entry changes, and what is on its disk, without the code under test."""

    log: list[Entry] = field(default_factory=list)
    files: set[File] = field(default_factory=set)
    disk: set[File] = field(default_factory=set)
    kept: dict[int, set[File]] = field(default_factory=dict)
    generations: dict[int, set[File]] = field(default_factory=dict)

    def step(self, step: tuple[Any, ...], table: Table) -> None:
        """Change the directory as one step says, and note its entry."""
        number, (kind, *how) = len(self.log) + 1, step
        if kind == "abandon":
            self.log.append(entry(number, kind="abandon"))
        elif kind == "release":
            frees = [one for at, one in enumerate(sorted(self.kept)) if not how[0] >> at & 1]
            if frees:
                self.log.append(entry(number, kind="release", frees=frees))
            for one in frees:
                self.disk -= self.kept.pop(one)
        elif kind == "rollback":
            self.roll_back(number, table, *how)
        else:
            self.commit(number, *how)

    def commit(self, number: int, names: frozenset[tuple[str, str]], takes: Removal, retain: bool) -> None:
        touched = {partition for partition, _ in names}
        taken = {
            "nothing": set(),
            "everything": set(self.files),
            "partitions": {file for file in self.files if file[0] in touched},
        }[takes]
        new = {(partition, name, number) for partition, name in names}
        counts = {one: Counts(files=sum(1 for p, _ in names if p == one)) for one in sorted(touched)}
        made = {"partitions": counts, "counts": Counts.total(counts.values()), "takes": takes}
        made["schemas"] = [f"schema {number % 3}"] * (number % 4 > 0)
        self.log.append(entry(number, retain=60 * retain, **made))
        self.change(number, (self.files - taken) | new, taken, retain)

    def roll_back(self, number: int, table: Table, to: int, retain: bool) -> None:
        if not self.generations:
            return
        to = sorted(self.generations)[to % len(self.generations)]
        target = self.generations[to]
        if not target <= self.disk:
            with pytest.raises(NotReversible):
                change_between(fold(self.log[:to]), table)
            return
        change = change_between(fold(self.log[:to]), table)
        assert (change.to, change.now) == (to, max(self.generations))
        restores = dict(change.restores)
        self.log.append(entry(number, restores=restores, rolled_back_to=to, retain=60 * retain))
        self.change(number, target, self.files - target, retain)

    def change(self, number: int, files: set[File], leaving: set[File], retain: bool) -> None:
        self.disk |= files
        if retain and leaving:
            self.kept[number] = leaving
        else:
            self.disk -= leaving
        self.kept = {one: left for one, kept in self.kept.items() if (left := kept - files)}
        self.files = self.generations[number] = files


def fold(log: Iterable[Entry], table: Table | None = None) -> Table:
    """Return the table after these entries; the SHA-256 of each is made up."""
    table = table or Table()
    for one in log:
        table.apply(one, f"digest of {one.number}")
    return table


def played(steps: Iterable[tuple[Any, ...]]) -> tuple[Directory, Table]:
    """Return a directory after some steps, and the table that its log adds up to."""
    directory, table = Directory(), Table()
    for step in steps:
        before = len(directory.log)
        directory.step(step, table)
        fold(directory.log[before:], table)
    return directory, table


def files_of(directory: Directory, pieces: Pieces) -> set[File]:
    """Return the files of some pieces of a table, as readers of the lists find them."""
    every = set().union(directory.disk, *directory.generations.values())
    return {file for file in every if file[2] in pieces.get(file[0], ())}


@given(STEPS)
def test_a_table_has_the_files_that_the_entries_leave(steps: list[tuple[Any, ...]]) -> None:
    """After any commits, aborts, releases and rollbacks its files are exactly those of the directory."""
    directory, table = played(steps)
    assert files_of(directory, table.live) == directory.files
    assert set(table.live) == {partition for partition, _, _ in directory.files}
    assert table.head.number == len(directory.log)
    assert table.generation == max(directory.generations, default=0)
    kept = {one: files_of(directory, retained.pieces) for one, retained in table.retained.items()}
    assert kept == directory.kept
    assert table.counts_of(table.live).files == len(directory.files)


@given(STEPS)
def test_a_table_knows_each_commit_that_it_refers_to_and_no_other(steps: list[tuple[Any, ...]]) -> None:
    """They are those of files that are live, retained or just freed, so it does not grow with the log."""
    _, table = played(steps)
    referred = {number for name in table.partitions() for number in table.numbers_in(name)}
    assert table.sources.keys() == referred
    anew = dict(table._references)
    table.count_references()
    assert {number: count for number, count in anew.items() if count} == dict(table._references)


@given(STEPS, st.integers(0, 12))
def test_commits_since_a_generation_are_the_later_ones(steps: list[tuple[Any, ...]], since: int) -> None:
    """The commits after a generation are those whose files are in the table, by their numbers."""
    directory, table = played(steps)
    found = {(number, name) for number, names in table.commits(since).items() for name in names}
    assert found == {(number, name) for name, _, number in directory.files if number > since}


@given(STEPS)
def test_what_an_entry_changes_is_told(steps: list[tuple[Any, ...]]) -> None:
    """Each entry tells the files that left and entered with it; a copy does too, and changes no other."""
    directory, before = Directory(), Table()
    for step in steps:
        count, files = len(directory.log), set(directory.files)
        directory.step(step, before)
        for one in directory.log[count:]:
            digest, copy = f"digest of {one.number}", before.copy()
            of_copy, left = copy.apply(one, digest), before.apply(one, digest)
            assert (of_copy, vars(copy)) == (left, vars(before))
            assert files_of(directory, left.pieces) == files - directory.files
            assert files_of(directory, left.gained) == directory.files - files
            assert left.sources.keys() == {number for numbers in left.pieces.values() for number in numbers}
    assert vars(before) == vars(played(steps)[1])


def test_an_emptied_partition_is_no_longer_in_the_table() -> None:
    """A commit that names a partition without files takes what is there, and adds nothing."""
    first, second = entry(1, "dt=1", "dt=2"), entry(2, partitions={"dt=1": Counts()}, takes="partitions")
    table = fold([first, second])
    assert (table.live, table.partitions()) == ({"dt=2": [1]}, {"dt=2"})


def test_schemas_follow_the_files() -> None:
    """A table has the schemas of its files, oldest first; without files it has those of its last commit."""
    table = fold([entry(1, "dt=1", schemas=["old"]), entry(2, "dt=2", schemas=["new"])])
    assert (table.schemas(), table.without_schemas()) == (["old", "new"], [])
    fold([entry(3, "dt=1", takes="partitions", schemas=["new"])], table)
    assert table.schemas() == ["new"]
    fold([entry(4, "dt=3")], table)
    assert (table.schemas(), table.without_schemas()) == (["new"], [4])
    fold([entry(5, takes="everything", schemas=["last"])], table)
    assert (table.schemas(), table.live) == (["last"], {})


def test_a_rollback_restores_the_schemas() -> None:
    """The files that come back have the schemas with which they were committed."""
    table = fold(
        [
            entry(1, "dt=1", schemas=["old"]),
            entry(2, "dt=1", takes="partitions", schemas=["new"], retain=60),
            entry(3, restores={"dt=1": [1]}, rolled_back_to=1, retain=60),
        ]
    )
    assert (table.schemas(), table.without_schemas()) == (["old"], [])
    assert {one: kept.pieces for one, kept in table.retained.items()} == {3: {"dt=1": [2]}}


@each("restores", [{"dt=1": [9]}, {"dt=9": [1]}, {"dt=1": [3]}, {"dt=1": [1, 1]}])
def test_an_entry_that_restores_what_is_not_in_place_is_refused(restores: dict[str, list[int]]) -> None:
    """A forged rollback is named when it is read, and not by the first reader of its files."""
    table = Table()
    table.apply(entry(1, "dt=1"), "a")
    table.apply(entry(2, "dt=1", takes="partitions", retain=60), "b")
    live = dict(table.live)
    with pytest.raises(InvalidRecord, match="restores files of generations"):
        table.apply(entry(3, restores=restores, rolled_back_to=1), "c")
    assert (table.live, table.head.number) == (live, 2)


def test_a_release_frees_once_and_is_then_forgotten() -> None:
    """What a release frees may be there until the next one; what earlier ones freed is forgotten."""
    table = fold(
        [
            entry(1, "dt=1", "dt=2"),
            entry(2, "dt=1", takes="partitions", retain=60),
            entry(3, takes="everything", retain=60),
        ]
    )
    assert {one: kept.pieces for one, kept in table.retained.items()} == {
        2: {"dt=1": [1]}, 3: {"dt=1": [2], "dt=2": [1]},
    }  # fmt: skip
    fold([entry(4, kind="release", frees=[2])], table)
    assert ({*table.retained}, {*table.freed}, {*table.sources}) == ({3}, {2}, {1, 2})
    assert not table.can_restore("dt=1", 1)
    assert table.can_restore("dt=2", 1)
    fold([entry(5, kind="release", frees=[3])], table)
    assert ({*table.retained}, {*table.freed}, {*table.sources}) == (set(), {3}, {1, 2})
    fold([entry(6, kind="release", frees=[3])], table)
    assert (table.freed, table.sources) == ({}, {})


def test_objects_of_other_programs_are_retained_with_their_etags() -> None:
    """What another program wrote is known while it may be in place, by key and ETag."""
    taken = [UnownedObject(key=f"{ROOT}dt=1/x", etag="e", size=1)]
    table = fold([entry(1), entry(2, "dt=1", takes="partitions", unowned=taken, retain=60)])
    assert table.unowned_in_place() == {f"{ROOT}dt=1/x": "e"}
    fold([entry(3, kind="release", frees=[2])], table)
    assert table.unowned_in_place() == {f"{ROOT}dt=1/x": "e"}
    fold([entry(4, kind="release", frees=[2])], table)
    assert table.unowned_in_place() == {}


def test_owners_are_told_by_partition() -> None:
    """A job whose files Hadoop named owns files with and without its id; older data is nobody's."""
    table = fold([entry(1, "dt=1", job_id=None), entry(2, "dt=2", adopted=True), entry(3, "dt=2")])
    assert table.jobs_in("dt=1") == {None}
    assert table.jobs_in("dt=2") == {None, an_id("2"), an_id("3")}
    assert table.jobs_in("dt=3") == set()


# Reading it.


def grown(count: int) -> Lake:
    """Return a lake with a log of commits to a hundred partitions in turn, and its checkpoints."""
    lake, digest = Lake(), ""
    for number in range(1, count + 1):
        one = entry(number, f"n={number % 100}", takes="partitions", within=[])
        digest = write(lake, [one], after=digest)
        write_checkpoint(lake.store.inner, HERE, one)
    lake.store.calls.clear()
    return lake


def live(lake: Lake, number: int | None = None) -> list[int]:
    """Return the numbers of the commits that make up the table."""
    return list(read_table(lake.store, HERE, number).commits())


def test_a_log_without_entries_is_an_empty_table() -> None:
    """Without an entry there is no generation; a number that is not there is an error."""
    table = read_table(Lake().store, HERE)
    assert (table.head.number, table.generation, table.live) == (0, 0, {})
    with pytest.raises(NoSuchKey):
        read_table(Lake().store, HERE, 1)


@pytest.mark.parametrize("number", [None, 999])
def test_a_long_log_is_read_from_its_newest_checkpoint(number: int | None) -> None:
    """Of 1,000 entries only those after the newest checkpoint are read, with a few listings."""
    lake = grown(1_000)
    last = number or 1_000
    assert live(lake, number) == list(range(last - 99, last + 1))
    assert len(lake.store.calls) <= 6 + CHECKPOINT_EVERY


@each("number", [1, 12, 13, 14, 26, 40])
def test_every_entry_has_its_table(number: int) -> None:
    """Before, at and after a checkpoint, the table is the one after the entry."""
    lake = grown(40)
    table = read_table(lake.store, HERE, number)
    assert (table.head.number, list(table.commits())) == (number, list(range(1, number + 1)))
    entry = read_entry(lake.store, HERE, number).entry
    assert table_before(lake.store, HERE, entry).apply(entry, "") == Left({}, {}, {f"n={number}": [number]})
    with pytest.raises(InvalidRecord, match="does not follow"):
        table_before(lake.store, HERE, replace(entry, number=number + 1, prev="0" * 64))


@each("number", [27, 28, 39])
def test_a_missing_entry_is_not_passed_over(number: int) -> None:
    """A table is read past no entry that is gone, at the newest checkpoint or after it."""
    lake = grown(30 if number < 30 else 39)
    lake.store.delete(BUCKET, entry_key(HERE, number))
    if number == 39:
        # Nothing shows that there was another entry: the checkpoint is not believed alone.
        assert live(lake) == list(range(1, 39))
        return
    for last in (None, number, 29):
        with pytest.raises(InvalidRecord, match=rf"0{number}\.json is missing, and entry 30 is there"):
            live(lake, last)


def test_a_listing_that_lags_hides_no_entry() -> None:
    """Entries are read by their keys, so a table is as new as they are, however old a listing is."""
    lake = grown(30)
    real = lake.store.list_objects
    lake.store.list_objects = lambda *a, **k: iter(list(real(*a, **k))[:-1])  # type: ignore[method-assign]
    assert live(lake) == list(range(1, 31))


@each(
    "harm",
    [
        lambda one: replace(one, destination="s3://lake/trains/"),
        lambda one: replace(one, prev="0" * 64),
        lambda one: replace(one, number=7),
    ],
)
def test_an_entry_that_does_not_follow_is_refused(harm: Any) -> None:
    """A reader refuses an entry of another destination, another log, or under another one's number."""
    lake = Lake()
    digest = write(lake, [entry(1), entry(2, "dt=1")])
    body = encode(harm(replace(entry(3, "dt=2"), prev=digest)))
    lake.store.put(BUCKET, entry_key(HERE, 3), body)
    assert live(lake, 2) == [2]
    with pytest.raises(InvalidRecord, match=r"_s3commit/log/0{19}3\.json"):
        live(lake)


@each("body", [b"", b"{", b"null", encode(entry(3))[:-9], b'{"version":2}'])
def test_a_damaged_entry_is_refused_by_name(body: bytes) -> None:
    """No reader skips an entry that cannot be read, as its content may matter."""
    lake = Lake()
    write(lake, [entry(1), entry(2, "dt=1")])
    lake.store.put(BUCKET, entry_key(HERE, 3), body)
    with pytest.raises(InvalidRecord, match=r"s3://lake/flights/_s3commit/log/0{19}3\.json"):
        live(lake)


def test_entries_are_yielded_from_a_position() -> None:
    """A reader that knows a position gets what comes after it, and notices another log there."""
    lake = Lake()
    write(lake, [entry(1), entry(2, "dt=1"), entry(3)])
    table = read_table(lake.store, HERE, 1)

    def numbers(found: Iterator[Any]) -> list[int]:
        return [read.entry.number for read in found]

    assert numbers(entries_after(lake.store, HERE, table.head)) == [2, 3]
    assert numbers(entries_after(lake.store, HERE, table.head, 2)) == [2]
    with pytest.raises(NoSuchKey):
        numbers(entries_after(lake.store, HERE, table.head, 4))
    with pytest.raises(InvalidRecord, match="does not follow"):
        numbers(entries_after(lake.store, HERE, replace(table.head, sha256="0" * 64)))


def test_a_checkpoint_is_written_now_and_then() -> None:
    """Every 13th entry has one, and nothing takes it for an entry or for data."""
    lake = grown(30)
    assert lake.keys(f"{HOME}checkpoints/") == [checkpoint_key(HERE, number) for number in (13, 26)]
    assert lake.data() == {}
