"""Preview a commit: what it would take from the table now. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.sealed_job import bare_keys, load_seal
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.model.layout import partition_of
from airflow_s3commit.protocol.model.table import Table
from airflow_s3commit.protocol.steps.conflicts import Taken, decide
from airflow_s3commit.protocol.steps.files import files_in
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.protocol.steps.log import find_head
from airflow_s3commit.protocol.steps.setup import load_job, refusing_ended


class ReplacedFile(Struct, frozen=True, kw_only=True):
    """A file that a commit would take from the table.

    Attributes:
        key: Its key.
        size: Its bytes.
    """

    key: str
    size: int


class Preview(Plain, Struct, frozen=True, kw_only=True):
    """What the commit of a sealed job would take from the table now.

    Attributes:
        generation: Number of the newest entry of the log that was read. A commit that is given it is refused
            if a later one touched its partitions.
        partitions: The partitions that would lose files.
        objects: How many files would leave.
        bytes: Their total size.
    """

    generation: int
    partitions: list[str]
    objects: int
    bytes: int


def preview(context: JobContext) -> Preview:
    """Return what the commit of a sealed job would take now. Changes nothing.

    For the errors see `Job.preview`.
    """
    with naming(context, "preview of the commit"):
        table, taken = _decided(context)
        home = context.layout.destination
        touched = {*taken.pieces, *(partition_of(home.relative(one.key) or "") for one in taken.unowned)}
        return Preview(
            generation=table.head.number,
            partitions=sorted(touched),
            objects=taken.replaced.files,
            bytes=taken.replaced.bytes,
        )


def replaced_files(context: JobContext) -> Iterator[ReplacedFile]:
    """Yield the files that the commit of a sealed job would take now. Raises as `preview`."""
    table, taken = _decided(context)
    for file in files_in(context.store, context.layout.destination, table.sources, taken.pieces):
        yield ReplacedFile(key=file.key, size=file.size)
    for unowned in taken.unowned:
        yield ReplacedFile(key=unowned.key, size=unowned.size)


def _decided(context: JobContext) -> tuple[Table, Taken]:
    with refusing_ended(context):
        job, seal = load_job(context), load_seal(context)
        bare = bare_keys(context, seal)
    store, home, options = context.store, context.layout.destination, job.options.as_sealed(seal.removes)
    if options.only_adds:
        # It takes nothing, whatever the table has.
        table = Table()
        table.head = Position(find_head(store, home))
    else:
        table = read_table(store, home)
    return table, decide(context, options, seal.partitions.keys(), table, bare)
