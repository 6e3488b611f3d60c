"""The callback that aborts a failed run's jobs if no teardown runs, such as after ``dagrun_timeout``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from math import inf
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier, Context

from airflow_s3commit._causes import whole_text
from airflow_s3commit.exceptions import AlreadyCommitted, Refused, S3CommitError
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.metrics import count_retry
from airflow_s3commit.operators.abort import KEPT, KILL_WINDOW, abort_until_quiet
from airflow_s3commit.operators.setup import job_context
from airflow_s3commit.templates import at_least, check_value, mapping, text, texts

if TYPE_CHECKING:
    import jinja2

    from airflow_s3commit.protocol.job import Job


__all__ = ["AbortUploadsNotifier"]

#: Seconds without a notifier after which a process has its full time again.
_PAUSE = 5.0

#: Seconds that a notifier always has, for its first abort.
_LEAST = 4.0

#: When the first of a process's notifiers in a row began and the last ended: Airflow limits their total time.
_row = SimpleNamespace(began=-inf, ended=-inf)


def _references(given: Any) -> list[Mapping[str, Any]]:
    return [mapping(one) for one in ([given] if isinstance(given, str | Mapping) else given)]


#: The parsers of a notifier's arguments, by name.
_READERS: dict[str, Callable[[Any], object]] = {
    "job": _references,
    "setup_task_ids": texts,
    "time_limit": at_least(0),
    "kill_window": at_least(0),
    "aws_conn_id": text,
}


class AbortUploadsNotifier(BaseNotifier):
    """Aborts a run's jobs that did not commit; for ``on_failure_callback`` of a DAG or a task.

    It leaves alone a job that the run's teardown has kept because the store failed the commit, and one that
    was set up after the run that failed was cleared.

    Set it on the DAG: ``dagrun_timeout`` calls only the DAG's callback, and a task's callback also aborts the
    jobs of other groups and items, which may still run. It may be called repeatedly and does not change
    committed jobs. It returns after ``time_limit``; a later teardown or a sweep aborts the remaining uploads.

    It aborts at least twice, ``kill_window`` seconds apart: Airflow calls it while tasks are still being
    killed, and the next abort finds uploads that they have started since. It repeats the abort as long as it
    finds uploads, up to six times, if ``time_limit`` allows it.

    It reads the jobs from XComs of the run's setup tasks, by the run id. The context needs no task instance.

    :param job: A job reference, or several; None for those of the setup tasks. (templated)
    :param setup_task_ids: The tasks whose XComs have the references; None for every `S3CommitSetupOperator`
        of the DAG. (templated)
    :param time_limit: Seconds after which the callback returns, even if an abort still runs. A DAG's
        callbacks run one after the other in the process that parses its file, and Airflow kills that process
        after ``[dag_processor] dag_file_processor_timeout``, 50 seconds for all of them. So notifiers that
        are called in a row share the time, with at least four seconds each.
    :param kill_window: Seconds between two aborts; 0, or a lack of time, aborts once. Within them a killed
        task must end or start an upload: one heartbeat (5) and the time until SIGKILL (5).
    :param aws_conn_id: The ``aws`` connection of the store; None means boto3's default chain. (templated)
    """

    template_fields: Sequence[str] = ("job", "setup_task_ids", "aws_conn_id")

    def __init__(
        self,
        *,
        job: Any = None,
        setup_task_ids: str | Sequence[str] | None = None,
        time_limit: float = 35.0,
        kill_window: float = KILL_WINDOW,
        aws_conn_id: str | None = S3CommitHook.default_conn_name,
    ) -> None:
        super().__init__()
        self.job = job
        self.setup_task_ids = setup_task_ids
        self.time_limit = time_limit
        self.kill_window = kill_window
        self.aws_conn_id = aws_conn_id
        for name, reader in _READERS.items():
            check_value("AbortUploadsNotifier", name, reader, getattr(self, name), self.template_fields)

    def __call__(self, *args: Any) -> None:
        """Notify with a copy: rendering replaces the templates, which the next run's call needs again."""
        super(AbortUploadsNotifier, copy(self)).__call__(*args)

    def render_template_fields(self, context: Context, jinja_env: jinja2.Environment | None = None) -> None:
        """Render the templated fields, even if the context has only the scheduler's copy of the DAG."""
        if jinja_env is None and not hasattr(context.get("dag"), "get_template_env"):
            jinja_env = self.get_template_env(dag=None)
        super().render_template_fields(context, jinja_env)

    def notify(self, context: Context) -> None:
        """Abort the run's jobs that did not commit.

        :param context: The callback's context; ``dag`` and ``run_id`` are enough.
        """
        began = monotonic()
        if began - _row.ended >= _PAUSE:
            _row.began = began
        try:
            self._notify(context, max(_row.began + self.time_limit, began + min(self.time_limit, _LEAST)))
        finally:
            _row.ended = monotonic()

    def _notify(self, context: Context, deadline: float) -> None:
        until = (monotonic() + deadline) / 2
        references: list[Mapping[str, str]] = []
        try:
            kept = self._kept(context, until)
            for reference in self._references(context, until):
                if reference["job_id"] not in kept:
                    references.append(reference)  # noqa: PERF401 - one by one: those before a timeout count
        except TimeoutError:
            self.log.warning(
                "Airflow did not return all XComs of the run in time, so %d of its jobs are aborted; a later"
                " teardown or a sweep aborts the others",
                len(references),
            )
        except ImportError as error:
            # dag.test() calls a DAG's callbacks in a process without access to XComs.
            self.log.warning(
                "The run's jobs are unknown in this process (%s); its teardown aborts them", error
            )
            return
        if not references:
            self.log.info("Run %s has no job to abort", context.get("run_id"))
            return
        step = max(deadline - monotonic(), 0.0) / 3
        hook = S3CommitHook(
            self.aws_conn_id, retry_deadline=step, timeout=max(step, 1.0), on_retry=count_retry
        )
        # The hook reads its connection in this thread: Airflow answers no other thread.
        jobs = [hook.job(reference) for reference in references]
        started = job_context(context).get("run_started", "")
        worker = threading.Thread(target=self._abort_all, args=(jobs, started, deadline), daemon=True)
        worker.start()
        # The time limit includes Airflow's requests for XComs and the connection, which may take seconds.
        worker.join(max(0.0, deadline - monotonic()))
        if worker.is_alive():
            self.log.warning(
                "The abort did not end in time; a later teardown or a sweep aborts the remaining uploads"
            )

    def _abort_all(self, jobs: list[Job], started: str, deadline: float) -> None:
        def look() -> int:
            found = [uploads for job in jobs if (uploads := self._abort(job, started)) is not None]
            if not found:
                raise AlreadyCommitted("every job of the run is left alone")
            return sum(found)

        with suppress(AlreadyCommitted):
            abort_until_quiet(look, kill_window=self.kill_window, log=self.log, until=deadline)

    def _abort(self, job: Job, started: str) -> int | None:
        """Abort a job; return the number of its uploads, 1 if the abort failed, None if it is left alone."""
        job_id, own = job.reference.job_id, ""
        try:
            with suppress(Refused):  # the job has ended, or its record is gone
                own = job.record().context.get("run_started", "")
            if "" < started < own:
                # Airflow may be half a minute late, when somebody has cleared the run.
                self.log.info("Job %s is of the run since it was cleared; it is not aborted", job_id)
                return None
            report = job.abort(reason="the run failed")
        except AlreadyCommitted:
            self.log.info("Job %s is committed; it is not aborted", job_id)
            return None
        except S3CommitError as error:
            self.log.error("Job %s could not be aborted: %s", job_id, whole_text(error))  # noqa: TRY400
        except Exception:
            # In this thread an exception would be lost, and the other jobs would not be aborted.
            self.log.exception("Job %s could not be aborted", job_id)
        else:
            self.log.info("Aborted job %s: %s", job_id, report)
            return report.uploads
        return 1

    def _references(self, context: Context, until: float) -> Iterator[Mapping[str, str]]:
        if isinstance(self.job, str):
            raise ValueError(  # noqa: TRY004 - as for other arguments
                f"job is the text {self.job!r}, and no job reference, so nothing is aborted: leave it out,"
                " name setup_task_ids, or let the DAG render native objects"
            )
        given: Iterable[Any] = [self.job] if isinstance(self.job, Mapping) else self.job
        if self.job is None:
            if context.get("dag") is None:
                raise ValueError("there is no DAG here, as in a deadline's callback, so nothing is aborted")
            named = self.setup_task_ids
            setups = _tasks(context, "S3CommitSetupOperator") if named is None else texts(named)
            known = {task.task_id for task in getattr(context.get("dag"), "tasks", ())}
            if known and (unknown := sorted({*setups} - known)):
                self.log.error("The DAG has no setup task %s, so no job of it is aborted", unknown[0])
            given = _outputs(context, setups, until)
        return (reference for reference in given if isinstance(reference, Mapping) and "job_id" in reference)

    def _kept(self, context: Context, until: float) -> set[str]:
        """Return the ids of jobs that teardowns have kept; none after a timeout, which runs no teardown."""
        if context.get("reason") == "timed_out":
            return set()
        reports = _outputs(context, _tasks(context, "S3CommitAbortOperator"), until, key="abort_report")
        return {str(one["job_id"]) for one in reports if one.get("state") == KEPT}


def _tasks(context: Context, kind: str) -> list[str]:
    """Return the ids of the DAG's tasks of a type."""
    dag: Any = context.get("dag")
    return [task.task_id for task in dag.tasks if task.task_type == kind] if dag is not None else []


def _outputs(
    context: Context, task_ids: Iterable[str], until: float, key: str = "return_value"
) -> Iterator[Any]:
    """Yield the XComs of these tasks' instances in this run; the context needs no task instance.

    :raises TimeoutError: ``until`` passed before all were read. A request that has begun is not cut short.
    """
    from airflow.sdk.execution_time.xcom import XCom  # noqa: PLC0415 - only a running callback has XComs

    dag_run, dag = context.get("dag_run"), context.get("dag")
    run_id = str(context.get("run_id") or getattr(dag_run, "run_id", None))
    dag_id = str(getattr(dag, "dag_id", None))
    for task_id in task_ids:
        if monotonic() > until:
            raise TimeoutError
        yield from XCom.get_all(key=key, dag_id=dag_id, task_id=task_id, run_id=run_id) or []
