"""Renders pages as HTML, with a style sheet, a small script, and charts of the jobs' timelines."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from airflow_s3commit import _format
from airflow_s3commit.plugin.auth import Origin
from airflow_s3commit.plugin.views import JobView
from airflow_s3commit.present import (
    CommandLines,
    NextStep,
    amount,
    cost_per_day,
    for_job,
    job_facts,
    replacement,
    state,
)
from airflow_s3commit.protocol.inspect.history import EventName, TimelineEvent
from airflow_s3commit.protocol.inspect.jobs import JobSummary
from airflow_s3commit.protocol.model.job import State
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.store.forwarding import total_requests

#: Size of a timeline in pixels.
WIDTH = 960
MARGIN = 80

_ENDED = ("committed", "aborted")

#: The states of a job that commits, in order.
_COMMIT: tuple[EventName, ...] = ("open", "sealed", "committed")

logger = logging.getLogger(__name__)

_TEMPLATES = Path(__file__).parent / "templates"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Mark:
    """A state on a timeline.

    Attributes:
        x: Horizontal position in pixels.
        name: The state.
        day: Date of the state; empty if the job has not reached it.
        clock: Time of day, UTC; empty if the job has not reached it.
        reached: Whether the job has reached the state.
        current: Whether the job is in the state.
        between: Time since the previous mark; empty if unknown.
        note: Other events since the previous mark.

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
    """The time that a job spent in a state, as a section of a bar.

    Attributes:
        x: Horizontal position of the start in pixels.
        width: Width in pixels.
        name: The state.
        words: The state and its duration, as text.

    """

    x: float
    width: float
    name: str
    words: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The picture of a job's timeline, for a template.

    Attributes:
        marks: The states, from left to right.
        spans: Their durations, in proportion; empty if fewer than two times are known.
        words: The timeline as text, for screen readers.

    """

    marks: Sequence[Mark]
    spans: Sequence[Span]
    words: str


def draw(events: Sequence[TimelineEvent], state: State | None, now: float | None) -> Picture:
    """Return the picture of a job's timeline.

    Args:
        events: Events of the job, earliest first.
        state: State of the job.
        now: The store's time in seconds since the epoch; None if unknown.

    """
    reached = [event for event in events if event.name != "stage sealed"]
    seals = [event for event in events if event.name == "stage sealed"]
    names = [event.name for event in reached]
    stages = f"{_format.several(len(seals), 'stage')} sealed" if seals else ""
    ahead = list(_ahead(names, state))
    marks = []
    step = (WIDTH - 2 * MARGIN) / max(len(reached) + len(ahead) - 1, 1)
    for number, event in enumerate(reached):
        when = datetime.fromtimestamp(event.at, UTC)
        marks.append(
            Mark(
                x=MARGIN + number * step,
                name=event.name,
                day=f"{when:%Y-%m-%d}",
                clock=f"{when:%H:%M:%S}",
                reached=True,
                current=number == len(reached) - 1,
                between=_duration(event.at - reached[number - 1].at) if number else "",
                note=stages if event.name == "sealed" else "",
            )
        )
    for number, name in enumerate(ahead, start=len(reached)):
        marks.append(Mark(MARGIN + number * step, name, "", "", False, False, "", ""))
    return Picture(marks, list(_spans(reached, state, now)), _as_text(reached, ahead))


def _ahead(names: Sequence[EventName], state: State | None) -> Iterator[EventName]:
    """Yield the states that the job has not reached yet."""
    if state in _ENDED or state is None:
        return
    last = max((_COMMIT.index(name) for name in names if name in _COMMIT), default=-1)
    yield from _COMMIT[last + 1 :]


def _spans(reached: Sequence[TimelineEvent], state: State | None, now: float | None) -> Iterator[Span]:
    ends = [event.at for event in reached[1:]]
    if state not in _ENDED and now is not None and reached:
        ends.append(max(now, reached[-1].at))
    lengths = [max(end - event.at, 0.0) for event, end in zip(reached, ends, strict=False)]
    total = sum(lengths)
    if not total:
        return
    room, x = WIDTH - 2 * MARGIN, float(MARGIN)
    for event, length in zip(reached, lengths, strict=False):
        width = room * length / total
        yield Span(x, width, event.name, f"{event.name}: {_duration(length)}")
        x += width


def _duration(seconds: float) -> str:
    return _format.age(seconds) if seconds >= 1 else "<1 s"


def _as_text(reached: Sequence[TimelineEvent], ahead: Sequence[str]) -> str:
    words = [f"{one.name} at {_format.moment(int(one.at * 1000))}" for one in reached]
    words += [f"not yet {name}" for name in ahead]
    return "; ".join(words) or "no times are known"


#: The timeline of a job whose times are not valid.
_NO_TIMELINE = Picture([], [], "")


class Pages:
    """Renders the templates, with all values escaped."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(_TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._style = (_TEMPLATES / "page.css").read_text()
        self._script = (_TEMPLATES / "page.js").read_text()
        self._environment.globals.update(
            style=self._style, script=self._script, run_url=_run_url, guarded=_guarded, state_of=state
        )
        self._environment.filters.update(
            age=_format.age,
            amount=amount,
            daily=cost_per_day,
            moment=_format.moment,
            number=_format.number,
            plain=_format.plain,
            rate=_rate,
            rate_of=rate_of,
            requests_of=requests_of,
            size=_format.size,
        )

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of every page. Only its own script may run, and no other site may frame it."""
        policy = (
            f"default-src 'none'; style-src {_hash(self._style)}; script-src {_hash(self._script)};"
            " img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
        )
        return {
            "Content-Security-Policy": policy,
            "Cache-Control": "no-store",
            "Referrer-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
        }

    def render(self, template: str, root: str, **values: Any) -> str:
        """Return a page.

        Args:
            template: Name of the template, without its suffix.
            root: URL path of the application.
            **values: Values for the template.

        """

        def link(page: str, /, **query: object) -> str:
            given = {name: value for name, value in query.items() if value is not None}
            return f"{root}/{page}" + (f"?{urlencode(given, errors='replace')}" if given else "")

        return self._environment.get_template(f"{template}.html").render(link=link, **values)

    def job_values(self, job_view: JobView, endpoint_url: str | None) -> dict[str, Any]:
        """Return the template's values for one job.

        Args:
            job_view: The job.
            endpoint_url: The endpoint of the store, for command lines; None for AWS.

        """
        job, preview = job_view.summary, job_view.details.preview
        nothing: Sequence[Any] = ()
        return {
            "job_view": job_view,
            "job": job,
            "facts": _safely(job, lambda: _facts(job_view), nothing),
            "picture": _safely(job, lambda: draw(job_view.timeline, job.state, job_view.now), _NO_TIMELINE),
            "replaces": _safely(job, lambda: replacement(preview), "?") if preview else None,
            "steps": _safely(job, lambda: _steps(job_view, endpoint_url), nothing),
        }


def _safely(job: JobSummary, make: Callable[[], T], substitute: T) -> T:
    """Return a part of a page, or a substitute if values in the job's records make it fail."""
    try:
        return make()
    except Exception:
        logger.exception("a part of the page of job %r cannot be shown", job.job_id)
        return substitute


def _guarded(macro: Callable[..., Markup], job: JobSummary, columns: int, *arguments: object) -> Markup:
    """Return a job's row, or a substitute if it cannot be shown."""
    row = Markup('<tr><th scope="row" class="id">{}</th><td colspan="{}">cannot be shown</td></tr>')
    return _safely(
        job, lambda: macro(*arguments, job), row.format(_format.plain(job.job_id)[:8], columns - 1)
    )


def _facts(job_view: JobView) -> Sequence[tuple[str, str]]:
    """Return the facts about a job, except those that the page shows elsewhere."""
    elsewhere = {"job", "state", "commit replaces", "commit refused"}
    return [(fact.name, fact.text) for fact in job_facts(job_view.details) if fact.name not in elsewhere]


def _steps(job_view: JobView, endpoint_url: str | None) -> Sequence[NextStep]:
    """Return the next steps, with command lines for the same store."""
    job, place = job_view.summary, job_view.place
    options = ("--endpoint-url", endpoint_url) if endpoint_url is not None else ()
    commands = CommandLines(place.destination, job.job_id, store_options=options)
    if (successor := job_view.successor) is not None:
        ended = f"the run has ended with another job, {successor.job_id}, which is {successor.state}"
        return [NextStep(f"{ended}: abort this one", commands.line("abort"))]
    return for_job(job_view.details, commands)


def requests_of(manifest: Manifest) -> int | None:
    """Return the number of requests of the process that finished a commit; None if unknown."""
    return total_requests(manifest.metrics)


def rate_of(manifest: Manifest) -> float | None:
    """Return the completed uploads per second of a commit; None if the manifest has no duration."""
    duration = manifest.metrics.get("complete_ms")
    files = manifest.metrics.get("complete_files", manifest.counts.files)
    return files / (duration / 1000) if duration else None


def _run_url(context: Mapping[str, str]) -> str | None:
    """Return the path of a DAG run in Airflow's UI, relative to Airflow's root; None without a run."""
    origin = Origin.of(context)
    return origin.url if origin is not None else None


@_format.or_unknown
def _rate(per_second: float | None) -> str:
    if per_second is None:
        return ""
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s"  # noqa: PLR2004


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
