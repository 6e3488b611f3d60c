"""``airflow s3commit …``: the commands of ``s3commit``, with the store of an Airflow connection.

Airflow imports this module whenever ``airflow`` runs, so it imports nothing but Airflow's own types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand, lazy_load_command

if TYPE_CHECKING:
    from airflow.cli.cli_config import CLICommand

__all__ = ["COMMANDS", "get_cli_commands"]

#: The commands of the program, and their summaries.
COMMANDS: Final[dict[str, str]] = {
    "jobs": "List the jobs in progress at a destination.",
    "show": "Show one job in detail, with next steps.",
    "pending": "List pending uploads with their jobs, ages and costs.",
    "setup": "Set up a job, and print its id.",
    "put": "Upload a file, a directory or standard input to a job.",
    "seal": "Seal a stage: what was put is what counts.",
    "commit": "Commit a sealed job: make its output visible.",
    "abort": "Abort a job and discard its uploads.",
    "recover": "Finish an interrupted commit or abort.",
    "sweep": "Remove leftovers of dead jobs. A dry run by default.",
    "rollback": "Make a table what it was at an older generation.",
    "repair": "Rebuild damaged records. A dry run by default.",
    "baseline": "List a table's older files in its log. A dry run by default.",
    "verify": "Compare a table, or a job's records, with the store.",
    "adopt": "Finish or discard a job of Hadoop's S3A committers.",
    "log": "List the commits to a destination, newest first.",
    "manifest": "Show what a job committed.",
    "doctor": "Check that a bucket supports jobs; print policies.",
}

_EPILOG = (
    "Options follow the destination: airflow s3commit {name} s3://lake/flights/ --json. "
    "They are those of the program s3commit: see s3commit {name} --help."
)


def get_cli_commands() -> list[CLICommand]:
    """Return the commands for Airflow's command line."""
    commands = [
        ActionCommand(
            name=name,
            help=does,
            epilog=_EPILOG.format(name=name),
            func=lazy_load_command("airflow_s3commit.cli.airflow.run"),
            args=(
                _arg(
                    "--aws-conn-id",
                    help="The aws connection of the store. Default: aws_conn_id of the section s3commit",
                ),
                _arg("destination", help="The directory of a dataset: s3://bucket/prefix/"),
                # Everything after the destination belongs to the program.
                _arg("words", help="Job, options: see below", nargs="..."),
            ),
        )
        for name, does in COMMANDS.items()
    ]
    return [
        GroupCommand(
            name="s3commit",
            help="Inspect zero-rename S3 commits, finish them, and clean up after them",
            subcommands=commands,
        )
    ]


def _arg(name: str, **settings: str) -> Arg:
    return Arg((name,), **settings)  # type: ignore[no-untyped-call]
