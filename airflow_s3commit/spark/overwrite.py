"""The refusals that keep a write from replacing more, or less, than it means to, and from mixing layouts.

Spark's default, ``static``, replaces the whole table; here the default replaces the partitions that get rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_s3commit.exceptions import InvalidOption, JobMismatch
from airflow_s3commit.protocol.model.destination import Destination, is_hidden
from airflow_s3commit.tables.partitions import escape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.model.seal import CommittedTask
    from airflow_s3commit.spark.options import WriteOptions
    from airflow_s3commit.spark.session import ConfGet
    from airflow_s3commit.store.base import ObjectStore

#: Spark's own key.
OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"

_CHOICES = (
    "set the write's option partitionOverwriteMode to dynamic to replace the partitions that get rows, or to"
    " static to replace the whole table"
)


def sets_static(get: ConfGet) -> bool:
    """Return whether a session sets ``spark.sql.sources.partitionOverwriteMode`` to ``static`` itself."""
    return (get(OVERWRITE_MODE) or "").lower() == "static"


def check_own_overwrite(
    store: ObjectStore, destination: str, options: WriteOptions, *, session_static: bool
) -> None:
    """Refuse an overwrite, by a job of its own, that would replace other data than its user expects.

    Args:
        store: The store.
        destination: URI of the destination.
        options: The options of the write.
        session_static: Whether the session sets ``static``.

    Raises:
        InvalidOption: The session sets ``static`` and the write does not choose, or the table has other
            partition columns than the write.

    """
    if options.own_conflict_mode != "replace" or options.replaces_table:
        return
    if session_static and options.table.partition_by and options.partition_overwrite is None:
        raise InvalidOption(
            f"overwrite of {destination}: the session sets {OVERWRITE_MODE}=static, but s3commit replaces"
            f" only the partitions that get rows; {_CHOICES}"
        )
    path = first_data_path(store, Destination.parse(destination))
    theirs = _partition_columns(path)
    if theirs is not None and theirs != [escape(name) for name in options.table.partition_by]:
        raise InvalidOption(
            f"overwrite of {destination}: the table is {_layout(theirs)}, but the write is"
            f" {_layout(options.table.partition_by)}, so old rows would stay beside the new ones (such as"
            f" {path}); partition the write as the table is, or replace the whole table with the option"
            " partitionOverwriteMode=static"
        )


def check_layout(store: ObjectStore, destination: str, options: WriteOptions) -> None:
    """Refuse a write without partition columns to a table that has some, beside which its rows would be.

    In SQL partition columns are easily lost: Spark does not pass ``PARTITIONED BY`` of a table on.

    Raises:
        InvalidOption: The table is partitioned, and the write is not.

    """
    if options.table.partition_by:
        return
    path = first_data_path(store, Destination.parse(destination))
    if theirs := _partition_columns(path):
        columns = ",".join(theirs)
        raise InvalidOption(
            f"the write to {destination} is not partitioned, but the table is {_layout(theirs)} (such as"
            f" {path}): set the write's option partitionBy to {columns}, in SQL INSERT INTO t WITH"
            f" (partitionBy = '{columns}'), or write to another path"
        )


def _partition_columns(path: str | None) -> list[str] | None:
    """Return the escaped partition columns in a data file's path; None if other directories are in it."""
    directories = path.split("/")[:-1] if path is not None else None
    if directories is None or not all("=" in directory for directory in directories):
        return None
    return [directory.partition("=")[0] for directory in directories]


def check_job_overwrite(job: Job, options: WriteOptions, *, session_static: bool) -> None:
    """Refuse a write for another's job whose overwrite mode contradicts what the job replaces.

    Raises:
        JobMismatch: They contradict each other.

    """
    of_job = job.record().options
    if of_job.conflict_mode != "replace":
        return
    scope = "static" if of_job.whole_destination else "dynamic"
    chosen = options.partition_overwrite
    source = f"partitionOverwriteMode={chosen}"
    if chosen is None and session_static and options.overwrites and options.table.partition_by:
        chosen, source = "static", f"{OVERWRITE_MODE}=static of the session"
    if chosen not in (None, scope):
        replaced = "the whole table" if of_job.whole_destination else "the partitions that get rows"
        raise JobMismatch(
            f"{source} contradicts job {job.reference.job_id} on {job.reference.destination}, which replaces"
            f' {replaced}; let the job decide: use .mode("append"), without partitionOverwriteMode'
        )


def check_rows(
    store: ObjectStore, destination: str, options: WriteOptions, tasks: Iterable[CommittedTask]
) -> None:
    """Refuse to commit an own overwrite without rows, unless its option says what it replaces.

    Raises:
        InvalidOption: There are no rows, and the table has data.

    """
    if options.own_conflict_mode != "replace" or options.replaces_table or options.partition_overwrite:
        return
    if any(task.rows != 0 for task in tasks):
        return
    if first_data_path(store, Destination.parse(destination)) is not None:
        effect = "replace nothing" if options.table.partition_by else "empty the table"
        raise InvalidOption(
            f"overwrite of {destination} has no rows and would {effect}; skip the write, or set its option"
            " partitionOverwriteMode to static to empty the table, or to dynamic to go on"
        )


def first_data_path(store: ObjectStore, destination: Destination) -> str | None:
    """Return the path of a table's first data file, relative to the table; None if it has none."""
    after: str | None = None
    while True:
        for info in store.list_objects(destination.bucket, destination.prefix, start_after=after):
            relative = info.key.removeprefix(destination.prefix)
            if not is_hidden(relative) and not relative.endswith("/"):
                return relative
            directory, slash, _ = relative.partition("/")
            # Hidden directories may have very many objects. The character after "/" is "0".
            beyond = f"{destination.prefix}{directory}0"
            if slash and is_hidden(directory) and (after is None or beyond > after):
                after = beyond
                break
        else:
            return None


def _layout(columns: Iterable[str]) -> str:
    named = ", ".join(columns)
    return f"partitioned by {named}" if named else "not partitioned"
