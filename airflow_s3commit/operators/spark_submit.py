"""The operator that runs a stage of a job with ``spark-submit``."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_s3commit.airflow_version import AirflowException, AirflowFailException
from airflow_s3commit.links import PendingsetsLink
from airflow_s3commit.operators.base import CommitStepOperator, failures_are_noted, totals
from airflow_s3commit.protocol.model.layout import check_id
from airflow_s3commit.templates import mapping, one_of

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue

    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.model.job import JobReference
    from airflow_s3commit.protocol.model.sealed_job import SealReference
    from airflow_s3commit.spark.session import Writer

#: The longest name of a stage, in characters.
_LONGEST_STAGE = 128

#: The key, in the task's ``task_state_store``, of the stage attempt with which a driver was started.
_BEGUN = "s3commit.stage_attempt"


class S3CommitSparkSubmitOperator(CommitStepOperator, SparkSubmitOperator):
    """Runs a Spark application that writes a stage of a job, and returns the location of the stage's seal.

    With ``writer="python"`` the application writes with ``df.write.format("s3commit")``. With
    ``writer="spark"`` it is any application, unchanged, in Python, Scala, Java or SQL: what it writes to the
    job's destination stays pending until the job's commit, and its save modes decide what the commit replaces
    if the job's conflict mode is ``as-written``. The cluster needs ``hadoop-aws``.

    The operator adds the job, stage and stage attempt to the application's configuration. If it adds to a
    list, such as ``jars`` or ``spark.sql.extensions``, it keeps the entries of ``conf``, ``properties_file``
    or this machine's ``spark-defaults.conf``.

    A retry uses the stage attempt of an earlier try if one is sealed; if none is, it aborts that of the last
    try. If a dead worker left a driver running on a cluster, a retry reconnects to it (from Airflow 3.3
    on), and seals the stage attempt with which the driver was started, unless the driver does that.

    It supports client and cluster mode on local and standalone masters, YARN and Kubernetes. To watch and
    kill drivers on a standalone cluster, the master's REST server must run. That server accepts no Python
    application as a driver: use ``java_class="org.apache.spark.deploy.SparkSubmit"`` with the application
    among the arguments. On YARN in cluster mode, set ``yarn_track_via_rm_api=True``, or ``durable=False`` for
    retries that do not reconnect.

    Unless ``conf`` or one of those files limits the size of an Arrow batch, batches have 2,000 rows and no
    limit in bytes, which takes less processor time. If rows have more than about 32 KiB on average, set
    ``spark.sql.execution.arrow.maxBytesPerBatch``.

    Application arguments and ``conf`` values may have any plain type: booleans become lower case text; None
    in ``conf`` is left out. A template expression that is None in a run fails the task before Spark starts.

    The configuration never contains credentials. If the ``aws`` connection has keys, they are in the
    environment of ``spark-submit`` while it runs, for ``local`` masters and for the driver in client mode.
    Executors, and drivers elsewhere, use the identity of their own machines.

    :param stage: Name in the job, of letters, digits, ``.``, ``_`` and ``-``; by default the task's id,
        with the map index in a mapped task. Mapped instances need different names. (templated)
    :param ship_package: Ship this package with the application (``--py-files``), for clusters that lack it.
        The cluster must have boto3, msgspec and pyarrow, and the application must call
        ``airflow_s3commit.spark.register(spark)`` before it writes.
    :param name: The application's name; by default the ids of DAG and task. (templated)
    :param writer: Who writes: ``python`` for this package's data source, ``spark`` for Spark's own writers.
    :param kwargs: Other arguments of ``SparkSubmitOperator``.
    """

    template_fields = (*SparkSubmitOperator.template_fields, *CommitStepOperator.template_fields, "stage")
    operator_extra_links = (PendingsetsLink(),)

    def __init__(
        self,
        *,
        stage: str | None = None,
        ship_package: bool = False,
        writer: Writer = "python",
        name: str = "{{ ti.dag_id }}.{{ ti.task_id }}",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.stage = stage
        self.ship_package = ship_package
        self.writer = writer
        self.seal_uri: str | None = None
        self._stage_attempt: str | None = None
        self._killed = False
        self.check(
            stage=lambda name: check_id(name, "stage"),
            writer=one_of("python", "spark"),
            application_args=_arguments,
            conf=mapping,
        )

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit the application, unless an earlier try has sealed the stage; return the seal's location."""
        with failures_are_noted(context, self.job):
            job = self.opened_job()
            self.require_text("stage", "name")
            stage = self._stage_name(context)
            self._convert_to_text()
            earlier = self._sealed_before(context, job, stage)
            seal = job.stage_seal(stage, earlier) if earlier else None
            if earlier and seal:
                self.log.info("Using attempt %s of stage %s, which an earlier try sealed", earlier, stage)
                return self._summary(job, stage, earlier, seal)
            self._stage_attempt = self._attempt_of_driver(context, job.reference)
            if self._stage_attempt is None:
                self._begin_attempt(context, job, stage)
            self._stop_if_killed()
            self._run_application(context)
            self._stop_if_killed()
            return self._sealed_output(context, job, stage)

    def _run_application(self, context: Context) -> None:
        try:
            with self.hook.credentials_in_environment():
                super().execute(context)
        except AirflowException as error:
            self._stop_if_killed()
            code = re.search(r"Error code is: \w+", str(error))
            if code is None:
                raise
            # The parent's error repeats the arguments, and up to 500 lines of the log.
            failed = f"the Spark application failed, and its log is above. {code[0]}"
            raise AirflowException(failed) from None

    def on_kill(self) -> None:
        """Kill the application, and submit no other; the job is left to a retry, or to the teardown."""
        # Airflow runs execute() up to five seconds after this; an application started then outlives the task.
        self._killed = True
        super().on_kill()

    def _stop_if_killed(self) -> None:
        if self._killed:
            raise AirflowException(f"Task {self.task_id} was killed; it does not use the stage's output.")

    def submit_job(self, context: Context) -> str | None:
        """Submit the application again if the parent found no driver to reconnect to."""
        job = self.opened_job()
        if self._attempt_of_driver(context, job.reference) is not None:
            # The parent made its hook for a driver that is gone. A new application needs a stage attempt of
            # its own, and its configuration is in the hook.
            self._begin_attempt(context, job, self._stage_name(context))
            self._hook = self._get_hook()
        return super().submit_job(context)

    def _begin_attempt(self, context: Context, job: Job, stage: str) -> None:
        from airflow_s3commit.spark import session, shipping  # noqa: PLC0415 - keeps DAG parsing light

        own = int(context["ti"].try_number)
        earlier = self._stage_attempt or (str(own - 1) if own > 1 else None)
        if earlier is not None and (uploads := job.abort_stage(stage, earlier)):
            self.log.info("Aborted %d uploads of attempt %s of stage %s", uploads, earlier, stage)
        self._stage_attempt = str(own)
        if (state_store := context.get("task_state_store")) is not None:
            begun = {"job_id": job.reference.job_id, "stage_attempt": self._stage_attempt}
            state_store.set(_BEGUN, cast("JsonValue", begun))
        # With the values in Spark's own files, which a value on the command line would hide.
        given = {**self._sparks_defaults(), **(self.conf or {})}
        if self.ship_package:
            shipped = self.py_files or given.get("spark.submit.pyFiles", "")
            self.py_files = _with(shipping.py_files(), shipped)
        committer = session.committer_conf(
            job.reference,
            stage,
            self._stage_attempt,
            writer=self.writer,
            object_options=job.record().options.object_options if self.writer == "spark" else None,
            **asdict(self.hook.address),
        )
        added = session.batch_conf(given) if self.writer == "python" else self._protocol(given)
        self.conf = {**(self.conf or {}), **committer, **added}

    def _sparks_defaults(self) -> dict[str, str]:
        """Return the properties that ``spark-submit`` reads from ``properties_file`` or its defaults file."""
        # Only to read its settings: the hook that submits is made later, from the final configuration.
        program = getattr(self._get_hook(), "spark_binary", None)
        file = self.properties_file or defaults_file({**os.environ, **(self.env_vars or {})}, program)
        found = read_properties(Path(file)) if file else {}
        if found:
            self.log.info("Spark takes %d properties from %s", len(found), file)
        return found

    def _protocol(self, given: Mapping[str, str]) -> dict[str, str]:
        """Add the commit protocol's jar; return conf that adds its extension and keeps the given values."""
        from airflow_s3commit.spark import session, shipping  # noqa: PLC0415 - keeps DAG parsing light

        self.jars = _with(shipping.pending_jar(), self.jars or given.get("spark.jars", ""))
        added = {session.EXTENSIONS: _with(shipping.GUARD_CLASS, given.get(session.EXTENSIONS, ""))}
        if given.get(session.PROTOCOL, shipping.PROTOCOL_CLASS) != shipping.PROTOCOL_CLASS:
            added[session.OTHER_PROTOCOL] = given[session.PROTOCOL]
        return added

    def _sealed_output(self, context: Context, job: Job, stage: str) -> dict[str, Any]:
        attempt = cast("str", self._stage_attempt)
        if self.writer == "spark":
            return self._summary(job, stage, attempt, job.seal_stage(stage, attempt))
        seal = job.stage_seal(stage, attempt)
        if seal is None:
            self._forget_driver(context)
            raise AirflowException(
                f"The Spark application of task {self.task_id} succeeded but sealed no output of stage "
                f"{stage} (attempt {attempt}) in job {job.reference.job_id}. Make it write with "
                f'df.write.format("s3commit") to {job.reference.destination}, without another job or stage '
                "in its options."
            )
        return self._summary(job, stage, attempt, seal)

    def _summary(self, job: Job, stage: str, attempt: str, seal: SealReference) -> dict[str, Any]:
        self.seal_uri = seal.location
        ids = {"job_id": job.reference.job_id, "stage": stage, "stage_attempt": attempt}
        self.log.info("Stage %s is sealed, its output pending: %s", stage, totals(seal))
        return {**ids, **seal.to_dict()}

    def _convert_to_text(self) -> None:
        """Convert arguments and ``conf`` to text: the parent passes them to ``spark-submit`` unchanged."""
        if self.application_args is not None:
            given = self.read("application_args", _arguments)
            if None in given:
                # The message shows no other argument, because a template may have put a secret into one.
                raise AirflowFailException(
                    f"Task {self.task_id}: application_args[{given.index(None)}] has no value"
                    " in this run. Leave it out, or give the run what its template names."
                )
            self.application_args = [_text(value) for value in given]
        if self.conf is not None:
            self.conf = {name: _text(value) for name, value in self.conf.items() if value is not None}

    def _stage_name(self, context: Context) -> str:
        index = getattr(context["ti"], "map_index", None)
        return self.stage or stage_name(self.task_id, -1 if index is None else index)

    def _sealed_before(self, context: Context, job: Job, stage: str) -> str | None:
        """Return the newest stage attempt that an earlier try has sealed, by the job's records, or None."""
        if int(context["ti"].try_number) == 1:
            return None
        tries = [int(each) for name, each in job.sealed_stages() if name == stage and each.isdecimal()]
        return str(max(tries)) if tries else None

    def _attempt_of_driver(self, context: Context, reference: JobReference) -> str | None:
        """Return the stage attempt of the driver that the parent would reconnect to; None without one."""
        state_store = context.get("task_state_store")
        if not getattr(self, "durable", False) or not (state_store and state_store.get(self.external_id_key)):
            return None
        begun = state_store.get(_BEGUN)
        if isinstance(begun, Mapping) and begun.get("job_id") == reference.job_id:
            return str(begun["stage_attempt"])
        # The run was cleared: a driver of the earlier job must not be taken for one of this job.
        self._forget_driver(context)
        return None

    def _forget_driver(self, context: Context) -> None:
        if (state_store := context.get("task_state_store")) is not None:
            # Providers before 6.2 lack one of these names, or both.
            for name in ("external_id_key", "_K8S_DRIVER_STATUS_KEY"):
                state_store.delete(getattr(self, name, name))


def stage_name(task_id: str, map_index: int = -1) -> str:
    """Return the default name of a task instance's stage, unique in its DAG."""
    # A dot keeps names apart: no task's id is another task's id followed by a dot and a number.
    name = task_id if map_index < 0 else f"{task_id}.{map_index}"
    known = re.sub("[^A-Za-z0-9_.-]", "", name).lstrip("_.-")[:_LONGEST_STAGE]
    if known == name:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{known[: _LONGEST_STAGE - 17]}-{digest}".lstrip("-")


def defaults_file(environment: Mapping[str, str], program: str | None) -> Path | None:
    """Return the defaults file of ``spark-submit``, or of ``program``; None if it is not known here."""
    name = "spark-defaults.conf"
    if directory := environment.get("SPARK_CONF_DIR"):
        return Path(directory) / name
    if home := environment.get("SPARK_HOME"):
        return Path(home) / "conf" / name
    found = shutil.which(program or "spark-submit", path=environment.get("PATH"))
    if found is None:
        return None
    home_of_program = Path(found).resolve().parents[1]
    # pip puts the program into the environment, and Spark's home among its packages.
    packaged = home_of_program.glob("lib/python*/site-packages/pyspark")
    return next(packaged, home_of_program) / "conf" / name


def read_properties(file: Path) -> dict[str, str]:
    """Return Spark's properties in a file of Java's format; none if it cannot be read."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    found = {}
    # Keys end at white space, ``=`` or ``:``.
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if pair := re.match(r"\s*(spark\.[^\s=:]+)\s*[=:]?\s*(.*)", line):
            found[pair[1]] = re.sub(r"\\(.)", r"\1", pair[2]).strip()
    return found


def _with(name: str, given: str) -> str:
    """Return a comma-separated list of names with one name moved or added to its end."""
    others = (each.strip() for each in given.split(","))
    return ",".join([*(each for each in others if each not in ("", name)), name])


def _arguments(given: Any) -> list[Any]:
    """Read an application's arguments; no message shows any, because one may be a secret."""
    lists = (one for one in given if isinstance(one, Iterable) and not isinstance(one, str))
    if isinstance(given, str) or any(True for _ in lists):
        raise ValueError("it is no list of texts, numbers or booleans; map the task over several with expand")
    return list(given)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
