"""The stack without containers: the S3 server and the Spark cluster of ``docker/``, and Airflow on SQLite."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from airflow_s3commit.testing.programs import Program, ProgramFailed, free_ports
from dev.airflow_home import HOST, AirflowHome, clean_environment
from dev.demo.servers import connections, spark_environment
from dev.programs import check_running
from dev.stack.base import CHECKOUT, DOCKER, REGION, Stack, make_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

#: Unlike the demo's, its schedules are on.
_SCHEDULED = {"AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "True"}


class LoopbackStack(Stack):
    """Processes on 127.0.0.1, which the entry points of the images for S3 and Spark start.

    Airflow's database is SQLite, and its scheduler runs the tasks. PostgreSQL, Redis and a Celery worker are
    in the containers alone.
    """

    programs: list[Program]
    airflow: AirflowHome

    def check_running(self) -> None:
        """Return if every process runs.

        Raises:
            ProgramFailed: One has ended.
        """
        check_running(self.programs)
        self.airflow.check_running()


@contextmanager
def loopback_stack(home: Path, java: Path, tell: Callable[[str], None]) -> Iterator[LoopbackStack]:
    """Run the stack until the block ends, or this process, however that happens.

    Args:
        home: The directory for all files.
        java: ``JAVA_HOME`` for Spark.
        tell: Called with a sentence for each step.

    Raises:
        ProgramFailed: A part of it did not start.
    """
    stack = LoopbackStack(home)
    secrets = make_secrets(stack.secrets)
    with ExitStack() as resources:
        s3, store = resources.enter_context(s3_server(home / "s3", secrets))
        tell("the S3 server takes the pipeline's uploads")
        stack.s3_url = store["AWS_ENDPOINT_URL_S3"]
        master, stack.spark_page, cluster = _spark_cluster(home / "spark", java, secrets, store)
        stack.programs = [s3, *(resources.enter_context(program) for program in cluster)]
        driver = _spark(home / "spark" / "driver", java, secrets)
        subprocess.run([DOCKER / "spark" / "configure.sh"], env={**os.environ, **driver}, check=True)
        stack.airflow = AirflowHome(
            home / "airflow",
            CHECKOUT / "dags",
            {**connections(stack.store("PIPELINE"), master), **driver, **_SCHEDULED},
            password=secrets["AIRFLOW_ADMIN_PASSWORD"],
            triggerer=True,
        )
        stack.api = stack.airflow.api
        stack.logs = f"{home}: s3, spark, airflow/processes, and the tasks' in airflow/logs"
        resources.enter_context(stack.airflow)
        stack.airflow.wait_until_ready(())
        tell("the Spark cluster is started, and Airflow is healthy")
        yield stack


@contextmanager
def s3_server(home: Path, secrets: Mapping[str, str]) -> Iterator[tuple[Program, dict[str, str]]]:
    """Run the S3 server and make it ready for the pipeline, as the services ``seaweedfs`` and ``bucket`` do.

    Yield its process and the variables that it was given.

    Args:
        home: The directory for its data and its log; it must not exist.
        secrets: The stack's secrets.

    Raises:
        ProgramFailed: It does not take the pipeline's objects.
    """
    home.mkdir(parents=True)
    port, *inner = free_ports(8)
    entrypoint = str(DOCKER / "seaweedfs" / "entrypoint.sh")
    # The paths of its sockets must be short.
    with tempfile.TemporaryDirectory(prefix="seaweedfs-", ignore_cleanup_errors=True) as state:
        environment = {
            **clean_environment(),
            **secrets,
            "AWS_ENDPOINT_URL_S3": f"http://{HOST}:{port}",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "ADDRESS": f"{HOST}:{port}",
            "INNER_PORTS": " ".join(map(str, inner)),
            "DATA": str(home / "data"),
            "STATE": state,
        }
        # ``prepare`` waits until the server answers, and ends.
        server, preparation = (
            Program(
                f"seaweedfs {what}",
                [entrypoint, what],
                log=home / f"{what}.log",
                environment=environment,
                directory=home,
            )
            for what in ("server", "prepare")
        )
        with server, preparation:
            while preparation.running:
                check_running([server])
                time.sleep(0.1)
            if preparation.exit_code != 0:
                raise ProgramFailed(f"the S3 server is not ready{preparation.last_words()}")
            yield server, environment


def _spark_cluster(
    home: Path, java: Path, secrets: Mapping[str, str], store: Mapping[str, str]
) -> tuple[str, str, list[Program]]:
    """Return the master's URL, its page, and a master and two workers, which are not started."""
    port, page, *pages = free_ports(4)
    master = f"spark://{HOST}:{port}"
    worker = {
        "SPARK_MASTER": master,
        "SPARK_WORKER_MEMORY": "2g",
        # Executors get the pipeline's keys from here, and from no configuration.
        "AWS_ACCESS_KEY_ID": secrets["S3_PIPELINE_ACCESS_KEY"],
        "AWS_SECRET_ACCESS_KEY": secrets["S3_PIPELINE_SECRET_KEY"],
        **{name: value for name, value in store.items() if name.startswith("AWS_")},
    }
    parts = {"master": {"ADDRESS": f"{HOST}:{port}", "PAGE": f"{HOST}:{page}"}}
    parts |= {f"worker-{n}": {**worker, "PAGE": f"{HOST}:{own}"} for n, own in enumerate(pages, 1)}
    programs = [
        Program(
            f"spark {name}",
            [str(DOCKER / "spark" / "entrypoint.sh"), name.partition("-")[0]],
            log=home / name / "process.log",
            environment={**clean_environment(), **_spark(home / name, java, secrets), **settings},
            directory=home / name,
        )
        for name, settings in parts.items()
    ]
    return master, f"http://{HOST}:{page}", programs


def _spark(directory: Path, java: Path, secrets: Mapping[str, str]) -> dict[str, str]:
    return {
        **spark_environment(directory, java),
        "SPARK_WORK_DIR": str(directory / "work"),
        "_SPARK_AUTH_SECRET": secrets["SPARK_SECRET"],
    }
