"""The reference of the records on S3, from the structs that write and check them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from docstrings import attributes, prose
from tables import cell, code
from tables import table as as_table

from airflow_s3commit.protocol.model import (
    destination,
    job,
    manifest,
    pendingset,
    sealed_job,
    table,
)

#: Fields that have the same meaning in all records.
EVERYWHERE = {
    "attempt": "Id of the attempt: letters and digits, new in each run.",
    "bytes": "Total bytes of the files.",
    "columns": "Statistics of the columns, by name.",
    "context": "What the orchestrator knows of the job: DAG, run, partition.",
    "counts": "Files, bytes, rows and columns' statistics.",
    "created": "Time of creation, in milliseconds since the epoch by the writing machine's clock.",
    "destination": "URI of the destination.",
    "etag": "ETag of the object.",
    "files": "Number of files.",
    "job_id": "The job.",
    "location": "URI of the object.",
    "nonce": "Unique to each write, so that a writer recognises its own record.",
    "number": "Its number.",
    "objects": "Number of objects.",
    "options": "How the job commits.",
    "partitions": "The counts of each partition, by its directory.",
    "rows": "Number of rows, if the writer counted them.",
    "stage": "The stage's name.",
    "stage_attempt": "Id of the stage attempt.",
    "stages": "The stage attempts that count.",
    "staging": "URI of the job's staging.",
    "task": "The task's name within its stage.",
    "tasks": "The task attempts that count; in a sealed stage, their number.",
    "version": "Version of the record's format.",
}

#: Structs of the package's own records, in the order in which a job writes them.
OURS = (
    "JobRecord", "JobOptions", "ObjectOptions", "Position", "StageSealRecord", "SealedTask", "SealRecord",
    "SealedStage", "Counts", "Entry", "Commit", "UnownedObject", "FileEntry", "RegisteredDestination",
    "JobReference", "SealReference", "CommittedTask", "JobState", "Manifest", "AbortReport",
)  # fmt: skip

HADOOPS = ("PendingSet", "PendingUpload", "UploadEtag", "UploadExtra", "TaskExtra", "IOStatistics")


def _own() -> Iterator[type[msgspec.Struct]]:
    """Return the package's own structs, and the columns' statistics that several of them hold."""
    modules = (job, sealed_job, table, manifest, destination)
    structs = {name: kind for module in modules for name, kind in vars(module).items()}
    for name in OURS:
        yield structs[name]
    yield sealed_job.ColumnStatistics


def own_records() -> str:
    """Return every struct of the package's own records."""
    return _sections(_own())


def hadoop_records() -> str:
    """Return the structs in Hadoop's formats."""
    return _sections([*(getattr(pendingset, name) for name in HADOOPS), manifest.SuccessData])


def fields_table(struct: type[msgspec.Struct]) -> str:
    """Return the fields of a struct: name, type, default, meaning."""
    said = EVERYWHERE | attributes(struct)
    rows = (
        (code(field.name), code(_type(struct, field.name)), _default(field), cell(said.get(field.name, "")))
        for field in msgspec.structs.fields(struct)
    )
    return as_table(("field", "type", "default", "meaning"), rows)


def _sections(structs: Iterable[type[msgspec.Struct]]) -> str:
    return "\n".join(
        f"## {struct.__name__} {{#{struct.__name__.lower()}}}\n\n"
        f"{prose(struct).replace('``', '`').replace('<', '&lt;')}\n\n{fields_table(struct)}"
        for struct in structs
    )


def _type(struct: type, name: str) -> str:
    for base in struct.__mro__:
        written = inspect.get_annotations(base)
        if name in written:
            return str(written[name]).replace("_Text", "Text").replace("_Count", "Count")
    raise LookupError(f"{struct.__name__} has no field {name}")


def _default(field: Any) -> str:
    if field.default is not msgspec.NODEFAULT:
        return code(repr(field.default))
    if field.default_factory is not msgspec.NODEFAULT:
        return code(f"{field.default_factory.__name__}()")
    return "required"
