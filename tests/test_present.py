"""Facts and next steps: what people read of a job, and commands that they can paste."""

from __future__ import annotations

import shlex

from airflow_s3commit import Counts, Destination, exceptions
from airflow_s3commit.cli.app import program
from airflow_s3commit.exceptions import (
    DestinationChanged,
    DestinationNotEmpty,
    InvalidPath,
    InvalidRecord,
    JobFailed,
    NoSuchBucket,
    NotReversible,
    OutcomeUnknown,
    S3CommitError,
)
from airflow_s3commit.present import (
    CommandLines,
    after_error,
    amount,
    cost_per_day,
    cost_per_month,
    for_job,
)
from airflow_s3commit.protocol.inspect.jobs import JobDetails, JobSummary
from tests.cases import each

FLIGHTS = Destination.parse("s3://lake/flights and more/")
RECORDS = Destination.parse("s3://records/")


def test_amounts_say_what_is_known() -> None:
    """Rows only where they were counted, one file in the singular."""
    assert amount(Counts(files=1, bytes=2048, rows=1000)) == "1 file, 2.0 KiB, 1,000 rows"
    assert amount(Counts(files=2, bytes=1, rows=None)) == "2 files, 1 B"


def test_costs_are_rounded_to_cents() -> None:
    """A month has the price of the sweep's reports, a day a thirtieth of it; unknown bytes have none."""
    words = {0: "$0.00", 1024**2: "<$0.01", 1024**4: "$23.55", None: "?"}
    assert {stored: cost_per_month(stored) for stored in words} == words
    assert cost_per_day(1024**4) == "$0.79"


def test_a_command_line_is_quoted_and_leads_to_the_same_store() -> None:
    """A job is named to commands that take one, a staging to the others; the way to the store follows."""
    store_options = ("--endpoint-url", "http://127.0.0.1:9")
    commands = CommandLines(FLIGHTS, "j1", RECORDS, ("airflow", "s3commit"), store_options)
    program = ("airflow", "s3commit")
    line = [*program, "commit", FLIGHTS.uri, "j1", "--seal", *store_options]
    assert shlex.split(commands.line("commit", "--seal")) == line
    line = [*program, "jobs", FLIGHTS.uri, "--staging", RECORDS.uri, *store_options]
    assert shlex.split(commands.line("jobs")) == line


def test_steps_after_an_error_depend_on_whether_a_job_is_named() -> None:
    """After an unknown outcome the command is repeated, or what it was about is looked at."""
    error = OutcomeUnknown("the answer was lost")
    about_job = [step.command for step in after_error(error, CommandLines(FLIGHTS, "j1"))]
    assert about_job == [None, shlex.join(["s3commit", "show", FLIGHTS.uri, "j1"])]
    about_table = [step.command for step in after_error(error, CommandLines(FLIGHTS))]
    assert about_table == [None, shlex.join(["s3commit", "jobs", FLIGHTS.uri])]
    (step,) = after_error(NoSuchBucket("lake"), CommandLines(FLIGHTS, "j1"))
    assert step.command is not None
    assert "doctor" in step.command
    assert "j1" not in step.command


def test_the_next_step_after_any_error_can_be_pasted() -> None:
    """The program accepts the command line of each step after an error about a job."""
    kinds = {
        one for one in vars(exceptions).values() if isinstance(one, type) and issubclass(one, S3CommitError)
    }
    steps = {
        step for kind in kinds for step in after_error(kind("refused"), CommandLines(FLIGHTS, "j1", RECORDS))
    }
    lines = {step.command.replace("STAGE:ATTEMPT", "load:1") for step in steps if step.command is not None}
    assert len(lines) >= 3
    for line in lines:
        _, name, *words = shlex.split(line)
        program.commands[name].make_context(name, words)


@each(
    ("kind", "command"),
    [
        (NotReversible, "log"),
        (DestinationChanged, "log"),
        (InvalidRecord, "repair"),
        (JobFailed, "jobs"),
        (DestinationNotEmpty, "jobs"),
    ],
)
def test_an_error_about_a_table_suggests_no_change_of_a_job(kind: type[S3CommitError], command: str) -> None:
    """A refused rollback leads to a command that only looks, and runs without a job's id."""
    steps = after_error(kind("refused"), CommandLines(FLIGHTS))
    assert [shlex.split(step.command or "") for step in steps] == [["s3commit", command, FLIGHTS.uri]]


def test_a_path_that_cannot_be_has_no_next_step() -> None:
    """Its message says what to change, and the state of the job says nothing about it."""
    assert after_error(InvalidPath("path '../x' has an element '..'"), CommandLines(FLIGHTS, "j1")) == []


def test_a_damaged_job_can_only_be_aborted() -> None:
    """Whatever state its other records have, no commit of it is suggested."""
    summary = JobSummary(job_id="j", destination=FLIGHTS.uri, staging="…", state="sealed", problem="damaged")
    (step,) = for_job(JobDetails(summary=summary), CommandLines(FLIGHTS, "j"))
    assert step.command == "s3commit abort 's3://lake/flights and more/' j"
