"""Runs an S3 server on this machine until it is interrupted: ``python -m airflow_s3commit.testing``."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from pathlib import Path

from airflow_s3commit.testing.programs import ProgramFailed, end_in_order_on_signals, write_private
from airflow_s3commit.testing.s3_server import S3Server


def main(argv: list[str] | None = None) -> int:
    """Run the server until a signal stops it, with its address and keys in a file that a shell can source.

    Returns the exit code: 1 if the server did not start.
    """
    parser = argparse.ArgumentParser(prog="python -m airflow_s3commit.testing", description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=Path("s3-data"), help="directory of the objects (default: ./s3-data)"
    )
    parser.add_argument(
        "--environment",
        type=Path,
        default=Path("s3.env"),
        help="file for the address and the keys, removed at the end (default: ./s3.env)",
    )
    parser.add_argument("--bucket", default="lake", help="bucket to create (default: lake)")
    arguments = parser.parse_args(argv)
    end_in_order_on_signals()
    try:
        with S3Server(arguments.data, (arguments.bucket,)) as server:
            write_private(arguments.environment, _exports(server.environment))
            try:
                print(
                    f"s3://{arguments.bucket}/ at {server.endpoint_url}; `source {arguments.environment}` in"
                    " a shell to use it. Ctrl-C stops it; the objects stay.",
                    flush=True,
                )
                while True:
                    signal.pause()
            finally:
                # Only after a start: a server that did not start leaves another server's file alone.
                arguments.environment.unlink(missing_ok=True)
    except KeyboardInterrupt:
        return 0
    except ProgramFailed as error:
        print(error, file=sys.stderr)
        return 1


def _exports(variables: dict[str, str]) -> str:
    """Return a shell's commands that set these variables."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


if __name__ == "__main__":
    sys.exit(main())
