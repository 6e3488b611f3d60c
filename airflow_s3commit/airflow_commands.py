"""``airflow s3commit …``: the commands of ``s3commit``, with the store of an Airflow connection.

Airflow imports this module whenever ``airflow`` runs. So the module imports nothing but Airflow's own types,
and a command imports the program when it runs.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Final, NoReturn

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.cli.cli_config import CLICommand

    from airflow_s3commit.cli.store_options import Connection
    from airflow_s3commit.hooks.s3_commit import S3CommitHook
    from airflow_s3commit.store.base import ObjectStore

__all__ = ["COMMANDS", "get_cli_commands"]

#: The commands of the program, and their summaries.
COMMANDS: Final[dict[str, str]] = {
    "jobs": "List the jobs in progress at a destination.",
    "show": "Show one job in detail, with next steps.",
    "pending": "List pending uploads with their jobs, ages and costs.",
    "setup": "Set up a job, and print its id.",
    "put": "Upload a file, a directory or standard input to a job.",
    "seal": "Seal a stage, with what was put to it.",
    "commit": "Commit a sealed job: make its output visible.",
    "abort": "Abort a job and discard its uploads.",
    "recover": "Finish an interrupted commit or abort.",
    "sweep": "Remove leftovers of dead jobs. A dry run by default.",
    "rollback": "Return a table to an older generation.",
    "repair": "Rebuild damaged records. A dry run by default.",
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
            func=run,
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


def run(args: argparse.Namespace) -> NoReturn:
    """Run one command and exit with its code.

    Args:
        args: The command line as parsed by Airflow: ``subcommand``, ``aws_conn_id``, ``destination``, and the
            program's own arguments in ``words``.

    """
    from airflow_s3commit.cli.app import program  # noqa: PLC0415
    from airflow_s3commit.cli.store_options import StoreProvider  # noqa: PLC0415

    conn_id, words = _connection_among(list(args.words))
    conn_id = conn_id or args.aws_conn_id or _default_connection()
    # Connections are in the metadata database, to which only Airflow's servers and commands have access.
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
    provider = StoreProvider(
        ("airflow", "s3commit"),
        ("--aws-conn-id", conn_id),
        lambda asked: _open(conn_id, asked),
        conn_id,
    )
    program.main([args.subcommand, args.destination, *words], prog_name="airflow s3commit", obj=provider)
    raise AssertionError("the program exits by itself")


def _connection_among(words: list[str]) -> tuple[str | None, list[str]]:
    """Extract the option from the words after the destination, which Airflow does not parse."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--aws-conn-id")
    found, rest = parser.parse_known_args(words)
    return found.aws_conn_id, rest


def _default_connection() -> str:
    from airflow_s3commit.settings import DEFAULT_CONNECTION  # noqa: PLC0415

    return DEFAULT_CONNECTION


def _open(conn_id: str, asked: Connection) -> ObjectStore:
    """Return the store of an Airflow connection.

    Raises:
        StoreRejected: There is no such connection, or the command line names another store.

    """
    from airflow_s3commit.airflow_version import AirflowNotFoundException  # noqa: PLC0415
    from airflow_s3commit.exceptions import StoreRejected  # noqa: PLC0415
    from airflow_s3commit.hooks.s3_commit import S3CommitHook  # noqa: PLC0415

    config = asked.config
    if config.endpoint_url or config.profile or config.path_style is not None:
        raise StoreRejected(
            f"the Airflow connection {conn_id} already configures the store: omit --endpoint-url, --profile "
            "and --path-style, or use s3commit without Airflow"
        )
    hook = S3CommitHook(
        conn_id, region_name=config.region, verify=config.verify, retry_deadline=asked.patience
    )
    try:
        _quietly(lambda: _connect(hook))
    except AirflowNotFoundException as error:
        raise StoreRejected(
            f"Airflow has no connection {conn_id!r}: add it, or choose another with --aws-conn-id"
        ) from error
    return hook.store


def _connect(hook: S3CommitHook) -> None:
    # Without a connection, the hook would use the credentials of this machine.
    hook.get_connection(str(hook.aws_conn_id))
    _ = hook.store


def _quietly(step: Callable[[], None]) -> None:
    """Run a step without Airflow's log, because it would mix with the command's output on stdout."""
    from airflow.utils.cli import suppress_logs_and_warning  # noqa: PLC0415

    suppress_logs_and_warning(lambda _: step())(argparse.Namespace(verbose=False))
