"""Zero-rename S3 commits that Airflow drives.

A Spark stage uploads its output as multipart uploads without completing them; one Airflow task completes them
all. This is the public face of the package: import from here, and from ``airflow_s3commit.spark``,
``operators``, ``sensors`` and the other packages and modules beside it; deeper modules may move. Names are
imported when they are first used, so importing the package imports nothing else.
"""

from __future__ import annotations

from airflow_s3commit._names import lazy

__version__ = "0.1.0.dev0"

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from airflow_s3commit.compaction import Compaction, compact
    from airflow_s3commit.exceptions import (
        AccessDenied,
        AlreadyCommitted,
        AuditFailed,
        DestinationChanged,
        DestinationNotEmpty,
        DidNotHappen,
        DuplicateOutput,
        ForeignRecord,
        HistoryRewound,
        InvalidDestination,
        InvalidOption,
        InvalidPath,
        InvalidRecord,
        JobClosed,
        JobFailed,
        JobMismatch,
        NoSuchBucket,
        NoSuchJob,
        NoSuchKey,
        NoSuchUpload,
        NotReversible,
        OutcomeUnknown,
        PreconditionFailed,
        Refused,
        S3CommitError,
        StoreRejected,
        StoreUnsuitable,
        TooLarge,
        Unavailable,
    )
    from airflow_s3commit.protocol.inspect.audit import AuditReport, AuditRules, audit
    from airflow_s3commit.protocol.inspect.verify_job import (
        FileDifferences,
        PendingReport,
        VerifyReport,
        verify_job,
    )
    from airflow_s3commit.protocol.inspect.verify_table import TableReport, verify
    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.metadata.pending_uploads import Progress
    from airflow_s3commit.protocol.metadata.registry import register_destination
    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.protocol.model.job import (
        AbortReport,
        JobOptions,
        JobReference,
        JobState,
        ObjectOptions,
    )
    from airflow_s3commit.protocol.model.manifest import FileEntry, Manifest
    from airflow_s3commit.protocol.model.sealed_job import CommittedTask, Counts, SealReference
    from airflow_s3commit.protocol.publication import RegistrationReport, register_partitions
    from airflow_s3commit.protocol.repair import RepairReport, repair
    from airflow_s3commit.protocol.steps.commit import Preview
    from airflow_s3commit.protocol.steps.fold import history, latest_manifest, manifest_files, read_manifest
    from airflow_s3commit.protocol.steps.output_file import OutputFile
    from airflow_s3commit.protocol.steps.task_attempt import TaskAttempt
    from airflow_s3commit.protocol.sweep import SweepReport, sweep
    from airflow_s3commit.protocol.table_rollback import RollbackReport, rollback
    from airflow_s3commit.protocol.write_job import JobWriter, write_job, write_table
    from airflow_s3commit.reader.table import dataset
    from airflow_s3commit.store.base import ObjectStore
    from airflow_s3commit.store.execute import RetryPolicy
    from airflow_s3commit.store.memory import MemoryStore
    from airflow_s3commit.store.s3.config import S3Config
    from airflow_s3commit.store.s3.glue import GlueTable
    from airflow_s3commit.store.s3.store import S3Store

__all__ = [
    "AbortReport",
    "AccessDenied",
    "AlreadyCommitted",
    "AuditFailed",
    "AuditReport",
    "AuditRules",
    "CommittedTask",
    "Compaction",
    "Counts",
    "Destination",
    "DestinationChanged",
    "DestinationNotEmpty",
    "DidNotHappen",
    "DuplicateOutput",
    "FileDifferences",
    "FileEntry",
    "ForeignRecord",
    "GlueTable",
    "HistoryRewound",
    "InvalidDestination",
    "InvalidOption",
    "InvalidPath",
    "InvalidRecord",
    "Job",
    "JobClosed",
    "JobFailed",
    "JobMismatch",
    "JobOptions",
    "JobReference",
    "JobState",
    "JobWriter",
    "Manifest",
    "MemoryStore",
    "NoSuchBucket",
    "NoSuchJob",
    "NoSuchKey",
    "NoSuchUpload",
    "NotReversible",
    "ObjectOptions",
    "ObjectStore",
    "OutcomeUnknown",
    "OutputFile",
    "PendingReport",
    "PreconditionFailed",
    "Preview",
    "Progress",
    "Refused",
    "RegistrationReport",
    "RepairReport",
    "RetryPolicy",
    "RollbackReport",
    "S3CommitError",
    "S3Config",
    "S3Store",
    "SealReference",
    "StoreRejected",
    "StoreUnsuitable",
    "SweepReport",
    "TableReport",
    "TaskAttempt",
    "TooLarge",
    "Unavailable",
    "VerifyReport",
    "__version__",
    "audit",
    "compact",
    "dataset",
    "history",
    "latest_manifest",
    "manifest_files",
    "read_manifest",
    "register_destination",
    "register_partitions",
    "repair",
    "rollback",
    "sweep",
    "verify",
    "verify_job",
    "write_job",
    "write_table",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__spec__)
