"""Rules of the gate: what goes wrong at chosen requests."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.spark_cluster.gate import TurnedAway

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.spark_cluster.conftest import ExecutorKeys
    from tests.spark_cluster.gate import Request

__all__ = ["Counts", "Expires", "Kills", "Throttles", "Twins"]


@dataclass
class Twins:
    """Holds the answers to one task's pendingsets until two attempts have written theirs."""

    task: str
    written: int = 0
    both: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def before(self, request: Request) -> None:
        pass

    def after(self, request: Request) -> None:
        if request.writes(".pendingset") and re.search(f"[/-]{self.task}_", request.path):
            with self.lock:
                self.written += 1
                if self.written == 2:
                    self.both.set()
            self.both.wait(60)


@dataclass
class Counts:
    """Lets everything pass, and keeps what was asked."""

    seen: list[Request] = field(default_factory=list)

    def before(self, request: Request) -> None:
        self.seen.append(request)

    def after(self, request: Request) -> None:
        pass


@dataclass
class Throttles:
    """Turns every third request away."""

    seen: int = 0
    refused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def before(self, request: Request) -> None:
        with self.lock:
            self.seen += 1
            if self.seen % 3 == 0:
                self.refused += 1
                raise TurnedAway(503, "SlowDown")

    def after(self, request: Request) -> None:
        pass


@dataclass
class Expires:
    """Lets the executors' keys expire at the first part that is uploaded, and refuses them from then on."""

    keys: ExecutorKeys
    renewed: bool = False
    refused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def before(self, request: Request) -> None:
        with self.lock:
            if request.uploads_part and not self.renewed:
                self.renewed = True
                self.keys.renew()
            if request.access_key.startswith("executor-") and request.access_key != self.keys.access_key:
                self.refused += 1
                raise TurnedAway(400, "ExpiredToken")

    def after(self, request: Request) -> None:
        pass


@dataclass
class Kills:
    """Kills the driver at one request: before the store gets it, or when it has answered."""

    kill: Callable[[], None]
    when: Callable[[Request], bool]
    answered: bool
    done: bool = False

    def before(self, request: Request) -> None:
        if not self.answered and self.when(request):
            self._strike()
            raise TurnedAway(503, "SlowDown")

    def after(self, request: Request) -> None:
        if self.answered and self.when(request):
            self._strike()

    def _strike(self) -> None:
        if not self.done:
            self.done = True
            self.kill()
