"""The reference of the exceptions, from the classes themselves."""

from __future__ import annotations

from collections.abc import Iterator

from docstrings import first_line, prose
from tables import cell, code, table

from airflow_s3commit import exceptions
from airflow_s3commit.cli.output import exit_code
from airflow_s3commit.exceptions import S3CommitError


def tree() -> str:
    """Return the tree of all exceptions."""
    lines = ["S3CommitError", *_branches(S3CommitError, "")]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def classes() -> str:
    """Return every exception: what it says, and the command line's exit code for it."""
    rows = (
        (_link(kind), _outcome(kind), _exit(kind), _says(kind))
        for kind, _ in _walk(S3CommitError, 0)
        if kind not in _ROOTS
    )
    return table(("exception", "outcome", "exit code", "meaning"), rows)


_ROOTS = (S3CommitError, exceptions.DidNotHappen, exceptions.Refused)


def _outcome(kind: type[S3CommitError]) -> str:
    """Return the outcome that a type means, in words."""
    if issubclass(kind, exceptions.OutcomeUnknown):
        return "may have happened"
    return "refused" if issubclass(kind, exceptions.Refused) else "did not happen"


def _link(kind: type[S3CommitError]) -> str:
    return f"[`{kind.__name__}`](../how-to/troubleshoot.md#{kind.__name__.lower()})"


def _says(kind: type[S3CommitError]) -> str:
    return cell(prose(kind).replace("\n\n", " ")) or cell(first_line(kind))


def _exit(kind: type[S3CommitError]) -> str:
    return code(str(int(exit_code(kind("")))))


def _walk(kind: type[S3CommitError], depth: int) -> Iterator[tuple[type[S3CommitError], int]]:
    yield kind, depth
    for child in kind.__subclasses__():
        if child.__module__ == exceptions.__name__:
            yield from _walk(child, depth + 1)


def _branches(kind: type[S3CommitError], indent: str) -> Iterator[str]:
    children = [child for child in kind.__subclasses__() if child.__module__ == exceptions.__name__]
    for child in children:
        last = child is children[-1]
        yield f"{indent}{'└── ' if last else '├── '}{child.__name__}"
        yield from _branches(child, indent + ("    " if last else "│   "))
