"""``airflow s3commit …``: the commands of ``s3commit``, with the store of an Airflow connection.

Airflow imports this module whenever ``airflow`` runs. So it imports nothing but Airflow's own types, and a
command imports the program when it runs.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, NoReturn

from airflow.cli.cli_config import ActionCommand, Arg

if TYPE_CHECKING:
    from airflow.cli.cli_config import CLICommand

    from airflow_s3commit.cli.command import Connection
    from airflow_s3commit.store.base import ObjectStore

__all__ = ["get_cli_commands"]


def get_cli_commands() -> list[CLICommand]:
    """Return the command for Airflow's command line."""
    connection = "The aws connection of the store. Default: aws_conn_id of the section s3commit"
    return [
        ActionCommand(
            name="s3commit",
            help="Inspect zero-rename S3 commits, finish them, and clean up after them",
            epilog="airflow s3commit, without words, lists the commands. airflow s3commit COMMAND --help"
            " explains one. Example: airflow s3commit jobs s3://lake/flights/ --json",
            func=run,
            args=(
                _arg("--aws-conn-id", help=connection),
                _arg("words", help="A command, its arguments and options", nargs="..."),
            ),
        )
    ]


def _arg(name: str, **settings: str) -> Arg:
    return Arg((name,), **settings)  # type: ignore[no-untyped-call]


def run(args: argparse.Namespace) -> NoReturn:
    """Run the command of ``s3commit`` that the argument ``words`` holds, and exit with its code."""
    from airflow_s3commit.cli.app import program  # noqa: PLC0415
    from airflow_s3commit.cli.command import StoreProvider  # noqa: PLC0415
    from airflow_s3commit.settings import DEFAULT_CONNECTION  # noqa: PLC0415

    # The option may also stand among the words, which Airflow does not parse.
    parser = argparse.ArgumentParser("airflow s3commit", add_help=False, allow_abbrev=False)
    parser.add_argument("--aws-conn-id", default=args.aws_conn_id or DEFAULT_CONNECTION)
    found, words = parser.parse_known_args(list(args.words))
    conn_id: str = found.aws_conn_id
    # Connections are in the metadata database, to which only Airflow's servers and commands have access.
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
    provider = StoreProvider(lambda asked: _open(conn_id, asked), conn_id)
    program.main(words, prog_name="airflow s3commit", obj=provider)


def _open(conn_id: str, asked: Connection) -> ObjectStore:
    """Return the store of an Airflow connection.

    Raises `StoreRejected` if there is no such connection, or the command line names another store.
    """
    from airflow.utils.cli import suppress_logs_and_warning  # noqa: PLC0415

    from airflow_s3commit.airflow_version import AirflowNotFoundException  # noqa: PLC0415
    from airflow_s3commit.exceptions import StoreRejected  # noqa: PLC0415
    from airflow_s3commit.hooks import S3CommitHook  # noqa: PLC0415
    from airflow_s3commit.store.s3.config import S3Config  # noqa: PLC0415

    if asked.config != S3Config():
        raise StoreRejected(
            f"the Airflow connection {conn_id} already configures the store: omit the options that do, from"
            " --endpoint-url to --ca-bundle, or use s3commit without Airflow"
        )
    hook = S3CommitHook(conn_id, retry_deadline=asked.patience)

    def connect(_args: argparse.Namespace) -> None:
        # Without a connection, the hook would use the credentials of this machine.
        hook.get_connection(conn_id)
        _ = hook.store

    try:
        # Airflow's log would mix with the command's output on stdout.
        suppress_logs_and_warning(connect)(argparse.Namespace(verbose=False))
    except AirflowNotFoundException as error:
        raise StoreRejected(
            f"Airflow has no connection {conn_id!r}: add it, or choose another with --aws-conn-id"
        ) from error
    return hook.store
