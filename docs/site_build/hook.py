"""What mkdocs does here beyond Markdown: generated references, diagrams, links to the repository's files.

A page asks for a generated part with a comment of its own line, ``<!-- generated: cli -->`` or
``<!-- diagram: states -->``. What is generated comes from the code itself, each time the site is built, so
it cannot say anything that the code does not.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

# mkdocs loads this file by its path, with its directory on the path of imports.
import cli_page
import diagrams
import exceptions_page
import options_page
import records_page

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]

#: What a page may ask for, and what makes it.
GENERATED: dict[str, Callable[[], str]] = {
    "airflow-config": options_page.airflow_config,
    "cli-commands": cli_page.commands,
    "cli-exit-codes": cli_page.exit_codes,
    "cli-shared-options": cli_page.shared_options,
    "exceptions": exceptions_page.classes,
    "exceptions-tree": exceptions_page.tree,
    "job-options": options_page.job_options,
    "object-options": options_page.object_options,
    "records": records_page.own_records,
    "records-hadoop": records_page.hadoop_records,
    "spark-conf": options_page.spark_conf,
    "table-options": options_page.table_options,
    "spark-write-options": options_page.write_options,
}

_ASKED = re.compile(r"^<!-- (generated|diagram): ([a-z0-9-]+) -->$", re.MULTILINE)
_LINK = re.compile(r"(?<!\!)\[(?P<label>[^\]]+)\]\((?P<target>(?:\.\./)+[^)#\s]+)\)")
_DANGLING_COLON = re.compile(r"::</p>(?=\s*<(?:div|pre))")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Fill in what a page asks for, and name the repository's files instead of linking to them."""
    filled = _ASKED.sub(lambda asked: _made(asked[1], asked[2]), markdown)
    here = posixpath.dirname(page.file.src_uri)
    return _LINK.sub(lambda link: _within_docs(link, here), filled)


def on_page_content(html: str, **_: Any) -> str:
    """Take back the second colon by which reST announces a block of code."""
    return _DANGLING_COLON.sub(":</p>", html)


def _made(kind: str, name: str) -> str:
    return diagrams.svg(name) if kind == "diagram" else GENERATED[name]()


def _within_docs(link: re.Match[str], here: str) -> str:
    """Return a link as it is, or its label alone where it leads out of docs/ to a file of the repository.

    Read in the repository, such a link works; the site does not hold the file.
    """
    target = posixpath.normpath(posixpath.join("docs", here, link["target"]))
    if target.startswith("docs/"):
        return link[0]
    if not (ROOT / target).exists():
        raise FileNotFoundError(f"docs/{here}: the link to {target} leads nowhere")
    return link["label"]
