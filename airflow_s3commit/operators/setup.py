"""The operator that sets up a job, and then aborts the jobs of the task's earlier tries.

All that a later try needs to know of an earlier one is on S3, as facts of the task in the jobs' records: some
versions and configurations of Airflow keep nothing of a task that is cleared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from airflow.sdk import BaseSensorOperator, Context

from airflow_s3commit._causes import noting
from airflow_s3commit._format import shortened
from airflow_s3commit.airflow_version import AirflowException, AirflowFailException, partition_key_of
from airflow_s3commit.exceptions import AlreadyCommitted, Refused, S3CommitError
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.metrics import count_abort
from airflow_s3commit.operators.abort import KILL_WINDOW, abort_until_quiet
from airflow_s3commit.operators.base import TableOperator, refusals_are_final, states_of
from airflow_s3commit.params import CONFLICT_MODE
from airflow_s3commit.protocol.model.destination import Destination, as_uri
from airflow_s3commit.protocol.model.job import JobOptions, JobRecord, JobReference, ObjectOptions
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.settings import REGISTRY, REGISTRY_CONNECTION
from airflow_s3commit.templates import at_least, check_value, is_known, mapping

if TYPE_CHECKING:
    from airflow_s3commit.protocol.inspect.jobs import JobSummary
    from airflow_s3commit.protocol.job import Job

#: The types of the tasks that follow a job's stages, and get the job.
_STEPS = {f"S3Commit{step}Operator" for step in ("Audit", "ResolveConflicts", "Job", "Part", "Abort")}

#: Seconds for which a setup tries to register its destination.
_REGISTRY_SECONDS = 5.0

#: Maximum number of ended jobs of a destination among which a cleared task looks for its own.
_MOST_ENDINGS = 100

#: The XCom with the reference of this try's job, pushed before the job exists.
JOB = "job"

#: The facts that all tries of one task instance share. Each index of a mapped task has its own jobs.
_TASK = ("dag_id", "run_id", "task_id", "map_index")


class JobOptionsOperator(TableOperator):
    """A task that sets up a job on a table; the job's options are arguments of the task."""

    template_fields = (*TableOperator.template_fields, "options")
    kill_window = KILL_WINDOW

    def __init__(self, **kwargs: Any) -> None:
        options = options_among(kwargs)
        super().__init__(**kwargs)
        self.options = options
        known = {name: value for name, value in options.items() if is_known(value)}
        check_value(f"Task {self.task_id}", "options", job_options, known)

    # Airflow looks here for the arguments that ``partial``, ``expand`` and ``default_args`` may have.
    __init__.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in JobOptions.__struct_fields__]
    )

    @property
    def _place(self) -> Destination:
        return Destination.parse(self.destination)

    def abort_earlier(self, facts: Mapping[str, str], own: str = "") -> None:
        """Abort the uncommitted jobs of this task's earlier tries; raise if a later try has one."""
        place, earlier = place_in_order(facts, own), []
        for other in self._open_jobs(facts):
            if place_in_order(other.context, other.job_id) < place:
                earlier.append(other)
            elif other.job_id != own:
                raise AirflowException(
                    f"Task {self.task_id}: job {other.job_id} of {other.destination} is of a later try of"
                    " this task, so this one ends. If no such try runs, end that job:"
                    f" s3commit abort {other.destination} {other.job_id}"
                )
        for other in earlier:
            try:
                uploads = self._abort(self.hook.job(_reference_of(other)))
            except AlreadyCommitted as error:
                self.log.info("Earlier job %s was not aborted: %s", other.job_id, error)
            else:
                count_abort(other.destination, uploads)
                self.log.info("Aborted earlier job %s: %d uploads", other.job_id, uploads)

    def _abort(self, job: Job) -> int:
        reason = f"a later try of {self.task_id}"
        try:
            return abort_until_quiet(
                lambda: job.abort(reason=reason).uploads, kill_window=self.kill_window, log=self.log
            )
        except AlreadyCommitted:
            # The commit may be unfinished; this finishes it.
            job.commit()
            raise

    def _open_jobs(self, facts: Mapping[str, str]) -> list[JobRecord]:
        """Return the jobs of this task's tries that have not ended, or are not cleaned up."""
        from airflow_s3commit.protocol.inspect.jobs import open_jobs  # noqa: PLC0415

        found = open_jobs(self.hook.store, self._place)
        return [record for record in found if is_same_task(facts, record.context)]


class S3CommitSetupOperator(JobOptionsOperator):
    """Sets up a job: one refresh of one destination. Returns the job's reference.

    Each try sets up a new job, so that output of a dead try cannot get into it, and then aborts the jobs of
    the task's earlier tries that did not commit. It finds them on S3, by the DAG, run, task and map index in
    the records of the destination's open jobs. If one of them belongs to a later try, it aborts its own job.

    But if no stage was cleared with it, as when ``commit`` alone is cleared, it returns the run's newest job,
    if that is sealed with the same options, or committed, as one of the last 100 jobs that ended there. If
    that job cannot continue, and a stage has succeeded, this task fails: a new job would lack its output.

    :param kill_window: Seconds between two aborts of an earlier job whose tasks may still run; 0 aborts once.
    :param kwargs: The job's options, which are the fields of `JobOptions`, such as ``retain="7d"``;
        ``object_options`` is a dict with the entries of `ObjectOptions`. They are one template field,
        ``options``. The default of ``conflict_mode`` is the param of that name, and ``replace`` in backfills.
    """

    ui_color = "#e8f0f7"

    def __init__(self, *, kill_window: float = KILL_WINDOW, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = {"conflict_mode": CONFLICT_MODE, **self.options}
        self.kill_window = kill_window
        self.check(kill_window=at_least(0))

    @refusals_are_final()
    def execute(self, context: Context) -> dict[str, str]:
        """Set up a new job, abort those of earlier tries, and return the new job's reference."""
        from airflow_s3commit.protocol.job import Job  # noqa: PLC0415 - keeps DAG parsing light

        self.require_text("destination")
        facts, options = job_context(context), job_options(self.options)
        stages = self._stages_of_earlier_try(context)
        none_cleared = stages and {*stages.values()} <= {"success", "skipped"}
        if none_cleared and (taken := self._taken_up(facts, options)):
            return taken
        self._refuse_kept(context, facts, stages)
        reference = self._reference(str(uuid4()), options)
        # Pushed before the job exists: it lets Airflow's database confirm whose job it is.
        context["ti"].xcom_push(key=JOB, value=reference.to_dict())
        self._register(options)
        job = Job.setup(
            self.hook.store, self.destination, options=options, job_id=reference.job_id, context=facts
        )
        # After the job's record is written: of two tries at the same time, at least one sees the other.
        try:
            self.abort_earlier(facts, reference.job_id)
        except (AirflowException, Refused) as refusal:
            left = "it stays open, without uploads, until a sweep"
            with noting(refusal, f"aborting job {reference.job_id}", left):
                job.abort(reason=f"its setup failed: {refusal}")
            raise
        # Checked only until the destination's first job has ended: it costs a request.
        if job.record().base.number <= 1:
            self._warn_of_lifecycle()
        chosen = f"committer {options.committer}, conflict mode {options.conflict_mode}"
        self.log.info("Job %s is open at %s: %s", reference.job_id, reference.destination, chosen)
        return job.reference.to_dict()

    def _warn_of_lifecycle(self) -> None:
        """Warn of a lifecycle rule that may abort uploads while the job waits."""
        from airflow_s3commit.protocol.doctor.policy import SAFE_DAYS  # noqa: PLC0415 - keeps DAG parsing light

        with suppress(S3CommitError):
            days = self.hook.store.stale_upload_days(self._place.bucket, self._place.prefix)
            if days is not None and days < SAFE_DAYS:
                self.log.warning(
                    "A lifecycle rule aborts incomplete uploads of %s after %d day: a job that waits"
                    " longer for an audit or a repair cannot be committed. Make it longer than any job takes",
                    self.destination,
                    days,
                )

    def _reference(self, job_id: str, options: JobOptions) -> JobReference:
        root = Destination.parse(options.staging) if options.staging else None
        return JobReference(**Layout.of(self._place, job_id, root).place)

    def _register(self, options: JobOptions) -> None:
        """Register the destination in the installation's registry, if there is one, with one request."""
        from airflow_s3commit.protocol.metadata import registry  # noqa: PLC0415 - keeps DAG parsing light

        if REGISTRY is None:
            return
        with registry.failures_logged(REGISTRY, self._place.uri):
            hook = S3CommitHook(
                REGISTRY_CONNECTION, retry_deadline=_REGISTRY_SECONDS, timeout=_REGISTRY_SECONDS
            )
            registry.register_destination(
                hook.store, REGISTRY, self._place, staging=options.staging, aws_conn_id=self.aws_conn_id
            )

    def _taken_up(self, facts: Mapping[str, str], options: JobOptions) -> dict[str, str] | None:
        """Return the task's newest job if it is committed, or sealed with the same options; else None."""
        from airflow_s3commit.protocol.inspect.jobs import latest_endings  # noqa: PLC0415

        # Open jobs first: a job that ends in between is in the log then.
        unended = {one.job_id: one for one in self._open_jobs(facts)}
        endings = latest_endings(self.hook.store, self._place, _MOST_ENDINGS)
        ended = {one.job_id: one for one in endings if is_same_task(facts, one.context)}
        known: dict[str, JobRecord | JobSummary] = {**unended, **ended}
        if not known:
            return None
        job_id = max(known, key=lambda one: place_in_order(known[one].context, one))
        record = unended.get(job_id)
        job = self.hook.job(self._reference(job_id, options) if record is None else _reference_of(record))
        found = ended.get(job_id) or job.state()
        if found is None or found.state not in ("sealed", "committed"):
            return None
        if found.state == "sealed":
            if record is not None and record.options != options:
                self.log.warning("Job %s is sealed, and has other options than this task now", job_id)
                return None
            with suppress(AlreadyCommitted):
                # Reading the record pins it in the reference.
                job.record()
        self.log.info("Taking up job %s, which is %s: no stage was cleared", job_id, found.state)
        return job.reference.to_dict()

    def _stages_of_earlier_try(self, context: Context) -> dict[str, str]:
        """Return the states of the stages after this task, by task and map index; empty in the first try.

        A mapped stage without an instance is ``None``. Sensors, and tasks no commit waits for, are no stages.
        """
        if self.get_dag() is None or context["ti"].try_number == 1:
            return {}
        # The steps of this job get it from this task; those behind it may also be of another group's job.
        behind: list[Any] = list(self.get_flat_relatives())
        steps = [task for task in self.downstream_list if task.task_type in _STEPS]
        steps = steps or [task for task in behind if task.task_type in _STEPS]
        before = {name for step in steps for name in step.get_flat_relative_ids(upstream=True)}
        after = {name for step in steps for name in (step.task_id, *step.get_flat_relative_ids())}
        stages = sorted(
            task.task_id
            for task in behind
            if task.task_id in before - after
            and task.task_type != "S3CommitStagesOperator"
            and not issubclass(getattr(task, "operator_class", type(task)), BaseSensorOperator)
        )
        found = states_of(context, task_ids=stages) if stages else {}
        states: dict[str, str] = {}
        for name in stages:
            its_own = re.compile(rf"{re.escape(name)}(_\d+)?")
            states |= {one: found[one] for one in found if its_own.fullmatch(one)} or {name: "None"}
        return states

    def _refuse_kept(self, context: Context, facts: Mapping[str, str], stages: Mapping[str, str]) -> None:
        """Raise if a new job would lack a stage that succeeded or still runs, or a commit that is done.

        If other stages were cleared, the earlier jobs are aborted first.
        """
        kept = [name for name, state in stages.items() if state in {"success", "running", "deferred"}]
        after = self.downstream_list if stages else ()
        commits = [task.task_id for task in after if task.task_type == "S3CommitJobOperator"]
        ended = states_of(context, task_ids=commits) if commits else {}
        kept += [name for name, state in ended.items() if state in {"success", "skipped"}]
        if not kept:
            return
        if not {*stages.values()} <= {"success", "skipped"}:
            self.abort_earlier(facts)
        raise AirflowFailException(
            f"Task {self.task_id}: {shortened(kept)} ended before and not again, or still runs, and a new job"
            f" on {self.destination} would lack it; the earlier job has ended, is not sealed or has other"
            " options. If it has committed (`s3commit manifest`) and should stay, mark this and later tasks"
            " successful; else clear all stages, with all their mapped instances and the tasks after them."
        )


def _reference_of(record: JobRecord) -> JobReference:
    return JobReference(job_id=record.job_id, destination=record.destination, staging=record.staging)


def options_among(arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove a job's options from keyword arguments, and return them."""
    found = {name: arguments.pop(name) for name in JobOptions.__struct_fields__ if name in arguments}
    return {**found, "staging": as_uri(found["staging"])} if "staging" in found else found


def job_options(values: Mapping[str, Any]) -> JobOptions:
    """Return a job's options from their values by name."""
    objects = ObjectOptions.from_dict(mapping(values.get("object_options") or {}))
    # Without native rendering a template's result is text.
    flag = values.get("partition_success", False)
    flag = {"True": True, "False": False}.get(str(flag), flag)
    return JobOptions(**{**values, "object_options": objects, "partition_success": flag})


def job_context(context: Context) -> dict[str, str]:
    """Return the facts of a try for the job's record and manifest, without those that the run lacks."""
    ti, dag_run = context.get("ti"), context.get("dag_run")
    group = getattr(context.get("task"), "task_group", None)
    started = getattr(dag_run, "start_date", None)
    facts = {
        **{name: getattr(ti, name, None) for name in ("dag_id", "task_id", "map_index", "try_number")},
        "try_id": getattr(ti, "id", None),
        "run_id": context.get("run_id"),
        "run_type": getattr(dag_run, "run_type", None),
        "run_started": started and started.astimezone(UTC).isoformat(timespec="microseconds"),
        "task_group_id": getattr(group, "group_id", None),
        "partition_key": partition_key_of(context),
        "logical_date": context.get("logical_date"),
    }
    return {name: _text(value) for name, value in facts.items() if value not in {None, ""}}


def is_same_task(facts: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Return whether two jobs, by their facts, were set up by tries of one task instance."""
    return all(name in facts and facts[name] == others.get(name) for name in _TASK)


def place_in_order(facts: Mapping[str, str], job_id: str) -> tuple[str, int, str, str]:
    """Return a key by which the jobs of one task instance sort in the order of their tries.

    A run that was deleted and created again under its old id counts its tries from one again, but has started
    later. ``dag.test()`` gives the new run even the start of the deleted one; then Airflow's id of the try
    decides, which begins with the time.
    """
    # A record may have anything there.
    number = re.fullmatch("[0-9]{1,9}", facts.get("try_number", ""))
    return facts.get("run_started", ""), int(number[0]) if number else 0, facts.get("try_id", ""), job_id


def _text(value: Any) -> str:
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    return str(getattr(value, "value", value))
