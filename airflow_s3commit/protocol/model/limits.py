"""Limits of the size of a record, and of its values.

Anyone who may write to the prefix may write a record. Its size is checked before it is read, its values when
it is decoded; beyond a limit it is an `InvalidRecord`. The limits keep a damaged or hostile record from
exhausting the memory or time of a process that reads it. They are no quota: each leaves room for the largest
jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

#: Characters of a name, id, ETag, key or URI. Keys end at 1,024 bytes, three times as many when they are
#: escaped in a URI; upload ids of some stores have more than a thousand characters.
_LINE = 8 * KIB

#: Characters of what was written for people: reasons, and the values of a job's context.
PROSE: Final = 64 * KIB

#: Counts and sizes fit into 64 bits with a sign: a million files of 5 TiB are 5.5 * 10^18 bytes.
_LONG = 2**63 - 1

#: The last millisecond before the year 9999: every time zone's calendar can show it.
MILLISECONDS: Final = 253_370_764_799_999

#: Maximum number of shards of a commit: each is a mapped task, of which Airflow allows 1,024 by default, and
#: each has a record to be listed.
MAX_SHARDS: Final = 4_096

#: A job's state changes some ten times, and once more for each process that finds its lock lapsed.
MAX_ATTEMPTS: Final = 2**31 - 1

#: Columns with statistics. Our own writers keep those of the first 32.
MAX_COLUMNS: Final = 4_096

#: Seconds of a lease in locks of older versions; a longer one would hold a dead job's lock for days.
_LEASE = 24 * 60 * 60

Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=_LINE)]
Line: TypeAlias = Annotated[str, Meta(max_length=_LINE)]
Prose: TypeAlias = Annotated[str, Meta(max_length=PROSE)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=_LONG)]
Integer: TypeAlias = Annotated[int, Meta(ge=-_LONG - 1, le=_LONG)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=MILLISECONDS)]
Attempt: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_ATTEMPTS)]
#: The schemas of a job's files, each as text: almost always one. With more, readers go by the files.
MAX_SCHEMAS: Final = 8
Schemas: TypeAlias = Annotated[list[Prose], Meta(max_length=MAX_SCHEMAS)]
Generation: TypeAlias = Annotated[int, Meta(ge=0, le=_LONG)]
Shard: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_SHARDS)]
Lease: TypeAlias = Annotated[float, Meta(gt=0, le=_LEASE)]

#: A line of a manifest's list of files: 5 KiB with statistics of 32 columns.
LINE_BYTES: Final = 16 * MIB

#: Bytes of each kind of record, by the name of its type.
#:
#: The figures go by what one of each takes as JSON: a file in a pendingset 1 KiB without statistics and
#: 5 KiB with those of 32 columns; a part of an upload 40 bytes, 200 with a checksum beside its ETag; a
#: partition 120 bytes, 1.1 KiB if its name is as long as a key can be; a partition's statistics of 32
#: columns 4 KiB, kept for at most 1,000 partitions.
LARGEST: Final[Mapping[str, int]] = {
    # Ids, options, and the orchestrator's context.
    "JobRecord": MIB,
    # Holds the _SUCCESS that was there, in base64.
    "StateRecord": 8 * MIB,
    # A hundred file names, counters, and the context once more; Hadoop's have some 10 KiB.
    "SuccessData": 4 * MIB,
    "LockRecord": 64 * KIB,
    "StoreRecord": 64 * KIB,
    "RegisteredDestination": 64 * KIB,
    # The context, the reason, and a thousand keys of lost files.
    "AbortedRecord": 8 * MIB,
    "ShardRecord": 64 * KIB,
    # 10,000 parts with checksums are 2 MiB.
    "PendingUpload": 16 * MIB,
    # A million files without statistics, or 200,000 with all of them.
    "PendingSet": GIB,
    # 100,000 partitions with the longest names are 110 MiB; a million tasks 280 MiB.
    "StageSealRecord": 512 * MIB,
    # The tasks of one write, without partitions.
    "DriverSealRecord": 512 * MIB,
    # A stage's seal without the tasks.
    "SealRecord": 128 * MIB,
    "ManifestRecord": 128 * MIB,
    # A manifest and a little more.
    "LogEntry": 129 * MIB,
    # A part of 10,000 objects takes 180 bytes here: room for nine hundred million objects.
    "PlanRecord": 16 * MIB,
    # Lines of lists.
    "LiveCommit": 128 * MIB,
    "RetainedCommit": 128 * MIB,
    "CheckpointHead": 128 * MIB,
    "FileEntry": LINE_BYTES,
    "PlannedObject": 16 * KIB,
    # What is handed from one process to another.
    "CommittedTask": 64 * KIB,
    "JobReference": 64 * KIB,
    "SealReference": 128 * MIB,
    "PlanReference": 64 * KIB,
    "AbortReport": 64 * KIB,
}

#: An intent holds nothing but a key.
INTENT_BYTES: Final = 4 * KIB

#: 10,000 planned objects with the longest keys are 12 MiB; six times that if JSON escapes every character.
PLAN_PART_BYTES: Final = 96 * MIB

#: All lines: a million files with statistics of 32 columns are 5 GiB. Kept on disk, not in memory.
LIST_BYTES: Final = 64 * GIB

#: A compressed checkpoint of the log: a million commits are 100 MiB.
CHECKPOINT_BYTES: Final = 256 * MIB
