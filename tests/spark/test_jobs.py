"""What jobs that a session begins by itself refuse before anything is written, and where they look for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_s3commit.exceptions import InvalidOption, JobMismatch, Refused
from airflow_s3commit.spark import MissingJar, commit_job, write_pending
from airflow_s3commit.spark.session import PROTOCOL, StoreAddress
from airflow_s3commit.spark.shipping import PROTOCOL_CLASS
from airflow_s3commit.spark.writer_settings import s3a_address
from tests.cases import each

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from airflow_s3commit.spark.options import SaveMode
    from tests.spark.conftest import Lake

pytestmark = [pytest.mark.spark, pytest.mark.seaweedfs]


def begin(spark: SparkSession, lake: Lake) -> None:
    """Begin a job for a block."""
    with commit_job(spark, lake.uri):
        raise AssertionError("the block began")


def write(spark: SparkSession, lake: Lake) -> None:
    """Write with a job of the write's own."""
    write_pending(spark.range(2), destination=lake.uri, engine="spark")


@pytest.mark.parametrize("way", [begin, write])
def test_a_session_that_would_publish_is_refused(
    way: Callable[[SparkSession, Lake], None], spark: SparkSession, lake: Lake
) -> None:
    """Without the conf no job is set up, and the error says what the session needs."""
    with pytest.raises(InvalidOption, match=r"with what airflow_s3commit\.spark\.pending_conf"):
        way(spark, lake)
    assert lake.everything() == []


def test_a_session_without_the_jar_is_refused() -> None:
    """What Python finds in place of a class that the JVM lacks is taken for a missing jar."""
    jobs = type("JavaPackage", (), {})()
    jvm = SimpleNamespace(s3commit=SimpleNamespace(spark=SimpleNamespace(Jobs=jobs)))
    conf = {PROTOCOL: PROTOCOL_CLASS}
    context = SimpleNamespace(_jvm=jvm, getLocalProperty={}.get)
    state = SimpleNamespace(activeStreamingQueries=dict)
    ours = SimpleNamespace(sharedState=lambda: state)
    session: Any = SimpleNamespace(conf=conf, sparkContext=context, _jsparkSession=ours)
    with (
        pytest.raises(MissingJar, match=r"airflow_s3commit\.spark\.pending_jar"),
        commit_job(session, "s3://lake/t/"),
    ):
        pass


@each(
    ("arguments", "said"),
    [
        ({"options": {"rowBytes": "1m"}}, "Spark's own writer has no option rowBytes"),
        ({"options": {"path": "s3://other/"}}, "pass path as the argument destination"),
        ({"mode": "upsert"}, "mode 'upsert' is not one of"),
        ({"stage": "load"}, "stage='load' names a stage of the argument job"),
    ],
)
def test_what_spark_s_own_writer_lacks_is_refused(
    arguments: dict[str, Any], said: str, spark: SparkSession, lake: Lake
) -> None:
    """An argument that would be ignored is named."""
    with pytest.raises(InvalidOption, match=said):
        write_pending(spark.range(2), destination=lake.uri, engine="spark", **arguments)
    assert lake.everything() == []


@pytest.mark.parametrize(
    ("mode", "conflict_mode", "error", "said"),
    [
        ("overwrite", "append", JobMismatch, "save mode overwrite contradicts conflict mode append"),
        ("error", "as-written", JobMismatch, "save mode errorifexists contradicts conflict mode as-written"),
        ("ignore", "fail", InvalidOption, "mode ignore is only for writes without a job"),
        ("error", "fail", InvalidOption, "so Spark would publish files at once"),
        ("overwrite", "as-written", InvalidOption, "so Spark would publish files at once"),
    ],
)
def test_a_mode_that_contradicts_its_job_is_refused(
    mode: SaveMode,
    conflict_mode: str,
    error: type[Refused],
    said: str,
    *,
    spark: SparkSession,
    job_conf: Any,
) -> None:
    """A job that adds is not overwritten for; a mode that means what the job does is not what is refused."""
    job_conf(conflict_mode)
    with pytest.raises(error, match=said):
        write_pending(spark.range(2), mode=mode, engine="spark")


S3A = {"endpoint.region": "eu-central-1", "path.style.access": "true"}


@each(
    ("settings", "expected"),
    [
        ({}, StoreAddress()),
        (S3A, StoreAddress(region="eu-central-1", path_style=True)),
        ({"endpoint": "https://s3.example.org"}, StoreAddress("https://s3.example.org")),
        ({"endpoint": "s3.example.org"}, StoreAddress("https://s3.example.org")),
        ({"endpoint": "h:9000", "connection.ssl.enabled": "false"}, StoreAddress("http://h:9000")),
        ({"endpoint": "https://a", "bucket.lake.endpoint": "https://b"}, StoreAddress("https://b")),
        ({"bucket.pond.endpoint": "https://b"}, StoreAddress()),
    ],
)
def test_python_finds_the_store_where_s3a_does(settings: dict[str, str], expected: StoreAddress) -> None:
    """Setup and commit go to the address that the files go to, by a bucket's own settings first."""
    conf = {f"fs.s3a.{name}": value for name, value in settings.items()}
    hadoop = SimpleNamespace(get=conf.get)
    state = SimpleNamespace(newHadoopConf=lambda: hadoop)
    session = SimpleNamespace(_jsparkSession=SimpleNamespace(sessionState=lambda: state))
    assert s3a_address(session, "lake") == expected
