"""The protocol's own records: versioned, frozen, and validated when they are saved and when they are read.

Unknown fields are ignored, so that a newer writer can be read. Every record that is written under a
condition carries a nonce of its writer: a condition that fails after a lost answer may have met the
writer's own object, and the nonce tells.
"""

from __future__ import annotations

from airflow_s3commit.protocol.records.codec import decode, decode_lines, encode, largest
from airflow_s3commit.protocol.records.job import (
    AbortedRecord,
    AbortReport,
    Committer,
    ConflictMode,
    JobOptions,
    JobRecord,
    JobReference,
    LockRecord,
    ReplaceOrder,
    SavedSuccess,
    State,
    StateRecord,
)
from airflow_s3commit.protocol.records.manifest import FileEntry, ManifestRecord
from airflow_s3commit.protocol.records.object_options import CannedAcl, Encryption, ObjectOptions
from airflow_s3commit.protocol.records.output import (
    CommittedTask,
    Counts,
    SealedStage,
    SealedTask,
    SealRecord,
    SealReference,
    ShardRecord,
    StageSealRecord,
)
from airflow_s3commit.protocol.records.plan import PlannedObject, PlanPart, PlanRecord, PlanReference

__all__ = [
    "AbortReport",
    "AbortedRecord",
    "CannedAcl",
    "CommittedTask",
    "Committer",
    "ConflictMode",
    "Counts",
    "Encryption",
    "FileEntry",
    "JobOptions",
    "JobRecord",
    "JobReference",
    "LockRecord",
    "ManifestRecord",
    "ObjectOptions",
    "PlanPart",
    "PlanRecord",
    "PlanReference",
    "PlannedObject",
    "ReplaceOrder",
    "SavedSuccess",
    "SealRecord",
    "SealReference",
    "SealedStage",
    "SealedTask",
    "ShardRecord",
    "StageSealRecord",
    "State",
    "StateRecord",
    "decode",
    "decode_lines",
    "encode",
    "largest",
]
