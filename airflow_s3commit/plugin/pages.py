"""Turning what was read into pages: HTML with its own style, and one small script that follows Airflow."""

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

from airflow_s3commit.cli import wording
from airflow_s3commit.cli.advice import for_job
from airflow_s3commit.cli.connect import Connection
from airflow_s3commit.cli.jobs import about, preview_words
from airflow_s3commit.cli.output import NextStep, Output
from airflow_s3commit.cli.session import Session
from airflow_s3commit.plugin.dossier import Dossier
from airflow_s3commit.plugin.glance import dollars_a_day, rate_of, requests_of
from airflow_s3commit.plugin.origin import Origin
from airflow_s3commit.plugin.picture import Picture, draw
from airflow_s3commit.protocol.survey import JobSummary
from airflow_s3commit.store.s3 import S3Config

__all__ = ["Pages"]

logger = logging.getLogger(__name__)

_TEMPLATES = Path(__file__).parent / "templates"

#: What a job's page shows where its times are no times.
_NO_PICTURE = Picture([], [], "")

T = TypeVar("T")


class Pages:
    """Renders the templates of this folder; everything in them is escaped."""

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
            age=_in_doubt(wording.age),
            amount=_in_doubt(wording.amount),
            daily=_in_doubt(_daily),
            number=_in_doubt(wording.number),
            plain=wording.plain,
            rate=_in_doubt(_rate),
            rate_of=rate_of,
            requests_of=requests_of,
            size=_in_doubt(wording.size),
        )

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every page: it runs nothing but its own script, and stands in no other site's frame."""
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
            template: Which, without its ending.
            root: The path below which the application is served.
            **values: What the template asks for.

        """

        def link(page: str, /, **query: object) -> str:
            asked = {name: value for name, value in query.items() if value is not None}
            return f"{root}/{page}" + (f"?{urlencode(asked, errors='replace')}" if asked else "")

        return self._environment.get_template(f"{template}.html").render(link=link, **values)

    def job_values(self, dossier: Dossier, endpoint_url: str | None) -> dict[str, Any]:
        """Return what the part of a page about one job asks for."""
        job, preview = dossier.summary, dossier.details.preview
        nothing: Sequence[Any] = ()
        return {
            "dossier": dossier,
            "job": job,
            "facts": _shown(job, lambda: _facts(dossier), nothing),
            "picture": _shown(job, lambda: draw(dossier.milestones, job.state, dossier.now), _NO_PICTURE),
            "replaces": _shown(job, lambda: preview_words(preview), "?") if preview else None,
            "steps": _shown(job, lambda: _steps(dossier, endpoint_url), nothing),
        }


def _shown(job: JobSummary, make: Callable[[], T], instead: T) -> T:
    """Return a part of a page about a job, or what replaces it if the job's records make it impossible."""
    try:
        return make()
    except Exception:
        logger.exception("a part of the page of job %r cannot be shown", job.job_id)
        return instead


def _guarded(macro: Callable[..., Markup], job: JobSummary, columns: int, *arguments: object) -> Markup:
    """Return a job's row, or one that says that the job cannot be shown."""
    row = Markup('<tr><th scope="row" class="id">{}</th><td colspan="{}">cannot be shown</td></tr>')
    return _shown(job, lambda: macro(*arguments, job), row.format(wording.plain(job.job_id)[:8], columns - 1))


def _facts(dossier: Dossier) -> Sequence[tuple[str, str]]:
    """Return what ``s3commit show`` says, without what the page says elsewhere."""
    elsewhere = {"job", "state", "commit replaces"}
    return [
        (name, str(value))
        for name, value in about(dossier.details)
        if value is not None and str(value) and name not in elsewhere
    ]


def _steps(dossier: Dossier, endpoint_url: str | None) -> Sequence[NextStep]:
    """Return what to do next, with the command lines that lead to the same store."""
    if dossier.summary.state == "aborted" and dossier.summary.staging is None:
        return []
    place = dossier.place
    session = Session(
        Connection(S3Config(endpoint_url=endpoint_url)),
        Output(),
        place.destination,
        dossier.summary.job_id,
        place.staging_root,
    )
    return for_job(dossier.summary, session)


def _run_url(context: Mapping[str, str]) -> str | None:
    """Return the address of a DAG run in Airflow's UI, below Airflow's root."""
    origin = Origin.of(context)
    return origin.url if origin is not None else None


def _in_doubt(words_of: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return what words a number, with a question mark for one that is too large for that."""

    def words(value: Any) -> str:
        try:
            return words_of(value)
        except (ArithmeticError, ValueError):
            return "?"

    return words


def _daily(stored: int) -> str:
    return wording.dollars(dollars_a_day(stored))


def _rate(per_second: float | None) -> str:
    if per_second is None:
        return ""
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s"  # noqa: PLR2004


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
