"""A stage run by spark-submit: its configuration, its credentials, its retries."""

from __future__ import annotations

import os
from traceback import format_exception
from types import SimpleNamespace

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_s3commit import Job, JobOptions, JobReference, ObjectOptions
from airflow_s3commit.hooks import S3CommitHook, StoreAddress
from airflow_s3commit.operators import S3CommitSparkSubmitOperator
from airflow_s3commit.operators.base import FAILURE
from airflow_s3commit.operators.spark_submit import defaults_file, read_properties
from airflow_s3commit.protocol.model.sealed_job import Counts, SealReference
from airflow_s3commit.spark import py_files
from airflow_s3commit.spark.session import BATCHES_BY_COUNT
from airflow_s3commit.spark.shipping import PROTOCOL_CLASS
from tests.airflow.runs import TaskStateStore, new_context, pending, set_up, write_stage

SEALED = {"location": "s3://lake/x", "sha256": "e", "tasks": 1, "counts": Counts(files=3), "partitions": {}}
KEYS = {"AWS_ACCESS_KEY_ID": "key-id", "AWS_SECRET_ACCESS_KEY": "very-secret", "AWS_SESSION_TOKEN": None}


@pytest.fixture
def spark(store, monkeypatch) -> SimpleNamespace:
    """Return a Spark that writes and seals what its configuration asks for, and records its arguments."""
    seen = SimpleNamespace(
        conf=[], environment=[], fails_before_seal=False, fails_after_seal=False, writes=True
    )

    def submit(operator: SparkSubmitOperator, context: dict) -> None:
        conf = dict(operator.conf)
        seen.conf.append(conf)
        seen.environment.append({name: os.environ.get(name) for name in KEYS})
        if seen.writes:
            reference = {
                name: conf[f"spark.s3commit.job.{spelt}"]
                for name, spelt in (("job_id", "id"), ("destination", "destination"), ("staging", "staging"))
            }
            write_stage(
                store,
                reference,
                stage=conf["spark.s3commit.stage"],
                attempt=conf["spark.s3commit.stage.attempt"],
                seal=not seen.fails_before_seal,
            )
        if seen.fails_before_seal or seen.fails_after_seal:
            raise AirflowException("spark-submit ended with 1")

    monkeypatch.setattr(SparkSubmitOperator, "execute", submit)
    address = StoreAddress("http://127.0.0.1:8333", "us-east-1")
    monkeypatch.setattr(S3CommitHook, "address", property(lambda self: address))
    monkeypatch.setattr(S3CommitHook, "_explicit_keys", lambda self: KEYS)
    return seen


def stage_task(reference, **arguments) -> S3CommitSparkSubmitOperator:
    """Return a stage task of a job."""
    return S3CommitSparkSubmitOperator(
        task_id="refresh.spark_submit", job=reference, application="flights.py", **arguments
    )


def test_the_application_gets_its_job(store, spark, context) -> None:
    """Job, stage, stage attempt and the store's address are in the configuration, beside the user's own."""
    reference = set_up(store)
    stage_task(reference, conf={"spark.sql.shuffle.partitions": "4"}).execute(context)
    (conf,) = spark.conf
    assert conf["spark.s3commit.job.id"] == reference["job_id"]
    assert conf["spark.s3commit.stage"] == "refresh.spark_submit"
    assert conf["spark.s3commit.stage.attempt"] == "1"
    assert conf["spark.s3commit.endpoint.url"] == "http://127.0.0.1:8333"
    assert conf["spark.sql.shuffle.partitions"] == "4"


def test_rows_are_counted_unless_the_user_says_otherwise(store, spark, context) -> None:
    """The application's batches are limited in rows alone, unless the user's conf has a limit."""
    stage_task(set_up(store)).execute(context)
    stage_task(set_up(store), conf={"spark.sql.execution.arrow.maxBytesPerBatch": "16m"}).execute(context)
    counted, users = ({key: conf.get(key) for key in BATCHES_BY_COUNT} for conf in spark.conf)
    assert counted == BATCHES_BY_COUNT
    assert users == {**dict.fromkeys(BATCHES_BY_COUNT), "spark.sql.execution.arrow.maxBytesPerBatch": "16m"}


def test_the_package_is_shipped_on_request(store, spark, context, tmp_path, monkeypatch) -> None:
    """With ``ship_package`` the application gets the package's zip beside the user's own files, once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for own in ("own.py", f" own.py, {py_files()},"):
        task = stage_task(set_up(store), ship_package=True, py_files=own)
        task.execute(context)
        assert task.py_files == f"own.py,{py_files()}"
    assert stage_task(set_up(store), py_files="own.py").py_files == "own.py"


def test_an_unchanged_application_gets_the_protocol_and_its_jar(store, spark, context, monkeypatch) -> None:
    """With the writer ``spark`` the conf names job and protocol, and the jar is added."""
    monkeypatch.setattr("airflow_s3commit.spark.shipping.pending_jar", lambda: "/jars/pending.jar")
    sealed = []
    monkeypatch.setattr(
        Job, "seal_stage", lambda job, *stage: sealed.append(stage) or SealReference(**SEALED)
    )
    spark.writes = False
    users = {
        "spark.sql.sources.commitProtocolClass": "org.example.Own",
        "spark.sql.extensions": "org.example.Extension",
    }
    reference = set_up(store)
    task = stage_task(reference, writer="spark", jars="own.jar", conf=users)
    output = task.execute(context)
    (conf,) = spark.conf
    job = f"spark.s3commit.pending.job.{reference['job_id']}."
    assert conf[f"{job}destination"] == reference["destination"]
    assert conf["spark.sql.sources.commitProtocolClass"] == "s3commit.spark.PendingCommitProtocol"
    assert conf["spark.s3commit.pending.otherwise"] == "org.example.Own"
    assert conf["spark.sql.extensions"] == "org.example.Extension,s3commit.spark.CatalogGuard"
    assert not [key for key in conf if "arrow" in key or key.startswith("spark.s3commit.job.")]
    assert task.jars == "own.jar,/jars/pending.jar"
    assert sealed == [("refresh.spark_submit", "1")]
    assert output["files"] == 3


@pytest.mark.parametrize("named", [True, False], ids=["properties_file", "spark-defaults.conf"])
def test_additions_keep_those_of_spark_s_own_file(named: bool, store, spark, monkeypatch, tmp_path) -> None:
    """Extensions, protocol and jars of a file are kept beside ours, which would override them."""
    monkeypatch.setattr("airflow_s3commit.spark.shipping.pending_jar", lambda: "/jars/pending.jar")
    monkeypatch.setattr(Job, "seal_stage", lambda job, *stage: SealReference(**SEALED))
    spark.writes = False
    file = tmp_path / "spark-defaults.conf"
    file.write_text(
        "# spark.jars=no.jar\n"
        "spark.sql.extensions   org.example.Delta,\\\n    org.example.Other\n"
        "spark.sql.sources.commitProtocolClass: org.example.Own\n"
        "spark.jars=/a\\:b.jar\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "elsewhere" if named else tmp_path))
    more = {"properties_file": str(file)} if named else {}
    task = stage_task(set_up(store), writer="spark", **more)
    task.execute(new_context())
    (conf,) = spark.conf
    guard = "s3commit.spark.CatalogGuard"
    assert conf["spark.sql.extensions"] == f"org.example.Delta,org.example.Other,{guard}"
    assert conf["spark.s3commit.pending.otherwise"] == "org.example.Own"
    assert task.jars == "/a:b.jar,/jars/pending.jar"


def test_the_task_s_own_conf_overrides_spark_s_file(store, spark, context, monkeypatch, tmp_path) -> None:
    """As for spark-submit, of which the command line counts before any file."""
    monkeypatch.setattr("airflow_s3commit.spark.shipping.pending_jar", lambda: "/jars/pending.jar")
    monkeypatch.setattr(Job, "seal_stage", lambda job, *stage: SealReference(**SEALED))
    spark.writes = False
    (tmp_path / "own.conf").write_text("spark.sql.extensions org.example.Delta\n")
    protocol = {"spark.sql.sources.commitProtocolClass": PROTOCOL_CLASS}
    own = {"conf": {"spark.sql.extensions": "org.example.Own", **protocol}}
    file = {"properties_file": str(tmp_path / "own.conf")}
    stage_task(set_up(store), writer="spark", **own, **file).execute(context)
    (conf,) = spark.conf
    assert conf["spark.sql.extensions"] == "org.example.Own,s3commit.spark.CatalogGuard"
    assert "spark.s3commit.pending.otherwise" not in conf


@pytest.mark.parametrize("by_home", [True, False])
def test_limits_in_sparks_own_file_are_kept(store, spark, monkeypatch, tmp_path, by_home) -> None:
    """An application whose defaults limit its batches gets no other limit, and keeps its Python files."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "spark.sql.execution.arrow.maxBytesPerBatch 16m\nspark.submit.pyFiles own.py\n"
    )
    program = tmp_path / "bin" / "spark3-submit"
    program.parent.mkdir()
    program.touch(mode=0o755)
    for name in ("SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    variables = {"SPARK_HOME": str(tmp_path)} if by_home else {"PATH": str(program.parent)}
    own = {"env_vars": variables, "spark_binary": "spark-submit" if by_home else program.name}
    task = stage_task(set_up(store), ship_package=True, **own)
    task.execute(new_context())
    assert not BATCHES_BY_COUNT.keys() & spark.conf[0].keys()
    assert task.py_files == f"own.py,{py_files()}"


def test_the_defaults_are_where_the_program_looks_for_them(tmp_path) -> None:
    """They are beside the program, or beside the PySpark of the environment that has the program."""
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.touch(mode=0o755)
    environment = {"PATH": str(program.parent)}
    assert defaults_file(environment, None) == tmp_path / "conf" / "spark-defaults.conf"
    home = tmp_path / "lib" / "python3.11" / "site-packages" / "pyspark"
    home.mkdir(parents=True)
    assert defaults_file(environment, None) == home / "conf" / "spark-defaults.conf"
    assert defaults_file(environment, "spark3-submit") is None
    linked = tmp_path / "usr" / "spark3-submit"
    linked.parent.mkdir()
    linked.symlink_to(program)
    assert defaults_file({"PATH": str(linked.parent)}, linked.name) == home / "conf" / "spark-defaults.conf"


def test_properties_end_where_their_text_does(tmp_path) -> None:
    """White space around a value is none of it, and of a file that is no text there is nothing to keep."""
    file = tmp_path / "spark-defaults.conf"
    file.write_text("  spark.jars  a.jar \t\n")
    assert read_properties(file) == {"spark.jars": "a.jar"}
    file.write_bytes(b"spark.jars a.jar\n\xff")
    assert read_properties(file) == read_properties(tmp_path / "none") == {}


def test_object_options_that_s3a_cannot_apply_stop_the_submission(store, spark, context) -> None:
    """The task fails with the option's name before anything is submitted."""
    job = Job.setup(store, "s3://lake/t/", options=JobOptions(object_options=ObjectOptions(tags={"a": "b"})))
    task = stage_task(job.reference.to_dict(), writer="spark")
    with pytest.raises(AirflowFailException, match="object_options has tags, which S3A cannot apply"):
        task.execute(context)
    assert spark.conf == []


def test_the_xcom_locates_the_seal(store, spark, context) -> None:
    """The output is small: location, ETag and counts, without the uploads."""
    output = stage_task(set_up(store)).execute(context)
    assert (output["stage"], output["stage_attempt"]) == ("refresh.spark_submit", "1")
    assert output["location"].endswith("/sealed.json")
    assert (output["files"], output["rows"]) == (1, 1)


def test_keys_are_in_the_environment_only_while_it_runs(store, spark, context, monkeypatch) -> None:
    """The connection's keys are in the child's environment, in no argument, and gone afterwards."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the worker's own")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of other keys")
    task = stage_task(set_up(store))
    task.execute(context)
    assert spark.environment == [KEYS]
    assert "AWS_ACCESS_KEY_ID" not in os.environ
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "the worker's own"
    assert os.environ["AWS_SESSION_TOKEN"] == "of other keys"
    rendered = {name: getattr(task, name) for name in task.template_fields}
    assert "very-secret" not in str(rendered)
    assert "key-id" not in str(rendered)


def test_keys_leave_the_environment_when_it_fails(store, spark, context, monkeypatch) -> None:
    """A failing application leaves no keys behind either."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    spark.fails_before_seal = True
    with pytest.raises(AirflowException, match=r"^spark-submit ended with 1$"):
        stage_task(set_up(store)).execute(context)
    assert "AWS_ACCESS_KEY_ID" not in os.environ


@pytest.mark.parametrize("has_state_store", [True, False])
def test_a_retry_keeps_what_was_sealed(store, spark, has_state_store) -> None:
    """A try that failed after its seal is not computed again, in an Airflow without task states too."""
    reference, remembered = set_up(store), TaskStateStore()
    spark.fails_after_seal = True
    with pytest.raises(AirflowException):
        stage_task(reference).execute(new_context(1, remembered))
    context = new_context(3, remembered)
    if not has_state_store:
        del context["task_state_store"]
    output = stage_task(reference).execute(context)
    assert len(spark.conf) == 1
    assert output["stage_attempt"] == "1"


@pytest.mark.parametrize("has_state_store", [True, False])
def test_a_retry_aborts_what_was_not_sealed(store, spark, has_state_store) -> None:
    """A try that failed before its seal leaves nothing pending, and the retry is a new stage attempt."""
    reference, remembered = set_up(store), TaskStateStore()
    spark.fails_before_seal = True
    with pytest.raises(AirflowException):
        stage_task(reference).execute(new_context(1, remembered))
    assert len(pending(store)) == 1
    spark.fails_before_seal = False
    context = new_context(2, remembered)
    if not has_state_store:
        del context["task_state_store"]
    output = stage_task(reference).execute(context)
    assert output["stage_attempt"] == "2"
    assert len(pending(store)) == 1  # the second attempt's own


@pytest.mark.parametrize("known", [True, False])
def test_a_new_job_computes_again(store, spark, known) -> None:
    """After a clear the job is another one, and neither a seal nor a driver for the former is taken."""
    remembered = TaskStateStore()
    stage_task(set_up(store)).execute(new_context(1, remembered))
    if not known:
        remembered.clear()
    remembered.update({"spark_job_id": "driver-1", "k8s_driver_status": "Succeeded"})
    reference = set_up(store)
    output = stage_task(reference).execute(new_context(2, remembered))
    assert len(spark.conf) == 2
    assert output["stage_attempt"] == "2"
    begun = {"job_id": reference["job_id"], "stage_attempt": "2"}
    assert remembered == {"s3commit.stage_attempt": begun}


def test_of_several_sealed_tries_the_last_one_counts(store, spark) -> None:
    """The highest number is taken, of this stage alone, whatever ids another program gave its attempts."""
    reference = set_up(store)
    for stage, attempt in (
        ("refresh.spark_submit", "9"),
        ("refresh.spark_submit", "10"),
        ("refresh.spark_submit", "manual"),
        ("other", "11"),
    ):
        write_stage(store, reference, stage=stage, attempt=attempt)
    output = stage_task(reference).execute(new_context(12))
    assert (output["stage"], output["stage_attempt"]) == ("refresh.spark_submit", "10")
    assert output["location"].endswith("/refresh.spark_submit-10/sealed.json")
    assert spark.conf == []


def test_a_reconnect_keeps_the_attempt_its_driver_has(store, spark, monkeypatch) -> None:
    """A driver that a dead worker left running seals under its original attempt."""
    reference, remembered = set_up(store), TaskStateStore()
    remembered.set("s3commit.stage_attempt", {"job_id": reference["job_id"], "stage_attempt": "1"})
    remembered.set("spark_job_id", "driver-1")

    def reconnected(operator: SparkSubmitOperator, context: dict) -> None:
        assert "spark.s3commit.job.id" not in (operator.conf or {})
        write_stage(store, reference, stage="refresh.spark_submit", attempt="1")

    monkeypatch.setattr(SparkSubmitOperator, "execute", reconnected)
    output = stage_task(reference).execute(new_context(2, remembered))
    assert output["stage_attempt"] == "1"


def test_a_task_that_does_not_reconnect_has_an_attempt_of_its_own(store, spark) -> None:
    """With ``durable=False`` a driver that Airflow still knows does not count."""
    reference, remembered = set_up(store), TaskStateStore()
    begun = {"job_id": reference["job_id"], "stage_attempt": "1"}
    remembered.update({"s3commit.stage_attempt": begun, "spark_job_id": "driver-1"})
    output = stage_task(reference, durable=False).execute(new_context(2, remembered))
    assert output["stage_attempt"] == "2"


def test_a_resubmission_is_a_new_attempt(store, spark, monkeypatch) -> None:
    """If the driver to reconnect to is gone, of whichever try, its uploads are aborted and counted anew."""
    reference, remembered = set_up(store), TaskStateStore()
    write_stage(store, reference, stage="refresh.spark_submit", attempt="1", seal=False)
    remembered.set("s3commit.stage_attempt", {"job_id": reference["job_id"], "stage_attempt": "1"})
    remembered.set("spark_job_id", "driver-1")
    hooks = []

    def resubmit(operator: S3CommitSparkSubmitOperator, context: dict) -> None:
        operator.submit_job(context)

    def submit_job(operator: S3CommitSparkSubmitOperator, context: dict) -> str:
        hooks.append(operator._hook._conf["spark.s3commit.stage.attempt"])
        attempt = operator.conf["spark.s3commit.stage.attempt"]
        write_stage(store, reference, stage="refresh.spark_submit", attempt=attempt)
        return "driver-2"

    monkeypatch.setattr(SparkSubmitOperator, "execute", resubmit)
    monkeypatch.setattr(SparkSubmitOperator, "submit_job", submit_job)
    monkeypatch.setattr(
        SparkSubmitOperator, "_get_hook", lambda self: SimpleNamespace(_conf=dict(self.conf or {}))
    )
    output = stage_task(reference).execute(new_context(4, remembered))
    assert (output["stage_attempt"], hooks) == ("4", ["4"])
    assert len(pending(store)) == 1


@pytest.mark.parametrize("lacks", [(), ("_K8S_DRIVER_STATUS_KEY",)], ids=["newest provider", "before 6.2"])
def test_an_application_that_sealed_nothing_is_submitted_again(store, spark, monkeypatch, lacks) -> None:
    """Its success without output is an error, and a retry does not take its driver for one with output."""
    for name in lacks:
        monkeypatch.delattr(SparkSubmitOperator, name)
    reference, remembered = set_up(store), TaskStateStore()
    begun = {"job_id": reference["job_id"], "stage_attempt": "1"}
    remembered.update({"s3commit.stage_attempt": begun, "spark_job_id": "driver-1"})
    if not lacks:
        remembered["k8s_driver_status"] = "Succeeded"
    spark.writes = False
    with pytest.raises(AirflowException, match="sealed no output"):
        stage_task(reference, conf={}).execute(new_context(2, remembered))
    assert remembered == {"s3commit.stage_attempt": begun}
    before_3_3 = new_context(1)
    del before_3_3["task_state_store"]
    with pytest.raises(AirflowException, match="sealed no output"):
        stage_task(set_up(store)).execute(before_3_3)
    spark.writes = True
    assert stage_task(reference).execute(new_context(3, remembered))["stage_attempt"] == "3"


def test_mapped_instances_are_stages_of_their_own(store, spark) -> None:
    """The map index is part of the stage's name, unless the task names its stage itself."""
    output = stage_task(set_up(store)).execute(new_context(map_index=3))
    assert output["stage"] == "refresh.spark_submit.3"
    output = stage_task(set_up(store), stage="load-3").execute(new_context(map_index=3))
    assert output["stage"] == "load-3"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"application_args": ["--day", None]}, r"application_args\[1\] has no value"),
        ({"application_args": "--day"}, "application_args: it is no list"),
        ({"stage": 20130101}, "stage has 20130101 where text is meant"),
        ({"name": 20130101}, "name has 20130101 where text is meant"),
    ],
)
def test_an_argument_that_rendered_wrong_is_final(store, spark, context, arguments, said) -> None:
    """The task fails without retries before Spark starts, and shows no argument that may be a secret."""
    task = stage_task(set_up(store), **dict.fromkeys(arguments, "{{ params.it }}"))
    for name, value in arguments.items():
        setattr(task, name, value)
    with pytest.raises(AirflowFailException, match=said):
        task.execute(context)
    assert spark.conf == []


def test_the_log_ends_with_what_is_pending(store, spark, context, capsys) -> None:
    """The stage's last line has its files, rows, bytes and partitions."""
    stage_task(set_up(store)).execute(context)
    assert (
        "Stage refresh.spark_submit is sealed, its output pending: 1 files, 1 rows, 4 bytes in 1 partitions"
        in capsys.readouterr().out.splitlines()[-1]
    )


def test_the_error_of_an_application_has_no_argument_of_it(store, context, monkeypatch) -> None:
    """Error, traceback and note have the exit code alone: arguments and the log may have secrets."""
    monkeypatch.setattr(S3CommitHook, "address", property(lambda self: StoreAddress(None, None)))
    monkeypatch.setattr(S3CommitHook, "_explicit_keys", lambda self: {})

    def submit(operator: SparkSubmitOperator, context: dict) -> None:
        raise AirflowException("Cannot execute: spark-submit flights.py --key secret. Error code is: 1.")

    monkeypatch.setattr(SparkSubmitOperator, "execute", submit)
    with pytest.raises(AirflowException) as failed:
        stage_task(reference := set_up(store)).execute(context)
    assert str(failed.value) == "the Spark application failed, and its log is above. Error code is: 1"
    assert "--key secret" not in "".join(format_exception(failed.value))
    assert context["ti"].pushed[FAILURE] == {
        "why": str(failed.value),
        "by_store": False,
        "job_id": reference["job_id"],
        "instance": "refresh.task_-1",
    }


def test_the_application_is_named_for_its_task(context) -> None:
    """The name is that of DAG and task, unless the task has another."""
    task = stage_task({})
    context["ti"].task_id = task.task_id
    assert task.render_template(task.name, context) == "nightly.refresh.spark_submit"
    assert stage_task({}, name="own").name == "own"


def test_the_stage_leaves_its_job_open(store, spark, context) -> None:
    """It remains open for other stages."""
    reference = set_up(store)
    stage_task(reference).execute(context)
    assert Job.at(store, JobReference.from_dict(reference)).state().state == "open"


def test_a_killed_task_submits_nothing_more(store, context, spark, monkeypatch) -> None:
    """Airflow lets execute continue after on_kill; an application submitted then would outlive the task."""
    killed = []
    monkeypatch.setattr(SparkSubmitOperator, "on_kill", lambda self: killed.append(self.task_id))
    task = stage_task(reference := set_up(store))
    task.on_kill()
    with pytest.raises(AirflowException, match="was killed"):
        task.execute(context)
    assert (killed, spark.conf) == (["refresh.spark_submit"], [])
    assert Job.at(store, JobReference.from_dict(reference)).state().state == "open"


@pytest.mark.parametrize("fails", [False, True])
def test_a_task_that_is_killed_while_its_application_runs_seals_nothing(
    store, context, spark, monkeypatch, fails
) -> None:
    """However the application ends then, the task fails as killed, and what it wrote does not count."""
    monkeypatch.setattr("airflow_s3commit.spark.shipping.pending_jar", lambda: "/jars/pending.jar")
    monkeypatch.setattr(SparkSubmitOperator, "on_kill", lambda self: None)

    def ends(operator: S3CommitSparkSubmitOperator, context: dict) -> None:
        operator.on_kill()
        if fails:
            raise AirflowException("Cannot execute: spark-submit flights.py. Error code is: 143.")

    monkeypatch.setattr(SparkSubmitOperator, "execute", ends)
    with pytest.raises(AirflowException, match="was killed"):
        stage_task(reference := set_up(store), writer="spark").execute(context)
    assert not [*Job.at(store, JobReference.from_dict(reference)).sealed_stages()]
