"""The command line ``s3commit``: inspects jobs, finishes them, and cleans up after them."""

from __future__ import annotations

from airflow_s3commit._names import lazy

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from airflow_s3commit.cli.app import main

__all__ = ["COMMANDS", "main"]

#: The commands by what they are for, in the order of the help. Airflow reads them whenever ``airflow`` runs,
#: so this module imports nothing.
COMMANDS: dict[str, tuple[str, ...]] = {
    "See what is there": ("jobs", "show", "pending", "log", "manifest"),
    "Write a job": ("setup", "put", "seal"),
    "End a job": ("commit", "abort", "recover"),
    "Let other engines read": ("publish",),
    "Check": ("verify", "doctor"),
    "Clean up and mend": ("sweep", "compact", "rollback", "repair", "adopt"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__spec__)
