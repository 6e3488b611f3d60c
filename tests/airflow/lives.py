"""Random lives of DAG runs: real operators on a store in memory, an Airflow of a page, and a tired operator.

Tries of tasks run in greenlets that make some calls to the store, and then wait for their turn. Meanwhile
other tries run, Airflow takes a try for dead that goes on, somebody clears or marks a task, ends a job from
the command line or sweeps. What such a life must keep is in `Life.problems`.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from airflow.sdk import DAG, BaseOperator, TriggerRule
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from greenlet import getcurrent, greenlet

from airflow_s3commit import Job, JobReference, MemoryStore, manifest_files, read_manifest, sweep, verify
from airflow_s3commit.exceptions import NoSuchKey, OutcomeUnknown, S3CommitError, Unavailable
from airflow_s3commit.operators.commit import S3CommitPartOperator
from airflow_s3commit.operators.spark_submit import S3CommitSparkSubmitOperator
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.steps.files import files_in
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.task_group import s3_commit_task_group
from airflow_s3commit.testing import FaultyStore, StoreCall
from tests.airflow.runs import FLIGHTS, visible

STAGES = ("one", "two")

PARTS = 2

_AT_ONCE, _AFTER_UPLOADS, _AFTER_SEAL = "fails at once", "fails after its uploads", "fails after its seal"
_SKIPPED, _EMPTY = "is skipped", "writes nothing"

#: Ends of a stage's try, one of which is drawn: most of them succeed.
_ENDS = (_AT_ONCE, _AFTER_UPLOADS, _AFTER_SEAL, _SKIPPED, _EMPTY, *["succeeds"] * 9)

_ENDED = {"success", "failed", "upstream_failed", "skipped"}

#: What the running try uses as its ``store``.
here = SimpleNamespace()


class Killed(BaseException):
    """The process of a try was killed."""


class Gate(FaultyStore):
    """The store of one try, which runs in a greenlet: it lets so many calls pass, and then holds the try.

    ``outage`` has the numbers of the calls that fail; ``end`` is how a stage's try ends.
    """

    def __init__(self, store: MemoryStore, outage: range, error: type[S3CommitError], end: str) -> None:
        super().__init__(store, before=self._pass)
        self._outage, self._error, self.end = outage, error, end
        self._passed = self._allowed = 0
        self._is_killed = False
        self._life = getcurrent()

    def begin(self, act: Callable[[], None]) -> None:
        """Let the try run until its first call."""
        self._try = greenlet(act)
        self.allow(0)

    def allow(self, calls: int) -> None:
        """Let the try make so many calls, and hold it at the next one, unless it is over."""
        self._allowed += calls
        here.store = self
        self._try.switch()

    def kill(self) -> None:
        """End the try where it is held; a call of its clean-up is not made either."""
        self._is_killed = True
        self._try.switch()

    @property
    def is_over(self) -> bool:
        """Whether the try has ended."""
        return bool(self._try.dead)

    def _pass(self, _: StoreCall) -> None:
        while self._passed >= self._allowed and not self._is_killed:
            self._life.switch()
        if self._is_killed:
            raise Killed
        self._passed += 1
        if self._passed in self._outage:
            raise self._error("the store is away")


class Writer(BaseOperator):
    """A stage of another engine: two tasks with a file each, under the number of the try."""

    def __init__(self, *, job: Any, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.job = job

    def execute(self, context: Any) -> None:
        """Write, and end as it was drawn."""
        write(self.job, context, self.task_id, str(context["ti"].try_number))


class SparkWriter(S3CommitSparkSubmitOperator):
    """A stage of Spark, whose application is a function in this process."""

    def _run_application(self, context: Any) -> None:
        write(self.job, context, self.task_id, str(self._stage_attempt))

    def _sparks_defaults(self) -> dict[str, str]:
        return {}


def write(reference: Any, context: Any, stage: str, attempt: str) -> None:
    """Write a stage attempt, two tasks with a file each, and end as it was drawn."""
    end, name = here.store.end, f"{context['run_id']}-{stage}-{attempt}"
    if end == _AT_ONCE:
        raise AirflowException(end)
    if end == _SKIPPED:
        raise AirflowSkipException(end)
    job, committed = Job.at(here.store, JobReference.from_dict(reference)), []
    for task in ("00000", "00001"):
        with job.task_attempt(stage, attempt, task, "0", threads=0) as writing:
            if end != _EMPTY:
                with writing.open(f"dt=1/{name}-{task}.csv") as file:
                    file.write(b"rows")
            committed.append(writing.commit())
    if end == _AFTER_UPLOADS:
        raise AirflowException(end)
    job.seal_stage(stage, attempt, committed)
    if end == _AFTER_SEAL:
        raise AirflowException(end)


class Parts(BaseOperator):
    """The mapped task of a commit's parts, of which one try does all in turn."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.job = self.conflicts = None

    def execute(self, context: Any) -> None:
        """Complete each part."""
        given = {"job": self.job, "conflicts": self.conflicts, "parts": PARTS}
        for part in range(PARTS):
            S3CommitPartOperator(task_id=f"part_{part}", part=part, **given).execute(context)


class Callback(BaseOperator):
    """The call of a DAG's notifier for a run, as if it were a task."""

    def __init__(self, *, notifier: Any, of_run: dict[str, Any], **arguments: Any) -> None:
        super().__init__(**arguments)
        self.notifier, self.of_run = notifier, of_run

    def execute(self, context: Any) -> None:
        """Notify."""
        self.notifier.notify(self.of_run)


class AtOnce:
    """A thread that runs when it starts: greenlets are of one thread."""

    def __init__(self, *, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> None:
        assert daemon
        self.start = partial(target, *args)

    def join(self, timeout: float) -> None:
        """Do nothing: it has ended."""

    def is_alive(self) -> bool:
        """Return False."""
        return False


def outputs_of(context: Any, task_ids: Iterable[str], _: float, key: str = "return_value") -> list[Any]:
    """Return XComs of a run's tasks, as Airflow gives them to a callback."""
    found = (context["run"].tasks[name].xcoms for name in task_ids)
    return [xcoms[key] for xcoms in found if key in xcoms]


class Try:
    """A try of a task, which is held at its first call.

    ``is_known`` is False once Airflow has given it up, or somebody has cleared its task.
    """

    def __init__(self, task: Any, state: Task, run: Run, gate: Gate) -> None:
        self.state, self.run, self.gate, self.is_known = state, run, gate, True
        self.name, self.number = task.task_id, state.tries
        self.result: Any = None
        self.error: BaseException | None = None
        operator: Any = Parts(task_id=task.task_id) if isinstance(task, MappedOperator) else copy(task)
        context = self._context(operator)
        arguments = {"job": "setup", "conflicts": "resolve_conflicts", "stages": "stages"}
        if isinstance(getattr(operator, "stages", None), list):
            operator.stages = [
                run.tasks[one.operator.task_id].xcoms.get("return_value") for one in operator.stages
            ]
        for name, source in arguments.items():
            if hasattr(operator, name) and source in run.tasks and source != operator.task_id:
                setattr(operator, name, run.tasks[source].xcoms.get("return_value"))

        def body() -> None:
            try:
                for note in operator.on_execute_callback or ():
                    note(context)
                self.result = operator.execute(context)
            except BaseException as error:
                self.error = error

        gate.begin(body)

    def _context(self, operator: Any) -> dict[str, Any]:
        run, state = self.run, self.state

        def push(key: str, value: Any) -> None:
            if self.is_known:
                state.xcoms[key] = value

        def pull(task_ids: list[str], key: str, **_: Any) -> list[Any]:
            return [run.tasks[one].xcoms[key] for one in task_ids if key in run.tasks[one].xcoms]

        def states(task_ids: list[str] | None = None, **_: Any) -> dict[str, dict[str, Any]]:
            return {run.run_id: {name: run.tasks[name].state for name in task_ids or run.tasks}}

        ti = SimpleNamespace(
            dag_id="nightly",
            run_id=run.run_id,
            task_id=operator.task_id,
            map_index=-1,
            try_number=state.tries,
            id=f"{state.tries:08d}",
            stats_tags={},
            task=operator,
            xcom_push=push,
            xcom_pull=pull,
            get_task_states=states,
        )
        facts = {"run_id": run.run_id, "start_date": run.started, "run_type": "manual"}
        return {"ti": ti, "dag_run": SimpleNamespace(**facts), "run_id": run.run_id, "params": {}}


class Task:
    """A task instance, as Airflow's database has it."""

    def __init__(self) -> None:
        self.state: str | None = None
        self.tries = 0
        self.retries = 2
        self.xcoms: dict[str, Any] = {}


class Run:
    """A DAG run."""

    def __init__(self, dag: DAG, number: int) -> None:
        self.dag, self.run_id, self.started = dag, f"r{number}", datetime(2026, 1, 1, number, tzinfo=UTC)
        self.tasks = {task.task_id: Task() for task in dag.tasks}
        self.is_marked = self.has_timed_out = False

    def ready(self) -> list[str]:
        """Return the tasks that may run now, after those that will not are marked so."""
        ready: list[str] = []
        if self.has_timed_out:
            return ready
        for task in self.dag.topological_sort():
            own = self.tasks[task.task_id]
            above = [self.tasks[name].state for name in task.upstream_task_ids]
            if own.state not in (None, "up_for_retry"):
                continue
            if task.is_teardown:
                failed, skipped = self.tasks["setup"].state in ("failed", "upstream_failed"), False
                may_run = {*above} <= _ENDED
            else:
                failed = bool({"failed", "upstream_failed"} & {*above})
                may_skip = task.trigger_rule == TriggerRule.NONE_FAILED
                skipped = "skipped" in above and not may_skip
                may_run = {*above} <= ({"success", "skipped"} if may_skip else {"success"})
            if failed or skipped:
                own.state = "upstream_failed" if failed else "skipped"
            elif may_run:
                ready.append(task.task_id)
        return ready

    @property
    def has_succeeded(self) -> bool:
        """Whether Airflow shows the run as a success: the teardown's state decides."""
        return self.tasks["abort"].state == "success"


class Life:
    """Some runs of one DAG at one destination, drawn from a seed.

    Attributes:
        story: What happened, a line each.
        problems: What must not have happened.
    """

    def __init__(self, seed: int) -> None:
        self._draw = draw = random.Random(seed)
        self.store = MemoryStore(repeat_complete=draw.choice(["ok", "gone"]))
        self.story: list[str] = []
        self.problems: list[str] = []
        self._outages = draw.choice([0.0, 0.0, 0.05, 0.2])
        self._runs: list[Run] = []
        self._tries: list[Try] = []
        self._empty: set[tuple[str, str, int]] = set()
        options: dict[str, Any] = {
            "conflict_mode": draw.choice(["append", "replace"]),
            "committer": draw.choice(["magic", "partitioned"]),
            "track_pending": draw.choice(["task", "s3"]),
            "on_empty": draw.choice(["skip", "commit"]),
            "skipped_stages": draw.choice(["skip", "ignore"]),
            "audit": draw.choice([None, {"min_files": 0}]),
            "parts": draw.choice([None, PARTS]),
            "prefix_group_id": False,
        }
        kinds = {name: draw.choice(["named", "unnamed", "spark", "spark"]) for name in STAGES}
        group = s3_commit_task_group("g", destination=FLIGHTS, kill_window=0, **options)
        with DAG("nightly", schedule=None, dagrun_timeout=timedelta(days=1)) as dag, group as commit:
            for name, kind in kinds.items():
                writer = SparkWriter if kind == "spark" else Writer
                commit.stage(writer(task_id=name, job=commit.job), name=name if kind == "named" else None)
        self._dag = dag
        self.story.append(f"{options}, {kinds}")

    def new_id(self) -> str:
        """Return an id that follows from the seed."""
        return str(UUID(int=self._draw.getrandbits(128), version=4))

    def live(self, steps: int) -> None:
        """Live so many moments, let everything end, and look at what is left."""
        for _ in range(steps):
            self._moment()
        while self._tries or any(run.ready() for run in self._runs):
            self._go_on() if self._tries and self._draw.random() < 0.6 else self._begin()
        self._look_at_runs()
        self._look_at_store()

    def _moment(self) -> None:
        draw, chance = self._draw, self._draw.random()
        if not self._runs or (chance < 0.03 and len(self._runs) < 3):
            self._runs.append(Run(self._dag, len(self._runs)))
        elif chance < 0.3:
            self._begin()
        elif chance < 0.8:
            self._go_on()
        elif chance < 0.9 and self._tries:
            one = draw.choice(self._tries)
            if one.is_known and draw.random() < 0.5:
                self._tell(one, "is taken for dead")
                self._give_up(one)
            else:
                self._tell(one, "is killed")
                one.gate.kill()
                self._settle(one)
        elif chance < 0.91:
            self._time_out(draw.choice(self._runs))
        elif chance < 0.96:
            self._clear(draw.choice(self._runs))
        elif chance < 0.965:
            self._mark(draw.choice(self._runs))
        elif chance < 0.98:
            self._end_by_hand(draw.choice(self._runs))
        elif chance < 0.99:
            self._sweep(draw.choice([300, 2_000]))

    def _begin(self) -> None:
        ready = [(run, name) for run in self._runs for name in run.ready()]
        if not ready:
            return
        run, name = self._draw.choice(ready)
        state = run.tasks[name]
        state.state, state.tries, state.xcoms = "running", state.tries + 1, {}
        end = self._draw.choice(_ENDS)
        if end == _EMPTY:
            self._empty.add((run.run_id, name, state.tries))
        one = Try(self._dag.task_dict[name], state, run, self._gate(end))
        self._tries.append(one)
        self._tell(one, f"begins, {end}" if name in STAGES else "begins")
        self._settle(one)

    def _gate(self, end: str) -> Gate:
        outage = range(0)
        if self._draw.random() < self._outages:
            first = self._draw.choice([1, 2, 3, 5, 8, 13, 20, 40])
            outage = range(first, first + self._draw.choice([1, 2, 1_000]))
        return Gate(self.store, outage, self._draw.choice([Unavailable, OutcomeUnknown]), end)

    def _go_on(self) -> None:
        if self._tries:
            one = self._draw.choice(self._tries)
            one.gate.allow(self._draw.choice([1, 1, 2, 3, 5, 8, 20, 100, 1_000]))
            self._settle(one)

    def _settle(self, one: Try) -> None:
        """Take the end of a try into Airflow's database, if it is over and known there."""
        if not one.gate.is_over:
            return
        self._tries.remove(one)
        self._tell(one, f"ends: {one.error!r}"[:200])
        usual = S3CommitError | AirflowException | RuntimeError | Killed | None
        if not isinstance(one.error, usual):
            self.problems.append(f"unexpected {one.error!r}")
        if not one.is_known:
            return
        if one.error is None:
            one.state.state = "success"
            one.state.xcoms |= {} if one.result is None else {"return_value": one.result}
        elif isinstance(one.error, AirflowSkipException | AirflowFailException):
            one.state.state = "skipped" if isinstance(one.error, AirflowSkipException) else "failed"
        else:
            self._give_up(one)

    def _give_up(self, one: Try) -> None:
        one.is_known, one.state.retries = False, one.state.retries - 1
        one.state.state = "up_for_retry" if one.state.retries >= 0 else "failed"

    def _clear(self, run: Run) -> None:
        """Clear a task, with those after it or not; and its setup and teardown, as Airflow does, or not."""
        begun = [name for name, task in run.tasks.items() if task.state is not None]
        if not begun:
            return
        names = {self._draw.choice(begun)}
        if self._draw.random() < 0.5:
            names |= self._dag.task_dict[min(names)].get_flat_relative_ids()
        if self._draw.random() < 0.5:
            names |= {"setup", "abort"}
        self.story.append(f"{run.run_id}: cleared are {sorted(names)}")
        run.has_timed_out = False
        for name in names:
            self._set(run, name, None)
            run.tasks[name].retries = 2

    def _time_out(self, run: Run) -> None:
        """End a run at its time limit, as Airflow does: no teardown runs, but the DAG's callback."""
        if {task.state for task in run.tasks.values()} <= _ENDED:
            return
        self.story.append(f"{run.run_id}: its time is over")
        run.has_timed_out = True
        for name, task in run.tasks.items():
            if task.state not in _ENDED:
                self._set(run, name, "skipped")
        (notifier,) = self._dag.on_failure_callback
        context = {"dag": self._dag, "run_id": run.run_id, "reason": "timed_out", "run": run}
        callback = Callback(task_id="callback", notifier=notifier, of_run=context)
        one = Try(callback, Task(), run, self._gate(""))
        one.is_known = False
        self._tries.append(one)
        self._settle(one)

    def _mark(self, run: Run) -> None:
        name, state = self._draw.choice(list(run.tasks)), self._draw.choice(["success", "failed"])
        self.story.append(f"{run.run_id}: {name} is marked as {state}")
        self._set(run, name, state)
        run.is_marked = True

    def _set(self, run: Run, name: str, state: str | None) -> None:
        """Set the state of a task; Airflow knows nothing of its running try then."""
        run.tasks[name].state = state
        for one in self._tries:
            one.is_known &= one.state is not run.tasks[name]

    def _end_by_hand(self, run: Run) -> None:
        reference = run.tasks["setup"].xcoms.get("return_value")
        if reference is None:
            return
        job = Job.at(self.store, JobReference.from_dict(reference))
        step = self._draw.choice(["abort", "commit"])
        try:
            getattr(job, step)()
            run.is_marked |= step == "commit"
            self.story.append(f"{run.run_id}: its job has a {step} by hand")
        except S3CommitError as error:
            self.story.append(f"{run.run_id}: no {step} by hand: {error}")

    def _sweep(self, older_than: float) -> None:
        self.story.append(f"a sweep of all older than {older_than}")
        sweep(self.store, FLIGHTS, older_than=older_than, dry_run=False, threads=0, new_id=self.new_id)

    def _committed(self, run: Run) -> dict[str, set[int]]:
        """Return, for each stage, the attempts of it that the run's job has committed."""
        found = [run.tasks[name].xcoms.get("return_value") for name in ("commit", "setup")]
        job_id = next(one["job_id"] for one in found if one is not None)
        try:
            manifest = read_manifest(self.store, FLIGHTS, job_id)
        except NoSuchKey:
            return {}
        attempts: defaultdict[str, set[int]] = defaultdict(set)
        for file in manifest_files(self.store, manifest):
            run_id, stage, attempt, _ = file.key.rpartition("/")[2].split("-", 3)
            attempts[stage].add(int(attempt))
            if run_id != run.run_id:
                self.problems.append(f"{run.run_id} has committed a file of {run_id}")
        return attempts

    def _look_at_runs(self) -> None:
        for run in self._runs:
            commit = run.tasks["commit"].state
            if run.is_marked or not run.has_succeeded or commit not in ("success", "skipped"):
                continue
            committed = self._committed(run)
            for stage in STAGES:
                task = run.tasks[stage]
                output = task.xcoms.get("return_value")
                counts = int(output["stage_attempt"]) if output else task.tries
                if task.state != "success" or (run.run_id, stage, counts) in self._empty:
                    continue
                found = committed.get(stage, set())
                if found != {counts}:
                    lost = f"{run.run_id} has succeeded without attempt {counts} of stage {stage}: {found}"
                    self.problems.append(lost)

    def _look_at_store(self) -> None:
        for _ in range(2):
            self._sweep(0)
        if left := list(self.store.list_uploads("lake", "")):
            self.problems.append(f"{left[0]} stays pending")
        keys = [info.key for info in self.store.list_objects("lake", "flights/")]
        self.problems += [f"{key} stays" for key in keys if "__magic" in key or "_s3commit/open/" in key]
        home, table = Destination.of(FLIGHTS), read_table(self.store, Destination.of(FLIGHTS))
        live = {file.key for file in files_in(self.store, home, table.sources, table.live)}
        if odd := live ^ {*visible(self.store)}:
            self.problems.append(f"{min(odd)} is in the log or in the listing alone")
        if keys and not verify(self.store, FLIGHTS).sound:
            self.problems.append("verify finds faults")

    def _tell(self, one: Try, what: str) -> None:
        self.story.append(f"{one.run.run_id}: try {one.number} of {one.name} {what}")
