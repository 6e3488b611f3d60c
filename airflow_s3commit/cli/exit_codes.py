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
    ("0", "Success; a check found no problems."),
    (
        "1",
        "Findings: differences, failed checks, or nothing committed. Also if you answered no.",
    ),
    ("2", "The command line is not valid."),
    ("3", "Refused by a rule of the protocol; the same command will be refused again."),
    (
        "4",
        "Failed without effect: store unreachable, no permission, or rolled back. Safe to repeat.",
    ),
    (
        "5",
        "Unknown outcome: it may have happened in part. Run show before you repeat it, or run recover.",
    ),
    ("70", "A bug in this program."),
    ("130", "Interrupted. Every command may be repeated."),
)


def exit_code(error: S3CommitError) -> ExitCode:
    """Return the exit code of an error, by its kind: refused, without effect, or outcome unknown."""
    if isinstance(error, OutcomeUnknown):
        return ExitCode.OUTCOME_UNKNOWN
    return ExitCode.REFUSED if isinstance(error, Refused) else ExitCode.DID_NOT_HAPPEN


def outcome(error: S3CommitError) -> str:
    """Return the outcome of an error for scripts, such as ``did_not_happen``."""
    return exit_code(error).name.lower()
