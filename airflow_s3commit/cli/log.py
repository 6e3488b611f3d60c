"""What the engine logs while a command runs, put where people see it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.text import Text

from airflow_s3commit.cli.output import Output
from airflow_s3commit.cli.wording import plain

__all__ = ["told_to"]

_PACKAGE = "airflow_s3commit"


class _Handler(logging.Handler):
    """Writes records to the standard error, above a progress bar if there is one."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.DEBUG if output.debug else logging.WARNING)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        message = record.getMessage()
        if self._output.debug and record.exc_info:
            message += "\n" + logging.Formatter().formatException(record.exc_info)
        lines = "\n".join(map(plain, message.splitlines()))
        label = f"{record.levelname.lower()}: "
        self._output.err.print(Text.assemble((label, "yellow"), lines), soft_wrap=True)


@contextmanager
def told_to(output: Output) -> Iterator[None]:
    """Show the package's warnings, or with ``--debug`` all it logs, while the block runs.

    The libraries below are left out: their logs show whole requests.
    """
    logger, handler = logging.getLogger(_PACKAGE), _Handler(output)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if output.debug else logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
