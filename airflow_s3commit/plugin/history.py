"""The generations of a table, for a page: newest first, a page at a time, with charts of the table's size.

A page takes a bounded number of requests, however long the log is: its entries, and one entry for each commit
that still had files, to know the size of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from airflow_s3commit import _format
from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.plugin.stores import Place
from airflow_s3commit.protocol.metadata.log import newest_entries
from airflow_s3commit.protocol.metadata.snapshot import read_snapshot
from airflow_s3commit.protocol.model.codec import decode, largest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import entry_key
from airflow_s3commit.protocol.model.log import LogEntry
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.store.base import Fetched, Get, ObjectStore
from airflow_s3commit.store.execute import outcomes

#: Entries on one page.
PER_PAGE = 25

#: Maximum number of commits to read beside those of the page, for the size of the table.
MOST_LIVE = 200

#: Rollbacks on a page before which the size is counted anew: they name files that the table had before, too.
_RECOUNTS = 3

#: Partitions of an entry to name.
_NAMED = 3

#: Edges of a chart in pixels.
_LEFT, _RIGHT, _TOP, _BOTTOM = 6, 954, 26, 100


@dataclass(frozen=True, slots=True)
class Step:
    """An entry of the log, for a row of the page.

    Attributes:
        number: Its number; the generation of a commit.
        kind: Its kind, such as ``commit``.
        job_id: Its job; empty for entries without a job.
        context: The job's context.
        at: Time of the entry, in milliseconds since the epoch by the writer's clock; None if unknown.
        mode: Conflict mode of a commit.
        added: What a commit added.
        removed: What a commit replaced.
        partitions: The first partitions that a commit added files to.
        partition_count: Number of all of them.
        note: More about the entry, as text.
        after: Files and bytes of the table after the entry; None if unknown.

    """

    number: int
    kind: str
    job_id: str = ""
    context: Mapping[str, str] = field(default_factory=dict)
    at: int | None = None
    mode: str = ""
    added: Counts | None = None
    removed: Counts | None = None
    partitions: Sequence[str] = ()
    partition_count: int = 0
    note: str = ""
    after: Counts | None = None


@dataclass(frozen=True, slots=True)
class HistoryView:
    """A page of a table's history.

    Attributes:
        place: The destination.
        steps: The entries, newest first.
        older: The number to continue before; None if these are the oldest entries of the history.
        hidden: Number of entries on the page that the user may not see.
        sized: Contexts of the commits whose files the sizes count.
        since_baseline: Whether the sizes exclude data that is older than the log.

    """

    place: Place
    steps: Sequence[Step] = ()
    older: int | None = None
    hidden: int = 0
    sized: Sequence[Mapping[str, str]] = ()
    since_baseline: bool = False

    def visible_to(self, may_read: Callable[[Mapping[str, str]], bool]) -> HistoryView:
        """Return the view without the jobs that a user may not see, and without sizes that would reveal them.

        Args:
            may_read: Returns whether the user may see a job with a given context.

        """
        kept = [step for step in self.steps if not step.job_id or may_read(step.context)]
        hidden = len(self.steps) - len(kept)
        if hidden or not all(map(may_read, self.sized)):
            kept = [replace(step, after=None) for step in kept]
        return replace(self, steps=kept, hidden=hidden)


def read_history(store: ObjectStore, place: Place, before: int | None) -> HistoryView:
    """Read a page of a table's history.

    Args:
        store: The store of the destination.
        place: The destination.
        before: Leave out the entries from this number on; None for the newest page.

    Raises:
        InvalidRecord: An entry of the log is damaged or missing.
        S3CommitError: A request failed.

    """
    found = newest_entries(store, place.destination, PER_PAGE + 1, 1, before=before)
    entries = list(islice(found, PER_PAGE + 1))
    shown = entries[:PER_PAGE]
    steps = list(map(_step, shown))
    size, sized, since_baseline = _size_after(store, place, shown)
    recounts = _RECOUNTS
    for index, entry in enumerate(shown):
        if size is None:
            break
        steps[index] = replace(steps[index], after=size)
        if entry.restores is not None and recounts:
            recounts -= 1
            size, more, _ = _size_after(store, place, shown[index + 1 :])
            sized = [*sized, *more]
        else:
            size = _size_before(entry, size)
    older = shown[-1].number if len(entries) > PER_PAGE else None
    return HistoryView(place, steps, older, sized=sized, since_baseline=since_baseline)


def _step(entry: LogEntry) -> Step:
    manifest = entry.manifest
    if manifest is None:
        record: Any = getattr(entry, "aborted" if entry.kind == "abandon" else entry.kind, None)
        has_job = entry.kind not in ("baseline", "release")
        return Step(
            entry.number,
            entry.kind,
            job_id=entry.job_id if has_job else "",
            context=getattr(record, "context", {}),
            at=getattr(record, "since", None),
            note=_note(entry),
        )
    names = sorted(manifest.partitions)
    return Step(
        entry.number,
        entry.kind,
        entry.job_id,
        manifest.context,
        manifest.committed,
        manifest.mode,
        manifest.counts.without_columns(),
        manifest.replaced,
        names[:_NAMED],
        len(names),
    )


def _note(entry: LogEntry) -> str:
    if entry.aborted is not None:
        return entry.aborted.reason or ""
    if entry.baseline is not None:
        return f"the history begins with older data ({entry.baseline.reason})"
    if entry.release is not None:
        count = _format.several(len(entry.release.commits), "commit")
        return f"retained files of {count} may be deleted"
    return ""


def _size_before(entry: LogEntry, size: Counts) -> Counts | None:
    """Return the size of the table before an entry; None if the entry does not have it."""
    if entry.kind == "baseline" or entry.restores is not None:
        return None
    if entry.manifest is None:
        return size
    added, removed = entry.manifest.counts, entry.manifest.replaced
    return Counts(
        files=max(size.files - added.files + removed.files, 0),
        bytes=max(size.bytes - added.bytes + removed.bytes, 0),
    )


def _size_after(
    store: ObjectStore, place: Place, entries: Sequence[LogEntry]
) -> tuple[Counts | None, Sequence[Mapping[str, str]], bool]:
    """Return the size of the table after the newest of the entries, and what `HistoryView` says of it."""
    newest = next((entry.number for entry in entries if entry.manifest is not None), None)
    if newest is None:
        return None, (), False
    try:
        snapshot = read_snapshot(store, place.destination, newest)
    except NoSuchKey:
        return None, (), False
    if snapshot is None:
        return None, (), False
    read = {entry.number: entry.manifest for entry in entries}
    live = snapshot.commits()
    unread = [commit.number for commit in live if commit.number not in read]
    if len(unread) > MOST_LIVE:
        return None, (), False
    read.update(_manifests(store, place.destination, unread))
    total = Counts.total(
        counts.without_columns()
        for commit in live
        for counts in _live_counts(read[commit.number], commit.partitions)
    )
    contexts = [manifest.context for commit in live if (manifest := read[commit.number]) is not None]
    return total, contexts, bool(snapshot.baseline)


def _manifests(
    store: ObjectStore, destination: Destination, numbers: Sequence[int]
) -> dict[int, ManifestRecord | None]:
    """Return the manifests in some entries of the log, read several at once."""
    limit = largest(LogEntry)
    calls = ((n, Get(destination.bucket, entry_key(destination, n), limit)) for n in numbers)
    return {
        number: decode(LogEntry, fetched.body, join_uri(destination.bucket, fetched.info.key)).manifest
        for number, fetched in outcomes(store, calls)
        if isinstance(fetched, Fetched)
    }


def _live_counts(manifest: ManifestRecord | None, partitions: Sequence[str]) -> list[Counts]:
    known = manifest.partitions if manifest is not None else {}
    return [known[name] for name in partitions if name in known]


@dataclass(frozen=True, slots=True)
class Point:
    """A generation in a chart: its position in pixels, and its size as text."""

    x: float
    y: float
    words: str


@dataclass(frozen=True, slots=True)
class Chart:
    """The size of a table over its generations, for a template.

    Attributes:
        name: What is counted: ``bytes`` or ``files``.
        most: The largest value, as text.
        line: SVG path of the values.
        area: SVG path of the area below them.
        points: The generations, oldest first.
        first: Number of the oldest generation.
        last: Number of the newest generation.
        words: The chart as text.

    """

    name: str
    most: str
    line: str
    area: str
    points: Sequence[Point]
    first: int
    last: int
    words: str


def charts(steps: Sequence[Step]) -> list[Chart]:
    """Return charts of the table's bytes and files, from a page's steps; none for fewer than two sizes."""
    sized = [(step.number, step.after) for step in reversed(steps) if step.after is not None and step.added]
    if len(sized) < 2:  # noqa: PLR2004
        return []
    measures: Sequence[tuple[str, Callable[[Counts], int], Callable[[int], str]]] = (
        ("bytes", lambda counts: counts.bytes, _format.size),
        ("files", lambda counts: counts.files, _format.number),
    )
    return [
        _chart(name, [(number, value(counts)) for number, counts in sized], text)
        for name, value, text in measures
    ]


def _chart(name: str, sizes: Sequence[tuple[int, int]], text: Callable[[int], str]) -> Chart:
    most = max(size for _, size in sizes)
    step = (_RIGHT - _LEFT) / (len(sizes) - 1)
    points = [
        Point(
            round(_LEFT + index * step, 1),
            round(_BOTTOM - (_BOTTOM - _TOP) * size / max(most, 1), 1),
            f"generation {number}: {text(size)}",
        )
        for index, (number, size) in enumerate(sizes)
    ]
    # Each size holds until the next generation.
    line = f"M{points[0].x} {points[0].y}" + "".join(f"H{point.x}V{point.y}" for point in points[1:])
    (first, began), (last, ended) = sizes[0], sizes[-1]
    least = min(size for _, size in sizes)
    return Chart(
        name,
        text(most),
        line,
        f"{line}V{_BOTTOM}H{points[0].x}Z",
        points,
        first,
        last,
        f"From generation {first} to {last} the table goes from {text(began)} to {text(ended)}; the minimum"
        " is"
        f" {text(least)}, the maximum {text(most)}. The table below has every value.",
    )
