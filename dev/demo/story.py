"""What the demo does: nights, a backfill, a failure and a report, each watched from outside and checked."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from datetime import time as time_of_day
from typing import TYPE_CHECKING, Any

from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.protocol.steps.fold import manifest_files, read_manifest
from airflow_s3commit.testing.programs import ProgramFailed
from dev.demo.flights import Flights, partition
from dev.demo.watch import DatasetWatch, Sight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import date

    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.protocol.model.manifest import FileEntry, Manifest
    from airflow_s3commit.store.base import ObjectStore
    from dev.airflow_home import RunningAirflow

REFRESH = "nightly_flights_refresh"
REPORT = "flights_daily_report"

_SETUP = "refresh.setup"
_COUNT = "flights_by_carrier"

_OVER = ("success", "failed")

#: Seconds that one run may take.
RUN_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Check:
    """A condition, and whether it held."""

    says: str
    holds: bool


@dataclass(slots=True)
class Chapter:
    """One run of a DAG and what was observed of it.

    Attributes:
        day: The day it was for.
        run_id: Airflow's id of the run.
        state: Its last state.
        seconds: How long it took.
        before: The dataset before the run.
        uploaded: The dataset when everything was uploaded and nothing visible had changed.
        after: The dataset when the run was over.
        job_id: The id of the run's job; empty if it has none.
        manifest: What the job committed; None if it did not.
        files: The files that the manifest lists.
        checks: What must hold, and whether it did.
    """

    day: date
    run_id: str
    state: str
    seconds: float
    before: Sight
    uploaded: Sight
    after: Sight
    job_id: str = ""
    manifest: Manifest | None = None
    files: list[FileEntry] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def check(self, says: str, holds: bool) -> None:
        """Record whether a condition holds."""
        self.checks.append(Check(says, holds))

    @property
    def holds(self) -> bool:
        """Whether everything held."""
        return bool(self.checks) and all(check.holds for check in self.checks)


class Story:
    """Runs DAGs and watches the dataset meanwhile.

    Args:
        airflow: Where the DAGs run.
        store: Where the dataset is.
        destination: The dataset.
        flights: What its days should hold.
        tell: Called for each thing that happens, with the seconds since the run was requested and a line.
    """

    def __init__(
        self,
        airflow: RunningAirflow,
        store: ObjectStore,
        destination: Destination,
        flights: Flights,
        tell: Callable[[float, str], None],
    ) -> None:
        self._airflow = airflow
        self._store = store
        self._destination = destination
        self._flights = flights
        self._tell = tell

    def night(self, day: date) -> Chapter:
        """Refresh a day that has no data yet."""
        chapter = self._watched(day, REFRESH, lambda: self._trigger(REFRESH, day, {}))
        self._check_commit(chapter)
        chapter.check("nothing that was there went away", chapter.before.visible <= chapter.after.visible)
        return chapter

    def backfill(self, day: date) -> Chapter:
        """Refresh a day that has data, by an Airflow backfill, which replaces what it finds."""
        chapter = self._watched(day, REFRESH, lambda: self._backfill(day))
        kind = self._airflow.api.run(REFRESH, chapter.run_id)["run_type"]
        chapter.check("Airflow ran it as a backfill", kind == "backfill")
        self._check_commit(chapter)
        old = {key for key in chapter.before.visible if self._is_of(day, key)}
        chapter.check("the day had data before", bool(old))
        chapter.check("the day's old files are gone", not old & chapter.after.visible)
        chapter.check(
            "the other days' files are untouched", chapter.before.visible - old <= chapter.after.visible
        )
        replaced = chapter.manifest.replaced.files if chapter.manifest else None
        chapter.check("the manifest counts the files that it replaced", replaced == len(old))
        return chapter

    def failure(self, day: date) -> Chapter:
        """Start a night whose Spark application fails after it has uploaded everything."""
        chapter = self._watched(
            day, REFRESH, lambda: self._trigger(REFRESH, day, {"fail_after_uploads": True})
        )
        chapter.check("the run failed", chapter.state == "failed")
        chapter.check("its uploads were pending", bool(chapter.uploaded.pending))
        chapter.check("nothing is left pending", not chapter.after.pending)
        chapter.check("readers see what they saw before", chapter.before.visible == chapter.after.visible)
        chapter.check("there is no manifest of its job", bool(chapter.job_id) and chapter.manifest is None)
        return chapter

    def report(self, day: date) -> tuple[Chapter, dict[str, int]]:
        """Run the report on a day, and return its counts too."""
        chapter = self._watched(day, REPORT, lambda: self._trigger(REPORT, day, {}))
        counted = self._airflow.api.xcom(REPORT, chapter.run_id, _COUNT) or {}
        chapter.check("the run succeeded", chapter.state == "success")
        chapter.check("its counts are the data set's", counted == self._flights.by_carrier(day))
        return chapter, counted

    def _check_commit(self, chapter: Chapter) -> None:
        listed = {file.key for file in chapter.files}
        seen = {key for key in chapter.after.visible if self._is_of(chapter.day, key)}
        rows = chapter.manifest.counts.rows if chapter.manifest else None
        chapter.check("the run succeeded", chapter.state == "success")
        chapter.check(
            "everything was uploaded before anything was visible",
            bool(listed) and listed <= set(chapter.uploaded.pending),
        )
        chapter.check("nothing is left pending", not chapter.after.pending)
        chapter.check("the manifest lists exactly the day's files", bool(listed) and listed == seen)
        chapter.check("the manifest counts the day's rows", rows == self._flights.of(chapter.day).num_rows)

    def _watched(self, day: date, dag_id: str, start: Callable[[], str]) -> Chapter:
        began = time.monotonic()

        def tell(text: str) -> None:
            self._tell(time.monotonic() - began, text)

        def tell_sight(sight: Sight) -> None:
            tell(f"[cyan]S3: {len(sight.pending)} uploads pending, {len(sight.visible)} files visible[/]")

        with DatasetWatch(self._store, self._destination, tell_sight) as watch:
            run_id = start()
            tell(f"Airflow has the run {run_id}")
            state = self._until_over(dag_id, run_id, tell)
        chapter = Chapter(
            day,
            run_id,
            state,
            time.monotonic() - began,
            before=watch.sights[0],
            uploaded=watch.last_before_change() if state == "success" else watch.most_pending(),
            after=watch.sights[-1],
        )
        if dag_id == REFRESH:
            self._add_manifest(chapter)
        return chapter

    def _until_over(self, dag_id: str, run_id: str, tell: Callable[[str], None]) -> str:
        deadline = time.monotonic() + RUN_SECONDS
        told: dict[str, str] = {}
        while True:
            state = str(self._airflow.api.run(dag_id, run_id)["state"])
            for task in self._airflow.api.tasks(dag_id, run_id):
                name, now = task["task_id"], task["state"]
                if now is not None and told.get(name) != now:
                    told[name] = now
                    if now not in ("scheduled", "queued"):
                        tell(f"task {name} {_in_words(now, task)}")
            if state in _OVER:
                tell(f"the run is over: {state}")
                return state
            self._airflow.check_running()
            if time.monotonic() > deadline:
                raise ProgramFailed(f"run {run_id} of {dag_id} is still {state} after {RUN_SECONDS:.0f} s")
            time.sleep(0.5)

    def _add_manifest(self, chapter: Chapter) -> None:
        reference: Mapping[str, Any] = self._airflow.api.xcom(REFRESH, chapter.run_id, _SETUP) or {}
        chapter.job_id = str(reference.get("job_id", ""))
        if not chapter.job_id:
            return
        try:
            chapter.manifest = read_manifest(self._store, self._destination, chapter.job_id)
        except NoSuchKey:
            return
        chapter.files = list(manifest_files(self._store, chapter.manifest))

    def _trigger(self, dag_id: str, day: date, conf: Mapping[str, Any]) -> str:
        return self._airflow.api.trigger(dag_id, partition_key=day.isoformat(), conf=conf)

    def _backfill(self, day: date) -> str:
        known = {run["dag_run_id"] for run in self._airflow.api.runs(REFRESH)}
        first = datetime.combine(day, time_of_day())
        last = first + timedelta(days=1, seconds=-1)
        self._airflow.api.backfill(REFRESH, first=f"{first.isoformat()}Z", last=f"{last.isoformat()}Z")
        made = [run for run in self._airflow.api.runs(REFRESH) if run["dag_run_id"] not in known]
        if [run["partition_key"] for run in made] != [day.isoformat()]:
            raise ProgramFailed(f"the backfill of {day} made the runs {[run['dag_run_id'] for run in made]}")
        return str(made[0]["dag_run_id"])

    def _is_of(self, day: date, key: str) -> bool:
        return key.startswith(self._destination.key(f"{partition(day)}/"))


def _in_words(state: str, task: Mapping[str, Any]) -> str:
    took = f" after {task['duration']:.1f} s" if task.get("duration") and state in _OVER else ""
    if state == "failed":
        return f"[red]{state}[/]{took}"
    return f"[green]{state}[/]{took}" if state == "success" else f"{state}{took}"
