"""Facts and next steps: what people read of a job, and commands that they can paste."""

from __future__ import annotations

import shlex

from airflow_s3commit import Counts, Destination, exceptions
from airflow_s3commit.cli.app import program
from airflow_s3commit.exceptions import (
    DestinationChanged,
    DestinationNotEmpty,
    ForeignRecord,
    InvalidPath,
    InvalidRecord,
    JobClosed,
    JobFailed,
    NoSuchBucket,
    NotReversible,
    OutcomeUnknown,
    S3CommitError,
    StoreUnsuitable,
)
from airflow_s3commit.present import (
    _FOR_JOBS,
    PARTITION_COLUMNS,
    CommandLines,
    after_error,
    amount,
    cost_per_day,
    cost_per_month,
    for_job,
    replacement,
)
from airflow_s3commit.protocol.inspect.jobs import JobDetails, JobSummary
from airflow_s3commit.protocol.steps.commit import Preview
from tests.cases import each

FLIGHTS = Destination.parse("s3://lake/flights and more/")
RECORDS = Destination.parse("s3://records/")


def test_amounts_say_what_is_known() -> None:
    """Rows only where they were counted, one file in the singular."""
    assert amount(Counts(files=1, bytes=2048, rows=1000)) == "1 file, 2.0 KiB, 1,000 rows"
    assert amount(Counts(files=2, bytes=1, rows=None)) == "2 files, 1 B"
    assert amount(Counts(files=1, bytes=1, rows=0)) == "1 file, 1 B, 0 rows"
    assert amount(Counts()) == "0 files, 0 B"


def test_what_a_commit_replaces_is_said_with_the_generation() -> None:
    """The preview counts files, size and partitions, or says that the commit replaces nothing."""
    some = Preview(generation=4, partitions=["dt=1"], objects=2, bytes=2048)
    assert replacement(some) == "2 files, 2.0 KiB in 1 partition, as of generation 4"
    none = Preview(generation=0, partitions=[], objects=0, bytes=0)
    assert replacement(none) == "nothing, as of generation 0"


def test_a_partition_is_described_by_its_counts() -> None:
    """Each count has a column of its own, the root a name, and statistics that no writer had no number."""
    shown = [column.text(("", Counts(files=1, bytes=2, rows=3))) for column in PARTITION_COLUMNS]
    assert shown == ["(root)", "1", "2 B", "3", ""]


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


@each("name", ["doctor", "jobs", "log", "pending", "repair", "sweep"])
def test_a_command_line_names_a_staging_where_the_command_takes_one(name: str) -> None:
    """A command about a destination gets no job, and the staging only if it has the option."""
    takes = {param.name for param in program.commands[name].params}
    words = shlex.split(CommandLines(FLIGHTS, "j1", RECORDS).line(name))
    assert ("j1" in words, "--staging" in words) == ("job_id" in takes, "staging_root" in takes)


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


def test_the_next_step_for_any_job_can_be_pasted() -> None:
    """The program accepts the command line of each step for a job, however far that is."""
    for steps in _FOR_JOBS.values():
        for _, *command in steps:
            if command:
                _, name, *words = shlex.split(CommandLines(FLIGHTS, "j1").line(*command))
                program.commands[name].make_context(name, words)


@each(
    ("kind", "command"),
    [
        (NotReversible, "log"),
        (DestinationChanged, "log"),
        (InvalidRecord, "repair"),
        (JobFailed, "jobs"),
        (DestinationNotEmpty, "jobs"),
        (StoreUnsuitable, "doctor"),
    ],
)
def test_an_error_about_a_table_suggests_no_change_of_a_job(kind: type[S3CommitError], command: str) -> None:
    """A refused rollback leads to a command that only looks, and runs without a job's id."""
    steps = after_error(kind("refused"), CommandLines(FLIGHTS))
    assert [shlex.split(step.command or "") for step in steps] == [["s3commit", command, FLIGHTS.uri]]


@each("kind", [DestinationNotEmpty, InvalidRecord, JobClosed])
def test_an_error_about_a_job_leads_to_its_state(kind: type[S3CommitError]) -> None:
    """What to do about a job that refuses a step is said where its state is shown."""
    (step,) = after_error(kind("refused"), CommandLines(FLIGHTS, "j1"))
    assert shlex.split(step.command or "") == ["s3commit", "show", FLIGHTS.uri, "j1"]


def test_a_foreign_record_of_a_table_has_no_next_step() -> None:
    """Its message has the next action, because nothing can be rebuilt of a copy."""
    assert after_error(ForeignRecord("copied"), CommandLines(FLIGHTS)) == []


def test_a_path_that_cannot_be_has_no_next_step() -> None:
    """Its message says what to change, and the state of the job says nothing about it."""
    assert after_error(InvalidPath("path '../x' has an element '..'"), CommandLines(FLIGHTS, "j1")) == []


def test_a_damaged_job_can_only_be_aborted() -> None:
    """Whatever state its other records have, no commit of it is suggested."""
    summary = JobSummary(job_id="j", destination=FLIGHTS.uri, staging="…", state="sealed", problem="damaged")
    (step,) = for_job(JobDetails(summary=summary), CommandLines(FLIGHTS, "j"))
    assert step.command == "s3commit abort 's3://lake/flights and more/' j"
