"""The exit codes of the program, for scripts."""

from __future__ import annotations

import signal
from enum import IntEnum

from airflow_s3commit.exceptions import OutcomeUnknown, Refused, S3CommitError


class ExitCode(IntEnum):
    """The exit codes, each with one meaning in every command."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    REFUSED = 3
    DID_NOT_HAPPEN = 4
    OUTCOME_UNKNOWN = 5
    INTERNAL = 70
    INTERRUPTED = 128 + signal.SIGINT
    BROKEN_PIPE = 128 + signal.SIGPIPE


#: Code and meaning, as the help shows them.
EXIT_CODES_HELP: tuple[tuple[str, str], ...] = (
    ("0", "Done; or examined, and all is well."),
    (
        "1",
        "Something was found: differences, failed checks, nothing committed. Also: you said no.",
    ),
    ("2", "The command line is not valid."),
    ("3", "Refused by a rule of the protocol; the same call will be refused again."),
    (
        "4",
        "It did not happen: store not reached, credentials, permissions, or rolled back. Safe to run again.",
    ),
    (
        "5",
        "It may or may not have happened, or half of it did: look before redoing it, or run recover.",
    ),
    ("70", "A bug in this program."),
    ("130", "Interrupted. Every command may be run again."),
)


def exit_code(error: S3CommitError) -> ExitCode:
    """Return the code for an error: its type says the outcome."""
    if isinstance(error, OutcomeUnknown):
        return ExitCode.OUTCOME_UNKNOWN
    return ExitCode.REFUSED if isinstance(error, Refused) else ExitCode.DID_NOT_HAPPEN


def outcome(error: S3CommitError) -> str:
    """Return the outcome in one word, for scripts."""
    return exit_code(error).name.lower()
