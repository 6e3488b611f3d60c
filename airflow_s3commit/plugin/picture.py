"""The life of a job as a picture: where each mark and line goes. The template draws it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_s3commit.cli import wording
from airflow_s3commit.protocol.milestones import Milestone, MilestoneName
from airflow_s3commit.protocol.records import State

__all__ = ["Mark", "Picture", "Span", "draw"]

WIDTH = 960
MARGIN = 80

_ENDED = ("committed", "aborted")
_WAY: tuple[MilestoneName, ...] = ("open", "sealed", "committing", "committed")
_BACK: tuple[MilestoneName, ...] = ("aborting", "aborted")


@dataclass(frozen=True, slots=True)
class Mark:
    """A state on the line.

    Attributes:
        x: Where, from the left.
        name: The state.
        day: The date, as text; empty for a state that the job is not in yet.
        clock: The time of day.
        reached: Whether the job came there.
        current: Whether it is there now.
        between: How long it took from the mark before; empty if that cannot be told.
        note: What else happened on the way here.

    """

    x: float
    name: str
    day: str
    clock: str
    reached: bool
    current: bool
    between: str
    note: str


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the bar below, as long as the job was in a state.

    Attributes:
        x: Where it begins.
        width: How long it is drawn.
        name: The state.
        words: The state and how long it lasted.

    """

    x: float
    width: float
    name: str
    words: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing of a job's life.

    Attributes:
        marks: The states, from left to right.
        spans: How long each lasted, in proportion; empty if fewer than two moments are known.
        words: The same for those who cannot see it.

    """

    marks: Sequence[Mark]
    spans: Sequence[Span]
    words: str


def draw(moments: Sequence[Milestone], state: State | None, now: float | None) -> Picture:
    """Draw a job's life.

    Args:
        moments: When it came where, earliest first.
        state: Where it is.
        now: The store's time, in seconds since the epoch; None if it is not known.

    """
    reached = [moment for moment in moments if moment.name != "stage sealed"]
    seals = [moment for moment in moments if moment.name == "stage sealed"]
    names = [moment.name for moment in reached]
    stages = f"{wording.several(len(seals), 'stage')} sealed" if seals else ""
    ahead = list(_ahead(names, state))
    marks = []
    step = (WIDTH - 2 * MARGIN) / max(len(reached) + len(ahead) - 1, 1)
    for number, moment in enumerate(reached):
        when = datetime.fromtimestamp(moment.at, UTC)
        marks.append(
            Mark(
                x=MARGIN + number * step,
                name=moment.name,
                day=f"{when:%Y-%m-%d}",
                clock=f"{when:%H:%M:%S}",
                reached=True,
                current=number == len(reached) - 1,
                between=_lasting(moment.at - reached[number - 1].at) if number else "",
                note=stages if moment.name == "sealed" else "",
            )
        )
    for number, name in enumerate(ahead, start=len(reached)):
        marks.append(Mark(MARGIN + number * step, name, "", "", False, False, "", ""))
    return Picture(marks, list(_spans(reached, state, now)), _in_words(reached, ahead))


def _ahead(names: Sequence[MilestoneName], state: State | None) -> Iterator[MilestoneName]:
    """Yield the states that a job has before it."""
    if state in _ENDED or state is None:
        return
    way = _BACK if state == "aborting" else _WAY
    last = max((way.index(name) for name in names if name in way), default=-1)
    yield from way[last + 1 :]


def _spans(reached: Sequence[Milestone], state: State | None, now: float | None) -> Iterator[Span]:
    ends = [moment.at for moment in reached[1:]]
    if state not in _ENDED and now is not None and reached:
        ends.append(max(now, reached[-1].at))
    lengths = [max(end - moment.at, 0.0) for moment, end in zip(reached, ends, strict=False)]
    total = sum(lengths)
    if not total:
        return
    room, x = WIDTH - 2 * MARGIN, float(MARGIN)
    for moment, length in zip(reached, lengths, strict=False):
        width = room * length / total
        yield Span(x, width, moment.name, f"{moment.name}: {_lasting(length)}")
        x += width


def _lasting(seconds: float) -> str:
    return wording.age(seconds) if seconds >= 1 else "<1 s"


def _in_words(reached: Sequence[Milestone], ahead: Sequence[str]) -> str:
    told = [f"{one.name} at {wording.moment(int(one.at * 1000))}" for one in reached]
    told += [f"not yet {name}" for name in ahead]
    return "; ".join(told) or "no record tells when this job came where"
