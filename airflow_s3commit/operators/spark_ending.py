"""Finds the exception that ended a Spark application in what ``spark-submit`` prints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: The beginning of a Python traceback, of the driver or, behind other text on its line, of a task.
_TRACEBACK = "Traceback (most recent call last):"

#: Between two Python tracebacks, of which the first is the cause of the second.
_CAUSE_ABOVE = "The above exception was the direct cause"

_JAVA = re.compile(r'Exception in thread "[^"]*" (.*)')

#: The type of an exception, and its message.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.$]*(?=:|$)")

#: Characters of a message that are kept: some repeat a whole query plan.
_LONGEST = 300


class SparkEnding:
    """The exception that ended an application, and its first cause, as its log has them."""

    def __init__(self) -> None:
        self.exception = ""
        self.cause = ""
        self._wanted = ""

    def watch(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield lines unchanged, and look for exceptions among them.

        :param lines: The lines of the log.
        """
        for line in lines:
            self._look(line.rstrip())
            yield line

    def __str__(self) -> str:
        return f"{self.exception}; caused by {self.cause}" if self.cause else self.exception

    @property
    def types(self) -> str:
        """The types without the messages, which may repeat what the application keeps to itself."""
        found = [known[0] for text in (self.exception, self.cause) if (known := _EXCEPTION.match(text))]
        return ", caused by ".join(found)

    def _look(self, line: str) -> None:
        if line.startswith(_TRACEBACK):
            self._wanted = "exception"
        elif thread := _JAVA.match(line):
            self.exception, self.cause = thread[1][:_LONGEST], ""
        elif line.startswith(_CAUSE_ABOVE):
            self.cause = self.exception
        elif line.endswith(_TRACEBACK):
            self._wanted = "cause"
        elif line.startswith(("Caused by: ", ": ")):
            self.cause = line.removeprefix("Caused by").removeprefix(": ")[:_LONGEST]
        elif self._wanted and line and not line[0].isspace():
            self._end(line)

    def _end(self, line: str) -> None:
        """Take the line below a Python traceback, which has the exception."""
        if self._wanted == "cause":
            self.cause = line[:_LONGEST]
        else:
            # Of an exception that was raised while another one was handled, that one is no cause.
            self.cause = self.cause if self.cause == self.exception else ""
            self.exception = line[:_LONGEST]
        self._wanted = ""
