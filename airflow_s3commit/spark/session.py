"""The settings of a Spark session: the job in its conf, the store's address, the size of Arrow batches."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from airflow_s3commit._causes import ending
from airflow_s3commit.exceptions import AccessDenied, InvalidOption, InvalidRecord
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobReference, ObjectOptions
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.spark.shipping import GUARD_CLASS, PROTOCOL_CLASS
from airflow_s3commit.store.credentials import StoreAddress, plain_endpoint
from airflow_s3commit.tables.options import parse_flag, parse_region

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from airflow_s3commit.store.s3.store import S3Store

JOB_ID = "spark.s3commit.job.id"
JOB_DESTINATION = "spark.s3commit.job.destination"
JOB_STAGING = "spark.s3commit.job.staging"
JOB_SHA256 = "spark.s3commit.job.sha256"
STAGE = "spark.s3commit.stage"
PENDING_JOB = "spark.s3commit.pending.job."
STAGE_ATTEMPT = "spark.s3commit.stage.attempt"
ENDPOINT_URL = "spark.s3commit.endpoint.url"
ENDPOINT_REGION = "spark.s3commit.endpoint.region"
PATH_STYLE = "spark.s3commit.path.style"

#: Spark's own key for the class that commits a write, and ours for the class that does so outside of jobs.
PROTOCOL = "spark.sql.sources.commitProtocolClass"
OTHER_PROTOCOL = "spark.s3commit.pending.otherwise"

#: Spark's own key of the extensions of a session, separated by commas.
EXTENSIONS = "spark.sql.extensions"

#: S3A's own key: S3A remembers pending uploads instead of recording each on the store. It is set for all
#: buckets, because S3A's committers, on other paths of the application, ignore it for a single bucket.
IN_MEMORY = "spark.hadoop.fs.s3a.committer.magic.track.commits.in.memory.enabled"

#: Who writes: this package's data source in Python, or Spark itself with the jar's commit protocol.
Writer: TypeAlias = Literal["python", "spark"]

#: Spark's own key.
SPECULATION = "spark.speculation"

#: The default stage and stage attempt of an application.
DEFAULT_STAGE = "spark"
DEFAULT_STAGE_ATTEMPT = "0"

#: Hadoop's names of server-side encryption, by S3's.
HADOOPS_ENCRYPTION = {"AES256": "AES256", "aws:kms": "SSE-KMS", "aws:kms:dsse": "DSSE-KMS"}

Read = TypeVar("Read")

#: Looks a key up in a Spark conf; None if it is not set.
ConfGet: TypeAlias = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class JobInConf:
    """The job that a Spark application writes for."""

    reference: JobReference
    stage: str = DEFAULT_STAGE
    stage_attempt: str = DEFAULT_STAGE_ATTEMPT


def committer_conf(
    reference: JobReference,
    stage: str,
    stage_attempt: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    path_style: bool | None = None,
    writer: Writer = "python",
    object_options: ObjectOptions | None = None,
) -> dict[str, str]:
    """Return the Spark conf with which an application writes for a job, without committing it.

    It has no credentials: executors take theirs from their own environment, profile or role.

    With the writer ``python`` the application writes with ``df.write.format("s3commit")``, and seals the
    stage; `airflow_s3commit.spark.py_files` ships the package to executors that lack it.

    With the writer ``spark`` the application is any Spark application, unchanged: what it writes to the
    destination or below stays pending, in every format that Spark has, and everything else is written as
    before. It needs `airflow_s3commit.spark.pending_jar` among its jars, and S3A. When the application has
    ended, seal the stage with `Job.seal_stage`, without tasks. The confs of several jobs may be merged. If
    the session needs other extensions, add them to the value of ``spark.sql.extensions``, after a comma.

    Args:
        reference: The job, as its setup returned it.
        stage: Name of this application's stage in the job.
        stage_attempt: Id of the stage attempt, new in each run: letters and digits.
        endpoint_url: The store's address, if it is not AWS.
        region: The store's region.
        path_style: Whether the bucket goes into the path of a request; None for boto3's choice.
        writer: Who writes: ``python`` for this package's data source, ``spark`` for Spark itself.
        object_options: Those of the job, for the writer ``spark``: S3A gets encryption, storage class and ACL
            for all that the application writes to the bucket. The writer ``python`` finds them by itself.

    Raises:
        InvalidOption: The writer is neither, or is ``spark`` and the job's staging is not below its
            destination, or S3A cannot apply the object options.
        StoreUnsuitable: The address contains a user name or password, or is not a store's URL.
    """
    if writer == "spark":
        conf = _conf_of_sparks_own(reference, stage, stage_attempt, object_options or ObjectOptions())
        s3a = _s3a(reference)
        of_address = (f"{s3a}endpoint", f"{s3a}endpoint.region", f"{s3a}path.style.access")
    elif writer == "python":
        conf = {
            JOB_ID: reference.job_id,
            JOB_DESTINATION: reference.destination,
            JOB_STAGING: reference.staging,
            JOB_SHA256: reference.sha256,
            STAGE: stage,
            STAGE_ATTEMPT: stage_attempt,
        }
        of_address = (ENDPOINT_URL, ENDPOINT_REGION, PATH_STYLE)
    else:
        raise InvalidOption(f"writer={writer!r} must be 'python' or 'spark'")
    endpoint = plain_endpoint(endpoint_url or None, "for the Spark conf")
    address = (endpoint, region, None if path_style is None else str(path_style).lower())
    found = {**conf, **dict(zip(of_address, address, strict=True))}
    return {key: value for key, value in found.items() if value}


def pending_conf() -> dict[str, str]:
    """Return the Spark conf of a session that begins jobs itself, by `commit_job` or ``write_pending``.

    It must be there when the session starts, with the jar of `pending_jar`. If the session needs other
    extensions, add them to the value of ``spark.sql.extensions``, after a comma. Writes that are for no job
    happen as before; ``spark.s3commit.pending.otherwise`` names another protocol for them.
    """
    return {PROTOCOL: PROTOCOL_CLASS, EXTENSIONS: GUARD_CLASS, IN_MEMORY: "true"}


def _s3a(reference: JobReference) -> str:
    """Return the prefix of the Spark conf's keys that configure S3A for a job's bucket."""
    return f"spark.hadoop.fs.s3a.bucket.{Destination.parse(reference.destination).bucket}."


def _conf_of_sparks_own(
    reference: JobReference, stage: str, stage_attempt: str, options: ObjectOptions
) -> dict[str, str | None]:
    layout = Layout.of(Destination.parse(reference.destination), reference.job_id)
    if layout.staging != Destination.parse(reference.staging):
        raise InvalidOption(
            f"job {reference.job_id} has its staging at {reference.staging}; Spark's own writers need it"
            f" below {reference.destination}: set up the job without staging, or use writer='python'"
        )
    layout.stage(stage, stage_attempt)
    has_key = options.sse_bucket_key is not None
    for name, value in {"tags": options.tags, "headers": options.headers, "sse_bucket_key": has_key}.items():
        if value:
            raise InvalidOption(
                f"object_options has {name}, which S3A cannot apply to files of Spark's own writers: leave"
                " it out and set it as the bucket's default, or use writer='python'"
            )
    job, s3a = f"{PENDING_JOB}{reference.job_id}.", _s3a(reference)
    return {
        **pending_conf(),
        f"{job}destination": layout.destination.uri,
        f"{job}stage": stage,
        f"{job}attempt": stage_attempt,
        f"{job}sha256": reference.sha256,
        f"{s3a}encryption.algorithm": HADOOPS_ENCRYPTION.get(options.sse or ""),
        f"{s3a}encryption.key": options.sse_kms_key_id,
        f"{s3a}create.storage.class": options.storage_class and options.storage_class.lower(),
        f"{s3a}acl.default": "".join(word.title() for word in (options.acl or "").split("-")),
    }


def getter_of(session: SparkSession) -> ConfGet:
    """Return a function that looks up one key of a session's conf, and returns None if it has no value."""
    return lambda key: session.conf.get(key, None)


def job_from_conf(get: ConfGet) -> JobInConf | None:
    """Return the job in a conf, which must have all of a job's keys; None if it has none of them."""
    found = {key: get(key) for key in (JOB_ID, JOB_DESTINATION, JOB_STAGING)}
    job_id, destination, staging = found.values()
    if not any(found.values()):
        return None
    if not (job_id and destination and staging):
        missing = ", ".join(key for key, value in found.items() if not value)
        raise InvalidRecord(
            f"the Spark conf names a job but not {missing}; set all keys that committer_conf returns"
        )
    return JobInConf(
        JobReference(job_id=job_id, destination=destination, staging=staging, sha256=get(JOB_SHA256) or ""),
        get(STAGE) or DEFAULT_STAGE,
        get(STAGE_ATTEMPT) or DEFAULT_STAGE_ATTEMPT,
    )


def store_from_conf(get: ConfGet) -> StoreAddress:
    """Return the store's address in a conf; raise ValueError or `StoreUnsuitable` if it cannot be one."""
    path_style = get(PATH_STYLE)
    return StoreAddress(
        endpoint_url=plain_endpoint(get(ENDPOINT_URL) or None, f"of {ENDPOINT_URL}"),
        region=_read(ENDPOINT_REGION, get(ENDPOINT_REGION) or "", parse_region) or None,
        path_style=_read(PATH_STYLE, path_style, parse_flag) if path_style else None,
    )


def tasks_have_twins(get: ConfGet) -> bool:
    """Return whether Spark may run two attempts at a task at the same time."""
    return _read(SPECULATION, get(SPECULATION) or "false", parse_flag)


def _read(name: str, value: str, parse: Callable[[str], Read]) -> Read:
    """Parse a value of the conf; an error names its key."""
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"{name}={value!r} is {error}") from None


# The key has the process id: Spark forks its Python workers, and a forked client shares its parent's sockets.
_STORES: dict[tuple[int, StoreAddress], S3Store] = {}


def store_of_process(settings: StoreAddress) -> S3Store:
    """Return this process's store at an address; connects once, with credentials from boto3's chain.

    Raises `AccessDenied` if the credentials are missing or incomplete.
    """
    key = (os.getpid(), settings)
    if key not in _STORES:
        # boto3 takes a third of a second to import, and a process that only plans a write does not need it.
        from airflow_s3commit.store.s3.config import S3Config  # noqa: PLC0415
        from airflow_s3commit.store.s3.store import S3Store  # noqa: PLC0415

        _STORES[key] = S3Store.connect(S3Config(**asdict(settings)))
    return _STORES[key]


@contextmanager
def renewing_store(settings: StoreAddress) -> Iterator[None]:
    """Drop this process's store if the block raises `AccessDenied`, so that the next call connects anew.

    A store keeps credentials from a file or the environment for ever. A Python worker whose credentials have
    expired ends with its task, and the next worker loads new ones; a driver lives on.
    """
    try:
        yield
    except AccessDenied:
        _STORES.pop((os.getpid(), settings), None)
        raise


#: The conf with which Spark limits a batch by its rows only. By default it counts bytes too (SPARK-51316),
#: for which it computes the size of every column before each row: half of the cost of passing 14 columns to
#: Python (`benchmarks/write.py`). Batches of 2,000 rows cost no more than Spark's own of 10,000, and take
#: less than 64 MiB if rows have less than 32 KiB on average.
BATCHES_BY_COUNT = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}


def batch_conf(given: Collection[str]) -> dict[str, str]:
    """Return settings by which only rows limit Arrow batches, for a Spark conf; empty if it sets a limit.

    Args:
        given: The conf, or its keys.
    """
    return {} if any(key in given for key in BATCHES_BY_COUNT) else dict(BATCHES_BY_COUNT)


def count_rows(session: SparkSession) -> bool:
    """Limit a session's Arrow batches by rows only, unless it sets limits; return whether it was changed."""
    conf = batch_conf([key for key in BATCHES_BY_COUNT if session.conf.get(key, None) is not None])
    for key, value in conf.items():
        session.conf.set(key, value)
    return bool(conf)


@contextmanager
def rows_counted(session: SparkSession, schema: StructType) -> Iterator[None]:
    """Limit a session's Arrow batches by rows only, within the ``with`` block.

    With binary columns, whose values are often large, the session's own limits stay. Another thread that
    writes in the same session takes the limits of this block for the session's own; if the block ends first,
    that write is only slower.
    """
    # A struct's field that is named binary matches too; the write is then only slower.
    has_binary = any(re.search(r"\bbinary\b", field.dataType.simpleString()) for field in schema.fields)
    changed = not has_binary and count_rows(session)

    def restore() -> None:
        for key in BATCHES_BY_COUNT if changed else ():
            session.conf.unset(key)

    with ending(restore, "restoring the session's limits on Arrow batches", "its batches have no byte limit"):
        yield
