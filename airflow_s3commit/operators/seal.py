"""Operators that seal a job, which fixes the stage attempts that count: an audit, and a commit's preview."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, get_args

from airflow_s3commit._format import Column, text_table
from airflow_s3commit.airflow_version import AirflowFailException, AirflowSkipException, wait_for_answer
from airflow_s3commit.exceptions import AlreadyCommitted
from airflow_s3commit.links import PendingsetsLink
from airflow_s3commit.operators.base import (
    NO_OUTPUT,
    CommitStepOperator,
    failures_are_noted,
    pulled,
    states_of,
    totals,
)
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.templates import CheckedOperator, mapping, one_of

if TYPE_CHECKING:
    from airflow.sdk import BaseNotifier, Context
    from airflow.sdk.execution_time.hitl import HITLUser

    from airflow_s3commit.protocol.inspect.audit import AuditReport, AuditRules
    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.model.sealed_job import SealReference


#: The effects of a skipped stage, and of stages without output.
SkippedStages: TypeAlias = Literal["skip", "ignore"]
OnEmpty: TypeAlias = Literal["skip", "commit", "remove"]

#: The parsers of these arguments.
SKIPPED_STAGES = one_of(*get_args(SkippedStages))
ON_EMPTY = one_of(*get_args(OnEmpty))
_ON_FAIL = one_of("fail", "warn", "ask")

#: The key of the XCom with the stage and the try of a task of another engine.
_STAGE_TRY = "stage_try"

#: A user's answers to an audit that asks.
_ANSWERS = [_APPROVE, _REJECT] = ["Approve", "Reject"]


def note_try(context: Context, *, stage: str) -> None:
    """Note a task's stage (a name or a template) and try in an XCom; call it when a try begins.

    Airflow deletes a task's XComs before each try, so the note is always that of the last try.
    """
    ti: Any = context["ti"]
    name = str(ti.task.render_template(stage, context))
    instance = f"{ti.task_id}_{ti.map_index}"
    ti.xcom_push(key=_STAGE_TRY, value={"stage": name, "try": ti.try_number, "instance": instance})


class S3CommitStagesOperator(CheckedOperator):
    """Returns the XComs of the stages that were not skipped, for the task that seals the job.

    Give it the trigger rule ``none_failed``, as `s3_commit_task_group` does. The task that seals cannot have
    this rule: Airflow requires ``all_success`` of every task directly after a setup. It may be retried.

    :param stages: XComs of the stage tasks; None if a task has none, and then it returns None. (templated)
    :param skipped_stages: If some stages were skipped, ``ignore`` them, or ``skip`` this task too.
    :param on_empty: If all stages were skipped, ``skip`` skips this task; ``commit`` or ``remove`` returns an
        empty list, so that the job commits no files.
    """

    template_fields: Sequence[str] = ("stages",)
    ui_color = "#e8f0f7"

    def __init__(
        self,
        *,
        stages: Any = None,
        skipped_stages: SkippedStages = "ignore",
        on_empty: OnEmpty = "skip",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stages = stages
        self.skipped_stages = skipped_stages
        self.on_empty = on_empty
        self.check(skipped_stages=SKIPPED_STAGES, on_empty=ON_EMPTY)

    def execute(self, context: Context) -> list[Any] | None:
        """Return the XComs of the stages' tasks and of their mapped instances, or skip this task."""
        ended = {*states_of(context, task_ids=sorted(self.upstream_task_ids)).values()}
        if ended == {"skipped"}:
            if self.on_empty == "skip":
                raise AirflowSkipException("All stages were skipped; there is nothing to commit.")
            return []
        if "skipped" in ended and self.skipped_stages != "ignore":
            raise AirflowSkipException("A stage was skipped, so the commit is skipped too.")
        # A skipped task has no XCom, or an earlier job's, which the task that seals leaves out.
        return None if self.stages is None else [xcom for xcom in _each(self.stages) if xcom]


class SealingOperator(CommitStepOperator):
    """A step that seals the job with the stages that count.

    :param stages: XComs of the stage tasks; None takes the newest sealed attempt of each stage. (templated)
    :param named_stages: Ids of the tasks of ``stages``; or, without it, of tasks that `S3CommitGroup.stage`
        has given a stage's name: only the attempt of their last try counts.
    """

    template_fields = (*CommitStepOperator.template_fields, "stages")
    operator_extra_links = (PendingsetsLink(),)

    def __init__(self, *, stages: Any = None, named_stages: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stages = stages
        self.named_stages = list(named_stages)
        self.seal_uri: str | None = None

    def seal(self, context: Context, job: Job) -> SealReference:
        """Seal the job, and return the seal's location and counts. Repeatable with the same stages."""
        states = states_of(context, task_ids=self.named_stages) if self.named_stages else {}
        succeeded = {name for name, state in states.items() if state == "success"}
        try:
            if self.stages is None:
                stages = [*self._newest(context, job, succeeded)] or None
                digests = dict[tuple[str, str], str]()
            else:
                stages, digests = _attempts(_each(self.stages), job.reference.job_id, len(succeeded))
        except ValueError as error:
            raise AirflowFailException(f"Task {self.task_id}: {error}") from error
        sealed = job.seal(stages, digests=digests)
        self.seal_uri = sealed.location
        self.log.info("Job %s is sealed: %s", job.reference.job_id, totals(sealed))
        return sealed

    def _newest(self, context: Context, job: Job, succeeded: set[str]) -> Iterator[tuple[str, str]]:
        """Yield the sealed stage attempts that count: for each stage, that of the last try.

        Attempts of a stage are numbered by the tries of a task, so the last try's has the highest number.
        If ids are not numbers, all attempts of the stage count, because none is known to be the last.
        """
        # What the tasks with a stage's name noted when their last try began, by their names in ``succeeded``.
        ending, notes = f"_{context['ti'].map_index}", pulled(context, self.named_stages, _STAGE_TRY)
        tries = {str(each["instance"]).removesuffix(ending): each for each in notes}
        own = [tries[name] for name in tries.keys() & succeeded]
        _refuse_shared(str(each["stage"]) for each in own)
        # Airflow keeps the notes of instances that are skipped or removed when a run is cleared.
        last = {str(each["stage"]): str(each["try"]) for each in [*notes, *own]}
        by_stage: dict[str, list[str]] = {}
        for stage, attempt in job.sealed_stages():
            by_stage.setdefault(stage, []).append(attempt)
        for stage, attempts in by_stage.items():
            if stage not in last and (silent := succeeded - tries.keys()):
                raise ValueError(
                    f"task {min(silent)} has not noted its stage's name, so the output of stage {stage} may"
                    " be an earlier try's. That task's log says why: mend the name, and clear the task."
                )
            if last.get(stage, attempts[0]) not in attempts:
                raise ValueError(
                    f"try {last[stage]} of stage {stage} was its last and sealed no output; that of"
                    f" {', '.join(attempts)} does not count. Make each try seal its output under its own"
                    " number, or leave out the stage's name if a try may use what an earlier one sealed."
                )
            if all(map(str.isdecimal, attempts)):
                last.setdefault(stage, max(attempts, key=int))
            for attempt in attempts:
                if attempt == last.get(stage, attempt):
                    yield stage, attempt
                else:
                    self.log.info("Attempt %s of stage %s does not count: a later try did", attempt, stage)


class S3CommitAuditOperator(SealingOperator):
    """Seals the job and checks its output against rules. Returns the report; None if the job is committed.

    It reads the statistics that were written with the output, not the output itself. Put it before
    `S3CommitResolveConflictsOperator`: if it fails, the commit does not run and the teardown aborts the job.
    It may be retried and cleared. The XCom ``audit_report`` has the report too, even if the audit fails.

    :param rules: Checks, by field name of `AuditRules`. Each fails if its statistic is unknown. (templated)
    :param on_fail: ``fail``; ``warn``: log the failed checks and succeed; or ``ask``: wait, without a worker,
        until a user approves or rejects the commit in Airflow's required actions. (templated)
    :param response_timeout: Time that ``ask`` waits for an answer before the audit fails; None for no limit.
        Keep it shorter than the age at which a sweep treats a job as dead.
    :param assigned_users: Who may answer, as in Airflow's ``HITLOperator``; by default all who may edit runs.
    :param notifiers: Notifiers to call when ``ask`` begins to wait; one that fails is only logged.
    """

    template_fields = (*SealingOperator.template_fields, "rules", "on_fail")
    ui_color = "#f7f3e0"

    def __init__(
        self,
        *,
        rules: Mapping[str, Any],
        on_fail: str = "fail",
        response_timeout: timedelta | None = timedelta(days=1),
        assigned_users: Sequence[HITLUser] | None = None,
        notifiers: Sequence[BaseNotifier] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rules = rules
        if isinstance(rules, Mapping):
            # None leaves a rule out in the DAG's file; in a run it is a missing result.
            self.rules = {name: rule for name, rule in rules.items() if rule is not None}
        self.on_fail = on_fail
        self.response_timeout = response_timeout
        self.assigned_users = assigned_users
        self.notifiers = notifiers
        # Wrong arguments of the question would fail only when it is asked, which is rare.
        self.check(
            on_fail=_ON_FAIL,
            rules=_rules,
            response_timeout=_time,
            assigned_users=lambda users: [mapping(one) for one in users],
            notifiers=list,
        )

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Seal the job and check the rules; return the report, ask a user, or fail."""
        from airflow_s3commit.protocol.inspect import audit  # noqa: PLC0415 - keeps DAG parsing light

        with failures_are_noted(context, self.job):
            self.read("on_fail", _ON_FAIL)
            rules, job = self.read("rules", _rules), self.opened_job()
            try:
                sealed = self.seal(context, job)
            except AlreadyCommitted as error:
                # Somebody cleared this task after the commit, or committed the job by hand.
                self.log.info("Nothing to check: %s", error)
                return None
            place = Destination.parse(job.reference.destination)
            drifts = rules.max_drift is not None
            before = audit.commit_before(self.hook.store, place, sealed.partitions) if drifts else None
            report = audit.audit(job.reference.job_id, sealed, rules, before=before)
            table = text_table(audit.AuditCheck.columns, report.checks, most=500)
            self.log.info("Audit of job %s\n%s", report.job_id, table)
            context["ti"].xcom_push(key="audit_report", value=report.to_dict())
            if self.on_fail == "fail":
                report.require()
        if not report.passed:
            if self.on_fail == "ask":
                self._ask(context, report, table)
            self.log.warning("%d checks failed; continuing because on_fail is warn", len(report.failures))
        return report.to_dict()

    def execute_complete(
        self, context: Context, event: Mapping[str, Any], report: dict[str, Any], subject: str
    ) -> dict[str, Any]:
        """Return the report with the user's decision; fail unless the answer approved the commit."""
        time: Any = event.get("responded_at")
        user = event.get("responded_by_user") or {}
        name = str(user.get("name") or user.get("id") or "somebody")
        with failures_are_noted(context, self.job):
            if "error" in event:
                raise AirflowFailException(f"{subject} Nobody answered in time: {event['error']}")
            if event.get("chosen_options") != [_APPROVE]:
                raise AirflowFailException(f"{subject} {name} rejected it.")
        at = time.isoformat() if hasattr(time, "isoformat") else str(time)
        self.log.info("%s approved the commit at %s", name, at)
        decided = {**report, "decision": {"approved_by": name, "at": at}}
        context["ti"].xcom_push(key="audit_report", value=decided)
        return decided

    def _ask(self, context: Context, report: AuditReport, table: str) -> NoReturn:
        """Ask whether to commit, and suspend the task; the answer resumes it."""
        from airflow.sdk.execution_time.hitl import upsert_hitl_detail  # noqa: PLC0415 - keeps DAG parsing light

        failed = f"{len(report.failures)} of {len(report.checks)} checks of job {report.job_id} failed"
        subject, ti_id = f"{failed}: commit it anyway?", context["ti"].id
        destination = self.opened_job().reference.destination
        self.log.info("Waiting for an answer: %s", subject)
        upsert_hitl_detail(
            ti_id=ti_id,
            options=_ANSWERS,
            subject=subject,
            body=f"No output of the job is visible in `{destination}` yet. Approve to commit the job. If you "
            f"reject, or nobody answers in time, the job is aborted and the run fails.\n\n```\n{table}\n```",
            params={},
            assigned_users=list(self.assigned_users) if self.assigned_users else None,
        )
        for notifier in self.notifiers:
            try:
                notifier(context)
            except Exception:
                # A message that cannot be sent is no reason to give the output up.
                self.log.exception("A notifier failed; the question waits for an answer all the same")
        resumed = {"report": report.to_dict(), "subject": subject}
        wait_for_answer(ti_id, _ANSWERS, "execute_complete", resumed, self.response_timeout)


class S3CommitResolveConflictsOperator(SealingOperator):
    """Seals the job if it is not sealed, and previews its commit: what that would replace now.

    With conflict mode ``fail`` this task fails if a touched partition has data, before any output becomes
    visible. It may be retried. Returns the seal's location, SHA-256 and counts, and the preview's generation
    of the table and counts; None if the job is committed. The log names the partitions that would lose files.

    :param on_empty: If the stages wrote no files, ``skip`` skips this task and the commit; ``commit`` commits
        without files, and fails if that would remove data; ``remove`` commits, and removes what the conflict
        mode replaces: with committer ``directory`` and ``replace`` the whole table.
    """

    ui_color = "#e8f0f7"

    def __init__(self, *, on_empty: OnEmpty = "commit", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.on_empty = on_empty
        self.check(on_empty=ON_EMPTY)

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Seal the job and preview its commit; return what identifies both, and counts."""
        with failures_are_noted(context, self.job):
            job = self.opened_job()
            try:
                return self._resolved(context, job)
            except AlreadyCommitted as error:
                # Somebody cleared this task, or committed the job by hand. The commit returns the manifest.
                self.log.info("Nothing to do: %s", error)
                return None

    def _resolved(self, context: Context, job: Job) -> dict[str, Any]:
        sealed = self.seal(context, job)
        preview = job.preview()
        lost = f"{preview.objects} files ({preview.bytes} bytes) in {len(preview.partitions)} partitions"
        self.log.info("After generation %d the commit would replace %s", preview.generation, lost)
        if preview.partitions:
            column = Column("partition", "", lambda name: name or "(the root)")
            self.log.info("These would lose files:\n%s", text_table([column], preview.partitions))
        if not sealed.counts.files and self.on_empty != "remove":
            self._check_empty(context, job, preview.objects)
        counted = {**preview.to_dict(), "partitions": len(preview.partitions)}
        return {"seal": sealed.to_dict(), "preview": counted}

    def _check_empty(self, context: Context, job: Job, removed: int) -> None:
        # With a save mode, Spark requests the removal; to skip it would silently drop the request.
        asked = self.on_empty != "skip" or job.record().options.conflict_mode == "as-written"
        if removed and asked:
            raise AirflowFailException(
                f"Task {self.task_id}: the stages wrote no files, and the commit would remove {removed}"
                f' objects of {job.reference.destination}. To remove them give on_empty="remove"; to leave'
                ' the table as it is, on_empty="skip", and a conflict_mode in place of the save modes.'
            )
        if self.on_empty == "skip":
            context["ti"].xcom_push(key=NO_OUTPUT, value=job.reference.job_id)
            raise AirflowSkipException("The stages wrote no files; there is nothing to commit.")


def _rules(given: Mapping[str, Any]) -> AuditRules:
    from airflow_s3commit.protocol.inspect.audit import AuditRules  # noqa: PLC0415 - only if there is an audit

    if lost := [name for name, rule in mapping(given).items() if rule is None]:
        raise ValueError(f"{lost[0]} has no value in this run: check the task whose XCom it reads")
    return AuditRules.from_dict(given)


def _time(given: Any) -> timedelta:
    if not isinstance(given, timedelta):
        raise ValueError(f"{given!r} is no timedelta")  # noqa: TRY004 - as of other arguments
    return given


def _each(stages: Iterable[Any]) -> list[Any]:
    """Return the XComs of stage tasks as one list, with those of each instance of a mapped task."""
    xcoms: list[Any] = []
    for entry in stages:
        is_single = isinstance(entry, Mapping | str | bytes) or not isinstance(entry, Iterable)
        # A mapped task's XCom is a lazy sequence, which requests every item again at each iteration.
        xcoms.extend([entry] if is_single else entry)
    return xcoms


def _attempts(
    xcoms: Sequence[Any], job_id: str, succeeded: int
) -> tuple[list[tuple[str, str]], dict[tuple[str, str], str]]:
    """Return the stage attempts in the XComs of stage tasks, and the SHA-256 of their seals if given."""
    own = [one for one in xcoms if isinstance(one, Mapping) and one.get("job_id", job_id) == job_id]
    if own and len(own) == succeeded:
        # Airflow keeps the XComs of instances that are skipped or removed when a run is cleared.
        xcoms = own
    for entry in xcoms:
        if not isinstance(entry, Mapping) or not {"stage", "stage_attempt"} <= entry.keys():
            raise ValueError(
                f"{entry!r} has no stage attempt; pass the XComs of S3CommitSparkSubmitOperator tasks, "
                "or leave stages out to take the newest sealed attempt of each stage."
            )
        if entry.get("job_id", job_id) != job_id:
            raise ValueError(
                f"stage {entry['stage']} wrote for job {entry['job_id']}, not for job {job_id}: the setup"
                " task ran again, and the stage's task did not. Clear it too, with all mapped instances."
            )
    _refuse_shared(str(one["stage"]) for one in xcoms)
    found = {(str(one["stage"]), str(one["stage_attempt"])): one.get("sha256") for one in xcoms}
    return list(found), {attempt: sha256 for attempt, sha256 in found.items() if sha256}


def _refuse_shared(stages: Iterable[str]) -> None:
    """Raise `ValueError` if two tasks have written one stage."""
    if shared := [stage for stage, tasks in Counter(stages).items() if tasks > 1]:
        raise ValueError(
            f"several tasks or mapped instances have written stage {shared[0]}, which has the output of one"
            " alone: give each a stage of its own, and clear them all."
        )
