"""The Spark session: which job its conf names, how to reach the store, and how large its Arrow batches are.

Credentials never travel in the conf: executors take them from their own environment, profile or role.

Spark ends an Arrow batch by its rows, 10,000, and since 4.0 by its bytes too (SPARK-51316), 64 MiB. To know
the bytes it asks every column of a batch for its size before each row that it adds: with 14 columns that was
half of the cost of handing the rows over (`benchmarks/write.py`). A byte limit of 2^31 - 1 means no limit,
and Spark asks no more. What then bounds a batch is the number of its rows: 2,000 cost no more than 10,000,
and take less than Spark's 64 MiB as long as a row has less than 32 KiB on average.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeAlias

from airflow_s3commit._causes import ending
from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.model.job import JobReference
from airflow_s3commit.store.credentials import StoreAddress, plain_endpoint
from airflow_s3commit.tables.option_values import parse_flag

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from airflow_s3commit.store.base import ObjectStore

JOB_ID = "spark.s3commit.job.id"
JOB_DESTINATION = "spark.s3commit.job.destination"
JOB_STAGING = "spark.s3commit.job.staging"
STAGE = "spark.s3commit.stage"
STAGE_ATTEMPT = "spark.s3commit.stage.attempt"
ENDPOINT_URL = "spark.s3commit.endpoint.url"
ENDPOINT_REGION = "spark.s3commit.endpoint.region"
PATH_STYLE = "spark.s3commit.path.style"

#: Spark's own.
SPECULATION = "spark.speculation"

#: The stage of an application that was given none.
DEFAULT_STAGE = "spark"

#: The stage attempt of an application that was given none.
DEFAULT_STAGE_ATTEMPT = "0"


#: Looks one key up in a Spark conf; None where it is not set.
ConfGet: TypeAlias = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class JobInConf:
    """The job, stage and stage attempt that a Spark application writes for."""

    reference: JobReference
    stage: str
    stage_attempt: str


def committer_conf(
    reference: JobReference,
    stage: str,
    stage_attempt: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    path_style: bool | None = None,
) -> dict[str, str]:
    """Return the Spark conf that makes ``df.write.format("s3commit")`` write for a job and only seal.

    It says which job and where the store is, and holds no credentials: executors find theirs by themselves.
    What ships the package to executors that lack it is `airflow_s3commit.spark.py_files`.

    Args:
        reference: The job, as its set-up returned it.
        stage: Name of this application's part in the job.
        stage_attempt: Which attempt at it this run is: letters and digits, new in each run.
        endpoint_url: The store's address, if it is not AWS.
        region: Its region.
        path_style: Whether the bucket goes into the path of a request; None leaves it to boto3.

    Raises:
        StoreUnsuitable: The address holds a user name or password, or is no URL of a store.

    """
    conf = {
        JOB_ID: reference.job_id,
        JOB_DESTINATION: reference.destination,
        JOB_STAGING: reference.staging,
        STAGE: stage,
        STAGE_ATTEMPT: stage_attempt,
    }
    if endpoint_url:
        conf[ENDPOINT_URL] = plain_endpoint(endpoint_url, "for the Spark conf")
    if region:
        conf[ENDPOINT_REGION] = region
    if path_style is not None:
        conf[PATH_STYLE] = str(path_style).lower()
    return conf


def job_from_conf(get: ConfGet) -> JobInConf | None:
    """Return the job that a conf names, or None where it names none.

    Raises:
        InvalidRecord: It names a job in part.

    """
    found = {key: get(key) for key in (JOB_ID, JOB_DESTINATION, JOB_STAGING)}
    job_id, destination, staging = found.values()
    if not any(found.values()):
        return None
    if not (job_id and destination and staging):
        missing = ", ".join(key for key, value in found.items() if not value)
        raise InvalidRecord(f"the Spark conf names a job but not {missing}; set what committer_conf returns")
    return JobInConf(
        JobReference(job_id=job_id, destination=destination, staging=staging),
        get(STAGE) or DEFAULT_STAGE,
        get(STAGE_ATTEMPT) or DEFAULT_STAGE_ATTEMPT,
    )


def store_from_conf(get: ConfGet) -> StoreAddress:
    """Return the store settings of a conf."""
    path_style = get(PATH_STYLE)
    return StoreAddress(
        endpoint_url=get(ENDPOINT_URL) or None,
        region=get(ENDPOINT_REGION) or None,
        path_style=named_flag(PATH_STYLE, path_style) if path_style else None,
    )


def tasks_have_twins(get: ConfGet) -> bool:
    """Return whether Spark may run a second attempt at a slow task beside the first."""
    return named_flag(SPECULATION, get(SPECULATION) or "false")


def named_flag(name: str, value: str) -> bool:
    """Read ``true`` or ``false``.

    Raises:
        ValueError: It is neither.

    """
    try:
        return parse_flag(value)
    except ValueError as error:
        raise ValueError(f"{name}={value!r} is {error}") from None


# By process id too: Spark forks its Python workers, and a forked client shares sockets with its parent.
_STORES: dict[tuple[int, StoreAddress], ObjectStore] = {}


def store_of_process(settings: StoreAddress) -> ObjectStore:
    """Return this process's store for these settings, with credentials from the process's own chain."""
    key = (os.getpid(), settings)
    if key not in _STORES:
        # boto3 takes a third of a second to import, and the process that only plans a write needs none.
        from airflow_s3commit.store.s3.config import S3Config  # noqa: PLC0415
        from airflow_s3commit.store.s3.store import S3Store  # noqa: PLC0415

        _STORES[key] = S3Store.connect(S3Config(**asdict(settings)))
    return _STORES[key]


def forget_store(settings: StoreAddress) -> None:
    """Connect anew, and look for credentials anew, when these settings are asked for again.

    A store keeps the credentials it found; those of a file or the environment it would keep for ever. A
    Python worker that met expired ones ends with its task, and its successor looks by itself; a driver lives
    on.
    """
    _STORES.pop((os.getpid(), settings), None)


#: What has Spark count the rows of a batch, and no more.
BATCHES_BY_COUNT = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}

#: Types whose values are often large: pictures, documents.
_LARGE = frozenset({"binary", "variant"})


def batch_conf(given: Collection[str]) -> dict[str, str]:
    """Return settings to add to a Spark conf: none if it limits the size of Arrow batches itself.

    Args:
        given: The conf, or its keys.

    """
    return {} if any(key in given for key in BATCHES_BY_COUNT) else dict(BATCHES_BY_COUNT)


def count_rows(session: SparkSession) -> bool:
    """Limit a session's batches by rows only, unless it has its own limits; return whether it changed."""
    conf = batch_conf([key for key in BATCHES_BY_COUNT if session.conf.get(key, None) is not None])
    for key, value in conf.items():
        session.conf.set(key, value)
    return bool(conf)


@contextmanager
def rows_counted(session: SparkSession, schema: StructType) -> Iterator[None]:
    """Limit a session's batches by rows only, within the ``with`` block.

    Rows with columns of a type whose values are often large stay under the session's limit. A thread that
    writes in the same session meanwhile takes this for the session's own limits; if this ends first, the
    other goes on under Spark's, which cost it time and nothing else.
    """
    changed = not _has_large(schema) and count_rows(session)

    def restore() -> None:
        for key in BATCHES_BY_COUNT if changed else ():
            session.conf.unset(key)

    with ending(restore, "restoring the session's limits of batches", "its batches stay counted by rows"):
        yield


def _has_large(schema: StructType) -> bool:
    """Whether a column, or what is nested in it, is of a type whose values are often large.

    A field of a struct that only has such a name counts too, which costs time and nothing else.
    """
    words = {word for field in schema.fields for word in re.findall(r"\w+", field.dataType.simpleString())}
    return not _LARGE.isdisjoint(words)
