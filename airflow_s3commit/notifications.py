"""The callback that aborts a failed run's jobs if no teardown runs, such as after ``dagrun_timeout``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from airflow_s3commit._causes import whole_text
from airflow_s3commit.exceptions import AlreadyCommitted, S3CommitError
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.metrics import count_retry
from airflow_s3commit.operators.abort import KEPT, KILL_WINDOW, MORE_ABORTS
from airflow_s3commit.templates import at_least, check_value, mapping, text

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

    from airflow_s3commit.protocol.job import Job


__all__ = ["AbortUploadsNotifier"]

#: Seconds without a notifier after which a process has its full time again.
_PAUSE = 5.0

#: Seconds that a notifier always has, for its first abort.
_LEAST = 4.0


class _Budget:
    """The time of the notifiers that a process calls in a row, which Airflow limits together."""

    def __init__(self) -> None:
        self._spent, self._ended = 0.0, -_PAUSE

    def left(self, limit: float, now: float) -> float:
        """Return the seconds that a notifier has from now on."""
        if now - self._ended >= _PAUSE:
            self._spent = 0.0
        return max(limit - self._spent, min(limit, _LEAST))

    def spend(self, began: float, ended: float) -> None:
        """Count the time of a notifier."""
        self._spent, self._ended = self._spent + ended - began, ended


_budget = _Budget()


def _references(given: Any) -> list[Mapping[str, Any]]:
    return [mapping(one) for one in ([given] if isinstance(given, str | Mapping) else given)]


def _task_ids(given: Any) -> list[str]:
    return [text(one) for one in ([given] if isinstance(given, str) else given)]


#: What reads the arguments of a notifier.
_READERS: dict[str, Callable[[Any], object]] = {
    "job": _references,
    "setup_task_ids": _task_ids,
    "time_limit": at_least(0),
    "kill_window": at_least(0),
    "aws_conn_id": text,
    "region_name": text,
}


class AbortUploadsNotifier(BaseNotifier):
    """Aborts a run's jobs that did not commit; for ``on_failure_callback`` of a DAG or a task.

    It leaves alone a job that the run's teardown has kept because the store failed the commit.

    Set it on the DAG: that callback is the only one that Airflow calls when a run exceeds ``dagrun_timeout``.
    It may be called repeatedly and does not change committed jobs. It returns after ``time_limit``, because
    Airflow kills slow callbacks; the teardown of a later try, or a sweep, aborts the remaining uploads.

    It aborts at least twice, ``kill_window`` seconds apart: Airflow calls it while tasks are still being
    killed, and the next abort finds uploads that they have started since. It repeats the abort as long as it
    finds uploads, up to six times, if ``time_limit`` allows it.

    It reads the jobs from the XComs of the run's setup tasks, by the run's id. The context needs no task
    instance.

    :param job: A job reference, or several; None for those of the setup tasks. (templated)
    :param setup_task_ids: The tasks whose XComs have the references; None for every `S3CommitSetupOperator`
        of the DAG. (templated)
    :param time_limit: Seconds after which the callback returns, even if an abort still runs. A DAG's
        callbacks run one after the other in the process that parses its file, and Airflow kills that process
        after ``[dag_processor] dag_file_processor_timeout``, 50 seconds for all of them. So notifiers that
        are called in a row share the time, with at least four seconds each.
    :param kill_window: Seconds between two aborts; 0, or a lack of time, aborts once. A killed task must
        end within them, or start an upload: one heartbeat (5) and the time to SIGKILL (5).
    :param aws_conn_id: The ``aws`` connection of the store; None means boto3's default chain. (templated)
    :param region_name: Overrides the connection's region. (templated)
    :param verify: Overrides the connection's check of TLS certificates. (templated)
    """

    template_fields: Sequence[str] = ("job", "setup_task_ids", "aws_conn_id", "region_name", "verify")

    def __init__(
        self,
        *,
        job: Any = None,
        setup_task_ids: str | Sequence[str] | None = None,
        time_limit: float = 35.0,
        kill_window: float = KILL_WINDOW,
        aws_conn_id: str | None = S3CommitHook.default_conn_name,
        region_name: str | None = None,
        verify: bool | str | None = None,
    ) -> None:
        super().__init__()
        self.job = job
        self.setup_task_ids = setup_task_ids
        self.time_limit = time_limit
        self.kill_window = kill_window
        self.aws_conn_id = aws_conn_id
        self.region_name = region_name
        self.verify = verify
        for name, reader in _READERS.items():
            check_value("AbortUploadsNotifier", name, reader, getattr(self, name))

    def render_template_fields(self, context: Context, jinja_env: jinja2.Environment | None = None) -> None:
        """Render the templated fields, even if the context has only the scheduler's copy of the DAG.

        :param context: The callback's context.
        :param jinja_env: The environment to render in; by default the DAG's.
        """
        if jinja_env is None and not hasattr(context.get("dag"), "get_template_env"):
            jinja_env = self.get_template_env(dag=None)
        super().render_template_fields(context, jinja_env)

    def notify(self, context: Context) -> None:
        """Abort the run's jobs that did not commit.

        :param context: The callback's context; ``dag`` and ``run_id`` are enough.
        """
        began = monotonic()
        try:
            self._notify(context, began + _budget.left(self.time_limit, began))
        finally:
            _budget.spend(began, monotonic())

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
            self.aws_conn_id,
            region_name=self.region_name,
            verify=self.verify,
            retry_deadline=step,
            timeout=max(step, 1.0),
            on_retry=count_retry,
        )
        # The hook reads its connection in this thread: Airflow answers no other one.
        jobs = [hook.job(reference) for reference in references]
        worker = threading.Thread(target=self._abort_all, args=(jobs, deadline), daemon=True)
        worker.start()
        # The time limit includes Airflow's requests for XComs and the connection, which may take seconds.
        worker.join(max(0.0, deadline - monotonic()))
        if worker.is_alive():
            self.log.warning(
                "The abort did not end in time; a later teardown or a sweep aborts the remaining uploads"
            )

    def _abort_all(self, jobs: Sequence[Job], deadline: float) -> None:
        left = [job for job in jobs if self._abort(job) is not None]
        looks = MORE_ABORTS if self.kill_window > 0 else 0
        while left and looks:
            if monotonic() + self.kill_window > deadline:
                self.log.warning(
                    "There is no time for another abort; a later teardown or a sweep aborts the uploads of"
                    " tasks that are being killed"
                )
                return
            self.log.info(
                "Aborting again in %g s, for uploads of tasks that are being killed", self.kill_window
            )
            sleep(self.kill_window)
            left = [job for job in left if self._abort(job)]
            looks -= 1
        if left and self.kill_window > 0:
            self.log.warning("%d jobs still have uploads; a later teardown or a sweep aborts them", len(left))

    def _abort(self, job: Job) -> bool | None:
        """Abort a job; return whether it had uploads or the abort failed, None if the job is committed."""
        job_id = job.reference.job_id
        try:
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
            return report.uploads > 0
        return True

    def _references(self, context: Context, until: float) -> Iterator[Mapping[str, str]]:
        given: Iterable[Any]
        if self.job is not None:
            given = [self.job] if isinstance(self.job, Mapping) else self.job
        else:
            given = _outputs(context, self._setups(context), until)
        return (reference for reference in given if isinstance(reference, Mapping) and "job_id" in reference)

    def _kept(self, context: Context, until: float) -> set[str]:
        """Return the jobs that teardowns have kept; none after a timeout, which runs no teardown."""
        dag: Any = context.get("dag")
        if dag is None or context.get("reason") == "timed_out":
            return set()
        teardowns = [task.task_id for task in dag.tasks if task.task_type == "S3CommitAbortOperator"]
        reports = _outputs(context, teardowns, until, key="abort_report")
        return {str(one["job_id"]) for one in reports if one.get("state") == KEPT}

    def _setups(self, context: Context) -> list[str]:
        if self.setup_task_ids is not None:
            return _task_ids(self.setup_task_ids)
        dag = context.get("dag")
        tasks = dag.tasks if dag is not None else []
        return [task.task_id for task in tasks if task.task_type == "S3CommitSetupOperator"]


def _outputs(
    context: Context, task_ids: Iterable[str], until: float, key: str = "return_value"
) -> Iterator[Any]:
    """Yield the XComs of these tasks' instances in this run, without a task instance.

    :raises TimeoutError: The time was over before the last of them was read. One request is not cut short.
    """
    from airflow.sdk.execution_time.xcom import XCom  # noqa: PLC0415 - only a running callback has XComs

    dag_id, run_id = _run(context)
    for task_id in task_ids:
        if monotonic() > until:
            raise TimeoutError
        yield from XCom.get_all(key=key, dag_id=dag_id, task_id=task_id, run_id=run_id) or []


def _run(context: Context) -> tuple[str, str]:
    dag_run, dag = context.get("dag_run"), context.get("dag")
    run_id = context.get("run_id") or getattr(dag_run, "run_id", None)
    dag_id = getattr(dag, "dag_id", None) or getattr(dag_run, "dag_id", None)
    return str(dag_id), str(run_id)
