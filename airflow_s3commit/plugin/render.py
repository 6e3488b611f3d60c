"""Renders pages as HTML, with a style sheet and a small script."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from airflow_s3commit import _format
from airflow_s3commit.plugin.auth import Origin
from airflow_s3commit.plugin.views import JobView, refreshed
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
from airflow_s3commit.protocol.inspect.jobs import JobSummary
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.store.forwarding import total_requests

logger = logging.getLogger(__name__)

_TEMPLATES = Path(__file__).parent / "templates"

T = TypeVar("T")


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
            style=self._style,
            script=self._script,
            run_url=_run_url,
            guarded=_guarded,
            state_of=state,
            refreshed=refreshed,
        )
        self._environment.filters.update(
            age=_format.age,
            amount=amount,
            daily=cost_per_day,
            moment=_format.moment,
            number=_format.number,
            plain=_format.plain,
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


def _run_url(context: Mapping[str, str]) -> str | None:
    """Return the path of a DAG run in Airflow's UI, relative to Airflow's root; None without a run."""
    origin = Origin.of(context)
    return origin.url if origin is not None else None


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
