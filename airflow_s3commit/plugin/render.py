"""Renders pages: HTML with its own style, one small script that follows Airflow, and a job's picture."""

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
from airflow_s3commit.present.facts import amount, cost_per_day, job_facts, replacement
from airflow_s3commit.present.next_steps import CommandLines, NextStep, for_job
from airflow_s3commit.protocol.inspect.jobs import JobSummary
from airflow_s3commit.protocol.inspect.timeline import EventName, TimelineEvent
from airflow_s3commit.protocol.model.job import State
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.store.counting import total_requests

WIDTH = 960

MARGIN = 80

_ENDED = ("committed", "aborted")

_WAY: tuple[EventName, ...] = ("open", "sealed", "committing", "committed")

_BACK: tuple[EventName, ...] = ("aborting", "aborted")


@dataclass(frozen=True, slots=True)
class Mark:
    """A state on the line.

    Attributes:
        x: Position from the left.
        name: The state.
        day: The date; empty for a state that the job has not reached.
        clock: The time of day.
        reached: Whether the job reached the state.
        current: Whether the job is in the state.
        between: The time since the previous mark; empty if not known.
        note: What else happened since the previous mark.

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
    """A section of the bar: the time that the job spent in a state.

    Attributes:
        x: Position of its start.
        width: Its width.
        name: The state.
        words: The state and how long it lasted.

    """

    x: float
    width: float
    name: str
    words: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The timeline of a job as a drawing; the template renders it.

    Attributes:
        marks: The states, from left to right.
        spans: How long each lasted, in proportion; empty if fewer than two times are known.
        words: The same as text, for screen readers.

    """

    marks: Sequence[Mark]
    spans: Sequence[Span]
    words: str


def draw(moments: Sequence[TimelineEvent], state: State | None, now: float | None) -> Picture:
    """Return the timeline of a job as a drawing.

    Args:
        moments: When the job entered each state, earliest first.
        state: Its state.
        now: The store's time, in seconds since the epoch; None if it is not known.

    """
    reached = [moment for moment in moments if moment.name != "stage sealed"]
    seals = [moment for moment in moments if moment.name == "stage sealed"]
    names = [moment.name for moment in reached]
    stages = f"{_format.several(len(seals), 'stage')} sealed" if seals else ""
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


def _ahead(names: Sequence[EventName], state: State | None) -> Iterator[EventName]:
    """Yield the states that the job has yet to reach."""
    if state in _ENDED or state is None:
        return
    way = _BACK if state == "aborting" else _WAY
    last = max((way.index(name) for name in names if name in way), default=-1)
    yield from way[last + 1 :]


def _spans(reached: Sequence[TimelineEvent], state: State | None, now: float | None) -> Iterator[Span]:
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
    return _format.age(seconds) if seconds >= 1 else "<1 s"


def _in_words(reached: Sequence[TimelineEvent], ahead: Sequence[str]) -> str:
    words = [f"{one.name} at {_format.moment(int(one.at * 1000))}" for one in reached]
    words += [f"not yet {name}" for name in ahead]
    return "; ".join(words) or "the records have no times for this job"


logger = logging.getLogger(__name__)

_TEMPLATES = Path(__file__).parent / "templates"

#: The picture of a job whose times are not valid.
_NO_PICTURE = Picture([], [], "")

T = TypeVar("T")


class Pages:
    """Renders the templates of this folder; all values in them are escaped."""

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
            style=self._style, script=self._script, run_url=_run_url, guarded=_guarded
        )
        self._environment.filters.update(
            age=_format.age,
            amount=amount,
            daily=cost_per_day,
            number=_format.number,
            plain=_format.plain,
            rate=_rate,
            rate_of=rate_of,
            requests_of=requests_of,
            size=_format.size,
        )

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every page: it runs only its own script, and no other site may frame it."""
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
            template: The name of the template, without its suffix.
            root: The path below which the application is served.
            **values: The values of the template.

        """

        def link(page: str, /, **query: object) -> str:
            asked = {name: value for name, value in query.items() if value is not None}
            return f"{root}/{page}" + (f"?{urlencode(asked, errors='replace')}" if asked else "")

        return self._environment.get_template(f"{template}.html").render(link=link, **values)

    def job_values(self, job_view: JobView, endpoint_url: str | None) -> dict[str, Any]:
        """Return the values of the part of a page about one job."""
        job, preview = job_view.summary, job_view.details.preview
        nothing: Sequence[Any] = ()
        return {
            "job_view": job_view,
            "job": job,
            "facts": _shown(job, lambda: _facts(job_view), nothing),
            "picture": _shown(job, lambda: draw(job_view.timeline, job.state, job_view.now), _NO_PICTURE),
            "replaces": _shown(job, lambda: replacement(preview), "?") if preview else None,
            "steps": _shown(job, lambda: _steps(job_view, endpoint_url), nothing),
        }


def _shown(job: JobSummary, make: Callable[[], T], instead: T) -> T:
    """Return a part of a page about a job, or its replacement if the job's records make it fail."""
    try:
        return make()
    except Exception:
        logger.exception("a part of the page of job %r cannot be shown", job.job_id)
        return instead


def _guarded(macro: Callable[..., Markup], job: JobSummary, columns: int, *arguments: object) -> Markup:
    """Return a job's row, or one that says that the job cannot be shown."""
    row = Markup('<tr><th scope="row" class="id">{}</th><td colspan="{}">cannot be shown</td></tr>')
    return _shown(job, lambda: macro(*arguments, job), row.format(_format.plain(job.job_id)[:8], columns - 1))


def _facts(job_view: JobView) -> Sequence[tuple[str, str]]:
    """Return the facts about a job, without those that the page shows elsewhere."""
    elsewhere = {"job", "state", "commit replaces"}
    return [(fact.name, fact.text) for fact in job_facts(job_view.details) if fact.name not in elsewhere]


def _steps(job_view: JobView, endpoint_url: str | None) -> Sequence[NextStep]:
    """Return what to do next, with the command lines that lead to the same store."""
    job, place = job_view.summary, job_view.place
    if job.state == "aborted" and job.staging is None:
        return []
    options = ("--endpoint-url", endpoint_url) if endpoint_url is not None else ()
    commands = CommandLines(place.destination, job.job_id, place.staging_root, store_options=options)
    return for_job(job, commands)


def requests_of(manifest: ManifestRecord) -> int | None:
    """Return how many requests the process that finished a commit made; None if it did not count them."""
    return total_requests(manifest.metrics)


def rate_of(manifest: ManifestRecord) -> float | None:
    """Return how many uploads a second a commit completed; None if the manifest has no duration."""
    took = manifest.metrics.get("complete_ms")
    return manifest.metrics.get("complete_files", manifest.counts.files) / (took / 1000) if took else None


def _run_url(context: Mapping[str, str]) -> str | None:
    """Return the path of a DAG run in Airflow's UI, below Airflow's root."""
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
