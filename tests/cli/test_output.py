"""What a command writes, to people and to scripts, and what of it is left out."""

from __future__ import annotations

import logging
import sys

import click
import pytest

from airflow_s3commit.cli.output import ExitCode, Output, logged_to
from airflow_s3commit.protocol.metadata.context import STEP_NOTE
from tests.protocol.building import OURS

LOGGER = logging.getLogger("airflow_s3commit")


def test_a_closed_standard_input_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may start the program without one, and nobody can answer there."""
    monkeypatch.setattr(sys, "stdin", None)
    assert not Output().is_interactive


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("message", ["503 Slow Down", f"job {OURS} is damaged"])
def test_the_step_of_an_error_is_named_once(
    capsys: pytest.CaptureFixture[str], message: str, *, debug: bool
) -> None:
    """A message without its job gets that of the step, and every other note is written as it is."""
    step, other = f"{STEP_NOTE}commit of job {OURS}", "the abort failed too"
    value = {"message": message, "job_id": OURS, "notes": [step, other]}
    assert Output(debug=debug).failure(value, ExitCode.DID_NOT_HAPPEN) == ExitCode.DID_NOT_HAPPEN
    told = capsys.readouterr().err
    assert (step in told) == (debug or OURS not in message)
    assert other in told


def test_a_question_is_written_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control characters in a name cannot change what a person seems to agree to."""
    asked: list[tuple[str, bool]] = []
    monkeypatch.setattr(Output, "is_interactive", True)
    monkeypatch.setattr(click, "confirm", lambda text, *, err: asked.append((text, err)) or True)
    Output().confirm("Abort \x1b[2J?", yes=False)
    Output().confirm("Abort it?", yes=True)
    assert asked == [("Abort \\x1b[2J?", True)]


@pytest.mark.parametrize(("debug", "labels"), [(False, ["warning"]), (True, ["debug", "warning"])])
def test_the_log_of_the_package_is_shown_once(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, *, debug: bool, labels: list[str]
) -> None:
    """Its warnings, and with ``--debug`` all of it with tracebacks, are there and in no other handler."""
    with logged_to(Output(debug=debug)):
        LOGGER.debug("looked")
        try:
            raise ZeroDivisionError("by nothing")
        except ZeroDivisionError:
            LOGGER.warning("trying again\nin a second", exc_info=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in lines if line.startswith(("debug: ", "warning: "))] == labels
    assert "in a second" in lines
    assert ("ZeroDivisionError: by nothing" in lines) == debug
    assert caplog.records == []


@pytest.mark.parametrize("propagate", [False, True])
def test_the_log_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch, *, propagate: bool) -> None:
    """A program that calls a command keeps its own level and handlers, also after an error."""
    monkeypatch.setattr(LOGGER, "level", 17)
    monkeypatch.setattr(LOGGER, "propagate", propagate)
    before = LOGGER.handlers[:]
    with pytest.raises(ZeroDivisionError), logged_to(Output()):
        raise ZeroDivisionError
    assert (LOGGER.handlers, LOGGER.level, LOGGER.propagate) == (before, 17, propagate)
