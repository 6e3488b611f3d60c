"""Publish a table to other engines, as it is and from then on: the command's and the program's way."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import InvalidOption, NoSuchKey
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.steps.fold import newest_entry, read_table
from airflow_s3commit.protocol.steps.log import read_entry
from airflow_s3commit.protocol.steps.publish import delta_columns, missing_versions, publish
from airflow_s3commit.protocol.write_job import write_job
from airflow_s3commit.store.base import ObjectStore


class PublishReport(Plain, Struct, frozen=True, kw_only=True):
    """What other engines see of a table.

    Attributes:
        destination: URI of the table.
        generation: Number of the newest entry of the log.
        version: Its version as a Delta table.
        written: How many versions were missing, and are written.
    """

    destination: str
    generation: int
    version: int
    written: int


def publish_table(
    store: ObjectStore,
    destination: str | Destination,
    *,
    clock: Clock | None = None,
    new_id: Callable[[], str] = new_uuid,
) -> PublishReport:
    """Publish a table as versions of a Delta table, from now on; or write the versions that are missing.

    The first version has all files of the table. It is that of a commit without files, so the table gets a
    new generation. Repeatable, also beside jobs at work.

    Args:
        destination: URI of the table, or a `Destination`.
        new_id: Source of nonces.

    Raises:
        NoSuchKey: There is no log: no job was set up there.
        InvalidOption: Delta cannot have the table's files, columns or names; or it has no columns yet.
        InvalidRecord: Another program wrote a version.
        OutcomeUnknown: A response was lost: publish it again.
    """
    home = Destination.of(destination)
    context = JobContext(store, Layout.of(home, new_uuid()), clock or SystemClock(), new_id)
    read = newest_entry(store, home)
    if read is None:
        raise NoSuchKey(
            f"{home.uri} has no log: no job was set up there. A job publishes it: publish='delta'"
        )
    newest, written = read.entry, 0
    if not newest.published:
        if not delta_columns(read_table(store, home)).fields:
            raise InvalidOption(
                f"{home.uri} has no columns yet: let its first job publish it, publish='delta'"
            )
        options = JobOptions(conflict_mode="append", publish="delta")
        with write_job(home, store=store, job_options=options, name="publish", clock=clock) as writer:
            pass
        assert writer.manifest is not None
        newest, written = read_entry(store, home, writer.manifest.generation).entry, 1
    assert newest.delta_version is not None
    for version in missing_versions(store, home, newest.delta_version):
        publish(context, read_entry(store, home, newest.published + version).entry)
        written += 1
    return PublishReport(
        destination=home.uri, generation=newest.number, version=newest.delta_version, written=written
    )
