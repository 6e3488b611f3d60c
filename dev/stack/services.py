"""The services of a Compose file as programs of this machine: started in order, watched, stopped together."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from airflow_s3commit.testing.programs import Program, ProgramFailed, stop_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from types import TracebackType

#: Seconds until every service must be healthy. On two idle cores it takes about 60.
START_SECONDS = 420.0

#: Seconds that one question for a service's health may take.
HEALTH_SECONDS = 60.0

#: Seconds to end in; a scheduler that ends would wait for its tasks, and nothing here is worth that.
GRACE_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Service:
    """One service: a program, what it must be given, and when it may start.

    Attributes:
        name: Its name, by which the others reach it.
        command: The program and its arguments.
        environment: Its variables, all of them: it inherits none.
        health: The command that says whether it is healthy; empty if it runs once and ends.
        after: The services that must be healthy, or have ended well, before it starts.
        mounts: What a container of it sees of the machine: its own path, and the directory or named volume
            behind that.
        grace: Seconds between asking it to end and making it end.

    """

    name: str
    command: list[str]
    environment: Mapping[str, str]
    health: list[str]
    after: tuple[str, ...] = ()
    mounts: Mapping[str, str] = field(default_factory=dict)
    grace: float = GRACE_SECONDS


class RunningServices:
    """Starts services when those before them are ready, and stops all of them together.

    As a context manager everything is healthy after entry, and gone after exit. Everything also ends when
    this process does, however that happens.

    Args:
        services: The services. One that comes after a service that is not among them need not wait for it.
        directory: Their working directory.
        logs: Where each has its log.
        tell: Called with the name of each service when it is healthy, or has ended well.

    """

    def __init__(
        self,
        services: Iterable[Service],
        *,
        directory: Path,
        logs: Path,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._services = {service.name: service for service in services}
        self._programs: dict[str, Program] = {}
        self._ready: set[str] = set()
        self._directory = directory
        self._logs = logs
        self._tell = tell

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def check_running(self) -> None:
        """Return if every service that was started runs, or has ended well if it runs once.

        Raises:
            ProgramFailed: One has ended. The message ends with the end of its log.

        """
        for name, program in self._programs.items():
            if not program.running and (self._services[name].health or program.exit_code != 0):
                raise ProgramFailed(f"{name} ended with {program.exit_code}{program.last_words()}")

    def ailing(self) -> list[str]:
        """Ask every service for its health; return the names of those that are not well."""
        services = [service for service in self._services.values() if service.health]
        return [service.name for service in services if not self._healthy(service)]

    def stop(self) -> None:
        """Stop everything; return when it is gone. Repeatable."""
        stop_all(self._programs.values())

    def _start(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while waiting := [service for name, service in self._services.items() if name not in self._ready]:
            for service in waiting:
                if service.name not in self._programs:
                    if self._ready.issuperset(self._services.keys() & service.after):
                        self._launch(service)
                elif self._healthy(service):
                    self._ready.add(service.name)
                    self._tell(service.name)
            self.check_running()
            if time.monotonic() > deadline:
                names = ", ".join(service.name for service in waiting)
                raise ProgramFailed(f"not ready after {START_SECONDS:.0f} s: {names}; see {self._logs}")
            time.sleep(0.3)

    def _launch(self, service: Service) -> None:
        program = Program(
            service.name,
            service.command,
            log=self._logs / f"{service.name}.log",
            environment=service.environment,
            directory=self._directory,
            grace=service.grace,
        )
        self._programs[service.name] = program
        program.start()

    def _healthy(self, service: Service) -> bool:
        if service.name not in self._programs:
            return False
        if not service.health:
            return self._programs[service.name].exit_code == 0
        question = Program(
            f"health of {service.name}",
            service.health,
            log=self._logs / f"{service.name}.health.log",
            environment=service.environment,
            directory=self._directory,
            grace=0.5,
        )
        with question:
            try:
                return question.wait(HEALTH_SECONDS) == 0
            except ProgramFailed:
                return False
