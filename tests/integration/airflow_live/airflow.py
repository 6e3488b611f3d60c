"""The Airflow under test: all four of its components, and more of its REST API than a demo needs."""

from __future__ import annotations

import http
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from airflow_s3commit.testing import ProgramFailed
from airflow_s3commit.testing.leash import _descendants, _kill
from airflow_s3commit.testing.programs import Program
from dev.airflow_api import AirflowApi, ApiError
from dev.airflow_home import AirflowHome

#: What makes Airflow notice quickly that something died.
QUICK = {
    "CORE__PARALLELISM": "24",
    "WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
    # The test is not about a busy machine.
    "WORKERS__EXECUTION_API_TIMEOUT": "60",
    "DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "240",
    # The files do not change; reading them every 30 seconds would be a tenth of all work. But a
    # DAG's callback that comes while its file is being read has to wait for the next time.
    "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
    # Otherwise no asset starts a run.
    "SCHEDULER__USE_JOB_SCHEDULE": "True",
    "SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "5",
    # What a clear needs is on S3: Airflow need not keep anything of a task that has succeeded.
    "STATE_STORE__CLEAR_ON_SUCCESS": "True",
    "TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
}


#: What the scheduler imports for all the tasks that it forks, so that some hundred tasks take half the time:
#: what their DAGs' files import, and what makes a process's first client so slow.
PRELOADED = """\
import sys

if "scheduler" in sys.argv:
    import airflow.providers.amazon.aws.hooks.s3
    import boto3

    import airflow_s3commit.assets
    import airflow_s3commit.protocol.job
    import airflow_s3commit.store.s3.store
    import tests.integration.airflow_live.row_dag

    boto3.session.Session("-", "-", region_name="us-east-1").client("s3")
"""


class LiveApi(AirflowApi):
    """What a person does in the user interface, and what can be seen there."""

    def start(
        self,
        dag_id: str,
        run_id: str,
        *,
        partition_key: str | None = None,
        logical_date: str | None = None,
        conf: Mapping[str, Any] | None = None,
    ) -> str:
        """Start a run under an id of the caller's choice."""
        body = {
            "dag_run_id": run_id,
            "logical_date": logical_date,
            "partition_key": partition_key,
            "conf": dict(conf or {}),
        }
        return str(self._post(f"/dags/{quote(dag_id)}/dagRuns", body)["dag_run_id"])

    def is_stale(self, dag_id: str) -> bool:
        """Whether Airflow misses the DAG's file."""
        return bool(self._get(f"/dags/{quote(dag_id)}")["is_stale"])

    def all_runs(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return every run of every DAG, by DAG and run id."""
        found = self._get(f"/dags/~/dagRuns?{urlencode({'limit': 200, 'order_by': '-id'})}")["dag_runs"]
        return {(run["dag_id"], run["dag_run_id"]): run for run in found}

    def backfills_are_over(self, dag_id: str) -> bool:
        """Whether a DAG has no backfill that Airflow considers unfinished."""
        found = self._get(f"/backfills?{urlencode({'dag_id': dag_id})}")["backfills"]
        return all(backfill["completed_at"] for backfill in found)

    def mark_run_failed(self, dag_id: str, run_id: str) -> None:
        """Do what "Mark run as failed" does."""
        self._patch(f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}", {"state": "failed"})

    def mark_task(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Do what "Mark task as failed" and "Mark task as success" do."""
        path = f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances/{quote(task_id)}"
        self._patch(path, {"new_state": state})

    def clear(
        self, dag_id: str, run_id: str, *task_ids: str | tuple[str, int], downstream: bool = False
    ) -> None:
        """Do what "Clear task" does, for tasks or mapped instances, with or without what is behind them."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": list(task_ids),
            "only_failed": False,
            "include_downstream": downstream,
            "reset_dag_runs": True,
        }
        self._post(f"/dags/{quote(dag_id)}/clearTaskInstances", body)

    def clear_run(self, dag_id: str, run_id: str) -> None:
        """Do what "Clear run" does, with its existing tasks."""
        body = {"dry_run": False, "only_failed": False}
        self._post(f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/clear", body)

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str) -> None:
        """Answer a task's question, as the page of required actions does."""
        path = f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances/{quote(task_id)}/-1/hitlDetails"
        self._patch(path, {"chosen_options": [option]})

    def question(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """Return a task's question and its answer."""
        path = f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances/{quote(task_id)}/-1/hitlDetails"
        return self._get(path)

    def asset_events(self, **by: Any) -> list[dict[str, Any]]:
        """Return the events of assets that match the filters of the REST API."""
        return list(self._get(f"/assets/events?{urlencode({'limit': 100, **by})}")["asset_events"])

    def asset(self, name: str) -> dict[str, Any] | None:
        """Return an asset, or None if Airflow knows none of that name."""
        found = self._get(f"/assets?{urlencode({'name_pattern': name})}")["assets"]
        return next((asset for asset in found if asset["name"] == name), None)

    def asset_state(self, asset_id: int) -> dict[str, Any]:
        """Return the content of an asset's state store."""
        return self._get(f"/assets/{asset_id}/state-store")

    def remembered(self, dag_id: str, run_id: str, task_id: str, key: str) -> Any:
        """Return what a task keeps in its state store under a key, or None."""
        path = f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances/{quote(task_id)}"
        try:
            return self._get(f"{path}/state-store/{quote(key, safe='')}")["value"]
        except ApiError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                return None
            raise

    def states(self, dag_id: str, run_id: str) -> dict[str, tuple[str, int]]:
        """Return each task's state and try, by the last part of its id."""
        return {
            task["task_id"].rpartition(".")[2]: (task["state"], task["try_number"])
            for task in self.tasks(dag_id, run_id)
        }

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int) -> str:
        """Return what a try of a task logged, one event a line."""
        path = f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances/{quote(task_id)}"
        content = self._get(f"{path}/logs/{try_number}?full_content=true")["content"]
        return "\n".join(_line(event) for event in content)

    def _patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._call("PATCH", f"/api/v2{path}", body, token=self._token or self._sign_in())


class LiveAirflow(AirflowHome):
    """An Airflow with its triggerer, and settings of one's own."""

    api: LiveApi

    def __init__(
        self, home: Path, dags: Path, environment: Mapping[str, str], settings: Mapping[str, str]
    ) -> None:
        settings = {f"AIRFLOW__{name}": value for name, value in {**QUICK, **settings}.items()}
        super().__init__(home, dags, {**environment, **settings}, triggerer=True)
        self.api = LiveApi(self.api.url, self.api.user, self.api._password)

    def start(self) -> None:
        """Start it with the modules that its tasks share."""
        settings = self.home / "config" / "airflow_local_settings.py"
        settings.parent.mkdir(parents=True)
        settings.write_text(PRELOADED)
        super().start()

    def begin(self, component: str) -> None:
        """Start a component: ``scheduler`` or ``triggerer``."""
        program = self._program(component, "--skip-serve-logs")
        program.start()
        self._programs.append(program)

    def lose(self, component: str) -> None:
        """Kill a component and everything it started, as a lost machine does."""
        lost = next(program for program in self._programs if program.name == f"airflow {component}")
        assert lost._leash is not None
        self._programs.remove(lost)
        lost.grace = 0.0
        for pid in _descendants(lost._leash.pid):
            _kill(pid, signal.SIGKILL)
        lost.stop()

    def command(self, *arguments: str) -> Program:
        """Return an ``airflow`` command of this Airflow, not started yet."""
        program = self._program(*arguments)
        program.log = self.logs / f"{'-'.join(arguments[:2])}-{time.monotonic_ns()}.log"
        return program

    def has_noted_the_end_of(self, dag_id: str, task_id: str) -> bool:
        """Whether the scheduler knows that a worker is done with a task, in whatever state that left it.

        It takes a task for lost that goes on, because it was answered, before it knows this.
        """
        log = (self.logs / "scheduler.log").read_text(errors="replace")
        return f"TaskInstance Finished: dag_id={dag_id}, task_id={task_id}," in log

    def has_parsed_with(self, text: str) -> bool:
        """Whether the DAG processor, which calls the DAGs' callbacks, has logged this."""
        logs = (self.home / "logs" / "dag_processor").rglob("*.log")
        return any(text in log.read_text(errors="replace") for log in logs)

    def report(self, dag_id: str, run_id: str) -> str:
        """Return everything known about a run that went wrong: states, and the tasks' logs."""
        try:
            parts = [f"{dag_id} {run_id}: {self.api.run(dag_id, run_id)['state']}"]
            for task in self.api.tasks(dag_id, run_id):
                parts.append(f"--- {task['task_id']}: {task['state']}, try {task['try_number']}")
                parts.extend(
                    self.api.log(dag_id, run_id, task["task_id"], number)[-4000:]
                    for number in range(1, (task["try_number"] or 0) + 1)
                )
        except (ApiError, ProgramFailed) as error:
            return f"{dag_id} {run_id}: nothing more is known: {error}"
        return "\n".join(parts)


def _line(event: Any) -> str:
    if not isinstance(event, Mapping):
        return str(event)
    more = {name: value for name, value in event.items() if name not in ("event", "timestamp", "level")}
    details = more.get("error_detail")
    told = " ".join(str(error.get("exc_value")) for error in details) if details else ""
    return f"{str(event.get('timestamp'))[11:23]} {event.get('event')} {told}"
