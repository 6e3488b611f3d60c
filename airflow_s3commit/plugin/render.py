"""Renders pages as HTML: templates, the columns of their tables, and the headers that protect them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from airflow_s3commit import _format
from airflow_s3commit._columns import Column, length
from airflow_s3commit.plugin.auth import Origin
from airflow_s3commit.plugin.views import JobView, longest_idle, stored
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
from airflow_s3commit.protocol.inspect.jobs import StageDetails
from airflow_s3commit.store.forwarding import total_requests

_TEMPLATES = Path(__file__).parent / "templates"
_STYLE, _SCRIPT = ((_TEMPLATES / name).read_text() for name in ("page.css", "page.js"))

#: Maximum number of rows of a table.
MOST_ROWS = 100


class Amount(Column):
    """A column of numbers; empty where a job has none."""

    @property
    def is_number(self) -> bool:
        """Whether its values are aligned to the right."""
        return True


def _amount(title: str, field: str, show: Callable[[Any], str] = _format.number) -> Column:
    return Amount(title, field, lambda value: "" if value is None else show(value))


def _partitions(names: Mapping[str, object] | None) -> str:
    return _format.shortened([name or "(root)" for name in sorted(names or ())])


#: The columns of each table. `parts.html` has macros for those whose cells are more than text.
COLUMNS: Mapping[str, Sequence[Column]] = {
    "jobs": (
        Column("Job", "job"),
        Column("State", "job.state"),
        _amount("Pending", "job.output.bytes", _format.size),
        _amount("Idle", "job.silent", _format.age),
        Column("DAG run", "job.context", folds=True),
        Column("Destination", "home.destination", folds=True),
        _amount("Files", "job.output.files"),
        _amount("Rows", "job.output.rows"),
        _amount("Cost per day", "job.output.bytes", cost_per_day),
        _amount("Time in state", "job.age", _format.age),
    ),
    "ended": (
        Column("Job", "job"),
        Column("State", "job.state"),
        _amount("Ended", "job.age", lambda seconds: f"{_format.age(seconds)} ago"),
        _amount("Generation", "job.manifest.generation"),
        Column("DAG run", "job.context", folds=True),
        Column("Destination", "home.destination", folds=True),
        Column("Mode", "job.manifest.mode"),
        Column("Partitions", "job.manifest.partitions", _partitions, folds=True),
        _amount("Files", "job.manifest.counts.files"),
        _amount("Rows", "job.manifest.counts.rows"),
        _amount("Bytes", "job.manifest.counts.bytes", _format.size),
        _amount("Replaced", "job.manifest.replaced.files"),
    ),
    "destinations": (
        Column("Destination", "home.destination", folds=True),
        _amount("Pending", "jobs", lambda jobs: _format.size(stored(jobs))),
        _amount("Longest idle", "jobs", lambda jobs: _format.age(longest_idle(jobs)) if jobs else ""),
        _amount("Jobs", "jobs", length),
        _amount("Cost per day", "jobs", lambda jobs: cost_per_day(stored(jobs))),
        Column("Connection", "home.aws_conn_id", lambda name: name or "none"),
        Column("See also", "home"),
    ),
    "uploads": (
        Column("Path", "key", folds=True),
        Column("Job", "job_id"),
        _amount("Size", "bytes", _format.size),
        _amount("Cost per day", "bytes", cost_per_day),
        _amount("Age", "age", _format.age),
    ),
    "stages": StageDetails.columns,
    "partitions": (
        Column("Partition", "", lambda item: item[0] or "(root)", folds=True),
        _amount("Files", "", lambda item: _format.number(item[1].files)),
        _amount("Rows", "", lambda item: _format.number(item[1].rows)),
        _amount("Bytes", "", lambda item: _format.size(item[1].bytes)),
    ),
    "replaced": (Column("Key", "key", folds=True), _amount("Size", "size", _format.size)),
}


def render(template: str, **values: Any) -> str:
    """Return a page from a template, named without its suffix, with all values escaped."""
    return _ENVIRONMENT.get_template(f"{template}.html").render(**values)


def job_values(view: JobView) -> dict[str, Any]:
    """Return what the template shows of one job."""
    elsewhere = {"job", "state", "commit replaces", "commit refused"}
    preview = view.details.preview
    return {
        "view": view,
        "facts": [(fact.name, fact.text) for fact in job_facts(view.details) if fact.name not in elsewhere],
        "replaces": replacement(preview) if preview else view.details.conflict,
        "steps": _steps(view),
    }


def _steps(view: JobView) -> Sequence[NextStep]:
    """Return the next steps, with command lines for the same store."""
    options = ("--endpoint-url", view.endpoint_url) if view.endpoint_url is not None else ()
    commands = CommandLines(view.home.place, view.job.job_id, store_options=options)
    if (successor := view.successor) is not None:
        ended = f"the run has ended with another job, {successor.job_id}, which is {successor.state}"
        return [NextStep(f"{ended}: abort this one", commands.line("abort"))]
    return for_job(view.details, commands)


def _link(page: str, /, **query: object) -> str:
    """Return the address of a page, relative to any other, so that it does not depend on a proxy."""
    given = {name: value for name, value in query.items() if value}
    return (page or "./") + (f"?{urlencode(given, errors='replace')}" if given else "")


def _run_url(context: Mapping[str, str]) -> str | None:
    """Return the path of a DAG run in Airflow's UI, relative to Airflow's root; None without a run."""
    origin = Origin.of(context)
    return origin.url if origin is not None else None


def _harmless(value: object) -> object:
    """Escape control characters of texts: whoever can write to the store chooses keys, ids and reasons."""
    return _format.plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(_TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_harmless,
)
_ENVIRONMENT.globals.update(
    columns=COLUMNS,
    most=MOST_ROWS,
    link=_link,
    run_url=_run_url,
    state_of=state,
    stored=stored,
    longest_idle=longest_idle,
    style=Markup(_STYLE),  # noqa: S704 - our own
    script=Markup(_SCRIPT),  # noqa: S704
)
_ENVIRONMENT.filters.update(
    age=_format.age,
    amount=amount,
    daily=cost_per_day,
    number=_format.number,
    requests=total_requests,
    size=_format.size,
)

#: HTTP headers of every page. Only its own script may run, and no other site may frame it.
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)};"
        " img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
