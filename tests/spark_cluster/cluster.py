"""A standalone Spark cluster of real processes: a master, two workers, and applications that come and go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyspark

from airflow_s3commit.testing.programs import Program, free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

__all__ = ["SMALL", "Application", "ApplicationFailed", "Cluster", "DriverProcess", "wait_until"]

#: Made for many small jobs.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss512k"

#: Seconds for anything that a loaded machine does.
_PATIENCE = 120.0

_ROOT = Path(__file__).absolute().parents[2]

#: What every driver's conf has: many small jobs, rows handed to Python a few at a time.
SMALL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": _JAVA,
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class ApplicationFailed(Exception):
    """A call in an application raised, with the message it raised; or the application died."""


def wait_until(what: str, happened: Callable[[], object], patience: float = _PATIENCE) -> None:
    """Poll until something that real processes do has happened."""
    deadline = time.monotonic() + patience
    while not happened():
        assert time.monotonic() < deadline, f"not within {patience:.0f} s: {what}"
        time.sleep(0.05)


class Cluster:
    """Master and workers, while the context lasts; every worker has a host of its own.

    Spark starts a speculative copy of a task on another host only: the workers are at 127.0.0.1 and
    127.0.0.2.

    Args:
        home: Where everything keeps its files.
        environment: What the workers' processes, and so the executors and the drivers that run on the
            cluster, have in their environment.
        cores: How many cores each worker gives.
        rest: Whether the master's REST server runs, by which drivers on the cluster are watched and killed.
    """

    def __init__(
        self, home: Path, environment: Mapping[str, str], *, cores: int = 1, rest: bool = False
    ) -> None:
        self.home = home
        self.event_log = home / "events"
        self.event_log.mkdir()
        self._environment = dict(environment)
        self._stack = ExitStack()
        self._cores = cores
        self._rest = rest
        self.port, self.rest_port, self._web_port = free_ports(3)

    def __enter__(self) -> Self:
        self._start("master", "master.Master", host="127.0.0.1", port=self.port, webui_port=self._web_port)
        for number in (1, 2):
            self._start(
                f"worker{number}", "worker.Worker", self.url, host=f"127.0.0.{number}", webui_port=0,
                cores=self._cores, memory="2g", work_dir=f"{self.home / 'work'}{number}",
            )  # fmt: skip
        for number in (1, 2):
            log = self.home / f"worker{number}.log"
            wait_until(f"worker {number} registers", lambda log=log: "Successfully reg" in log.read_text())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """The master's URL."""
        return f"spark://127.0.0.1:{self.port}"

    def executor_processes(self) -> dict[int, list[str]]:
        """Return the command lines of the executors' processes and of their Python workers."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                directory = (process / "cwd").readlink()
                line = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if directory.is_relative_to(self.home) and directory.parent.name.startswith("app-"):
                found[int(process.name)] = line.decode(errors="replace").split("\0")
        return found

    def _start(self, name: str, what: str, *arguments: str, **options: object) -> None:
        spark = Path(pyspark.__file__).parent
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("AWS_", "SPARK_", "PYSPARK_"))}
        kept.pop("PYTHONPATH", None)
        daemon = {
            "SPARK_HOME": str(spark),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{_JAVA} -Dspark.master.rest.enabled={str(self._rest).lower()}"
            f" -Dspark.master.rest.port={self.rest_port}",
            "SPARK_LOCAL_DIRS": str(self.home / "local"),
        }
        command = [str(spark / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}"]
        for option, value in options.items():
            command += [f"--{option.replace('_', '-')}", str(value)]
        self._stack.enter_context(
            Program(
                f"Spark's {name}",
                [*command, *arguments],
                log=self.home / f"{name}.log",
                environment={**kept, **daemon, **self._environment},
                directory=self.home,
            )
        )


class DriverProcess:
    """A Python program that is a Spark driver, in a session of its own, so that all of it can be killed.

    Args:
        module: The program.
        arguments: Its arguments.
        log: Where its standard error goes.
        environment: Its environment, beyond this process's without anything of AWS and Spark.
    """

    def __init__(self, module: str, *arguments: str, log: Path, environment: Mapping[str, str]) -> None:
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("AWS_", "SPARK_"))}
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**kept, **python, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
                cwd=_ROOT,
                start_new_session=True,
                text=True,
            )

    @property
    def alive(self) -> bool:
        """Whether it takes commands."""
        return self._process.poll() is None

    def answer(self) -> Any:
        """Return what it says next.

        Raises:
            ApplicationFailed: It died.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise ApplicationFailed("the driver died")
        return json.loads(line)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send it a line.

        Raises:
            ApplicationFailed: It died.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ApplicationFailed("the driver died") from error

    def kill(self) -> None:
        """Kill its Python, its JVM and the workers of that, as the loss of the machine would."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                state = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(state[3]) == self._process.pid:
                    os.kill(int(process.name), signal.SIGKILL)

    def stop(self) -> None:
        """Let it end; return when all of it is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        self.kill()
        self._process.stdout.close()


class Application(DriverProcess):
    """A driver that executes one call at a time.

    Args:
        log: Where its standard error goes.
        environment: Its environment, beyond this process's without anything of AWS and Spark.
        conf: Its Spark conf, the master included.
    """

    def __init__(self, log: Path, environment: Mapping[str, str], conf: Mapping[str, str]) -> None:
        super().__init__("tests.spark_cluster.application", log=log, environment=environment)
        self.tell({"conf": {**SMALL, **conf}})

    def call(self, function: str, **arguments: Any) -> Any:
        """Run a function of `tests.spark_cluster.work` there, with its session, and return what it returns.

        Raises:
            ApplicationFailed: It raised, or the application died.
        """
        self.tell({"function": function, "arguments": arguments})
        answer = self.answer()
        if "error" in answer:
            raise ApplicationFailed(answer["error"])
        return answer["result"]
